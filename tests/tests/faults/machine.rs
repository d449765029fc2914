//! Failures of the machine: no descriptors, no disk space, no interface, no CPU time.

use std::fs::File;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use tests::{
    Ask, Connection, Dns, Message, Metrics, Options, Server, Stream, Upstream, add_address, ask,
    assert_contains, binary, eventually, fresh_ip, http_exchange, isolated, output, port, publish, run, skip,
    steadily, tempdir, tool,
};

use super::good;

/// Clients that use every descriptor leave enough for hits and misses.
#[test]
fn clients_that_use_every_descriptor() {
    let upstream = Upstream::start(fresh_ip(), good);
    let at = SocketAddr::from((fresh_ip(), port()));
    let text = format!(
        ".:{} {{\nbind {}\nhosts {{\n192.0.2.9 hit.example\nfallthrough\n}}\nforward . {}\n}}",
        at.port(),
        at.ip(),
        upstream.word()
    );
    let server = Server::start_with(&text, Options::default().files(96));
    // More clients than descriptors: the others wait in the kernel, or are closed.
    let mut crowd: Vec<Connection> =
        (0..200).filter_map(|_| Connection::open(at, Duration::from_secs(5)).ok()).collect();
    eventually("hardly a descriptor left", Duration::from_secs(5), || (server.fds() >= 80).then_some(()));
    // A miss needs a socket to the upstream: clients must leave descriptors for it, while
    // connections are accepted and after.
    for n in 0..40 {
        assert_eq!(ask(at, "hit.example", "A").short(), ["192.0.2.9"]);
        assert_eq!(ask(at, &format!("miss{n}.example"), "A").short(), ["192.0.2.1"], "{n}");
    }
    // A new client is accepted although all others are silent and stay connected.
    let mut new = eventually("an answer over TCP", Duration::from_secs(10), || {
        let mut new = Connection::open(at, Duration::from_millis(500)).ok()?;
        new.send(&Ask::new("hit.example", "A").bytes()).ok()?;
        new.message().ok()?;
        Some(new)
    });
    assert_eq!(ask(at, "late.example", "A").short(), ["192.0.2.1"]);
    crowd.clear();
    new.send(&Ask::new("hit.example", "A").bytes()).unwrap();
    assert_eq!(new.message().unwrap().rcode(), 0);
}

/// The limit of open files is raised as far as permitted.
#[test]
fn open_files_limit_is_raised() {
    let corefile = format!(".:{} {{\nbind {}\nwhoami\n}}", port(), fresh_ip());
    let server = Server::start_with(&corefile, Options::default().files_at_first(256));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let [soft, hard] = [0, 1].map(|at| line.split_whitespace().nth(at).unwrap());
    if hard == "256" {
        return skip("open_files_limit_is_raised", "256 is all there is");
    }
    assert_eq!(soft, hard, "{line}");
}

/// A full disk is reported before the server serves and has no later effect.
#[test]
fn full_disk_at_start_and_after() {
    isolated(|| {
        let full = tempdir();
        let path = full.path().to_string_lossy().into_owned();
        run("mount", &["-t", "tmpfs", "-o", "size=64k", "full", &path]);
        let corefile = full.path().join("Corefile");
        let ip = fresh_ip();
        let text =
            format!(".:53 {{\nbind {ip}\nlog\nerrors\nreload 2s\nhosts {{\n192.0.2.1 x.example\n}}\n}}");
        publish(&corefile, &text);
        drop(std::fs::write(full.path().join("filler"), vec![b'x'; 1 << 20]));
        let pidfile = full.path().join("pid");
        let started = |pidfile: &str, log: Stdio| {
            let mut command = Command::new(binary());
            command.args(["-conf", &corefile.to_string_lossy(), "-pidfile", pidfile]);
            command
                .stdin(Stdio::null())
                .stdout(log)
                .stderr(Stdio::piped())
                .spawn()
                .expect("the binary starts")
        };
        // No space for the pidfile.
        let ended = started(&pidfile.to_string_lossy(), Stdio::null()).wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{stderr}");
        assert_contains!(stderr, "pid");
        assert!(!pidfile.exists(), "half a pidfile is left");
        // No space for log lines.
        let log = File::create(full.path().join("log")).unwrap();
        let mut child = started("/dev/null", log.into());
        let at = SocketAddr::from((ip, 53));
        let first = eventually("an answer", Duration::from_secs(10), || {
            Ask::new("x.example", "A").timeout(Duration::from_millis(200)).try_of(at).ok()
        });
        assert_eq!(first.short(), ["192.0.2.1"]);
        let right = |_, message: &Message| message.rcode() == 0;
        let stream = Stream::start(at, 1_000, |_| Ask::new("x.example", "A"), right);
        eventually("two seconds of queries", Duration::from_secs(20), || {
            (stream.sent() >= 2_000).then_some(())
        });
        stream.finish(Duration::from_secs(1)).assert_clean();
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

/// An interface that disappears and returns is served again.
#[test]
fn interface_goes_and_returns() {
    isolated(|| {
        let link = |args: &[&str]| run("ip", args);
        link(&["link", "add", "uplink", "type", "veth", "peer", "name", "far"]);
        link(&["link", "set", "far", "up"]);
        let up = || {
            run("ip", &["link", "set", "uplink", "up"]);
            run("ip", &["address", "replace", "192.0.2.1/24", "dev", "uplink"]);
        };
        up();
        add_address("198.51.100.53/32");
        let upstream = Upstream::at("198.51.100.53:53".parse().unwrap(), good);
        let text = format!(
            ".:53 {{\nbind 192.0.2.1\nhosts {{\n192.0.2.9 hit.example\nfallthrough\n}}\nforward . {}\n}}",
            upstream.word()
        );
        let mut server = Server::start(&text);
        let at = SocketAddr::from(([192, 0, 2, 1], 53));
        assert_eq!(ask(at, "hit.example", "A").short(), ["192.0.2.9"]);
        assert_eq!(ask(at, "miss.example", "A").short(), ["192.0.2.1"]);
        for _ in 0..3 {
            run("ip", &["address", "del", "192.0.2.1/24", "dev", "uplink"]);
            run("ip", &["link", "set", "uplink", "down"]);
            let gone = Ask::new("hit.example", "A").timeout(Duration::from_millis(200)).try_of(at);
            assert!(gone.is_err(), "the address is gone");
            up();
            eventually("answers on the address that is back", Duration::from_secs(5), || {
                let ask = |name| Ask::new(name, "A").timeout(Duration::from_millis(500)).try_of(at).ok();
                let tcp = Ask::new("hit.example", "A").tcp().timeout(Duration::from_millis(500)).try_of(at);
                (ask("hit.example")?.short() == ["192.0.2.9"]
                    && ask("miss.example")?.short() == ["192.0.2.1"]
                    && tcp.is_ok())
                .then_some(())
            });
        }
        assert!(server.is_running());
    });
}

/// Each datagram that the kernel drops is counted.
#[test]
fn dropped_datagrams_are_counted() {
    let ip = fresh_ip();
    // One worker has one socket.
    let dns = Dns::start_on(
        ip,
        &format!("multisocket 1\nprometheus {ip}:9153\nhosts {{\n192.0.2.9 hit.example\n}}"),
    );
    let page = SocketAddr::from((ip, 9153));
    assert_eq!(kernel_drops(dns.at), 0);
    dns.server.signal("STOP");
    eventually("the server stopped", Duration::from_secs(5), || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", dns.server.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T').then_some(())
    });
    // Above the receive buffer of 4 MiB.
    const SENT: u32 = 12_000;
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(dns.at).unwrap();
    let query = Ask::new("hit.example", "A").option(12, &[0; 900]).bytes();
    for _ in 0..SENT {
        client.send(&query).unwrap();
    }
    let lost = kernel_drops(dns.at);
    assert!((1..SENT).contains(&lost), "{lost}");
    dns.server.signal("CONT");
    Metrics::after_queries(page, (SENT - lost) as usize);
    // The kernel reports drops with the next datagram that it accepts.
    assert_eq!(dns.ask("hit.example").short(), ["192.0.2.9"]);
    let metrics = Metrics::after_queries(page, (SENT - lost) as usize + 1);
    assert_eq!(metrics.value("localdns_kernel_drops_total", &[]), Some(f64::from(lost)));
    assert_eq!(metrics.count("coredns_dns_requests_total", &[]), f64::from(SENT - lost + 1));
}

/// The kernel's drop count for this address: the last column of /proc/net/udp.
fn kernel_drops(at: SocketAddr) -> u32 {
    let IpAddr::V4(ip) = at.ip() else { panic!("{at} is in another table") };
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), at.port());
    let table = std::fs::read_to_string("/proc/net/udp").expect("linux has it");
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(&local));
    let drops = line.and_then(|line| line.split_whitespace().next_back()?.parse().ok());
    drops.unwrap_or_else(|| panic!("no socket listens at {at}:\n{table}"))
}

/// Queries that waited during ten seconds of standstill are answered.
#[test]
fn ten_seconds_of_standstill() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), good);
        let dns = Dns::start(&format!(
            "hosts {{\n192.0.2.9 hit.example\nfallthrough\n}}\ncache\nforward . {}",
            upstream.word()
        ));
        assert_eq!(dns.ask("before.example").short(), ["192.0.2.1"]);
        // 200 datagrams fit into the receive buffer that an unprivileged process may have.
        let names = ["hit.example", "before.example"];
        let right = |n: usize, message: &Message| {
            message.answers.first().is_some_and(|record| record.data == ["192.0.2.9", "192.0.2.1"][n % 2])
        };
        let stream = Stream::start(dns.at, 20, move |n| Ask::new(names[n % 2], "A"), right);
        dns.server.signal("STOP");
        eventually("ten seconds of queries", Duration::from_secs(30), || {
            (stream.sent() >= 200).then_some(())
        });
        dns.server.signal("CONT");
        eventually("an answer", Duration::from_secs(1), || {
            Ask::new("hit.example", "A").timeout(Duration::from_millis(200)).try_of(dns.at).ok()
        });
        assert_eq!(dns.ask("after.example").short(), ["192.0.2.1"]);
        stream.finish(Duration::from_secs(2)).assert_clean();
    });
}

/// A wall clock for one process that the test sets: adds an offset to `clock_gettime`.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
static const volatile long long *jump;
static int (*true_clock)(clockid_t, struct timespec *);
__attribute__((constructor)) static void open_jump(void) {
    true_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int file = open(getenv("JUMP"), O_RDONLY);
    void *at = mmap(0, sizeof *jump, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) jump = at;
}
int clock_gettime(clockid_t id, struct timespec *out) {
    int failed = true_clock(id, out);
    if (!failed && jump && id == CLOCK_REALTIME) out->tv_sec += *jump;
    return failed;
}
"#;

/// A jump of the wall clock changes only what is printed.
#[test]
fn wall_clock_jumps_by_centuries() {
    let test = "wall_clock_jumps_by_centuries";
    if !tool(test, "cc") {
        return;
    }
    let directory = tempdir();
    let [source, library, jump] = ["clock.c", "clock.so", "jump"].map(|name| directory.path().join(name));
    std::fs::write(&source, CLOCK).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]).arg("-ldl");
    let compiled = output(cc, Duration::from_secs(60));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let now_is = |seconds: i64| {
        let file = File::options().write(true).create(true).truncate(false).open(&jump).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &seconds.to_ne_bytes(), 0).unwrap();
    };
    now_is(0);

    let upstream = Upstream::start(fresh_ip(), good);
    let at = SocketAddr::from((fresh_ip(), port()));
    let page = SocketAddr::from((at.ip(), 9153));
    let text = format!(
        "hosts {{\n192.0.2.9 hit.example\nfallthrough\n}}\ncache\nlog\nprometheus {page}\nforward . {} {{\nhealth_check 100ms\n}}",
        upstream.word()
    );
    let options = Options::default()
        .args(["-log-format", "json"])
        .env("LD_PRELOAD", &library.to_string_lossy())
        .env("JUMP", &jump.to_string_lossy());
    let server = Server::start_with(&Dns::corefile(at, &text), options);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    if !maps.contains("clock.so") {
        return skip(test, "the binary is static: nothing can be loaded before it");
    }
    let kept = ask(at, "kept.example", "A");
    assert_eq!((kept.short(), kept.answers[0].ttl), (vec!["192.0.2.1"], 300));
    let mut client = Connection::open(at, Duration::from_secs(5)).unwrap();
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs().cast_signed();
    for (n, (seconds, year)) in [(LATEST - now, "2232"), (-now, "1970"), (0, "20")].into_iter().enumerate() {
        now_is(seconds);
        assert_eq!(ask(at, "hit.example", "A").short(), ["192.0.2.9"]);
        let again = ask(at, "kept.example", "A");
        let ttl = again.answers[0].ttl;
        assert!(again.short() == ["192.0.2.1"] && (290..=300).contains(&ttl), "{seconds}: {ttl}");
        assert_eq!(upstream.count("kept.example."), 1, "{seconds}");
        let miss = format!("miss{n}.example");
        assert_eq!(ask(at, &miss, "A").short(), ["192.0.2.1"]);
        // An open connection does not become idle by the jump.
        client.send(&Ask::new("hit.example", "A").bytes()).unwrap();
        assert_eq!(client.message().unwrap().rcode(), 0);
        let metrics = Metrics::of(page);
        let ages: Vec<_> = metrics.samples().filter(|(name, ..)| name.ends_with("_age_seconds")).collect();
        assert!(
            ages.len() > 1 && ages.iter().all(|(.., age)| (0.0..60.0).contains(age)),
            "{seconds}: {ages:?}"
        );
        // The process sees the new time.
        let line = server.wait_for_log(&miss, Duration::from_secs(5));
        assert_contains!(line, &format!("\"time\":\"{year}"));
        let (head, _) = http_exchange(page, "/health").unwrap();
        let date = head.lines().find_map(|line| line.strip_prefix("date: ")).expect("a Date");
        assert!(date.split(' ').nth(3).is_some_and(|word| word.starts_with(year)), "{seconds}: {date}");
    }
}

/// In 2232, the latest time that Linux accepts; the earliest is 1970 (timekeeping's
/// `timespec64_valid_settod`).
const LATEST: i64 = 8_277_292_000;
