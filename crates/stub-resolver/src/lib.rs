//! Questions of our own, as a stub resolver asks them (RFC 9499, section 6): whether a server is there, and what it says.
//!
//! One message to one server over one protocol. Knows no upstream, no configuration and no client's query; whoever asks
//! says for how long, and drops what takes longer.

mod exchange;
mod lookup;
mod message;

pub use exchange::{over_stream, over_udp, udp_socket, unspecified};
pub use lookup::{Family, LookupError, LookupOutcome, MAX_ADDRESSES, MAX_SERVERS, Question, Resolver};
pub use message::{is_reply, query};
