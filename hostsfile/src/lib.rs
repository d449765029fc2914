//! Hosts text to an index of ready answers, and hosts files that are written whole: what knows what a hosts file
//! says, and how to change one under its readers' eyes.
//!
//! ```text
//! file text, inline text -> Table::build -> Table, Report
//! question -> Table::lookup -> Absent | NoData | records, ready to send
//! a file that is not ours: its text -> which lines we want in it -> managed::File::update
//! ```
//!
//! Nothing here reads a clock or knows a server block; a [`Table`] opens no file and never changes once it is built. Every
//! text is somebody else's: what cannot be read is skipped and told in the [`Report`], the rest serves.

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

/// How texts become answers.
#[derive(Debug, Clone)]
pub struct Options {
    /// TTL of every record in seconds: 3600 by default, 1 to 65535.
    pub ttl: u32,
    /// Only names within one of these enter, as owners and as what a PTR record points to; addresses are not asked. None
    /// at all lets nothing enter.
    pub zones: Vec<Name>,
    /// Whether addresses answer PTR questions; the property `no_reverse` turns it off.
    pub reverse: bool,
}

/// One text in the format of hosts(5).
#[derive(Debug, Clone, Copy)]
pub struct HostsText<'t> {
    /// Where the text is from, as the report is to call it.
    pub name: &'t str,
    /// The text; any bytes.
    pub text: &'t [u8],
}
