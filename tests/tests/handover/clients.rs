//! Clients that count lost queries.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tests::{Ask, Message, Persistent, PersistentCounts, Stream, eventually, flood, now, report};

/// Answers of `hosts`, and of the upstream.
pub(crate) const LOCAL: &str = "192.0.2.1";
pub(crate) const REMOTE: &str = "192.0.2.2";

/// Queries a second over UDP in the short tests.
pub(crate) const CALM: u32 = 1_000;

/// 30 % of the measured query rate, or `HANDOVER_RATE`.
pub(crate) fn thirty_percent(at: SocketAddr) -> u32 {
    if let Ok(rate) = std::env::var("HANDOVER_RATE") {
        return rate.parse().expect("HANDOVER_RATE is queries a second");
    }
    let started = now();
    let answered = flood(at, 50_000, 500, move |n| query(n, STREAMS), right);
    answered.assert_clean();
    let measured = answered.answered as f64 / started.elapsed().as_secs_f64();
    report(&format!("measured: {measured:.0} queries a second"));
    (measured * 0.3) as u32
}

/// Clients over UDP at a constant rate, every second query a miss, and over TCP: with a connection
/// for each query, and with a persistent one.
pub(crate) struct Clients {
    started: Instant,
    /// Queries to send per second.
    rate: u32,
    /// Whether the rate must be reached.
    is_held_to_it: bool,
    streams: Vec<Stream>,
    persistent: Vec<Persistent>,
    tcp: Vec<JoinHandle<(usize, Vec<String>)>>,
    over_tcp: Vec<Arc<AtomicUsize>>,
    stop: Arc<AtomicBool>,
}

impl Clients {
    /// Starts clients with `rate` queries a second over UDP.
    pub(crate) fn start(at: SocketAddr, rate: u32) -> Self {
        let started = now();
        // Each has its own port, so that every socket has clients.
        let streams = (0..STREAMS).map(|stream| {
            let rate = (rate / STREAMS).max(1);
            Stream::start(at, rate, move |n| query(n, stream), right)
        });
        let streams = streams.collect();
        let persistent = STREAMS..STREAMS + 2;
        let persistent = persistent.map(|stream| Persistent::start(at, move |n| query(n, stream), right));
        let persistent = persistent.collect();
        let stop = Arc::new(AtomicBool::new(false));
        let over_tcp: Vec<_> = (0..2).map(|_| Arc::<AtomicUsize>::default()).collect();
        let tcp = over_tcp.iter().enumerate();
        let tcp = tcp.map(|(client, asked)| tcp_client(at, client, asked.clone(), stop.clone())).collect();
        Self { started, rate, is_held_to_it: false, streams, persistent, tcp, over_tcp, stop }
    }

    /// Like [`Self::start`]; the test fails if less than nine tenths of the rate is reached.
    pub(crate) fn held_to(at: SocketAddr, rate: u32) -> Self {
        Self { is_held_to_it: true, ..Self::start(at, rate) }
    }

    /// The number of queries sent over UDP.
    pub(crate) fn sent(&self) -> usize {
        self.streams.iter().map(Stream::sent).sum()
    }

    /// Stops them, and asserts that every query got one valid reply; returns the least number of
    /// times that a persistent connection ended.
    pub(crate) fn finish(self) -> usize {
        eventually("queries over TCP", Duration::from_secs(10), || {
            let persistent = self.persistent.iter().map(Persistent::asked);
            let asked = self.over_tcp.iter().map(|asked| asked.load(Ordering::Relaxed));
            asked.chain(persistent).all(|asked| asked > 10).then_some(())
        });
        self.stop.store(true, Ordering::Relaxed);
        let (sent, length) = (self.sent(), self.started.elapsed());
        let wanted = 0.9 * f64::from(self.rate) * length.as_secs_f64();
        for stream in self.streams {
            stream.finish(Duration::from_secs(5)).assert_clean();
        }
        let persistent: Vec<_> = self.persistent.into_iter().map(Persistent::finish).collect();
        let (each_second, asked) = (sent as f64 / length.as_secs_f64(), self.over_tcp.iter());
        let asked: usize = asked.map(|asked| asked.load(Ordering::Relaxed)).sum();
        println!("measured: {sent} over UDP, {each_second:.0} a second, and {asked} over TCP: all answered");
        let sum = |of: fn(&PersistentCounts) -> usize| persistent.iter().map(of).sum::<usize>();
        let (kept, again, ends) = (sum(|one| one.asked), sum(|one| one.again), sum(|one| one.ends));
        println!(
            "measured: {kept} over connections that were kept, {again} of them asked again after {ends} ends"
        );
        assert!(!self.is_held_to_it || sent as f64 >= wanted, "{sent} queries are less than {wanted:.0}");
        for client in self.tcp {
            let (asked, failed) = client.join().expect("a client does not panic");
            assert!(failed.is_empty(), "{} of {asked} over TCP: {:?}", failed.len(), failed.first());
        }
        persistent.iter().for_each(PersistentCounts::assert_clean);
        persistent.iter().map(|one| one.ends).min().unwrap_or_default()
    }
}

fn query(n: usize, stream: u32) -> Ask {
    match n % 2 {
        0 => Ask::new("x.example", "A"),
        _ => Ask::new(&format!("n{n}.s{stream}.example"), "A"),
    }
}

fn right(n: usize, message: &Message) -> bool {
    message.answers.first().is_some_and(|record| record.data == [LOCAL, REMOTE][n % 2])
}

fn tcp_client(
    at: SocketAddr,
    client: usize,
    count: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<(usize, Vec<String>)> {
    thread::spawn(move || {
        let (mut asked, mut failed) = (0, Vec::new());
        while !stop.load(Ordering::Relaxed) {
            let next = now() + Duration::from_millis(10);
            let (name, wanted) = match asked % 2 {
                0 => ("x.example".to_owned(), LOCAL),
                _ => (format!("n{asked}.t{client}.example"), REMOTE),
            };
            asked += 1;
            count.store(asked, Ordering::Relaxed);
            match Ask::new(&name, "A").tcp().try_of(at) {
                Ok(reply) if reply.short() == [wanted] => {}
                Ok(reply) => failed.push(format!("query {asked}: {reply:?}")),
                Err(error) => failed.push(format!("query {asked}: {error:#}")),
            }
            thread::sleep(next.saturating_duration_since(now()));
        }
        (asked, failed)
    })
}

const STREAMS: u32 = 8;
