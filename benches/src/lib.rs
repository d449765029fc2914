//! Measurements: the servers that `load` runs against, and their figures.
//!
//! Every server, localdns too, is known only by its command line and its replies: of the server's
//! crates only `sockets` and `wire` are imported. Errors are for a terminal: `anyhow`.

pub mod compare;
pub mod hickory;
pub mod instructions;
pub mod kubernetes;
pub mod publish;
pub mod relay;
pub mod responder;
pub mod rules;
