//! Names that are looked up on a schedule: what keeps addresses true.
//!
//! ```text
//! Settings -> NameStore::begin -> questions -> stub_resolver::Resolver::round -> outcomes -> NameStore::finish -> hosts text
//! ```
//!
//! It knows no server block, asks nobody, opens no file and reads no clock. Whoever uses it has the questions asked, says what
//! stands in the file and what time it is, and serves and writes the text that comes of it.

mod address;
mod hosts_section;
mod io;
mod known_name;
pub mod name_lists;
mod name_store;
mod schedule;

pub use address::{Refused, usable};
pub use io::{
    DEFAULT_SOCKET, Environment, MAX_FILE, Once, RefreshPlan, RefreshSpec, RefreshedFile, RefreshedFiles,
    Server, Shown, StatusSocket, Upstreams, collect, listen, once, plan, print, report,
};
pub use known_name::{KnownName, LookupFailure, Origin};
pub use name_store::{Change, Clock, Families, NameStore, Round, Settings};
pub use schedule::{LEAST_INTERVAL, Schedule};
