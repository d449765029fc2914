//! Measurements: load, the servers it is put on, and the figures that come of it.
//!
//! ```text
//! workload -> flood { burst -> lane -> server -> lane -> outstanding, judge } -> counts -> compare -> report
//! ```
//! It knows servers by their command lines and their replies alone, ours as any other: it imports no crate of the
//! server but `sockets` and `wire`. Every load is bounded in time and count. Errors are for whoever reads a terminal:
//! `anyhow`.

pub mod burst;
pub mod clock;
pub mod compare;
pub mod counts;
pub mod flood;
pub mod hickory;
pub mod histogram;
pub mod instructions;
pub mod judge;
pub mod kubernetes;
pub mod names;
pub mod outstanding;
pub mod publish;
pub mod random;
pub mod relay;
pub mod responder;
pub mod rules;
pub mod schedule;
pub mod workload;
