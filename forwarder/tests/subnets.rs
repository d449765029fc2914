//! Client subnets (RFC 7871): which reply is accepted, its scope, and the limit of different
//! subnets in flight.

mod common;

use common::message::{has_opt, subnet_of, with_opt, with_subnet};
use common::{Does, Question, World, answer, ms, sequential, silent};
use forwarder::{ForwardError, StanzaSpec};
use wire::Rcode;

const ASKED: [u8; 7] = [0, 1, 24, 0, 192, 0, 2];

fn asking(name: &str) -> Question<'_> {
    Question { subnet: Some(2), ..Question::new(name) }
}

#[test]
fn only_what_repeats_the_subnet_and_is_for_all_of_the_network_is_for_all() {
    let option = |scope| [0, 1, 24, scope, 192, 0, 2];
    // With and without a subnet in the query: the option in the reply, the returned scope, and
    // whether the answer is for one client only.
    for (subnet, reply, scope, for_one) in [
        (true, Some(option(0)), Some(0), false),
        (true, Some(option(20)), Some(20), true),
        (true, None, None, true),
        (false, None, None, false),
        (false, Some(option(0)), None, false),
        (false, Some(option(20)), None, true),
    ] {
        let mut world = World::new(
            sequential(),
            vec![Box::new(move |asked| {
                let good = answer(asked.bytes);
                let good = match reply {
                    Some(option) => with_subnet(good, &option),
                    None => with_opt(good, 0),
                };
                vec![Does::Reply(ms(2), good)]
            })],
        );
        let question = if subnet { asking("example.org") } else { Question::new("example.org") };
        let waiter = world.ask_with(question).unwrap();
        world.run_for(ms(10));
        let done = world.result(waiter);
        assert_eq!(done.outcome, Ok((Rcode::NOERROR, 1)));
        assert_eq!(done.subnet.map(|subnet| subnet.scope()), scope, "{subnet} {reply:?}");
        assert_eq!(done.for_one, for_one, "{subnet} {reply:?}");
    }
}

#[test]
fn a_reply_for_another_subnet_is_none() {
    for wrong in [[0, 2, 24, 0, 192, 0, 2], [0, 1, 23, 0, 192, 0, 2], [0, 1, 24, 0, 192, 0, 3]] {
        let mut world = World::new(
            sequential(),
            vec![Box::new(move |asked| {
                let good = answer(asked.bytes);
                vec![
                    Does::Reply(ms(2), with_subnet(good.clone(), &wrong)),
                    Does::Reply(ms(5), with_subnet(good, &ASKED)),
                ]
            })],
        );
        let waiter = world.ask_with(asking("example.org")).unwrap();
        world.run_for(ms(10));
        assert_eq!(world.result(waiter).at, ms(5), "{wrong:?}");
        assert_eq!(world.upstream(1).metrics().unmatched.get(), 1);
    }
}

#[test]
fn an_upstream_that_never_repeats_the_subnet_is_asked_without() {
    for force_tcp in [false, true] {
        let mut world = World::new(
            StanzaSpec { force_tcp, ..sequential() },
            vec![Box::new(|asked| {
                let good = answer(asked.bytes);
                let reply = match subnet_of(asked.bytes) {
                    Some(_) => with_subnet(good, &[0, 1, 24, 0, 0, 0, 0]),
                    None => with_opt(good, 0),
                };
                vec![Does::Reply(ms(2), reply)]
            })],
        );
        let waiter = world.ask_with(asking("example.org")).unwrap();
        world.run_for(ms(1_000));
        let done = world.result(waiter);
        assert_eq!(done.outcome, Ok((Rcode::NOERROR, 1)), "{force_tcp}");
        assert!(done.at < ms(310) && done.for_one && done.subnet.is_none(), "{done:?}");
    }
}

#[test]
fn an_answer_without_the_dnssec_that_was_asked_for_is_for_one() {
    let mut world = World::new(
        sequential(),
        vec![Box::new(|asked| {
            let plain = answer(asked.bytes);
            let formerr = common::message::with_rcode(asked.bytes, Rcode::FORMERR);
            vec![Does::Reply(ms(2), if has_opt(asked.bytes) { formerr } else { plain })]
        })],
    );
    for (dnssec_ok, for_one) in [(Some(true), true), (Some(false), false), (None, false)] {
        let name = format!("{for_one}{}.example.org", dnssec_ok.is_some());
        let waiter = world.ask_with(Question { dnssec_ok, ..Question::new(&name) }).unwrap();
        world.run_for(ms(10));
        assert_eq!(world.result(waiter).for_one, for_one, "{dnssec_ok:?}");
    }
}

#[test]
fn eight_subnets_at_a_time_are_asked_for_of_one_name() {
    let mut world = World::new(sequential(), vec![silent()]);
    for subnet in 0..8 {
        world.ask_with(Question { subnet: Some(subnet), ..Question::new("example.org") }).unwrap();
    }
    for dnssec_ok in [None, Some(true)] {
        for subnet in 8..200 {
            let more = Question { subnet: Some(subnet), dnssec_ok, ..Question::new("EXAMPLE.org") };
            assert!(matches!(world.ask_with(more), Err(ForwardError::Subnets)), "{subnet}");
        }
    }
    assert_eq!(world.net.got.len(), 8);
    // An equal query joins the flight; other names and types have their own limits.
    world.ask_with(Question { subnet: Some(3), ..Question::new("example.org") }).unwrap();
    assert_eq!(world.net.got.len(), 8);
    world.ask_with(Question { subnet: Some(99), ..Question::new("example.net") }).unwrap();
    world.ask_with(Question { subnet: Some(99), rtype: 28, ..Question::new("example.org") }).unwrap();
    // Flights wait for late replies, and keep their places until that ends.
    world.run_for(ms(5_000));
    assert_eq!(world.forwarder.in_flight(), 0);
    let late = world.ask_with(Question { subnet: Some(99), ..Question::new("example.org") });
    assert!(matches!(late, Err(ForwardError::Subnets)));
    world.run_for(ms(6_000));
    world.ask_with(Question { subnet: Some(99), ..Question::new("example.org") }).unwrap();
}
