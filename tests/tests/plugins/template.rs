//! `template`: its records, and the targets of its CNAMEs.

use std::process::Command;
use std::time::Duration;

use tests::{
    Action, Ask, Asked, Dns, Server, Upstream, ask, assert_contains, binary, fresh_ip, port, steadily,
};

use super::good;

#[test]
fn template_answers_by_its_rows() {
    let body = "template IN A example {\nmatch \"^ip-(?P<a>[0-9]+)-(?P<b>[0-9]+)\\.example\\.$\"\n\
         answer \"{{ .Name }} 60 IN A 192.0.{{ .Group.a }}.{{ index .Match 2 }}\"\nfallthrough\n}\n\
         template IN MX mail {\nanswer \"{{ .Name }} 60 IN MX 10 mx.{{ .Zone }}\"\nadditional \"mx.{{ .Zone }} 60 IN A 192.0.2.1\"\n}\n\
         template ANY ANY gone {\nrcode NXDOMAIN\nauthority \"gone. 60 IN SOA ns.gone. host.gone. 1 2 3 4 5\"\n}\n\
         template IN ANY ede {\nrcode REFUSED\nederror 15 \"blocked here\"\n}\n\
         template IN TXT cond {\nanswer \"{{ .Name }} 60 IN TXT \\\"{{ if eq .Type `TXT` }}yes{{ else }}no{{ end }}\\\"\"\n}";
    let dns = Dns::start(body);
    let reply = ask(dns.at, "IP-2-7.example", "A");
    assert_eq!(reply.short(), ["192.0.2.7"]);
    assert_contains!(reply.flag_names(), "aa");
    let reply = ask(dns.at, "x.mail", "MX");
    assert_eq!(reply.short(), ["10 mx.mail."]);
    assert_eq!(reply.additionals[0].to_string(), "mx.mail. 60 IN A 192.0.2.1");
    let reply = ask(dns.at, "x.gone", "TYPE65400");
    assert_eq!((reply.status(), reply.authorities.len()), ("NXDOMAIN", 1));
    let reply = Ask::new("x.ede", "A").edns(1232).of(dns.at);
    assert_eq!((reply.status(), reply.extended_error()), ("REFUSED", Some((15, "blocked here".to_owned()))));
    assert_eq!(ask(dns.at, "x.cond", "TXT").short(), ["\"yes\""]);
    for (name, rtype) in [("ip-x.example", "A"), ("x.mail", "A")] {
        assert_eq!(ask(dns.at, name, rtype).status(), "SERVFAIL", "{name}: no plugin is left to answer");
    }
}

/// Owner, type and data of the answer section, in order.
fn chain(reply: &tests::Reply) -> Vec<String> {
    let text = |record: &tests::Record| format!("{} {} {}", record.name, record.rtype, record.data);
    reply.answers.iter().map(text).collect()
}

const ALIAS: &str = "template IN ANY alias {\nmatch ^(?P<name>[^.]+)\nanswer \"{{ .Name }} 60 IN CNAME {{ .Group.name }}.example.\"\n}";

/// A CNAME of a template is followed through hosts and other blocks.
#[test]
fn template_cname_through_blocks() {
    let (ip, port) = (fresh_ip(), port());
    let at = (ip, port).into();
    let corefile = format!(
        ".:{port} {{\nbind {ip}\n{ALIAS}\n\
         template IN A both {{\nanswer \"both. 60 IN CNAME one.example.\" \"both. 60 IN CNAME gone.example.\" \"both. 60 IN A 192.0.2.9\"\nadditional \"both. 60 IN TXT last\"\n}}\n\
         template IN A here {{\nrcode NXDOMAIN\nanswer \"{{{{ .Name }}}} 60 IN CNAME one.alias.\"\n}}\n\
         hosts {{\n192.0.2.1 one.example\n2001:db8::1 one.example\nfallthrough\n}}\n}}\n\
         inner.example:{port} {{\nbind {ip}\ntemplate IN A {{\nanswer \"{{{{ .Name }}}} 60 IN A 192.0.2.7\"\n}}\n}}\n"
    );
    let _server = Server::start(&corefile);
    for (name, rtype, expected) in [
        ("one.alias", "A", &["one.alias. 5 one.example.", "one.example. 1 192.0.2.1"][..]),
        ("one.alias", "AAAA", &["one.alias. 5 one.example.", "one.example. 28 2001:db8::1"]),
        // For other types the CNAME is the whole answer, as in CoreDNS.
        ("one.alias", "CNAME", &["one.alias. 5 one.example."]),
        ("one.alias", "TXT", &["one.alias. 5 one.example."]),
        // A target without an answer adds nothing.
        ("gone.alias", "A", &["gone.alias. 5 gone.example."]),
        // The target's own server block answers, and its templates' CNAMEs are followed.
        ("inner.alias", "A", &["inner.alias. 5 inner.example.", "inner.example. 1 192.0.2.7"]),
        ("x.here", "A", &["x.here. 5 one.alias.", "one.alias. 5 one.example.", "one.example. 1 192.0.2.1"]),
        // The target's records follow its CNAME.
        (
            "both",
            "A",
            &[
                "both. 5 one.example.",
                "one.example. 1 192.0.2.1",
                "both. 5 gone.example.",
                "both. 1 192.0.2.9",
            ],
        ),
    ] {
        for reply in [ask(at, name, rtype), Ask::new(name, rtype).tcp().of(at)] {
            assert_eq!(chain(&reply), expected, "{name} {rtype}");
            assert_contains!(reply.flag_names(), "aa");
            assert_eq!(reply.status(), if name == "x.here" { "NXDOMAIN" } else { "NOERROR" });
            assert_eq!(reply.additionals.len(), usize::from(name == "both"));
        }
    }
}

/// A CNAME of a template is followed to upstreams and through the cache.
#[test]
fn template_cname_through_upstreams() {
    let upstream = Upstream::start(fresh_ip(), |asked| match asked.name.as_str() {
        "far.example." => {
            Action::answer("far.example. 300 IN CNAME www.far.example.\nwww.far.example. 300 IN A 192.0.2.3")
        }
        "down.example." => Action::rcode(2),
        "denied.example." => {
            Action::nxdomain("example. 300 IN SOA ns.example. host.example. 1 7200 900 86400 20")
        }
        _ => good(asked),
    });
    let twice = "template IN A twice {\nanswer \"twice. 60 IN CNAME one.example.\" \"twice. 60 IN CNAME two.example.\"\n}";
    let dns = Dns::start(&format!(
        "{ALIAS}\n{twice}\nprometheus {}:0\ncache\nforward . {}",
        fresh_ip(),
        upstream.word()
    ));
    for round in ["asked", "cached"] {
        for (name, expected) in [
            ("one.alias", &["one.alias. 5 one.example.", "one.example. 1 192.0.2.1"][..]),
            (
                "far.alias",
                &[
                    "far.alias. 5 far.example.",
                    "far.example. 5 www.far.example.",
                    "www.far.example. 1 192.0.2.3",
                ],
            ),
            ("down.alias", &["down.alias. 5 down.example."]),
            ("denied.alias", &["denied.alias. 5 denied.example."]),
            (
                "twice",
                &[
                    "twice. 5 one.example.",
                    "one.example. 1 192.0.2.1",
                    "twice. 5 two.example.",
                    "two.example. 1 192.0.2.1",
                ],
            ),
        ] {
            for query in [Ask::new(name, "A"), Ask::new(name, "A").tcp(), Ask::new(name, "A").edns(1232)] {
                let reply = query.of(dns.at);
                assert_eq!(chain(&reply), expected, "{name}, {round}");
                assert_eq!(reply.status(), "NOERROR", "{name}, {round}");
            }
        }
    }
    for name in ["one.example.", "far.example.", "two.example.", "denied.example."] {
        assert_eq!(upstream.count(name), 1, "{name}");
    }
}

#[test]
fn clients_share_an_inner_lookup() {
    let slow = |asked: &Asked| good(asked).after(Duration::from_millis(200));
    let upstream = Upstream::start(fresh_ip(), slow);
    let dns = Dns::start(&format!("{ALIAS}\nmultisocket 2\nforward . {}", upstream.word()));
    std::thread::scope(|scope| {
        for n in 0..20 {
            let at = dns.at;
            scope.spawn(move || {
                let reply = ask(at, "one.alias", if n % 2 == 0 { "A" } else { "AAAA" });
                assert_eq!(reply.answers.len(), 1 + usize::from(n % 2 == 0));
            });
        }
    });
    // Each type once, and at most one hedge for each.
    assert!(upstream.count("one.example.") <= 4, "{}", upstream.count("one.example."));
}

/// Many inner lookups at a silent upstream cost no more time than one.
#[test]
fn inner_lookups_share_the_timeout() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), |_| Action::Silent);
        let lines: String =
            (0..6).map(|n| format!("\"{{{{ .Name }}}} 60 IN CNAME n{n}.example.\" ")).collect();
        let dns =
            Dns::start(&format!("template IN A many {{\nanswer {lines}\n}}\nforward . {}", upstream.word()));
        let reply = Ask::new("many", "A").timeout(Duration::from_secs(8)).of(dns.at);
        assert_eq!((reply.status(), reply.answers.len()), ("NOERROR", 6));
        assert!(reply.elapsed < Duration::from_secs(6), "{:?}", reply.elapsed);
    });
}

#[test]
fn template_cname_depth_is_bounded() {
    let body = "template IN ANY loop {\nanswer \"{{ .Name }} 60 IN CNAME x.{{ .Name }}\"\n}\n\
                template IN A once {\nanswer \"{{ .Name }} 60 IN CNAME known.example.\"\n}\n\
                hosts {\n192.0.2.1 known.example\n}";
    let dns = Dns::start(body);
    assert_eq!(ask(dns.at, "a.once", "A").short(), ["192.0.2.1", "known.example."]);
    let before = dns.server.rss_kb();
    for n in 0..20 {
        let reply = Ask::new(&format!("n{n}.loop"), "A").tcp().timeout(Duration::from_secs(3)).of(dns.at);
        // The first record and thirty-two that follow from it.
        assert_eq!((reply.status(), reply.answers.len()), ("NOERROR", 33));
    }
    assert!(dns.server.rss_kb() < before + (16 << 10), "{before} -> {}", dns.server.rss_kb());
}

#[test]
fn template_variables_and_conditions() {
    let body = "template IN ANY num.example {\nmatch ^(?P<n>[0-9]+)[.]\nvar n int(group('n'))\nvar parts split(name(), '.')\n\
         expr n > 1 && incidr(client_ip(), '127.0.0.0/8')\nexpr \"type() in ['A', 'TXT']\"\n\
         answer \"{{ .Name }} 60 IN TXT {{ .Var.n }} {{ index .Var.parts 1 }}\"\nfallthrough\n}\n\
         template IN TXT facts.example {\nvar facts proto() + ' ' + server_ip() + ' ' + server_port()\n\
         answer \"{{ .Name }} 60 IN TXT \\\"{{ .Var.facts }}\\\"\"\n}\n\
         template IN A strict.example {\nexpr name() startsWith 'a.'\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\n\
         template IN A error.example {\nexpr int(name()) > 1\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\nfallthrough\n}\n\
         template ANY ANY {\nrcode NXDOMAIN\n}";
    let dns = Dns::start(body);
    assert_eq!(ask(dns.at, "2.num.example", "TXT").short(), ["\"2\" \"num\""]);
    for (name, rtype) in [("1.num.example", "TXT"), ("2.num.example", "MX"), ("x.num.example", "TXT")] {
        assert_eq!(
            ask(dns.at, name, rtype).status(),
            "NXDOMAIN",
            "{name} {rtype}: the next template answers"
        );
    }
    let place = format!("{} {}", dns.at.ip(), dns.at.port());
    assert_eq!(ask(dns.at, "facts.example", "TXT").short(), [format!("\"udp {place}\"")]);
    assert_eq!(Ask::new("facts.example", "TXT").tcp().of(dns.at).short(), [format!("\"tcp {place}\"")]);
    assert_eq!(ask(dns.at, "a.strict.example", "A").short(), ["192.0.2.1"]);
    assert_eq!(ask(dns.at, "b.strict.example", "A").status(), "SERVFAIL");
    assert_eq!(ask(dns.at, "x.error.example", "A").status(), "SERVFAIL", "an error never falls through");
}

#[test]
fn size_in_expressions_respects_bufsize() {
    let dns = Dns::start(
        "bufsize 600\ntemplate IN TXT . {\nvar most bufsize()\nanswer \"{{ .Name }} 60 IN TXT {{ .Var.most }}\"\n}",
    );
    for (size, expected) in [(4096, "600"), (512, "512")] {
        let reply = Ask::new("x.example", "TXT").edns(size).of(dns.at);
        assert_contains!(reply.bytes.escape_ascii().to_string(), expected);
    }
    let reply = Ask::new("x.example", "TXT").tcp().of(dns.at);
    assert_contains!(reply.bytes.escape_ascii().to_string(), "65535");
}

/// Regression: such a record was sent as it is, which no client could decode, or all records were
/// omitted without a log line.
#[test]
fn records_that_cannot_be_read_fail() {
    const GOOD: &str = "answer \"{{ .Name }} 60 IN A 192.0.2.1\"\n";
    let big = format!("answer \"{{{{ .Name }}}} 60 IN TXT {}\"\n", "k".repeat(40_000));
    let rows = [
        "answer \"a..b. 60 IN A 192.0.2.1\"".to_owned(),
        "answer \"{{ .Name }} 60 IN CNAME a..b.\"".to_owned(),
        "answer \"{{ .Name }} 60 IN MX 10 .b.\"".to_owned(),
        "answer \"{{ .Name }} 60 IN HTTPS 1 a..b. alpn=h2\"".to_owned(),
        format!("{GOOD}authority \"a..b. 60 IN SOA ns. host. 1 2 3 4 5\""),
        format!("{GOOD}authority \"b. 60 IN NS a..b.\""),
        format!("{GOOD}additional \"b. 60 IN SRV 1 2 3 a..b.\""),
        format!("{GOOD}additional \"b. 60 IN OPT \\# 0\""),
        format!("{GOOD}additional \"b. 60 IN CNAME \\# 2 c00c\""),
        format!("{big}{big}"),
    ];
    let templates = rows
        .iter()
        .enumerate()
        .map(|(n, records)| format!("template ANY ANY r{n}.example {{\n{records}\n}}\n"));
    let dns = Dns::start(&format!("errors\n{}", templates.collect::<String>()));
    for (n, records) in rows.iter().enumerate() {
        let name = format!("r{n}.example");
        let reply = Ask::new(&name, "ANY").tcp().of(dns.at);
        let sections = [&reply.answers, &reply.authorities, &reply.additionals].map(Vec::len);
        let records = &records[..records.len().min(120)];
        assert_eq!((reply.status(), sections), ("SERVFAIL", [0; 3]), "{records}");
        dns.server.wait_for_log(&format!("2 {name}. ANY: plugin/template: "), Duration::from_secs(5));
    }
}

#[test]
fn check_reports_invalid_record_texts() {
    let directory = tests::tempdir();
    let path = directory.path().join("Corefile");
    let corefile = ".:5353 {\ntemplate IN A example {\nanswer \"x.example. 60 IN A nonsense\" \"{{ .Name }} 60 IN A {{ .Name }}\"\n}\n}\n";
    std::fs::write(&path, corefile).unwrap();
    let output = Command::new(binary()).args(["check", "-conf"]).arg(&path).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "it is served, as by CoreDNS: {stderr}");
    assert_contains!(
        stderr,
        "Corefile:3:8: plugin/template: \"x.example. 60 IN A nonsense\" is not a record: "
    );
    assert_eq!(stderr.matches("is not a record").count(), 1, "{stderr}");
}
