//! Log formats, and their output for a query.

use std::net::IpAddr;

use super::*;
use crate::captured_log::CapturedLog;
use std::time::{Duration, UNIX_EPOCH};

const COMMON: &str = r#"{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" {rcode} {>rflags} {rsize} {duration}"#;
const ALL: Classes = Classes { success: true, denial: true, error: true };

fn name(text: &str) -> Name {
    Name::from_text(text).unwrap()
}

fn entry(name: &Name) -> LogEntry<'_> {
    LogEntry {
        client: "10.0.0.1:50759".parse().unwrap(),
        local: Some("127.0.0.61:53".parse().unwrap()),
        proto: Proto::Udp,
        id: 29008,
        opcode: Opcode::QUERY,
        name,
        rtype: RType::A,
        class: Class::IN,
        size: 41,
        dnssec_ok: false,
        bufsize: 4096,
        rcode: Rcode::NOERROR,
        flags: Flags(Flags::QR | Flags::RD | Flags::RA | Flags::AD),
        rsize: 68,
        nanos: 37_990_251,
        answers: 1,
        soa: false,
        upstream: None,
    }
}

/// A plugin that publishes labels.
#[derive(Debug)]
struct Publisher;

impl Labels for Publisher {
    fn label(&self, label: &str, name: &Name, client: Option<IpAddr>) -> Option<String> {
        match label {
            "test/name" => Some(name.to_string()),
            "test/client" => client.map(|client| client.to_string()),
            "test/empty" => Some(String::new()),
            "test/odd" => Some("a\nb".to_owned()),
            _ => None,
        }
    }
}

fn labels() -> Arc<dyn Labels> {
    Arc::new(vec![Arc::new(Publisher) as Arc<dyn Labels>])
}

fn rendered(format: &str, entry: &LogEntry<'_>) -> String {
    let mut line = Vec::new();
    LogFormat::new(format, Format::Text, Some(&labels())).render(entry, &mut line);
    String::from_utf8(line).unwrap()
}

#[test]
fn the_common_format_reads_as_coredns_prints_it() {
    let example = name("example.org");
    let line = rendered(COMMON, &entry(&example));
    assert_eq!(
        line,
        "[INFO] 10.0.0.1:50759 - 29008 \"A IN example.org. udp 41 false 4096\" NOERROR qr,rd,ra,ad 68 0.037990251s\n"
    );
    let tcp = LogEntry {
        client: "[::1]:39625".parse().unwrap(),
        proto: Proto::Tcp,
        dnssec_ok: true,
        rcode: Rcode(24),
        flags: Flags(0),
        nanos: 0,
        ..entry(&example)
    };
    let line = rendered(COMMON, &tcp);
    assert_eq!(line, "[INFO] [::1]:39625 - 29008 \"A IN example.org. tcp 41 true 65535\" 24  68 0s\n");
}

#[test]
fn flags_stand_in_the_order_of_the_header() {
    for (flags, expected) in [
        (0xffff, "qr,aa,tc,rd,ra,z,ad,cd"),
        (Flags::QR, "qr"),
        (0x0040, "z"),
        (Flags::QR | 0x0040 | Flags::AD, "qr,z,ad"),
        (0x780f, ""),
    ] {
        let mut line = Vec::new();
        push_flags(&mut line, Flags(flags));
        assert_eq!(String::from_utf8(line).unwrap(), expected);
    }
}

#[test]
fn formats_are_read_as_coredns_reads_them() {
    let example = name("x.y");
    let query = LogEntry { opcode: Opcode::NOTIFY, bufsize: 0, ..entry(&example) };
    for (format, expected) in [
        ("", ""),
        ("plain", "plain"),
        ("l={local} \"{>opcode}\" {>bufsize}", "l=127.0.0.61 \"4\" 512"),
        ("{>OPCODE} {/x} {bogus} { {type} } x", "{>OPCODE} - {bogus} { A } x"),
        ("a } {type", "a } {type"),
        ("}{type}{", "}A{"),
        ("{{type}}", "{A}"),
        ("{type}{name}{/a}{/b}", "Ax.y.--"),
        ("{when}", "{when}"),
    ] {
        assert_eq!(rendered(format, &query), format!("[INFO] {expected}\n"), "{format}");
    }
    let unknown = LogEntry { local: None, ..query };
    assert_eq!(rendered("{local}", &unknown), "[INFO] -\n");
}

#[test]
fn outcomes_have_coredns_classes() {
    use LogClass::{Denial, Error, Success};
    let example = name("x.y");
    for (rcode, answers, soa, rtype, opcode, outcome) in [
        (Rcode::NOERROR, 1, false, RType::A, Opcode::QUERY, Success),
        (Rcode::NOERROR, 1, true, RType::A, Opcode::QUERY, Success),
        (Rcode::NOERROR, 0, true, RType::A, Opcode::QUERY, Denial),
        (Rcode::NOERROR, 0, false, RType::A, Opcode::QUERY, Success),
        (Rcode::NXDOMAIN, 0, true, RType::A, Opcode::QUERY, Denial),
        (Rcode::NXDOMAIN, 0, false, RType::A, Opcode::QUERY, Denial),
        (Rcode::NXDOMAIN, 1, true, RType::A, Opcode::QUERY, Error),
        (Rcode::SERVFAIL, 0, false, RType::A, Opcode::QUERY, Error),
        (Rcode::REFUSED, 0, true, RType::A, Opcode::QUERY, Error),
        (Rcode::NOERROR, 1, false, RType::AXFR, Opcode::QUERY, Error),
        (Rcode::NOERROR, 1, false, RType::SOA, Opcode::NOTIFY, Error),
    ] {
        let query = LogEntry { rcode, answers, soa, rtype, opcode, ..entry(&example) };
        assert_eq!(query.outcome(), outcome, "{query:?}");
    }
}

/// The first rule with a zone that contains the name decides.
#[test]
fn first_matching_zone_decides() {
    let rule =
        |zone: &str, format: &str, classes| LogRule { zone: name(zone), format: format.to_owned(), classes };
    let errors = Classes { success: false, denial: false, error: true };
    let rules = LogRules::new(
        vec![rule("a.org", "one", errors), rule("org", "two", ALL), rule("a.org", "three", ALL)],
        Format::Text,
        None,
    );
    let (logger, log) = CapturedLog::logger(Format::Text);
    let mut ring = logger.ring(4096);
    for (asked, rcode, line) in [
        ("x.a.org", Rcode::SERVFAIL, "[INFO] one\n"),
        ("x.a.org", Rcode::NOERROR, ""),
        ("b.org", Rcode::NOERROR, "[INFO] two\n"),
        ("b.com", Rcode::NOERROR, ""),
    ] {
        let asked = name(asked);
        rules.log(&LogEntry { rcode, ..entry(&asked) }, &mut ring);
        assert_eq!(log.read(&logger), line, "{asked}");
    }
}

#[test]
fn json_lines_carry_the_fields_of_coredns() {
    let odd = Name::from_wire(b"\x04\"\\.a\0").unwrap();
    let query = LogEntry { client: "[::1]:5".parse().unwrap(), ..entry(&odd) };
    let mut line = Vec::new();
    let at = UNIX_EPOCH + Duration::new(1_795_248_408, 366_387_750);
    LogFormat::new("{name} {type}", Format::Json, None).render_json(&query, at, &mut line);
    let line = String::from_utf8(line).unwrap();
    assert_eq!(
        line,
        r#"{"time":"2026-11-21T08:06:48.36638775Z","level":"INFO","msg":"\\\"\\\\\\.a. A","plugin":"log","client_ip":"::1","client_port":5,"qname":"\\\"\\\\\\.a.","qtype":"A","qclass":"IN","protocol":"udp","id":29008,"opcode":0,"request_size":41,"dnssec_ok":false,"bufsize":4096,"rcode":"NOERROR","response_size":68,"duration_seconds":0.037990251}"#
            .to_owned()
            + "\n"
    );
    assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok());
}

/// Labels are logged if the block has `metadata`.
#[test]
fn labels_are_logged_with_metadata() {
    let example = name("example.org");
    let format = "{name} {/forward/upstream} {/log/type} {/log/class} {/other/label}";
    let up = LogEntry { upstream: Some("192.0.2.53:53".parse().unwrap()), ..entry(&example) };
    for (query, expected) in [
        (up, "192.0.2.53:53 NOERROR success -"),
        (entry(&example), "- NOERROR success -"),
        (LogEntry { answers: 0, soa: true, ..up }, "192.0.2.53:53 NODATA denial -"),
        (LogEntry { answers: 0, rcode: Rcode::NXDOMAIN, ..up }, "192.0.2.53:53 NXDOMAIN denial -"),
        (LogEntry { answers: 0, rcode: Rcode::SERVFAIL, ..up }, "192.0.2.53:53 SERVERERROR error -"),
        (LogEntry { answers: 0, rcode: Rcode::REFUSED, ..up }, "192.0.2.53:53 OTHERERROR error -"),
        (LogEntry { rcode: Rcode::NXDOMAIN, ..up }, "192.0.2.53:53 OTHERERROR error -"),
        (LogEntry { rtype: RType::AXFR, ..up }, "192.0.2.53:53 META error -"),
    ] {
        assert_eq!(rendered(format, &query), format!("[INFO] example.org. {expected}\n"));
    }
    let client = "[::ffff:192.0.2.7]:5".parse().unwrap();
    assert_eq!(
        rendered(
            "{/test/name} {/test/client} {/test/empty}. {/test/odd} {/test/none}",
            &LogEntry { client, ..up }
        ),
        "[INFO] example.org. 192.0.2.7 . - -\n"
    );
    let mut line = Vec::new();
    LogFormat::new(format, Format::Text, None).render(&up, &mut line);
    assert_eq!(line, b"[INFO] example.org. - - - -\n");
}
