//! Measurements: the servers that `load` runs against, and their figures.
//!
//! It knows every server, localdns too, only by its command line and its replies: it imports no
//! crate of the server but `sockets` and `wire`. Errors are for a terminal: `anyhow`.

pub mod compare;
pub mod hickory;
pub mod instructions;
pub mod kubernetes;
pub mod publish;
pub mod relay;
pub mod responder;
pub mod rules;
