//! Load on a DNS server over UDP or TCP, and what came of every query.
//!
//! ```text
//! workload -> flood { burst -> lane -> server -> lane -> outstanding, judge } -> counts
//! ```
//! It knows no server, and imports no crate of ours but `sockets` and `wire`. Every load is bounded in time and count. Errors
//! are for whoever reads a terminal: `anyhow`.

pub mod burst;
pub mod clock;
pub mod counts;
pub mod flood;
pub mod histogram;
pub mod judge;
pub mod names;
pub mod outstanding;
pub mod random;
pub mod schedule;
pub mod workload;
