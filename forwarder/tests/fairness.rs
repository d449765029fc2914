//! The tables are limited, and one client cannot fill them.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{Question, World, answers, ms, sequential, silent};
use forwarder::{ForwardError, Forwarder, Limits, StanzaSpec};
use wire::Rcode;

fn asks(world: &mut World, asker: u128, count: usize) -> (Vec<u32>, usize) {
    let (mut taken, mut refused) = (Vec::new(), 0);
    for at in 0..count {
        let name = format!("n{at}.c{asker}.example.org");
        match world.ask_with(Question { asker, ..Question::new(&name) }) {
            Ok(waiter) => taken.push(waiter),
            Err(ForwardError::TableFull | ForwardError::MaxConcurrent(_)) => refused += 1,
            Err(failure) => panic!("{failure}"),
        }
    }
    (taken, refused)
}

/// Returns worlds with room for 100 queries of one client, in the table or at the stanza's
/// upstreams.
fn worlds() -> [(World, &'static str); 2] {
    let limits = Limits { flights: 100, ..Limits::default() };
    let stanza = StanzaSpec { max_concurrent: 100, ..sequential() };
    [
        (World::with_limits(limits, vec![(sequential(), vec![silent()])]), "too many queries in flight"),
        (World::new(stanza, vec![silent()]), "concurrent queries exceeded maximum 100"),
    ]
}

#[test]
fn one_client_gets_what_there_is_for_one_and_leaves_places_for_others() {
    for (mut world, words) in worlds() {
        let (greedy, refused) = asks(&mut world, 1, 150);
        assert_eq!((greedy.len(), refused), (100, 50), "{words}");
        for asker in 2..6 {
            let (honest, refused) = asks(&mut world, asker, 5);
            assert_eq!((honest.len(), refused), (5, 0), "{words}");
        }
        // The rest of the table is shared, too.
        let (second, refused) = asks(&mut world, 7, 30);
        assert_eq!((second.len(), refused), (4, 26), "{words}");
        let (last, _) = asks(&mut world, 8, 1);
        assert_eq!(last.len(), 1, "{words}");
        assert!(world.net.done.is_empty(), "{words}: what is in flight is never taken back");
        assert_eq!(world.forwarder.in_flight(), 125);
        world.run_for(ms(20_000));
        assert_eq!((world.forwarder.in_flight(), world.forwarder.occupied()), (0, 0));
        assert_eq!(world.chain.stanzas()[0].concurrent(), 0);
        assert_eq!(asks(&mut world, 9, 150).0.len(), 100, "{words}: all of it was given back");
    }
}

#[test]
fn a_client_that_fills_a_stanza_is_known_at_every_worker_and_at_no_other_stanza() {
    let stanza = |from: &str| StanzaSpec {
        from: wire::Name::from_text(from).unwrap(),
        max_concurrent: 100,
        ..sequential()
    };
    let stanzas =
        ["c1.example.org", "example.org"].map(|from| (stanza(from), vec![silent()])).into_iter().collect();
    let mut world = World::with_limits(Limits::default(), stanzas);
    // The greedy client has most places at both stanzas: at the first alone, at the second with
    // others.
    assert_eq!(asks(&mut world, 1, 150), ((1..=100).collect(), 50));
    let name = |at| format!("n{at}.shared.example.org");
    for at in 0..100 {
        world.ask(&name(at));
    }
    assert!(matches!(
        world.ask_with(Question::new("more.example.org")),
        Err(ForwardError::MaxConcurrent(100))
    ));
    let first = std::mem::replace(&mut world.forwarder, Forwarder::new(Limits::default(), world.net.now));
    world.net.sockets.clear();
    assert!(matches!(
        world.ask_with(Question::new("more.example.org")),
        Err(ForwardError::MaxConcurrent(100))
    ));
    for asker in 2..6 {
        let (honest, refused) = asks(&mut world, asker, 5);
        assert_eq!((honest.len(), refused), (5, 0));
    }
    drop(first);
    assert_eq!(world.chain.stanzas()[1].concurrent(), 20);
}

/// A client that joined the flight of a greedy client's query keeps waiting for the answer.
#[test]
fn shared_flight_survives_greedy_client() {
    for (mut world, words) in worlds() {
        asks(&mut world, 1, 150);
        let joined: Vec<u32> = (0..100)
            .map(|at| {
                let name = format!("n{at}.c1.example.org");
                world.ask_with(Question { asker: 2, ..Question::new(&name) }).expect("taken")
            })
            .collect();
        for asker in 3..10 {
            asks(&mut world, asker, 100);
        }
        world.run_for(ms(4_700));
        assert!(world.net.done.is_empty(), "{words}");
        world.run_for(ms(200));
        assert!(joined.iter().all(|waiter| world.net.by_waiter.contains_key(waiter)), "{words}");
    }
}

#[test]
fn one_client_that_joins_again_and_again_leaves_others_room_to_join() {
    let limits = Limits { waiters: 100, ..Limits::default() };
    let mut world = World::with_limits(limits, vec![(sequential(), vec![answers(50)])]);
    let mut join = |asker, name: &str| {
        world.ask_with(Question { asker, ..Question::new(name) }).map_err(|f| f.to_string())
    };
    join(1, "one.example.org").unwrap();
    join(1, "two.example.org").unwrap();
    let greedy = (0..150).filter(|n| join(1, ["one.example.org", "two.example.org"][n % 2]).is_ok()).count();
    assert_eq!(greedy, 100);
    for asker in 2..12 {
        join(asker, "one.example.org").unwrap();
    }
    assert_eq!(join(1, "one.example.org"), Err(ForwardError::TableFull.to_string()));
    world.run_for(ms(100));
    assert_eq!(world.net.done.iter().map(|done| done.waiters.len()).sum::<usize>(), 112);
}

#[test]
fn a_panic_while_room_is_made_costs_no_place() {
    let limits = Limits { flights: 1, ..Limits::default() };
    let stanza = StanzaSpec { max_concurrent: 3, ..sequential() };
    let mut world = World::with_limits(limits, vec![(stanza, vec![silent()])]);
    // The query waits for a late reply; its socket is closed with it.
    world.ask("late.example.org");
    world.run_for(ms(4_900));
    let socket = *world.net.sockets.keys().next().unwrap();
    let now = world.net.now;
    for _ in 0..3 {
        world.forwarder.datagram(now, socket, &[0; 12]);
        world.drive();
    }
    assert_eq!((world.forwarder.in_flight(), world.forwarder.occupied()), (0, 1));
    world.net.close_panics = true;
    let asked = catch_unwind(AssertUnwindSafe(|| world.ask("next.example.org")));
    assert!(asked.is_err(), "closing the socket panicked");
    world.forwarder = Forwarder::new(limits, now);
    assert_eq!(world.chain.stanzas()[0].concurrent(), 0);
}

#[test]
fn honest_misses_are_answered_beside_a_flood_of_silent_names() {
    let limits = Limits { flights: 1_000, ..Limits::default() };
    let upstream = |asked: common::Asked<'_>| {
        let greedy = asked.bytes.windows(3).any(|label| label == b"\x02c1");
        if greedy { Vec::new() } else { vec![common::Does::Reply(ms(20), common::answer(asked.bytes))] }
    };
    let mut world = World::with_limits(limits, vec![(sequential(), vec![Box::new(upstream), answers(30)])]);
    let mut honest = Vec::new();
    for at in 0..3_000 {
        for n in 0..5 {
            let name = format!("n{n}.s{at}.c1.example.org");
            drop(world.ask_with(Question { asker: 1, ..Question::new(&name) }));
        }
        let asker = 2 + at % 20;
        let name = format!("n{at}.c{asker}.example.org");
        honest
            .push(world.ask_with(Question { asker: asker as u128, ..Question::new(&name) }).expect("taken"));
        world.run_for(ms(1));
    }
    world.run_for(ms(1_000));
    for waiter in honest {
        assert_eq!(world.result(waiter).outcome, Ok((Rcode::NOERROR, 1)));
    }
}
