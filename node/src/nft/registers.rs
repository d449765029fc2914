//! The known properties of a packet, and the register values while a rule examines the packet.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_netfilter::nftables::{MetaKey, Operator};

use super::statement::{Family, IFNAMSIZ, octets};

/// The known properties of a query, or of a reply, that passes another program's chain.
#[derive(Debug, Clone)]
pub(crate) struct Query<'q> {
    pub(crate) family: Family,
    /// IPPROTO_UDP or IPPROTO_TCP.
    pub(crate) transport: u8,
    /// The server at port 53: a query's destination, a reply's source; `None` where another program
    /// may have replaced it.
    pub(crate) server: Option<IpAddr>,
    pub(crate) is_reply: bool,
    /// The conntrack state as a bit mask (IP_CT_*).
    pub(crate) ct_state: u32,
    /// The links on which no such query arrives, or no such reply leaves.
    pub(crate) not_from: &'q [String],
}

/// Whether a condition holds for a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    Yes,
    No,
    /// The result depends on unknown values.
    Perhaps,
}

impl Holds {
    pub(super) fn not(self) -> Self {
        match self {
            Self::Yes => Self::No,
            Self::No => Self::Yes,
            Self::Perhaps => Self::Perhaps,
        }
    }

    fn of(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// The value of a register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Known(Vec<u8>),
    /// The name of the client's link, which is not known.
    Link,
}

impl Query<'_> {
    pub(super) fn meta(&self, key: MetaKey) -> Option<Value> {
        let is_v4 = self.family == Family::V4;
        Some(match key {
            MetaKey::Nfproto => Value::Known(vec![self.family.number()]),
            MetaKey::L4Proto => Value::Known(vec![self.transport]),
            MetaKey::EtherTypeProtocol => Value::Known(if is_v4 { vec![0x08, 0] } else { vec![0x86, 0xdd] }),
            MetaKey::Iifname if self.is_reply => Value::Known(vec![0; IFNAMSIZ]),
            MetaKey::Iif if self.is_reply => Value::Known(vec![0; 4]),
            MetaKey::Oifname if self.is_reply => Value::Link,
            MetaKey::Iifname => Value::Link,
            _ => return None,
        })
    }

    pub(super) fn ct_state(&self) -> Value {
        Value::Known(self.ct_state.to_ne_bytes().to_vec())
    }

    /// Returns bytes of the network header (`base` 1) or the transport header (2), if all are
    /// known.
    pub(super) fn header(&self, base: u32, offset: u32, length: u32) -> Option<Value> {
        let mut header = [None; 40];
        let mut put = |at: usize, octets: &[u8]| {
            header.iter_mut().skip(at).zip(octets).for_each(|(to, octet)| *to = Some(*octet));
        };
        match (base, self.family) {
            (1, Family::V4) => put(9, &[self.transport]),
            (1, Family::V6) => put(6, &[self.transport]),
            _ => {}
        }
        match (base, self.family, self.server) {
            (1, Family::V4, Some(ip)) => put(if self.is_reply { 12 } else { 16 }, &octets(ip)),
            (1, Family::V6, Some(ip)) => put(if self.is_reply { 8 } else { 24 }, &octets(ip)),
            (2, _, Some(_)) => put(if self.is_reply { 0 } else { 2 }, &[0, 53]),
            _ => {}
        }
        let loaded = header.get(offset as usize..offset.checked_add(length)? as usize)?;
        loaded.iter().copied().collect::<Option<_>>().map(Value::Known)
    }
}

/// The known register values, by the index of their first 4-byte word.
#[derive(Debug, Default)]
pub(super) struct Registers(BTreeMap<u32, Value>);

impl Registers {
    /// Stores a value; `None` is an unknown value, of up to four words.
    pub(super) fn load(&mut self, register: u32, value: Option<Value>) {
        let word = word(register);
        let end = word + value.as_ref().map_or(4, words);
        self.0.retain(|at, old| *at >= end || at + words(old) <= word);
        if let Some(value) = value {
            self.0.insert(word, value);
        }
    }

    /// Forgets all values, since an expression may have overwritten any of them.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// Returns the value that begins in this register, if it is known.
    pub(super) fn value(&self, register: u32) -> Option<&Value> {
        self.0.get(&word(register))
    }

    /// Returns the first `length` bytes of the values from this register on, each padded to whole
    /// words; `None` if one of them is not known.
    pub(super) fn known(&self, register: u32, length: usize) -> Option<Vec<u8>> {
        let (mut at, mut all) = (word(register), Vec::new());
        while all.len() < length {
            let Some(Value::Known(octets)) = self.0.get(&at) else { return None };
            at += words(&Value::Known(octets.clone()));
            all.extend(octets);
            all.resize(all.len().next_multiple_of(4), 0);
        }
        all.truncate(length);
        Some(all)
    }

    /// Whether the values from this register on equal a set's key.
    pub(super) fn equal(&self, register: u32, key: &[u8], query: &Query<'_>) -> Holds {
        let (mut at, mut left, mut holds) = (word(register), key, Holds::Yes);
        while !left.is_empty() {
            let Some(value) = self.0.get(&at) else { return Holds::Perhaps };
            match value {
                Value::Known(octets) => {
                    let length = octets.len().min(left.len());
                    if left.get(..length) != octets.get(..length) {
                        return Holds::No;
                    }
                }
                // A complete name ends with a zero byte, also in iptables; without it, the key is a
                // prefix.
                Value::Link => {
                    match Some(left).filter(|name| name.contains(&0)).map(|name| query.is_on(name)) {
                        Some(Holds::No) => return Holds::No,
                        _ => holds = Holds::Perhaps,
                    }
                }
            }
            at += words(value);
            left = left.get(words(value) as usize * 4..).unwrap_or_default();
        }
        holds
    }

    /// Whether each value from this register on is within its part of a concatenation's range, from
    /// `start` to `end`, both included.
    pub(super) fn within(&self, register: u32, start: &[u8], end: &[u8], query: &Query<'_>) -> Holds {
        let (mut at, mut offset, mut holds) = (word(register), 0, Holds::Yes);
        while offset < start.len() {
            // The length of an unknown part is not known, either: it is skipped word by word.
            let value = self.0.get(&at);
            let length = match value {
                Some(Value::Known(octets)) => octets.len(),
                Some(Value::Link) => IFNAMSIZ,
                None => 4,
            };
            let part = offset..offset + length;
            let (Some(low), Some(high)) = (start.get(part.clone()), end.get(part)) else {
                return Holds::Perhaps;
            };
            holds = match value {
                Some(Value::Known(octets)) if octets.as_slice() < low || octets.as_slice() > high => {
                    return Holds::No;
                }
                Some(Value::Known(_)) => holds,
                Some(Value::Link) if low == high && query.is_on(low) == Holds::No => return Holds::No,
                Some(Value::Link) | None => Holds::Perhaps,
            };
            let words = value.map_or(1, words);
            (at, offset) = (at + words, offset + words as usize * 4);
        }
        holds
    }

    /// Whether the comparison of this register's value with `with` holds.
    pub(super) fn compares(
        &self,
        register: u32,
        operator: Operator,
        with: &[u8],
        query: &Query<'_>,
    ) -> Holds {
        match (operator, self.value(register)) {
            (Operator::Equal, _) => self.equal(register, with, query),
            (Operator::NotEqual, _) => self.equal(register, with, query).not(),
            (operator, Some(Value::Known(octets))) if octets.len() == with.len() => match operator {
                Operator::LessThan => Holds::of(octets.as_slice() < with),
                Operator::LessThanEqual => Holds::of(octets.as_slice() <= with),
                Operator::GreaterThan => Holds::of(octets.as_slice() > with),
                Operator::GreatherThanEqual => Holds::of(octets.as_slice() >= with),
                _ => Holds::Perhaps,
            },
            _ => Holds::Perhaps,
        }
    }
}

impl Query<'_> {
    /// Whether the query arrives, or the reply leaves, on the link of this name, padded with zeros:
    /// `No` for lo and the links in `not_from`, else `Perhaps`.
    fn is_on(&self, name: &[u8]) -> Holds {
        let name = name.split(|octet| *octet == 0).next().unwrap_or_default();
        let is_none = name == b"lo" || self.not_from.iter().any(|link| link.as_bytes() == name);
        if is_none { Holds::No } else { Holds::Perhaps }
    }
}

/// Returns the number of 4-byte words that a value occupies.
fn words(value: &Value) -> u32 {
    match value {
        Value::Known(octets) => octets.len().div_ceil(4).max(1) as u32,
        Value::Link => (IFNAMSIZ / 4) as u32,
    }
}

/// Returns the index of a register's first word: registers 1 to 4 have 16 bytes, registers from 8
/// on have 4 bytes.
fn word(register: u32) -> u32 {
    match register {
        1..=4 => (register - 1) * 4,
        _ => register.saturating_sub(8).min(64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_concatenations() {
        let ip = "169.254.10.10".parse().ok();
        let query = Query {
            family: Family::V4,
            transport: 17,
            server: ip,
            is_reply: false,
            ct_state: 0,
            not_from: &[],
        };
        let start = [&[169, 254, 0, 0][..], &[0, 0, 0, 0]].concat();
        let end = |port: [u8; 2]| [&[169, 254, 255, 255][..], &port, &[0, 0]].concat();
        let known = |octets: &[u8]| Some(Value::Known(octets.to_vec()));
        let mut registers = Registers::default();
        registers.load(1, query.header(1, 16, 4));
        registers.load(9, query.header(2, 2, 2));
        assert_eq!(registers.within(1, &start, &end([4, 0]), &query), Holds::Yes);
        assert_eq!(registers.within(1, &start, &end([0, 53]), &query), Holds::Yes);
        assert_eq!(registers.within(1, &start, &end([0, 52]), &query), Holds::No);
        registers.load(9, known(&[4, 1]));
        assert_eq!(registers.within(1, &start, &end([4, 0]), &query), Holds::No);
        // The client's address is not known, but the port is.
        registers.load(1, None);
        registers.load(9, known(&[0, 53]));
        assert_eq!(registers.within(1, &start, &end([4, 0]), &query), Holds::Perhaps);
        assert_eq!(registers.within(1, &start, &end([0, 52]), &query), Holds::No);
    }

    #[test]
    fn a_reply_comes_from_port_53() {
        let reply = Query {
            family: Family::V4,
            transport: 17,
            server: "169.254.10.10".parse().ok(),
            is_reply: true,
            ct_state: 0,
            not_from: &[],
        };
        assert_eq!(reply.header(1, 12, 4), Some(Value::Known(vec![169, 254, 10, 10])));
        assert_eq!(reply.header(1, 16, 4), None);
        assert_eq!(reply.header(2, 0, 2), Some(Value::Known(vec![0, 53])));
        assert_eq!(reply.header(2, 2, 2), None);
        assert_eq!(reply.meta(MetaKey::Oifname), Some(Value::Link));
        assert_eq!(reply.meta(MetaKey::Iifname), Some(Value::Known(vec![0; 16])));
        assert_eq!(reply.is_on(b"lo\0"), Holds::No);
    }
}
