//! RRsets as stored: type, covered type, TTL, length, and the records, each after its length.

use wire::RType;

use crate::{Node, Zone, key};

/// An RRset of a node, or the RRSIG records over one of its RRsets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RrSet<'z> {
    pub(crate) rtype: RType,
    /// Of RRSIG records the type that they cover; else 0.
    pub(crate) covered: RType,
    /// In seconds.
    pub(crate) ttl: u32,
    octets: &'z [u8],
}

impl<'z> RrSet<'z> {
    /// The data of its records, in the order of the file.
    pub(crate) fn records(self) -> impl Iterator<Item = &'z [u8]> {
        let mut rest = self.octets;
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk()?;
            let (data, behind) = behind.split_at_checked(usize::from(u16::from_ne_bytes(*length)))?;
            rest = behind;
            Some(data)
        })
    }

    pub(crate) fn first(self) -> &'z [u8] {
        self.records().next().unwrap_or_default()
    }

    /// Appends the header of a set; [`end`] writes its length.
    pub(crate) fn begin(rtype: RType, covered: RType, ttl: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&rtype.0.to_ne_bytes());
        out.extend_from_slice(&covered.0.to_ne_bytes());
        out.extend_from_slice(&ttl.to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
    }

    /// Appends a record.
    pub(crate) fn push(data: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&(data.len() as u16).to_ne_bytes());
        out.extend_from_slice(data);
    }
}

/// Writes the length of the set that begins at `start`, and its TTL.
pub(crate) fn end(start: usize, ttl: u32, out: &mut [u8]) {
    let length = (out.len() - start - HEADER) as u32;
    out[start + 4..start + 8].copy_from_slice(&ttl.to_ne_bytes());
    out[start + 8..start + HEADER].copy_from_slice(&length.to_ne_bytes());
}

impl Zone {
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let end = self.nodes.get(index + 1).map_or(self.keys.len(), |next| next.key_at as usize);
        &self.keys[self.nodes[index].key_at as usize..end]
    }

    /// The RRsets of a node by type, RRSIG records by the type that they cover.
    pub(crate) fn sets(&self, index: usize) -> impl Iterator<Item = RrSet<'_>> {
        let Node { data_at, .. } = self.nodes[index];
        let end = self.nodes.get(index + 1).map_or(self.data.len(), |next| next.data_at as usize);
        sets(&self.data[data_at as usize..end])
    }

    /// The RRset of this type, which is not RRSIG.
    pub(crate) fn set(&self, index: usize, rtype: RType) -> Option<RrSet<'_>> {
        self.sets(index).find(|set| set.rtype == rtype)
    }

    /// The RRSIG records over the RRset of this type.
    pub(crate) fn signatures(&self, index: usize, covered: RType) -> Option<RrSet<'_>> {
        self.sets(index).find(|set| set.rtype == RType::RRSIG && set.covered == covered)
    }

    /// All records, the SOA first: owner in wire form, type, TTL in seconds, and data; from the one
    /// with this number. The owner is appended to `owner`, which is emptied.
    pub fn each_from(
        &self,
        place: Place,
        mut push: impl FnMut(&[u8], RType, u32, &[u8]) -> bool,
    ) -> Option<Place> {
        let mut owner = Vec::with_capacity(wire::MAX_NAME);
        let Place { node, mut record } = place;
        for index in node..self.nodes.len() {
            owner.clear();
            key::write_name(self.key(index), self.origin.as_wire(), &mut owner);
            let records = self.sets(index).flat_map(|set| set.records().map(move |data| (set, data)));
            for (at, (set, data)) in records.enumerate().skip(record) {
                if set.rtype != RType::SOA && !push(&owner, set.rtype, set.ttl, data) {
                    return Some(Place { node: index, record: at });
                }
            }
            record = 0;
        }
        let first = node.saturating_sub(self.nodes.len());
        for index in first..self.nsec3s.owners.len() {
            owner.clear();
            self.nsec3s.write_name(index, self.origin.as_wire(), &mut owner);
            let sets = self.nsec3s.sets(index);
            let records = sets.flat_map(|set| set.records().map(move |data| (set, data)));
            for (at, (set, data)) in records.enumerate().skip(record) {
                if !push(&owner, set.rtype, set.ttl, data) {
                    return Some(Place { node: self.nodes.len() + index, record: at });
                }
            }
            record = 0;
        }
        None
    }

    /// The SOA record: its TTL in seconds, and its data.
    pub fn soa(&self) -> (u32, &[u8]) {
        self.set(0, RType::SOA).map_or((0, &[][..]), |soa| (soa.ttl, soa.first()))
    }
}

/// A place between two records of a zone; the default is before the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    node: usize,
    record: usize,
}

/// The sets that these bytes hold.
pub(crate) fn sets(mut rest: &[u8]) -> impl Iterator<Item = RrSet<'_>> {
    std::iter::from_fn(move || {
        let (header, behind) = rest.split_first_chunk::<HEADER>()?;
        let [rtype, covered] = [0, 2].map(|at| RType(u16::from_ne_bytes([header[at], header[at + 1]])));
        let [ttl, length] =
            [4, 8].map(|at| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
        let (octets, behind) = behind.split_at_checked(length as usize)?;
        rest = behind;
        Some(RrSet { rtype, covered, ttl, octets })
    })
}

/// Bytes before the records of a set.
pub(crate) const HEADER: usize = 12;
