//! Names that are looked up on a schedule: the room that keeps addresses true.
//!
//! ```text
//! Settings -> Keeper::begin -> questions -> Resolver::round -> outcomes -> Keeper::finish -> hosts text
//! ```
//!
//! It knows no server block, opens no file and reads no clock but the one that bounds a lookup. Whoever uses it says which
//! servers to ask, what stands in the file and what time it is, and serves and writes the text that comes of it.

mod address;
mod entry;
mod keeper;
mod lookup;
pub mod names;
mod schedule;
mod text;

pub use address::{Refused, usable};
pub use entry::{Failure, KnownName, Origin};
pub use keeper::{Change, Clock, Families, Keeper, Round, Settings};
pub use lookup::{Family, LookupError, LookupOutcome, MAX_ADDRESSES, MAX_SERVERS, Question, Resolver};
pub use schedule::{LEAST_INTERVAL, Schedule};
