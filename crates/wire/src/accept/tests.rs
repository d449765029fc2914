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
        Verdict::Drop => "drop".into(),
        Verdict::Pass(query) => format!("pass {} {}", query.name, query.rtype),
        Verdict::Zone(ZoneRequest { query, .. }) => {
            let (opcode, opt) = (query.flags.opcode(), query.edns.is_some());
            format!("zone {} {opcode} {}{}", query.name, query.rtype, if opt { " OPT" } else { "" })
        }
        Verdict::Refuse(refusal) => {
            let mut out = Vec::new();
            refusal.write(&mut out);
            format!("{} {}", refusal.rcode, out.len())
        }
    }
}

#[test]
fn accept_decides_by_header_and_body() {
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
        ("UPDATE with OPT", packet(0x2800, [1, 0, 0, 1], &[QUESTION, opt]), "zone example.org. UPDATE A OPT"),
        ("NOTIFY with OPT", packet(0x2000, [1, 0, 0, 1], &[QUESTION, opt]), "zone example.org. NOTIFY A OPT"),
        ("two questions with OPT", packet(0x0100, [2, 0, 0, 1], &[QUESTION, QUESTION, opt]), "FORMERR 23"),
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
fn client_subnet_is_validated() {
    for (what, option, passes) in [
        ("192.0.2.0/24", &b"\0\x01\x18\0\xc0\0\x02"[..], true),
        ("192.0.2.128/25", b"\0\x01\x19\0\xc0\0\x02\x80", true),
        ("2001:db8::/32", b"\0\x02\x20\0\x20\x01\x0d\xb8", true),
        ("0.0.0.0/0", b"\0\x01\0\0", true),
        ("::/0", b"\0\x02\0\0", true),
        ("opt-out", b"\0\0\0\0", true),
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
            Verdict::Pass(query) => {
                assert!(passes, "{what}");
                assert_eq!(query.edns.and_then(|edns| edns.client_subnet), Some(option), "{what}");
            }
            Verdict::Zone(_) => panic!("{what}"),
            Verdict::Refuse(refusal) => {
                assert!(!passes, "{what}");
                assert_eq!((refusal.rcode, refusal.opt), (Rcode::FORMERR, Some(true)), "{what}");
            }
            Verdict::Drop => panic!("{what}"),
        }
    }
}

#[test]
fn badvers_in_header_and_opt() {
    let opt_v1: &[u8] = b"\0\0\x29\x04\xd0\0\x01\x80\0\0\0";
    let query = packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt_v1]);
    let Verdict::Refuse(refusal) = accept(&query) else { panic!("not refused") };
    let mut out = Vec::new();
    refusal.write(&mut out);
    assert_eq!(out[..4], [0x12, 0x34, 0x81, 0x00]);
    assert_eq!(out[29..], *b"\0\0\x29\x04\xd0\x01\0\x80\0\0\0");
}

#[test]
fn truncated_packet_is_formerr() {
    let opt: &[u8] = b"\0\0\x29\x04\xd0\0\0\x80\0\x10\0\0\x0c\x0f\xfc\0";
    for query in [packet(0x0100, [1, 0, 0, 0], &[QUESTION]), packet(0x0100, [1, 0, 0, 1], &[QUESTION, opt])] {
        let Verdict::Refuse(refusal) = accept_truncated(&query) else { panic!("not refused") };
        assert_eq!((refusal.rcode, refusal.question), (Rcode::FORMERR, Some(QUESTION)));
        assert_eq!(refusal.opt, (query[11] == 1).then_some(true));
    }
    let query = packet(0x0100, [1, 0, 0, 0], &[QUESTION]);
    assert!(matches!(accept_truncated(&query[..11]), Verdict::Drop));
}

/// All fields of a decision as text.
fn describe(gate: &Verdict<'_>) -> String {
    match gate {
        Verdict::Drop => "drop".into(),
        Verdict::Refuse(refusal) => {
            let mut out = Vec::new();
            refusal.write(&mut out);
            format!("{out:?}")
        }
        Verdict::Zone(ZoneRequest { query, message }) => {
            format!("zone {} {} {:?} {:?} {message:?}", query.id, query.flags.0, query.question, query.edns)
        }
        Verdict::Pass(query) => format!(
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
    fn reused_verdict_keeps_nothing(
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
        let mut gate = Verdict::Drop;
        for packet in &packets {
            gate.read(packet);
            prop_assert_eq!(describe(&gate), describe(&accept(packet)));
        }
    }

    #[test]
    fn options_never_panic(
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
            Verdict::Pass(query) | Verdict::Zone(ZoneRequest { query, .. }) => {
                prop_assert!(query.owned().question() == QUESTION);
            }
            Verdict::Refuse(refusal) => {
                let mut out = Vec::new();
                refusal.write(&mut out);
                prop_assert!(out.len() <= bytes.len(), "a refusal is no amplifier");
                if counts == [1, 0, 0, 1] && cut <= data.len() {
                    prop_assert_eq!(refusal.opt, Some(true));
                }
            }
            Verdict::Drop => prop_assert!(false, "dropped"),
        }
        let _ = accept_truncated(&bytes);
    }

    #[test]
    fn accept_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Verdict::Refuse(refusal) = accept(&bytes) {
            refusal.write(&mut Vec::new());
        }
        let _ = accept_truncated(&bytes);
    }
}
