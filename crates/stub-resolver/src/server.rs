//! A server for lookups, as it is configured.

use std::fmt;
use std::net::SocketAddr;

use tls::TlsSettings;

/// A server that names are looked up at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its address.
    pub address: SocketAddr,
    /// How it is asked.
    pub transport: Transport,
}

/// How a server is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// Over UDP, and over TCP if a reply is truncated or none arrives.
    Dns,
    /// Over TLS (RFC 7858).
    Tls(TlsSettings),
    /// Over HTTP/2 and TLS, with POST to /dns-query (RFC 8484).
    Https(TlsSettings),
    /// Over QUIC (RFC 9250).
    Quic(TlsSettings),
}

impl Transport {
    /// What stands before the address in a configuration; empty for UDP and TCP.
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Dns => "",
            Self::Tls(_) => "tls://",
            Self::Https(_) => "https://",
            Self::Quic(_) => "quic://",
        }
    }

    pub(crate) fn tls(&self) -> Option<&TlsSettings> {
        match self {
            Self::Dns => None,
            Self::Tls(settings) | Self::Https(settings) | Self::Quic(settings) => Some(settings),
        }
    }
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Self {
        Self { address, transport: Transport::Dns }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.transport.scheme(), self.address)
    }
}
