//! Upstreams with faulty EDNS: the replies to clients, their delay, and the learned capability.

mod common;

use common::message::{has_opt, subnet_of, with_opt, with_rcode};
use common::{Asked, Does, Question, World, address, answer, ms, sequential};
use forwarder::StanzaSpec;
use wire::Rcode;

type Behaviour = Box<dyn FnMut(Asked<'_>) -> Vec<Does>>;
/// An upstream's action on a query with an OPT.
type Fault = fn(&[u8]) -> Option<Vec<u8>>;

const HOSTILE: [(&str, Fault); 6] = [
    ("silent", |_| None),
    ("BADVERS", |query| Some(with_opt(with_rcode(query, Rcode::NOERROR), 1))),
    ("FORMERR with OPT", |query| Some(with_opt(with_rcode(query, Rcode::FORMERR), 0))),
    ("FORMERR", |query| Some(with_rcode(query, Rcode::FORMERR))),
    ("NOTIMP", |query| Some(with_rcode(query, Rcode::NOTIMP))),
    // The reply has the right id and question, and is malformed after them.
    ("garbage", |query| {
        let mut reply = answer(query);
        reply.truncate(reply.len() - 3);
        Some(reply)
    }),
];

fn hostile(fault: Fault) -> Behaviour {
    Box::new(move |asked| {
        let reply = if has_opt(asked.bytes) { fault(asked.bytes) } else { Some(answer(asked.bytes)) };
        reply.map(|reply| Does::Reply(ms(2), reply)).into_iter().collect()
    })
}

/// Replies with an OPT to queries with one.
fn speaks() -> Behaviour {
    Box::new(|asked| {
        let reply = answer(asked.bytes);
        let reply = if has_opt(asked.bytes) { with_opt(reply, 0) } else { reply };
        vec![Does::Reply(ms(2), reply)]
    })
}

fn answered(world: &World, waiter: u32, what: &str) {
    assert_eq!(world.result(waiter).outcome, Ok((Rcode::NOERROR, 1)), "{what}");
}

#[test]
fn a_client_without_edns_is_answered_by_every_kind_and_the_second_at_once() {
    for (what, fault) in HOSTILE {
        for upstreams in [1, 2] {
            let behaviours = (0..upstreams).map(|_| hostile(fault)).collect();
            let mut world = World::new(sequential(), behaviours);
            let first = world.ask("first.example.org");
            world.run_for(ms(1_000));
            answered(&world, first, what);
            let at_most = if what == "silent" { ms(300 * upstreams + 10) } else { ms(10) };
            assert!(world.result(first).at <= at_most, "{what}, {upstreams}: {:?}", world.result(first).at);
            for name in ["second.example.org", "third.example.org"] {
                let began = world.time();
                let waiter = world.ask(name);
                world.run_for(ms(500));
                answered(&world, waiter, what);
                assert_eq!(world.result(waiter).at - began, ms(2), "{what}, {upstreams} upstreams, {name}");
            }
        }
    }
}

#[test]
fn a_client_with_do_is_answered_by_every_kind() {
    for (what, fault) in HOSTILE {
        let mut world = World::new(sequential(), vec![hostile(fault)]);
        for name in ["first.example.org", "second.example.org", "third.example.org"] {
            let waiter = world.ask_with(Question { dnssec_ok: Some(true), ..Question::new(name) }).unwrap();
            world.run_for(ms(4_900));
            answered(&world, waiter, what);
        }
        let began = world.time();
        let waiter = world.ask_with(Question { dnssec_ok: Some(true), ..Question::new("last") }).unwrap();
        world.run_for(ms(4_900));
        answered(&world, waiter, what);
        assert_eq!(world.result(waiter).at - began, ms(2), "{what}");
    }
}

/// A query with DO is answered by the upstream that implements EDNS.
#[test]
fn dnssec_from_upstream_with_edns() {
    for (what, fault) in HOSTILE {
        let mut world = World::new(sequential(), vec![hostile(fault), speaks()]);
        for n in 0..6 {
            let plain = world.ask(&format!("plain{n}.example.org"));
            world.run_for(ms(1_000));
            answered(&world, plain, what);
            let question = Question { dnssec_ok: Some(true), ..Question::new("signed.example.org") };
            let signed = world.ask_with(question).unwrap();
            world.run_for(ms(1_000));
            answered(&world, signed, what);
            assert_eq!(world.result(signed).upstream, Some(address(2)), "{what}, round {n}");
        }
    }
}

#[test]
fn an_upstream_that_leaves_the_opt_out_is_asked_for_dnssec_after_others() {
    let mut world = World::new(sequential(), vec![common::answers(2), speaks()]);
    for name in ["a.example.org", "b.example.org"] {
        let question = Question { dnssec_ok: Some(true), ..Question::new(name) };
        let waiter = world.ask_with(question).unwrap();
        world.run_for(ms(100));
        answered(&world, waiter, name);
        assert_eq!(world.result(waiter).upstream, Some(address(2)));
    }
    assert_eq!(world.got(1), 1, "and it is known from the first");
    let plain = world.ask("c.example.org");
    world.run_for(ms(100));
    assert_eq!(world.result(plain).upstream, Some(address(1)));
}

/// Replies like BIND: FORMERR without OPT to a query with a subnet, and with EDNS to all others.
fn hates_subnets() -> Behaviour {
    Box::new(|asked| {
        let reply = match subnet_of(asked.bytes) {
            Some(_) => with_rcode(asked.bytes, Rcode::FORMERR),
            None => with_opt(answer(asked.bytes), 0),
        };
        vec![Does::Reply(ms(2), reply)]
    })
}

/// A refusal caused by a client's options does not prove that the upstream lacks EDNS.
#[test]
fn client_options_do_not_prove_missing_edns() {
    let mut world = World::new(sequential(), vec![hates_subnets()]);
    let odd = world.ask_with(Question { subnet: Some(7), ..Question::new("odd.example.org") }).unwrap();
    world.run_for(ms(100));
    answered(&world, odd, "the query with a subnet");
    let forms: Vec<_> =
        world.net.got.iter().map(|got| (has_opt(&got.bytes), subnet_of(&got.bytes).is_some())).collect();
    assert_eq!(forms, [(true, true), (true, false)], "our own OPT is next");
    for n in 0..5 {
        let question = Question { dnssec_ok: Some(true), ..Question::new("signed.example.org") };
        world.ask_with(question).unwrap();
        world.run_for(ms(100));
        let last = world.net.got.last().unwrap();
        assert!(has_opt(&last.bytes), "query {n} keeps its DO");
    }
}

#[test]
fn an_upstream_that_learns_edns_is_noticed_within_half_a_minute() {
    let mut world = World::new(sequential(), vec![hostile(HOSTILE[3].1)]);
    world.ask("first.example.org");
    world.run_for(ms(100));
    world.behave(1, speaks());
    for second in 0..32 {
        let question = Question { dnssec_ok: Some(true), ..Question::new("signed.example.org") };
        let waiter = world.ask_with(question).unwrap();
        world.run_for(ms(1_000));
        answered(&world, waiter, "signed");
        let opt = has_opt(&world.net.got.last().unwrap().bytes);
        assert_eq!(opt, second >= 30, "after {second} s");
    }
}

#[test]
fn a_burst_at_a_silent_upstream_waits_for_one_to_find_out() {
    let mut world = World::new(sequential(), vec![hostile(HOSTILE[0].1)]);
    let waiters: Vec<u32> = (0..500).map(|n| world.ask(&format!("n{n}.example.org"))).collect();
    world.run_for(ms(1_000));
    for waiter in waiters {
        answered(&world, waiter, "burst");
        assert!(world.result(waiter).at < ms(450), "{:?}", world.result(waiter).at);
    }
}

/// A lost packet does not turn DNSSEC off.
#[test]
fn lost_packet_keeps_dnssec() {
    let mut lost = false;
    let mut world = World::new(
        StanzaSpec::default(),
        vec![Box::new(move |asked| {
            let first = !std::mem::replace(&mut lost, true);
            let reply =
                if has_opt(asked.bytes) { with_opt(answer(asked.bytes), 0) } else { answer(asked.bytes) };
            if first { Vec::new() } else { vec![Does::Reply(ms(2), reply)] }
        })],
    );
    let plain = world.ask("plain.example.org");
    world.run_for(ms(1_000));
    answered(&world, plain, "plain");
    let question = Question { dnssec_ok: Some(true), ..Question::new("signed.example.org") };
    let signed = world.ask_with(question).unwrap();
    world.run_for(ms(1_000));
    answered(&world, signed, "signed");
    assert!(has_opt(&world.net.got.last().unwrap().bytes));
    // All later queries have an OPT again.
    world.ask("next.example.org");
    assert!(has_opt(&world.net.got.last().unwrap().bytes));
}
