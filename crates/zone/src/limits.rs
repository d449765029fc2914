//! Bounds of what is read.

/// Maximum bytes of text in all files of a zone.
pub const MOST_TEXT: usize = 512 << 20;
/// Maximum bytes of a zone in memory, and of its records while they are read.
pub const MOST_BYTES: usize = 1 << 30;
/// Files that include each other, the first not counted; as in CoreDNS.
pub const MOST_DEPTH: usize = 7;
