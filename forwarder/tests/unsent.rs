//! Queries that cannot be sent: no route, no address, no buffer. They are retried within the
//! deadline.

mod common;

use std::io;

use common::{Question, World, address, answers, ms, sequential, silent};
use forwarder::{SendError, StanzaSpec};
use wire::Rcode;

const NOERROR: Result<(Rcode, u16), String> = Ok((Rcode::NOERROR, 1));
const NO_ROUTE: SendError = SendError::Refused(io::ErrorKind::NetworkUnreachable);

#[test]
fn a_route_that_is_back_after_300_ms_costs_350() {
    for error in [NO_ROUTE, SendError::Buffers, SendError::Refused(io::ErrorKind::PermissionDenied)] {
        for (tcp, warm, upstreams) in
            [(false, false, 1), (false, true, 1), (false, true, 3), (true, false, 2)]
        {
            if tcp && error == SendError::Buffers {
                continue;
            }
            let mut world = World::new(sequential(), (0..upstreams).map(|_| answers(1)).collect());
            if warm {
                // Sockets are open: the send fails, not the opening.
                world.ask("before.example.org");
                world.run_for(ms(10));
            }
            world.net.unsendable = Some(error);
            let asked = world.time();
            let waiter = world.ask_with(Question { tcp, ..Question::new("example.org") }).unwrap();
            world.run_for(ms(300));
            assert!(!world.net.by_waiter.contains_key(&waiter), "{error:?}");
            world.net.unsendable = None;
            world.run_for(ms(100));
            let done = world.result(waiter);
            assert_eq!(done.outcome, NOERROR, "{error:?} {tcp} {warm}");
            assert!(done.at - asked <= ms(360), "{error:?} {tcp} {warm}: {:?}", done.at - asked);
        }
    }
}

#[test]
fn what_cannot_be_sent_is_tried_again_after_pauses_that_double_up_to_the_deadline() {
    let mut world = World::new(sequential(), vec![answers(1), answers(1)]);
    world.net.unsendable = Some(NO_ROUTE);
    let waiter = world.ask("example.org");
    world.run_for(ms(5_000));
    let done = world.result(waiter);
    assert!((ms(4_800)..ms(4_805)).contains(&done.at), "{:?}", done.at);
    let words = "dial udp 127.0.0.102:53: connect: network is unreachable";
    assert_eq!(done.outcome, Err(words.to_owned()));
    // Timers have a resolution of 4 ms.
    let expected = [0, 50, 150, 350, 750, 1_550, 3_150];
    let expected = expected.map(|at| [(ms(at), address(1)), (ms(at), address(2))]).concat();
    assert_eq!(world.net.unsent.len(), expected.len(), "{:?}", world.net.unsent);
    for ((at, to), (due, upstream)) in world.net.unsent.iter().zip(expected) {
        assert!(*to == upstream && *at >= due && *at - due < ms(30), "{at:?} for {due:?}");
    }
}

#[test]
fn another_upstream_that_can_be_sent_to_is_asked_at_once() {
    for tcp in [false, true] {
        let mut world = World::new(sequential(), vec![answers(1), answers(1)]);
        (world.net.unsendable, world.net.unsendable_to) = (Some(NO_ROUTE), Some(address(1)));
        let waiter = world.ask_with(Question { tcp, ..Question::new("example.org") }).unwrap();
        world.run_for(ms(5));
        let done = world.result(waiter);
        assert_eq!((&done.outcome, done.upstream), (&NOERROR, Some(address(2))));
    }
}

#[test]
fn while_another_is_silent_the_first_is_tried_again_as_a_hedge() {
    let mut world = World::new(sequential(), vec![answers(1), silent()]);
    (world.net.unsendable, world.net.unsendable_to) = (Some(NO_ROUTE), Some(address(1)));
    let waiter = world.ask("example.org");
    world.run_for(ms(100));
    world.net.unsendable = None;
    world.run_for(ms(300));
    let done = world.result(waiter);
    assert_eq!((&done.outcome, done.upstream), (&NOERROR, Some(address(1))));
    assert!(done.at <= ms(310), "{:?}", done.at);
}

#[test]
fn sockets_of_an_address_that_is_gone_are_used_no_more() {
    let mut world = World::new(sequential(), vec![answers(1)]);
    for at in 0..100 {
        world.ask(&format!("n{at}.example.org"));
        world.run_for(ms(1));
    }
    world.run_for(ms(10));
    let old = world.net.sockets.len();
    assert!(old > 5, "{old}");
    world.net.spoiled = world.net.sockets.keys().copied().collect();
    let mut waiters = Vec::new();
    // A query takes one of 32 sockets at random: 2,000 queries use all of them.
    for at in 0..2_000 {
        waiters.push(world.ask(&format!("m{at}.example.org")));
        world.run_for(ms(1));
    }
    world.run_for(ms(500));
    for waiter in waiters {
        assert_eq!(world.result(waiter).outcome, NOERROR);
    }
    // The network asserts that nothing is sent through a socket after its failure was reported.
    // Earlier datagrams of a batch are reported, too, so there may be more failures than sockets.
    assert_eq!(world.net.reported, world.net.spoiled, "all are found out, of {old}");
}

#[test]
fn a_stanza_that_names_the_number_of_tries_has_these_counted_too() {
    let spec = StanzaSpec { max_connect_attempts: Some(2), ..sequential() };
    let mut world = World::new(spec, vec![answers(1)]);
    world.net.unsendable = Some(NO_ROUTE);
    let waiter = world.ask("example.org");
    world.run_for(ms(100));
    assert!(world.result(waiter).outcome.is_err());
    assert_eq!(world.net.unsent.len(), 2);
}
