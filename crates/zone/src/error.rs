use std::fmt;

use thiserror::Error;
use wire::Name;

/// A file that is no zone: where and why.
#[derive(Debug, Error)]
#[error("{file}:{line}:{column}: {problem}")]
pub struct LoadError {
    /// The file, as in the directive or as `$INCLUDE` leads to it.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in bytes, from 1.
    pub column: usize,
    /// Why.
    pub problem: Problem,
}

/// Why a file is no zone.
#[derive(Debug, Error)]
pub enum Problem {
    /// Text that is no record and no directive.
    #[error(transparent)]
    Text(#[from] zonetext::Error),
    /// A file of `$INCLUDE` that cannot be read.
    #[error("cannot read the included file {file:?}: {why}")]
    Include {
        /// The path as written.
        file: String,
        /// Why.
        why: String,
    },
    /// Files that include each other.
    #[error(
        "`$INCLUDE` stands in a file that is included over {} others; do files include each other?",
        crate::MOST_DEPTH
    )]
    Depth,
    /// Too much text.
    #[error("the files of the zone are larger than {} bytes together; split the zone", crate::MOST_TEXT)]
    TooMuchText,
    /// Too many records.
    #[error("the zone takes more than {} bytes; split it", crate::MOST_BYTES)]
    TooLarge,
    /// A class other than IN.
    #[error("the class is {0}, and only IN is served; remove the record")]
    Class(wire::Class),
    /// A SOA record of another zone.
    #[error(
        "the owner of the SOA record is {found}, and the zone is {zone}; write `@` for it, or name the zone in the directive"
    )]
    OtherZone {
        /// The owner.
        found: String,
        /// The zone.
        zone: String,
    },
    /// Two SOA records that differ.
    #[error("a second SOA record that differs from the first; keep one")]
    SecondSoa,
    /// An NSEC3 record whose owner is no hash.
    #[error(
        "the owner of the record is not a hash in base32hex directly below the zone's name; sign the zone again"
    )]
    NoHash,
    /// A hash algorithm of NSEC3 other than SHA-1.
    #[error("the hash algorithm is {0}, and only 1 (SHA-1) is defined; sign the zone again with 1")]
    HashAlgorithm(u8),
    /// Too many iterations of NSEC3.
    #[error("{0} iterations are more than 150; sign the zone again with 0 (RFC 9276, section 3.1)")]
    Iterations(u16),
    /// No SOA record.
    #[error("the file has no SOA record of the zone {0}; add one")]
    NoSoa(String),
}

/// A record that is not served, or a zone that is not as the RFCs require. The zone is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The owner of the record.
    pub owner: Name,
    /// Why.
    pub why: &'static str,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.owner, self.why)
    }
}
