//! EDNS(0), RFC 6891: the OPT pseudo-record of queries and replies.

use crate::{Flags, Rcode, read_u16};

/// The UDP payload size that we announce to clients and upstreams: what passes every path unfragmented.
pub const UDP_SIZE: u16 = 1232;
/// The most that a Corefile may have a reply over UDP take.
pub const MAX_UDP_SIZE: u16 = 4096;
/// NSID (RFC 5001).
pub const OPTION_NSID: u16 = 3;
/// Client subnet (RFC 7871).
pub const OPTION_CLIENT_SUBNET: u16 = 8;
/// Extended DNS Error (RFC 8914).
pub const OPTION_EDE: u16 = 15;

/// The DO bit of an OPT record's TTL (RFC 3225, section 3).
pub(crate) const DO: u16 = 0x8000;

/// What a query's OPT record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns<'p> {
    /// The sender's UDP payload size in octets, as sent; below 512 it means 512 (RFC 6891, section 6.2.3).
    pub udp_size: u16,
    /// EDNS version; only 0 is defined.
    pub version: u8,
    /// The DO bit (RFC 3225).
    pub dnssec_ok: bool,
    /// Whether the name server identifier is asked for.
    pub nsid: bool,
    /// The client subnet option's data, if it was sent.
    pub client_subnet: Option<&'p [u8]>,
    /// All options as they were sent; those of another version, or of a query that was kept, are not known.
    pub options: &'p [u8],
}

impl<'p> Edns<'p> {
    /// Reads an OPT record's class, TTL and data; `None` where the options do not add up or one of ours is malformed.
    /// Those of another version are not read: what they look like is that version's affair.
    pub(crate) fn read(class: u16, ttl: u32, data: &'p [u8]) -> Option<Self> {
        let mut edns = Self {
            udp_size: class,
            version: (ttl >> 16) as u8,
            dnssec_ok: ttl as u16 & DO != 0,
            nsid: false,
            client_subnet: None,
            options: &[],
        };
        if edns.version != 0 {
            return Some(edns);
        }
        edns.options = data;
        for option in options(data) {
            let (code, value) = option?;
            match code {
                OPTION_NSID => edns.nsid = true,
                OPTION_CLIENT_SUBNET => {
                    if !client_subnet_holds(value) {
                        return None;
                    }
                    edns.client_subnet = Some(value);
                }
                _ => {}
            }
        }
        Some(edns)
    }
}

/// The options of an OPT record; a `None` item where they do not add up, after which there are no more.
pub fn options(data: &[u8]) -> impl Iterator<Item = Option<(u16, &[u8])>> {
    let mut rest = data;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let split = || {
            let code = read_u16(rest, 0)?;
            let length = usize::from(read_u16(rest, 2)?);
            Some((code, rest.get(4..4 + length)?))
        };
        let option = split();
        rest = option.map_or(&[][..], |(_, value)| &rest[4 + value.len()..]);
        Some(option)
    })
}

/// Whether this is a client subnet as a query has it.
///
/// RFC 7871, sections 6 and 7.1.2: the family is known and the prefix fits it, a query's scope is 0, the address has just
/// the octets that the prefix needs, and no bit beyond it is set.
pub fn client_subnet_holds(value: &[u8]) -> bool {
    let [0, family, source, 0, address @ ..] = value else { return false };
    let longest = match family {
        // The client opts out: no family, no address, a prefix of 0 (`dig +subnet=0`).
        0 => 0,
        1 => 32,
        2 => 128,
        _ => return false,
    };
    let unused = u32::from(source.wrapping_neg() % 8);
    *source <= longest
        && address.len() == usize::from(source.div_ceil(8))
        && address.last().is_none_or(|last| last.trailing_zeros() >= unused)
}

/// An Extended DNS Error: why the answer is what it is (RFC 8914).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ede {
    /// The INFO-CODE.
    pub code: u16,
    /// The EXTRA-TEXT, without secrets: it is for the client's operator.
    pub text: &'static str,
}

impl Ede {
    /// 3: expired data after the upstream failed.
    pub const STALE_ANSWER: Self = Self { code: 3, text: "" };
    /// 14: what decides about the answer is not known yet.
    pub const NOT_READY: Self = Self { code: 14, text: "" };
    /// 15: a policy of ours forbids the answer.
    pub const BLOCKED: Self = Self { code: 15, text: "" };
    /// 17: a policy of ours leaves the answer empty.
    pub const FILTERED: Self = Self { code: 17, text: "" };
    /// 19: an expired denial after the upstream failed.
    pub const STALE_NXDOMAIN: Self = Self { code: 19, text: "" };
    /// 20: no server block answers for this name.
    pub const NOT_AUTHORITATIVE: Self = Self { code: 20, text: "" };
    /// 21: nothing here does what was asked for.
    pub const NOT_SUPPORTED: Self = Self { code: 21, text: "" };
    /// 22: no upstream answered in time.
    pub const NO_REACHABLE_AUTHORITY: Self = Self { code: 22, text: "" };
    /// 23: the network refused us.
    pub const NETWORK_ERROR: Self = Self { code: 23, text: "" };
}

/// Options gathered for a reply's OPT, inline: at most 255 octets, what does not fit is left out whole.
///
/// Nearly all replies have none, and pay for no octet.
#[derive(Clone, Copy, Default)]
pub struct OptionBytes {
    len: u8,
    octets: Option<[u8; 255]>,
}

impl std::fmt::Debug for OptionBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(options(self.as_bytes()).flatten()).finish()
    }
}

impl OptionBytes {
    /// No options.
    #[inline]
    pub fn none() -> Self {
        Self { len: 0, octets: None }
    }

    /// The options as they stand in an OPT record.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.octets.as_ref().map_or(&[], |octets| &octets[..usize::from(self.len)])
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds one option, or leaves it out where it does not fit.
    pub fn push(&mut self, code: u16, value: &[u8]) {
        let Some(room) = self.room(4 + value.len()) else { return };
        room[..2].copy_from_slice(&code.to_be_bytes());
        room[2..4].copy_from_slice(&(value.len() as u16).to_be_bytes());
        room[4..].copy_from_slice(value);
    }

    /// So many octets more, if there is room.
    fn room(&mut self, more: usize) -> Option<&mut [u8]> {
        let start = usize::from(self.len);
        let end = start + more;
        let room = self.octets.get_or_insert([0; 255]).get_mut(start..end)?;
        self.len = end as u8;
        Some(room)
    }

    /// Adds the client subnet that was `asked` for, and for which part of the network the answer is (RFC 7871, section 7.2.1).
    pub fn push_subnet(&mut self, asked: &[u8], scope: u8) {
        let mut value = [0; 20];
        let Some(room) = value.get_mut(..asked.len()) else { return };
        room.copy_from_slice(asked);
        value[3] = scope;
        self.push(OPTION_CLIENT_SUBNET, &value[..asked.len()]);
    }

    /// Adds options that are encoded already, all or none.
    pub fn extend_encoded(&mut self, encoded: &[u8]) {
        if encoded.is_empty() {
            return;
        }
        if let Some(room) = self.room(encoded.len()) {
            room.copy_from_slice(encoded);
        }
    }

    /// Takes out every option of a code.
    pub fn remove(&mut self, code: u16) {
        let old = *self;
        *self = Self::none();
        for (other, value) in options(old.as_bytes()).flatten().filter(|(other, _)| *other != code) {
            self.push(other, value);
        }
    }

    /// Adds an Extended DNS Error.
    pub fn push_ede(&mut self, ede: Ede) {
        let mut value = [0; 64];
        let text = ede.text.as_bytes();
        let text = &text[..text.len().min(62)];
        value[..2].copy_from_slice(&ede.code.to_be_bytes());
        value[2..2 + text.len()].copy_from_slice(text);
        self.push(OPTION_EDE, &value[..2 + text.len()]);
    }

    /// Adds an Extended DNS Error that is not here yet.
    pub fn add_ede(&mut self, ede: Ede) {
        let mut one = Self::none();
        one.push_ede(ede);
        self.extend_ede(&one);
    }

    /// Adds the Extended DNS Errors of `others` that are not here yet.
    pub fn extend_ede(&mut self, others: &Self) {
        for (code, value) in options(others.as_bytes()).flatten().filter(|(code, _)| *code == OPTION_EDE) {
            if !options(self.as_bytes()).flatten().any(|known| known == (code, value)) {
                self.push(code, value);
            }
        }
    }
}

/// How many octets [`write_opt`] adds.
pub(crate) fn opt_length(options: &[u8]) -> usize {
    11 + options.len()
}

/// Appends an OPT record: our size, the upper bits of the rcode, DO and the options given.
pub fn write_opt(out: &mut Vec<u8>, rcode: Rcode, dnssec_ok: bool, options: &[u8]) {
    out.push(0);
    out.extend_from_slice(&crate::RType::OPT.0.to_be_bytes());
    out.extend_from_slice(&UDP_SIZE.to_be_bytes());
    out.push((rcode.0 >> 4) as u8);
    out.push(0);
    out.extend_from_slice(&(if dnssec_ok { DO } else { 0 }).to_be_bytes());
    out.extend_from_slice(&(options.len() as u16).to_be_bytes());
    out.extend_from_slice(options);
}

/// The full rcode of a header and the OPT that goes with it.
pub(crate) fn full_rcode(flags: Flags, opt_ttl: Option<u32>) -> Rcode {
    Rcode(flags.rcode() | opt_ttl.map_or(0, |ttl| ((ttl >> 24) as u16) << 4))
}
