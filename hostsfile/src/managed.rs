//! Managed lines in a hosts file that belongs to the machine, such as /etc/hosts.
//!
//! ```text
//! read -> Text { managed entries, names of other lines } -> the caller's entries -> write or skip
//! ```
//!
//! A line is managed if it has a field and its comment is the [`Marker`], unless it names
//! `localhost`. All other bytes of the file stay unchanged. Knows no DNS and no service.

mod attributes;
mod file;
mod in_place;
#[cfg(test)]
mod tests;
mod text;

pub use file::{HostsFile, UpdateOutcome};
pub use text::{ManagedLine, Marker, MarkerError, Text};

use files::MAX_REPLACED_BYTES;
