//! The transport between client and server.

/// The transport of a client's query and its reply; the value of the metrics' label `proto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proto {
    /// One message in a datagram.
    Udp,
    /// A connection, TCP or TLS over it: each message behind its length (RFC 1035, section 4.2.2;
    /// RFC 7858).
    Tcp,
}

impl Proto {
    /// The label's value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}
