//! The address of an admin listener.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `HOST:PORT` of an admin listener; without a host it listens on all addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdminAddress {
    /// The address, if one is named.
    pub host: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

impl AdminAddress {
    /// All addresses.
    pub fn everywhere(port: u16) -> Self {
        Self { host: None, port }
    }

    /// Parses `ADDRESS:PORT`. Without an address it is all addresses, without a port one that the kernel chooses, as in CoreDNS.
    pub fn from_text(text: &str) -> Option<Self> {
        let (host, port) = node::split_port(text)?;
        let port = match port? {
            "" | "0" => 0,
            digits => node::port_number(digits)?,
        };
        let host = match host {
            "" => None,
            "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            host => Some(host.parse().ok()?),
        };
        Some(Self { host, port })
    }

    /// The addresses to listen on: the one named, or IPv6 and IPv4 wildcards.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        match self.host {
            Some(host) => vec![SocketAddr::new(host, self.port)],
            None => vec![
                SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), self.port),
                SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), self.port),
            ],
        }
    }
}
