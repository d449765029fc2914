//! Upstreams that serve one query at a time, or lose datagrams: which queries are answered, when,
//! and with how many upstream queries.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use client_quota::ClientId;
use forwarder::StanzaSpec;

use common::{Asked, Does, Question, World, answer, answers, message, ms, sequential, silent};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

type Behaviour = Box<dyn FnMut(Asked<'_>) -> Vec<Does>>;

/// Serves one query at a time for `service` each, repeated ones included.
fn serial(service: Duration) -> Behaviour {
    let mut free_at = Duration::ZERO;
    Box::new(move |asked| {
        free_at = free_at.max(asked.at) + service;
        vec![Does::Reply(free_at - asked.at, reply(asked.bytes))]
    })
}

/// Loses datagrams in both directions, each with this probability in percent; else answers after 20
/// ms.
fn lossy(percent: u32) -> Behaviour {
    let mut rng = StdRng::seed_from_u64(percent.into());
    Box::new(move |asked| {
        if rng.random_range(0..100) < percent || rng.random_range(0..100) < percent {
            return Vec::new();
        }
        vec![Does::Reply(ms(20), reply(asked.bytes))]
    })
}

fn reply(query: &[u8]) -> Vec<u8> {
    message::with_opt(answer(query), 0)
}

/// A run with its queries.
struct Run {
    world: World,
    asked: Vec<(Duration, u32)>,
}

impl Run {
    fn new(behaviours: Vec<Behaviour>) -> Self {
        Self { world: World::new(sequential(), behaviours), asked: Vec::new() }
    }

    /// Queries a new name.
    fn ask(&mut self) {
        let name = format!("n{}.example.org", self.asked.len());
        let at = self.world.time();
        let waiter = self.world.ask(&name);
        self.asked.push((at, waiter));
    }

    /// Sends `per_second` queries a second for `seconds`.
    fn load(&mut self, per_second: u64, seconds: u64) {
        for _ in 0..per_second * seconds {
            self.ask();
            self.world.run_for(Duration::from_micros(1_000_000 / per_second));
        }
    }

    fn finish(&mut self) {
        self.world.run_for(ms(12_000));
    }

    /// Returns the number of answered queries among those sent since `from`, and the number of all
    /// of these.
    fn answered_from(&self, from: Duration) -> (usize, usize) {
        let late = self.asked.iter().filter(|(at, _)| *at >= from);
        (late.clone().filter(|(_, waiter)| self.world.result(*waiter).outcome.is_ok()).count(), late.count())
    }

    /// Returns the number of upstream queries per client query.
    fn amplification(&self) -> f64 {
        self.world.net.got.len() as f64 / self.asked.len() as f64
    }

    /// Returns the wait at a quantile, which is given in thousandths.
    fn percentile(&self, per_mille: usize) -> Duration {
        let wait = |&(at, waiter): &(Duration, u32)| self.world.result(waiter).at - at;
        let mut waits: Vec<_> = self.asked.iter().map(wait).collect();
        waits.sort_unstable();
        waits[waits.len() * per_mille / 1_000]
    }
}

/// Under at most four fifths of the upstream's capacity and one burst, all queries are answered.
#[test]
fn bursts_at_serial_upstreams_are_answered() {
    for (service, per_second, burst) in [(30, 25, 60), (30, 25, 120), (100, 8, 20), (400, 2, 0), (400, 2, 5)]
    {
        let mut run = Run::new(vec![serial(ms(service))]);
        run.load(per_second, 5);
        (0..burst).for_each(|_| run.ask());
        run.load(per_second, 20);
        run.finish();
        let (answered, asked) = run.answered_from(Duration::ZERO);
        assert_eq!(answered, asked, "{service} ms, {per_second}/s, {burst}");
        assert!(run.amplification() <= 1.02, "{service} ms: {}", run.amplification());
    }
}

/// All queries of a burst at the start, when no round-trip time is known, are answered.
#[test]
fn bursts_at_the_start_are_answered() {
    for (service, per_second, burst) in [(30, 25, 60), (30, 25, 120), (100, 8, 20), (400, 2, 5)] {
        let mut run = Run::new(vec![serial(ms(service))]);
        (0..burst).for_each(|_| run.ask());
        run.load(per_second, 25);
        run.finish();
        let (answered, asked) = run.answered_from(Duration::ZERO);
        assert_eq!(answered, asked, "{service} ms, {per_second}/s, {burst}");
        assert!(run.amplification() <= 1.05, "{service} ms: {}", run.amplification());
    }
}

/// An upstream that becomes slow does not receive more queries.
#[test]
fn an_upstream_that_becomes_slow_is_not_asked_more() {
    for (service, per_second) in [(30, 25), (100, 8), (400, 2)] {
        let mut run = Run::new(vec![answers(1)]);
        run.load(per_second, 10);
        run.world.behave(1, serial(ms(service)));
        run.load(per_second, 30);
        run.finish();
        let (answered, asked) = run.answered_from(Duration::ZERO);
        assert_eq!(answered, asked, "{service} ms");
        assert!(run.amplification() <= 1.1, "{service} ms: {}", run.amplification());
    }
}

/// Under one and a half times its capacity, the upstream's answers are still in time, and the other
/// queries fail at once.
#[test]
fn an_overloaded_upstream_answers_what_it_can() {
    for (service, per_second) in [(30, 50), (100, 15), (400, 4)] {
        let mut run = Run::new(vec![serial(ms(service))]);
        run.load(per_second, 60);
        run.finish();
        let from = Duration::from_secs(15);
        let (answered, asked) = run.answered_from(from);
        let capacity = 45_000 / service as usize;
        assert!(answered * 10 >= capacity * 9, "{service} ms: {answered} of {asked}, {capacity} possible");
        let at_once = run.asked.iter().filter(|(at, waiter)| {
            *at >= from && run.world.result(*waiter).outcome.is_err() && run.world.result(*waiter).at == *at
        });
        assert!(at_once.count() * 10 >= (asked - answered) * 8, "{service} ms");
        assert!(run.amplification() <= 1.0, "{service} ms: {}", run.amplification());
        // The upstream recovers when the load falls.
        run.world.run_for(ms(5_000));
        let from = run.world.time();
        run.load(1_000 / service / 2, 10);
        run.finish();
        let (answered, asked) = run.answered_from(from);
        assert_eq!(answered, asked, "{service} ms");
    }
}

/// Lost datagrams delay answers by a round trip and the learned timeout, while losses are rare.
#[test]
fn lost_datagrams_cost_one_timeout() {
    for (per_second, percent, per_mille, within_ms) in [
        (1, 1, 990, 130),
        (1, 5, 980, 130),
        (100, 1, 990, 150),
        (100, 5, 990, 150),
        // Four transmissions within 0.8 s, each answered with a probability of 64 %.
        (100, 20, 980, 850),
        (1_000, 20, 980, 850),
    ] {
        let mut run = Run::new(vec![lossy(percent)]);
        run.load(per_second, if per_second == 1 { 400 } else { 30 });
        run.finish();
        let wait = run.percentile(per_mille);
        assert!(wait <= ms(within_ms), "{percent} % at {per_second}/s: {wait:?}");
        let (answered, asked) = run.answered_from(Duration::ZERO);
        assert!(answered * 100 >= asked * 98, "{percent} % at {per_second}/s: {answered} of {asked}");
    }
}

/// A recursor that needs 3 s for one name in a hundred, even if the query is repeated: longer than
/// `read_timeout`, but within the client's deadline.
#[test]
fn slow_names_are_waited_for() {
    for upstreams in [1, 2] {
        let recursor = || -> Behaviour {
            Box::new(|asked| {
                // The first label is `n` and the number of the query.
                let label = &asked.bytes[14..13 + usize::from(asked.bytes[12])];
                let after = if label.ends_with(b"50") { 3_000 } else { 2 };
                vec![Does::Reply(ms(after), reply(asked.bytes))]
            })
        };
        let mut run = Run::new((0..upstreams).map(|_| recursor()).collect());
        run.load(50, 60);
        run.finish();
        let (answered, asked) = run.answered_from(Duration::ZERO);
        assert_eq!(answered, asked, "{upstreams} upstreams");
        assert!(run.amplification() <= 1.05, "{upstreams} upstreams: {}", run.amplification());
        assert!(run.percentile(980) <= ms(2), "{:?}", run.percentile(980));
        assert!(run.percentile(999) <= ms(3_000), "the first transmission's reply is taken");
    }
}

/// When the first of two upstreams slows, dies and recovers, the second takes over meanwhile.
#[test]
fn the_second_upstream_takes_over() {
    let slow = Rc::new(RefCell::new(0));
    let first = slow.clone();
    let behaviour: Behaviour = Box::new(move |asked| match *first.borrow() {
        0 => vec![Does::Reply(ms(2), reply(asked.bytes))],
        1 => vec![Does::Reply(ms(700), reply(asked.bytes))],
        _ => Vec::new(),
    });
    let mut run = Run::new(vec![behaviour, Box::new(|asked| vec![Does::Reply(ms(2), reply(asked.bytes))])]);
    for state in [0, 1, 2, 0] {
        *slow.borrow_mut() = state;
        run.load(20, 10);
    }
    run.finish();
    let (answered, asked) = run.answered_from(Duration::ZERO);
    assert_eq!(answered, asked);
    assert!(run.percentile(999) <= ms(310), "{:?}", run.percentile(999));
    assert!(run.amplification() <= 1.5, "{}", run.amplification());
    // After its recovery the first is preferred again.
    let before = run.world.got(2);
    run.load(20, 2);
    assert_eq!(run.world.got(2), before);
}

/// An upstream that hangs for 2.5 s receives few repeated queries.
#[test]
fn a_hang_is_survived() {
    let mut run = Run::new(vec![serial(ms(30))]);
    run.load(25, 5);
    let mut free_at = run.world.time() + ms(2_500);
    run.world.behave(
        1,
        Box::new(move |asked| {
            free_at = free_at.max(asked.at) + ms(30);
            vec![Does::Reply(free_at - asked.at, reply(asked.bytes))]
        }),
    );
    run.load(25, 30);
    run.finish();
    let (answered, asked) = run.answered_from(Duration::ZERO);
    assert!(answered * 100 >= asked * 97, "{answered} of {asked}");
    let (answered, asked) = run.answered_from(Duration::from_secs(15));
    assert_eq!(answered, asked);
    assert!(run.amplification() <= 1.1, "{}", run.amplification());
}

/// A dead upstream receives two or three transmissions of each query.
#[test]
fn a_dead_upstream_is_asked_little() {
    let mut run = Run::new(vec![silent()]);
    run.load(25, 20);
    run.finish();
    assert_eq!(run.answered_from(Duration::ZERO).0, 0);
    assert!(run.amplification() <= 3.0, "{}", run.amplification());
}

/// Over TCP a query is sent once more after `read_timeout` if the upstream has answered nothing
/// since; the first exchange is cancelled then.
#[test]
fn a_query_holds_one_connection() {
    let spec = StanzaSpec { force_tcp: true, ..sequential() };
    let mut world = World::new(spec, vec![silent()]);
    let waiter = world.ask("example.org");
    world.run_for(ms(5_000));
    assert!(world.result(waiter).outcome.is_err());
    let sent: Vec<_> = world.net.got.iter().map(|got| got.at.as_millis() / 100).collect();
    assert_eq!((sent, world.net.cancelled), (vec![0, 20], 1));
}

/// The failure is reported as a local limit, which is not cached, although it was counted as
/// silence before.
#[test]
fn a_query_that_waited_for_a_connection_was_not_sent() {
    let spec = StanzaSpec { force_tcp: true, ..sequential() };
    let waits = |asked: Asked<'_>| vec![Does::Wait(ms(4_700) - asked.at)];
    let mut world = World::new(spec, vec![Box::new(waits)]);
    let waiter = world.ask("example.org");
    world.run_for(ms(5_000));
    let failure = world.result(waiter).outcome.as_ref().unwrap_err();
    assert!(failure.starts_with("too many queries in flight to"), "{failure}");
}

/// The exchange is counted against the quotas of the first eight joining clients, but not of the
/// first client.
#[test]
fn joining_clients_are_counted_for_the_exchange() {
    let spec = StanzaSpec { force_tcp: true, ..sequential() };
    let mut world = World::new(spec, vec![silent()]);
    for asker in [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10] {
        world.ask_with(Question { asker, ..Question::new("example.org") }).unwrap();
    }
    assert_eq!(world.net.joined, (2..10).map(ClientId::of).collect::<Vec<_>>());
    // Over UDP there is no connection to wait for.
    let mut world = World::new(sequential(), vec![silent()]);
    for asker in [1, 2] {
        world.ask_with(Question { asker, ..Question::new("example.org") }).unwrap();
    }
    assert_eq!(world.net.joined, []);
}
