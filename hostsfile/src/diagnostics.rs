//! What could not be taken from the texts. Knows no format and prints nothing.

use std::fmt;

use wire::{NameError, RType};

/// What could not be taken from the texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The first of what was dropped, in the order of the texts: at most 10.
    pub bad_lines: Vec<BadLine>,
    /// How much was dropped in all: one for each line without a usable address or name, one for each name, one for each
    /// set of records that was cut.
    pub bad_count: usize,
}

/// Something that was dropped, and where it stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// The text's name, as given in its [`HostsText`](crate::HostsText).
    pub source: Box<str>,
    /// The line's number in its text, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub error: LineError,
}

/// Why a line, or a field of it, does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The first field is above 1024 bytes. The line is dropped.
    #[error("address longer than {} bytes, dropping the line", MAX_FIELD)]
    LongAddress,
    /// The first field is no IP address. The line is dropped.
    #[error("not an IP address, dropping the line")]
    Address,
    /// The line ends behind its address.
    #[error("an address without a name")]
    NoName,
    /// A name is above 1024 bytes. The name is dropped.
    #[error("name longer than {} bytes, dropping the name", MAX_FIELD)]
    LongName,
    /// A name is not UTF-8. The name is dropped.
    #[error("name not in UTF-8, dropping the name")]
    Encoding,
    /// A name is not a domain name. The name is dropped.
    #[error("not a domain name ({0}), dropping the name")]
    Name(NameError),
    /// The name's addresses, or the address's names, fill a message; this one and later ones of the set are dropped.
    /// Told once for each set.
    #[error("no room in a message for a further {0} record, dropping it and those that follow")]
    FullSet(RType),
    /// The table holds as many pairs of name and address as it may. The name is dropped.
    #[error("more than {} names and addresses, dropping the name", MAX_PAIRS)]
    FullTable,
}

impl Report {
    /// Counts what was dropped, and keeps it if it is among the first.
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
/// Longest field in bytes that is looked at, as in CoreDNS.
pub(crate) const MAX_FIELD: usize = 1024;
/// Pairs of name and address that a table may hold. Each takes 576 octets of the arena at most: all of it is below 4 GiB.
pub(crate) const MAX_PAIRS: usize = 4_000_000;
