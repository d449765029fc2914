//! The service manager's descriptor store (systemd's FDSTORE=1, `FileDescriptorStoreMax` of the
//! unit): the manager passes the stored descriptors to the unit's next process.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::scm_rights;

/// A connection to the service manager's notify socket.
#[derive(Debug)]
pub(crate) struct FdStore {
    socket: UnixDatagram,
}

impl FdStore {
    /// Connects; `None` if there is no manager, or if it does not accept messages of this process.
    pub(crate) fn find(notifier: &node::Notifier) -> Option<Self> {
        let path = std::env::var_os("NOTIFY_SOCKET").filter(|_| notifier.is_ours())?;
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&path),
        };
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect_addr(&address.ok()?).ok()?;
        // A manager that does not read must not block this process.
        socket.set_write_timeout(Some(SEND_TIMEOUT)).ok()?;
        Some(Self { socket })
    }

    /// Stores a copy of a descriptor. The manager does not poll it: a socket with an error stays.
    pub(crate) fn store(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let text = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}\n");
        scm_rights::send(&self.socket, text.as_bytes(), &[descriptor])
    }

    /// Removes the descriptors of this name from the store.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        scm_rights::send(&self.socket, format!("FDSTOREREMOVE=1\nFDNAME={name}\n").as_bytes(), &[])
    }

    /// Waits until the manager has processed all earlier messages (BARRIER=1), at most 5 s.
    pub(crate) fn barrier(&self) -> io::Result<()> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        scm_rights::send(&self.socket, b"BARRIER=1\n", &[theirs.as_fd()])?;
        drop(theirs);
        // The manager closes its end once it has processed everything before.
        let mut ends = [PollFd::new(&ours, PollFlags::empty())];
        let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
        match retry_on_intr(|| poll(&mut ends, Some(&timeout)))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

/// Makes the successor the service's main process (MAINPID=), and waits until the manager has
/// processed the message: it accepts messages of the main process only. Does nothing where there is
/// no manager.
///
/// # Errors
/// The manager does not read its socket, or not in time.
pub fn succeed(notifier: &node::Notifier, successor: u32) -> io::Result<()> {
    let Some(manager) = FdStore::find(notifier) else { return Ok(()) };
    scm_rights::send(&manager.socket, format!("MAINPID={successor}\n").as_bytes(), &[])?;
    manager.barrier()
}

/// Timeout of one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
