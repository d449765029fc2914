//! EDNS(0), RFC 6891: the OPT pseudo-record of queries and replies.

use crate::{Flags, Rcode, read_u16};

/// The UDP payload size that we announce to clients and upstreams: fits every path unfragmented.
pub const UDP_SIZE: u16 = 1232;
/// The largest UDP reply, in bytes, that a Corefile may allow.
pub const MAX_UDP_SIZE: u16 = 4096;
/// NSID (RFC 5001).
pub const OPTION_NSID: u16 = 3;
/// Client subnet (RFC 7871).
pub const OPTION_CLIENT_SUBNET: u16 = 8;
/// Extended DNS Error (RFC 8914).
pub const OPTION_EDE: u16 = 15;

/// The DO bit of an OPT record's TTL (RFC 3225, section 3).
pub(crate) const DO: u16 = 0x8000;

/// The OPT record of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns<'p> {
    /// The sender's UDP payload size in bytes, as sent; below 512 means 512 (RFC 6891, section
    /// 6.2.3).
    pub udp_size: u16,
    /// EDNS version; only 0 is defined.
    pub version: u8,
    /// The DO bit (RFC 3225).
    pub dnssec_ok: bool,
    /// Whether the client requests the name server identifier (NSID, RFC 5001).
    pub nsid: bool,
    /// Data of the client subnet option.
    pub client_subnet: Option<&'p [u8]>,
    /// All options as sent; empty for another EDNS version and for an
    /// [`OwnedQuery`](crate::OwnedQuery).
    pub options: &'p [u8],
}

impl<'p> Edns<'p> {
    /// Reads class, TTL and data of an OPT record; `None` if the options or a client subnet are
    /// malformed. Options of another EDNS version are not read: their form is not defined here.
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

/// Code and value of each option of an OPT record. A malformed option is `None` and the last item.
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

/// Whether this is a valid client subnet option of a query.
///
/// RFC 7871, sections 6 and 7.1.2: the family is known, the prefix fits it, the scope is 0, the
/// address has exactly the bytes that the prefix needs, and no bit beyond the prefix is set.
pub fn client_subnet_holds(value: &[u8]) -> bool {
    let [0, family, source, 0, address @ ..] = value else { return false };
    let longest = match family {
        // Opt-out: no family, no address, a prefix of 0 (`dig +subnet=0`).
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
    /// The EXTRA-TEXT, visible to any client: it must not contain secrets.
    pub text: &'static str,
}

impl Ede {
    /// 3: expired data after the upstream failed.
    pub const STALE_ANSWER: Self = Self { code: 3, text: "" };
    /// 14: the data that decides the answer has not arrived yet.
    pub const NOT_READY: Self = Self { code: 14, text: "" };
    /// 15: a policy of the server forbids the answer.
    pub const BLOCKED: Self = Self { code: 15, text: "" };
    /// 17: a policy of the server empties the answer.
    pub const FILTERED: Self = Self { code: 17, text: "" };
    /// 19: an expired denial after the upstream failed.
    pub const STALE_NXDOMAIN: Self = Self { code: 19, text: "" };
    /// 20: no server block answers for this name.
    pub const NOT_AUTHORITATIVE: Self = Self { code: 20, text: "" };
    /// 21: the server does not support the request.
    pub const NOT_SUPPORTED: Self = Self { code: 21, text: "" };
    /// 22: no upstream answered in time.
    pub const NO_REACHABLE_AUTHORITY: Self = Self { code: 22, text: "" };
    /// 23: a network error on the way to the upstream.
    pub const NETWORK_ERROR: Self = Self { code: 23, text: "" };
}

/// Options for a reply's OPT: at most 255 bytes, inline; an option that does not fit is left out.
///
/// Nearly all replies have none, and then the bytes are not even zeroed.
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

    /// The options as in an OPT record.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.octets.as_ref().map_or(&[], |octets| &octets[..usize::from(self.len)])
    }

    /// Whether there are no options.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds one option; leaves it out if it does not fit.
    pub fn push(&mut self, code: u16, value: &[u8]) {
        let Some(room) = self.room(4 + value.len()) else { return };
        room[..2].copy_from_slice(&code.to_be_bytes());
        room[2..4].copy_from_slice(&(value.len() as u16).to_be_bytes());
        room[4..].copy_from_slice(value);
    }

    /// Appends `more` bytes, if they fit.
    fn room(&mut self, more: usize) -> Option<&mut [u8]> {
        let start = usize::from(self.len);
        let end = start + more;
        let room = self.octets.get_or_insert([0; 255]).get_mut(start..end)?;
        self.len = end as u8;
        Some(room)
    }

    /// Adds the client subnet option of the query with the answer's scope (RFC 7871, section
    /// 7.2.1).
    pub fn push_subnet(&mut self, asked: &[u8], scope: u8) {
        let mut value = [0; 20];
        let Some(room) = value.get_mut(..asked.len()) else { return };
        room.copy_from_slice(asked);
        value[3] = scope;
        self.push(OPTION_CLIENT_SUBNET, &value[..asked.len()]);
    }

    /// Adds encoded options, all or none.
    pub fn extend_encoded(&mut self, encoded: &[u8]) {
        if encoded.is_empty() {
            return;
        }
        if let Some(room) = self.room(encoded.len()) {
            room.copy_from_slice(encoded);
        }
    }

    /// Removes every option with this code.
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

    /// Adds an Extended DNS Error unless it is present.
    pub fn add_ede(&mut self, ede: Ede) {
        let mut one = Self::none();
        one.push_ede(ede);
        self.extend_ede(&one);
    }

    /// Adds the Extended DNS Errors of `others` that are not present.
    pub fn extend_ede(&mut self, others: &Self) {
        for (code, value) in options(others.as_bytes()).flatten().filter(|(code, _)| *code == OPTION_EDE) {
            if !options(self.as_bytes()).flatten().any(|known| known == (code, value)) {
                self.push(code, value);
            }
        }
    }
}

/// Bytes that [`write_opt`] appends.
pub(crate) fn opt_length(options: &[u8]) -> usize {
    11 + options.len()
}

/// Appends an OPT record with our payload size, the upper bits of the rcode, DO and these options.
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

/// The rcode of a header and the OPT of the same message.
pub(crate) fn full_rcode(flags: Flags, opt_ttl: Option<u32>) -> Rcode {
    Rcode(flags.rcode() | opt_ttl.map_or(0, |ttl| ((ttl >> 24) as u16) << 4))
}
