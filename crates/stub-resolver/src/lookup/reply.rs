//! Follows a name's aliases in a reply to its addresses.

use std::net::IpAddr;

use hickory_proto::op::{DnsResponse, Message, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable as _, BinDecoder};

use crate::outcome::{Family, LookupError, MAX_ADDRESSES};

/// A complete reply.
pub(super) struct Reply {
    message: Message,
    pub(super) rcode: ResponseCode,
}

impl Reply {
    /// # Errors
    /// [`LookupError::Truncated`], or a reply that is none to a query.
    pub(super) fn read(response: DnsResponse) -> Result<Self, LookupError> {
        let message = response.into_message();
        if message.metadata.op_code != OpCode::Query {
            return Err(LookupError::Unreadable);
        }
        if message.metadata.truncation {
            return Err(LookupError::Truncated);
        }
        let rcode = message.metadata.response_code;
        // Servers that cannot parse a query may leave the question out. An answer or a denial must be for the name of the question.
        let without_question = || {
            let answers = matches!(rcode, ResponseCode::NoError | ResponseCode::NXDomain);
            !answers && message.answers.is_empty() && message.authorities.is_empty()
        };
        if message.queries.is_empty() && !without_question() {
            return Err(LookupError::Unreadable);
        }
        Ok(Self { message, rcode })
    }

    /// Whether the answer section is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.message.answers.is_empty()
    }

    /// Whether the authority section has a record of this type.
    pub(super) fn has_authority(&self, rtype: RecordType) -> bool {
        self.message.authorities.iter().any(|record| record.record_type() == rtype)
    }

    /// The answer's records of this name.
    fn answers_of(&self, name: &Name) -> impl Iterator<Item = &Record> {
        let of = |record: &&Record| record.dns_class == DNSClass::IN && record.name == *name;
        self.message.answers.iter().filter(of)
    }
}

fn address(record: &Record, family: Family) -> Option<IpAddr> {
    match (&record.data, family) {
        (RData::A(address), Family::Ipv4) => Some(address.0.into()),
        (RData::AAAA(address), Family::Ipv6) => Some(address.0.into()),
        _ => None,
    }
}

/// The same name in hickory's form.
pub(super) fn name(name: &wire::Name) -> Result<Name, LookupError> {
    Name::read(&mut BinDecoder::new(name.as_wire())).map_err(|_| LookupError::Unreadable)
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
                own().filter_map(|record| Some((address(record, family)?, record.ttl))).collect();
            addresses.sort_unstable();
            addresses.dedup_by_key(|(address, _)| *address);
            addresses.truncate(MAX_ADDRESSES);
            if !addresses.is_empty() {
                self.ttl = addresses.iter().map(|(_, ttl)| seconds(*ttl)).fold(self.ttl, u32::min);
                return Ok(Some(addresses.into_iter().map(|(address, _)| address).collect()));
            }
            let alias = own().find_map(|record| match &record.data {
                RData::CNAME(target) => Some((target.0.clone(), record.ttl)),
                _ => None,
            });
            let Some((target, ttl)) = alias else { return Ok(None) };
            if !self.follows_aliases {
                return Err(LookupError::Alias);
            }
            self.ttl = self.ttl.min(seconds(ttl));
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
