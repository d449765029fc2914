//! Names that are looked up on a schedule: what keeps addresses true.
//!
//! ```text
//! Settings -> Keeper::begin -> questions -> resolver::Resolver::round -> outcomes -> Keeper::finish -> hosts text
//! ```
//!
//! It knows no server block, asks nobody, opens no file and reads no clock. Whoever uses it has the questions asked, says what
//! stands in the file and what time it is, and serves and writes the text that comes of it.

mod address;
mod entry;
mod keeper;
pub mod names;
mod schedule;
mod text;

pub use address::{Refused, usable};
pub use entry::{KnownName, LookupFailure, Origin};
pub use keeper::{Change, Clock, Families, Keeper, Round, Settings};
pub use schedule::{LEAST_INTERVAL, Schedule};
