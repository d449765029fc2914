//! Listening: the workers with their UDP sockets, and TCP, TLS, HTTPS and QUIC on
//! tokio.
//!
//! ```text
//! recvmmsg -> serve -> sendmmsg                      a hit: one batch in, one batch out
//!               |-> forwarder -> upstream sockets    a miss: the same thread, the same loop
//!               '-> inbox <- tcp, upstream streams   tasks of tokio's threads for a worker
//! ```

mod accept;
mod bind;
mod buffers;
mod connection_state;
mod connections;
mod cpu_budget;
mod egress;
mod endpoints;
#[cfg(test)]
mod failpoint;
mod fair_queue;
mod flight_key;
mod https;
mod listen_socket;
mod proxy_header;
mod query_source;
mod quic;
mod receive_counts;
mod request_client;
mod request_reply;
mod response_counts;
mod server_state;
mod single_flight;
mod stream_reply;
mod stream_results;
mod subquery_join;
mod sync;
mod tcp;
mod tls;
mod token;
mod transfer_limit;
mod upstream_sockets;
mod waiter;
mod wake_queue;
mod worker;
mod worker_tasks;

pub use bind::BindError;
pub use connections::{Connections, Expected};
pub use endpoints::{Bound, Endpoints};
pub use receive_counts::ReceiveCounts;
pub use response_counts::{EndpointResponses, ResponseCounts};
pub use server_state::ServerState;
pub use single_flight::FlightRegistry;
pub use stream_results::StreamResults;
pub use wake_queue::WakeQueue;
pub use worker::spawn;
pub use worker_tasks::InFlight;

#[cfg(test)]
mod tests;
