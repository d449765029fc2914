//! What a plugin is to a server block: how its directives are read, what is built of them, and what it may know of a query.
//!
//! ```text
//! directives -> args -> spec (plain data, or an error) -> envelope | step | source
//! ```
//! A plugin knows this crate and no other plugin; who builds blocks and who serves queries know plugins by it.

pub mod args;
mod block;
pub mod endpoint;
pub mod envelope;
mod error;
mod explained;
pub mod failure;
pub mod label;
pub mod lasting;
pub mod lent;
mod lookup;
pub mod messages;
pub mod pattern;
mod scope;
pub mod search;
pub mod spec;
pub mod step;
mod tables;

pub use block::{BlockSpec, Fallthrough, Key, Spec};
pub use error::SetupError;
pub use lookup::{Lookup, QueryContext};
pub use scope::Scope;
pub use tables::Tables;
