//! What a plugin is to a server block: how its directives are read, what is built of them, and what it may know of a query.
//!
//! ```text
//! directives -> args -> spec (plain data, or an error) -> envelope | step | source
//! ```
//! A plugin knows this crate and no other plugin; who builds blocks and who serves queries know plugins by it.

pub mod args;
mod block_spec;
pub mod endpoint;
pub mod hooks;
mod error;
mod explain;
pub mod failure;
pub mod metadata;
pub mod reload_state;
pub mod extensions;
mod query_context;
pub mod zone_request;
pub mod bounded_regex;
mod zone_scope;
pub mod search_path;
pub mod spec;
pub mod middleware;
mod hosts_guard;

pub use block_spec::{BlockSpec, Fallthrough, Key, Spec};
pub use error::SetupError;
pub use query_context::{Lookup, QueryContext};
pub use zone_scope::Scope;
pub use hosts_guard::HostsGuard;
