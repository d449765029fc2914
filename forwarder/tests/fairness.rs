//! Where there is no room, the newest work of whoever asks most gives way.

mod common;

use common::{Question, World, answers, ms, sequential, silent};
use forwarder::{Failure, GroupSpec, Limits};
use wire::Rcode;

fn asks(world: &mut World, asker: u128, count: usize) -> (Vec<u32>, usize) {
    let (mut taken, mut refused) = (Vec::new(), 0);
    for at in 0..count {
        let name = format!("n{at}.c{asker}.example.org");
        match world.ask_with(Question { asker, ..Question::new(&name) }) {
            Ok(waiter) => taken.push(waiter),
            Err(Failure::TableFull | Failure::MaxConcurrent(_)) => refused += 1,
            Err(failure) => panic!("{failure}"),
        }
    }
    (taken, refused)
}

/// A world with room for 100 queries, in the table or at the stanza's upstreams.
fn worlds() -> [(World, &'static str); 2] {
    let limits = Limits { flights: 100, ..Limits::default() };
    let stanza = GroupSpec { max_concurrent: 100, ..sequential() };
    [
        (World::with_limits(limits, vec![(sequential(), vec![silent()])]), "too many queries in flight"),
        (World::new(stanza, vec![silent()]), "concurrent queries exceeded maximum 100"),
    ]
}

#[test]
fn the_newest_of_whoever_has_most_gives_way() {
    for (mut world, words) in worlds() {
        let (greedy, refused) = asks(&mut world, 1, 150);
        assert_eq!((greedy.len(), refused), (100, 50), "nobody else is there to give way");
        let (honest, refused) = asks(&mut world, 2, 30);
        assert_eq!((honest.len(), refused), (30, 0));
        for waiter in &honest {
            assert!(!world.net.by_waiter.contains_key(waiter));
        }
        let shed: Vec<u32> =
            greedy.iter().copied().filter(|waiter| world.net.by_waiter.contains_key(waiter)).collect();
        assert_eq!(shed, greedy[70..], "the newest, and no more than was needed");
        assert_eq!(world.result(greedy[99]).outcome, Err(words.to_owned()));
        // Up to a fair share.
        let (more, refused) = asks(&mut world, 3, 60);
        assert_eq!((more.len(), refused), (35, 25));
        assert_eq!(world.forwarder.in_flight(), 100);
        world.run_for(ms(20_000));
        assert_eq!((world.forwarder.in_flight(), world.forwarder.occupied()), (0, 0));
        assert_eq!(world.chain.groups()[0].concurrent(), 0);
    }
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
