//! Listening sockets that outlive a process: passed from the serving process to the next one.
//!
//! ```text
//! SocketStore of the predecessor --(systemd's FDSTORE | a unix socket)--> InheritedSockets of the successor
//! ```
//! Datagrams and connections that are queued in a socket are passed with it, and the successor
//! answers them. The crate handles sockets by their addresses, and opaque bytes for the next
//! process; it must not depend on DNS, the Corefile or the query path.

mod fdstore;
mod inherited_sockets;
pub mod memfd;
mod protocol;
mod scm_rights;
mod socket_store;

use std::net::SocketAddr;

pub use fdstore::succeed;
pub use inherited_sockets::InheritedSockets;
pub use protocol::{HandoverSocket, PredecessorEnd, SuccessorEnd, pair};
pub use socket_store::{SocketStore, forget};

/// The identity of a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketKey {
    /// A UDP socket: the nth of its address, in the order of its SO_REUSEPORT group.
    Udp(SocketAddr, usize),
    /// A TCP listener.
    Tcp(SocketAddr),
}

/// The descriptor name of the cache snapshot ([`memfd`]).
const WARM: &str = "warm";

impl SocketKey {
    fn address(self) -> SocketAddr {
        match self {
            Self::Udp(address, _) | Self::Tcp(address) => address,
        }
    }

    /// A unique descriptor name, in the characters that systemd accepts (FDNAME).
    fn name(self) -> String {
        let address = self.address();
        let kind = match self {
            Self::Udp(_, nth) => format!("udp-{nth}"),
            Self::Tcp(_) => "tcp".to_owned(),
        };
        let scope = match address {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("-{}", v6.scope_id()),
            _ => String::new(),
        };
        format!("{kind}-{}-{}{scope}", address.port(), address.ip().to_string().replace(':', "_"))
    }
}
