//! The one gate for messages from clients, whatever carried them: what is answered, what is refused, what is dropped.
//!
//! It reads the raw packet before anything else does, and decides as CoreDNS 1.15.0 does except where an RFC or safety
//! says otherwise.

use crate::edns::write_opt;
use crate::records::{self, Section};
use crate::{Class, Edns, Flags, HEADER, Opcode, Query, RType, Rcode, read_u16};

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
/// - opcode other than QUERY and NOTIFY: NOTIMP; NOTIFY: REFUSED, for there is no secondary zone (RFC 1996, section 3.10)
/// - QDCOUNT other than 1 (RFC 9619), ANCOUNT or NSCOUNT above 1, ARCOUNT above 2, a body that cannot be read, two OPT
///   records (RFC 6891, section 6.1.1): FORMERR
/// - EDNS version other than 0: BADVERS (RFC 6891, section 6.1.3)
/// - AXFR and IXFR, which are never forwarded, and OPT as a type: REFUSED and FORMERR
pub fn accept(packet: &[u8]) -> Gate<'_> {
    let mut gate = Gate::Pass(Query::BLANK);
    gate.read(packet);
    gate
}

impl<'p> Gate<'p> {
    /// As [`accept`], in place of what the packet before came to: a query is large, and not moved this way.
    #[inline]
    pub fn read(&mut self, packet: &'p [u8]) {
        let settled = match self {
            Self::Pass(query) => fill(query, packet),
            _ => {
                let mut query = Query::BLANK;
                let settled = fill(&mut query, packet);
                *self = Self::Pass(query);
                settled
            }
        };
        match settled {
            Ok(()) => {}
            Err(None) => *self = Self::Drop,
            Err(Some(refusal)) => *self = Self::Refuse(refusal),
        }
    }
}

/// Reads a query; else the refusal that its sender gets, if any.
#[inline]
fn fill<'p>(query: &mut Query<'p>, packet: &'p [u8]) -> Result<(), Option<Refusal<'p>>> {
    let header = packet.first_chunk::<HEADER>().ok_or(None)?;
    let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (id, flags) = (number(0), Flags(number(2)));
    if flags.has(Flags::QR) {
        return Err(None);
    }
    let refuse = |rcode, question| Err(Some(Refusal { id, flags, rcode, question, opt: None }));
    match flags.opcode() {
        Opcode::QUERY | Opcode::NOTIFY => {}
        _ => return refuse(Rcode::NOTIMP, None),
    }
    let [questions, answers, authorities, additionals] = [number(4), number(6), number(8), number(10)];
    if questions != 1 || answers > 1 || authorities > 1 || additionals > 2 {
        return refuse(Rcode::FORMERR, None);
    }
    let Ok(name_end) = query.name.fill_plain(packet, HEADER) else { return refuse(Rcode::FORMERR, None) };
    let end = name_end + 4;
    let Some(question) = packet.get(HEADER..end) else { return refuse(Rcode::FORMERR, None) };
    let (Some(rtype), Some(class)) = (read_u16(packet, name_end), read_u16(packet, name_end + 2)) else {
        return refuse(Rcode::FORMERR, None);
    };
    if flags.opcode() == Opcode::NOTIFY {
        return refuse(Rcode::REFUSED, Some(question));
    }
    (query.id, query.flags, query.size) = (id, flags, packet.len());
    (query.question, query.rtype, query.class) = (question, RType(rtype), Class(class));
    query.edns = None;
    if answers + authorities + additionals > 0 {
        let Some(found) = read_edns(packet, end, [answers, authorities, additionals]) else {
            return refuse(Rcode::FORMERR, Some(question));
        };
        query.edns = found;
    }
    let answer = |rcode| {
        let opt = query.edns.map(|edns: Edns<'_>| edns.dnssec_ok);
        Err(Some(Refusal { id, flags, rcode, question: Some(question), opt }))
    };
    if query.edns.is_some_and(|edns| edns.version != 0) {
        return answer(Rcode::BADVERS);
    }
    match query.rtype {
        RType::AXFR | RType::IXFR => answer(Rcode::REFUSED),
        RType::OPT => answer(Rcode::FORMERR),
        _ => Ok(()),
    }
}

/// Looks over a packet of which the end was lost because it did not fit the receive buffer: FORMERR at best.
pub fn accept_truncated(packet: &[u8]) -> Gate<'_> {
    match accept(packet) {
        Gate::Pass(Query { id, flags, question, .. }) => {
            Gate::Refuse(Refusal { id, flags, rcode: Rcode::FORMERR, question: Some(question), opt: None })
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
            ("UPDATE", packet(0x2800, [1, 0, 0, 0], &[QUESTION]), "NOTIMP 12"),
            ("opcode 15", packet(0x7800, [0, 0, 0, 0], &[]), "NOTIMP 12"),
            ("NOTIFY", packet(0x2000, [1, 0, 0, 0], &[QUESTION]), "REFUSED 29"),
            ("no question", packet(0x0100, [0, 0, 0, 0], &[]), "FORMERR 12"),
            ("two questions", packet(0x0100, [2, 0, 0, 0], &[QUESTION, QUESTION]), "FORMERR 12"),
            ("two answers", packet(0x0100, [1, 2, 0, 0], &[QUESTION]), "FORMERR 12"),
            ("three additionals", packet(0x0100, [1, 0, 0, 3], &[QUESTION, opt, opt, opt]), "FORMERR 12"),
            ("two OPT", packet(0x0100, [1, 0, 0, 2], &[QUESTION, opt, opt]), "FORMERR 29"),
            ("an OPT cut short", packet(0x0100, [1, 0, 0, 1], &[QUESTION, &opt[..9]]), "FORMERR 29"),
            ("an option cut short", packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt_bad]), "FORMERR 29"),
            (
                "a client subnet that does not add up",
                packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt_ecs_bad]),
                "FORMERR 29",
            ),
            ("EDNS 1", packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt_v1]), "BADVERS 40"),
            ("AXFR", packet(0x0000, [1, 0, 0, 0], &[axfr]), "REFUSED 29"),
            ("a pointer in the question", packet(0x0100, [1, 0, 0, 0], &[pointer]), "FORMERR 12"),
            ("a question cut short", packet(0x0100, [1, 0, 0, 0], &[&QUESTION[..14]]), "FORMERR 12"),
        ] {
            assert_eq!(verdict(&packet), expected, "{what}");
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
        fn no_packet_makes_the_gate_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Gate::Refuse(refusal) = accept(&bytes) {
                refusal.write(&mut Vec::new());
            }
            let _ = accept_truncated(&bytes);
        }
    }
}
