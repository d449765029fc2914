//! Where packets come in and go out: the workers' UDP sockets and the stream side, TCP and TLS.
//!
//! ```text
//! recvmmsg -> serve -> sendmmsg                      a hit: one batch in, one batch out
//!               |-> forwarder -> upstream sockets    a miss: the same thread, the same loop
//!               '-> inbox <- tcp, upstream streams   what tokio's threads have for a worker
//! ```

mod accept;
mod bind;
mod connections;
mod delivery;
mod endpoints;
#[cfg(test)]
mod failpoint;
mod flight_key;
mod flights;
mod inbox;
mod mailbox;
mod outputs;
mod pending;
mod place;
mod ready;
mod running;
mod scratch;
mod socket;
mod stream_reply;
mod sync;
mod taken;
mod tcp;
mod tls;
mod token;
mod transfers;
mod turns;
mod upstreams;
mod waiter;
mod worker;

pub use bind::BindError;
pub use connections::{Connections, Expected};
pub use delivery::Delivery;
pub use endpoints::{Bound, Endpoints};
pub use flights::FlightRegistry;
pub use inbox::InFlight;
pub use mailbox::Mailbox;
pub use running::Running;
pub use taken::Taken;
pub use worker::spawn;

#[cfg(test)]
mod tests;
