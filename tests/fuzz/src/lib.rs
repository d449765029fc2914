//! What may be thrown at the crates that read strangers' octets: one function for each, which panics when a promise is
//! broken. `cargo fuzz` runs them for hours with its own mutations, a test for seconds with plain ones.

mod kubernetes_api;
mod messages;
mod mutate;
mod parsers;

use std::time::Instant;

pub use kubernetes_api::kubernetes_api;
pub use messages::{cache_entry, differential, packet_gate, upstream_reply};
pub use mutate::Mutator;
pub use parsers::{corefile, hosts_file, zone_text};

/// A crate's promise, tried on any octets.
pub type Target = fn(&[u8]);

/// Every target under the name that its seeds and its fuzzer have.
pub const TARGETS: [(&str, Target); 8] = [
    ("packet_gate", packet_gate),
    ("differential", differential),
    ("upstream_reply", upstream_reply),
    ("cache_entry", cache_entry),
    ("corefile", corefile),
    ("hosts_file", hosts_file),
    ("kubernetes_api", kubernetes_api),
    ("zone_text", zone_text),
];

/// Some instant; only differences matter.
#[allow(clippy::disallowed_methods, reason = "the one start from which all times are counted")]
fn start() -> Instant {
    Instant::now()
}
