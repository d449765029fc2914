//! Reads hosts text into a table of encoded answers, and manages lines in a hosts file of the
//! machine.
//!
//! ```text
//! file text, inline text -> Table::build -> Table, Report
//! question -> Table::lookup -> Absent | NoData | encoded records
//! /etc/hosts: its text -> the managed lines wanted -> managed::HostsFile::update
//! ```
//!
//! Reads no clock and knows no server block. A [`Table`] opens no file and is immutable. Texts are
//! untrusted: bad lines are skipped and listed in the [`Report`].

mod builder;
mod diagnostics;
pub mod managed;
#[cfg(test)]
mod model_tests;
pub mod parse;
mod table;

pub use diagnostics::{BadLine, LineError, Report};
pub use table::{Found, Table};

use wire::Name;

/// Options for [`Table::build`].
#[derive(Debug, Clone)]
pub struct Options {
    /// TTL of every record in seconds: 3600 by default, 1 to 65535.
    pub ttl: u32,
    /// Only names within one of these zones are added, as owners and as targets of PTR records.
    /// Addresses are not filtered. Without a zone the table is empty.
    pub zones: Vec<Name>,
    /// Whether PTR records are added; the property `no_reverse` sets it to false.
    pub reverse: bool,
}

/// One text in the format of hosts(5).
#[derive(Debug, Clone, Copy)]
pub struct HostsText<'t> {
    /// Source of the text, for the report.
    pub name: &'t str,
    /// The text, which may contain any bytes.
    pub text: &'t [u8],
}
