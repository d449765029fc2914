//! Epoll tokens.

/// The token of the inbox.
pub(crate) const INBOX: u64 = u64::MAX;
/// The token of an upstream's socket, to which the socket's index is added.
pub(crate) const UPSTREAM: u64 = 1 << 32;
/// The token of a listen socket, to which the socket's index is added.
pub(crate) const LISTEN: u64 = 1 << 33;
