//! Epoll tokens.

/// The inbox.
pub(crate) const INBOX: u64 = u64::MAX;
/// An upstream's socket, by its index.
pub(crate) const UPSTREAM: u64 = 1 << 32;
/// A listen socket, by its index.
pub(crate) const LISTEN: u64 = 1 << 33;
