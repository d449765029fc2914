use super::*;
use crate::read_corefile::tests::{refused, refused_properties};
use crate::testing::{NoReply, Others, packet, read, through};
use proptest::prelude::*;

fn step(text: &str) -> Dns64 {
    let spec = read(text, Dns64Spec::read).unwrap();
    Dns64 { spec, translated: vec![("dns://:53".to_owned(), Arc::new(PerThread::new(1)))] }
}

fn name(text: &str) -> Name {
    Name::from_text(text).unwrap()
}

/// A message: rcode, flags and records, of the answer section unless they begin with `authority` or
/// `additional`.
fn message(text: &str) -> Message {
    let mut parts = text.split("; ");
    let mut words = parts.next().unwrap().split(' ');
    let mut message = Message { flags: Flags::RA | Flags::RD, ..Message::default() };
    message.rcode = match words.next().unwrap() {
        "NXDOMAIN" => Rcode::NXDOMAIN,
        "SERVFAIL" => Rcode::SERVFAIL,
        "REFUSED" => Rcode::REFUSED,
        _ => Rcode::NOERROR,
    };
    for flag in words {
        message.flags |= FLAGS.iter().find(|(name, _)| *name == flag).unwrap().1;
    }
    for record in parts {
        let (section, record) = match record.split_once(' ').unwrap() {
            ("authority", record) => (Section::Authority, record),
            ("additional", record) => (Section::Additional, record),
            _ => (Section::Answer, record),
        };
        message.records.push(zonetext::record(record).unwrap().into_rr(section));
    }
    message
}

/// The reverse of [`message`].
fn text(message: &Message) -> String {
    let mut text = message.rcode.to_string();
    for (name, flag) in FLAGS {
        if message.flags & flag != 0 {
            text += " ";
            text += name;
        }
    }
    for rr in &message.records {
        text += match rr.section {
            Section::Answer => "; ",
            Section::Authority => "; authority ",
            Section::Additional => "; additional ",
        };
        let data = match rr.rtype {
            RType::A => Ipv4Addr::from(<[u8; 4]>::try_from(&*rr.data).unwrap()).to_string(),
            RType::AAAA => Ipv6Addr::from(<[u8; 16]>::try_from(&*rr.data).unwrap()).to_string(),
            RType::CNAME | RType::PTR => rr.target().unwrap().to_string(),
            _ => String::new(),
        };
        text += format!("{} {} IN {} {data}", rr.name(), rr.ttl, rr.rtype).trim_end();
    }
    text
}

const FLAGS: [(&str, u16); 3] = [("aa", Flags::AA), ("tc", Flags::TC), ("ad", Flags::AD)];

/// The result of a query: the reply, or why there is none.
fn result(
    step: &Dns64,
    client: &str,
    packet: &[u8],
    below: &str,
    rtype: RType,
    other: Option<(&str, &str)>,
) -> String {
    let mut others = Others::default();
    if let Some((owner, answer)) = other {
        let result = match answer {
            "fails" => SubqueryResult::Failed(Failure::Overload),
            "dropped" => SubqueryResult::Failed(Failure::Dropped),
            "no zone" => SubqueryResult::Failed(Failure::NoZone),
            _ => SubqueryResult::Answer(Box::new(message(answer))),
        };
        others.0.insert((name(owner), rtype), result);
    }
    match through(step, client, packet, |_| message(below), &mut others).1 {
        Ok(message) => text(&message),
        Err(NoReply::Waits) => format!("waits for {}", others.1.join(", ")),
        Err(NoReply::Fails) => "fails".to_owned(),
        Err(NoReply::Silence) => "silence".to_owned(),
    }
}

/// The table of RFC 6052, section 2.4.
#[test]
fn addresses_of_rfc_6052() {
    for (prefix, expected) in [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
        // Bits after the prefix are ignored.
        ("64:ff9b::c000:201/96", "64:ff9b::192.0.2.33"),
    ] {
        let Dns64Spec { prefix, .. } = step(&format!("dns64 {prefix}")).spec;
        let (v4, v6) = (Ipv4Addr::new(192, 0, 2, 33), expected.parse::<Ipv6Addr>().unwrap());
        assert_eq!(prefix.embed(v4), v6, "{prefix}");
        assert_eq!(prefix.extract(v6), Some(v4), "{prefix}");
        // The reserved byte, and outside of the prefix.
        for other in [v6.to_bits() ^ 1 << 56, v6.to_bits() ^ 1 << 127] {
            assert_eq!(prefix.extract(other.into()), None, "{prefix}");
        }
    }
    assert_eq!(step("dns64").spec.prefix, Prefix::WELL_KNOWN);
    assert_eq!(step("dns64 64:ff9b::/96").spec.prefix, Prefix::WELL_KNOWN);
}

proptest! {
    #[test]
    fn embedded_address_is_extracted(bits in any::<u128>(), length in 0..6_usize, address in any::<u32>(), other in any::<u128>()) {
        let length = [32, 40, 48, 56, 64, 96][length];
        let prefix = Ipv6Addr::from(bits & !(0xff << 56));
        let Dns64Spec { prefix, .. } = step(&format!("dns64 {prefix}/{length}")).spec;
        let address = Ipv4Addr::from(address);
        prop_assert_eq!(prefix.extract(prefix.embed(address)), Some(address));
        if let Some(address) = prefix.extract(other.into()) {
            prop_assert_eq!(prefix.embed(address).to_bits(), other);
        }
    }
}

const ALL: &str = "dns64 {\ntranslate_all\n}";
const SOA: &str = "authority org. 60 IN SOA ns.org. host.org. 1 2 3 4 5";

#[test]
fn aaaa_is_made_of_a() {
    let own = "NOERROR; w.org. 300 IN AAAA 2001:db8::1";
    let mapped = "NOERROR ad; w.org. 300 IN AAAA ::ffff:192.0.2.9";
    let a = "NOERROR aa ad; w.org. 300 IN A 192.0.2.1; w.org. 30 IN A 198.51.100.1; authority org. 9 IN NS ns.org.; additional ns.org. 8 IN A 192.0.2.53";
    let made = |ttl| {
        format!(
            "NOERROR; w.org. {ttl} IN AAAA 64:ff9b::c000:201; w.org. 30 IN AAAA 64:ff9b::c633:6401; authority org. 9 IN NS; additional ns.org. 8 IN A 192.0.2.53"
        )
    };
    let nodata = format!("NOERROR ad; {SOA}");
    let kept = "NOERROR ad; authority org. 60 IN SOA";
    let of_a = "NOERROR; authority org. 60 IN SOA".to_owned();
    let long = "NOERROR; w.org. 9000 IN A 192.0.2.1";
    let made_long = |ttl| format!("NOERROR; w.org. {ttl} IN AAAA 64:ff9b::c000:201");
    let same = |text: &str| text.to_owned();
    for (what, directive, aaaa, answer, expected) in [
        // RFC 6147, section 5.1.7: TTLs.
        ("SOA", "dns64", nodata.as_str(), a, made(60)),
        ("no SOA", "dns64", "NOERROR", a, made(300)),
        ("600 s", "dns64", "NOERROR", long, made_long(600)),
        ("long SOA", "dns64", &nodata.replace(" 60 ", " 1000 "), long, made_long(1000)),
        // Section 5.1.1.
        ("AAAA", "dns64", own, a, same(own)),
        ("all", ALL, own, a, made(300)),
        // Section 5.1.2.
        (
            "NXDOMAIN",
            "dns64",
            &nodata.replace("NOERROR", "NXDOMAIN"),
            a,
            same("NXDOMAIN ad; authority org. 60 IN SOA"),
        ),
        ("NXDOMAIN", ALL, "NXDOMAIN", a, same("NXDOMAIN")),
        ("SERVFAIL", "dns64", "SERVFAIL", a, made(300)),
        ("REFUSED", "dns64", "REFUSED", a, made(300)),
        // Section 5.1.4.
        ("mapped", "dns64", mapped, a, made(300)),
        (
            "one mapped",
            "dns64",
            &format!(
                "{mapped}; w.org. 300 IN AAAA 2001:db8::1; w.org. 300 IN RRSIG AAAA 8 2 300 20300101000000 20200101000000 1 org. AAAA"
            ),
            a,
            same("NOERROR; w.org. 300 IN AAAA 2001:db8::1"),
        ),
        // Section 5.1.5.
        (
            "alias",
            "dns64",
            &format!("NOERROR; w.org. 7 IN CNAME v.org.; {SOA}"),
            "NOERROR; w.org. 7 IN CNAME v.org.; v.org. 8 IN A 192.0.2.1",
            same("NOERROR; w.org. 7 IN CNAME v.org.; v.org. 8 IN AAAA 64:ff9b::c000:201"),
        ),
        // Section 5.1.6, and neither type.
        ("neither", "dns64", &nodata, &nodata.replace("60", "50"), same(kept)),
        ("neither", ALL, &nodata, "NOERROR", same(kept)),
        ("neither", ALL, own, &nodata, of_a.clone()),
        ("neither, mapped", "dns64", mapped, &nodata, of_a),
        ("SERVFAIL of A", "dns64", &nodata, "SERVFAIL", same("SERVFAIL")),
        ("NXDOMAIN of A", "dns64", &nodata, "NXDOMAIN aa", same("NXDOMAIN aa")),
        ("both SERVFAIL", "dns64", "SERVFAIL", "SERVFAIL", same("SERVFAIL")),
        ("no answer", "dns64", &nodata, "fails", same("fails")),
        ("acl drops A", "dns64", &nodata, "dropped", same("fails")),
        // TC.
        ("TC", "dns64", "NOERROR tc", a, same("NOERROR tc")),
        (
            "TC",
            ALL,
            "NOERROR tc",
            "NOERROR tc; w.org. 7 IN A 192.0.2.1",
            "NOERROR tc; w.org. 7 IN AAAA 64:ff9b::c000:201".into(),
        ),
        // Signatures of A do not sign AAAA; that of an alias stays.
        (
            "RRSIG",
            "dns64",
            "NOERROR",
            "NOERROR ad; w.org. 7 IN CNAME v.org.; w.org. 7 IN RRSIG CNAME 8 2 300 20300101000000 20200101000000 1 org. AAAA; v.org. 8 IN A 192.0.2.1; v.org. 8 IN RRSIG A 8 2 300 20300101000000 20200101000000 1 org. AAAA",
            same("NOERROR; w.org. 7 IN CNAME v.org.; w.org. 7 IN RRSIG; v.org. 8 IN AAAA 64:ff9b::c000:201"),
        ),
    ] {
        let step = step(directive);
        let asked = packet("w.org", RType::AAAA);
        let other = Some(("w.org", answer));
        assert_eq!(
            result(&step, "2001:db8::9", &asked, aaaa, RType::A, other),
            expected,
            "{what}, {directive}"
        );
    }
    let pending =
        result(&step("dns64"), "2001:db8::9", &packet("W.org", RType::AAAA), "NOERROR", RType::A, None);
    assert_eq!(pending, "waits for w.org. A");
}

#[test]
fn queries_that_are_translated() {
    let edns = |flags: u8, dnssec_ok: u8| {
        let mut packet = packet("w.org", RType::AAAA);
        (packet[3], packet[11]) = (flags, 1);
        packet.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, dnssec_ok, 0, 0, 0]);
        packet
    };
    let mut other_class = packet("w.org", RType::AAAA);
    *other_class.last_mut().unwrap() = 3;
    let aaaa = packet("w.org", RType::AAAA);
    let v4 = "dns64 {\nallow_ipv4\n}";
    for (what, directive, client, packet, is_translated) in [
        ("IPv6", "dns64", "2001:db8::9", aaaa.clone(), true),
        ("IPv4", "dns64", "192.0.2.9", aaaa.clone(), false),
        ("IPv4, mapped", "dns64", "::ffff:192.0.2.9", aaaa.clone(), false),
        ("IPv4", v4, "192.0.2.9", aaaa.clone(), true),
        ("IPv6", v4, "2001:db8::9", aaaa, true),
        ("A", "dns64", "2001:db8::9", packet("w.org", RType::A), false),
        ("ANY", "dns64", "2001:db8::9", packet("w.org", RType::ANY), false),
        ("CH", "dns64", "2001:db8::9", other_class, false),
        // RFC 6147, section 5.5.
        ("CD", "dns64", "2001:db8::9", edns(0x10, 0), true),
        ("DO", "dns64", "2001:db8::9", edns(0, 0x80), true),
        ("DO and CD", "dns64", "2001:db8::9", edns(0x10, 0x80), false),
        ("DO and CD", ALL, "2001:db8::9", edns(0x10, 0x80), false),
    ] {
        let other = Some(("w.org", "NOERROR; w.org. 7 IN A 192.0.2.1"));
        let found = result(&step(directive), client, &packet, "NOERROR", RType::A, other);
        assert_eq!(found != "NOERROR", is_translated, "{what}, {directive}: {found}");
    }
}

#[test]
fn reverse_names_are_aliases() {
    const IN_ADDR: &str = "1.2.0.192.in-addr.arpa";
    let below = "NXDOMAIN; authority ip6.arpa. 60 IN SOA ns.org. host.org. 1 2 3 4 5";
    let passed = "NXDOMAIN; authority ip6.arpa. 60 IN SOA";
    let reverse = |address: &str| {
        let digits = format!("{:032x}", address.parse::<Ipv6Addr>().unwrap().to_bits());
        digits.chars().rev().map(|digit| format!("{digit}.")).collect::<String>() + "ip6.arpa"
    };
    let ptr = format!("NOERROR aa ad; {IN_ADDR}. 7 IN PTR w.org.");
    let alias = |address: &str| {
        format!("NOERROR; {0}. 7 IN CNAME {IN_ADDR}.; {IN_ADDR}. 7 IN PTR w.org.", reverse(address))
    };
    let own = "2001:db8:c000:201::";
    let known = "64:ff9b::c000:201";
    for (what, address, answer, expected) in [
        ("own", own, ptr.as_str(), alias(own)),
        ("well-known", known, &ptr, alias(known)),
        ("with a suffix", "2001:db8:c000:201::1", &ptr, passed.to_owned()),
        ("another", "2001:db9:c000:201::", &ptr, passed.to_owned()),
        (
            "a classless zone",
            known,
            &format!(
                "NOERROR; {IN_ADDR}. 9 IN CNAME 1.0-24.2.0.192.in-addr.arpa.; 1.0-24.2.0.192.in-addr.arpa. 7 IN PTR w.org."
            ),
            format!(
                "NOERROR; {}. 7 IN CNAME {IN_ADDR}.; {IN_ADDR}. 9 IN CNAME 1.0-24.2.0.192.in-addr.arpa.; 1.0-24.2.0.192.in-addr.arpa. 7 IN PTR w.org.",
                reverse(known)
            ),
        ),
        ("no PTR", known, "NOERROR", passed.to_owned()),
        ("no name", known, "NXDOMAIN", passed.to_owned()),
        ("no block", known, "no zone", passed.to_owned()),
        ("failure", known, "fails", "fails".to_owned()),
        ("failure of an upstream", known, "SERVFAIL", "SERVFAIL".to_owned()),
        ("dropped", known, "dropped", "silence".to_owned()),
        ("cut off", known, "NOERROR tc", format!("NOERROR tc; {}. 0 IN CNAME {IN_ADDR}.", reverse(known))),
    ] {
        let asked = packet(&reverse(address), RType::PTR);
        let found = result(
            &step("dns64 2001:db8::/32"),
            "2001:db8::9",
            &asked,
            below,
            RType::PTR,
            Some((IN_ADDR, answer)),
        );
        assert_eq!(found, expected, "{what}");
    }
    let asked = packet(&reverse(known), RType::PTR);
    let found = result(&step("dns64"), "192.0.2.9", &asked, below, RType::PTR, Some((IN_ADDR, &ptr)));
    assert_eq!(found, passed, "over IPv4");
    let asked = packet(&reverse(known), RType::TXT);
    let found = result(&step("dns64"), "2001:db8::9", &asked, below, RType::PTR, Some((IN_ADDR, &ptr)));
    assert_eq!(found, passed, "another type");
}

#[test]
fn explain_names_the_effect() {
    let reverse = "1.0.2.0.0.0.0.c.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.b.9.f.f.4.6.0.0.ip6.arpa";
    let (v4, v6) = (Some("192.0.2.9"), Some("2001:db8::9"));
    let without = "without AAAA records, AAAA records in 64:ff9b::/96 are made of A records";
    for (directive, name, rtype, client, expected) in [
        ("dns64", "w.org", RType::AAAA, v6, without.to_owned()),
        ("dns64", "w.org", RType::AAAA, None, format!("for clients over IPv6: {without}")),
        ("dns64", "w.org", RType::AAAA, v4, String::new()),
        ("dns64 {\nallow_ipv4\n}", "w.org", RType::AAAA, v4, without.to_owned()),
        ("dns64", "w.org", RType::A, v6, String::new()),
        (
            ALL,
            "w.org",
            RType::AAAA,
            v6,
            "AAAA records in 64:ff9b::/96 are made of A records; others are omitted".into(),
        ),
        (
            "dns64",
            reverse,
            RType::PTR,
            v6,
            "a CNAME to 1.2.0.192.in-addr.arpa. is the answer if that name has a PTR record".into(),
        ),
    ] {
        let packet = packet(name, rtype);
        let wire::Verdict::Pass(query) = wire::accept(&packet) else { panic!("refused") };
        let mut effective = EffectiveQuery::new(&query, "dns://:53", false);
        let explained = step(directive).explain(&mut effective, client.map(|client| client.parse().unwrap()));
        assert_eq!(
            explained,
            Explanation::Passes(Some(expected).filter(|text| !text.is_empty())),
            "{directive} {name}"
        );
    }
}

#[test]
fn bad_words_are_refused() {
    let expected = prefix::EXPECTED;
    for word in ["64:ff9b::/95", "64:ff9b::", "192.0.2.0/24", "x", "2001:db8:0:0:100::/96", "::/0"] {
        refused(&[(&format!("dns64 {word}"), &format!("2:7: plugin/dns64: {word:?} is not {expected}"))]);
    }
    refused(&[(
        "dns64 ::/64 x",
        "2:13: plugin/dns64: unexpected argument \"x\"; `dns64` needs at most one prefix",
    )]);
    refused_properties(
        "dns64",
        &[
            ("prefix", &format!("1: plugin/dns64: `prefix` needs {expected}")),
            ("prefix ::/63", &format!("8: plugin/dns64: \"::/63\" is not {expected}")),
            (
                "translate_all x",
                "15: plugin/dns64: unexpected argument \"x\"; `translate_all` needs no argument",
            ),
            (
                "other",
                "1: plugin/dns64: unknown property \"other\"; expected prefix, translate_all, allow_ipv4",
            ),
        ],
    );
}
