//! DNS messages: reads packets into queries and answers, writes replies and upstream queries.
//!
//! ```text
//! packet -> accept -> Query -> ... -> Reply -> packet
//! upstream's reply -> Answer (no header, no question, no OPT) -> cache, Reply
//! ```
//!
//! No I/O, no clock, no plugins. All input is untrusted: each function returns an error for bytes
//! that it cannot read, and none panics.

mod accept;
mod answer;
mod client_subnet;
mod compress;
mod edns;
mod iana;
mod message;
mod name;
mod name_hash;
mod query;
mod rdata;
mod records;
mod reply;
pub mod reverse;
mod transport;
mod upstream_overrides;
mod zone_request;

pub use accept::{Refusal, Verdict, accept, accept_truncated};
pub use answer::Answer;
pub use client_subnet::Subnet;
pub use compress::{CompressingWriter, Mark, ReplyWriter};
pub use edns::{
    Ede, Edns, MAX_UDP_SIZE, OPTION_CLIENT_SUBNET, OPTION_EDE, OPTION_NSID, OptionBytes, UDP_SIZE,
    client_subnet_holds, options, write_opt,
};
pub use iana::{Class, Flags, Opcode, RType, Rcode};
pub use message::{Message, Packed, Rr};
pub use name::{MAX_NAME, Name, NameError, write_label};
pub use name_hash::{hash_of, hash_with};
pub use query::{ClientParams, OwnedQuery, Query, write_upstream_query};
pub use rdata::is_valid_rdata;
pub use records::{Malformed, Record, Records, Section};
pub use reply::{Owner, Reply};
pub use transport::Proto;
pub use upstream_overrides::{UpstreamOverrides, push_option};
pub use zone_request::ZoneRequest;

/// Length of a message header in bytes (RFC 1035, section 4.1.1).
pub const HEADER: usize = 12;

/// Reads a big-endian `u16`; `None` past the end.
#[inline]
pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk::<2>()?))
}

/// Reads a big-endian `u32`; `None` past the end.
#[inline]
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk::<4>()?))
}
