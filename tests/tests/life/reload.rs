//! Signals, reloads under load, and the stop.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tests::{
    Action, Ask, Connection, Message, Metrics, Options, Server, Stream, Upstream, ask, assert_contains,
    eventually, fresh_ip, http_get, port, signal, steadily, tempdir,
};

#[test]
fn signals_end_it_or_reload_it() {
    for (signal, code) in [("TERM", Some(0)), ("INT", Some(0)), ("QUIT", Some(0))] {
        let ip = fresh_ip();
        let mut server = Server::start(&format!(".:{} {{\nbind {ip}\nwhoami\n}}", port()));
        server.signal(signal);
        assert_eq!(server.wait(Duration::from_secs(10)).code(), code, "{signal}");
    }
    for signal in ["USR1", "HUP"] {
        let dns = Reloaded::start("");
        for last in [2, 3] {
            dns.server.write_corefile(&dns.corefile(last, ""));
            dns.server.signal(signal);
            dns.sees(&format!("192.0.2.{last}"));
        }
        dns.server.wait_for_lines("Reloading complete", 2, Duration::from_secs(2));
        let lines: Vec<String> = dns.server.wait_for_lines("Reloading", 6, Duration::from_secs(2));
        let by = format!("[INFO] SIG{signal}: Reloading");
        assert_eq!(lines, [&*by, "[INFO] Reloading", "[INFO] Reloading complete"].repeat(2), "{signal}");
    }
}

/// The log lines of CoreDNS and localdns about starts, reloads and stops are the same, in this
/// order, except for the version.
#[test]
fn log_of_a_run_matches_coredns() {
    let ip = fresh_ip();
    let corefile = |more: &str| {
        format!(".:{0} b.example:{0} A.example:{0} {{\nbind {ip}\nreload 2s 1s\nwhoami\n{more}\n}}", port())
    };
    let mut server = Server::start(&corefile(""));
    server.signal("USR1");
    server.wait_for_log("Reloading complete", Duration::from_secs(10));
    server.write_corefile(&corefile("nonsense"));
    server.wait_for_log("Corefile changed but reload failed", Duration::from_secs(10));
    server.signal("INT");
    server.wait(Duration::from_secs(10));
    let hash = "Running configuration SHA512 = ";
    let lines = server.log_lines();
    let lines: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with('[') || line.contains(" on "))
        .map(|line| line.split_once(hash).map_or(line.as_str(), |(start, _)| start))
        .collect();
    let zone = |zone: &str| format!("{zone}:{} on {ip}", port());
    let place = format!("{}:5:1: unknown directive \"nonsense\"; ", server.path("Corefile").display());
    let remedy = "`localdns -plugins` lists those that are served";
    assert_eq!(
        lines,
        [
            zone(".").as_str(),
            &zone("a.example."),
            &zone("b.example."),
            "[INFO] plugin/reload: ",
            "[INFO] SIGUSR1: Reloading",
            "[INFO] Reloading",
            "[INFO] plugin/reload: ",
            "[INFO] Reloading complete",
            "[INFO] Reloading",
            &format!("[ERROR] Restart failed: {place}{remedy}"),
            &format!("[ERROR] plugin/reload: Corefile changed but reload failed: {place}{remedy}"),
            "[INFO] SIGINT: Shutting down",
        ]
    );
}

#[test]
fn unservable_corefile_is_tried_once() {
    let (ip, consolidate) = (fresh_ip(), "errors {\nconsolidate 5s \".*\"\n}");
    let corefile = |more: &str| format!(".:{} {{\nbind {ip}\nreload 2s 1s\n{consolidate}\n{more}}}", port());
    let server = Server::start(&corefile(""));
    server.write_corefile(&corefile("nonsense\n"));
    server.wait_for_log("Restart failed", Duration::from_secs(10));
    // This line follows 5 s later, after another check of the file.
    ask((ip, port()).into(), "a.example", "A");
    server.wait_for_log("1 errors like", Duration::from_secs(20));
    assert_eq!(server.log_lines().iter().filter(|line| line.contains("Restart failed")).count(), 1);
}

/// `status` gives the cause of a failed reload until one succeeds.
#[test]
fn status_explains_a_failed_reload() {
    let ip = fresh_ip();
    let admin = SocketAddr::from((ip, 9153));
    let corefile = |more: &str| format!(".:{} {{\nbind {ip}\nprometheus {admin}\nwhoami\n{more}}}", port());
    let server = Server::start(&corefile(""));
    let printed = || {
        let printed = super::localdns(&["status", "-status", &admin.to_string()]);
        assert!(printed.status.success());
        String::from_utf8(printed.stdout).unwrap()
    };
    let status =
        || -> Value { serde_json::from_str(&http_get(admin, "/status").unwrap().1).expect("one object") };
    assert_eq!((status()["reload_failed"].clone(), &*printed()), (Value::Null, "no names are refreshed\n"));
    // The page is cached for 250 ms.
    let becomes = |failed: bool| {
        let cause = || Some(status()["reload_failed"].clone()).filter(|cause| cause.is_null() != failed);
        eventually("the reload's end", Duration::from_secs(10), cause)
    };

    server.write_corefile(&corefile("nonsense\n"));
    server.signal("USR1");
    server.wait_for_log("Restart failed", Duration::from_secs(10));
    let place = format!("{}:5:1: unknown directive; ", server.path("Corefile").display());
    let failed = becomes(true);
    assert!(failed["error"].as_str().unwrap().starts_with(&place), "{failed}");
    assert!(failed["seconds_ago"].is_u64(), "{failed}");
    let printed_now = printed();
    assert_contains!(printed_now, "the last reload failed ");
    assert_contains!(printed_now, format!("s ago, the previous configuration is in use: {place}"));
    assert_eq!(printed_now.lines().count(), 1, "{printed_now}");

    server.write_corefile(&corefile(""));
    server.signal("USR1");
    server.wait_for_log("Reloading complete", Duration::from_secs(10));
    becomes(false);
    assert_eq!(printed(), "no names are refreshed\n");
}

/// Every line of a JSON log is an object, on both streams.
#[test]
fn json_log_lines_are_objects() {
    let is_level = |line: &str, level: &str| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(object["time"].is_string() && object["level"].is_string(), "{line}");
        assert!(!object["msg"].as_str().expect("a message").contains('\n'), "{line}");
        object["level"] == level
    };
    let json = || Options::default().args(["-log-format", "json"]);
    let ip = fresh_ip();
    let good = format!(".:{} {{\nbind {ip}\nreload\nerrors\n}}", port());
    let mut server = Server::start_with(&good, json());
    ask((ip, port()).into(), "a.example", "A");
    server.write_corefile("nonsense {");
    server.signal("HUP");
    server.wait_for_log("Restart failed", Duration::from_secs(10));
    assert!(server.stop().success());
    let errors = server.log_lines().iter().filter(|line| is_level(line, "ERROR")).count();
    assert_eq!(errors, 2, "the query's and the reload's: {}", server.log_text());
    for (corefile, options) in [
        (".:53 {\nnonsense\n}", json()),
        ("", json().args(["-bogus"])),
        (".:53 {\nbind 192.0.2.1\nwhoami\n}", json()),
    ] {
        let printed = Server::expect_failure(corefile, options);
        let printed = String::from_utf8(printed.stderr).unwrap();
        assert!(printed.lines().count() == 1 && is_level(printed.trim_end(), "FATAL"), "{printed}");
    }
}

#[test]
fn signals_count_from_the_first_answer() {
    for name in ["TERM", "INT", "QUIT"].repeat(10) {
        let (home, at) = (tempdir(), SocketAddr::from((fresh_ip(), port())));
        let corefile = home.path().join("Corefile");
        fs::write(&corefile, format!(".:{} {{\nbind {}\nwhoami\n}}", at.port(), at.ip())).unwrap();
        let mut command = Command::new(tests::binary());
        let mut child = command.arg("-conf").arg(corefile).stdout(Stdio::null()).spawn().unwrap();
        eventually("the first answer", Duration::from_secs(10), || {
            Ask::new("first.example", "A").timeout(Duration::from_millis(1)).try_of(at).ok()
        });
        signal(child.id(), name);
        let status = eventually("the end", Duration::from_secs(10), || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{name}: {status}");
    }
}

#[test]
fn second_interrupt_ends_at_once() {
    let silent = Upstream::start(fresh_ip(), |_| Action::Silent);
    for first in ["INT", "TERM"] {
        let (ip, port) = (fresh_ip(), port());
        // The stop waits for a minute of lameduck, or for a client's query.
        let waits =
            [format!("whoami\nhealth {ip}:8080 {{\nlameduck 1m\n}}"), format!("forward . {}", silent.word())];
        for (n, body) in waits.iter().enumerate() {
            let mut server = Server::start(&format!(".:{port} {{\nbind {ip}\n{body}\n}}"));
            let (client, name) = (UdpSocket::bind("0.0.0.0:0").unwrap(), format!("{first}{n}.example"));
            client.send_to(&Ask::new(&name, "A").bytes(), (ip, port)).unwrap();
            if body.starts_with("forward") {
                silent.wait_for(&format!("{name}.").to_lowercase(), 1, Duration::from_secs(5));
            }
            server.signal(first);
            server.wait_for_log("Shutting down", Duration::from_secs(5));
            assert!(server.is_running(), "{first}: {body}");
            server.signal("INT");
            assert_eq!(server.wait(Duration::from_secs(10)).code(), Some(2), "{first}: {body}");
            server.wait_for_log("SIGINT: Force quit", Duration::from_secs(2));
            assert!(!server.path("pid").exists(), "{first}: a pidfile without a process is left: {body}");
        }
    }
}

#[test]
fn reload_on_change_and_signal() {
    let mut dns = Reloaded::start("reload 2s 0");
    for (last, signal) in [(2, None), (3, Some("USR1")), (4, None), (5, Some("HUP")), (6, None)] {
        dns.server.write_corefile(&dns.corefile(last, "reload 2s 0"));
        if let Some(signal) = signal {
            dns.server.signal(signal);
        }
        dns.sees(&format!("192.0.2.{last}"));
    }
    assert!(dns.server.is_running());
}

#[test]
fn bad_corefile_keeps_the_old_one() {
    let ip = fresh_ip();
    let mut dns = Reloaded::start(&format!("reload\nprometheus {ip}:9153\nhealth {ip}:8080"));
    let bad = [
        ". {\nforwrad\n}".to_owned(),
        format!(".:{} {{\nbind 192.0.2.77\nwhoami\n}}", port()),
        "{".to_owned(),
    ];
    for (n, corefile) in bad.iter().enumerate() {
        dns.server.write_corefile(corefile);
        dns.server.signal("USR1");
        dns.server.wait_for_lines("Restart failed: ", n + 1, Duration::from_secs(5));
        assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.1"]);
        assert_eq!(http_get((ip, 8080).into(), "/health").unwrap().0, 200);
    }
    assert_eq!(Metrics::of((ip, 9153).into()).value("coredns_reload_failed_total", &[]), Some(3.0));
    fs::remove_file(dns.server.path("Corefile")).unwrap();
    dns.server.signal("USR1");
    dns.server.wait_for_lines("Restart failed: ", 4, Duration::from_secs(5));
    assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.1"]);
    assert!(dns.server.is_running());
}

#[test]
fn a_reload_keeps_cache_and_counters() {
    let upstream =
        Upstream::start(fresh_ip(), |asked| Action::answer(&format!("{} 300 IN A 192.0.2.1", asked.name)));
    let (ip, port) = (fresh_ip(), port());
    let corefile = |more: &str| {
        format!(
            ".:{port} {{\nbind {ip}\n{more}\nprometheus {ip}:9153\ncache\nforward . {}\n}}",
            upstream.word()
        )
    };
    let server = Server::start(&corefile(""));
    let at = SocketAddr::from((ip, port));
    ask(at, "x.example", "A");
    Metrics::after_queries((ip, 9153).into(), 1);
    server.write_corefile(&corefile("errors\nnsid here"));
    server.signal("USR1");
    server.wait_for_log("Reloading complete", Duration::from_secs(5));
    assert_eq!(Ask::new("x.example", "A").nsid().of(at).option(3), Some(&b"here"[..]));
    assert_eq!(upstream.count("x.example."), 1, "the cache survives");
    let metrics = Metrics::after_queries((ip, 9153).into(), 2);
    assert_eq!(metrics.value("coredns_dns_requests_total", &[("zone", ".")]), Some(2.0));
}

#[test]
fn reload_keeps_upstream_state() {
    steadily(|| {
        let silent = Upstream::start(fresh_ip(), |_| Action::Silent);
        let good = Upstream::start(fresh_ip(), |asked| {
            Action::answer(&format!("{} 300 IN A 192.0.2.1", asked.name))
        });
        let (ip, port) = (fresh_ip(), port());
        let corefile = |nsid: usize| {
            format!(
                ".:{port} {{\nbind {ip}\nnsid {nsid}\nforward . {} {} {{\npolicy sequential\nhealth_check 100ms\nmax_fails 1\n}}\n}}",
                silent.word(),
                good.word()
            )
        };
        let server = Server::start(&corefile(0));
        // Whether the first upstream got the query before the second, as it does while it is
        // considered up.
        let asked_first = |name: &str| {
            assert_eq!(ask((ip, port).into(), name, "A").short(), ["192.0.2.1"]);
            let first =
                |upstream: &Upstream| upstream.asked_for(&format!("{name}.")).first().map(|asked| asked.at);
            first(&silent).is_some_and(|at| first(&good).is_none_or(|good| at < good))
        };
        assert!(asked_first("first.example"));
        let mut n = 0;
        eventually("the silent upstream to be passed over", Duration::from_secs(20), || {
            n += 1;
            (!asked_first(&format!("n{n}.example"))).then_some(())
        });
        for reload in 1..=3 {
            server.write_corefile(&corefile(reload));
            server.signal("USR1");
            server.wait_for_lines("Reloading complete", reload, Duration::from_secs(5));
            for n in 0..5 {
                let name = format!("n{n}.after{reload}.example");
                assert!(!asked_first(&name), "{name}: the reload forgot that the upstream is down");
            }
        }
    });
}

#[test]
fn a_reload_opens_and_closes_listeners() {
    let (first, second, port) = (fresh_ip(), fresh_ip(), port());
    let corefile = |binds: &str| format!(".:{port} {{\nbind {binds}\nwhoami\n}}");
    let server = Server::start(&corefile(&first.to_string()));
    let fds = server.fds();
    let at = |ip: std::net::Ipv4Addr| SocketAddr::from((ip, port));
    for (n, binds) in [format!("{first} {second}"), second.to_string()].iter().enumerate() {
        server.write_corefile(&corefile(binds));
        server.signal("USR1");
        server.wait_for_lines("Reloading complete", n + 1, Duration::from_secs(5));
        for query in [Ask::new("x.example", "A"), Ask::new("x.example", "A").tcp()] {
            assert_eq!(query.of(at(second)).status(), "NOERROR");
        }
    }
    eventually("the old listener's end", Duration::from_secs(3), || {
        Ask::new("x.example", "A")
            .timeout(Duration::from_millis(100))
            .try_of(at(first))
            .is_err()
            .then_some(())
    });
    assert!(Connection::open(at(first), Duration::from_millis(500)).is_err());
    eventually("the descriptors as before", Duration::from_secs(5), || (server.fds() <= fds).then_some(()));
}

/// A log reader that stalls for ten seconds costs lines, but no query.
#[test]
fn stalled_log_reader_costs_no_query() {
    steadily(|| {
        let (ip, port) = (fresh_ip(), port());
        let corefile = format!(
            ".:{port} {{\nbind {ip}\nprometheus {ip}:9153\nlog\nhosts {{\n192.0.2.1 x.example\n}}\n}}"
        );
        let server = Server::start_with(&corefile, Options::default().reader());
        ask((ip, port).into(), "before.example", "A");
        server.wait_for_log("before.example.", Duration::from_secs(5));
        let right =
            |_, message: &Message| message.answers.first().is_some_and(|record| record.data == "192.0.2.1");
        let stream = Stream::start((ip, port).into(), 2_000, |_| Ask::new("x.example", "A"), right);
        // The pipe holds 64 KiB, about 700 lines, and each worker buffers 1 MiB; 20,000 lines are
        // logged.
        server.signal_reader("STOP");
        eventually("20,000 lines", Duration::from_secs(30), || (stream.sent() >= 20_000).then_some(()));
        server.signal_reader("CONT");
        let counts = stream.finish(Duration::from_secs(1));
        counts.assert_clean();
        assert!(counts.slowest < Duration::from_millis(300), "{counts:?}");
        let memory = server.rss_kb();
        assert!(memory < 128 << 10, "{memory} KiB");
        ask((ip, port).into(), "after.example", "A");
        server.wait_for_log("after.example.", Duration::from_secs(5));
        eventually("every line written or counted as dropped", Duration::from_secs(5), || {
            let written = server.log_lines().iter().filter(|line| line.contains("x.example. udp")).count();
            let dropped = Metrics::of((ip, 9153).into()).value("localdns_log_lines_dropped_total", &[])?;
            (written as f64 + dropped == counts.sent as f64).then_some(())
        });
    });
}

/// A query in flight at a stop is answered.
#[test]
fn query_in_flight_at_a_stop() {
    let upstream = Upstream::start(fresh_ip(), |asked| {
        Action::answer(&format!("{} 300 IN A 192.0.2.1", asked.name)).after(Duration::from_millis(300))
    });
    let (ip, port) = (fresh_ip(), port());
    let mut server = Server::start(&format!(".:{port} {{\nbind {ip}\nforward . {}\n}}", upstream.word()));
    let asking = std::thread::spawn(move || ask((ip, port).into(), "slow.example", "A"));
    upstream.wait_for("slow.example.", 1, Duration::from_secs(2));
    server.signal("TERM");
    assert_eq!(asking.join().unwrap().short(), ["192.0.2.1"]);
    assert_eq!(server.wait(Duration::from_secs(10)).code(), Some(0));
}

/// A server with one name, which identifies its Corefile.
struct Reloaded {
    at: SocketAddr,
    server: Server,
}

impl Reloaded {
    fn start(body: &str) -> Self {
        let at = SocketAddr::from((fresh_ip(), port()));
        let reloaded = Self { at, server: Server::start(&Self::text(at, 1, body)) };
        reloaded.sees("192.0.2.1");
        reloaded
    }

    fn corefile(&self, last: u8, body: &str) -> String {
        Self::text(self.at, last, body)
    }

    fn text(at: SocketAddr, last: u8, body: &str) -> String {
        format!(".:{} {{\nbind {}\n{body}\nhosts {{\n192.0.2.{last} x.example\n}}\n}}", at.port(), at.ip())
    }

    fn sees(&self, address: &str) {
        eventually(&format!("x.example at {address}"), Duration::from_secs(10), || {
            let reply = Ask::new("x.example", "A").timeout(Duration::from_secs(1)).try_of(self.at).ok()?;
            sleep(Duration::from_millis(5));
            (reply.short() == [address]).then_some(())
        });
    }
}
