//! Errors of hosts texts. Knows no format and prints nothing.

use std::fmt;

use wire::{NameError, RType};

/// The errors of a set of texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The first 10 errors, in the order of the texts.
    pub bad_lines: Vec<BadLine>,
    /// Number of all errors: one for each line without a usable address or name, for each bad name,
    /// and for each set of records that was truncated.
    pub bad_count: usize,
}

/// An error and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// The text's name, as given in its [`HostsText`](crate::HostsText).
    pub source: Box<str>,
    /// The line's number in its text, from 1.
    pub line: usize,
    /// The error.
    pub error: LineError,
}

/// Why a line, or a field of it, was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The first field exceeds 1024 bytes. The line is dropped.
    #[error("address longer than {} bytes, dropping the line", MAX_FIELD)]
    LongAddress,
    /// The first field is not an IP address. The line is dropped.
    #[error("not an IP address, dropping the line")]
    Address,
    /// The line has an address only.
    #[error("an address without a name")]
    NoName,
    /// A name exceeds 1024 bytes. The name is dropped.
    #[error("name longer than {} bytes, dropping the name", MAX_FIELD)]
    LongName,
    /// A name is not UTF-8. The name is dropped.
    #[error("name not in UTF-8, dropping the name")]
    Encoding,
    /// A name is not a domain name. The name is dropped.
    #[error("not a domain name ({0}), dropping the name")]
    Name(NameError),
    /// The name's addresses, or the address's names, fill a message; further ones are dropped.
    /// Reported once for each set.
    #[error("more {0} records than fit a message, dropping this one and those that follow")]
    FullSet(RType),
    /// The table has the maximum number of pairs of name and address. The name is dropped.
    #[error("more than {} names and addresses, dropping the name", MAX_PAIRS)]
    FullTable,
}

impl Report {
    /// Counts an error, and stores it if it is among the first 10.
    pub(crate) fn push(&mut self, source: &str, line: usize, error: LineError) {
        self.bad_count += 1;
        if self.bad_lines.len() < MAX_BAD_LINES {
            self.bad_lines.push(BadLine { source: source.into(), line, error });
        }
    }
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}: {}", self.source, self.line, self.error)
    }
}

const MAX_BAD_LINES: usize = 10;
/// Maximum length of a field in bytes, as in CoreDNS.
pub(crate) const MAX_FIELD: usize = 1024;
/// Maximum number of pairs of name and address in a table. Each takes at most 576 bytes of the
/// arena, which therefore stays below 4 GiB.
pub(crate) const MAX_PAIRS: usize = 4_000_000;
