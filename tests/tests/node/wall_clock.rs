//! Wall-clock jumps, forward and back, while the server runs: libfaketime intercepts its clock
//! calls.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::scope;
use std::time::Duration;

use serde_json::Value;
use tests::{
    Action, Ask, Manager, Metrics, Says, Server, Upstream, eventually, http_get, isolated_steadily, lacking,
    publish, run, tool,
};

use super::availability::status;
use super::lab::{Lab, NAME, OUTSIDE, POD, US, within, within_scope};

/// Leases, answers and ages do not follow jumps of the wall clock.
#[test]
fn wall_clock_jumps() {
    isolated_steadily(Duration::from_secs(180), || {
        let Some(library) = library().filter(|_| tool("wall clock", "nft")) else { return };
        let _lab = Lab::new();
        let upstream = upstream();
        publish(Path::new(OFFSET), "+0");
        let manager = Manager::new();
        let options = manager.options().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
        let options = options.args(["-lease", "2s"]).env("WATCHDOG_USEC", "1000000");
        let mut server = Server::start_with(
            COREFILE,
            options
                .env("LD_PRELOAD", &library.to_string_lossy())
                .env("FAKETIME_TIMESTAMP_FILE", OFFSET)
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                // Files' times stay unchanged.
                .env("NO_FAKE_STAT", "1"),
        );
        manager.wait_for("READY=1", 1, PATIENCE);
        eventually("a first round", PATIENCE, || (upstream.count("kept.test.") >= 1).then_some(()));
        let long = ttl_of("long.test");
        let asked = Asked::default();
        scope(|scope| {
            for place in [None, Some(POD)] {
                let asked = &asked;
                within_scope(scope, place, move || asked.keep_asking());
            }
            // Ends the clients in case of a panic too.
            let over = Over(&asked.over);
            for offset in ["+1d", "-1d", "+0", "-3650d", "+0"] {
                jump(offset, &server, &manager, &upstream, &asked);
            }
            drop(over);
        });
        assert_eq!(upstream.count("long.test."), 1, "it is in the cache all the while");
        assert!(ttl_of("long.test") < long, "and grows older");
        assert_eq!(manager.received("READY=1"), 1);
        assert!(server.is_running());
        let log = server.log_text();
        assert!(!log.contains("ended") && !log.contains("watchdog"), "{log}");
    });
}

/// Sets the clock and asserts that all continues: for three leases, and a round of refreshed names.
fn jump(offset: &str, server: &Server, manager: &Manager, upstream: &Upstream, asked: &Asked) {
    let before = wall();
    publish(Path::new(OFFSET), offset);
    eventually("the jump", PATIENCE, || (wall().abs_diff(before) > HOUR).then_some(()));
    let (rounds, pings, answered) =
        (upstream.count("kept.test."), manager.received("WATCHDOG=1"), asked.answered.load(Relaxed));
    let short = upstream.count("short.test.");
    eventually("clients' answers", PATIENCE, || {
        (asked.answered.load(Relaxed) >= answered + 600).then_some(())
    });
    eventually("a round", PATIENCE, || (upstream.count("kept.test.") > rounds).then_some(()));
    eventually("a ping", PATIENCE, || (manager.received("WATCHDOG=1") > pings).then_some(()));
    eventually("an answer that expires", PATIENCE, || {
        ttl_of("short.test");
        (upstream.count("short.test.") > short).then_some(())
    });
    assert!(upstream.count("kept.test.") <= rounds + 12, "names are not asked for again and again");
    assert_eq!(ttl_of("long.test") / 3000, 1, "neither new nor expired");
    let failed = asked.failed.lock().expect("no thread panics with it").clone();
    assert!(failed.is_empty(), "after {offset}: {failed:?}");
    let printed = status(server, 0);
    assert!(
        printed.contains("169.254.10.10  held, lost 0 times, answered a probe "),
        "after {offset}: {printed}"
    );
    let (code, page) = http_get(METRICS.parse().expect("an address"), "/status").expect("it answers");
    assert_eq!(code, 200);
    let page: Value = serde_json::from_str(&page).expect("one object");
    for age in ["/refresh/0/entries/0/age_seconds", "/uptime_seconds"] {
        let seconds = page.pointer(age).and_then(Value::as_u64);
        assert!(seconds.is_some_and(|seconds| seconds < 180), "{age} after {offset}: {page}");
    }
}

/// The server's wall clock, in seconds.
fn wall() -> u64 {
    let metrics = Metrics::of("127.0.0.1:9353".parse().expect("an address"));
    metrics.value("localdns_metrics_last_update_timestamp_seconds", &[]).unwrap_or_default() as u64
}

fn ttl_of(name: &str) -> u32 {
    let at: SocketAddr = "169.254.10.10:53".parse().expect("an address");
    Ask::new(name, "A").of(at).answers.first().map_or(0, |record| record.ttl)
}

/// Results of the clients' queries.
#[derive(Default)]
struct Asked {
    answered: AtomicU64,
    failed: Mutex<Vec<String>>,
    over: AtomicBool,
}

impl Asked {
    fn keep_asking(&self) {
        let at: SocketAddr = "169.254.10.10:53".parse().expect("an address");
        let (udp, tcp) = (Ask::new(NAME, "A"), Ask::new(NAME, "A").tcp());
        while !self.over.load(Relaxed) {
            for ask in [&udp, &tcp] {
                match ask.try_of(at) {
                    Ok(reply) if reply.short() == [US] => _ = self.answered.fetch_add(1, Relaxed),
                    wrong => self.failed.lock().expect("no thread panics with it").push(format!("{wrong:?}")),
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

struct Over<'s>(&'s AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// An upstream with a TTL for each name.
fn upstream() -> Upstream {
    run("ip", &["-n", OUTSIDE, "addr", "add", "10.3.0.3/32", "dev", "lo"]);
    let starts = || {
        Upstream::at("10.3.0.3:53".parse().expect("an address"), |asked| {
            let ttl = if asked.name == "short.test." { 2 } else { 5000 };
            Action::Reply(match asked.rtype {
                1 => Says::answer(&format!("{} {ttl} IN A 192.0.2.9\n", asked.name)),
                _ => Says::answer(""),
            })
        })
    };
    within(OUTSIDE, starts).join().expect("an upstream starts")
}

/// The path of libfaketime for multithreaded programs.
fn library() -> Option<PathBuf> {
    let directories = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut libraries = directories.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    let found = libraries.find(|path| path.exists());
    if found.is_none() {
        lacking("wall clock", "faketime", "libfaketime is not installed");
    }
    found
}

const OFFSET: &str = "/run/wall-clock";
const METRICS: &str = "127.0.0.1:9253";
const PATIENCE: Duration = Duration::from_secs(30);
const HOUR: u64 = 3600;
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10
    prometheus 127.0.0.1:9253
    hosts /etc/hosts.kept {
        192.0.2.1 who.test
        ttl 5
        refresh kept.test
        refresh_interval 5s jitter 1s
        refresh_via 10.3.0.3
        fallthrough
    }
    cache 3600
    forward . 10.3.0.3
}
";
