//! Endpoints of this server: a transport and an address.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// How DNS messages travel between clients and a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Plain DNS over UDP and TCP.
    Dns,
    /// DNS over TLS (RFC 7858).
    Tls,
    /// DNS over HTTPS (RFC 8484).
    Https,
    /// DNS over QUIC (RFC 9250).
    Quic,
}

impl Transport {
    /// Returns the scheme in server block keys and in the label `server`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Tls => "tls",
            Self::Https => "https",
            Self::Quic => "quic",
        }
    }

    /// Whether both need the same ports: those of UDP, or those of TCP.
    pub fn shares_ports(self, other: Self) -> bool {
        (self.has_udp() && other.has_udp()) || (self.has_tcp() && other.has_tcp())
    }

    /// Whether the endpoint has UDP sockets.
    pub fn has_udp(self) -> bool {
        match self {
            Self::Dns | Self::Quic => true,
            Self::Tls | Self::Https => false,
        }
    }

    /// Whether the endpoint has a TCP listener.
    pub fn has_tcp(self) -> bool {
        match self {
            Self::Dns | Self::Tls | Self::Https => true,
            Self::Quic => false,
        }
    }
}

/// One listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The transport.
    pub transport: Transport,
    /// The address.
    pub address: SocketAddr,
}

impl Endpoint {
    /// Creates an endpoint of plain DNS at this address.
    #[inline]
    pub fn dns(address: SocketAddr) -> Self {
        Self { transport: Transport::Dns, address }
    }

    /// Creates the endpoint of an upstream.
    pub fn of_upstream(address: SocketAddr, tls: bool) -> Self {
        Self { transport: if tls { Transport::Tls } else { Transport::Dns }, address }
    }

    /// Returns the label `server`: `TRANSPORT://ADDRESS:PORT`, without the address if it is a
    /// wildcard.
    pub fn label(&self) -> String {
        format!("{}://{}", self.transport.name(), self.address_text())
    }

    /// Returns the label without its transport.
    pub fn address_text(&self) -> String {
        let address = self.address;
        match address.ip().is_unspecified() {
            true => format!(":{}", address.port()),
            false if address.is_ipv6() => format!("[{}]:{}", host_text(address), address.port()),
            false => address.to_string(),
        }
    }
}

/// Returns the address without its port; for link-local IPv6 with the interface: `fe80::1%eth0`.
pub fn host_text(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => {
            let link = node::link_name(v6.scope_id()).unwrap_or_else(|| v6.scope_id().to_string());
            format!("{}%{link}", v6.ip())
        }
        _ => address.ip().to_string(),
    }
}

/// Writes the address, preceded by the transport unless it is plain DNS.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Dns => self.address.fmt(f),
            other => write!(f, "{}://{}", other.name(), self.address),
        }
    }
}

impl FromStr for Endpoint {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (transport, address) = match text.split_once("://") {
            Some(("tls", address)) => (Transport::Tls, address),
            Some(("https", address)) => (Transport::Https, address),
            Some(("quic", address)) => (Transport::Quic, address),
            _ => (Transport::Dns, text),
        };
        Ok(Self { transport, address: address.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_coredns() {
        for (endpoint, label) in [
            ("127.0.0.1:53", "dns://127.0.0.1:53"),
            ("0.0.0.0:53", "dns://:53"),
            ("[::]:5300", "dns://:5300"),
            ("tls://0.0.0.0:853", "tls://:853"),
            ("tls://192.0.2.1:853", "tls://192.0.2.1:853"),
            ("https://0.0.0.0:443", "https://:443"),
            ("quic://192.0.2.1:853", "quic://192.0.2.1:853"),
            ("tls://[2001:db8::1]:853", "tls://[2001:db8::1]:853"),
            ("tls://[fe80::1%1]:853", "tls://[fe80::1%lo]:853"),
        ] {
            let parsed: Endpoint = endpoint.parse().unwrap();
            assert_eq!((parsed.label(), parsed.to_string()), (label.to_owned(), endpoint.to_owned()));
        }
    }
}
