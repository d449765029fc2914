//! Stands in for systemd: receives the notifications of a service, and stores descriptors for its
//! next process.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::fs::fstat;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tempfile::TempDir;

use crate::clock::eventually;
use crate::lock::lock;
use crate::place::tempdir;
use crate::server::Options;

/// A service manager for one service, with a large `FileDescriptorStoreMax`.
#[derive(Debug)]
pub struct Manager {
    directory: TempDir,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Messages, each with the process that sent it.
    received: Vec<(u32, String)>,
    stored: Vec<(String, Arc<OwnedFd>)>,
}

impl Manager {
    /// Starts a manager: a thread receives notifications until the test process ends.
    ///
    /// # Panics
    /// Where its socket cannot be made.
    pub fn new() -> Self {
        let directory = tempdir();
        let socket = UnixDatagram::bind(directory.path().join("notify")).expect("the directory is ours");
        set_socket_passcred(&socket, true).expect("the kernel reports the sender");
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || while receive(&socket, &shared).is_some() {});
        Self { directory, state }
    }

    /// Options for a process of the service: it inherits the stored descriptors, and may send
    /// notifications.
    ///
    /// # Panics
    /// When descriptors run out.
    pub fn options(&self) -> Options {
        let state = lock(&self.state);
        let names: Vec<_> = state.stored.iter().map(|(name, _)| name.as_str()).collect();
        let given = state.stored.iter().map(|(_, descriptor)| {
            let copy = fcntl_dupfd_cloexec(descriptor, 100).expect("there are more descriptors");
            fcntl_setfd(&copy, FdFlags::empty()).expect("it is ours");
            Arc::new(copy)
        });
        Options::default()
            .env("NOTIFY_SOCKET", &self.directory.path().join("notify").to_string_lossy())
            .env("LISTEN_FDS", &names.len().to_string())
            .env("LISTEN_FDNAMES", &names.join(":"))
            .export("SYSTEMD_EXEC_PID", "$$")
            .export("LISTEN_PID", "$$")
            .inherits(given.collect())
    }

    /// Stores a descriptor, as an earlier process might have.
    pub fn store(&self, name: &str, descriptor: OwnedFd) {
        lock(&self.state).stored.push((name.to_owned(), Arc::new(descriptor)));
    }

    /// Closes the stored descriptors, like systemd when the service is stopped.
    pub fn forget(&self) {
        lock(&self.state).stored.clear();
    }

    /// The names of the stored descriptors, sorted.
    pub fn stored(&self) -> Vec<String> {
        let mut names: Vec<_> = lock(&self.state).stored.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Waits until exactly these descriptors are stored.
    ///
    /// # Panics
    /// When they are not in time.
    pub fn wait_for_stored(&self, wanted: &[String], patience: Duration) {
        let what = format!("{wanted:?} in the store, which has {:?} at first", self.stored());
        eventually(&what, patience, || (self.stored() == wanted).then_some(()));
    }

    /// Waits until `n` messages contain `part`, counted from the start.
    ///
    /// # Panics
    /// When they do not arrive in time.
    pub fn wait_for(&self, part: &str, n: usize, patience: Duration) {
        eventually(&format!("{n} times {part}"), patience, || (self.received(part) >= n).then_some(()));
    }

    /// How many messages contain `part`.
    pub fn received(&self, part: &str) -> usize {
        lock(&self.state).received.iter().filter(|(_, message)| message.contains(part)).count()
    }

    /// The messages of a process.
    pub fn received_from(&self, pid: u32) -> Vec<String> {
        let state = lock(&self.state);
        state.received.iter().filter(|(by, _)| *by == pid).map(|(_, message)| message.clone()).collect()
    }
}

impl Default for Manager {
    fn default() -> Self {
        Self::new()
    }
}

/// Receives one message; `None` at the end of the test.
fn receive(socket: &UnixDatagram, state: &Mutex<State>) -> Option<()> {
    let mut text = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let length = received.ok()?.bytes;
    let (mut descriptors, mut by) = (Vec::<OwnedFd>::new(), 0);
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(rights) => descriptors.extend(rights),
            RecvAncillaryMessage::ScmCredentials(credentials) => {
                by = credentials.pid.as_raw_nonzero().get().unsigned_abs()
            }
            _ => {}
        }
    }
    let message = String::from_utf8_lossy(&text[..length]).into_owned();
    let value = |key: &str| message.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
    let name = value("FDNAME=").unwrap_or_else(|| "stored".to_owned());
    let mut state = lock(state);
    if value("FDSTOREREMOVE=").is_some() {
        state.stored.retain(|(stored, _)| *stored != name);
    } else if value("FDSTORE=").is_some() {
        for descriptor in descriptors {
            let inode = |one: &OwnedFd| fstat(one.as_fd()).map(|stat| (stat.st_dev, stat.st_ino)).ok();
            // Storing the same descriptor again has no effect.
            if state.stored.iter().all(|(_, stored)| inode(stored) != inode(&descriptor)) {
                // The newest first, like systemd.
                state.stored.insert(0, (name.clone(), Arc::new(descriptor)));
            }
        }
    }
    // BARRIER=1: the descriptor sent with it is closed by now.
    state.received.push((by, message));
    Some(())
}
