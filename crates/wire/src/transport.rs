//! How messages are carried.

/// How a client's query came, and its reply goes: as the label `proto` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proto {
    /// Each message in a datagram.
    Udp,
    /// Over a connection, TCP or TLS over it, each message behind its length (RFC 1035, section 4.2.2; RFC 7858).
    Tcp,
}

impl Proto {
    /// The label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}
