//! Compares the table with a model built of maps, for generated texts, and its answers with a
//! second DNS parser.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::op::Message;
use hickory_proto::rr::RData;
use proptest::prelude::*;
use wire::{Flags, Name, RType, Records, Reply, Verdict, accept};

use crate::{Found, HostsText, LineError, Options, Report, Table};

/// A generated line of hosts text.
#[derive(Debug, Clone)]
enum Line {
    Entry { address: IpAddr, written: String, names: Vec<SpelledName>, comment: bool },
    Blank(&'static str),
    Bad(&'static str),
}

/// A name in the model, and its spelling in the text.
#[derive(Debug, Clone)]
struct SpelledName {
    name: String,
    text: String,
}

#[derive(Default)]
struct Model {
    names: BTreeMap<String, Vec<IpAddr>>,
    addresses: BTreeMap<IpAddr, Vec<String>>,
    entries: usize,
}

impl Model {
    fn build(lines: &[Line], zone: &str, reverse: bool) -> Self {
        let mut model = Self::default();
        for line in lines {
            let Line::Entry { address, names, .. } = line else { continue };
            for SpelledName { name, .. } in names {
                if zone != "." && name != zone && !name.ends_with(&format!(".{zone}")) {
                    continue;
                }
                let addresses = model.names.entry(name.clone()).or_default();
                if !addresses.contains(address) {
                    addresses.push(*address);
                }
                model.entries += 1;
                if reverse && !name.starts_with("*.") {
                    let names = model.addresses.entry(*address).or_default();
                    if !names.contains(name) {
                        names.push(name.clone());
                    }
                    model.entries += 1;
                }
            }
        }
        model
    }

    fn lookup(&self, qname: &str, rtype: RType) -> Option<Vec<String>> {
        let of_type = |addresses: &Vec<IpAddr>| -> Vec<String> {
            let wanted = addresses.iter().filter(|address| match rtype {
                RType::A => address.is_ipv4(),
                RType::AAAA => address.is_ipv6(),
                _ => false,
            });
            wanted.map(ToString::to_string).collect()
        };
        let parent = qname.split_once('.').map(|(_, parent)| parent).filter(|_| qname != ".");
        let wildcard = parent.map(|parent| format!("*.{parent}"));
        let exact = self.names.get(qname).filter(|_| !qname.starts_with("*."));
        let wild = wildcard.and_then(|key| self.names.get(&key));
        let sets = [exact, wild].map(|found| found.map(of_type));
        sets.iter().flatten().find(|set| !set.is_empty()).or_else(|| sets.iter().flatten().next()).cloned()
    }
}

fn found(table: &Table, qname: &str, rtype: RType) -> Option<Vec<String>> {
    match table.lookup(&Name::from_text(qname).unwrap(), rtype) {
        Found::Absent => None,
        Found::NoData => Some(Vec::new()),
        Found::Ready { body, count } => {
            let data = Records::new(body, 0, [count, 0, 0]).map(|record| {
                let record = record.unwrap();
                assert_eq!((record.rtype, record.ttl), (rtype, 30));
                let data = record.data(body);
                match rtype {
                    RType::A => Ipv4Addr::from(*data.as_array::<4>().unwrap()).to_string(),
                    RType::AAAA => Ipv6Addr::from(*data.as_array::<16>().unwrap()).to_string(),
                    _ => Name::from_wire(data).unwrap().to_string(),
                }
            });
            Some(data.collect())
        }
    }
}

fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa.")
        }
        IpAddr::V6(v6) => {
            let digits = format!("{:032x}", v6.to_bits());
            digits.chars().rev().map(|digit| format!("{digit}.")).collect::<String>() + "ip6.arpa."
        }
    }
}

fn render(lines: &[Line], ending: &str) -> String {
    let mut text = String::new();
    for line in lines {
        match line {
            Line::Entry { written, names, comment, .. } => {
                text += written;
                for (index, SpelledName { text: name, .. }) in names.iter().enumerate() {
                    text += ["\t", " ", " \t "][index % 3];
                    text += name;
                }
                text += if *comment { " # 192.0.2.1 comment" } else { "" };
            }
            Line::Blank(line) | Line::Bad(line) => text += line,
        }
        text += ending;
    }
    text
}

fn names() -> Vec<String> {
    let mut names = vec![".".to_owned()];
    for name in ["a", "b", "*", "org", "example"] {
        names.push(format!("{name}."));
        for parent in ["example.", "org.", "sub.example."] {
            names.push(format!("{name}.{parent}"));
        }
    }
    names
}

fn written_name() -> impl Strategy<Value = SpelledName> {
    (prop::sample::select(names()), any::<bool>(), any::<bool>()).prop_map(|(name, upper, dot)| {
        let mut text = if upper { name.to_uppercase() } else { name.clone() };
        if !dot && name != "." {
            text.pop();
        }
        SpelledName { name, text }
    })
}

fn written_address() -> impl Strategy<Value = (IpAddr, String)> {
    prop::sample::select(vec![
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1", "::ffff:192.0.2.1"),
        ("192.0.2.1", "192.0.2.1%eth0"),
        ("192.0.2.2", "192.0.2.2"),
        ("0.0.0.0", "0.0.0.0"),
        ("::1", "::1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::1", "FE80::1%eth0"),
    ])
    .prop_map(|(address, written)| (address.parse().unwrap(), written.to_owned()))
}

fn line() -> impl Strategy<Value = Line> {
    prop_oneof![
        8 => (written_address(), prop::collection::vec(written_name(), 1..4), any::<bool>()).prop_map(
            |((address, written), names, comment)| Line::Entry { address, written, names, comment }
        ),
        1 => prop::sample::select(vec!["", "   ", "# comment", "\t#"]).prop_map(Line::Blank),
        1 => prop::sample::select(vec!["192.0.2 a.example", "192.0.2.1", "example 192.0.2.1", "::1 a..b"])
            .prop_map(Line::Bad),
    ]
}

proptest! {
    #[test]
    fn table_equals_model(
        file in prop::collection::vec(line(), 0..30),
        inline in prop::collection::vec(line(), 0..5),
        ending in prop::sample::select(vec!["\n", "\r\n"]),
        zone in prop::sample::select(vec![".", "example.", "sub.example."]),
        reverse in any::<bool>(),
    ) {
        let texts = [&file, &inline].map(|lines| render(lines, ending));
        let sources = [("file", &texts[0]), ("inline", &texts[1])];
        let sources = sources.map(|(name, text)| HostsText { name, text: text.as_bytes() });
        let options = Options { ttl: 30, zones: vec![Name::from_text(zone).unwrap()], reverse };
        let (table, report) = Table::build(&sources, &options, &mut || {});

        let lines = [file, inline].concat();
        let model = Model::build(&lines, zone, reverse);
        prop_assert_eq!(table.entries(), model.entries);
        prop_assert_eq!(report.bad_count, lines.iter().filter(|line| matches!(line, Line::Bad(_))).count());
        for qname in names().iter().map(String::as_str).chain(["x.example.", "x.y.example.", "x.org."]) {
            for rtype in [RType::A, RType::AAAA, RType::TXT] {
                prop_assert_eq!(found(&table, qname, rtype), model.lookup(qname, rtype), "{} {}", qname, rtype);
            }
            prop_assert_eq!(found(&table, qname, RType::PTR), None);
        }
        for address in ["192.0.2.1", "192.0.2.2", "192.0.2.3", "0.0.0.0", "::1", "fe80::1", "::2"] {
            let address = address.parse().unwrap();
            let qname = reverse_name(address);
            prop_assert_eq!(found(&table, &qname, RType::PTR), model.addresses.get(&address).cloned(), "{}", qname);
            prop_assert_eq!(found(&table, &qname, RType::A), None);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        text in prop::collection::vec(
            prop_oneof![
                any::<u8>(),
                prop::sample::select(b"\n\n \t\r#%*.:0123abf\\\xff".as_slice()),
            ],
            0..2000,
        ),
        repeat in 1usize..4,
    ) {
        let text = [b"192.0.2.1 ".as_slice(), &text].concat().repeat(repeat);
        let options = Options { ttl: u32::MAX, zones: vec![Name::ROOT], reverse: true };
        let (table, report) = Table::build(&[HostsText { name: "hosts", text: &text }], &options, &mut || {});
        prop_assert!(report.bad_lines.len() <= 10 && report.bad_lines.len() <= report.bad_count);
        let reverse = Name::from_text("1.2.0.192.in-addr.arpa").unwrap();
        let names = table.lookup(&reverse, RType::PTR);
        if let Found::Ready { body, count } = names {
            for record in Records::new(body, 0, [count, 0, 0]) {
                let pointed = Name::from_wire(record.unwrap().data(body)).unwrap();
                prop_assert_ne!(table.lookup(&pointed, RType::A), Found::Absent);
            }
        }
    }
}

#[test]
fn hickory_parses_the_reply() {
    let text = b"192.0.2.1 www.Example.org alias.example.org\n2001:db8::1 www.example.org\n192.0.2.2 www.example.org";
    let options = Options { ttl: 5, zones: vec![Name::from_text("example.org").unwrap()], reverse: true };
    let (table, report) = Table::build(&[HostsText { name: "hosts", text }], &options, &mut || {});
    assert_eq!(report, Report::default());
    for (qname, rtype, want) in [
        ("wWw.example.org", RType::A, &["192.0.2.1", "192.0.2.2"][..]),
        ("www.example.org", RType::AAAA, &["2001:db8::1"]),
        ("1.2.0.192.in-addr.arpa", RType::PTR, &["www.example.org.", "alias.example.org."]),
    ] {
        let mut packet = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0".to_vec();
        for label in qname.split('.') {
            packet.push(label.len() as u8);
            packet.extend_from_slice(label.as_bytes());
        }
        packet.push(0);
        packet.extend_from_slice(&rtype.0.to_be_bytes());
        packet.extend_from_slice(&[0, 1]);
        let Verdict::Pass(query) = accept(&packet) else { panic!("refused") };
        let Found::Ready { body, count } = table.lookup(&query.name, query.rtype) else {
            panic!("not found")
        };

        let mut out = Vec::new();
        let mut reply = Reply::start(&mut out, &query);
        reply.flags = Flags::AA;
        reply.push_ready(body, [count, 0, 0]);
        reply.finish(&query, 512);
        let message = Message::from_vec(&out).unwrap();
        assert!(message.authoritative && !message.truncation);
        let mut got = Vec::new();
        for record in &message.answers {
            assert_eq!((record.name.to_ascii(), record.ttl), (format!("{qname}."), 5));
            got.push(match &record.data {
                RData::A(a) => a.0.to_string(),
                RData::AAAA(aaaa) => aaaa.0.to_string(),
                RData::PTR(ptr) => ptr.0.to_ascii(),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(got, want);
    }
}

#[test]
fn largest_set_fits_a_message() {
    let long = format!("{}{}", "a.".repeat(126), "a");
    let text: String = (0..5000).map(|n| format!("{} *.{}\n", Ipv4Addr::from(n), &long[2..])).collect();
    let options = Options { ttl: 5, zones: vec![Name::ROOT], reverse: true };
    let (table, report) =
        Table::build(&[HostsText { name: "hosts", text: text.as_bytes() }], &options, &mut || {});
    assert_eq!(report.bad_lines[0].error, LineError::FullSet(RType::A));
    let name = Name::from_text(&long).unwrap();
    let Found::Ready { body, count } = table.lookup(&name, RType::A) else { panic!("not found") };
    let question = name.as_wire().len() + 4;
    let (whole, opt) = (12 + question + body.len(), 11);
    assert_eq!(question, 259);
    assert!(whole + opt <= 65_535 && whole + opt + 16 > 65_535, "{whole}");
    assert_eq!(usize::from(count) * 16, body.len());
}
