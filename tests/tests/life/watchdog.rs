//! Notifications of systemd: READY, STOPPING, and pings for as long as every worker answers.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use tests::{
    Action, Ask, Connection, Held, Metrics, Options, Server, Transports, Upstream, eventually, free_port,
    fresh_ip, isolated, port, run, skip, steadily, tempdir, tool,
};

use super::text;

/// systemd is notified when the server serves and when it ends.
#[test]
fn systemd_is_notified() {
    steadily(|| {
        let notify = Notify::new();
        let upstream = Upstream::start(fresh_ip(), |asked| {
            Action::answer(&format!("{} 300 IN A 192.0.2.1", asked.name))
        });
        let (first, second, port) = place("the IPv6 row of systemd_is_notified");
        let corefile = format!(
            ".:{port} {{\nbind {first} {second}\nprometheus {first}:9153\nlog\ncache\nforward . {}\n}}",
            upstream.word()
        );
        let mut server = Server::start_with(&corefile, notify.options(1_000_000));
        let page = (first, 9153).into();
        notify.wait_for("READY=1");
        for n in 0..4 {
            // Both addresses and both transports have been probed by now, but only this client is
            // counted.
            if n > 0 {
                let ip = [IpAddr::from(first), second][n % 2];
                let query = Ask::new(&format!("a{n}.example"), "A");
                let query = if n == 2 { query.tcp() } else { query };
                assert_eq!(query.of((ip, port).into()).short(), ["192.0.2.1"]);
            }
            Metrics::after_queries(page, n);
            notify.wait_for("WATCHDOG=1");
            let before = Metrics::of(page);
            for _ in 0..2 {
                notify.wait_for("WATCHDOG=1");
            }
            let after = Metrics::of(page);
            for family in ["coredns_dns_requests_total", "coredns_dns_request_duration_seconds_count"] {
                assert_eq!(after.count(family, &[]), n as f64, "{family}");
            }
            assert_eq!(counted(&after), counted(&before), "probes moved a metric");
            assert_eq!(upstream.total(), n, "probes went to the upstream");
        }
        assert!(server.stop().success());
        notify.wait_for("STOPPING=1");
        let lines = server.log_text().matches(" NOERROR ").count();
        assert_eq!(lines, 3, "its own probes are logged:\n{}", server.log_text());
    });
}

#[test]
fn no_notification_without_systemd() {
    let ip = fresh_ip();
    let corefile = format!(".:{} {{\nbind {ip}\nwhoami\n}}", port());
    for (variable, word) in [("SYSTEMD_EXEC_PID", "$PPID"), ("WATCHDOG_PID", "$PPID"), ("MANAGERPID", "1")] {
        let notify = Notify::new();
        let options = notify.inherited(150_000).export(variable, word);
        let mut server = Server::start_with(&corefile, options);
        server.wait_for_log("which must send READY", Duration::from_secs(5));
        assert!(server.stop().success());
        // A STOPPING would have arrived by now.
        assert_eq!(notify.next(Duration::from_millis(1)), None, "{variable}={word}");
    }
}

/// A server that systemd started notifies it, whatever the variables are.
#[test]
fn notification_under_systemd() {
    let ip = fresh_ip();
    let corefile = format!(".:{} {{\nbind {ip}\nwhoami\n}}", port());
    let rows: [&[(&str, &str)]; 4] = [
        &[("SYSTEMD_EXEC_PID", "$$"), ("WATCHDOG_PID", "$$")],
        &[("WATCHDOG_PID", "$$")],
        &[("MANAGERPID", "$PPID")],
        // The process that systemd started has named this one as its successor.
        &[("SYSTEMD_EXEC_PID", "1"), ("WATCHDOG_PID", "1"), ("LOCALDNS_PREDECESSOR", "$PPID")],
    ];
    for row in rows {
        let notify = Notify::new();
        let options =
            row.iter().fold(notify.inherited(300_000), |options, (name, word)| options.export(name, word));
        let mut server = Server::start_with(&corefile, options);
        for word in ["READY=1", "WATCHDOG=1"] {
            notify.wait_for(word);
        }
        assert!(server.stop().success());
        notify.wait_for("STOPPING=1");
        assert!(!server.log_text().contains("READY is left"), "{row:?}: {}", server.log_text());
    }
}

/// Two addresses, one of them IPv6 if available, and a port that is free on both.
fn place(test: &str) -> (Ipv4Addr, IpAddr, u16) {
    let loopback = IpAddr::from(Ipv6Addr::LOCALHOST);
    match UdpSocket::bind((loopback, 0)) {
        Ok(_) => (fresh_ip(), loopback, free_port(loopback)),
        Err(error) => {
            skip(test, &format!("::1: {error}"));
            (fresh_ip(), fresh_ip().into(), port())
        }
    }
}

#[test]
fn ipv6_link_local_probe_uses_link() {
    isolated(|| {
        let notify = Notify::new();
        let corefile = ".:53 {\nbind fe80::a:a 169.254.10.10\nwhoami\n}";
        let mut server = Server::start_with(corefile, notify.options(900_000));
        notify.wait_for("READY=1");
        notify.wait_for("WATCHDOG=1");
        assert!(server.stop().success());
        assert!(!server.log_text().contains("no ping"), "{}", server.log_text());
    });
}

/// The server's counters of its work, without ages and process metrics, which change by themselves.
fn counted(metrics: &Metrics) -> BTreeMap<String, f64> {
    let ours = metrics.samples().filter(|(name, ..)| {
        (name.starts_with("coredns_") || name.starts_with("localdns_")) && !name.ends_with("_age_seconds")
    });
    ours.map(|(name, labels, value)| (format!("{name} {labels:?}"), value)).collect()
}

/// Pings cease while one worker of two is stuck.
#[test]
fn no_pings_with_a_stuck_worker() {
    pings_cease("no_pings_with_a_stuck_worker", (fresh_ip(), port()).into());
}

#[test]
fn pings_cease_over_ipv6_too() {
    let (test, ip) = ("pings_cease_over_ipv6_too", IpAddr::from(Ipv6Addr::LOCALHOST));
    match UdpSocket::bind((ip, 0)) {
        Ok(_) => pings_cease(test, (ip, free_port(ip)).into()),
        Err(error) => skip(test, &format!("::1: {error}")),
    }
}

fn pings_cease(test: &str, at: SocketAddr) {
    let notify = Notify::new();
    let (ip, port, page) = (at.ip(), at.port(), SocketAddr::from((fresh_ip(), 9153)));
    let corefile = format!(".:{port} {{\nbind {ip}\nmultisocket 2\nprometheus {page}\nwhoami\n}}");
    let server = Server::start_with(&corefile, notify.options(900_000));
    let heartbeat = |age: std::ops::Range<f64>| {
        Metrics::when(page, |metrics| {
            metrics.value("localdns_worker_heartbeat_age_seconds", &[]).is_some_and(|now| age.contains(&now))
        });
    };
    notify.wait_for("READY=1");
    notify.wait_for("WATCHDOG=1");
    heartbeat(0.0..0.6);
    let workers = server.threads("worker-");
    assert_eq!(workers.len(), 2, "{workers:?}");
    let held = match Held::stop(workers[1]) {
        Ok(held) => held,
        Err(why) => return skip(test, &why.to_string()),
    };
    let line = server.wait_for_log("watchdog: no ping", Duration::from_secs(5));
    assert!(line.ends_with("does not answer over UDP (worker 1)"), "{line}");
    notify.drain();
    // Without a pause, three pings a second would arrive.
    assert_eq!(notify.next(Duration::from_secs(3)), None, "a ping although a worker stands still");
    eventually("an answer of the other worker", Duration::from_secs(5), || {
        Ask::new("a.example", "A").timeout(Duration::from_millis(100)).try_of(at).ok()
    });
    heartbeat(3.0..60.0);
    drop(held);
    notify.wait_for("WATCHDOG=1");
    heartbeat(0.0..0.6);
}

/// Pings cease while the threads that serve streams are stuck.
#[test]
fn no_pings_with_stuck_streams() {
    let test = "no_pings_with_stuck_streams";
    let notify = Notify::new();
    let corefile = format!(".:{} {{\nbind {}\nwhoami\n}}", port(), fresh_ip());
    let server = Server::start_with(&corefile, notify.options(900_000));
    notify.wait_for("READY=1");
    notify.wait_for("WATCHDOG=1");
    let held: Result<Vec<Held>, _> = server.threads("streams").into_iter().map(Held::stop).collect();
    let held = match held {
        Ok(held) => held,
        Err(why) => return skip(test, &why.to_string()),
    };
    assert!(held.len() >= 2, "{held:?}");
    // The thread that logs this is not one of them.
    let line = server.wait_for_log("watchdog: no ping", Duration::from_secs(10));
    assert!(line.ends_with("does not answer over TCP"), "{line}");
    notify.drain();
    assert_eq!(notify.next(Duration::from_secs(3)), None, "a ping although no thread serves streams");
    drop(held);
    notify.wait_for("WATCHDOG=1");
}

/// It neither has the server killed nor hides a stuck one.
#[test]
fn flood_without_room_for_probes() {
    let test = "flood_without_room_for_probes";
    isolated(|| {
        if !tool(test, "nft") {
            return;
        }
        let notify = Notify::new();
        let at: SocketAddr = "127.0.0.1:53".parse().unwrap();
        let corefile = format!(".:53 {{\nbind {}\nmultisocket 2\nwhoami\n}}", at.ip());
        let server = Server::start_with(&corefile, notify.options(900_000));
        notify.wait_for("READY=1");
        // The effect of a full receive buffer, for our own probes alone: the third label of their
        // name is "probe".
        run("nft", &["add table inet flood"]);
        run("nft", &["add chain inet flood input { type filter hook input priority 0; }"]);
        thread::scope(|scope| {
            let (stop, stopped) = mpsc::channel::<()>();
            scope.spawn(move || {
                while stopped.try_recv() == Err(TryRecvError::Empty) {
                    // Each from another port: the kernel spreads them over the workers.
                    drop(Ask::new("a.example", "A").timeout(Duration::from_millis(5)).try_of(at));
                }
            });
            run("nft", &["add rule inet flood input udp dport 53 @th,432,48 0x0570726f6265 drop"]);
            notify.drain();
            for _ in 0..4 {
                notify.wait_for("WATCHDOG=1");
            }
            assert!(!server.log_text().contains("no ping"), "{}", server.log_text());
            let workers = server.threads("worker-");
            let held = match Held::stop(workers[1]) {
                Ok(held) => held,
                Err(why) => return skip(test, &why.to_string()),
            };
            let line = server.wait_for_log("no ping", Duration::from_secs(5));
            assert!(line.ends_with("does not answer over UDP (worker 1)"), "{line}");
            notify.drain();
            assert_eq!(notify.next(Duration::from_secs(3)), None, "a ping although a worker stands still");
            drop(held);
            notify.wait_for("WATCHDOG=1");
            drop(stop);
        });
        // Without the flood, a probe that no worker receives counts as unanswered.
        server.wait_for_log("does not answer over UDP (worker 0, 1)", Duration::from_secs(10));
    });
}

/// Pings cease while connections are accepted but not read.
#[test]
fn no_pings_with_unread_connections() {
    let test = "no_pings_with_unread_connections";
    isolated(|| {
        if !tool(test, "nft") {
            return;
        }
        let notify = Notify::new();
        let at: SocketAddr = "127.0.0.1:53".parse().unwrap();
        let corefile = format!(".:53 {{\nbind {}\nwhoami\n}}", at.ip());
        let server = Server::start_with(&corefile, notify.options(900_000));
        notify.wait_for("READY=1");
        run("nft", &["add table inet hang"]);
        run("nft", &["add chain inet hang input { type filter hook input priority 0; }"]);
        thread::scope(|scope| {
            let (stop, stopped) = mpsc::channel::<()>();
            scope.spawn(move || {
                let patience = Duration::from_secs(5);
                let mut client = Connection::open_from([127, 0, 0, 2].into(), at, patience).unwrap();
                while stopped.try_recv() == Err(TryRecvError::Empty) {
                    client.exchange(&Ask::new("a.example", "A").bytes()).unwrap();
                }
            });
            // Drops the data of our own probes, but not their handshakes.
            let rule = "ip saddr 127.0.0.1 tcp dport 53 tcp flags & psh == psh drop";
            run("nft", &[&format!("add rule inet hang input {rule}")]);
            notify.drain();
            for _ in 0..4 {
                notify.wait_for("WATCHDOG=1");
            }
            assert!(!server.log_text().contains("no ping"), "{}", server.log_text());
            drop(stop);
        });
        let line = server.wait_for_log("no ping", Duration::from_secs(10));
        assert!(line.ends_with("127.0.0.1:53 does not answer over TCP"), "{line}");
        notify.drain();
        assert_eq!(notify.next(Duration::from_secs(3)), None, "a ping although no client is served over TCP");
        run("nft", &["flush chain inet hang input"]);
        notify.wait_for("WATCHDOG=1");
    });
}

#[test]
fn no_pings_with_stuck_tls_endpoint() {
    let test = "no_pings_with_stuck_tls_endpoint";
    isolated(|| {
        if !tool(test, "nft") {
            return;
        }
        let notify = Notify::new();
        let at = Transports::new("127.0.0.1:53".parse().unwrap(), 853);
        let corefile = at.block(".", "whoami");
        let server = Server::start_with(&corefile, notify.options(900_000));
        notify.wait_for("READY=1");
        for _ in 0..3 {
            notify.wait_for("WATCHDOG=1");
        }
        assert!(!server.log_text().contains("no ping"), "{}", server.log_text());
        // Drops data over TLS only: connections open, and UDP and TCP answer.
        run("nft", &["add table inet hang"]);
        run("nft", &["add chain inet hang input { type filter hook input priority 0; }"]);
        run("nft", &["add rule inet hang input tcp dport 853 tcp flags & psh == psh drop"]);
        let line = server.wait_for_log("watchdog: no ping", Duration::from_secs(10));
        assert!(line.ends_with("127.0.0.1:853 does not answer over TLS"), "{line}");
        notify.drain();
        assert_eq!(notify.next(Duration::from_secs(3)), None, "a ping although no client is served over TLS");
        assert_eq!(Ask::new("a.example", "A").of(at.at).status(), "NOERROR");
        run("nft", &["flush chain inet hang input"]);
        notify.wait_for("WATCHDOG=1");
    });
}

/// systemd's end of the notify socket.
struct Notify {
    directory: TempDir,
    socket: UnixDatagram,
}

impl Notify {
    fn new() -> Self {
        let directory = tempdir();
        let socket = UnixDatagram::bind(directory.path().join("notify")).expect("the directory is ours");
        Self { directory, socket }
    }

    /// A server that systemd started, with this socket and a watchdog interval in microseconds.
    fn options(&self, watchdog: u32) -> Options {
        self.inherited(watchdog).export("SYSTEMD_EXEC_PID", "$$")
    }

    /// A server that inherited these variables from its parent.
    fn inherited(&self, watchdog: u32) -> Options {
        Options::default()
            .env("NOTIFY_SOCKET", &self.directory.path().join("notify").to_string_lossy())
            .env("WATCHDOG_USEC", &watchdog.to_string())
    }

    /// The next message, if one arrives in time.
    fn next(&self, patience: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(patience)).expect("a timeout can be set");
        let mut buffer = [0; 4096];
        self.socket.recv(&mut buffer).ok().map(|length| text(&buffer[..length]))
    }

    fn wait_for(&self, part: &str) {
        let mut sent = String::new();
        while !sent.contains(part) {
            let next = self.next(Duration::from_secs(5));
            sent.push_str(&next.unwrap_or_else(|| panic!("no {part}: {sent}")));
            sent.push('\n');
        }
    }

    /// Discards the messages so far.
    fn drain(&self) {
        while self.next(Duration::from_millis(1)).is_some() {}
    }
}
