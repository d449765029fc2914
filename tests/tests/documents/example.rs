//! Corefile.example: it serves as it is, and each of its comments can be switched on.

use std::fs;
use std::time::Duration;

use tests::{Action, Options, Says, Server, Upstream, ask, assert_contains, fresh_ip, output, tempdir};

use super::{PATIENCE, check, localdns, read, stderr};

#[test]
fn the_example_corefile_answers_from_hosts_and_asks_its_upstream() {
    let upstream =
        Upstream::start(fresh_ip(), |_| Action::Reply(Says::answer("a.example. 60 IN A 192.0.2.1")));
    let ip = fresh_ip();
    let hosts = tempdir();
    let path = hosts.path().join("hosts");
    fs::write(&path, "192.0.2.99 canary.localdns.test\n").unwrap();
    let corefile = read("Corefile.example").replace("/etc/localdns/hosts", &path.to_string_lossy());
    let options = Options::default()
        .env("LOCALDNS_ADDRESS", &ip.to_string())
        .env("LOCALDNS_PORT", "5399")
        .env("LOCALDNS_UPSTREAM", &upstream.word());
    let server = Server::start_with(&corefile, options);
    assert_eq!(ask((ip, 5399).into(), "canary.localdns.test", "A").short(), ["192.0.2.99"]);
    assert_eq!(ask((ip, 5399).into(), "a.example", "A").short(), ["192.0.2.1"]);
    server.wait_for_log("\"A IN a.example. udp", Duration::from_secs(2));
}

#[test]
fn every_directive_of_the_example_can_be_switched_on_alone() {
    let example = Example::read();
    assert!(example.off.len() > 50, "{} directives in comments", example.off.len());
    for off in &example.off {
        let mut on = vec![off];
        on.extend(example.off.iter().filter(|other| off.needs(other)));
        let text = example.with(&on);
        let checked = check(&text);
        assert!(checked.status.success(), "line {}: {}\n{}", off.line + 1, off.text, stderr(&checked));
        // It is read, not passed over: a misspelt one is refused.
        if off.is_server_block() {
            continue;
        }
        let broken: Vec<String> = text
            .lines()
            .enumerate()
            .map(|(line, text)| match line == off.line {
                true => format!("zz{}", text.trim_start()),
                false => text.to_owned(),
            })
            .collect();
        assert_contains!(stderr(&check(&broken.join("\n"))), format!(":{}:1: ", off.line + 1));
    }
}

#[test]
fn every_directive_of_the_example_serves_with_all_of_its_properties() {
    let example = Example::read();
    for off in example.off.iter().filter(|off| off.above.is_empty()) {
        let inside =
            |other: &&Off| other.line == off.line || other.above.contains(&off.line) || off.needs(other);
        let on: Vec<&Off> = example.off.iter().filter(inside).collect();
        let entry = "192.0.2.98 runs.localdns.test\n        fallthrough\n    }";
        let corefile = example.with(&on).replacen("fallthrough\n    }", entry, 1);
        let ip = fresh_ip();
        let options = Options::default()
            .args(["-status", ""])
            .env("LOCALDNS_ADDRESS", &ip.to_string())
            .env("LOCALDNS_PORT", "5399")
            .env("LOCALDNS_UPSTREAM", "192.0.2.53");
        let server = Server::start_with(&corefile, options);
        let reply = ask((ip, 5399).into(), "runs.localdns.test", "A");
        assert_eq!(reply.short(), ["192.0.2.98"], "{}\n{}", off.text, server.log_text());
    }
}

#[test]
fn the_example_holds_every_directive_and_property() {
    let example = Example::read();
    let all: Vec<&Off> = example.off.iter().collect();
    let text = example.with(&all);
    let mut found: Vec<(String, String)> = Vec::new();
    let mut inside: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let word = line.split_whitespace().next().unwrap_or_default().to_owned();
        if word == "}" {
            inside.pop();
            continue;
        }
        found.push((inside.get(1).cloned().unwrap_or_default(), word.clone()));
        if line.ends_with('{') {
            inside.push(word);
        }
    }
    let holds = |directive: &str, word: &str| found.contains(&(directive.to_owned(), word.to_owned()));
    let served = output(localdns(&["-plugins"]), PATIENCE);
    for directive in String::from_utf8(served.stdout).unwrap().lines() {
        assert!(holds("", directive), "Corefile.example does not have {directive}");
    }
    for (directive, properties) in PROPERTIES {
        for property in *properties {
            assert!(holds(directive, property), "Corefile.example does not have {property} of {directive}");
        }
    }
}

/// Corefile.example, with what stands in it behind a `#`.
struct Example {
    lines: Vec<String>,
    off: Vec<Off>,
}

/// A directive, property or server block that is switched off.
#[derive(Debug)]
struct Off {
    line: usize,
    /// Without `#` and indentation.
    text: String,
    indent: usize,
    /// The line of its `}`.
    close: Option<usize>,
    /// The lines of the braces around it that are switched off as well, the outermost first.
    above: Vec<usize>,
}

impl Example {
    fn read() -> Self {
        let lines: Vec<String> = read("Corefile.example").lines().map(str::to_owned).collect();
        let mut off: Vec<Off> = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        for (line, text) in lines.iter().enumerate() {
            let bare = text.trim_start();
            // A sentence has a blank behind its `#`.
            let Some(text_off) =
                bare.strip_prefix('#').filter(|rest| rest.starts_with(|c: char| !c.is_whitespace()))
            else {
                continue;
            };
            if text_off == "}" {
                let opened = open.pop().unwrap_or_else(|| panic!("line {}: nothing is open", line + 1));
                off.iter_mut().filter(|off| off.line == opened).for_each(|off| off.close = Some(line));
                continue;
            }
            let above = open.clone();
            let indent = text.len() - bare.len();
            off.push(Off { line, text: text_off.to_owned(), indent, close: None, above });
            if text_off.ends_with(" {") {
                open.push(line);
            }
        }
        assert!(open.is_empty(), "line {} is never closed", open[0] + 1);
        Self { lines, off }
    }

    /// The text with these switched on, and the braces around them.
    fn with(&self, on: &[&Off]) -> String {
        let mut lines = self.lines.clone();
        let around = self.off.iter().filter(|off| on.iter().any(|on| on.above.contains(&off.line)));
        for line in on.iter().copied().chain(around).flat_map(|off| [Some(off.line), off.close]).flatten() {
            if lines[line].trim_start().starts_with('#') {
                lines[line] = lines[line].replacen('#', "", 1);
            }
        }
        lines.join("\n") + "\n"
    }
}

impl Off {
    fn is_server_block(&self) -> bool {
        self.indent == 0
    }

    /// Whether this one is refused without the other.
    fn needs(&self, other: &Self) -> bool {
        let pairs = [("serve_stale_policy ", "serve_stale "), ("timeouts {", "read ")];
        pairs.iter().any(|(one, needed)| self.text.starts_with(one) && other.text.starts_with(needed))
    }
}

/// The properties that CoreDNS's documents list and that are served.
const PROPERTIES: &[(&str, &[&str])] = &[
    ("bind", &["except"]),
    (
        "cache",
        &[
            "denial",
            "disable",
            "keepttl",
            "prefetch",
            "serve_stale",
            "serve_stale_policy",
            "servfail",
            "success",
        ],
    ),
    ("errors", &["consolidate", "stacktrace"]),
    (
        "forward",
        &[
            "except",
            "expire",
            "failfast_all_unhealthy_upstreams",
            "failover",
            "force_tcp",
            "health_check",
            "max_age",
            "max_concurrent",
            "max_connect_attempts",
            "max_fails",
            "max_idle_conns",
            "next",
            "next_on_nodata",
            "policy",
            "prefer_udp",
            "read_timeout",
            "resolver",
            "source_address",
            "tls",
            "tls_servername",
        ],
    ),
    ("health", &["lameduck"]),
    (
        "hosts",
        &[
            "fallthrough",
            "fallthrough_unsupported",
            "max_age",
            "no_reverse",
            "refresh",
            "refresh_family",
            "refresh_interval",
            "refresh_sinkhole",
            "refresh_via",
            "reload",
            "ttl",
        ],
    ),
    ("log", &["class"]),
    ("prometheus", &["runtime_metrics"]),
    ("ready", &["monitor"]),
    (
        "template",
        &["additional", "answer", "authority", "ederror", "expr", "fallthrough", "match", "rcode", "var"],
    ),
    ("timeouts", &["idle", "maxtcpqueries", "read", "write"]),
];
