//! Clients that expect the server alone to answer: pods and the host, over UDP and TCP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tests::{Ask, Message, Persistent, PersistentCounts, Stream, eventually, flood, now, report};

use super::lab::{NAME, POD, US, within};

/// Number of handovers in a long test: 100 unless `HANDOVER_TIMES` is set.
pub(crate) fn handovers() -> usize {
    std::env::var("HANDOVER_TIMES").map_or(100, |times| times.parse().expect("HANDOVER_TIMES is a number"))
}

/// 30 % of the measured peak rate in queries a second, unless `HANDOVER_RATE` is set.
pub(crate) fn thirty_percent() -> u32 {
    if let Ok(rate) = std::env::var("HANDOVER_RATE") {
        return rate.parse().expect("HANDOVER_RATE is queries a second");
    }
    let started = now();
    let answered = flood(at(ADDRESSES[0]), 50_000, 500, |_| Ask::new(NAME, "A"), judge(is_ours));
    answered.assert_clean();
    let measured = answered.answered as f64 / started.elapsed().as_secs_f64();
    report(&format!("measured: {measured:.0} queries a second"));
    (measured * 0.3) as u32
}

/// Queries at a steady rate from the pod and the host to every address over UDP, and over TCP with
/// both a connection for each query and a persistent one.
pub(crate) struct Clients {
    started: Instant,
    /// Queries a second that each stream sends.
    rate: u32,
    /// Whether a lower rate fails the test.
    is_held_to_it: bool,
    streams: Vec<Stream>,
    persistent: Vec<Persistent>,
    tcp: Vec<JoinHandle<(usize, Vec<String>)>>,
    /// Number of queries of each client in `tcp`.
    over_tcp: Vec<Arc<AtomicUsize>>,
    stop: Arc<AtomicBool>,
}

impl Clients {
    /// Number of UDP streams.
    pub(crate) const OVER_UDP: u32 = 2 * ADDRESSES.len() as u32;

    /// Starts `rate` queries a second over UDP from each place to each address.
    pub(crate) fn start(rate: u32) -> Self {
        let places = [None, Some(POD)];
        let each = places.into_iter().flat_map(|place| ADDRESSES.map(|ip| (place, ip)));
        let keeps = |ip| Persistent::start(at(ip), |_| Ask::new(NAME, "A"), judge(is_ours));
        let persistent = each.map(|(place, ip)| placed(place, move || keeps(ip))).collect();
        Self { persistent, ..Self::of(&places, &ADDRESSES, rate, is_ours) }
    }

    /// Like [`Self::start`], but fails the test where the total rate is below nine tenths of that.
    pub(crate) fn held_to(rate: u32) -> Self {
        Self { is_held_to_it: true, ..Self::start(rate) }
    }

    /// Starts clients in these places for these addresses; `is_right` judges the answers. Without
    /// persistent connections: those break once another server answers.
    pub(crate) fn of(
        places: &[Option<&'static str>],
        addresses: &[&'static str],
        rate: u32,
        is_right: fn(&str) -> bool,
    ) -> Self {
        let (started, stop) = (now(), Arc::new(AtomicBool::new(false)));
        let places = || addresses.iter().flat_map(|&ip| places.iter().map(move |&place| (place, ip)));
        let streams =
            places().map(|(place, ip)| placed(place, move || stream(at(ip), rate, is_right))).collect();
        let over_tcp: Vec<_> = places().map(|_| Arc::<AtomicUsize>::default()).collect();
        let tcp = places().zip(&over_tcp).map(|((place, ip), count)| {
            let (count, stop) = (count.clone(), stop.clone());
            placed(place, move || thread::spawn(move || tcp(at(ip), is_right, &count, &stop)))
        });
        let tcp = tcp.collect();
        Self { started, rate, is_held_to_it: false, streams, persistent: Vec::new(), tcp, over_tcp, stop }
    }

    /// Waits until each stream has sent that many more queries over UDP.
    pub(crate) fn go_on(&self, queries: usize) {
        let before: Vec<_> = self.streams.iter().map(Stream::sent).collect();
        eventually("queries", PATIENCE, || {
            let mut sent = self.streams.iter().zip(&before);
            sent.all(|(stream, before)| stream.sent() >= before + queries).then_some(())
        });
    }

    /// Ends the clients and asserts that every query got one right reply. Returns how often each
    /// persistent connection ended, at least.
    pub(crate) fn finish(self) -> usize {
        eventually("queries over TCP", PATIENCE, || {
            let persistent = self.persistent.iter().map(Persistent::asked);
            let asked = self.over_tcp.iter().map(|asked| asked.load(Ordering::Relaxed));
            asked.chain(persistent).all(|asked| asked > 10).then_some(())
        });
        self.stop.store(true, Ordering::Relaxed);
        let (sent, length) = (self.streams.iter().map(Stream::sent).sum::<usize>(), self.started.elapsed());
        let wanted = 0.9 * f64::from(self.rate) * self.streams.len() as f64 * length.as_secs_f64();
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
            assert!(failed.is_empty(), "{} of {asked} over TCP: {failed:?}", failed.len());
        }
        persistent.iter().for_each(PersistentCounts::assert_clean);
        persistent.iter().map(|one| one.ends).min().unwrap_or_default()
    }
}

/// Sockets that `make` creates stay in that network namespace.
fn placed<T: Send + 'static>(place: Option<&'static str>, make: impl FnOnce() -> T + Send + 'static) -> T {
    match place {
        Some(pod) => within(pod, make).join().expect("a client starts"),
        None => make(),
    }
}

fn stream(at: SocketAddr, rate: u32, is_right: fn(&str) -> bool) -> Stream {
    Stream::start(at, rate, |_| Ask::new(NAME, "A"), judge(is_right))
}

fn judge(is_right: fn(&str) -> bool) -> impl Fn(usize, &Message) -> bool + Copy + Send + 'static {
    move |_, message| message.answers.first().is_some_and(|record| is_right(&record.data))
}

pub(crate) fn is_ours(responder: &str) -> bool {
    responder == US
}

/// Sends a query every 50 ms; returns their number and the failures.
fn tcp(
    at: SocketAddr,
    is_right: fn(&str) -> bool,
    count: &AtomicUsize,
    stop: &AtomicBool,
) -> (usize, Vec<String>) {
    let (mut asked, mut failed) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let next = now() + Duration::from_millis(50);
        asked += 1;
        count.store(asked, Ordering::Relaxed);
        match Ask::new(NAME, "A").tcp().try_of(at) {
            Ok(reply) if is_right(&reply.short().concat()) => {}
            Ok(reply) => failed.push(format!("query {asked} to {at}: {reply:?}")),
            Err(error) => failed.push(format!("query {asked} to {at}: {error:#}")),
        }
        thread::sleep(next.saturating_duration_since(now()));
    }
    (asked, failed)
}

/// Asserts which server answers at the addresses with the cluster's DNS as fallback, and at the
/// others, for the pod and the host over UDP and TCP.
pub(crate) fn answers_everywhere(cluster: &'static str, plain: &'static str) {
    for (ip, responder) in
        [("169.254.10.10", cluster), ("10.96.0.20", cluster), ("169.254.10.11", plain), ("fd10::11", plain)]
    {
        for tcp in [false, true] {
            let asks = move || assert_eq!(asked_at(ip, tcp), responder, "{ip}, TCP: {tcp}");
            asks();
            within(POD, asks).join().expect("it is answered");
        }
    }
}

/// Sends one query and returns the answer, which names the server.
pub(crate) fn asked_at(ip: &str, tcp: bool) -> String {
    let ask = Ask::new(NAME, "A").timeout(Duration::from_secs(2));
    if tcp { ask.tcp() } else { ask }.of(at(ip)).short().concat()
}

pub(crate) fn at(ip: &str) -> SocketAddr {
    SocketAddr::from((ip.parse::<IpAddr>().expect("an address"), 53))
}

/// The addresses of the lab's Corefile.
pub(crate) const ADDRESSES: [&str; 4] = ["169.254.10.10", "169.254.10.11", "10.96.0.20", "fd10::11"];
const PATIENCE: Duration = Duration::from_secs(15);
