//! The queries: for every kind of answer of the upstream, in every form, and malformed ones.

use tests::{Ask, header};

use crate::exchange::Query;
use crate::zone::KINDS;

/// All queries for a server block with this zone.
pub(crate) fn full(zone: &str) -> Vec<Query> {
    [kinds(zone), types(zone), flags(zone), edns(zone), streams(zone), broken(zone)].concat()
}

/// All kinds of answers, with and without EDNS, over UDP and TCP.
pub(crate) fn kinds(zone: &str) -> Vec<Query> {
    let mut queries = Vec::new();
    for kind in KINDS {
        let name = under(zone, &format!("{kind}.k"));
        queries.push(udp(kind, &Ask::new(&name, rtype_of(kind))));
        queries.push(udp(&format!("{kind} do"), &Ask::new(&name, rtype_of(kind)).dnssec_ok()));
        queries.push(udp(
            &format!("{kind} edns"),
            &Ask::new(&under(zone, &format!("{kind}.e")), "AAAA").edns(1232),
        ));
        queries.push(tcp(
            &format!("{kind} tcp"),
            &[Ask::new(&under(zone, &format!("{kind}.t")), rtype_of(kind))],
        ));
    }
    for (kind, rtype) in
        [("cname", "CNAME"), ("cname", "TXT"), ("nx", "TXT"), ("nodata", "SOA"), ("dname", "TXT")]
    {
        queries.push(udp(&format!("{kind} {rtype}"), &Ask::new(&under(zone, &format!("{kind}.k")), rtype)));
    }
    queries
}

/// Types and classes, for a name and for the zone's apex.
pub(crate) fn types(zone: &str) -> Vec<Query> {
    let all = [
        "A",
        "AAAA",
        "TXT",
        "MX",
        "SRV",
        "NS",
        "SOA",
        "PTR",
        "HTTPS",
        "SVCB",
        "DS",
        "DNSKEY",
        "NSEC",
        "HINFO",
        "RRSIG",
        "TYPE65400",
        "TYPE0",
        "TYPE41",
        "TYPE249",
        "TYPE250",
        "TYPE253",
        "TYPE254",
        "ANY",
        "AXFR",
        "IXFR",
    ];
    let mut queries = Vec::new();
    for rtype in all {
        queries.push(udp(&format!("type {rtype}"), &Ask::new(&under(zone, "a.types"), rtype)));
        queries.push(tcp(&format!("type {rtype} tcp"), &[Ask::new(&under(zone, "a.streams"), rtype)]));
    }
    for rtype in ["A", "NS", "SOA", "DS", "TXT"] {
        queries.push(udp(&format!("apex {rtype}"), &Ask::new(zone, rtype)));
    }
    for class in [0, 2, 3, 4, 254, 255, 65_000] {
        queries.push(udp(&format!("class {class}"), &Ask::new(&under(zone, "a.classes"), "A").class(class)));
    }
    for name in ["version.bind", "hostname.bind", "id.server"] {
        queries.push(udp(&format!("chaos {name}"), &Ask::new(name, "TXT").class(3)));
    }
    for (what, name) in [
        ("wrong zone", "a.other-zone.invalid"),
        ("root", "."),
        ("top level", "invalid"),
        ("reverse", "1.2.0.192.in-addr.arpa"),
        ("reverse known", "10.113.0.203.in-addr.arpa"),
        ("reverse six", "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"),
        ("localhost", "localhost"),
    ] {
        for rtype in ["A", "PTR", "NS"] {
            queries.push(udp(&format!("{what} {rtype}"), &Ask::new(name, rtype)));
        }
    }
    queries
}

/// The header's flags, and the case of the name.
pub(crate) fn flags(zone: &str) -> Vec<Query> {
    let name = under(zone, "a.flags");
    let mut queries = Vec::new();
    for (what, bit) in [
        ("ra", 0x0080),
        ("z", 0x0040),
        ("ad", 0x0020),
        ("cd", 0x0010),
        ("aa", 0x0400),
        ("tc", 0x0200),
        ("rcode 3", 0x0003),
        ("ad cd", 0x0030),
    ] {
        queries.push(patched(&format!("flag {what}"), &Ask::new(&name, "A"), bit));
        // Also with a name that is not cached.
        let own = under(zone, &format!("signed.{}", what.replace(' ', "-")));
        queries.push(patched(&format!("flag {what} first"), &Ask::new(&own, "A").dnssec_ok(), bit));
    }
    for what in ["odd header", "odd header again"] {
        queries.push(udp(what, &Ask::new(&under(zone, "oddheader.flags"), "A")));
    }
    queries.push(udp("no rd", &Ask::new(&under(zone, "a.no-rd"), "A").rd(false)));
    for name in ["A.FLAGS", "a.FlAgS", "CNAME.Case", "cname.case", "nX.cAsE", "MiXeD.case"] {
        queries.push(udp("case", &Ask::new(&under(zone, name), "A")));
    }
    queries.push(udp("case of the zone", &Ask::new(&under(&zone.to_uppercase(), "a.flags"), "A")));
    for opcode in [1, 2, 4, 5, 6, 15] {
        let query = Ask::new(&under(zone, "a.opcode"), "A").opcode(opcode);
        queries.push(udp(&format!("opcode {opcode}"), &query));
        queries.push(tcp(&format!("opcode {opcode} tcp"), &[query]));
    }
    queries
}

/// All forms of OPT.
pub(crate) fn edns(zone: &str) -> Vec<Query> {
    let mut queries = Vec::new();
    for size in [0, 511, 512, 1231, 1232, 1452, 4096, 65_535] {
        for kind in ["a", "big", "huge"] {
            let name = under(zone, &format!("{kind}.size"));
            queries.push(udp(&format!("{kind} size {size}"), &Ask::new(&name, "TXT").edns(size)));
            // Also with a name that is not cached, so that the upstream receives the size.
            let name = under(zone, &format!("{kind}.size-{size}"));
            queries.push(udp(&format!("{kind} first size {size}"), &Ask::new(&name, "TXT").edns(size)));
        }
    }
    queries.push(udp("big size none", &Ask::new(&under(zone, "big.size"), "TXT")));
    let ask = || Ask::new(&under(zone, "a.edns"), "A");
    queries.push(udp("version 1", &ask().edns_version(1)));
    queries.push(udp("version 255", &ask().edns_version(255).dnssec_ok()));
    queries.push(tcp("version 1 tcp", &[ask().edns_version(1)]));
    queries.push(udp("do", &ask().dnssec_ok()));
    queries.push(udp("do ad cd", &ask().dnssec_ok().ad().cd()));
    let cookie: &[u8] = b"01234567";
    let subnet: &[u8] = &[0, 1, 24, 0, 192, 0, 2];
    for (what, code, data) in [
        ("nsid", 3, &b""[..]),
        ("cookie", 10, cookie),
        ("cookie full", 10, b"0123456701234567"),
        ("cookie short", 10, b"012"),
        ("subnet", 8, subnet),
        ("subnet none", 8, &[0, 1, 0, 0]),
        ("expire", 9, b""),
        ("keepalive", 11, b""),
        ("padding", 12, &[0; 40]),
        ("error", 15, &[0, 0]),
        ("unknown", 65_001, b"what"),
    ] {
        queries.push(udp(what, &ask().option(code, data)));
        queries.push(tcp(&format!("{what} tcp"), &[ask().option(code, data)]));
        // Also with a name that is not cached.
        let own = under(zone, &format!("a.{}", what.replace(' ', "-")));
        queries.push(udp(&format!("{what} first"), &Ask::new(&own, "A").option(code, data)));
    }
    queries.push(udp("nsid of nx", &Ask::new(&under(zone, "nx.edns"), "A").nsid()));
    queries.push(udp("nsid elsewhere", &Ask::new("a.other-zone.invalid", "A").nsid().dnssec_ok()));
    queries
        .push(udp("many options", &ask().nsid().option(10, cookie).option(8, subnet).option(65_001, b"x")));
    queries
}

/// Several queries on one connection.
pub(crate) fn streams(zone: &str) -> Vec<Query> {
    let ask = |name: &str| Ask::new(&under(zone, name), "A");
    let pipeline: Vec<Ask> =
        ["a.p", "nx.p", "cname.p", "a.p", "servfail.p", "nodata.p", "many.p"].map(ask).into();
    let mut queries = vec![tcp("pipeline", &pipeline)];
    queries.push(tcp(
        "pipeline of other zones",
        &[ask("a.p"), Ask::new("a.other-zone.invalid", "A"), ask("a.q")],
    ));
    queries
        .push(tcp("pipeline with edns", &[ask("a.p").edns(1232), ask("a.p").dnssec_ok(), ask("a.p").nsid()]));
    let mut refused = tcp("pipeline with another opcode", &[ask("a.p").opcode(2), ask("a.p")]);
    refused.messages.push(ask("a.q").bytes());
    queries.push(refused);
    queries
}

/// Malformed queries, and barely valid ones.
pub(crate) fn broken(zone: &str) -> Vec<Query> {
    let good = || Ask::new(&under(zone, "a.broken"), "A").bytes();
    let with_opt = || Ask::new(&under(zone, "a.broken"), "A").edns(1232).bytes();
    let count = |at: usize, n: u16, bytes: Vec<u8>| {
        let mut bytes = bytes;
        bytes[at..at + 2].copy_from_slice(&n.to_be_bytes());
        bytes
    };
    let record = |what: &str| tests::record(&format!("{} 5 IN A 192.0.2.1", under(zone, what)));
    let question = |name: &[u8]| [&header(7, 0x0100, [1, 0, 0, 0])[..], name, &[0, 1, 0, 1]].concat();
    let opt: &[u8] = &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    let tsig: &[u8] = &[
        0, 0, 250, 0, 255, 0, 0, 0, 0, 0, 25, 4, b'h', b'm', b'a', b'c', 0, 0, 0, 0, 0, 0, 0, 1, 44, 0, 0, 0,
        7, 0, 0, 0, 3, b'a', b'b', b'c',
    ];
    let mut all: Vec<(String, Vec<u8>)> = vec![
        ("two questions".into(), [&count(4, 2, good())[..], &good()[12..]].concat()),
        ("two questions said".into(), count(4, 2, good())),
        ("no question said".into(), count(4, 0, good())),
        ("no question".into(), header(7, 0x0100, [0, 0, 0, 0])),
        ("65535 questions".into(), count(4, 65_535, good())),
        ("octets after".into(), [&good()[..], b"more"].concat()),
        ("answer in a query".into(), [&count(6, 1, good())[..], &record("x")].concat()),
        ("authority in a query".into(), [&count(8, 1, good())[..], &record("x")].concat()),
        ("additional in a query".into(), [&count(10, 1, good())[..], &record("x")].concat()),
        ("two answers in a query".into(), [&count(6, 2, good())[..], &record("x"), &record("y")].concat()),
        ("two authorities".into(), [&count(8, 2, good())[..], &record("x"), &record("y")].concat()),
        ("three additionals".into(), [&count(10, 3, good())[..], &record("x"), &record("y"), opt].concat()),
        ("record and opt".into(), [&count(10, 2, good())[..], &record("x"), opt].concat()),
        ("opt and record".into(), [&count(10, 2, good())[..], opt, &record("x")].concat()),
        ("tsig".into(), [&count(10, 1, good())[..], tsig].concat()),
        ("opt and tsig".into(), [&count(10, 2, good())[..], opt, tsig].concat()),
        ("counted, not there".into(), count(10, 1, good())),
        ("opt not counted".into(), count(10, 0, with_opt())),
        ("opt too long".into(), {
            let mut bytes = with_opt();
            let length = bytes.len();
            bytes[length - 1] = 9;
            bytes
        }),
        ("option too long".into(), {
            let mut bytes = Ask::new(&under(zone, "a.broken"), "A").option(65_001, b"abcd").bytes();
            let length = bytes.len();
            bytes[length - 5] = 9;
            bytes
        }),
        ("pointer to itself".into(), question(&[0xc0, 12])),
        ("pointer to the header".into(), question(&[1, b'a', 0xc0, 0])),
        ("pointer forward".into(), question(&[1, b'a', 0xc0, 40])),
        ("label of type 1".into(), question(&[0x41, b'a', 0])),
        ("label of type 2".into(), question(&[0x81, b'a', 0])),
        ("label without end".into(), question(&[63, b'a', 0])),
        (
            "name of 256 octets".into(),
            question(&[[&[50_u8][..], &[b'a'; 50]].concat().repeat(5), vec![0]].concat()),
        ),
        (
            "name of 255 octets".into(),
            question(&[[&[1_u8][..], b"a"].concat().repeat(127), vec![0]].concat()),
        ),
        ("odd octets".into(), question(b"\x05a\x00\xff. \x03odd\x04test\x00")),
        ("dot in a label".into(), question(b"\x03a.b\x07invalid\x00")),
        ("oversize".into(), Ask::new(&under(zone, "a.broken"), "A").option(12, &[0; 600]).bytes()),
        ("oversize 4097".into(), Ask::new(&under(zone, "a.broken"), "A").option(12, &[0; 4100]).bytes()),
        ("513 octets after".into(), [&good()[..], &[0; 513]].concat()),
    ];
    let whole = with_opt();
    for cut in [12, 13, 16, whole.len() - 12, whole.len() - 11, whole.len() - 6, whole.len() - 1] {
        all.push((
            format!(
                "cut at {}",
                if cut < 20 { cut.to_string() } else { format!("end - {}", whole.len() - cut) }
            ),
            whole[..cut].to_vec(),
        ));
    }
    let mut queries = Vec::new();
    for (what, bytes) in all {
        queries.push(raw(&what, bytes.clone(), false));
        if bytes.len() < 4097 {
            queries.push(Query { tcp: true, ..raw(&format!("{what} tcp"), bytes, false) });
        }
    }
    let mut reply = good();
    reply[2] |= 0x80;
    queries.push(raw("a reply", reply, true));
    queries.push(raw("eleven octets", good()[..11].to_vec(), true));
    queries.push(raw("one octet", vec![0], true));
    queries
}

/// Two OPT records: CoreDNS forwards them, and an upstream may not answer.
pub(crate) fn two_opt(zone: &str) -> Vec<Query> {
    let opt: &[u8] = &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    let mut bytes = [&Ask::new(&under(zone, "a.broken"), "A").bytes()[..], opt, opt].concat();
    bytes[11] = 2;
    vec![raw("two opt", bytes, false)]
}

/// Queries for one name that plugins distinguish.
pub(crate) fn about(name: &str) -> Vec<Query> {
    let mut queries = Vec::new();
    for rtype in ["A", "AAAA", "TXT", "MX", "SRV", "PTR", "CNAME", "SOA", "ANY"] {
        queries.push(udp(&format!("{name} {rtype}"), &Ask::new(name, rtype)));
        queries.push(udp(&format!("{name} {rtype} do"), &Ask::new(name, rtype).dnssec_ok()));
    }
    queries.push(udp(&format!("{name} no rd"), &Ask::new(name, "A").rd(false)));
    queries.push(udp(&format!("{name} class"), &Ask::new(name, "A").class(3)));
    queries.push(tcp(&format!("{name} tcp"), &[Ask::new(name, "A").edns(1232), Ask::new(name, "TXT")]));
    for option in [0xffee, 0xffef] {
        let ask = Ask::new(name, "TXT").option(option, b"own");
        queries.push(udp(&format!("{name} option {option:#x}"), &ask));
    }
    queries
}

/// The names that `chaos` answers, and similar ones.
pub(crate) fn chaos() -> Vec<Query> {
    let mut queries = Vec::new();
    for name in [
        "version.bind",
        "Version.Server",
        "authors.bind",
        "hostname.bind",
        "id.server",
        "x.version.bind",
        "bind",
    ] {
        for rtype in ["TXT", "A", "ANY"] {
            for class in [1, 3, 255] {
                let ask = Ask::new(name, rtype).class(class);
                queries.push(udp(&format!("chaos {name} {rtype} {class}"), &ask));
                queries.push(udp(&format!("chaos {name} {rtype} {class} do"), &ask.clone().dnssec_ok()));
                queries.push(tcp(&format!("chaos {name} {rtype} {class} tcp"), &[ask.rd(false)]));
            }
        }
    }
    queries
}

/// Names in the hosts file of every setup, and similar ones.
pub(crate) fn hosts() -> Vec<Query> {
    let mut queries = Vec::new();
    for name in [
        "host.example",
        "HOST.Example",
        "upper.example",
        "alias.example",
        "a.stars.example",
        "a.b.stars.example",
        "stars.example",
        "missing.example",
        "example",
        "inline.example",
        "a.other-zone.invalid",
    ] {
        for rtype in ["A", "AAAA", "TXT", "MX", "PTR", "SOA", "ANY", "HTTPS"] {
            queries.push(udp(&format!("hosts {name} {rtype}"), &Ask::new(name, rtype)));
        }
        queries.push(udp(&format!("hosts {name} class"), &Ask::new(name, "A").class(3)));
        queries.push(udp(&format!("hosts {name} do"), &Ask::new(name, "A").dnssec_ok()));
        queries.push(tcp(&format!("hosts {name} tcp"), &[Ask::new(name, "A").edns(1232)]));
    }
    for name in [
        "10.113.0.203.in-addr.arpa",
        "11.113.0.203.in-addr.arpa",
        "99.113.0.203.in-addr.arpa",
        "12.113.0.203.in-addr.arpa",
        "0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa",
        "203.in-addr.arpa",
        "x.10.113.0.203.in-addr.arpa",
    ] {
        for rtype in ["PTR", "A", "TXT"] {
            queries.push(udp(&format!("hosts reverse {name} {rtype}"), &Ask::new(name, rtype)));
        }
    }
    queries
}

/// A few queries of each kind, for setups that differ little from others.
pub(crate) fn short(zone: &str) -> Vec<Query> {
    let mut queries = Vec::new();
    for kind in KINDS {
        queries.push(udp(kind, &Ask::new(&under(zone, &format!("{kind}.k")), rtype_of(kind))));
        queries.push(udp(
            &format!("{kind} do"),
            &Ask::new(&under(zone, &format!("{kind}.k")), "AAAA").dnssec_ok(),
        ));
        queries.push(tcp(
            &format!("{kind} tcp"),
            &[Ask::new(&under(zone, &format!("{kind}.t")), rtype_of(kind)).edns(1232)],
        ));
    }
    for kind in ["big", "huge"] {
        for size in [512, 1232, 4096] {
            let name = under(zone, &format!("{kind}.size"));
            queries.push(udp(&format!("{kind} size {size}"), &Ask::new(&name, "TXT").edns(size)));
        }
    }
    for rtype in ["TXT", "SOA", "NS", "DS", "ANY", "TYPE65400", "HTTPS", "SRV", "CNAME"] {
        queries.push(udp(&format!("type {rtype}"), &Ask::new(&under(zone, "A.Types"), rtype)));
        queries.push(udp(&format!("apex {rtype}"), &Ask::new(zone, rtype)));
        queries.push(udp(&format!("wrong zone {rtype}"), &Ask::new("a.other-zone.invalid", rtype).nsid()));
    }
    queries.push(udp("class 3", &Ask::new(&under(zone, "a.classes"), "A").class(3)));
    queries.push(udp("class 255", &Ask::new(&under(zone, "a.classes"), "A").class(255)));
    queries.push(udp("nsid", &Ask::new(&under(zone, "a.nsid"), "A").nsid()));
    queries.push(udp("cd", &Ask::new(&under(zone, "signed.cd"), "A").dnssec_ok().cd()));
    queries.push(udp("no rd", &Ask::new(&under(zone, "a.no-rd"), "A").rd(false)));
    queries
}

/// A type of which the kind has records.
fn rtype_of(kind: &str) -> &'static str {
    if matches!(kind, "big" | "huge" | "giant") { "TXT" } else { "A" }
}

/// `label.zone`, where the zone may be the root.
pub(crate) fn under(zone: &str, label: &str) -> String {
    format!("{label}.{}", zone.trim_start_matches('.'))
}

/// One query in a datagram.
pub(crate) fn udp(what: &str, ask: &Ask) -> Query {
    raw(what, ask.bytes(), false)
}

/// Queries on one connection.
pub(crate) fn tcp(what: &str, asks: &[Ask]) -> Query {
    let messages = asks.iter().map(Ask::bytes).collect();
    Query { what: what.to_owned(), messages, tcp: true, listener: 0, quiet: false, block: None }
}

fn raw(what: &str, message: Vec<u8>, quiet: bool) -> Query {
    Query { what: what.to_owned(), messages: vec![message], tcp: false, listener: 0, quiet, block: None }
}

fn patched(what: &str, ask: &Ask, bits: u16) -> Query {
    let mut bytes = ask.bytes();
    bytes[2] |= (bits >> 8) as u8;
    bytes[3] |= (bits & 0xff) as u8;
    raw(what, bytes, false)
}
