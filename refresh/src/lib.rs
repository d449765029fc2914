//! Names that are looked up on a schedule: the room that keeps addresses true.
//!
//! ```text
//! names -> Resolver::round -> outcome for each name and family
//! ```
//!
//! It knows no server block and opens no file. Whoever uses it says which servers to ask, and takes what came of it.

mod lookup;

pub use lookup::{Family, LookupError, MAX_ADDRESSES, MAX_SERVERS, Outcome, Question, Resolver};
