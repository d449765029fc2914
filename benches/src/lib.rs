//! Measurements: the servers that `load` is put on, and the figures that come of it.
//!
//! It knows servers by their command lines and their replies alone, ours as any other: it imports no crate of the
//! server but `sockets` and `wire`. Errors are for whoever reads a terminal: `anyhow`.

pub mod compare;
pub mod hickory;
pub mod instructions;
pub mod kubernetes;
pub mod publish;
pub mod relay;
pub mod responder;
pub mod rules;
