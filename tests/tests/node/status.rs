//! The report of `node status`, as text and as JSON.

use std::fs;
use std::io::ErrorKind;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tests::{Action, Ask, Server, eventually, isolated, run, signal, tool};

use super::availability::{node, status};
use super::lab::{COREFILE, Lab};

#[test]
fn status_reports_problems_and_remedies() {
    isolated(|| {
        if !tool("status", "nft") || !tool("status", "iptables") {
            return;
        }
        let lab = Lab::new();
        fs::create_dir_all("/run/systemd/resolve").expect("the test's own");
        fs::write("/run/systemd/resolve/resolv.conf", "nameserver 10.2.0.2\n").expect("the test's own");
        let server = lab.serve(&[]);
        server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
        let before = status(&server, 0);
        assert!(!before.contains("firewall"), "{before}");
        run("iptables", &["-P", "FORWARD", "DROP"]);
        run(
            "nft",
            &[
                "table inet fw { chain in { type filter hook input priority 0; policy drop; meta length 0-65535 accept; }; }",
            ],
        );
        run(
            "nft",
            &[
                "table inet fw { chain late { type filter hook output priority 0; policy drop; meta length 0-65535 accept; }; }",
            ],
        );
        // The host's resolver is looked at once all addresses answer.
        let shown = eventually("the host's resolver is looked at", Duration::from_secs(10), || {
            let shown = status(&server, 0);
            shown.contains("systemd-networkd does not run").then_some(shown)
        });
        let pid = server.pid();
        for line in [
            "rules     in place\n".to_owned(),
            format!("leases    held by process {pid}\n"),
            format!("server    process {pid}, leases of 600 ms\n"),
            "lease     169.254.10.10  held, lost 0 times, answered a probe ".to_owned(),
            "upstreams 10.2.0.2 from /run/systemd/resolve/resolv.conf; not used: no `forward` of this Corefile names 168.63.129.16\n"
                .to_owned(),
            "lookups   of this host are not sent to this server: systemd-networkd does not run".to_owned(),
            "firewall  ip filter FORWARD drops packets that its rules do not accept, on the path to the fallback; unless a rule accepts these queries, run: iptables -A FORWARD ! -i v2 -p udp -m conntrack --ctorigdst 10.3.0.2 --ctorigdstport 53 -j ACCEPT && "
                .to_owned(),
            "firewall  inet fw in drops packets that its rules do not accept, on the path to this server; unless a rule accepts these queries, run: nft 'add rule inet fw in iifname != { \"v2\" } ip daddr { 10.96.0.20, 169.254.10.10, 169.254.10.11 } meta l4proto { tcp, udp } th dport 53 accept' && nft "
                .to_owned(),
        ] {
            assert!(shown.contains(&line), "{line}\n{shown}");
        }
        // The chain `late` drops replies.
        let line = "firewall  inet fw late drops packets that its rules do not accept, on the path from this server; unless a rule accepts these replies, run: nft 'add rule inet fw late ";
        assert!(shown.contains(line), "{line}\n{shown}");
        assert_eq!(shown.matches("firewall").count(), 3, "{shown}");
        // Each remedy runs as printed.
        for line in shown.lines().filter(|line| line.starts_with("firewall")) {
            let remedy = line.rsplit_once(", run: ").expect("a remedy").1;
            run("sh", &["-ec", remedy]);
        }
        let json = json(&server);
        assert_eq!(json["well"], true, "{json}");
        assert_eq!(json["servers"][0]["pid"], pid);
        assert_eq!(json["servers"][0]["addresses"][0]["held"], true, "{json}");
        assert_eq!(json["servers"][0]["upstreams"][0], "10.2.0.2", "{json}");
        assert_eq!(json["obstacles"][0]["way"], "to the fallback", "{json}");
        assert_eq!(json["rules"], true, "{json}");
        assert_eq!(json["servers"][0]["upstreams_from"], "/run/systemd/resolve/resolv.conf", "{json}");
        assert_eq!(json["host_resolver"], json!([]), "{json}");
        for (ip, fallback) in [
            ("169.254.10.10", json!("10.96.0.10")),
            ("10.96.0.20", Value::Null),
            ("169.254.10.11", json!("10.3.0.2")),
            ("fd10::11", json!("fd03::2")),
        ] {
            let of = |list: &Value| list.as_array()?.iter().find(|one| one["address"] == ip).cloned();
            let expected =
                json!({ "address": ip, "link": "localdns", "fallback": fallback, "answers": true });
            assert_eq!(of(&json["addresses"]), Some(expected), "{json}");
            let probed = of(&json["servers"][0]["addresses"]).and_then(|one| one["probed_ms_ago"].as_u64());
            assert!(probed.is_some_and(|ago| ago < 10_000), "{ip}: {json}");
        }
        server.signal("STOP");
        let hung = status(&server, 1);
        let line = format!(
            "server    process {pid} does not report its status: it has not answered within 1 s; if it hangs, restart it\n"
        );
        assert!(hung.contains(&line), "{hung}");
        // Any process may fill its queue.
        fill_queue(pid);
        let full = status(&server, 1);
        let line = format!(
            "server    process {pid} has leases but accepts no commands; try again, and if it hangs, restart it\n"
        );
        assert!(full.contains(&line), "{full}");
        assert!(!full.contains("start the server"), "{full}");
    });
}

/// Connects without sending a command until the server's socket accepts no more.
fn fill_queue(pid: u32) {
    let table = fs::read_to_string("/proc/net/unix").expect("it is text");
    let name =
        table.split_ascii_whitespace().find(|word| word.starts_with(&format!("@localdns-node-{pid}-")));
    let path = name.expect("it listens").replacen('@', "\0", 1);
    let address = socket2::SockAddr::unix(path).expect("a name");
    let knock = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        socket.connect(&address)
    };
    let refused = std::iter::repeat_with(knock).find_map(Result::err).expect("its queue has an end");
    assert_eq!(refused.kind(), ErrorKind::WouldBlock, "{refused}");
}

#[test]
fn address_answers_without_upstreams() {
    isolated(|| {
        if !tool("status", "nft") {
            return;
        }
        let lab = Lab::new();
        // Names missing in `hosts` are forwarded.
        let corefile = COREFILE.replace("ttl 5", "ttl 5\n        fallthrough");
        let server = lab.serve_of(&corefile, &["-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
        let asked = lab.asked();
        assert_eq!(status(&server, 0).matches(", answers\n").count(), 4);
        assert_eq!(lab.asked(), asked, "no upstream is asked to know it");
        for ip in ["10.2.0.2", "10.3.0.2", "fd03::2"] {
            lab.upstream(ip).answer_by(|_| Action::Silent);
        }
        let shown = status(&server, 0);
        assert_eq!(shown.matches(", answers\n").count(), 4, "{shown}");
        let json = json(&server);
        assert_eq!(json["well"], true, "{json}");
        assert!(!shown.contains(" down: "), "no query was sent to them: {shown}");
        eventually("the failed upstreams are reported", Duration::from_secs(30), || {
            let _ = Ask::new("absent.test", "A").timeout(Duration::from_millis(100)).try_of(AT.parse().ok()?);
            let line =
                "note      10.3.0.2:53 [fd03::2]:53 down: queries without another upstream get SERVFAIL\n";
            status(&server, 0).contains(line).then_some(())
        });
        assert!(json["servers"][0]["probe"].is_null(), "it is the server's secret: {json}");
        // A stopped server's fallback answers, but is silent here.
        server.signal("STOP");
        let shown = status(&server, 1);
        assert_eq!(shown.matches(", does not answer\n").count(), 4, "{shown}");
    });
}

/// Rules that an ended server left are compared with the Corefile.
#[test]
fn left_rules_against_the_corefile() {
    isolated(|| {
        if !tool("status", "nft") {
            return;
        }
        let lab = Lab::new();
        let mut server = lab.serve(&["-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
        signal(server.pid(), "KILL");
        server.wait(Duration::from_secs(5));
        let shown = status(&server, 1);
        assert!(shown.starts_with("rules     in place\n"), "{shown}");
        let action = "; run `localdns node up` to replace them\n";
        let changed = "not those of this Corefile, or changed by another process";
        for (from, to, difference) in [
            (
                "169.254.10.11 fd10::11",
                "169.254.10.12 fd10::11",
                "169.254.10.12 of this Corefile is not in them, 169.254.10.11 is in them, and not in this Corefile",
            ),
            ("169.254.10.11 fd10::11", "169.254.10.11", "fd10::11 is in them, and not in this Corefile"),
            (
                "forward . 10.3.0.2",
                "forward . 10.3.0.9",
                "169.254.10.11 has fallback 10.3.0.2, in this Corefile 10.3.0.9",
            ),
            (
                "forward . 10.3.0.2 fd03::2",
                "forward . fd03::2",
                "169.254.10.11 has fallback 10.3.0.2, in this Corefile none",
            ),
        ] {
            server.write_corefile(&COREFILE.replace(from, to));
            let shown = status(&server, 1);
            assert!(shown.starts_with(&format!("rules     {difference}{action}")), "{to}: {shown}");
            node(&server, &["up", "-host-resolver", "none"], 0);
            assert!(status(&server, 1).starts_with("rules     in place\n"), "{to}");
            server.write_corefile(COREFILE);
            node(&server, &["up", "-host-resolver", "none"], 0);
        }
        for change in [
            "delete element inet localdns listeners4 { 169.254.10.11 }",
            "delete element inet localdns transports { 6 }",
            "add table inet localdns { flags dormant; }",
            "add chain inet localdns output { policy drop; }",
            "insert rule inet localdns failover drop",
            "add chain inet localdns theirs { type filter hook input priority 0; policy drop; }",
            "add set inet localdns theirs { type ipv4_addr; }",
        ] {
            run("nft", &[change]);
            let shown = status(&server, 1);
            assert!(shown.starts_with(&format!("rules     {changed}{action}")), "{change}: {shown}");
            node(&server, &["up", "-host-resolver", "none"], 0);
            assert!(status(&server, 1).starts_with("rules     in place\n"), "{change}");
        }
        // The server knew which upstreams were up: its choice stays in effect and is reported.
        server.write_corefile(&COREFILE.replace("forward . 10.3.0.2", "forward . 10.2.0.2 10.3.0.2"));
        let shown = status(&server, 1);
        assert!(shown.starts_with("rules     in place\n"), "{shown}");
        assert!(
            shown.contains("address   169.254.10.11  on localdns, fallback 10.3.0.2, answers\n"),
            "{shown}"
        );
    });
}

/// A note claims no `forward` where there is none.
#[test]
fn notes_are_reported_once() {
    isolated(|| {
        if !tool("status", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab
            .serve_of(&COREFILE.replace("    forward . 10.3.0.2 fd03::2\n", ""), &["-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
        let shown = status(&server, 0);
        for ip in ["169.254.10.11", "fd10::11"] {
            let note = format!(
                "note      {ip} has no fallback: it has no `forward .`; add one to its block for `.`, or its clients get no answer while no server is running\n"
            );
            assert_eq!(shown.matches(&note).count(), 1, "{shown}");
        }
        assert_eq!(shown.matches("note ").count(), 2, "{shown}");
    });
}

/// A failed reload is reported and redirects no query.
#[test]
fn failed_reload_is_reported() {
    isolated(|| {
        if !tool("status", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
        let before = status(&server, 0);
        for absent in ["reload", "resolv.conf"] {
            assert!(!before.contains(absent), "its Corefile needs no list: {before}");
        }
        let taken = "169.254.10.11:1053";
        let _taken = std::net::UdpSocket::bind(taken).expect("no other process uses it");
        let unbound = format!("{COREFILE}.:1053 {{\nbind 169.254.10.11\nwhoami\n}}\n");
        // Two Corefiles that are invalid, and one that cannot be served.
        let unserved = COREFILE.replace("169.254.10.11", "169.254.10.11 192.0.2.77%lo");
        for (corefile, cause, is_read) in [
            (COREFILE.replace("ttl 5", "ttl five"), "is not a TTL", false),
            (unserved, "plugin/bind: the address or interface cannot be used", false),
            (unbound, taken, true),
        ] {
            server.write_corefile(&corefile);
            let failed = server.log_text().matches("Restart failed").count();
            server.signal("HUP");
            server.wait_for_lines("Restart failed", failed + 1, Duration::from_secs(10));
            let shown = status(&server, 0);
            let line = shown
                .lines()
                .find(|line| line.starts_with("reload    failed "))
                .unwrap_or_else(|| panic!("{shown}"));
            assert!(line.contains(cause), "{line}");
            assert!(line.ends_with("; fix the Corefile, and run `localdns check -conf FILE`"), "{line}");
            assert_eq!(shown.contains("corefile  "), !is_read, "{shown}");
            assert!(
                shown.contains("address   169.254.10.11  on localdns, fallback 10.3.0.2, answers\n"),
                "{shown}"
            );
            assert!(shown.starts_with("rules     in place\n"), "{shown}");
        }
        server.write_corefile(COREFILE);
        server.signal("HUP");
        server.wait_for_log("Reloading complete", Duration::from_secs(10));
        assert_eq!(status(&server, 0).matches("reload").count(), 0);
    });
}

#[test]
fn json_problems_match_the_text() {
    isolated(|| {
        if !tool("status", "nft") {
            return;
        }
        let lab = Lab::new();
        fs::write("/run/resolv.conf", "search a.b\n").expect("the test's own");
        let flags = ["-host-resolver", "none", "-upstreams", "/run/resolv.conf"];
        let with_metrics = COREFILE.replacen("hosts {", "prometheus 127.0.0.1:9253\n    hosts {", 1);
        let server = lab.serve_of(&with_metrics, &flags);
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        let remedy =
            "have the network manager write its name servers to it, or name another file with -upstreams";
        let upstreams = ("upstreams", "/run/resolv.conf has no nameserver", remedy);
        eventually("the list is looked at", PATIENCE, || {
            status(&server, 0).contains("/run/resolv.conf has no nameserver").then_some(())
        });
        is_wrong(&server, 0, &[upstreams]);

        server.write_corefile(&with_metrics.replace("ttl 5", "ttl five"));
        server.signal("HUP");
        server.wait_for_log("Restart failed", PATIENCE);
        let reload = "fix the Corefile, and run `localdns check -conf FILE`";
        let corefile = "fix it; the server serves the previous one";
        is_wrong(
            &server,
            0,
            &[("corefile", "five", corefile), ("reload", "is not a TTL", reload), upstreams],
        );
        server.write_corefile(&with_metrics);
        server.signal("HUP");
        server.wait_for_log("Reloading complete", PATIENCE);
        is_wrong(&server, 0, &[upstreams]);
        let exposed = || {
            let metrics = server.metrics("127.0.0.1:9253".parse().expect("an address"));
            let of = |name, address| metrics.value(name, &[("address", address)]);
            ["169.254.10.11", "169.254.10.10"].map(|address| {
                (of("localdns_lease_held", address), of("localdns_leases_lost_total", address))
            })
        };
        assert_eq!(exposed(), [(Some(1.0), Some(0.0)), (Some(1.0), Some(0.0))]);

        // Drops our probes.
        run("nft", &["add table inet hang"]);
        run("nft", &["add chain inet hang output { type filter hook output priority 0; }"]);
        run("nft", &["add rule inet hang output meta mark 0x6c646e73 ip daddr 169.254.10.11 drop"]);
        server.wait_for_log("the lease of 169.254.10.11 ended", PATIENCE);
        let probe = "169.254.10.11 not held, lost 1 times, the last probe failed: ";
        is_wrong(&server, 1, &[("lease", probe, "if it persists, restart the server"), upstreams]);
        assert_eq!(exposed(), [(Some(0.0), Some(1.0)), (Some(1.0), Some(0.0))]);
        run("nft", &["delete table inet hang"]);
        server.wait_for_lines("queries to 169.254.10.11 are answered here", 2, PATIENCE);

        node(&server, &["down"], 0);
        let up = "run `localdns node up`, or start `node run`, which adds them once it answers";
        let adds = "run `localdns node up`";
        let down = [
            ("rules", "none", up),
            ("leases", "none held", "add the rules first"),
            ("address", "169.254.10.10 on no link, fallback 10.96.0.10, does not answer", adds),
            ("address", "169.254.10.11 on no link, ", adds),
            ("address", "10.96.0.20 on no link, ", adds),
            ("address", "fd10::11 on no link, ", adds),
            ("server", "released its leases, addresses and rules, by `node down`", "restart it"),
        ];
        is_wrong(&server, 1, &down);
        signal(server.pid(), "KILL");
        node(&server, &["up", "-host-resolver", "none"], 0);
        let cause = "none held: queries go to the fallback";
        is_wrong(&server, 1, &[("leases", cause, "start the server")]);
    });
}

/// Asserts that these are the only problems: subject, part of the problem, part of the remedy.
fn is_wrong(server: &Server, code: i32, expected: &[(&str, &str, &str)]) {
    let (shown, json) = (status(server, code), json(server));
    assert_eq!(json["format"], 1, "{json:#}");
    let problems = json["problems"].as_array().expect("a list");
    for (subject, problem, remedy) in expected {
        let is_it = |one: &&Value| {
            one["subject"] == *subject
                && one["remedy"] == *remedy
                && one["problem"].as_str().is_some_and(|text| text.contains(problem))
        };
        assert!(problems.iter().any(|one| is_it(&one)), "{subject} {problem}: {json:#}");
        let is_line = |line: &str| line.starts_with(subject) && line.ends_with(&format!("; {remedy}"));
        assert!(shown.lines().any(is_line), "{subject} {problem}: {shown}");
    }
    assert_eq!(problems.len(), expected.len(), "{json:#}");
}

const PATIENCE: Duration = Duration::from_secs(10);
const AT: &str = "169.254.10.11:53";

pub(crate) fn json(server: &Server) -> Value {
    let mut command = Command::new(tests::binary());
    command.args(["node", "status", "-json", "-conf"]).arg(server.path("Corefile"));
    let output = tests::output(command, Duration::from_secs(20));
    serde_json::from_slice(&output.stdout).expect("one object")
}
