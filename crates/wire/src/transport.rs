//! The transport between client and server.

/// The transport of a client's query and its reply; the value of the metrics' label `proto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proto {
    /// One message in a datagram.
    Udp,
    /// A connection, TCP or TLS over it: each message behind its length (RFC 1035, section 4.2.2;
    /// RFC 7858).
    Tcp,
    /// A stream of QUIC (RFC 9250): counted and logged as UDP, which it runs over, but with replies
    /// as long as over TCP.
    Quic,
}

impl Proto {
    /// The index of the label among `udp` and `tcp`.
    #[inline]
    pub fn label_index(self) -> usize {
        // Udp 0, Tcp 1, Quic 2.
        self as usize & 1
    }

    /// The label's value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Udp | Self::Quic => "udp",
            Self::Tcp => "tcp",
        }
    }
}
