//! A zone in memory, read from a zone's file, and its answers.
//!
//! ```text
//! files -> load: zonetext's records -> build: names in canonical order -> Zone
//! query -> find: cut, name, wildcard -> answer -> Reply
//! ```
//! A [`Zone`] is immutable and has no pointers: names, records and a list of nodes, each in one piece
//! of memory. Names are stored as keys that compare by bytes in canonical order (RFC 4034, section
//! 6.1), so that one binary search finds a name, its parents, and the names before and after it. A
//! name without records above one with records (an empty non-terminal) takes no memory.
//!
//! No I/O: [`load()`] gets files from its caller. No clock, no plugins.

mod answer;
mod build;
mod denial;
mod error;
mod find;
mod key;
mod limits;
mod load;
mod nsec3;
mod records;

use wire::Name;

use nsec3::Nsec3s;

pub use answer::{Answered, Limits, Loop};
pub use build::Loaded;
pub use error::{LoadError, Problem, Warning};
pub use limits::{MOST_BYTES, MOST_DEPTH, MOST_TEXT};
pub use load::{Files, load};
pub use records::Place;

/// A zone: all records of a file that belong to it.
///
/// Takes 16 bytes for each name with records, 24 for each NSEC3 record, 12 for each RRset, 2 for each
/// record, and the names and data themselves; at most [`MOST_BYTES`].
#[derive(Debug)]
pub struct Zone {
    origin: Name,
    /// Keys of the nodes, one behind the other.
    keys: Box<[u8]>,
    /// RRsets of the nodes, one behind the other; see `records`.
    data: Box<[u8]>,
    /// Names with records in canonical order; the first is the apex.
    nodes: Box<[Node]>,
    serial: u32,
    /// Records, without duplicates.
    count: usize,
    /// Whether the apex has an NSEC record.
    has_nsec: bool,
    nsec3s: Nsec3s,
}

/// A name with records; 16 bytes.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// Offset of its key in `Zone::keys`; it ends where that of the next node begins.
    key_at: u32,
    /// Offset of its RRsets in `Zone::data`; likewise.
    data_at: u32,
    /// The nearest node above it; its own index for the apex.
    parent: u32,
    /// The topmost node, from the apex to this one, that has a DNAME record, or is no apex and has NS
    /// records; else [`NO_CUT`].
    cut: u32,
}

/// No delegation and no DNAME at a node or above it.
const NO_CUT: u32 = u32::MAX;

impl Zone {
    /// Its name.
    pub fn origin(&self) -> &Name {
        &self.origin
    }

    /// The serial of its SOA record.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Its records, without duplicates.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of memory outside of the struct.
    pub fn bytes(&self) -> usize {
        self.keys.len() + self.data.len() + size_of_val(&*self.nodes) + self.nsec3s.bytes()
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
