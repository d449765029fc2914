//! Bytes to queries and replies, and back: where DNS messages are read and written.
//!
//! ```text
//! packet -> gate::accept -> Query -> ... -> Reply -> packet
//! upstream's reply -> Answer (no header, no question, no OPT) -> cache, Reply
//! ```
//!
//! Nothing here does I/O, reads a clock or knows a plugin. Everything takes bytes that a stranger chose: each function
//! returns an error for what it cannot read, and none panics.

mod added;
mod answer;
mod compress;
mod edns;
mod gate;
mod hash;
mod message;
mod name;
mod numbers;
mod proto;
mod query;
mod records;
mod reply;
pub mod reverse;
mod shape;
mod subnet;
mod zone_request;

pub use added::{Added, push_option};
pub use answer::Answer;
pub use compress::Merge;
pub use edns::{
    Ede, Edns, MOST_UDP_SIZE, OPTION_CLIENT_SUBNET, OPTION_EDE, OPTION_NSID, OptionBytes, UDP_SIZE,
    client_subnet_holds, options, write_opt,
};
pub use gate::{Gate, Refusal, accept, accept_truncated};
pub use hash::{hash_of, hash_with};
pub use message::{Message, Packed, Rr};
pub use name::{MAX_NAME, Name, NameError, write_label};
pub use numbers::{Class, Flags, Opcode, RType, Rcode};
pub use proto::Proto;
pub use query::{Asker, HeldQuery, Query, write_upstream_query};
pub use records::{Malformed, Record, Records, Section};
pub use reply::{Owner, Reply};
pub use shape::data_fits;
pub use subnet::Subnet;
pub use zone_request::ZoneRequest;

/// Length of a message header in octets (RFC 1035, section 4.1.1).
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
