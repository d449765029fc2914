//! Denies names and types: the SOA record (RFC 2308, section 3), and NSEC records (RFC 4035, section
//! 3.1.3) or NSEC3 records (RFC 5155, section 7.2).

use wire::{RType, Section};

use crate::NO_CUT;
use crate::answer::{Answer, Owner};
use crate::find::{Absent, Missing};
use crate::key::{self, Key};
use crate::nsec3::{Denier, Nsec3s};

impl Answer<'_, '_> {
    /// Writes the SOA record and, for a query with DO, the proof that the zone does not have it.
    pub(crate) fn denial(&mut self, absent: Absent<'_>) {
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
        self.proof(absent);
        self.no_closer_names();
    }

    /// Writes the NSEC or NSEC3 records that prove it.
    pub(crate) fn proof(&mut self, absent: Absent<'_>) {
        match (absent, self.zone.chain()) {
            (Absent::Type { node, .. } | Absent::WildcardType { node, .. }, None) => self.denier(node),
            (Absent::Name { name, wildcard_before }, None) => {
                self.denier(name.before);
                self.denier(wildcard_before);
            }
            (Absent::Type { name, .. }, Some(chain)) => match self.find(chain, name) {
                Some(Denier::Matches(index)) => self.denier(index),
                // A delegation, or a name above delegations, that the chain leaves out (section 7.2.4).
                _ => drop(self.encloser_proof(chain, name, key::parent(name))),
            },
            (Absent::WildcardType { name, .. } | Absent::Name { name, .. }, Some(chain)) => {
                let encloser = self.encloser_proof(chain, name.name, name.encloser);
                let wildcard = Key::child(&name.name[..encloser], b"*");
                if let Some(Denier::Matches(index) | Denier::Covers(index)) =
                    self.find(chain, wildcard.as_bytes())
                {
                    self.denier(index);
                }
            }
        }
    }

    /// Notes what proves that no name is closer to this one than the wildcard that answers for it (RFC
    /// 4035, section 3.1.3.3; RFC 5155, section 7.2.6); [`Self::no_closer_names`] writes it.
    pub(crate) fn used_wildcard(&mut self, name: Missing<'_>) {
        if !self.signed {
            return;
        }
        let node = match self.zone.chain() {
            None => Some(name.before),
            Some(chain) => match self.find(chain, key::child_towards(name.name, name.encloser)) {
                Some(Denier::Matches(index) | Denier::Covers(index)) => Some(index),
                None => None,
            },
        };
        if let Some(node) = node {
            self.closest.insert(node);
        }
    }

    /// Writes the closest encloser proof of a name (RFC 5155, section 7.2.1) and returns the length of
    /// the closest encloser's key: that of the first `length` bytes, or of the next name above it that
    /// has an NSEC3 record.
    fn encloser_proof(&mut self, chain: &Nsec3s, name: &[u8], mut length: usize) -> usize {
        loop {
            match self.find(chain, &name[..length]) {
                Some(Denier::Matches(index)) => {
                    self.denier(index);
                    break;
                }
                // Without a record of the apex the zone is broken.
                _ if length == 0 => break,
                _ => length = key::parent(&name[..length]),
            }
        }
        if let Some(Denier::Covers(index)) = self.find(chain, key::child_towards(name, length)) {
            self.denier(index);
        }
        length
    }

    fn find(&self, chain: &Nsec3s, name: &[u8]) -> Option<Denier> {
        let mut owner = Owner::new();
        owner.set_to_key(self.zone, name);
        chain.find(&chain.parameters.hash(owner.lower_case()))
    }

    /// Writes one record, unless it is written: of a zone with NSEC3 that of the chain, else the NSEC
    /// record of a node, or of the delegation above it.
    pub(crate) fn denier(&mut self, index: usize) {
        let zone = self.zone;
        let mut owner = Owner::new();
        if let Some(chain) = zone.chain() {
            if self.denied.insert(index) {
                owner.set_to_hash(zone, &chain.owners[index].hash);
                chain.sets(index).for_each(|set| self.plain_set(Section::Authority, owner.as_wire(), set));
            }
            return;
        }
        let node = match zone.nodes[index].cut {
            NO_CUT => index,
            // Names below a cut have no NSEC record.
            cut => cut as usize,
        };
        if zone.has_nsec
            && self.denied.insert(node)
            && let Some(set) = zone.set(node, RType::NSEC)
        {
            owner.set_to(zone, node);
            self.set(Section::Authority, owner.as_wire(), node, set);
        }
    }
}
