//! A stub resolver (RFC 9499, section 6) for this server's own queries: probes of a server, and lookups.
//!
//! An exchange is one query to one server over one protocol. The caller sets the timeout. Knows no upstream, no configuration and no
//! client's query.

mod exchange;
mod lookup;
mod message;

pub use exchange::{over_stream, over_udp, udp_socket, unspecified};
pub use lookup::{Family, LookupError, LookupOutcome, MAX_ADDRESSES, MAX_SERVERS, Question, Resolver};
pub use message::{is_reply, query};
