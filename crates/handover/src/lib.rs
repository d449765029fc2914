//! Listening sockets that outlive a process: what a server leaves to its successor, and how that comes by it.
//!
//! ```text
//! Shelf, of the one that serves  --(systemd's descriptor store | a unix socket)-->  Inherited, of the one that starts
//! ```
//! What waits in a socket's queue goes with it, so that whoever reads it next answers it. It knows sockets by their addresses,
//! and octets that one process says to the next; it must not know DNS, the Corefile or the query path.

mod inherited;
mod link;
mod manager;
pub mod memory;
mod message;
mod shelf;

use std::net::SocketAddr;

pub use inherited::Inherited;
pub use link::{Giver, HandoverSocket, Taker, pair};
pub use manager::succeed;
pub use shelf::{Shelf, forget};

/// Which socket a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketKey {
    /// A UDP socket: the nth of its address, in the order in which the kernel counts them.
    Udp(SocketAddr, usize),
    /// A listener for streams.
    Tcp(SocketAddr),
}

/// The name of what is known ([`memory`]).
const WARM: &str = "warm";

impl SocketKey {
    fn address(self) -> SocketAddr {
        match self {
            Self::Udp(address, _) | Self::Tcp(address) => address,
        }
    }

    /// A name that no other has, in the characters that systemd takes (FDNAME).
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
