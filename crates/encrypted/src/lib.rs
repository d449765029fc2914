//! DNS over HTTPS (RFC 8484) and over QUIC (RFC 9250) on a client's connection: TLS, HTTP/2 and
//! HTTP/1.1 by hyper, QUIC by quinn, their limits in time and bytes, statuses and error codes. Knows
//! no plugin, no configuration and no worker: a [`Client`] answers the messages and decides when the
//! connection ends.
//!
//! ```text
//! TCP -> StallTimeout -> TLS -> hyper -> request -> Client::query -> reply, or a status
//! UDP -> quinn -> connection -> stream -> message -> Client::query -> reply, or an error code
//! ```

mod client;
mod fair;
mod https;
mod max_age;
mod outcome;
mod progress;
mod quic;
mod request;
mod stall_timeout;

pub use client::{Activity, Answer, Client, End, MESSAGE_BYTES};
pub use https::{Limits, serve};
pub use outcome::Outcome;
pub use quic::{QuicListener, serve_quic};
