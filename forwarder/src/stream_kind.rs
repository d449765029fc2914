//! Over which connections upstreams are asked.

/// The kind of connection that an exchange needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Plain TCP (RFC 7766).
    Tcp,
    /// DNS over TLS (RFC 7858).
    Tls,
}
