//! The listening sockets that a server keeps ready for its successor.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use crate::fdstore::FdStore;
use crate::{InheritedSockets, SocketKey, WARM};

/// Copies of a server's listening sockets; also in the service manager's store, once [offered](Self::offer).
#[derive(Debug, Default)]
pub struct SocketStore {
    sockets: BTreeMap<SocketKey, OwnedFd>,
    manager: Option<FdStore>,
}

impl SocketStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores a copy of a socket.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn insert(&mut self, key: SocketKey, socket: impl AsFd) -> io::Result<()> {
        let copy = socket.as_fd().try_clone_to_owned()?;
        notify(&mut self.manager, |manager| manager.store(&key.name(), copy.as_fd()));
        self.sockets.insert(key, copy);
        Ok(())
    }

    /// Removes all sockets of an address.
    pub fn remove_address(&mut self, address: SocketAddr) {
        for (key, _) in self.sockets.extract_if(.., |key, _| key.address() == address) {
            notify(&mut self.manager, |manager| manager.remove(&key.name()));
        }
    }

    /// Removes one socket.
    pub fn remove(&mut self, key: SocketKey) {
        if self.sockets.remove(&key).is_some() {
            notify(&mut self.manager, |manager| manager.remove(&key.name()));
        }
    }

    /// From now on keeps the service manager's store equal to this one, for the process that the manager starts next: descriptors
    /// of an earlier process that are not in this store are removed there.
    pub fn offer(&mut self, inherited: InheritedSockets, notifier: &node::Notifier) {
        self.manager = FdStore::find(notifier);
        let names: Vec<_> = self.sockets.keys().map(|key| key.name()).collect();
        for name in inherited.into_names().iter().filter(|name| !names.contains(name)) {
            notify(&mut self.manager, |manager| manager.remove(name));
        }
        for (key, copy) in &self.sockets {
            notify(&mut self.manager, |manager| manager.store(&key.name(), copy.as_fd()));
        }
    }

    /// Removes everything from the service manager's store.
    pub fn withdraw(&mut self) {
        for key in self.sockets.keys() {
            notify(&mut self.manager, |manager| manager.remove(&key.name()));
        }
        self.manager = None;
    }

    /// The number of descriptors for the next process, snapshot included, and the size of the manager's store, where that is smaller
    /// (`FDSTORE`, since systemd 254).
    pub fn beyond_store(&self, notifier: &node::Notifier) -> Option<(usize, usize)> {
        let room = std::env::var("FDSTORE").ok().filter(|_| notifier.has_manager())?.parse().ok()?;
        let wanted = self.sockets.len() + 1;
        (room < wanted).then_some((wanted, room))
    }

    /// Whether the service manager's store has the sockets.
    pub fn is_offered(&self) -> bool {
        self.manager.is_some()
    }

    /// Adds the cache snapshot to the service manager's store as this process ends, and waits until
    /// the manager has processed all messages: it may drop messages of a process that has ended.
    pub fn store_snapshot(&mut self, warm: Option<OwnedFd>) {
        if let Some(warm) = warm {
            notify(&mut self.manager, |manager| manager.store(WARM, warm.as_fd()));
        }
        notify(&mut self.manager, FdStore::barrier);
    }

    /// Copies of all descriptors by name, the snapshot first.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn all(&self, warm: Option<OwnedFd>) -> io::Result<Vec<(String, OwnedFd)>> {
        let sockets = self.sockets.iter().map(|(key, copy)| Ok((key.name(), copy.try_clone()?)));
        warm.into_iter().map(|warm| Ok((WARM.to_owned(), warm))).chain(sockets).collect()
    }

    /// A copy of one socket.
    pub fn copy(&self, key: SocketKey) -> Option<OwnedFd> {
        self.sockets.get(&key)?.try_clone().ok()
    }
}

/// Sends to the manager. After a failed message no further one is sent: only the next restart is
/// affected.
fn notify(manager: &mut Option<FdStore>, send: impl FnOnce(&FdStore) -> io::Result<()>) {
    if manager.as_ref().is_some_and(|manager| send(manager).is_err()) {
        *manager = None;
    }
}

/// Removes all received descriptors from the service manager's store.
pub fn forget(inherited: InheritedSockets, notifier: &node::Notifier) {
    let mut manager = FdStore::find(notifier);
    for name in inherited.into_names() {
        notify(&mut manager, |manager| manager.remove(&name));
    }
}
