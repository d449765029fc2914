//! Answers one query, from the zone that serves it to the finished reply.
//!
//! ```text
//! accept -> serve { route -> middleware -> sources -> cache } -> finish -> bytes out
//!                   evaluate: subqueries, and the way back through the middleware
//! ```
//! Answers from memory, or returns the queries for upstreams. Knows plugins only by their roles
//! (crate `plugin`), no threads and no sockets, and reads no Corefile: the crate `configuration`
//! builds the types of this crate.

mod block;
pub mod evaluate;
mod inbound;
pub mod memory_quota;
pub mod pipeline;
pub mod route;
pub mod serve;

pub use block::{Block, ServedZone};
pub use serve::ServedEndpoint;
