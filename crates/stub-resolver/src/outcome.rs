//! Questions, and the outcomes of their lookups.

use std::io;
use std::net::IpAddr;

use thiserror::Error;
use wire::{Name, Rcode};

use crate::certificate::CertificateFault;

/// The address family of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// A records.
    Ipv4,
    /// AAAA records.
    Ipv6,
}

impl Family {
    /// `A` or `AAAA`.
    pub fn rtype(self) -> &'static str {
        match self {
            Self::Ipv4 => "A",
            Self::Ipv6 => "AAAA",
        }
    }

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }
}

/// A name and family to look up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Question {
    /// The name; always absolute.
    pub name: Name,
    /// The address family.
    pub family: Family,
}

/// The outcome of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupOutcome {
    /// One to [`MAX_ADDRESSES`] addresses of the family, sorted, each once.
    Addresses {
        /// The addresses of the reply, unfiltered: the caller must check whether they may be used.
        addresses: Vec<IpAddr>,
        /// The minimum TTL of addresses and aliases, in seconds.
        ttl: u32,
    },
    /// The name does not exist (NXDOMAIN), or its alias's target does not.
    NoSuchName,
    /// The name exists, and has no address of this family (RFC 2308, section 2.2).
    NoData,
    /// The lookup failed.
    Failed(LookupError),
}

/// Why a lookup failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LookupError {
    /// There is no server.
    #[error("no server to ask")]
    NoServer,
    /// The round timed out before this name was looked up.
    #[error("the round was over before it was asked")]
    OutOfTime,
    /// No reply in time.
    #[error("no reply")]
    Silent,
    /// An rcode that is neither NOERROR nor NXDOMAIN.
    #[error("the server answered {}", Rcode(*.0))]
    Rcode(u16),
    /// A referral: the server does not recurse.
    #[error("the server does not recurse")]
    Referral,
    /// A reply with records of other names.
    #[error("the reply is about other names")]
    Unasked,
    /// The name is an alias, and the resolver follows none.
    #[error("the name is an alias")]
    Alias,
    /// An alias loop, or more than 16 aliases.
    #[error("aliases without end")]
    Aliases,
    /// A truncated reply over TCP.
    #[error("the reply was cut off")]
    Truncated,
    /// The server's certificate is refused.
    #[error("the server's certificate {0}")]
    Certificate(CertificateFault),
    /// A TLS handshake that failed otherwise: no version, cipher suite or protocol in common, or the server wants a client certificate.
    #[error("the TLS handshake failed")]
    Handshake,
    /// An HTTP reply with a status other than 2xx, or with another content type than application/dns-message.
    #[error("the HTTP reply has no DNS message")]
    Http,
    /// The kernel's error.
    #[error("cannot reach the server: {0}")]
    Io(io::ErrorKind),
    /// A malformed reply.
    #[error("the reply cannot be read")]
    Unreadable,
}

/// Maximum number of addresses of one name and family.
pub const MAX_ADDRESSES: usize = 128;
