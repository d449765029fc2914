//! Sockets and the cache snapshot that a process receives from its predecessor.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::{ipv6_v6only, socket_acceptconn, socket_protocol, socket_type};
use rustix::net::{SocketType, getpeername, getsockname, ipproto};

use crate::WARM;
use crate::fdstore::FdStore;

/// Received descriptors, each with the name that the predecessor gave it.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<Socket>,
    warm: Option<OwnedFd>,
    /// Names of the descriptors that were taken out already, for the manager to forget.
    taken: Vec<String>,
    /// Names of closed descriptors: neither listening sockets nor the snapshot, or overlapping.
    useless: Vec<String>,
}

#[derive(Debug)]
struct Socket {
    name: String,
    kind: SocketType,
    address: SocketAddr,
    descriptor: OwnedFd,
}

impl InheritedSockets {
    /// The descriptors that the service manager passed to this process (`LISTEN_PID`, `LISTEN_FDS`, `LISTEN_FDNAMES`). Must be
    /// called once, before any other file is opened.
    pub fn from_manager(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| variable(name)?.parse::<u32>().ok();
        if number("LISTEN_PID") != Some(std::process::id()) {
            return Self::default();
        }
        let descriptors = sockets::inherited(FIRST, number("LISTEN_FDS").unwrap_or(0).min(MAX_DESCRIPTORS));
        let names = variable("LISTEN_FDNAMES").unwrap_or_default();
        let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
        names.zip(descriptors).filter_map(|(name, descriptor)| Some((name, descriptor?))).collect()
    }

    /// Whether there are no descriptors.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.sockets.is_empty() && self.taken.is_empty() && self.useless.is_empty()
    }

    /// Closes the sockets that overlap one of the `wanted` addresses but are not wanted: a socket of
    /// one address takes the packets of that address from a socket of all addresses, and keeps the
    /// latter from being bound. Packets queued in the closed sockets are lost.
    /// [`Self::forget_useless`] makes the service manager close the sockets, too.
    pub fn close_overlapping(&mut self, wanted: &[SocketAddr]) {
        let is_wanted =
            |own: SocketAddr| wanted.iter().any(|at| (at.ip(), at.port()) == (own.ip(), own.port()));
        let overlaps = |own: SocketAddr| {
            let overlap = |at: &SocketAddr| {
                let has_all = at.ip().is_unspecified() || own.ip().is_unspecified();
                at.port() == own.port() && at.is_ipv4() == own.is_ipv4() && has_all
            };
            wanted.iter().any(overlap)
        };
        let closed =
            self.sockets.extract_if(.., |socket| !is_wanted(socket.address) && overlaps(socket.address));
        self.useless.extend(closed.map(|socket| socket.name));
    }

    /// Makes the service manager close the descriptors that were closed here, and waits until they
    /// are closed: an open socket may keep an address from being bound.
    pub fn forget_useless(&mut self, notifier: &node::Notifier) {
        let manager = FdStore::find(notifier).filter(|_| !self.useless.is_empty());
        let Some(manager) = manager else { return };
        if self.useless.iter().all(|name| manager.remove(name).is_ok()) && manager.barrier().is_ok() {
            self.useless.clear();
        }
    }

    /// Takes the UDP sockets of an address, in the order of their SO_REUSEPORT group.
    pub fn udp(&mut self, address: SocketAddr) -> Vec<OwnedFd> {
        let mut sockets = self.take(SocketType::DGRAM, address);
        // Sockets without a number are last, in the order received.
        sockets.sort_by_key(|socket| nth(&socket.name));
        sockets.into_iter().map(|socket| socket.descriptor).collect()
    }

    /// Takes the TCP listener of an address.
    pub fn tcp(&mut self, address: SocketAddr) -> Option<OwnedFd> {
        self.take(SocketType::STREAM, address).pop().map(|socket| socket.descriptor)
    }

    /// Returns the addresses of the sockets that were not taken.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.sockets.iter().map(|socket| socket.address)
    }

    /// Takes the predecessor's cache snapshot.
    pub fn warm(&mut self) -> Option<OwnedFd> {
        self.warm.take()
    }

    /// Closes the descriptors that were not taken. Returns all names received: each is obsolete unless the [`SocketStore`] uses
    /// it again.
    ///
    /// [`SocketStore`]: crate::SocketStore
    pub(crate) fn into_names(self) -> Vec<String> {
        self.sockets.into_iter().map(|socket| socket.name).chain(self.taken).chain(self.useless).collect()
    }

    fn take(&mut self, kind: SocketType, address: SocketAddr) -> Vec<Socket> {
        let taken = self.sockets.extract_if(.., |socket| socket.kind == kind && socket.address == address);
        let taken: Vec<_> = taken.collect();
        self.taken.extend(taken.iter().map(|socket| socket.name.clone()));
        taken
    }
}

impl FromIterator<(String, OwnedFd)> for InheritedSockets {
    /// Sorts descriptors by kind. Those that are neither listening sockets nor the snapshot are closed.
    fn from_iter<I: IntoIterator<Item = (String, OwnedFd)>>(descriptors: I) -> Self {
        let mut inherited = Self::default();
        for (name, descriptor) in descriptors {
            if name == WARM {
                // systemd passes descriptors of the same name newest first.
                inherited.warm.get_or_insert(descriptor);
                inherited.taken.push(name);
                continue;
            }
            match listening_socket(&descriptor) {
                Ok((kind, address)) => {
                    inherited.sockets.push(Socket { name, kind, address, descriptor });
                }
                Err(_) => inherited.useless.push(name),
            }
        }
        inherited
    }
}

/// Returns type and address of a listening or unconnected socket; an error for any other
/// descriptor.
fn listening_socket(descriptor: &OwnedFd) -> io::Result<(SocketType, SocketAddr)> {
    let kind = socket_type(descriptor.as_fd())?;
    let protocol = socket_protocol(descriptor.as_fd())?;
    let address = SocketAddr::try_from(getsockname(descriptor.as_fd())?)?;
    let serves = match kind {
        // A connected socket receives from one client only.
        SocketType::DGRAM => protocol == Some(ipproto::UDP) && getpeername(descriptor.as_fd()).is_err(),
        SocketType::STREAM => protocol == Some(ipproto::TCP) && socket_acceptconn(descriptor.as_fd())?,
        _ => false,
    };
    // A dual-stack socket would keep the IPv4 address from being bound.
    match serves && (address.is_ipv4() || ipv6_v6only(descriptor.as_fd())?) {
        true => Ok((kind, address)),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn nth(name: &str) -> usize {
    let number = name.strip_prefix("udp-").and_then(|rest| rest.split('-').next()?.parse().ok());
    number.unwrap_or(usize::MAX)
}

/// The first descriptor that the manager passes (SD_LISTEN_FDS_START).
const FIRST: i32 = 3;
/// Maximum number of descriptors taken over; our units store fewer.
const MAX_DESCRIPTORS: u32 = 4096;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn sockets_by_kind_in_number_order() {
        let udp: Vec<_> = (0..3).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let at = udp[0].local_addr().unwrap();
        let tcp = TcpListener::bind(at).unwrap();
        let connection = std::net::TcpStream::connect(at).unwrap();
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let copy = |socket: &UdpSocket| OwnedFd::from(socket.try_clone().unwrap());
        let mut inherited: InheritedSockets = [
            ("udp-10-x".to_owned(), copy(&udp[0])),
            ("stored".to_owned(), copy(&udp[0])),
            ("udp-2-x".to_owned(), copy(&udp[0])),
            ("udp-0-y".to_owned(), copy(&udp[1])),
            ("tcp-y".to_owned(), tcp.accept().unwrap().0.into()),
            ("tcp-x".to_owned(), tcp.into()),
            ("file".to_owned(), file),
        ]
        .into_iter()
        .collect();
        assert_eq!(inherited.udp(at).len(), 3);
        assert_eq!(inherited.udp(at).len(), 0, "each is taken once");
        assert!(inherited.tcp(at).is_some() && inherited.tcp(at).is_none());
        let mut rest = inherited.into_names();
        rest.sort();
        assert_eq!(rest, ["file", "stored", "tcp-x", "tcp-y", "udp-0-y", "udp-10-x", "udp-2-x"]);
        drop(connection);
        for (name, number) in
            [("udp-2-53-127.0.0.1", 2), ("udp-12", 12), ("udp-", usize::MAX), ("tcp-1", usize::MAX)]
        {
            assert_eq!(nth(name), number, "{name}");
        }
    }

    #[test]
    fn other_listen_pid_is_ignored() {
        let of = |pid: &'static str| {
            move |name: &str| match name {
                "LISTEN_PID" => Some(pid.to_owned()),
                "LISTEN_FDS" => Some("9".to_owned()),
                _ => None,
            }
        };
        for pid in ["1", "", "x"] {
            assert!(InheritedSockets::from_manager(&of(pid)).is_empty(), "{pid}");
        }
    }
}
