//! What a server has for its successor.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use crate::manager::Manager;
use crate::{Inherited, SocketKey, WARM};

/// Copies of a server's listening sockets; in the service manager's store, too, once it was [offered](Self::offer).
#[derive(Debug, Default)]
pub struct Shelf {
    sockets: BTreeMap<SocketKey, OwnedFd>,
    manager: Option<Manager>,
}

impl Shelf {
    /// Nothing is on it yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a copy of a socket there.
    ///
    /// # Errors
    /// Where there are no more descriptors.
    pub fn put(&mut self, key: SocketKey, socket: impl AsFd) -> io::Result<()> {
        let copy = socket.as_fd().try_clone_to_owned()?;
        tell(&mut self.manager, |manager| manager.keep(&key.name(), copy.as_fd()));
        self.sockets.insert(key, copy);
        Ok(())
    }

    /// Takes all away that is bound to an address.
    pub fn clear(&mut self, address: SocketAddr) {
        for (key, _) in self.sockets.extract_if(.., |key, _| key.address() == address) {
            tell(&mut self.manager, |manager| manager.forget(&key.name()));
        }
    }

    /// Takes one away.
    pub fn take_away(&mut self, key: SocketKey) {
        if self.sockets.remove(&key).is_some() {
            tell(&mut self.manager, |manager| manager.forget(&key.name()));
        }
    }

    /// Has the service manager keep all of it, now and later, for whomever it starts next, and no longer what was left by an
    /// earlier process and has no place here.
    pub fn offer(&mut self, inherited: Inherited, notifier: &node::Notifier) {
        self.manager = Manager::find(notifier);
        let names: Vec<_> = self.sockets.keys().map(|key| key.name()).collect();
        for name in inherited.into_rest().iter().filter(|name| !names.contains(name)) {
            tell(&mut self.manager, |manager| manager.forget(name));
        }
        for (key, copy) in &self.sockets {
            tell(&mut self.manager, |manager| manager.keep(&key.name(), copy.as_fd()));
        }
    }

    /// Has the service manager keep nothing of it any more.
    pub fn withdraw(&mut self) {
        for key in self.sockets.keys() {
            tell(&mut self.manager, |manager| manager.forget(&key.name()));
        }
        self.manager = None;
    }

    /// How many descriptors the next process is to be left, what this one knows among them, and how many of them the service
    /// manager keeps, where it says that those are fewer (`FDSTORE`, since systemd 254).
    pub fn beyond_store(&self, notifier: &node::Notifier) -> Option<(usize, usize)> {
        let room = std::env::var("FDSTORE").ok().filter(|_| notifier.has_manager())?.parse().ok()?;
        let wanted = self.sockets.len() + 1;
        (room < wanted).then_some((wanted, room))
    }

    /// Whether the service manager keeps it.
    pub fn is_offered(&self) -> bool {
        self.manager.is_some()
    }

    /// Has the service manager keep what this process knows, too, in its last moments, and waits until it has all of it: what a
    /// process said that is gone may be nobody's.
    pub fn leave(&mut self, warm: Option<OwnedFd>) {
        if let Some(warm) = warm {
            tell(&mut self.manager, |manager| manager.keep(WARM, warm.as_fd()));
        }
        tell(&mut self.manager, Manager::settle);
    }

    /// Copies of everything, by name, with what this process knows.
    ///
    /// # Errors
    /// Where there are no more descriptors.
    pub fn all(&self, warm: Option<OwnedFd>) -> io::Result<Vec<(String, OwnedFd)>> {
        let sockets = self.sockets.iter().map(|(key, copy)| Ok((key.name(), copy.try_clone()?)));
        warm.into_iter().map(|warm| Ok((WARM.to_owned(), warm))).chain(sockets).collect()
    }

    /// A copy of what is there.
    pub fn copy(&self, key: SocketKey) -> Option<OwnedFd> {
        self.sockets.get(&key)?.try_clone().ok()
    }
}

/// A manager that does not take a message is not asked again: nothing is lost but what a restart would have kept.
fn tell(manager: &mut Option<Manager>, what: impl FnOnce(&Manager) -> io::Result<()>) {
    if manager.as_ref().is_some_and(|manager| what(manager).is_err()) {
        *manager = None;
    }
}

/// Has the service manager close all that it keeps.
pub fn forget(inherited: Inherited, notifier: &node::Notifier) {
    let mut manager = Manager::find(notifier);
    for name in inherited.into_rest() {
        tell(&mut manager, |manager| manager.forget(&name));
    }
}
