//! Decides on each packet from a client: drop, refuse, or pass to the server blocks.
//!
//! Runs before anything else reads the packet. Decides as CoreDNS 1.15.0 does, except where an RFC
//! or safety requires otherwise.

use crate::edns::{DO, write_opt};
use crate::records::{self, Section};
use crate::{Class, Edns, Flags, HEADER, Opcode, Query, RType, Rcode, ZoneRequest, name, read_u16, read_u32};

/// The decision on a packet.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one packet; a box would cost an allocation"
)]
pub enum Verdict<'p> {
    /// No reply: shorter than a header, or a response (two servers that answer responses would
    /// never stop).
    Drop,
    /// A reply that needs no server block.
    Refuse(Refusal<'p>),
    /// A query for the server blocks.
    Pass(Query<'p>),
    /// A request about a whole zone (AXFR, IXFR, NOTIFY, UPDATE), for the server block of that
    /// zone.
    Zone(ZoneRequest<'p>),
}

/// A reply without records: header, the question if it could be read, an OPT if the query had one.
pub struct Refusal<'p> {
    /// The client's message id.
    pub id: u16,
    /// The client's header flags.
    pub flags: Flags,
    /// The rcode of the reply.
    pub rcode: Rcode,
    /// The question to echo, if it could be read.
    pub question: Option<&'p [u8]>,
    /// DO bit of the query's OPT; `None` for a reply without OPT.
    pub opt: Option<bool>,
}

impl Refusal<'_> {
    /// Writes the reply to `out`, replacing its content.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        let kept = self.flags.0 & (0x7800 | Flags::RD | Flags::CD);
        let flags = Flags::QR | kept | (self.rcode.0 & 0xf);
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&[
            0,
            u8::from(self.question.is_some()),
            0,
            0,
            0,
            0,
            0,
            u8::from(self.opt.is_some()),
        ]);
        out.extend_from_slice(self.question.unwrap_or_default());
        if let Some(dnssec_ok) = self.opt {
            write_opt(out, self.rcode, dnssec_ok, &[]);
        }
    }
}

/// Checks a packet.
///
/// - shorter than a header, or QR=1: dropped
/// - opcode other than QUERY, NOTIFY and UPDATE, and an unreadable UPDATE: NOTIMP
/// - QDCOUNT other than 1 (RFC 9619), ANCOUNT or NSCOUNT above 1, ARCOUNT above 2, an unreadable
///   body, two OPT records (RFC 6891, section 6.1.1): FORMERR
/// - EDNS version other than 0: BADVERS (RFC 6891, section 6.1.3)
/// - OPT as a type: FORMERR
/// - AXFR, IXFR, NOTIFY and UPDATE, which are never forwarded: [`Verdict::Zone`]
///
/// A refusal has an OPT if the query had one (RFC 6891, section 6.1.1).
pub fn accept(packet: &[u8]) -> Verdict<'_> {
    let mut gate = Verdict::Pass(Query::BLANK);
    gate.read(packet);
    gate
}

impl<'p> Verdict<'p> {
    /// Checks a packet as [`accept`] does, and overwrites `self` with the decision: a [`Query`] is
    /// large, and is not moved this way.
    #[inline]
    pub fn read(&mut self, packet: &'p [u8]) {
        if !matches!(self, Self::Pass(_)) {
            *self = Self::Pass(Query::BLANK);
        }
        let Self::Pass(query) = self else { return };
        match fill(query, packet) {
            Ok(()) => {}
            Err(Other::Drop) => *self = Self::Drop,
            Err(Other::Refuse(refusal)) => *self = Self::Refuse(refusal),
            Err(Other::Zone) => self.turn_to_zone(packet),
        }
    }

    /// Returns the query of a passed packet or of a zone request; `None` for the other decisions.
    #[inline]
    pub fn query(&self) -> Option<&Query<'p>> {
        match self {
            Self::Pass(query) => Some(query),
            Self::Zone(request) => Some(&request.query),
            Self::Drop | Self::Refuse(_) => None,
        }
    }

    #[cold]
    fn turn_to_zone(&mut self, message: &'p [u8]) {
        if let Self::Pass(query) = self {
            *self = Self::Zone(ZoneRequest { query: *query, message });
        }
    }
}

/// Decisions other than [`Verdict::Pass`].
enum Other<'p> {
    Drop,
    Refuse(Refusal<'p>),
    /// A request about a zone; the query is filled.
    Zone,
}

/// Reads the packet into `query`; an error is any decision other than [`Verdict::Pass`].
#[inline(always)]
fn fill<'p>(query: &mut Query<'p>, packet: &'p [u8]) -> Result<(), Other<'p>> {
    let header = packet.first_chunk::<HEADER>().ok_or(Other::Drop)?;
    let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (id, flags) = (number(0), Flags(number(2)));
    let refuse = |rcode, question: Option<&'p [u8]>| {
        let opt = opt_of(packet);
        let refusal = match flags.opcode() {
            // As for an unknown opcode.
            Opcode::UPDATE => Refusal { id, flags, rcode: Rcode::NOTIMP, question: None, opt },
            _ => Refusal { id, flags, rcode, question, opt },
        };
        Err(Other::Refuse(refusal))
    };
    // A query with opcode QUERY has none of these bits.
    if flags.0 & (Flags::QR | 0x7800) != 0 {
        if flags.has(Flags::QR) {
            return Err(Other::Drop);
        }
        if !matches!(flags.opcode(), Opcode::NOTIFY | Opcode::UPDATE) {
            return refuse(Rcode::NOTIMP, None);
        }
    }
    let counts = [number(6), number(8), number(10)];
    let many = counts[0] > 1 || counts[1] > 1 || counts[2] > 2;
    // An UPDATE may have any number of records in each section (RFC 2136, section 2).
    if number(4) != 1 || (many && flags.opcode() != Opcode::UPDATE) {
        return refuse(Rcode::FORMERR, None);
    }
    let Ok(name_end) = query.name.fill_plain(packet, HEADER) else { return refuse(Rcode::FORMERR, None) };
    let end = name_end + 4;
    let Some(question) = packet.get(HEADER..end) else { return refuse(Rcode::FORMERR, None) };
    let Some(&[type_high, type_low, class_high, class_low]) = question.last_chunk() else {
        return refuse(Rcode::FORMERR, None);
    };
    let rtype = u16::from_be_bytes([type_high, type_low]);
    let class = u16::from_be_bytes([class_high, class_low]);
    (query.id, query.flags, query.size) = (id, flags, packet.len());
    (query.question, query.rtype, query.class) = (question, RType(rtype), Class(class));
    query.edns = None;
    if counts != [0; 3] {
        let Some(found) = read_edns(packet, end, counts) else {
            return refuse(Rcode::FORMERR, Some(question));
        };
        query.edns = found;
    }
    if query.edns.is_some_and(|edns| edns.version != 0) {
        return refuse(Rcode::BADVERS, Some(question));
    }
    match query.rtype {
        _ if flags.0 & 0x7800 != 0 => Err(Other::Zone),
        RType::AXFR | RType::IXFR => Err(Other::Zone),
        RType::OPT => refuse(Rcode::FORMERR, Some(question)),
        _ => Ok(()),
    }
}

/// Decides on a packet that was cut because it did not fit the receive buffer: FORMERR at best.
pub fn accept_truncated(packet: &[u8]) -> Verdict<'_> {
    match accept(packet) {
        Verdict::Pass(Query { id, flags, question, edns, .. })
        | Verdict::Zone(ZoneRequest { query: Query { id, flags, question, edns, .. }, .. }) => {
            let opt = edns.map(|edns| edns.dnssec_ok);
            Verdict::Refuse(Refusal { id, flags, rcode: Rcode::FORMERR, question: Some(question), opt })
        }
        // Dropped or refused for a reason that the missing bytes do not change.
        settled => settled,
    }
}

/// The OPT of a query, if there is one; the outer `None` means that the body cannot be read.
fn read_edns(packet: &[u8], start: usize, counts: [u16; 3]) -> Option<Option<Edns<'_>>> {
    let mut edns = None;
    for record in records::Records::new(packet, start, counts) {
        let record = record.ok()?;
        if record.rtype != RType::OPT {
            continue;
        }
        if record.section != Section::Additional || edns.is_some() || packet.get(record.owner) != Some(&0) {
            return None;
        }
        edns = Some(Edns::read(record.class.0, record.ttl, record.data(packet))?);
    }
    Some(edns)
}

/// DO bit of the first OPT in a message that is refused, if one is found: its sender supports EDNS
/// even if the options, or other parts, cannot be read.
#[cold]
#[inline(never)]
fn opt_of(packet: &[u8]) -> Option<bool> {
    let number = |at| read_u16(packet, at).map(usize::from);
    let mut at = HEADER;
    for _ in 0..number(4)? {
        at = name::skip(packet, at).ok()? + 4;
    }
    let before = number(6)? + number(8)?;
    for place in 0..before + number(10)? {
        let owner = at;
        at = name::skip(packet, owner).ok()?;
        let (rtype, ttl, length) = (number(at)?, read_u32(packet, at + 4)?, number(at + 8)?);
        if rtype == usize::from(RType::OPT.0) && place >= before && packet.get(owner) == Some(&0) {
            return Some(ttl as u16 & DO != 0);
        }
        at += 10 + length;
    }
    None
}

#[cfg(test)]
mod tests;
