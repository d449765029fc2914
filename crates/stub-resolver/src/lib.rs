//! A stub resolver (RFC 9499, section 6) for this server's own queries: probes of a server, and lookups.
//!
//! Lookups use hickory's messages and connections. Probes do not: they accept any reply, of which they read at most a few bytes,
//! and those of a lease must not wait for tasks of the runtime. They exchange bytes on a socket of their own. Knows no upstream, no
//! configuration and no client's query.

mod certificate;
mod connections;
mod exchange;
mod lookup;
mod message;
mod outcome;
mod server;

// Features for the crates that hickory uses.
use tracing as _;

pub use certificate::CertificateFault;
pub use exchange::{over_stream, over_udp, udp_socket, unspecified};
pub use lookup::{MAX_SERVERS, Resolver};
pub use message::{is_reply, query};
pub use outcome::{Family, LookupError, LookupOutcome, MAX_ADDRESSES, Question};
pub use server::{Server, Transport};
