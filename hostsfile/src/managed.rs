//! Lines of ours in a hosts file that is not ours.
//!
//! ```text
//! read -> Text { entries, defined by others } -> the caller's choice of entries -> write, or leave alone
//! ```
//!
//! A line is ours if it has a field and its comment is the [`Marker`]; every other byte of the file is somebody else's and
//! stays as it is. What names `localhost` is never ours. Knows no DNS and no service.

mod attributes;
mod file;
mod in_place;
#[cfg(test)]
mod tests;
mod text;

pub use file::{File, Written};
pub use text::{ManagedLine, Marker, MarkerError, Text};

use files::MAX_BYTES;
