//! Upstreams that are silent, slow or down: hedges, deadlines, health, late replies, limits.

mod common;

use std::io;

use common::{
    Does, Question, Via, World, address, answer, answers, message, ms, replies_with, sequential, silent,
};
use forwarder::{ForwardError, Forwarder, Limits, Policy, StanzaSpec, UpstreamPath};
use wire::Rcode;

const NOERROR: Result<(Rcode, u16), String> = Ok((Rcode::NOERROR, 1));

/// Answers `count` queries at once, then nothing.
fn dies_after(count: usize) -> Box<dyn FnMut(common::Asked<'_>) -> Vec<Does>> {
    let reply = |asked: common::Asked<'_>| Does::Reply(ms(1), answer(asked.bytes));
    Box::new(move |asked| (asked.nth < count).then(|| reply(asked)).into_iter().collect())
}

#[test]
fn a_silent_first_upstream_costs_at_most_350_ms() {
    for (policy, force_tcp) in
        [(Policy::Sequential, false), (Policy::Sequential, true), (Policy::Random, false)]
    {
        let spec = StanzaSpec { policy, force_tcp, ..StanzaSpec::default() };
        let mut world = World::new(spec, vec![silent(), answers(20)]);
        for at in 0..40 {
            let asked = world.time();
            let waiter = world.ask(&format!("n{at}.example.org"));
            world.run_for(ms(500));
            let done = world.result(waiter);
            assert_eq!(done.outcome, NOERROR);
            assert!(done.at - asked <= ms(350), "{:?}", done.at - asked);
        }
    }
}

#[test]
fn under_load_too_a_first_upstream_that_falls_silent_costs_at_most_350_ms() {
    let mut world = World::new(sequential(), vec![dies_after(2_000), answers(2)]);
    let mut asked = Vec::new();
    for at in 0..6_000 {
        asked.push((world.time(), world.ask(&format!("n{at}.example.org"))));
        world.run_for(ms(1));
    }
    world.run_for(ms(500));
    let waits: Vec<_> = asked.iter().map(|&(at, waiter)| world.result(waiter).at - at).collect();
    assert!(waits.iter().all(|&wait| wait <= ms(350)), "{:?}", waits.iter().max());
    let slow = waits.iter().filter(|&&wait| wait > ms(10)).count();
    assert!(slow < 330, "{slow} queries waited for an upstream known to be silent");
}

#[test]
fn the_hedge_follows_the_round_trip_time() {
    let mut world = World::new(sequential(), vec![dies_after(50), answers(1)]);
    for at in 0..50 {
        world.ask(&format!("n{at}.example.org"));
        world.run_for(ms(10));
    }
    let asked = world.time();
    let waiter = world.ask("late.example.org");
    world.run_for(ms(300));
    let wait = world.result(waiter).at - asked;
    assert!((ms(100)..ms(112)).contains(&wait), "{wait:?}");
}

#[test]
fn a_single_silent_upstream_is_asked_again_and_fails_before_the_client_does() {
    let mut world = World::new(sequential(), vec![silent()]);
    let waiter = world.ask("example.org");
    world.run_for(ms(5_000));
    let done = world.result(waiter);
    assert!((ms(4_800)..ms(4_805)).contains(&done.at), "{:?}", done.at);
    let failure = done.outcome.clone().unwrap_err();
    assert!(failure.ends_with("->127.0.0.101:53: i/o timeout"), "{failure}");
    // After 0.3 s a copy is sent without OPT, as nothing is known of the upstream's EDNS. Then the
    // time-out of 1 s, as no round-trip time is known, is doubled by that copy.
    let sent: Vec<_> = world.net.got.iter().map(|got| got.at.as_millis() / 100).collect();
    assert_eq!(sent, [0, 3, 23]);
}

/// The first timeout is 1 s (RFC 6298, section 2.1), later ones are learned.
#[test]
fn lost_datagrams_are_sent_again() {
    let odd_are_lost = |asked: common::Asked<'_>| match asked.nth % 2 {
        0 => Vec::new(),
        _ => vec![Does::Reply(ms(1), message::with_opt(answer(asked.bytes), 0))],
    };
    let mut world = World::new(sequential(), vec![Box::new(odd_are_lost)]);
    let mut waits = Vec::new();
    for at in 0..12 {
        let began = world.time();
        let waiter = world.ask(&format!("n{at}.example.org"));
        world.run_for(ms(2_000));
        assert_eq!(world.result(waiter).outcome, NOERROR);
        waits.push((world.result(waiter).at - began).as_millis());
    }
    println!("{waits:?}");
    assert!(waits[0] <= 1_010 && waits[6..].iter().all(|wait| *wait <= 1_010), "{waits:?}");
}

#[test]
fn all_silent_ends_at_the_deadline() {
    for (upstreams, force_tcp) in [(2, false), (3, false), (15, false), (2, true)] {
        let spec = StanzaSpec { force_tcp, ..sequential() };
        let mut world = World::new(spec, (0..upstreams).map(|_| silent()).collect());
        let waiter = world.ask("example.org");
        world.run_for(ms(6_000));
        let at = world.result(waiter).at;
        assert!((ms(4_800)..ms(4_810)).contains(&at), "{upstreams}: {at:?}");
        assert!(world.net.got.len() <= 12, "{}", world.net.got.len());
    }
}

#[test]
fn the_third_answers_when_two_are_silent() {
    let mut world = World::new(sequential(), vec![silent(), silent(), answers(5)]);
    let waiter = world.ask("example.org");
    world.run_for(ms(1_000));
    let done = world.result(waiter);
    assert_eq!((&done.outcome, done.upstream), (&NOERROR, Some(address(3))));
    assert!(done.at < ms(620), "{:?}", done.at);
}

#[test]
fn a_slow_upstream_is_waited_for() {
    for after in [500, 1_900, 2_500, 4_700] {
        let mut world = World::new(sequential(), vec![answers(after)]);
        let waiter = world.ask("example.org");
        world.run_for(ms(5_000));
        let done = world.result(waiter);
        assert_eq!((&done.outcome, done.at), (&NOERROR, ms(after)), "{after}");
    }
}

#[test]
fn hedges_stay_within_their_budget() {
    // Every query needs a hedge: the upstreams answer after 450 ms.
    let mut world = World::new(sequential(), vec![answers(450), answers(450)]);
    for at in 0..4_000 {
        world.ask(&format!("n{at}.example.org"));
        world.run_for(ms(2));
        let hedges = world.net.got.len() - (at + 1);
        let allowed_hundredths = 10 * (at + 1) + 1_000 + world.time().as_millis() as usize;
        assert!(100 * hedges <= allowed_hundredths, "{hedges} of {allowed_hundredths} / 100 after {at}");
    }
    world.run_for(ms(1_000));
    let counted = world.upstream(1).metrics().hedges.get() + world.upstream(2).metrics().hedges.get();
    assert_eq!(counted as usize, world.net.got.len() - 4_000);
    assert!(counted > 400);
}

#[test]
fn a_suspect_is_tried_now_and_then_and_first_again_when_it_answers() {
    let mut world = World::new(sequential(), vec![silent(), answers(1)]);
    let spec = world.chain.stanzas()[0].spec().clone();
    let mut at = 0;
    let mut ask = |world: &mut World, count: usize| {
        let mut waits = Vec::new();
        for _ in 0..count {
            at += 1;
            let asked = world.time();
            let waiter = world.ask(&format!("n{at}.example.org"));
            world.run_for(ms(10));
            waits.push((waiter, asked));
        }
        world.run_for(ms(400));
        waits.iter().filter(|&&(waiter, asked)| world.result(waiter).at - asked > ms(10)).count()
    };
    let slow = ask(&mut world, 100);
    assert!((3..=40).contains(&slow), "{slow}");
    let before = world.got(1);
    assert_eq!(ask(&mut world, 400), 0, "the suspect is not asked first");
    let trials = world.got(1) - before;
    assert!((8..=20).contains(&trials), "{trials} trials in 4 s");
    assert!(!world.upstream(1).is_down(UpstreamPath::Udp, spec.max_fails), "only probes decide that");
    world.behave(1, answers(1));
    assert_eq!(ask(&mut world, 60), 0);
    let before = world.got(2);
    ask(&mut world, 50);
    assert_eq!(world.got(2), before, "the first is asked first again");
}

#[test]
fn the_first_good_reply_wins_over_an_earlier_servfail() {
    let mut world = World::new(sequential(), vec![answers(400), replies_with(Rcode::SERVFAIL, 10)]);
    let waiter = world.ask("example.org");
    world.run_for(ms(1_000));
    let done = world.result(waiter);
    assert_eq!((&done.outcome, done.at), (&NOERROR, ms(400)));

    let mut world = World::new(sequential(), vec![silent(), replies_with(Rcode::SERVFAIL, 10)]);
    let waiter = world.ask("example.org");
    world.run_for(ms(5_000));
    let done = world.result(waiter);
    assert_eq!(done.outcome, Ok((Rcode::SERVFAIL, 0)));
    assert!((ms(2_000)..ms(2_010)).contains(&done.at), "{:?}", done.at);
}

/// A late reply fills the cache, and answers clients that query meanwhile.
#[test]
fn late_reply_fills_cache() {
    let mut world = World::new(sequential(), vec![answers(6_000)]);
    let first = world.ask("a.example.org");
    let lonely = world.ask("b.example.org");
    world.run_until(ms(5_500));
    let again = world.ask("a.example.org");
    world.run_until(ms(6_500));
    assert!(world.result(first).outcome.is_err() && world.result(lonely).outcome.is_err());
    assert_eq!((&world.result(again).outcome, world.result(again).at), (&NOERROR, ms(6_000)));
    let late: Vec<_> = world.net.done.iter().filter(|done| done.late).collect();
    assert_eq!(late.len(), 1);
    assert!(late[0].waiters.is_empty() && late[0].outcome == NOERROR);
    assert_eq!(world.upstream(1).metrics().late.get(), 2);
    world.run_for(ms(15_000));
    assert_eq!((world.forwarder.occupied(), world.net.sockets.len()), (0, 0));
}

#[test]
fn a_reply_after_ten_seconds_is_nobodys() {
    let mut world = World::new(sequential(), vec![answers(10_500)]);
    world.ask("example.org");
    world.run_until(ms(11_000));
    assert_eq!(world.net.done.len(), 1);
    assert_eq!(world.forwarder.occupied(), 0);
}

#[test]
fn an_upstream_fails_after_read_timeout_even_when_another_answered() {
    let mut world = World::new(sequential(), vec![silent(), answers(1)]);
    world.ask("example.org");
    world.run_until(ms(1_990));
    assert!(asks_for_probe(&mut world).is_none());
    world.run_until(ms(2_020));
    assert_eq!(asks_for_probe(&mut world), Some(()));
    assert_eq!(world.forwarder.occupied(), 0);
}

#[test]
fn a_refusal_counts_at_once_and_max_fails_0_never() {
    for (max_fails, probes) in [(2, Some(())), (0, None)] {
        let spec = StanzaSpec { max_fails, ..sequential() };
        let mut world = World::new(
            spec,
            vec![Box::new(|_| vec![Does::Refuse(ms(1), io::ErrorKind::HostUnreachable)]), answers(1)],
        );
        world.ask("example.org");
        world.run_for(ms(10));
        assert_eq!(asks_for_probe(&mut world), probes);
    }
}

/// Whether an upstream has requested a probe.
fn asks_for_probe(world: &mut World) -> Option<()> {
    world.probes.try_next().map(drop)
}

/// Patience ends for the clients that have it, and the query continues.
#[test]
fn patience_ends_query_continues() {
    let mut world = World::new(sequential(), vec![answers(2_500)]);
    let impatient =
        world.ask_with(Question { patience: Some(ms(1_800)), ..Question::new("example.org") }).unwrap();
    let patient = world.ask("example.org");
    world.run_until(ms(200));
    let later =
        world.ask_with(Question { patience: Some(ms(1_800)), ..Question::new("example.org") }).unwrap();
    world.run_for(ms(5_000));
    for (waiter, at) in [(impatient, 1_800), (later, 2_000)] {
        let done = world.result(waiter);
        assert_eq!(done.outcome, Err(ForwardError::Patience.to_string()));
        assert!((ms(at)..ms(at + 10)).contains(&done.at), "{:?}", done.at);
    }
    assert_eq!(world.result(patient).outcome, NOERROR);
}

#[test]
fn max_concurrent_counts_queries_at_upstreams() {
    let spec = StanzaSpec { max_concurrent: 3, ..sequential() };
    let mut world = World::new(spec, vec![answers(10)]);
    for at in 0..3 {
        world.ask(&format!("n{at}.example.org"));
    }
    world.ask("n0.example.org");
    let refused = world.ask_with(Question::new("n3.example.org"));
    assert!(matches!(refused, Err(ForwardError::MaxConcurrent(3))));
    assert!(!world.flies);
    assert_eq!(world.metrics.max_concurrent_rejects.get(), 1);
    world.run_for(ms(20));
    assert_eq!(world.chain.stanzas()[0].concurrent(), 0);
    world.ask("n3.example.org");
}

#[test]
fn a_worker_that_ends_without_a_word_gives_its_places_back() {
    let spec = StanzaSpec { max_concurrent: 3, ..sequential() };
    let mut world = World::new(spec, vec![silent()]);
    // This query's permit was released when it failed; it waits for a late reply.
    world.ask("late.example.org");
    world.run_for(ms(5_000));
    for at in 0..3 {
        world.ask(&format!("n{at}.example.org"));
    }
    assert_eq!((world.forwarder.occupied(), world.chain.stanzas()[0].concurrent()), (4, 3));
    world.forwarder = Forwarder::new(Limits::default(), world.net.now);
    assert_eq!(world.chain.stanzas()[0].concurrent(), 0);
}

#[test]
fn what_a_worker_asked_before_it_ended_is_not_taken_for_what_the_next_one_asks() {
    let spec = StanzaSpec { force_tcp: true, ..sequential() };
    let mut world = World::new(spec, vec![silent()]);
    let first_fails = |asked: common::Asked<'_>| match asked.nth {
        0 => vec![Does::Refuse(ms(10), io::ErrorKind::ConnectionReset)],
        _ => vec![Does::Reply(ms(50), answer(asked.bytes))],
    };
    world.behave(1, Box::new(first_fails));
    world.ask("before.example.org");
    world.forwarder = Forwarder::new(Limits::default(), world.net.now);
    let after = world.ask("after.example.org");
    world.run_for(ms(100));
    assert_eq!(world.result(after).at, ms(50));
    assert_eq!(world.got(1), 2, "asked again because another's exchange failed");
}

/// With all upstreams down, any is queried, or none with `failfast_all_unhealthy_upstreams`.
#[test]
fn all_down_asks_any_or_none() {
    for failfast in [false, true] {
        let spec = StanzaSpec { failfast, ..sequential() };
        let mut world = World::new(spec, vec![answers(1), answers(1)]);
        for at in [1, 2] {
            world.take_down(at);
        }
        let asked = world.ask_with(Question::new("example.org"));
        assert_eq!(world.metrics.healthcheck_broken.get(), 1);
        if failfast {
            assert!(matches!(asked, Err(ForwardError::NoHealthy)));
            continue;
        }
        world.run_for(ms(20));
        assert_eq!(world.result(asked.unwrap()).outcome, NOERROR);
    }
}

#[test]
fn one_that_is_down_is_passed_over_and_its_reply_makes_it_up_again() {
    let mut world = World::new(sequential(), vec![answers(1), answers(1)]);
    world.take_down(1);
    let waiter = world.ask("a.example.org");
    world.run_for(ms(20));
    assert_eq!(world.result(waiter).upstream, Some(address(2)));
    // With both upstreams down, one of them receives the query, and counts as up after its reply.
    world.take_down(2);
    world.ask("b.example.org");
    world.run_for(ms(20));
    let down = [1, 2].map(|at| world.upstream(at).is_down(UpstreamPath::Udp, 2));
    assert_eq!(down.iter().filter(|&&down| down).count(), 1);
}

#[test]
fn sockets_retire_after_a_thousand_queries_or_ten_seconds() {
    let mut world = World::new(sequential(), vec![answers(1)]);
    for at in 0..64_000 {
        world.ask(&format!("n{at}.example.org"));
        if at % 40 == 0 {
            world.run_for(ms(2));
        }
    }
    world.run_for(ms(5));
    let mut queries = std::collections::HashMap::new();
    for got in &world.net.got {
        *queries.entry(got.socket.unwrap()).or_insert(0) += 1;
    }
    assert!(queries.values().all(|&count| count <= 1_000));
    assert!(
        queries.len() >= 64 && world.net.sockets_max <= 64,
        "{} {}",
        queries.len(),
        world.net.sockets_max
    );
    assert!(world.net.sockets.len() >= 32, "as many ports as promised are in use");
    // Without traffic they are closed.
    world.run_for(ms(12_000));
    assert_eq!(world.net.sockets.len(), 0);
    assert_eq!(world.forwarder.next_wake(), None);
}

#[test]
fn a_socket_gets_no_query_after_ten_seconds() {
    let mut world = World::new(sequential(), vec![answers(1)]);
    let mut first_use = std::collections::HashMap::new();
    for at in 0..3_000 {
        world.ask(&format!("n{at}.example.org"));
        let got = world.net.got.last().unwrap();
        let first = *first_use.entry(got.socket.unwrap()).or_insert(got.at);
        assert!(got.at - first < ms(10_000));
        world.run_for(ms(10));
    }
    assert!(first_use.len() >= 3 * 32);
}

#[test]
fn ids_of_one_socket_differ_and_are_spread() {
    // 1,000 IDs drawn independently would repeat about seven times.
    let limits = Limits { sockets: 1, ..Limits::default() };
    let mut world = World::with_limits(limits, vec![(sequential(), vec![silent()])]);
    let mut seen = std::collections::HashSet::new();
    let mut high = 0;
    for at in 0..1_000 {
        world.ask(&format!("n{at}.example.org"));
        let got = world.net.got.last().unwrap();
        assert!(seen.insert((got.socket, got.bytes[0], got.bytes[1])), "an id was used twice at once");
        high += usize::from(got.bytes[0] >= 0x80);
    }
    assert_eq!(world.net.opened.len(), 1);
    assert!((400..600).contains(&high), "{high}");
}

#[test]
fn a_silent_upstream_cannot_fill_more_than_the_limits() {
    let limits = Limits { flights: 500, waiters: 100, ..Limits::default() };
    let mut world = World::with_limits(limits, vec![(sequential(), vec![silent()])]);
    let (mut taken, mut shed) = (0, 0);
    for at in 0..30_000 {
        match world.ask_with(Question::new(&format!("n{at}.example.org"))) {
            Ok(_) => taken += 1,
            Err(failure) => {
                assert!(matches!(failure, ForwardError::TableFull));
                shed += 1;
            }
        }
        world.run_for(ms(1));
        assert!(world.forwarder.in_flight() <= 500 && world.forwarder.occupied() <= 625);
        assert!(world.net.sockets.len() <= 64);
    }
    assert!(shed > 20_000 && taken > 2_500, "{taken} {shed}");
    world.run_for(ms(20_000));
    assert_eq!((world.forwarder.in_flight(), world.forwarder.occupied(), world.net.sockets.len()), (0, 0, 0));
    assert_eq!(world.net.done.len(), taken);
}

#[test]
fn waiters_are_bounded_too() {
    let limits = Limits { waiters: 10, ..Limits::default() };
    let mut world = World::with_limits(limits, vec![(sequential(), vec![answers(1)])]);
    for _ in 0..11 {
        world.ask("example.org");
    }
    assert!(matches!(world.ask_with(Question::new("example.org")), Err(ForwardError::TableFull)));
    assert!(world.flies, "others may join it");
    world.run_for(ms(10));
    assert_eq!(world.net.done[0].waiters.len(), 11);
}

#[test]
fn a_truncating_upstream_that_is_hedged_still_answers_over_tcp() {
    let mut world = World::new(
        sequential(),
        vec![
            silent(),
            Box::new(|asked| {
                let reply =
                    if asked.via == Via::Udp { message::truncated(asked.bytes) } else { answer(asked.bytes) };
                vec![Does::Reply(ms(5), reply)]
            }),
        ],
    );
    let waiter = world.ask("example.org");
    world.run_for(ms(1_000));
    let done = world.result(waiter);
    assert_eq!(done.outcome, NOERROR);
    assert!(done.at < ms(330), "{:?}", done.at);
}

#[test]
fn a_path_that_is_silent_stays_known_while_the_other_answers() {
    // UDP to the first upstream is lost, TCP is not.
    let mut world = World::new(
        sequential(),
        vec![
            Box::new(|asked| match asked.via {
                Via::Udp => Vec::new(),
                _ => vec![Does::Reply(ms(700), answer(asked.bytes))],
            }),
            answers(1),
        ],
    );
    let mut slow = 0;
    for at in 0..100 {
        world.ask_with(Question { tcp: true, ..Question::new(&format!("t{at}.example.org")) }).unwrap();
        let asked = world.time();
        let waiter = world.ask(&format!("u{at}.example.org"));
        world.run_for(ms(400));
        slow += usize::from(world.result(waiter).at - asked > ms(10));
    }
    assert!(slow <= 5, "{slow} of 100 datagrams waited for a path that is known to be silent");
}
