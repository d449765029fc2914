//! Follows a name's aliases in a reply to its addresses.

use std::net::IpAddr;

use wire::{Answer, Class, Flags, HEADER, Name, RType, Rcode, Record, Records, Section};

use super::{Family, LookupError, MAX_ADDRESSES};
use crate::message::question;

/// A reply with well-formed records only.
pub(super) struct Reply {
    octets: Vec<u8>,
    /// The offset of the records.
    start: usize,
    counts: [u16; 3],
    pub(super) rcode: Rcode,
}

impl Reply {
    /// # Errors
    /// [`LookupError::Truncated`], or a malformed reply.
    pub(super) fn read(octets: Vec<u8>, query: &[u8]) -> Result<Self, LookupError> {
        let question = question(query);
        let mut answer = Answer::default();
        answer.read(&octets, question).map_err(|_| LookupError::Unreadable)?;
        if answer.flags.has(Flags::TC) {
            return Err(LookupError::Truncated);
        }
        let number = |at| u16::from_be_bytes([octets[at], octets[at + 1]]);
        let (start, counts) = match number(4) {
            0 => (HEADER, [0; 3]),
            _ => (HEADER + question.len(), [6, 8, 10].map(number)),
        };
        // NXDOMAIN must be for the name of the question.
        if start == HEADER && answer.rcode == Rcode::NXDOMAIN {
            return Err(LookupError::Unreadable);
        }
        Ok(Self { octets, start, counts, rcode: answer.rcode })
    }

    /// Whether the answer section is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.counts[0] == 0
    }

    /// Whether the authority section has a record of this type.
    pub(super) fn has_authority(&self, rtype: RType) -> bool {
        self.records().any(|record| record.section == Section::Authority && record.rtype == rtype)
    }

    fn records(&self) -> impl Iterator<Item = Record> {
        Records::new(&self.octets, self.start, self.counts).map_while(Result::ok)
    }

    /// The answer's records of this name.
    fn answers_of(&self, name: &Name) -> impl Iterator<Item = Record> {
        let of =
            |record: &Record| Name::read(&self.octets, record.owner).is_ok_and(|(owner, _)| owner == *name);
        self.records()
            .filter(|record| record.section == Section::Answer && record.class == Class::IN)
            .filter(of)
    }

    fn address(&self, record: &Record, family: Family) -> Option<IpAddr> {
        let data = record.data(&self.octets);
        match (record.rtype, family) {
            (RType::A, Family::Ipv4) => Some(<[u8; 4]>::try_from(data).ok()?.into()),
            (RType::AAAA, Family::Ipv6) => Some(<[u8; 16]>::try_from(data).ok()?.into()),
            _ => None,
        }
    }
}

/// The state of a lookup: the current name in a chain of aliases.
pub(super) struct Chain {
    pub(super) name: Name,
    pub(super) ttl: u32,
    follows_aliases: bool,
    aliases: usize,
}

impl Chain {
    pub(super) fn new(name: Name, follows_aliases: bool) -> Self {
        Self { name, ttl: u32::MAX, follows_aliases, aliases: 0 }
    }

    /// Follows the aliases of a reply to the addresses, if it has them. Records of other names are ignored.
    pub(super) fn read(&mut self, reply: &Reply, family: Family) -> Result<Option<Vec<IpAddr>>, LookupError> {
        loop {
            let own = || reply.answers_of(&self.name);
            let mut addresses: Vec<(IpAddr, u32)> =
                own().filter_map(|record| Some((reply.address(&record, family)?, record.ttl))).collect();
            addresses.sort_unstable();
            addresses.dedup_by_key(|(address, _)| *address);
            addresses.truncate(MAX_ADDRESSES);
            if !addresses.is_empty() {
                self.ttl = addresses.iter().map(|(_, ttl)| seconds(*ttl)).fold(self.ttl, u32::min);
                return Ok(Some(addresses.into_iter().map(|(address, _)| address).collect()));
            }
            let Some(alias) = own().find(|record| record.rtype == RType::CNAME) else {
                return Ok(None);
            };
            if !self.follows_aliases {
                return Err(LookupError::Alias);
            }
            let target = Name::read(&reply.octets, alias.data.start).map_err(|_| LookupError::Unreadable)?.0;
            self.ttl = self.ttl.min(seconds(alias.ttl));
            self.name = target;
            self.aliases += 1;
            if self.aliases > MAX_ALIASES {
                return Err(LookupError::Aliases);
            }
        }
    }
}

/// A TTL with the highest bit set counts as 0 (RFC 2181, section 8).
fn seconds(ttl: u32) -> u32 {
    if ttl > i32::MAX as u32 { 0 } else { ttl }
}

const MAX_ALIASES: usize = 16;
