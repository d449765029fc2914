//! Fuzz targets for the parsers of untrusted input: each is a function that panics if an invariant
//! is broken. `cargo fuzz` runs them for hours with coverage, a test for seconds with plain
//! mutations.

mod kubernetes_api;
mod messages;
mod mutate;
mod parsers;

use std::time::Instant;

pub use kubernetes_api::kubernetes_api;
pub use messages::{cache_entry, differential, packet_gate, upstream_reply};
pub use mutate::Mutator;
pub use parsers::{corefile, hosts_file, zone_file, zone_text};

/// Checks a parser's invariants on any bytes.
pub type Target = fn(&[u8]);

/// Every target under the name of its seeds and its fuzzer.
pub const TARGETS: [(&str, Target); 9] = [
    ("packet_gate", packet_gate),
    ("differential", differential),
    ("upstream_reply", upstream_reply),
    ("cache_entry", cache_entry),
    ("corefile", corefile),
    ("hosts_file", hosts_file),
    ("kubernetes_api", kubernetes_api),
    ("zone_text", zone_text),
    ("zone_file", zone_file),
];

/// An arbitrary instant; only differences matter.
#[allow(clippy::disallowed_methods, reason = "the one start from which all times are counted")]
fn start() -> Instant {
    Instant::now()
}
