//! The service manager's store of descriptors: what lies there is given to whoever the unit starts next (systemd's
//! FDSTORE=1, `FileDescriptorStoreMax` of the unit).

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::message;

/// The line to the manager.
#[derive(Debug)]
pub(crate) struct Manager {
    socket: UnixDatagram,
}

impl Manager {
    /// `None` where there is none, or none that this process speaks to.
    pub(crate) fn find(notifier: &node::Notifier) -> Option<Self> {
        let path = std::env::var_os("NOTIFY_SOCKET").filter(|_| notifier.is_ours())?;
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&path),
        };
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect_addr(&address.ok()?).ok()?;
        // A manager that does not listen must not hold us up.
        socket.set_write_timeout(Some(PATIENCE)).ok()?;
        Some(Self { socket })
    }

    /// Puts a copy of a descriptor there. The manager does not watch it: a socket with an error stays.
    pub(crate) fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let text = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}\n");
        message::send(&self.socket, text.as_bytes(), &[descriptor])
    }

    /// Has what bears this name closed there.
    pub(crate) fn forget(&self, name: &str) -> io::Result<()> {
        message::send(&self.socket, format!("FDSTOREREMOVE=1\nFDNAME={name}\n").as_bytes(), &[])
    }

    /// Waits until the manager has heard all that was said before.
    pub(crate) fn settle(&self) -> io::Result<()> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        message::send(&self.socket, b"BARRIER=1\n", &[theirs.as_fd()])?;
        drop(theirs);
        // It closes its end when it has read everything before.
        let mut ends = [PollFd::new(&ours, PollFlags::empty())];
        let patience = Timespec { tv_sec: 5, tv_nsec: 0 };
        match retry_on_intr(|| poll(&mut ends, Some(&patience)))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

/// Says which process speaks for the service from now on, and waits until the manager has heard it: what comes from that
/// process afterwards counts. Nothing where there is no manager.
///
/// # Errors
/// Where the manager does not listen.
pub fn succeed(notifier: &node::Notifier, successor: u32) -> io::Result<()> {
    let Some(manager) = Manager::find(notifier) else { return Ok(()) };
    message::send(&manager.socket, format!("MAINPID={successor}\n").as_bytes(), &[])?;
    manager.settle()
}

/// How long one message may take.
const PATIENCE: Duration = Duration::from_secs(1);
