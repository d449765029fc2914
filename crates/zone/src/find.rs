//! Finds names (RFC 1034, section 4.3.2).

use crate::key::{self, Key};
use crate::{NO_CUT, Zone};

/// Where a name is in the zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// The topmost delegation or DNAME at the name or above it.
    pub(crate) cut: Option<usize>,
    pub(crate) place: Exists,
    /// The last name that is not after it in canonical order.
    pub(crate) before: usize,
}

/// Whether a name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exists {
    /// It has records.
    Node(usize),
    /// A name below it has records: an empty non-terminal (RFC 4592, section 2.2.2).
    Empty,
    /// It does not exist.
    No {
        /// The length of the key of its closest encloser (RFC 4592, section 3.3.1).
        encloser: usize,
    },
}

/// What the zone does not have. Names are keys; nodes are those whose NSEC records prove it.
#[derive(Clone, Copy)]
pub(crate) enum Absent<'k> {
    /// A type of a name that exists; the node is the name, or the one before an empty non-terminal.
    Type { name: &'k [u8], node: usize },
    /// A type of the wildcard that answers for a name that does not exist; the node is the wildcard,
    /// or the one before it.
    WildcardType { name: Missing<'k>, node: usize },
    /// A name and its wildcard, with the nodes before them.
    Name { name: Missing<'k>, wildcard_before: usize },
}

/// A name that does not exist.
#[derive(Clone, Copy)]
pub(crate) struct Missing<'k> {
    pub(crate) name: &'k [u8],
    /// The length of the key of its closest encloser (RFC 4592, section 3.3.1).
    pub(crate) encloser: usize,
    /// The last node before it.
    pub(crate) before: usize,
}

impl Zone {
    /// Looks up a key.
    pub(crate) fn find(&self, key: &[u8]) -> Found {
        let (mut low, mut high) = (0, self.nodes.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) <= key { low = middle + 1 } else { high = middle }
        }
        // The apex has the empty key, which is never after another.
        let before = low.saturating_sub(1);
        let own = self.key(before);
        let place = match self.nodes.get(low).map(|_| self.key(low)) {
            _ if own == key => Exists::Node(before),
            Some(after) if after.starts_with(key) => Exists::Empty,
            after => Exists::No {
                encloser: key::common(key, own).max(after.map_or(0, |after| key::common(key, after))),
            },
        };
        // Every name between a parent and the key is below that parent.
        let mut parent = before;
        while !key.starts_with(self.key(parent)) {
            parent = self.nodes[parent].parent as usize;
        }
        let cut = Some(self.nodes[parent].cut).filter(|&cut| cut != NO_CUT).map(|cut| cut as usize);
        Found { cut, place, before }
    }

    /// The node of a name in wire form.
    pub(crate) fn node(&self, name: &[u8]) -> Option<usize> {
        match self.find(Key::new(name, self.origin.as_wire())?.as_bytes()).place {
            Exists::Node(index) => Some(index),
            _ => None,
        }
    }
}
