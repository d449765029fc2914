//! Many concurrent queries, under production's memory limit.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use tests::{
    Action, Ask, Asked, Cgroup, Message, Options, Stream, ask, eventually, fixtures, flood, isolated,
    isolated_for, now, skip, steadily,
};

use super::{NODE, Node, answer_all, at};

#[test]
fn hits_beside_a_thousand_hanging_queries() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    isolated(|| {
        steadily(|| {
            let node = Node::start("192.0.2.10 mcr.microsoft.com\n");
            assert_eq!(ask(at(NODE), "bing.com", "A").status(), "NOERROR");
            node.vnet.answer_by(|_| Action::Silent);
            let flood =
                Stream::start(at(NODE), 500, |n| Ask::new(&format!("hang{n}.example"), "A"), |_, _| true);
            let hits = Stream::start(at(NODE), 200, hit, right_hit);
            eventually("a thousand queries that hang", Duration::from_secs(10), || {
                (node.vnet.total() >= 1_000).then_some(())
            });
            let sent = hits.sent();
            eventually("a second of hits more", Duration::from_secs(10), || {
                (hits.sent() >= sent + 200).then_some(())
            });
            let hits = hits.finish(Duration::from_secs(1));
            let flood = flood.finish(Duration::from_secs(7));
            hits.assert_clean();
            assert!(hits.slowest < Duration::from_millis(200), "{hits:?}");
            assert_eq!(flood.lost, 0, "every client gets an answer: {flood:?}");
            let deadline = Duration::from_secs(5);
            assert!(flood.slowest < deadline, "clients gave up before they were answered: {flood:?}");
            // The server's own measurement: from the arrival of a query to its reply.
            let slow =
                node.server.log_lines().into_iter().find(|line| took(line).is_some_and(|took| took >= 5.0));
            assert_eq!(slow, None);
            let memory = node.server.rss_kb();
            assert!(memory < 128 << 10, "{memory} KiB");
        });
    });
}

/// Serializes the tests that load the machine, so that clients wait for the server and not for
/// another test.
static TURN: Mutex<()> = Mutex::new(());

/// The seconds at the end of a log line.
fn took(line: &str) -> Option<f64> {
    line.rsplit_once(' ')?.1.strip_suffix('s')?.parse().ok()
}

/// A million unique misses fit the memory of production.
#[test]
#[ignore = "takes minutes: a million misses under the memory limit of production"]
fn a_million_unique_misses() {
    isolated_for(Duration::from_secs(1_800), || misses_in_little_memory(1_000_000));
}

/// Unique misses fit the memory of production.
#[test]
fn unique_misses_fit_the_memory() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    isolated(|| misses_in_little_memory(50_000));
}

/// Sends `misses` new names to a server with 128 MiB, while a thousand other queries wait for
/// silent upstreams: every query is answered, and hits at once.
fn misses_in_little_memory(misses: usize) {
    let group = Cgroup::memory(128 << 20);
    let mut options = Options::default().cwd(Path::new("/"));
    match &group {
        Ok(group) => options = options.within(group),
        Err(why) => skip("the memory limit of the kernel", why),
    }
    let node = Node::start_with("192.0.2.10 mcr.microsoft.com\n", fixtures::AKS, options);
    assert_eq!(ask(at(NODE), "bing.com", "A").status(), "NOERROR");
    // The names of unanswered queries, and the time of the first.
    let hung: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let silent = || {
        let hung = Arc::clone(&hung);
        move |asked: &Asked| {
            hung.lock().expect(UNHARMED).entry(asked.name.clone()).or_insert_with(now);
            Action::Silent
        }
    };
    let silent_about = silent();
    node.vnet.answer_by(move |asked| match asked.name.starts_with("hang") {
        true => silent_about(asked),
        false => answer_all(asked, 1),
    });
    node.cluster.answer_by(silent());
    // Each waiting query fails after 4.8 s.
    let waiting = || {
        hung.lock()
            .expect(UNHARMED)
            .values()
            .filter(|since| since.elapsed() < Duration::from_millis(4_700))
            .count()
    };
    let hang = |zone| move |n| Ask::new(&format!("hang{n}.{zone}"), "A");
    let servfail = |_, message: &Message| message.rcode() == 2;
    // Each query waits for 4.8 s: about 400 over UDP, which with the misses stay below
    // `max_concurrent`, and 750 over TCP.
    let hanging = [("example", 80), ("cluster.local", 160)]
        .map(|(zone, rate)| Stream::start(at(NODE), rate, hang(zone), servfail));
    let hits = Stream::start(at(NODE), 100, hit, right_hit);
    eventually("a thousand queries that hang at once", Duration::from_secs(60), || {
        (waiting() >= 1_000).then_some(())
    });
    let (mut peak, mut least, mut most) = (0, usize::MAX, 0);
    scope(|scope| {
        let floods = [0, 1].map(|of| {
            let fresh = move |n| Ask::new(&format!("miss{of}-{n}.example"), "A");
            let right = |_, message: &Message| message.rcode() == 0 && message.answers.len() == 1;
            scope.spawn(move || flood(at(NODE), misses / 2, 128, fresh, right))
        });
        while floods.iter().any(|flood| !flood.is_finished()) {
            sleep(Duration::from_millis(100));
            peak = peak.max(node.server.rss_kb());
            (least, most) = (least.min(waiting()), most.max(waiting()));
        }
        for flood in floods {
            flood.join().expect("the flood does not panic").assert_clean();
        }
    });
    hits.finish(Duration::from_secs(1)).assert_clean();
    for hanging in hanging {
        hanging.finish(Duration::from_secs(6)).assert_clean();
    }
    let hung = hung.lock().expect(UNHARMED).len();
    assert!(most >= 1_000, "{least} to {most} queries hung beside the misses, {hung} in all");
    assert!(peak < 128 << 10, "{peak} KiB");
    if let Ok(group) = &group {
        assert_eq!(group.killed(), 0);
        let held = group.peak().unwrap_or_default() >> 10;
        eprintln!(
            "measured: {misses} misses beside {least} to {most} silent queries ({hung} in all): resident {peak} KiB at most, the group {held} KiB"
        );
    }
}

fn hit(n: usize) -> Ask {
    Ask::new(["mcr.microsoft.com", "bing.com"][n % 2], "A")
}

fn right_hit(n: usize, message: &Message) -> bool {
    message.answers.first().is_some_and(|record| record.data == ["192.0.2.10", "198.51.100.1"][n % 2])
}

/// The message of `expect` on locks of the mock upstreams.
const UNHARMED: &str = "no script panics";
