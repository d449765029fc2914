//! The API of plugins: parsing of directives, the parts built from them, and the context of a
//! query.
//!
//! ```text
//! directives -> args -> spec (plain data, or an error) -> hooks | middleware | source
//! ```
//! A plugin depends on this crate and on no other plugin; the crates that build blocks and serve queries
//! know plugins by this crate.

pub mod args;
mod block_spec;
pub mod bounded_regex;
pub mod cidr;
pub mod endpoint;
mod error;
mod explain;
pub mod extensions;
pub mod failure;
mod hidden_zones;
pub mod hooks;
mod hosts_guard;
pub mod metadata;
pub mod middleware;
mod query_context;
pub mod reload_state;
mod reply_size;
pub mod search_path;
pub mod spec;
pub mod zone_request;
mod zone_scope;

pub use block_spec::{BlockSpec, Fallthrough, Key, Spec};
pub use error::SetupError;
pub use hidden_zones::HiddenZones;
pub use hosts_guard::HostsGuard;
pub use query_context::{Delay, Lookup, QueryContext};
pub use zone_scope::Scope;
