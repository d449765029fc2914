//! The service manager's store of descriptors: what lies there is given to whoever the unit starts next (systemd's
//! FDSTORE=1, `FileDescriptorStoreMax` of the unit).

use std::io;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

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
}

/// How long one message may take.
const PATIENCE: Duration = Duration::from_secs(1);
