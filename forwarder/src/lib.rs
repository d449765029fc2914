//! Upstreams: policy, health, retries, hedges, single flight. The only crate that dials for a
//! client's query.
//!
//! ```text
//! worker:  ask ------------> Forwarder -> poll           sockets to open, queries for Streams, answers and failures with
//!          datagram, tick -> (no I/O)                    the clients that wait for them
//!          exchanged ------>           -> poll_transmit  datagrams, sent with the worker's next batch
//! tokio:   Streams: TCP and TLS connections    health::run: probes of upstreams that failed
//! ```
//!
//! [`Forwarder`] is a state machine: it is given queries, replies and time, and polled for actions;
//! one per worker, single-threaded. Its files import one way: stream_kind, error <
//! upstream < policy, stanza < state_machine < streams < health. Workers share atomics in
//! [`Upstream`] and [`Stanza`]. This crate must not know clients' sockets, the cache, the Corefile
//! or a plugin: its caller stores the answer of a [`FlightResult`] and maps [`ForwardError`] to an
//! rcode.

mod congestion;
mod edns_capability;
mod error;
pub mod health;
mod metrics;
mod policy;
mod stanza;
mod state_machine;
mod stream_kind;
mod streams;
mod upstream;
mod upstream_names;

pub use self::metrics::{Counter, StanzaMetrics, UpstreamMetrics, UpstreamProto};
pub use error::{ExchangeError, ForwardError, SendError};
pub use policy::{MAX_UPSTREAMS, Policy};
pub use stanza::{ConnectionLimits, DEADLINE, MOST_STANZAS, Stanza, StanzaError, StanzaSpec, Stanzas};
pub use state_machine::{
    Action, Exchange, ExchangeId, FlightResult, ForwardQuery, Forwarder, Limits, Refused, RemainingWaiters,
    SocketId, Waiters, slot_octets, waiter_octets,
};
pub use stream_kind::StreamKind;
pub use streams::{Deliver, Streams};
pub use tls::{TlsSettings, UpstreamTlsSpec};
pub use upstream::{HealthCheck, ProbeRequest, ProbeRequests, Registry, Upstream, UpstreamPath};
pub use upstream_names::{Addresses, ResolveError, resolve};
