//! A thousand hostile TCP clients, with the production Corefile: memory stays bounded, and other
//! clients are answered.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::Result;
use tests::{
    Action, Ask, Cgroup, Connection, Crowd, Message, Metrics, Options, Says, Stream, ask, fixtures, isolated,
    may_open, now, skip,
};

use super::{NODE, Node, answer_all, at, at9253};

/// Clients that never read take little memory.
#[test]
fn unread_answers_of_900_octets() {
    let _turn = turn();
    isolated(|| in_little_memory(&pipelined("wide-900.example")));
}

/// Clients that never read take little memory.
#[test]
fn unread_answers_of_4_kilobytes() {
    let _turn = turn();
    isolated(|| in_little_memory(&pipelined("wide-4000.example")));
}

/// Clients that never read take little memory.
#[test]
fn unread_answers_of_60_kilobytes() {
    let _turn = turn();
    isolated(|| in_little_memory(&pipelined("wide-60000.example")));
}

/// Announced lengths of messages that never arrive take no memory.
#[test]
fn announced_lengths_take_no_memory() {
    let _turn = turn();
    isolated(|| in_little_memory(&[0xff, 0xff]));
}

/// Long messages that are never completed take little memory.
#[test]
fn unfinished_messages_take_little_memory() {
    let _turn = turn();
    isolated(|| {
        // A valid start of a query.
        let mut message = vec![0; 65_000];
        message[..2].copy_from_slice(&[0xff, 0xff]);
        message[7] = 1;
        in_little_memory(&message);
    });
}

/// Other clients are answered beside clients that never read.
#[test]
fn others_beside_unread_answers() {
    let _turn = turn();
    isolated(|| {
        let crowd = crowd(1, 1_000, &pipelined("wide-4000.example")).slowly(20);
        others_are_served(crowd, 65_536);
    });
}

/// Other clients are answered beside half-sent messages.
#[test]
fn others_beside_half_sent_messages() {
    let _turn = turn();
    isolated(|| others_are_served(crowd(1, 1_024, &[0, 200, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]), 1));
}

/// Other clients are answered beside half-sent messages of many addresses.
#[test]
fn others_beside_many_half_sent_messages() {
    let _turn = turn();
    isolated(|| others_are_served(crowd(16, 64, &[0, 200, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]), 1));
}

/// Other clients are answered beside two thousand idle clients.
#[test]
fn others_beside_two_thousand_idle() {
    let _turn = turn();
    isolated(|| others_are_served(crowd(1, 2_000, &[]), 1));
}

/// Other clients are answered beside queries that wait for a silent upstream.
#[test]
fn others_beside_hanging_queries() {
    // An address that waits for answers on more than half of all connections may be evicted, too.
    let _turn = turn();
    isolated(|| others_are_served(crowd(1, 1_024, &framed("hang.example")), 65_536));
}

/// Large answers that one client requests but never reads cost others nothing.
#[test]
fn large_unread_answers_of_one_client() {
    let _turn = turn();
    isolated(|| {
        let node = node(Options::default().cwd(Path::new("/")));
        node.vnet.answer_by(|asked| Action::Delay(LATE, Box::new(script(asked))));
        // Eight connections with 64 queries each; the answers arrive together: 30 MiB.
        let queries: Vec<u8> = (0..64).flat_map(|n| framed(&format!("wide-50000.n{n}.example"))).collect();
        let mut slow = crowd(1, 8, &queries);
        for _ in 0..2 {
            slow.press(queries.len());
        }
        let mut honest: Vec<_> = (0..64).map(|_| connect().expect("the server accepts")).collect();
        for (n, connection) in honest.iter_mut().enumerate() {
            let name = format!("wide-4000.h{n}.example");
            connection.send(&Ask::new(&name, "TXT").bytes()).expect("a query goes out");
        }
        let answered = honest
            .iter_mut()
            .filter_map(|connection| connection.message().ok())
            .filter(|message| message.rcode() == 0 && message.answers.len() > 10);
        assert_eq!(answered.count(), honest.len());
        let evicted = Metrics::of(at9253()).count("localdns_connections_evicted_total", &[]);
        assert!(evicted > 0.0, "octets ran out");
    });
}

/// 1,024 connections that never read send these bytes repeatedly: the server stays below 64 MiB,
/// UDP is unaffected, and the memory is freed afterwards.
fn in_little_memory(octets: &[u8]) {
    if !may_open(FILES) {
        return skip("a crowd", "this process may not open enough files");
    }
    // The limit includes the page cache and the kernel's memory for the process.
    let group = Cgroup::memory(64 << 20);
    let mut options = Options::default().cwd(Path::new("/"));
    match &group {
        Ok(group) => options = options.within(group),
        Err(why) => skip("the memory limit of the kernel", why),
    }
    let mut node = node(options);
    for wide in ["wide-900.example", "wide-4000.example", "wide-60000.example"] {
        let reply = Ask::new(wide, "TXT").tcp().of(at(NODE));
        assert_eq!(reply.status(), "NOERROR", "{wide}");
    }
    let before = node.server.rss_kb();
    let udp = Stream::start(at(NODE), 200, |_| Ask::new("mcr.microsoft.com", "A"), right);
    let mut crowd = crowd(1, 1_024, octets);
    let (mut peak, mut kernel) = (0, 0);
    let until = now() + Duration::from_secs(5);
    while now() < until {
        let pressed = crowd.press(65_536);
        assert!(node.server.is_running(), "killed with {peak} KiB");
        peak = peak.max(node.server.rss_kb());
        kernel = kernel.max(kernel_kb());
        if pressed == 0 {
            sleep(Duration::from_millis(5));
        }
    }
    udp.finish(Duration::from_secs(2)).assert_clean();
    let closed = crowd.closed();
    drop(crowd);
    // The server may keep up to 8 MiB of buffers, and allocators keep some memory.
    let calm = before + (16 << 10);
    let mut after = 0;
    let back = (0..500).any(|_| {
        sleep(Duration::from_millis(10));
        after = node.server.rss_kb();
        after < calm
    });
    eprintln!(
        "measured: resident {before} KiB before, {peak} at most, {after} after; the kernel's for TCP, both ends, {kernel} KiB; {closed} closed"
    );
    assert!(peak < 64 << 10, "{peak} KiB");
    assert!(back, "{before} KiB before, {after} KiB after");
    if let Ok(group) = &group {
        assert_eq!(group.killed(), 0);
    }
}

/// Beside a crowd that sends up to `step` bytes at a time, other clients are answered: at least 99
/// of 100 queries within a second each.
fn others_are_served(mut crowd: Crowd, step: usize) {
    if !may_open(FILES) {
        return skip("a crowd", "this process may not open enough files");
    }
    let node = node(Options::default().cwd(Path::new("/")));
    node.vnet.answer_by(|asked| match asked.name.starts_with("hang.") {
        true => Action::Silent,
        false => script(asked),
    });
    for _ in 0..4 {
        crowd.press(step);
    }
    let over = AtomicBool::new(false);
    let answered = scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                crowd.press(step);
                sleep(Duration::from_millis(20));
            }
        });
        let answered = (0..ASKED).filter(|_| honest(at(NODE))).count();
        over.store(true, Relaxed);
        answered
    });
    eprintln!("measured: {answered} of {ASKED} answered beside them");
    assert!(answered * 100 >= ASKED * 99, "{answered} of {ASKED}");
    assert_eq!(ask(at(NODE), "mcr.microsoft.com", "A").status(), "NOERROR");
}

/// Sends one query on a new connection, from an address outside of the crowd.
fn honest(server: SocketAddr) -> bool {
    let asked = Connection::open_from(NODE.parse().expect("an address"), server, Duration::from_secs(1))
        .and_then(|mut connection| {
            connection.send(&Ask::new("mcr.microsoft.com", "A").bytes())?;
            connection.message()
        });
    asked.is_ok_and(|message| message.answers.len() == 1)
}

/// `each` connections from each of `from` addresses, which send these bytes.
fn crowd(from: u8, each: usize, octets: &[u8]) -> Crowd {
    Crowd::gather(at(NODE), &addresses(from), each, octets.to_vec())
}

/// A connection from an address outside of the crowd.
fn connect() -> Result<Connection> {
    Connection::open_from(NODE.parse()?, at(NODE), Duration::from_secs(8))
}

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn node(options: Options) -> Node {
    let node = Node::start_with("192.0.2.10 mcr.microsoft.com\n", fixtures::AKS, options);
    node.vnet.answer_by(script);
    node
}

/// `wide-N.example` has TXT records of about N bytes.
fn script(asked: &tests::Asked) -> Action {
    let wide =
        asked.name.strip_prefix("wide-").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    let Some(octets) = wide else { return answer_all(asked, 1) };
    let line = |n| format!("{} 300 IN TXT \"{n:0>200}\"\n", asked.name);
    Action::Reply(Says::answer(&(0..octets / 213).map(line).collect::<String>()).fitting())
}

fn right(_: usize, message: &Message) -> bool {
    message.answers.first().is_some_and(|record| record.data == "192.0.2.10")
}

/// Addresses of this machine that nothing else uses.
fn addresses(count: u8) -> Vec<IpAddr> {
    (1..=count).map(|last| IpAddr::V4(Ipv4Addr::new(127, 99, 0, last))).collect()
}

fn framed(name: &str) -> Vec<u8> {
    let query = Ask::new(name, "TXT").bytes();
    let length = u16::try_from(query.len()).expect("a query is short");
    [&length.to_be_bytes()[..], &query].concat()
}

fn pipelined(name: &str) -> Vec<u8> {
    framed(name).repeat(600)
}

/// The kernel's memory for all TCP sockets.
fn kernel_kb() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
    line.rsplit(' ').next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default() * 4
}

/// Serializes the tests that load the machine.
static TURN: Mutex<()> = Mutex::new(());
const ASKED: usize = 200;
/// After a whole crowd has sent its queries.
const LATE: Duration = Duration::from_millis(500);
const FILES: u64 = 4_096;
