//! Load on a DNS server over UDP or TCP, and the outcome of every query.
//!
//! ```text
//! workload -> flood { burst -> lane -> server -> lane -> outstanding, judge } -> counts
//! ```
//! This crate knows no server, and imports no crate of this workspace but `sockets` and `wire`.
//! Every load is bounded in time and count. Errors are for a terminal: `anyhow`.

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
