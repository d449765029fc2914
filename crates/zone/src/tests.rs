//! Answers and errors by rows.

use wire::{Flags, Message, Name, Packed, Query, RType, Rcode, Reply, Rr, Section, Verdict, accept};

use crate::{Answered, Files, Limits, LoadError, Loaded, Loop, Zone, load};

pub(crate) fn name(text: &str) -> Name {
    Name::from_text(text).unwrap()
}

/// Files of `$INCLUDE` by name.
pub(crate) struct Texts<'t>(pub(crate) &'t [(&'t str, &'t str)]);

impl Files for Texts<'_> {
    fn include(&mut self, _: &str, path: &[u8]) -> Result<(String, Vec<u8>), String> {
        let path = String::from_utf8_lossy(path).into_owned();
        let found = self.0.iter().find(|(name, _)| *name == path);
        found.map(|(_, text)| (path, text.as_bytes().to_vec())).ok_or_else(|| "no such file".to_owned())
    }
}

pub(crate) fn read(text: &str) -> Result<Loaded, LoadError> {
    load(&name("example.org"), "db", text.as_bytes(), &mut Texts(&[]))
}

pub(crate) fn zone(text: &str) -> Zone {
    read(text).unwrap_or_else(|error| panic!("{error}")).zone
}

/// A query packet; with `dnssec_ok` it has an OPT with DO.
pub(crate) fn packet(name: &Name, rtype: RType, dnssec_ok: bool) -> Vec<u8> {
    let mut packet = b"\0\x07\0\0\0\x01\0\0\0\0\0\0".to_vec();
    packet[11] = u8::from(dnssec_ok);
    packet.extend_from_slice(name.as_wire());
    packet.extend_from_slice(&rtype.0.to_be_bytes());
    packet.extend_from_slice(&[0, 1]);
    if dnssec_ok {
        packet.extend_from_slice(b"\0\0\x29\x10\0\0\0\x80\0\0\0");
    }
    packet
}

const LIMITS: Limits = Limits { octets: 65_000, all_of_any: true };

pub(crate) fn ask_with(zone: &Zone, packet: &[u8], limits: Limits) -> (Result<Answered, Loop>, Message) {
    let Verdict::Pass(query) = accept(packet) else { panic!("refused") };
    answer_to(zone, &query, limits)
}

fn answer_to(zone: &Zone, query: &Query<'_>, limits: Limits) -> (Result<Answered, Loop>, Message) {
    let mut out = Vec::new();
    let mut reply = Reply::start(&mut out, query);
    let answered = zone.answer(query, limits, &mut reply);
    let message = Packed::new(query, &reply).message(u16::MAX).unwrap();
    (answered, message)
}

pub(crate) fn ask(
    zone: &Zone,
    owner: &str,
    rtype: RType,
    dnssec_ok: bool,
) -> (Result<Answered, Loop>, Message) {
    ask_with(zone, &packet(&name(owner), rtype, dnssec_ok), LIMITS)
}

/// `SECTION OWNER TTL TYPE DATA`, without the zone's name.
fn shown(rr: &Rr) -> String {
    let (section, data) = (&["an", "ns", "ad"][rr.section as usize], &rr.data[..]);
    let of =
        |data: &[u8]| Name::read_plain(data, 0).map_or_else(|_| "?".to_owned(), |(name, _)| name.to_string());
    let data = match rr.rtype {
        RType::A => data.iter().map(u8::to_string).collect::<Vec<_>>().join("."),
        RType::NS | RType::CNAME | RType::DNAME | RType::NSEC | RType::SOA => of(data),
        RType::MX => of(&data[2..]),
        RType::SRV => of(&data[6..]),
        RType::RRSIG => RType(u16::from_be_bytes([data[0], data[1]])).to_string(),
        _ => String::from_utf8_lossy(data.get(1..).unwrap_or_default()).into_owned(),
    };
    format!("{section} {} {} {} {data}", rr.name(), rr.ttl, rr.rtype)
        .replace("example.org.", "@")
        .replace(".@", "")
}

/// Rcode, AA and TC, and the records.
fn answer(zone: &Zone, owner: &str, rtype: RType, dnssec_ok: bool) -> String {
    let full = if owner.ends_with('.') { owner.to_owned() } else { format!("{owner}.example.org") };
    let (answered, message) =
        ask(zone, full.trim_start_matches('@').trim_start_matches('.'), rtype, dnssec_ok);
    let Ok(_) = answered else { return "loop".to_owned() };
    let mut lines = vec![message.rcode.to_string()];
    lines.extend((message.flags & Flags::AA != 0).then(|| "AA".to_owned()));
    lines.extend((message.flags & Flags::TC != 0).then(|| "TC".to_owned()));
    lines.extend(message.records.iter().map(shown));
    lines.join(" | ")
}

const PLAIN: &str = r#"
$TTL 1h
@        7200 IN SOA ns hostmaster 2026112901 2h 1h 2w 300
@             NS  ns
              NS  ns.other.net.
ns            A   192.0.2.1
www      60   A   192.0.2.2
              A   192.0.2.3
              A   192.0.2.2
WWW      IN 60 TXT "one" ; a comment
alias         CNAME www
chain         CNAME alias
dangling      CNAME nothing
nodata        CNAME ns
out           CNAME www.other.net.
self          CNAME self
ping          CNAME pong
pong          CNAME ping
mail          MX  10 ns
              MX  20 ns
              MX  30 mx.other.net.
*.wild        A   192.0.2.9
a.b.wild      TXT "x"
*.star        CNAME www
*.ent.wc      TXT "deep"
x.*.empty     TXT "below a star"
sub           NS  ns.sub
              NS  ns.twin
sub           DS  1 8 2 ( 0123456789ABCDEF0123456789ABCDEF
                          0123456789ABCDEF0123456789ABCDEF )
ns.sub        A   192.0.2.53
hidden.sub    TXT "hidden"
twin          NS  ns.twin
ns.twin       A   192.0.2.54
to-sub        CNAME a.sub
old           DNAME new
b.old         TXT "hidden"
www.new       A   192.0.2.4
loopd         DNAME loopd
text          TXT "a" "b"
$ORIGIN deep.example.org.
one           A   192.0.2.5
$GENERATE 1-3 g$ A 192.0.2.${10,1,d}
"#;

/// Every rule of RFC 1034, section 4.3.2, with the names of RFC 4592 and RFC 6672.
#[test]
fn answers_by_rows() {
    let zone = zone(PLAIN);
    const NS: &str = "ns @ 3600 NS ns | ns @ 3600 NS ns.other.net.";
    const SOA: &str = "ns @ 300 SOA ns";
    let rows: &[(&str, RType, &str)] = &[
        ("www", RType::A, "NOERROR | AA | an www 60 A 192.0.2.2 | an www 60 A 192.0.2.3 | {NS}"),
        ("www", RType::TXT, "NOERROR | AA | an www 60 TXT one | {NS}"),
        ("www", RType::AAAA, "NOERROR | AA | {SOA}"),
        ("nx", RType::A, "NXDOMAIN | AA | {SOA}"),
        ("a.www", RType::A, "NXDOMAIN | AA | {SOA}"),
        ("deep", RType::A, "NOERROR | AA | {SOA}"),
        ("one.deep", RType::A, "NOERROR | AA | an one.deep 3600 A 192.0.2.5 | {NS}"),
        ("g2.deep", RType::A, "NOERROR | AA | an g2.deep 3600 A 192.0.2.12 | {NS}"),
        ("g4.deep", RType::A, "NXDOMAIN | AA | {SOA}"),
        ("example.org.", RType::SOA, "NOERROR | AA | an @ 7200 SOA ns | {NS}"),
        (
            "example.org.",
            RType::NS,
            "NOERROR | AA | an @ 3600 NS ns | an @ 3600 NS ns.other.net. | ad ns 3600 A 192.0.2.1",
        ),
        (
            "alias",
            RType::A,
            "NOERROR | AA | an alias 3600 CNAME www | an www 60 A 192.0.2.2 | an www 60 A 192.0.2.3 | {NS}",
        ),
        ("alias", RType::CNAME, "NOERROR | AA | an alias 3600 CNAME www | {NS}"),
        (
            "chain",
            RType::TXT,
            "NOERROR | AA | an chain 3600 CNAME alias | an alias 3600 CNAME www | an www 60 TXT one | {NS}",
        ),
        ("dangling", RType::A, "NXDOMAIN | AA | an dangling 3600 CNAME nothing | {SOA}"),
        ("nodata", RType::TXT, "NOERROR | AA | an nodata 3600 CNAME ns | {SOA}"),
        ("out", RType::A, "NOERROR | AA | an out 3600 CNAME www.other.net. | {NS}"),
        ("self", RType::A, "loop"),
        (
            "mail",
            RType::MX,
            "NOERROR | AA | an mail 3600 MX ns | an mail 3600 MX ns | an mail 3600 MX mx.other.net. | {NS} | ad ns 3600 A 192.0.2.1",
        ),
        ("q.wild", RType::A, "NOERROR | AA | an q.wild 3600 A 192.0.2.9 | {NS}"),
        ("p.q.wild", RType::A, "NOERROR | AA | an p.q.wild 3600 A 192.0.2.9 | {NS}"),
        ("q.wild", RType::TXT, "NOERROR | AA | {SOA}"),
        ("b.wild", RType::A, "NOERROR | AA | {SOA}"),
        ("c.b.wild", RType::A, "NXDOMAIN | AA | {SOA}"),
        ("*.wild", RType::A, "NOERROR | AA | an *.wild 3600 A 192.0.2.9 | {NS}"),
        (
            "q.star",
            RType::A,
            "NOERROR | AA | an q.star 3600 CNAME www | an www 60 A 192.0.2.2 | an www 60 A 192.0.2.3 | {NS}",
        ),
        ("q.wc", RType::TXT, "NXDOMAIN | AA | {SOA}"),
        ("q.ent.wc", RType::TXT, "NOERROR | AA | an q.ent.wc 3600 TXT deep | {NS}"),
        ("q.empty", RType::TXT, "NOERROR | AA | {SOA}"),
        (
            "sub",
            RType::A,
            "NOERROR | ns sub 3600 NS ns.sub | ns sub 3600 NS ns.twin | ad ns.sub 3600 A 192.0.2.53",
        ),
        (
            "hidden.sub",
            RType::TXT,
            "NOERROR | ns sub 3600 NS ns.sub | ns sub 3600 NS ns.twin | ad ns.sub 3600 A 192.0.2.53",
        ),
        (
            "x.hidden.sub",
            RType::DS,
            "NOERROR | ns sub 3600 NS ns.sub | ns sub 3600 NS ns.twin | ad ns.sub 3600 A 192.0.2.53",
        ),
        ("twin", RType::DS, "NOERROR | AA | {SOA}"),
        (
            "to-sub",
            RType::A,
            "NOERROR | AA | an to-sub 3600 CNAME a.sub | ns sub 3600 NS ns.sub | ns sub 3600 NS ns.twin | ad ns.sub 3600 A 192.0.2.53",
        ),
        ("old", RType::DNAME, "NOERROR | AA | an old 3600 DNAME new | {NS}"),
        ("old", RType::A, "NOERROR | AA | {SOA}"),
        (
            "www.old",
            RType::A,
            "NOERROR | AA | an old 3600 DNAME new | an www.old 3600 CNAME www.new | an www.new 3600 A 192.0.2.4 | {NS}",
        ),
        (
            "www.old",
            RType::CNAME,
            "NOERROR | AA | an old 3600 DNAME new | an www.old 3600 CNAME www.new | {NS}",
        ),
        ("b.old", RType::TXT, "NXDOMAIN | AA | an old 3600 DNAME new | an b.old 3600 CNAME b.new | {SOA}"),
        ("a.loopd", RType::A, "loop"),
        (
            "www",
            RType::ANY,
            "NOERROR | AA | an www 60 A 192.0.2.2 | an www 60 A 192.0.2.3 | an www 60 TXT one | {NS}",
        ),
        ("nx", RType::ANY, "NXDOMAIN | AA | {SOA}"),
        ("alias", RType::ANY, "NOERROR | AA | an alias 3600 CNAME www | {NS}"),
    ];
    for (owner, rtype, expected) in rows {
        let expected = expected.replace("{NS}", NS).replace("{SOA}", SOA);
        assert_eq!(answer(&zone, owner, *rtype, false), expected, "{owner} {rtype}");
    }
    let mut owner = answer(&zone, "ping", RType::A, false);
    assert_eq!(owner.matches(" CNAME ").count(), 10, "{owner}");
    owner = answer(&zone, "sub", RType::DS, false);
    assert!(owner.starts_with("NOERROR | AA | an sub 3600 DS"), "{owner}");
    assert_eq!((zone.serial(), zone.origin()), (2_026_112_901, &name("example.org")));
}

const SIGNED: &str = r#"
$TTL 3600
@        SOA ns h 1 2 3 4 300
         RRSIG SOA 8 2 3600 20300101000000 20200101000000 1 @ AAAA
         NS ns
         NSEC a NS SOA RRSIG NSEC
         RRSIG NSEC 8 2 300 20300101000000 20200101000000 1 @ AAAA
a        A 192.0.2.1
         RRSIG A 8 3 3600 20300101000000 20200101000000 1 @ AAAA
         NSEC b.ent A RRSIG NSEC
b.ent    A 192.0.2.2
         NSEC sub A
sub      NS ns.sub
         NSEC *.w NS NSEC
ns.sub   A 192.0.2.3
*.w      A 192.0.2.4
         RRSIG A 8 3 3600 20300101000000 20200101000000 1 @ AAAA
         NSEC *.x A
*.x      CNAME a
         NSEC @ CNAME
"#;

/// RFC 4035, section 3.1.
#[test]
fn signed_answers_by_rows() {
    let zone = zone(SIGNED);
    const SOA: &str = "ns @ 300 SOA ns | ns @ 300 RRSIG SOA";
    const APEX: &str = "ns @ 3600 NSEC a | ns @ 3600 RRSIG NSEC";
    let rows: &[(&str, RType, &str)] = &[
        ("a", RType::A, "NOERROR | AA | an a 3600 A 192.0.2.1 | an a 3600 RRSIG A | ns @ 3600 NS ns"),
        ("a", RType::TXT, "NOERROR | AA | {SOA} | ns a 3600 NSEC b.ent"),
        ("ent", RType::A, "NOERROR | AA | {SOA} | ns a 3600 NSEC b.ent"),
        ("nx", RType::A, "NXDOMAIN | AA | {SOA} | ns b.ent 3600 NSEC sub | {APEX}"),
        ("0", RType::A, "NXDOMAIN | AA | {SOA} | {APEX}"),
        ("t", RType::A, "NXDOMAIN | AA | {SOA} | ns sub 3600 NSEC *.w | {APEX}"),
        (
            "x.sub",
            RType::A,
            "NOERROR | ns sub 3600 NS ns.sub | ns sub 3600 NSEC *.w | ad ns.sub 3600 A 192.0.2.3",
        ),
        ("sub", RType::DS, "NOERROR | AA | {SOA} | ns sub 3600 NSEC *.w"),
        (
            "q.w",
            RType::A,
            "NOERROR | AA | an q.w 3600 A 192.0.2.4 | an q.w 3600 RRSIG A | ns @ 3600 NS ns | ns *.w 3600 NSEC *.x",
        ),
        ("q.w", RType::TXT, "NOERROR | AA | {SOA} | ns *.w 3600 NSEC *.x"),
        (
            "q.x",
            RType::A,
            "NOERROR | AA | an q.x 3600 CNAME a | an a 3600 A 192.0.2.1 | an a 3600 RRSIG A | \
             ns @ 3600 NS ns | ns *.x 3600 NSEC @",
        ),
        (
            "q.x",
            RType::TXT,
            "NOERROR | AA | an q.x 3600 CNAME a | {SOA} | ns a 3600 NSEC b.ent | ns *.x 3600 NSEC @",
        ),
    ];
    for (owner, rtype, expected) in rows {
        let expected = expected.replace("{SOA}", SOA).replace("{APEX}", APEX);
        assert_eq!(answer(&zone, owner, *rtype, true), expected, "{owner} {rtype}");
    }
    assert_eq!(answer(&zone, "nx", RType::A, false), "NXDOMAIN | AA | ns @ 300 SOA ns");
}

/// A line that cannot be used, behind a SOA record on line 1, and the error after `db:`.
#[test]
fn errors_have_their_place() {
    let long = format!("{}.example.org. 5 A 192.0.2.1", "a".repeat(64));
    for (line, expected) in [
        ("www 5 IN A 192.0.2.256", "2:12: \"192.0.2.256\" in the data of A is not an IPv4 address"),
        ("www 5 IN", "2:7: its type is missing"),
        ("www 5 IN A", "2:10: the data of A end before an IPv4 address"),
        ("www 5 A 192.0.2.1 x", "2:19: \"x\" is too much for the data of A"),
        ("www 5 NOTYPE x", "2:7: \"NOTYPE\" is no class, no TTL and no record type"),
        ("www 5x A 192.0.2.1", "2:5: \"5x\" is no class, no TTL and no record type"),
        ("www 5 CH A 192.0.2.1", "2:1: the class is CH, and only IN is served; remove the record"),
        ("a..b 5 A 192.0.2.1", "2:1: \"a..b\" is not a name: a label is empty"),
        ("www 5 MX (\n10\nx..y )", "4:1: \"x..y\" is not a name: a label is empty"),
        ("www 5 MX ( 10 x", "3:1: the parentheses do not match"),
        ("www 5 TXT \"x", "2:11: a quoted string does not end"),
        (
            "$WHAT x",
            "2:1: the directive $WHAT is not `$ORIGIN NAME` or `$TTL TTL`, and no other may stand here",
        ),
        ("$INCLUDE", "2:1: the directive is not `$INCLUDE FILE [ORIGIN]`"),
        ("$INCLUDE none", "2:1: cannot read the included file \"none\": no such file"),
        (
            "$GENERATE 1-x a$ A 192.0.2.1",
            "2:1: \"1-x\" in $GENERATE is not START-STOP[/STEP] with at most 65536 numbers below 2147483648 and a text behind it, or ${OFFSET[,WIDTH[,BASE]]} with a base d, o, x or X",
        ),
        ("@ 5 SOA b. c. 2 1 1 1 1", "2:1: a second SOA record that differs from the first; keep one"),
        (
            "x 5 SOA b. c. 2 1 1 1 1",
            "2:1: the owner of the SOA record is x.example.org., and the zone is example.org.; write `@` for it, or name the zone in the directive",
        ),
        (
            "x 5 NSEC3 1 0 0 - 2T7B4G4VSA5SMI47K61MV5BV1A22BOJR A",
            "2:1: the owner of the record is not a hash in base32hex directly below the zone's name; sign the zone again",
        ),
        (
            "@ 5 NSEC3PARAM 2 0 0 -",
            "2:1: the hash algorithm is 2, and only 1 (SHA-1) is defined; sign the zone again with 1",
        ),
        (
            "2T7B4G4VSA5SMI47K61MV5BV1A22BOJR 5 NSEC3 1 0 151 - 2T7B4G4VSA5SMI47K61MV5BV1A22BOJR A",
            "2:1: 151 iterations are more than 150; sign the zone again with 0 (RFC 9276, section 3.1)",
        ),
        (
            &long,
            "2:1: \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..\" is not a name: a label has more than 63 octets",
        ),
    ] {
        let error = read(&format!("@ 5 SOA b. c. 1 1 1 1 1\n{line}\n")).unwrap_err();
        assert_eq!(error.to_string(), format!("db:{expected}"), "{line}");
    }
    let errors = [
        ("", "1:1: the file has no SOA record of the zone example.org.; add one"),
        (
            "@ SOA b. c. 1 1 1 1 1",
            "1:3: the record has no TTL, and there is none before it; write `$TTL 3600` at the start of the file",
        ),
        (
            " 5 SOA b. c. 1 1 1 1 1",
            "1:2: it begins with a blank, and there is no record before it that has the same owner",
        ),
    ];
    for (text, expected) in errors {
        assert_eq!(read(text).unwrap_err().to_string(), format!("db:{expected}"), "{text}");
    }
}

#[test]
fn included_files() {
    let soa = "$TTL 5\n@ SOA b. c. 1 1 1 1 1\n@ NS b.\n";
    let text = format!("{soa}$INCLUDE one sub\nlast A 192.0.2.3\n");
    let files =
        [("one", "www A 192.0.2.1\n$ORIGIN other.\n$INCLUDE two"), ("two", "x.example.org. A 192.0.2.2")];
    let loaded = load(&name("example.org"), "db", text.as_bytes(), &mut Texts(&files)).unwrap();
    assert_eq!(loaded.warnings, []);
    for (owner, last) in [("www.sub", 1), ("x", 2), ("last", 3)] {
        let found = answer(&loaded.zone, owner, RType::A, false);
        assert!(found.contains(&format!("A 192.0.2.{last}")), "{owner}: {found}");
    }
    let itself = [("one", "$INCLUDE one")];
    let error = load(&name("example.org"), "db", text.as_bytes(), &mut Texts(&itself)).unwrap_err();
    assert!(
        error.to_string().starts_with("one:1:1: `$INCLUDE` stands in a file that is included"),
        "{error}"
    );
    let bad = [("one", "www A x")];
    let error = load(&name("example.org"), "db", text.as_bytes(), &mut Texts(&bad)).unwrap_err();
    assert_eq!(error.to_string(), "one:1:7: \"x\" in the data of A is not an IPv4 address");
}

#[test]
fn records_that_are_not_served() {
    let soa = "$TTL 5\n@ SOA b. c. 1 1 1 1 1\n";
    let text = format!(
        "{soa}x.other. A 192.0.2.1\na CNAME b\na TXT \"x\"\nc CNAME d\nc CNAME e\ns NS b.\nt.s TXT \"x\"\n"
    );
    let loaded = read(&text).unwrap();
    let found: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), loaded.warning_count);
    let starts =
        ["db:3: x.other.:", "db:2: example.org.: the zone has no", "db:5: a.", "db:7: c.", "db:9: t.s."];
    for (warning, start) in found.iter().zip(starts) {
        assert!(warning.starts_with(start), "{warning}");
    }
    let message = ask(&loaded.zone, "c.example.org", RType::CNAME, false).1;
    assert_eq!(message.section(Section::Answer).count(), 1);
}

/// The zone's name servers are left out if they do not fit; glue that does not fit sets TC.
#[test]
fn replies_have_a_limit() {
    let zone = zone(PLAIN);
    let limit = |octets| Limits { octets, all_of_any: false };
    let ask = |owner: &str, octets| {
        let (_, message) = ask_with(&zone, &packet(&name(owner), RType::A, false), limit(octets));
        let count = |section| message.section(section).count();
        (count(Section::Answer), count(Section::Authority), message.flags & Flags::TC != 0)
    };
    assert_eq!(ask("www.example.org", 512), (2, 2, false));
    assert_eq!(ask("www.example.org", 70), (2, 0, false));
    assert_eq!(ask("sub.example.org", 512), (0, 2, false));
    assert_eq!(ask("sub.example.org", 80), (0, 2, true));
    let (_, any) = ask_with(&zone, &packet(&name("www.example.org"), RType::ANY, false), limit(512));
    assert_eq!(any.section(Section::Answer).map(|rr| rr.rtype).collect::<Vec<_>>(), [RType::A; 2]);
}

/// RFC 6672, section 2.2.
#[test]
fn target_of_dname_may_be_too_long() {
    let label = "a".repeat(63);
    let zone = zone(&format!("$TTL 5\n@ SOA b. c. 1 1 1 1 1\n@ NS b.\nd DNAME {label}\n"));
    for (below, rcode) in [(label.clone(), Rcode::NXDOMAIN), (format!("{label}.{label}.{label}"), Rcode(6))] {
        let (answered, message) = ask(&zone, &format!("{below}.d.example.org"), RType::A, false);
        assert!(answered.is_ok());
        assert_eq!((message.rcode, message.records[0].rtype), (rcode, RType::DNAME));
    }
}

/// 16 bytes for a name, 12 for an RRset and 2 for a record besides names and data.
#[test]
fn memory_of_a_record() {
    let mut text = "$TTL 5\n@ SOA b. c. 1 1 1 1 1\n@ NS b.\n".to_owned();
    for number in 0..10_000 {
        text += &format!("host-{number:05} A 192.0.2.1\n");
    }
    let zone = zone(&text);
    assert_eq!(zone.count(), 10_002);
    let (names, data) = (11 * 10_000, 4 * 10_000);
    let rest = zone.bytes() - names - data;
    assert!(rest <= 31 * 10_000, "{rest}");
}
