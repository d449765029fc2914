//! How queries come, and by which connections they are asked.

/// How a client's query came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTransport {
    /// In a datagram.
    Udp,
    /// Over a connection: TCP, TLS, HTTP, QUIC.
    Tcp,
}

/// The kind of connection that an exchange needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Plain TCP (RFC 7766).
    Tcp,
    /// DNS over TLS (RFC 7858).
    Tls,
}
