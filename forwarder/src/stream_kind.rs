//! TCP or TLS.

/// The transport of a connection to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Plain TCP (RFC 7766).
    Tcp,
    /// DNS over TLS (RFC 7858).
    Tls,
}
