//! One query's way, from the route to its reply; memory answers, or it is said what is to be asked of others.
//!
//! ```text
//! gate -> serve { route -> steps -> sources -> cache } -> finish -> bytes out
//!                 evaluation: what an answer needs besides, and the way back
//! ```
//! It knows plugins by what they all are (the crate `plugin`), no thread and no socket, and reads no Corefile: the crate
//! `configuration` builds what is here.

mod block;
pub mod evaluate;
mod inbound;
pub mod memory_quota;
pub mod pipeline;
pub mod route;
pub mod serve;

pub use block::{Block, ServedZone};
pub use serve::ServedEndpoint;
