//! The one gate for messages from clients, whatever carried them: what is answered, what is refused, what is dropped.
//!
//! It reads the raw packet before anything else does, and decides as CoreDNS 1.15.0 does except where an RFC or safety
//! says otherwise.

use crate::edns::{DO, write_opt};
use crate::records::{self, Section};
use crate::{Class, Edns, Flags, HEADER, Opcode, Query, RType, Rcode, ZoneRequest, name, read_u16, read_u32};

/// What becomes of a packet.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one packet; a box would cost an allocation"
)]
pub enum Gate<'p> {
    /// Silence: shorter than a header, or a response (answering one lets two servers play ping-pong).
    Drop,
    /// A reply that needs no server block.
    Refuse(Refusal<'p>),
    /// A query for the server blocks.
    Pass(Query<'p>),
    /// What concerns a zone as a whole (AXFR, IXFR, NOTIFY, UPDATE), for the server block of that zone.
    Zone(ZoneRequest<'p>),
}

/// A reply without content: header, perhaps the question, perhaps our OPT.
pub struct Refusal<'p> {
    /// The client's message id.
    pub id: u16,
    /// The client's header flags.
    pub flags: Flags,
    /// What the reply says.
    pub rcode: Rcode,
    /// The question to send back, where it could be read.
    pub question: Option<&'p [u8]>,
    /// The DO bit of the client's OPT, where the reply has an OPT.
    pub opt: Option<bool>,
}

impl Refusal<'_> {
    /// Writes the reply in place of whatever `out` held.
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

/// Looks a packet over.
///
/// - shorter than a header, or QR=1: dropped in silence
/// - opcode other than QUERY, NOTIFY and UPDATE, and an UPDATE that cannot be read: NOTIMP
/// - QDCOUNT other than 1 (RFC 9619), ANCOUNT or NSCOUNT above 1, ARCOUNT above 2, a body that cannot be read, two OPT
///   records (RFC 6891, section 6.1.1): FORMERR
/// - EDNS version other than 0: BADVERS (RFC 6891, section 6.1.3)
/// - OPT as a type: FORMERR
/// - AXFR, IXFR, NOTIFY and UPDATE, which concern a zone and are never forwarded: [`Gate::Zone`]
///
/// Whatever is refused, a query with an OPT gets one back (RFC 6891, section 6.1.1).
pub fn accept(packet: &[u8]) -> Gate<'_> {
    let mut gate = Gate::Pass(Query::BLANK);
    gate.read(packet);
    gate
}

impl<'p> Gate<'p> {
    /// As [`accept`], in place of what the packet before came to: a query is large, and not moved this way.
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

    /// The query or the request for a zone that passed.
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

/// What is no query for the plugins.
enum Other<'p> {
    Drop,
    Refuse(Refusal<'p>),
    /// It concerns a zone, and was read.
    Zone,
}

/// Reads a query; else what it is.
#[inline(always)]
fn fill<'p>(query: &mut Query<'p>, packet: &'p [u8]) -> Result<(), Other<'p>> {
    let header = packet.first_chunk::<HEADER>().ok_or(Other::Drop)?;
    let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (id, flags) = (number(0), Flags(number(2)));
    let refuse = |rcode, question: Option<&'p [u8]>| {
        let opt = opt_of(packet);
        let refusal = match flags.opcode() {
            // As if it were not known at all.
            Opcode::UPDATE => Refusal { id, flags, rcode: Rcode::NOTIMP, question: None, opt },
            _ => Refusal { id, flags, rcode, question, opt },
        };
        Err(Other::Refuse(refusal))
    };
    // A query of opcode 0 has none of these bits.
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
    // An UPDATE may have any number of each (RFC 2136, section 2).
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

/// Looks over a packet of which the end was lost because it did not fit the receive buffer: FORMERR at best.
pub fn accept_truncated(packet: &[u8]) -> Gate<'_> {
    match accept(packet) {
        Gate::Pass(Query { id, flags, question, edns, .. })
        | Gate::Zone(ZoneRequest { query: Query { id, flags, question, edns, .. }, .. }) => {
            let opt = edns.map(|edns| edns.dnssec_ok);
            Gate::Refuse(Refusal { id, flags, rcode: Rcode::FORMERR, question: Some(question), opt })
        }
        // Dropped or refused for what is there; what is not there changes nothing.
        settled => settled,
    }
}

/// The OPT of a query, if there is one; `None` outside where the body cannot be read.
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

/// The DO bit of the first OPT in a message that is refused, where one can be made out: its sender speaks EDNS even if
/// the options, or what else there is, cannot be read.
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUESTION: &[u8] = b"\x07Example\x03org\0\0\x01\0\x01";

    fn packet(flags: u16, counts: [u8; 4], body: &[&[u8]]) -> Vec<u8> {
        let mut packet = vec![0x12, 0x34];
        packet.extend_from_slice(&flags.to_be_bytes());
        for count in counts {
            packet.extend_from_slice(&[0, count]);
        }
        packet.extend(body.concat());
        packet
    }

    fn verdict(packet: &[u8]) -> String {
        match accept(packet) {
            Gate::Drop => "drop".into(),
            Gate::Pass(query) => format!("pass {} {}", query.name, query.rtype),
            Gate::Zone(ZoneRequest { query, .. }) => {
                let (opcode, opt) = (query.flags.opcode(), query.edns.is_some());
                format!("zone {} {opcode} {}{}", query.name, query.rtype, if opt { " OPT" } else { "" })
            }
            Gate::Refuse(refusal) => {
                let mut out = Vec::new();
                refusal.write(&mut out);
                format!("{} {}", refusal.rcode, out.len())
            }
        }
    }

    #[test]
    fn every_packet_gets_what_an_operator_expects() {
        let opt: &[u8] = b"\0\0\x29\x04\xd0\0\0\x80\0\0\0";
        let opt_v1: &[u8] = b"\0\0\x29\x04\xd0\0\x01\0\0\0\0";
        let opt_bad: &[u8] = b"\0\0\x29\x04\xd0\0\0\0\0\0\x03\0\x03\0";
        let opt_ecs_bad: &[u8] = b"\0\0\x29\x04\xd0\0\0\0\0\0\x08\0\x08\0\x04\0\x01\x20\0";
        let address: &[u8] = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01";
        let axfr: &[u8] = b"\x07example\x03org\0\0\xfc\0\x01";
        let pointer: &[u8] = b"\xc0\x0c\0\x01\0\x01";
        for (what, packet, expected) in [
            ("a plain query", packet(0x0100, [1, 0, 0, 0], &[QUESTION]), "pass example.org. A"),
            ("with OPT", packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt]), "pass example.org. A"),
            (
                "octets after the message",
                packet(0x0100, [1, 0, 0, 0], &[QUESTION, b"more"]),
                "pass example.org. A",
            ),
            ("a short header", b"\x12\x34\0\0\0".to_vec(), "drop"),
            ("a response", packet(0x8000, [1, 0, 0, 0], &[QUESTION]), "drop"),
            ("UPDATE", packet(0x2800, [1, 0, 0, 0], &[QUESTION]), "zone example.org. UPDATE A"),
            (
                "UPDATE of many records",
                packet(0x2800, [1, 2, 2, 3], &[QUESTION, &address.repeat(6), opt]),
                "zone example.org. UPDATE A OPT",
            ),
            ("UPDATE of two zones", packet(0x2800, [2, 0, 0, 0], &[QUESTION, QUESTION]), "NOTIMP 12"),
            ("UPDATE cut short", packet(0x2800, [1, 0, 1, 0], &[QUESTION]), "NOTIMP 12"),
            ("UPDATE with EDNS 1", packet(0x2800, [1, 0, 0, 1], &[QUESTION, opt_v1]), "NOTIMP 23"),
            ("STATUS", packet(0x1000, [1, 0, 0, 0], &[QUESTION]), "NOTIMP 12"),
            ("STATUS with OPT", packet(0x1000, [1, 0, 0, 1], &[QUESTION, opt]), "NOTIMP 23"),
            ("opcode 15", packet(0x7800, [0, 0, 0, 0], &[]), "NOTIMP 12"),
            ("NOTIFY", packet(0x2000, [1, 0, 0, 0], &[QUESTION]), "zone example.org. NOTIFY A"),
            (
                "NOTIFY with an answer",
                packet(0x2400, [1, 1, 0, 0], &[QUESTION, address]),
                "zone example.org. NOTIFY A",
            ),
            ("NOTIFY with two", packet(0x2400, [1, 2, 0, 0], &[QUESTION, address, address]), "FORMERR 12"),
            ("NOTIFY cut short", packet(0x2400, [1, 1, 0, 0], &[QUESTION]), "FORMERR 29"),
            ("NOTIFY with EDNS 1", packet(0x2400, [1, 0, 0, 1], &[QUESTION, opt_v1]), "BADVERS 40"),
            ("no question", packet(0x0100, [0, 0, 0, 0], &[]), "FORMERR 12"),
            ("two questions", packet(0x0100, [2, 0, 0, 0], &[QUESTION, QUESTION]), "FORMERR 12"),
            ("two answers", packet(0x0100, [1, 2, 0, 0], &[QUESTION]), "FORMERR 12"),
            ("three additionals", packet(0x0100, [1, 0, 0, 3], &[QUESTION, opt, opt, opt]), "FORMERR 23"),
            ("two OPT", packet(0x0100, [1, 0, 0, 2], &[QUESTION, opt, opt]), "FORMERR 40"),
            ("an OPT cut short", packet(0x0100, [1, 0, 0, 1], &[QUESTION, &opt[..9]]), "FORMERR 29"),
            ("an option cut short", packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt_bad]), "FORMERR 40"),
            (
                "a client subnet that does not add up",
                packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt_ecs_bad]),
                "FORMERR 40",
            ),
            (
                "UPDATE with OPT",
                packet(0x2800, [1, 0, 0, 1], &[QUESTION, opt]),
                "zone example.org. UPDATE A OPT",
            ),
            (
                "NOTIFY with OPT",
                packet(0x2000, [1, 0, 0, 1], &[QUESTION, opt]),
                "zone example.org. NOTIFY A OPT",
            ),
            (
                "two questions with OPT",
                packet(0x0100, [2, 0, 0, 1], &[QUESTION, QUESTION, opt]),
                "FORMERR 23",
            ),
            (
                "three additionals, OPT the last of them",
                packet(0x0100, [1, 0, 0, 3], &[QUESTION, address, address, opt]),
                "FORMERR 23",
            ),
            ("OPT as an answer", packet(0x0100, [1, 1, 0, 0], &[QUESTION, opt]), "FORMERR 29"),
            (
                "EDNS 1 with options that are none of version 0",
                packet(0x0100, [1, 0, 0, 1], &[QUESTION, b"\0\0\x29\x04\xd0\0\x01\0\0\0\x01\xff"]),
                "BADVERS 40",
            ),
            ("EDNS 1", packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt_v1]), "BADVERS 40"),
            ("AXFR", packet(0x0000, [1, 0, 0, 0], &[axfr]), "zone example.org. QUERY AXFR"),
            ("AXFR with EDNS 1", packet(0x0000, [1, 0, 0, 1], &[axfr, opt_v1]), "BADVERS 40"),
            ("a pointer in the question", packet(0x0100, [1, 0, 0, 0], &[pointer]), "FORMERR 12"),
            ("a question cut short", packet(0x0100, [1, 0, 0, 0], &[&QUESTION[..14]]), "FORMERR 12"),
        ] {
            assert_eq!(verdict(&packet), expected, "{what}");
        }
    }

    #[test]
    fn a_client_subnet_must_add_up() {
        for (what, option, passes) in [
            ("192.0.2.0/24", &b"\0\x01\x18\0\xc0\0\x02"[..], true),
            ("192.0.2.128/25", b"\0\x01\x19\0\xc0\0\x02\x80", true),
            ("2001:db8::/32", b"\0\x02\x20\0\x20\x01\x0d\xb8", true),
            ("0.0.0.0/0", b"\0\x01\0\0", true),
            ("::/0", b"\0\x02\0\0", true),
            ("no family, nothing told", b"\0\0\0\0", true),
            ("no family, a prefix", b"\0\0\x08\0\x0a", false),
            ("a scope", b"\0\x01\x18\x18\xc0\0\x02", false),
            ("a scope without a prefix", b"\0\x01\0\x01", false),
            ("a bit beyond /20", b"\0\x01\x14\0\xc0\0\xff", false),
            ("a bit beyond /25", b"\0\x01\x19\0\xc0\0\x02\x40", false),
            ("an octet too many", b"\0\x01\x18\0\xc0\0\x02\0", false),
            ("an octet too few", b"\0\x01\x18\0\xc0\0", false),
            ("IPv4 beyond /32", b"\0\x01\x21\0\xc0\0\x02\x01\0", false),
            ("IPv6 beyond /128", b"\0\x02\x81\0\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\0\0", false),
            ("family 3", b"\0\x03\0\0", false),
            ("family 256", b"\x01\0\0\0", false),
            ("three octets", b"\0\x01\0", false),
            ("nothing", b"", false),
        ] {
            let length = option.len() as u8;
            let head = [0, 0, 41, 4, 0xd0, 0, 0, 0x80, 0, 0, length + 4, 0, 8, 0, length];
            let query = packet(0x0100, [1, 0, 0, 1], &[QUESTION, &head, option]);
            match accept(&query) {
                Gate::Pass(query) => {
                    assert!(passes, "{what}");
                    assert_eq!(query.edns.and_then(|edns| edns.client_subnet), Some(option), "{what}");
                }
                Gate::Zone(_) => panic!("{what}"),
                Gate::Refuse(refusal) => {
                    assert!(!passes, "{what}");
                    assert_eq!((refusal.rcode, refusal.opt), (Rcode::FORMERR, Some(true)), "{what}");
                }
                Gate::Drop => panic!("{what}"),
            }
        }
    }

    #[test]
    fn badvers_stands_in_header_and_opt() {
        let opt_v1: &[u8] = b"\0\0\x29\x04\xd0\0\x01\x80\0\0\0";
        let query = packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt_v1]);
        let Gate::Refuse(refusal) = accept(&query) else { panic!("not refused") };
        let mut out = Vec::new();
        refusal.write(&mut out);
        assert_eq!(out[..4], [0x12, 0x34, 0x81, 0x00]);
        assert_eq!(out[29..], *b"\0\0\x29\x04\xd0\x01\0\x80\0\0\0");
    }

    #[test]
    fn a_packet_that_lost_its_end_is_a_format_error() {
        let opt: &[u8] = b"\0\0\x29\x04\xd0\0\0\x80\0\x10\0\0\x0c\x0f\xfc\0";
        for query in
            [packet(0x0100, [1, 0, 0, 0], &[QUESTION]), packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt])]
        {
            let Gate::Refuse(refusal) = accept_truncated(&query) else { panic!("not refused") };
            assert_eq!((refusal.rcode, refusal.question), (Rcode::FORMERR, Some(QUESTION)));
            assert_eq!(refusal.opt, (query[11] == 1).then_some(true));
        }
        let query = packet(0x0100, [1, 0, 0, 0], &[QUESTION]);
        assert!(matches!(accept_truncated(&query[..11]), Gate::Drop));
    }

    /// All that a gate says of a packet.
    fn told(gate: &Gate<'_>) -> String {
        match gate {
            Gate::Drop => "drop".into(),
            Gate::Refuse(refusal) => {
                let mut out = Vec::new();
                refusal.write(&mut out);
                format!("{out:?}")
            }
            Gate::Zone(ZoneRequest { query, message }) => {
                format!(
                    "zone {} {} {:?} {:?} {message:?}",
                    query.id, query.flags.0, query.question, query.edns
                )
            }
            Gate::Pass(query) => format!(
                "{} {} {:?} {} {} {} {:?} {}",
                query.id,
                query.flags.0,
                query.question,
                query.name,
                query.rtype,
                query.class,
                query.edns,
                query.size
            ),
        }
    }

    proptest! {
        #[test]
        fn a_packet_leaves_nothing_for_the_next(
            picks in proptest::collection::vec((0_usize..7, 0_usize..4, any::<u16>()), 1..20)
        ) {
            let opt: &[u8] = b"\0\0\x29\x04\xd0\0\0\x80\0\0\0";
            let root: &[u8] = b"\0\0\x02\x00\x03";
            let bodies: [&[&[u8]]; 4] = [&[QUESTION], &[QUESTION, opt], &[root], &[b"\x3f"]];
            let packets: Vec<_> = picks
                .into_iter()
                .map(|(counts, body, flags)| {
                    let counts = [[1, 0, 0, 0], [1, 0, 0, 1], [0; 4], [1, 0, 0, 2]][counts % 4];
                    packet(if flags % 3 == 0 { flags } else { 0x0100 }, counts, bodies[body])
                })
                .collect();
            let mut gate = Gate::Drop;
            for packet in &packets {
                gate.read(packet);
                prop_assert_eq!(told(&gate), told(&accept(packet)));
            }
        }

        #[test]
        fn no_query_with_options_makes_the_gate_panic(
            flags in any::<u16>(),
            counts in proptest::array::uniform4(0u8..4),
            options in proptest::collection::vec(
                (0u16..16, proptest::collection::vec(any::<u8>(), 0..24), any::<bool>()), 0..5,
            ),
            version in 0u8..3,
            cut in 0usize..12,
        ) {
            let mut data = Vec::new();
            for (code, value, lies) in options {
                data.extend_from_slice(&code.to_be_bytes());
                data.extend_from_slice(&(value.len() as u16 + u16::from(lies)).to_be_bytes());
                data.extend_from_slice(&value);
            }
            let head = [0, 0, 41, 4, 0xd0, 0, version, 0x80, 0, 0, data.len() as u8];
            let mut bytes = packet(flags & 0x7fff, counts, &[QUESTION, &head, &data]);
            bytes.truncate(bytes.len() - cut);
            match accept(&bytes) {
                Gate::Pass(query) | Gate::Zone(ZoneRequest { query, .. }) => {
                    prop_assert!(query.hold().question() == QUESTION);
                }
                Gate::Refuse(refusal) => {
                    let mut out = Vec::new();
                    refusal.write(&mut out);
                    prop_assert!(out.len() <= bytes.len(), "a refusal is no amplifier");
                    if counts == [1, 0, 0, 1] && cut <= data.len() {
                        prop_assert_eq!(refusal.opt, Some(true));
                    }
                }
                Gate::Drop => prop_assert!(false, "dropped"),
            }
            let _ = accept_truncated(&bytes);
        }

        #[test]
        fn no_packet_makes_the_gate_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Gate::Refuse(refusal) = accept(&bytes) {
                refusal.write(&mut Vec::new());
            }
            let _ = accept_truncated(&bytes);
        }
    }
}
