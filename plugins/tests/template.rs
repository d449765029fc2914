//! `template` without a socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use plugin::failure::Failure;
use plugins::template::TemplateRegistry;
use scene::{Scene, Sent, packet};
use wire::{RType, Rcode};

const AT: &str = "127.0.0.1:53";

fn scene(lines: &str) -> Scene {
    Scene::new(&format!(". {{\nbind 127.0.0.1\n{lines}\n}}\n"))
}

fn answer(record: &str) -> Scene {
    scene(&format!(
        "template ANY ANY example.org {{\nmatch \"^(?P<host>[a-z]+)-([0-9]+)\\.(?P<none>x)?\"\nanswer \"{record}\"\n}}"
    ))
}

#[test]
fn message_fields() {
    for (field, value) in [
        ("{{ .Name }}", "web-7.example.org."),
        ("{{ .Zone }}", "example.org."),
        ("{{ .Type }}", "TXT"),
        ("{{ .Class }}", "IN"),
        ("{{ .Remote }}", "192.0.2.200"),
        ("{{ .Group.host }}", "web"),
        ("{{ .Group.none }}", ""),
        ("{{ index .Group `host` }}", "web"),
        ("{{ index .Group `2` }}", "7"),
        ("{{ index .Match 0 }}", "web-7."),
        ("{{ index .Match 1 }}", "web"),
        ("{{ index .Match 2 }}", "7"),
        ("{{ len .Match }}", "4"),
        ("{{ .Question.Name }}", "web-7.example.org."),
        ("{{ .Question.Qtype }}", "16"),
        ("{{ .Question.Qclass }}", "1"),
        ("{{ .Message.Id }}", "4660"),
        ("{{ (index .Message.Question 0).Name }}", "web-7.example.org."),
        ("{{ len .Message.Question }}", "1"),
        ("{{ range .Message.Question }}{{ .Qtype }}/{{ .Qclass }}{{ end }}", "16/1"),
        ("{{ eq (print .Message.Question) `[{web-7.example.org. 16 1}]` }}", "true"),
        // Groups by number, too.
        ("{{ len .Group }}", "6"),
        ("{{ eq (print .Group) `map[0:web-7. 1:web 2:7 3: host:web none:]` }}", "true"),
        (
            "{{ range $key, $value := .Group }}{{ $key }}={{ $value }},{{ end }}",
            "0=web-7.,1=web,2=7,3=,host=web,none=,",
        ),
        // A group in no pattern.
        ("{{ if .Group.zzz }}yes{{ else }}no{{ end }}", "no"),
        ("{{ index .Group `zzz` }}", ""),
        ("{{ .Message.RecursionDesired }}", "true"),
        ("{{ .Meta `kubernetes/namespace` }}", ""),
        ("{{ if eq .Type `TXT` }}yes{{ else }}no{{ end }}", "yes"),
        ("{{ parseInt (index .Match 2) 10 32 | printf `%03d` }}", "007"),
    ] {
        let scene = answer(&format!("{{{{ .Name }}}} 5 IN TXT <{field}>"));
        let reply = scene.ask(AT, "Web-7.Example.org", RType::TXT);
        assert_eq!(reply, format!("NOERROR aa; Web-7.Example.org. 5 IN TXT <{value}>"), "{field}");
    }
}

#[test]
fn sections_rcode_and_several_records() {
    let scene = scene(
        "template IN MX example.org {\nanswer \"{{ .Name }} 60 IN MX 10 mail.{{ .Zone }}\" \"{{ .Name }} MX 20 b.example.net.\"\n\
         authority \"{{ .Zone }} 60 IN NS ns.example.org.\"\nadditional \"mail.example.org. 60 IN A 192.0.2.9\"\nrcode YXDOMAIN\n}",
    );
    assert_eq!(
        scene.ask(AT, "example.org", RType::MX),
        "YXDOMAIN aa; example.org. 60 IN MX 10 mail.example.org.; example.org. 3600 IN MX 20 b.example.net.; \
         authority example.org. 60 IN NS ns.example.org.; additional mail.example.org. 60 IN A 192.0.2.9"
    );
}

#[test]
fn any_query_has_template_type() {
    let scene =
        scene("template IN TXT example.org {\nanswer \"{{ .Name }} 5 IN TXT {{ .Class }}-{{ .Type }}\"\n}");
    for rtype in [RType::ANY, RType::TXT] {
        assert_eq!(scene.ask(AT, "example.org", rtype), "NOERROR aa; example.org. 5 IN TXT IN-TXT");
    }
}

#[test]
fn failures_have_no_records() {
    let scene =
        scene("template ANY ANY {\nrcode SERVFAIL\nauthority \"{{ .Zone }} 60 IN NS ns.example.org.\"\n}");
    assert_eq!(scene.ask(AT, "example.org", RType::A), "SERVFAIL");
}

#[test]
fn templates_in_file_order() {
    const TWO: &str = "template IN A example.org {\nmatch ^a\\. ^aa\\.\nrcode NXDOMAIN\nFIRST\n}\n\
                       template IN ANY org example.org {\nmatch ^b\\.\nrcode REFUSED\nSECOND\n}\nwhoami";
    let own = "NOERROR aa; additional";
    for (first, second, rows) in [
        (
            "",
            "",
            [
                ("a.example.org", RType::A, "NXDOMAIN aa"),
                ("aa.example.org", RType::A, "NXDOMAIN aa"),
                ("b.example.org", RType::A, "SERVFAIL"),
                ("b.example.org", RType::AAAA, "REFUSED aa"),
                ("a.example.org", RType::AAAA, "SERVFAIL"),
                ("a.example.net", RType::A, own),
            ],
        ),
        (
            "fallthrough",
            "fallthrough example.org",
            [
                ("a.example.org", RType::A, "NXDOMAIN aa"),
                ("b.example.org", RType::A, "REFUSED aa"),
                ("c.example.org", RType::A, own),
                ("c.b.org", RType::A, "SERVFAIL"),
                ("b.org", RType::A, "REFUSED aa"),
                ("a.example.org", RType::ANY, "NXDOMAIN aa"),
            ],
        ),
    ] {
        let scene = scene(&TWO.replace("FIRST", first).replace("SECOND", second));
        for (name, rtype, expected) in rows {
            let reply = scene.ask(AT, name, rtype);
            assert!(reply.starts_with(expected), "{first} {second} {name} {rtype}: {reply}");
        }
    }
}

#[test]
fn failed_templates_are_counted() {
    for (record, template_failures, rr_failures) in [
        ("{{ .Name }} 60 IN A 192.0.2.256", 0, 1),
        ("{{ .Name }}", 0, 1),
        ("{{ index .Match 9 }} 60 IN A 192.0.2.1", 1, 0),
        ("{{ .Name }} 60 IN A 192.0.2.1", 0, 0),
    ] {
        let scene = answer(record);
        let Sent::Reply(reply) = scene.send(AT, &packet("web-7.example.org", RType::A, None)) else {
            panic!("no reply")
        };
        let failed = template_failures + rr_failures > 0;
        assert_eq!(reply.2.rcode, if failed { Rcode::SERVFAIL } else { Rcode::NOERROR }, "{record}");
        assert_eq!(matches!(reply.2.failure.as_deref(), Some(Failure::Own(_))), failed, "{record}");
        assert_eq!(reply.0.answers.len(), usize::from(!failed), "{record}");
        let (labels, counters) = scene.shared.lasting.get::<TemplateRegistry>().all().remove(0);
        assert_eq!((labels.server.as_str(), labels.zone.as_str()), ("dns://127.0.0.1:53", "example.org."));
        let counts = [counters.matches.get(), counters.template_failures.get(), counters.rr_failures.get()];
        assert_eq!(counts, [1, template_failures, rr_failures], "{record}");
    }
}

#[test]
fn ede_needs_edns() {
    let scene = scene("template ANY ANY {\nrcode NXDOMAIN\nederror 15 blocked\n}");
    for (edns, expected) in [(None, false), (Some(&[][..]), true)] {
        let Sent::Reply(reply) = scene.send(AT, &packet("a", RType::A, edns)) else { panic!("no reply") };
        assert_eq!(reply.0.edns.is_some(), expected);
        assert_eq!(reply.1.ends_with(b"\0\x0f\0\x09\0\x0fblocked"), expected);
    }
}

#[test]
fn counters_outlive_a_reload() {
    let corefile = ". {\nbind 127.0.0.1\ntemplate ANY ANY {\nrcode NXDOMAIN\n}\n}\n";
    let mut scene = Scene::new(corefile);
    scene.ask(AT, "a", RType::A);
    scene.reload(corefile);
    scene.ask(AT, "a", RType::A);
    let all = scene.shared.lasting.get::<TemplateRegistry>().all();
    assert_eq!((all.len(), all[0].1.matches.get()), (1, 2));
}
