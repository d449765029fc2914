//! Names that are looked up on a schedule and served from hosts files.
//!
//! ```text
//! Settings -> NameStore::begin -> questions -> stub_resolver::Resolver::round -> outcomes -> NameStore::finish -> hosts text
//! ```
//!
//! All modules but `io` are pure: they send no query, open no file and read no clock. `io` sends the questions, reads the file and
//! the clock, and serves and writes the resulting text.

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
    Scheme, Server, ServerSyntax, Shown, StatusSocket, Upstreams, Via, WrittenServer, collect, listen, once,
    plan, print, report,
};
pub use known_name::{KnownName, LookupFailure, Origin};
pub use name_store::{Change, Clock, Families, NameStore, Round, Settings};
pub use schedule::{LEAST_INTERVAL, Schedule};
