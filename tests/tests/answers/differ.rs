//! Compares two replies to the same query.

use std::collections::BTreeMap;

use tests::{Message, Record};

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Its kind: a constant of a word or two, such as `flag aa` or `answer ttl`.
    pub(crate) what: &'static str,
    /// CoreDNS's value.
    pub(crate) theirs: String,
    /// localdns's value.
    pub(crate) ours: String,
}

/// Both replies, decoded.
#[derive(Debug, Default)]
pub(crate) struct Both {
    /// CoreDNS's; `None` without a reply.
    pub(crate) theirs: Option<Message>,
    /// localdns's; `None` without a reply.
    pub(crate) ours: Option<Message>,
}

/// Compares two encoded replies; `ports` are the clients' ports, which whoami returns.
pub(crate) fn compare(
    theirs: Option<&[u8]>,
    ours: Option<&[u8]>,
    ports: [u16; 2],
) -> (Both, Vec<Difference>) {
    let mut found = Differences::default();
    let (theirs, ours) = match (theirs, ours) {
        (None, None) => return (Both::default(), Vec::new()),
        (Some(theirs), Some(ours)) => (theirs, ours),
        (theirs, ours) => {
            let shown_or_silence = |reply: Option<&[u8]>| reply.map_or_else(|| "silence".to_owned(), shown);
            found.add("reply", shown_or_silence(theirs), shown_or_silence(ours));
            let decoded = |reply: Option<&[u8]>| reply.and_then(|reply| Message::decode(reply).ok());
            return (Both { theirs: decoded(theirs), ours: decoded(ours) }, found.all);
        }
    };
    match (Message::decode(theirs), Message::decode(ours)) {
        (Ok(theirs), Ok(ours)) => {
            messages(&theirs, &ours, ports, &mut found);
            (Both { theirs: Some(theirs), ours: Some(ours) }, found.all)
        }
        _ => {
            if theirs != ours {
                found.add("form", shown(theirs), shown(ours));
            }
            (Both::default(), found.all)
        }
    }
}

#[derive(Default)]
struct Differences {
    all: Vec<Difference>,
}

impl Differences {
    fn add(&mut self, what: &'static str, theirs: String, ours: String) {
        self.all.push(Difference { what, theirs, ours });
    }

    fn check<T: PartialEq + std::fmt::Debug>(&mut self, what: &'static str, theirs: T, ours: T) {
        if theirs != ours {
            self.add(what, format!("{theirs:?}"), format!("{ours:?}"));
        }
    }
}

fn messages(theirs: &Message, ours: &Message, ports: [u16; 2], found: &mut Differences) {
    found.check("id", theirs.id, ours.id);
    found.check("opcode", theirs.flags >> 11 & 0xf, ours.flags >> 11 & 0xf);
    for (bit, what) in FLAGS {
        found.check(what, theirs.flags & bit != 0, ours.flags & bit != 0);
    }
    found.check("rcode", theirs.rcode(), ours.rcode());
    match (&theirs.question, &ours.question) {
        (Some(theirs), Some(ours)) => {
            found.check("question case", &theirs.name, &ours.name);
            found.check("question", (theirs.rtype, theirs.class), (ours.rtype, ours.class));
        }
        (theirs, ours) => found.check("question", theirs.is_some(), ours.is_some()),
    }
    let sections = [
        (["answer", "answer order", "answer ttl", "answer case"], &theirs.answers, &ours.answers),
        (
            ["authority", "authority order", "authority ttl", "authority case"],
            &theirs.authorities,
            &ours.authorities,
        ),
        (
            ["additional", "additional order", "additional ttl", "additional case"],
            &theirs.additionals,
            &ours.additionals,
        ),
    ];
    for (what, theirs, ours) in sections {
        section(what, theirs, ours, ports, found);
    }
    match (&theirs.edns, &ours.edns) {
        (Some(theirs), Some(ours)) => {
            found.check("opt size", theirs.size, ours.size);
            found.check("opt version", theirs.version, ours.version);
            found.check("opt do", theirs.dnssec_ok, ours.dnssec_ok);
            found.check("opt options", &theirs.options, &ours.options);
        }
        (theirs, ours) => found.check("opt", theirs.as_ref(), ours.as_ref()),
    }
}

/// Compares the sets of records of a section, then the order, TTLs and owner case of common
/// records.
fn section(
    what: [&'static str; 4],
    theirs: &[Record],
    ours: &[Record],
    ports: [u16; 2],
    found: &mut Differences,
) {
    let keys = |records: &[Record], port| records.iter().map(|record| key(record, port)).collect::<Vec<_>>();
    let (their_keys, our_keys) = (keys(theirs, ports[0]), keys(ours, ports[1]));
    let sorted = |keys: &[String]| {
        let mut keys = keys.to_vec();
        keys.sort();
        keys
    };
    if sorted(&their_keys) != sorted(&our_keys) {
        let only = |these: &[String], those: &[String]| {
            let mut left = those.to_vec();
            let mut only = Vec::new();
            for key in these {
                match left.iter().position(|other| other == key) {
                    Some(at) => drop(left.swap_remove(at)),
                    None => only.push(key.clone()),
                }
            }
            only.join(" | ")
        };
        found.add(what[0], only(&their_keys, &our_keys), only(&our_keys, &their_keys));
        return;
    }
    found.check(what[1], &their_keys, &our_keys);
    let by_key = |keys: &[String], records: &[Record]| {
        keys.iter().cloned().zip(records.iter().cloned()).collect::<BTreeMap<String, Record>>()
    };
    let (theirs, ours) = (by_key(&their_keys, theirs), by_key(&our_keys, ours));
    let ttls = theirs.iter().filter(|(key, record)| record.ttl.abs_diff(ours[*key].ttl) > 1);
    if ttls.count() > 0 {
        let shown = |records: &BTreeMap<String, Record>| {
            records.values().map(|record| record.ttl).collect::<Vec<_>>()
        };
        found.check(what[2], shown(&theirs), shown(&ours));
    }
    let owners = |records: &BTreeMap<String, Record>| {
        records.values().map(|record| record.name.clone()).collect::<Vec<_>>()
    };
    found.check(what[3], owners(&theirs), owners(&ours));
}

/// Returns a record as text, without TTL and in lower case.
fn key(record: &Record, port: u16) -> String {
    let mut data = record.data.clone();
    if record.rtype == 33 {
        data = data.replace(&format!(" {port} "), " PORT ");
    }
    // The serial of a cluster's zone or of a `k8s_external` zone is the time of the last change
    // that the server received.
    if record.rtype == 6 && ["ns.dns.", "ns1."].iter().any(|server| data.starts_with(server)) {
        let serial = |(at, word)| if at == 2 { "SERIAL" } else { word };
        data = data.split(' ').enumerate().map(serial).collect::<Vec<_>>().join(" ");
    }
    format!("{} {} {} {}", record.name, record.class, tests::rtype_name(record.rtype), data)
        .to_ascii_lowercase()
}

fn shown(octets: &[u8]) -> String {
    let short: String = octets.iter().take(60).map(|octet| format!("{octet:02x}")).collect();
    format!("{} octets {short}", octets.len())
}

const FLAGS: [(u16, &str); 8] = [
    (0x0040, "flag z"),
    (0x8000, "flag qr"),
    (0x0400, "flag aa"),
    (0x0200, "flag tc"),
    (0x0100, "flag rd"),
    (0x0080, "flag ra"),
    (0x0020, "flag ad"),
    (0x0010, "flag cd"),
];
