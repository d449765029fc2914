//! `hosts`: answers from a file and from inline lines, and changes of a file.

use std::thread::sleep;
use std::time::Duration;

use tests::{Action, Dns, Upstream, ask, eventually, fresh_ip, publish, tempdir};

use super::{SOA, good};

#[test]
fn hosts_answers_by_its_rows() {
    let file = tempdir();
    let path = file.path().join("hosts");
    std::fs::write(
        &path,
        "# comment\n192.0.2.1 One.Example one-alias.example # tail\n192.0.2.2\tone.example\n2001:db8::1 one.example\n\n\
         192.0.2.3 two.example\n::ffff:192.0.2.9 mapped.example\n192.0.2.5 *.wild.example\n192.0.2.66 outside.other\n",
    )
    .unwrap();
    let body = format!("hosts {} example {{\nttl 77\n192.0.2.4 inline.example\n}}", path.display());
    let dns = Dns::start(&body);
    let rows: [(&str, &str, &str, &[&str]); 11] = [
        (
            "one.example",
            "A",
            "NOERROR",
            &["one.example. 77 IN A 192.0.2.1", "one.example. 77 IN A 192.0.2.2"],
        ),
        ("oNe.eXample", "AAAA", "NOERROR", &["one.example. 77 IN AAAA 2001:db8::1"]),
        ("one-alias.example", "A", "NOERROR", &["one-alias.example. 77 IN A 192.0.2.1"]),
        ("one-alias.example", "AAAA", "NOERROR", &[]),
        ("one.example", "TXT", "NOERROR", &[]),
        ("one.example", "HTTPS", "NOERROR", &[]),
        ("two.example", "A", "NOERROR", &["two.example. 77 IN A 192.0.2.3"]),
        ("inline.example", "A", "NOERROR", &["inline.example. 77 IN A 192.0.2.4"]),
        ("a.wild.example", "A", "NOERROR", &["a.wild.example. 77 IN A 192.0.2.5"]),
        ("a.b.wild.example", "A", "SERVFAIL", &[]),
        ("none.example", "A", "SERVFAIL", &[]),
    ];
    for (name, rtype, status, answers) in rows {
        let reply = ask(dns.at, name, rtype);
        let found: Vec<String> = reply
            .answers
            .iter()
            // The case of the owner is unspecified.
            .map(|record| tests::Record { name: record.name.to_lowercase(), ..record.clone() }.to_string())
            .collect();
        assert_eq!(reply.status(), status, "{name} {rtype}");
        assert_eq!(found, answers, "{name} {rtype}");
        assert!(
            status != "NOERROR" || reply.flag_names().contains("aa"),
            "{name} {rtype}: {}",
            reply.flag_names()
        );
    }
}

#[test]
fn ptr_from_hosts() {
    let entries = "192.0.2.1 one.example\n2001:db8::1 one.example\n";
    let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa";
    let dns = Dns::start(&format!("hosts {{\n{entries}}}"));
    assert_eq!(ask(dns.at, "1.2.0.192.in-addr.arpa", "PTR").short(), ["one.example."]);
    assert_eq!(ask(dns.at, v6, "PTR").short(), ["one.example."]);
    let dns = Dns::start(&format!("hosts {{\n{entries}no_reverse\n}}"));
    assert_eq!(ask(dns.at, "1.2.0.192.in-addr.arpa", "PTR").answers.len(), 0);
    assert_eq!(ask(dns.at, "one.example", "A").short(), ["192.0.2.1"]);
}

#[test]
fn fallthrough_zones() {
    let upstream = Upstream::start(fresh_ip(), good);
    let hosts = "hosts {\n192.0.2.9 known.example\nfallthrough example\n}";
    let dns = Dns::start(&format!("{hosts}\nforward . {}", upstream.word()));
    assert_eq!(ask(dns.at, "known.example", "A").short(), ["192.0.2.9"]);
    assert_eq!(ask(dns.at, "known.example", "AAAA").status(), "NOERROR");
    assert_eq!(upstream.total(), 0, "a known name is ours for every type");
    assert_eq!(ask(dns.at, "unknown.example", "A").short(), ["192.0.2.1"]);
    assert_eq!(ask(dns.at, "unknown.other", "A").status(), "SERVFAIL");
    assert_eq!(upstream.total(), 1);
}

/// A hosts file is followed; if it vanishes, its names stay.
#[test]
fn hosts_file_is_followed() {
    let directory = tempdir();
    let path = directory.path().join("hosts");
    publish(&path, "192.0.2.1 x.example\n");
    let dns = Dns::start(&format!("hosts {} {{\nreload 100ms\n}}", path.display()));
    assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"]);
    publish(&path, "192.0.2.22 x.example\n");
    dns.sees("x.example", "192.0.2.22");
    std::fs::remove_file(&path).unwrap();
    dns.server.wait_for_log("the entries stay", Duration::from_secs(10));
    assert_eq!(dns.ask("x.example").short(), ["192.0.2.22"], "deleted");
    publish(&path, "192.0.2.3 x.example\n");
    dns.sees("x.example", "192.0.2.3");
}

/// No name is lost while a hosts file is written.
#[test]
fn hosts_file_during_a_write() {
    let directory = tempdir();
    let path = directory.path().join("hosts");
    publish(&path, "192.0.2.9 first.example\n192.0.2.1 x.example\n");
    let dns = Dns::start(&format!("hosts {} {{\nreload 1s\n}}", path.display()));
    // Written in place, and different at each check of the file.
    for text in [
        "",
        "192.0.2.9 first.example\n192",
        "192.0.2.9 first.example\n192.0.2.2",
        "192.0.2.9 first.example\n192.0.2.2 x.exa",
    ] {
        std::fs::write(&path, text).unwrap();
        for _ in 0..10 {
            assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"], "while the file reads {text:?}");
            // Spreads the forty queries over more than a second, so that the file is checked
            // between them.
            sleep(Duration::from_millis(30));
        }
    }
    std::fs::write(&path, "192.0.2.9 first.example\n192.0.2.2 x.example\n").unwrap();
    dns.sees("x.example", "192.0.2.2");
}

#[test]
fn hosts_file_written_later() {
    let directory = tempdir();
    let path = directory.path().join("hosts");
    let dns = Dns::start(&format!("hosts {} {{\nreload 100ms\n}}", path.display()));
    assert_eq!(ask(dns.at, "x.example", "A").status(), "SERVFAIL");
    std::fs::write(&path, "192.0.2.1 x.example\n").unwrap();
    dns.sees("x.example", "192.0.2.1");
}

/// Bad lines are skipped, and the first ten are logged.
#[test]
fn bad_hosts_lines_are_skipped() {
    let directory = tempdir();
    let path = directory.path().join("hosts");
    let bad: String = (0..15).map(|n| format!("999.1.1.{n} bad{n}.example\n")).collect();
    std::fs::write(&path, format!("192.0.2.1 first.example\n{bad}192.0.2.2 last.example\n")).unwrap();
    let dns = Dns::start(&format!("hosts {}", path.display()));
    assert_eq!(ask(dns.at, "first.example", "A").short(), ["192.0.2.1"]);
    assert_eq!(ask(dns.at, "last.example", "A").short(), ["192.0.2.2"]);
    assert_eq!(ask(dns.at, "bad3.example", "A").status(), "SERVFAIL");
    // The valid first line is line 1, so the bad ones are 2 to 16, and line 11 is the tenth of
    // them.
    let file = path.to_string_lossy();
    let warns = |log: &str, number: &str| {
        let lines = log.lines().filter(|line| line.contains(&*file));
        lines
            .map(|line| line.replace(&*file, ""))
            .any(|line| line.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == number))
    };
    let log = eventually("the tenth bad line in the log", Duration::from_secs(2), || {
        let log = dns.server.log_text();
        warns(&log, "11").then_some(log)
    });
    assert!(warns(&log, "2") && !warns(&log, "12"), "the first ten, and no more:\n{log}");
}

/// A hundred thousand lines load at once.
#[test]
fn hundred_thousand_hosts_lines() {
    let directory = tempdir();
    let path = directory.path().join("hosts");
    let text: String =
        (0..100_000).map(|n| format!("10.{}.{}.{} n{n}.example\n", n >> 16, n >> 8 & 255, n & 255)).collect();
    std::fs::write(&path, text).unwrap();
    let dns = Dns::start(&format!("hosts {}", path.display()));
    assert!(dns.server.started_in() < Duration::from_secs(2), "{:?}", dns.server.started_in());
    assert_eq!(ask(dns.at, "n99999.example", "A").short(), ["10.1.134.159"]);
}

#[test]
fn hosts_entry_replaces_cached_denial() {
    let directory = tempdir();
    let path = directory.path().join("hosts");
    std::fs::write(&path, "").unwrap();
    let upstream = Upstream::start(fresh_ip(), |_| Action::nxdomain(SOA));
    let body = format!(
        "hosts {} {{\nreload 100ms\nfallthrough\n}}\ncache 3600\nforward . {}",
        path.display(),
        upstream.word()
    );
    let dns = Dns::start(&body);
    assert_eq!(ask(dns.at, "x.example", "A").status(), "NXDOMAIN");
    std::fs::write(&path, "192.0.2.1 x.example\n").unwrap();
    dns.sees("x.example", "192.0.2.1");
}
