//! Denies names and types: the SOA record (RFC 2308, section 3), and NSEC records (RFC 4035, section
//! 3.1.3).

use wire::{RType, Section};

use crate::NO_CUT;
use crate::answer::{Answer, Owner};

impl Answer<'_, '_> {
    /// Writes the SOA record and, for a query with DO, the NSEC records of two nodes: the one before the
    /// name, and the one before the wildcard or the one that matches.
    pub(crate) fn denial(&mut self, name: Option<usize>, other: Option<usize>) {
        let zone = self.zone;
        let (ttl, data) = zone.soa();
        let minimum = data.last_chunk().map_or(0, |minimum| u32::from_be_bytes(*minimum));
        let ttl = ttl.min(minimum);
        let apex = zone.origin.as_wire();
        self.push(Section::Authority, apex, RType::SOA, ttl, data);
        if !self.signed {
            return;
        }
        if let Some(signatures) = zone.signatures(0, RType::SOA) {
            for data in signatures.records() {
                self.push(Section::Authority, apex, RType::RRSIG, ttl, data);
            }
        }
        name.into_iter().chain(other).for_each(|at| self.nsec(at));
        self.no_closer_names();
    }

    /// Writes the NSEC record of a node, or of the delegation above it, unless it is written.
    pub(crate) fn nsec(&mut self, node: usize) {
        let node = self.denier(node);
        let zone = self.zone;
        if zone.has_nsec
            && self.denied.insert(node)
            && let Some(set) = zone.set(node, RType::NSEC)
        {
            let mut owner = Owner::new();
            owner.set_to(zone, node);
            self.set(Section::Authority, owner.as_wire(), node, set);
        }
    }

    /// The node itself, or the cut above it: names below a cut have no NSEC record.
    fn denier(&self, node: usize) -> usize {
        match self.zone.nodes[node].cut {
            NO_CUT => node,
            cut => cut as usize,
        }
    }
}
