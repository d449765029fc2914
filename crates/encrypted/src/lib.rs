//! DNS over HTTPS on one client's connection (RFC 8484): TLS, HTTP/2 and HTTP/1.1 by hyper, their
//! limits in time and bytes, and the statuses. Knows no plugin, no configuration and no worker: a
//! [`Client`] answers the messages and decides when the connection ends.
//!
//! ```text
//! socket -> StallTimeout -> TLS -> hyper -> request -> Client::query -> reply, or a status
//! ```

mod client;
mod fair;
mod https;
mod max_age;
mod outcome;
mod progress;
mod request;
mod stall_timeout;

pub use client::{Activity, Answer, Client, End, MESSAGE_BYTES};
pub use https::{Limits, serve};
pub use outcome::Outcome;
