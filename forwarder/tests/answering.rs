//! Replies to clients: order of upstreams, failover, further stanzas, transports, and which replies
//! are accepted.

mod common;

use common::message::{has_opt, question_of, truncated, with_rcode};
use common::{
    Does, Question, Via, World, address, answer, answers, ms, refuses, replies_with, sequential, silent,
};
use forwarder::{ForwardError, Policy, SendError, StanzaSpec};
use wire::{Name, Rcode};

const NOERROR: Result<(Rcode, u16), String> = Ok((Rcode::NOERROR, 1));

#[test]
fn sequential_asks_the_first_upstream_while_it_answers() {
    let mut world = World::new(sequential(), vec![answers(1), answers(1)]);
    for at in 0..50 {
        let waiter = world.ask(&format!("n{at}.example.org"));
        world.run_for(ms(5));
        assert_eq!(world.result(waiter).upstream, Some(address(1)));
    }
    assert_eq!(world.got(2), 0);
}

#[test]
fn round_robin_asks_each_in_turn() {
    let spec = StanzaSpec { policy: Policy::RoundRobin, ..StanzaSpec::default() };
    let mut world = World::new(spec, vec![answers(1), answers(1), answers(1)]);
    for at in 0..9 {
        world.ask(&format!("n{at}.example.org"));
        world.run_for(ms(5));
    }
    assert_eq!([world.got(1), world.got(2), world.got(3)], [3, 3, 3]);
}

#[test]
fn the_query_that_goes_out_is_ours_and_asks_what_the_client_asked() {
    let mut world = World::new(sequential(), vec![answers(1)]);
    let question = Question { rtype: 65_280, dnssec_ok: Some(true), ..Question::new("Www.Example.org") };
    world.ask_with(question).unwrap();
    let got = &world.net.got[0].bytes;
    assert_eq!(question_of(got), question_of(&common::query(&question)));
    assert_eq!(got[got.len() - 11..], [0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0]);
}

#[test]
fn records_of_unknown_types_pass_octet_by_octet() {
    let record = b"\xc0\x0c\xff\x00\x00\x01\0\0\x0e\x10\0\x05\xde\xad\0\xbe\xef";
    let mut world = World::new(
        sequential(),
        vec![Box::new(move |asked| {
            let mut reply = with_rcode(asked.bytes, Rcode::NOERROR);
            reply[7] = 1;
            reply.extend_from_slice(record);
            vec![Does::Reply(ms(1), reply)]
        })],
    );
    let waiter = world.ask_with(Question { rtype: 65_280, ..Question::new("example.org") }).unwrap();
    world.run_for(ms(10));
    assert_eq!(world.result(waiter).body, record);
}

#[test]
fn an_rcode_is_final_unless_failover_names_it() {
    let refused_or_failed = vec![Rcode::SERVFAIL, Rcode::REFUSED];
    let rows = [
        (&[][..], [Rcode::SERVFAIL, Rcode::NOERROR, Rcode::NOERROR], Rcode::SERVFAIL, [1, 0, 0]),
        (&[], [Rcode::REFUSED, Rcode::NOERROR, Rcode::NOERROR], Rcode::REFUSED, [1, 0, 0]),
        (&refused_or_failed, [Rcode::SERVFAIL, Rcode::NXDOMAIN, Rcode::NOERROR], Rcode::NXDOMAIN, [1, 1, 0]),
        (&refused_or_failed, [Rcode::SERVFAIL, Rcode::REFUSED, Rcode::NOERROR], Rcode::NOERROR, [1, 1, 1]),
        (&refused_or_failed, [Rcode::SERVFAIL, Rcode::SERVFAIL, Rcode::REFUSED], Rcode::REFUSED, [1, 1, 1]),
        (&[Rcode::NXDOMAIN], [Rcode::NXDOMAIN, Rcode::SERVFAIL, Rcode::NOERROR], Rcode::SERVFAIL, [1, 1, 0]),
    ];
    for (failover, rcodes, expected, got) in rows {
        let spec = StanzaSpec { failover: failover.to_vec(), ..sequential() };
        let mut world = World::new(spec, rcodes.map(|rcode| replies_with(rcode, 1)).into());
        let waiter = world.ask("example.org");
        world.run_for(ms(20));
        assert_eq!(world.result(waiter).outcome, Ok((expected, 0)), "{failover:?} {rcodes:?}");
        assert_eq!([world.got(1), world.got(2), world.got(3)], got, "{failover:?} {rcodes:?}");
    }
}

#[test]
fn failover_returns_the_last_answer_when_the_rest_is_silent() {
    let spec = StanzaSpec { failover: vec![Rcode::SERVFAIL], ..sequential() };
    let mut world = World::new(spec, vec![replies_with(Rcode::SERVFAIL, 1), silent()]);
    let waiter = world.ask("example.org");
    world.run_for(ms(5_000));
    let done = world.result(waiter);
    assert_eq!(done.outcome, Ok((Rcode::SERVFAIL, 0)));
    assert!(done.at < ms(2_100), "{:?}", done.at);
}

#[test]
fn next_hands_over_to_the_next_stanza_that_matches() {
    let from = |name: &str| StanzaSpec { from: Name::from_text(name).unwrap(), ..sequential() };
    let nodata = |spec: StanzaSpec| StanzaSpec { next_on_nodata: true, ..spec };
    let next = |spec: StanzaSpec, rcode| StanzaSpec { next: vec![rcode], ..spec };
    let rows = [
        (next(from("."), Rcode::NXDOMAIN), Rcode::NXDOMAIN, from("."), NOERROR),
        (next(from("."), Rcode::NXDOMAIN), Rcode::SERVFAIL, from("."), Ok((Rcode::SERVFAIL, 0))),
        (next(from("."), Rcode::NXDOMAIN), Rcode::NXDOMAIN, from("example.com"), Ok((Rcode::NXDOMAIN, 0))),
        (nodata(from(".")), Rcode::NOERROR, from("."), NOERROR),
        (from("."), Rcode::NOERROR, from("."), Ok((Rcode::NOERROR, 0))),
    ];
    for (row, (first, rcode, second, expected)) in rows.into_iter().enumerate() {
        let stanzas = vec![(first, vec![replies_with(rcode, 1)]), (second, vec![answers(1)])];
        let mut world = World::with_limits(forwarder::Limits::default(), stanzas);
        let waiter = world.ask("example.org");
        world.run_for(ms(20));
        assert_eq!(world.result(waiter).outcome, expected, "row {row}");
        assert_eq!(world.chain.stanzas()[0].concurrent() + world.chain.stanzas()[1].concurrent(), 0);
        assert_eq!((world.forwarder.in_flight(), world.forwarder.occupied()), (0, 0));
    }
}

/// The next upstream has its full time to answer, regardless of earlier truncated replies.
#[test]
fn next_upstream_has_full_time() {
    for (after, expected, at) in [(3_700, NOERROR.ok(), 4_702), (3_900, None, 4_800)] {
        let next = StanzaSpec { next: vec![Rcode::NXDOMAIN], ..sequential() };
        let cut: Box<dyn FnMut(common::Asked<'_>) -> Vec<Does>> = Box::new(|asked| {
            let mut reply = truncated(asked.bytes);
            reply[3] |= 3;
            if asked.via == Via::Udp { vec![Does::Reply(ms(2), reply)] } else { Vec::new() }
        });
        let stanzas = vec![(next, vec![cut]), (sequential(), vec![answers(after)])];
        let mut world = World::with_limits(forwarder::Limits::default(), stanzas);
        let waiter = world.ask("example.org");
        world.run_for(ms(5_000));
        let done = world.result(waiter);
        assert_eq!(done.outcome.clone().ok(), expected, "after {after} ms: {done:?}");
        assert!((ms(at)..ms(at + 10)).contains(&done.at), "after {after} ms: {done:?}");
    }
}

#[test]
fn a_name_that_no_stanza_forwards_is_given_back() {
    let spec = StanzaSpec { from: Name::from_text("example.org").unwrap(), ..sequential() };
    let mut world = World::new(spec, vec![answers(1)]);
    assert!(matches!(world.ask_with(Question::new("example.com")), Err(ForwardError::NoStanza)));
    let mut world = World::new(sequential(), vec![]);
    assert!(matches!(world.ask_with(Question::new("example.com")), Err(ForwardError::NoUpstream)));
}

#[test]
fn equal_questions_share_one_datagram() {
    let mut world = World::new(sequential(), vec![answers(20)]);
    for _ in 0..1_000 {
        world.ask("example.org");
    }
    world.run_for(ms(50));
    assert_eq!(world.net.got.len(), 1);
    assert_eq!(world.net.done.len(), 1);
    assert_eq!(world.net.done[0].waiters, (1..=1_000).collect::<Vec<_>>());
}

#[test]
fn questions_that_differ_in_anything_an_answer_depends_on_are_asked_apart() {
    let base = Question::new("example.org");
    let others = [
        base,
        Question { name: "example.net", ..base },
        Question { rtype: 28, ..base },
        Question { recursion: false, ..base },
        Question { checking_disabled: true, ..base },
        Question { dnssec_ok: Some(true), ..base },
        Question { subnet: Some(1), ..base },
        Question { subnet: Some(2), ..base },
        Question { tcp: true, ..base },
        Question { block: 1, ..base },
    ];
    let mut world = World::new(sequential(), vec![silent()]);
    for question in others {
        world.ask_with(question).unwrap();
    }
    assert_eq!(world.net.got.len(), others.len());
    for same in [
        Question { name: "EXAMPLE.org", ..base },
        Question { dnssec_ok: Some(false), ..base },
        Question { dnssec_ok: Some(false), subnet: Some(2), ..base },
    ] {
        world.ask_with(same).unwrap();
    }
    assert_eq!(world.net.got.len(), others.len());
}

#[test]
fn the_clients_transport_is_kept_unless_the_stanza_decides() {
    let rows = [
        (false, false, false, Via::Udp),
        (false, false, true, Via::Tcp),
        (true, false, false, Via::Tcp),
        (false, true, true, Via::Udp),
    ];
    for (force_tcp, prefer_udp, tcp, via) in rows {
        let mut world = World::new(StanzaSpec { force_tcp, prefer_udp, ..sequential() }, vec![answers(1)]);
        let waiter = world.ask_with(Question { tcp, ..Question::new("example.org") }).unwrap();
        world.run_for(ms(5));
        assert_eq!(world.result(waiter).outcome, NOERROR);
        assert_eq!(world.net.got[0].via, via, "{force_tcp} {prefer_udp} {tcp}");
    }
}

/// Clients of both transports share a query as the first stanza specifies.
#[test]
fn transports_share_a_query() {
    // (`force_tcp` of the first stanza, of the second) -> transports of the queries to upstreams,
    // for a client over UDP, then one over TCP
    let rows = [
        ((true, false), vec![(1, Via::Tcp), (2, Via::Udp)]),
        ((false, true), vec![(1, Via::Udp), (1, Via::Tcp), (2, Via::Tcp), (2, Via::Tcp)]),
    ];
    for ((first, second), expected) in rows {
        let next = StanzaSpec { force_tcp: first, next: vec![Rcode::NXDOMAIN], ..sequential() };
        let last = StanzaSpec { force_tcp: second, ..sequential() };
        let stanzas = vec![(next, vec![replies_with(Rcode::NXDOMAIN, 1)]), (last, vec![answers(20)])];
        let mut world = World::with_limits(forwarder::Limits::default(), stanzas);
        let clients = [false, true].map(|tcp| {
            let client = world.ask_with(Question { tcp, ..Question::new("example.org") }).unwrap();
            world.run_for(ms(5));
            client
        });
        world.run_for(ms(50));
        assert!(clients.iter().all(|client| world.result(*client).outcome == NOERROR));
        let mut got: Vec<_> = world.net.got.iter().map(|got| (got.upstream, got.via)).collect();
        got.sort_by_key(|(upstream, _)| *upstream);
        assert_eq!(got, expected.into_iter().map(|(at, via)| (address(at), via)).collect::<Vec<_>>());
    }
}

#[test]
fn a_truncated_reply_is_asked_again_over_tcp() {
    let mut world = World::new(
        sequential(),
        vec![Box::new(|asked| {
            let reply = if asked.via == Via::Udp { truncated(asked.bytes) } else { answer(asked.bytes) };
            vec![Does::Reply(ms(2), reply)]
        })],
    );
    let waiter = world.ask("example.org");
    world.run_for(ms(20));
    assert_eq!(world.result(waiter).outcome, NOERROR);
    assert!(!world.result(waiter).truncated);
    assert_eq!(world.net.got.iter().map(|got| got.via).collect::<Vec<_>>(), [Via::Udp, Via::Tcp]);
}

#[test]
fn that_all_are_down_counts_once_for_a_query() {
    let mut world = World::new(sequential(), vec![refuses(), refuses()]);
    for at in [1, 2] {
        world.take_down(at);
    }
    let asked = world.ask("example.org");
    world.run_for(ms(5_000));
    assert!(world.result(asked).outcome.is_err());
    assert!(world.net.got.len() > 1, "more than one was tried");
    assert_eq!(world.metrics.healthcheck_broken.get(), 1);
}

#[test]
fn failure_names_last_upstream() {
    for upstreams in [vec![refuses(), refuses()], vec![silent(), refuses()], vec![refuses(), silent()]] {
        let mut world = World::new(sequential(), upstreams);
        let asked = world.ask("example.org");
        world.run_for(ms(5_000));
        assert!(world.result(asked).outcome.is_err());
        let last = world.net.got.last().unwrap().upstream;
        assert_eq!(world.result(asked).upstream, Some(last), "{:?}", world.net.got);
    }
}

#[test]
fn where_tcp_fails_the_client_gets_the_truncated_reply_soon() {
    for (refuses, at_most) in [(false, 1_100), (true, 20)] {
        let mut world = World::new(
            sequential(),
            vec![Box::new(move |asked| match asked.via {
                Via::Udp => vec![Does::Reply(ms(2), truncated(asked.bytes))],
                _ if refuses => vec![Does::Refuse(ms(1), std::io::ErrorKind::ConnectionRefused)],
                _ => Vec::new(),
            })],
        );
        let waiter = world.ask("example.org");
        world.run_for(ms(5_000));
        let done = world.result(waiter);
        assert!(done.truncated && done.at < ms(at_most), "{done:?}");
    }
}

#[test]
fn a_reply_that_is_cut_off_counts_as_truncated() {
    let mut world = World::new(
        sequential(),
        vec![Box::new(|asked| {
            let mut reply = answer(asked.bytes);
            if asked.via == Via::Udp {
                reply.truncate(reply.len() - 3);
            }
            vec![Does::Reply(ms(2), reply)]
        })],
    );
    let waiter = world.ask("example.org");
    world.run_for(ms(20));
    assert_eq!(world.result(waiter).outcome, NOERROR);
}

#[test]
fn garbage_over_tcp_sends_the_query_elsewhere() {
    let garbage = |asked: common::Asked<'_>| vec![Does::Reply(ms(1), asked.bytes[..12].to_vec())];
    let spec = StanzaSpec { force_tcp: true, ..sequential() };
    let mut world = World::new(spec.clone(), vec![Box::new(garbage), answers(1)]);
    let waiter = world.ask("example.org");
    world.run_for(ms(20));
    assert_eq!(world.result(waiter).outcome, NOERROR);
    let mut world = World::new(spec, vec![Box::new(garbage)]);
    let waiter = world.ask("example.org");
    world.run_for(ms(20));
    assert_eq!(world.result(waiter).outcome, Err("bad reply from 127.0.0.101:53".into()));
}

#[test]
fn an_upstream_without_edns_is_asked_without_and_remembered() {
    let mut world = World::new(
        sequential(),
        vec![Box::new(|asked| {
            let reply = if has_opt(asked.bytes) {
                with_rcode(asked.bytes, Rcode::FORMERR)
            } else {
                answer(asked.bytes)
            };
            vec![Does::Reply(ms(2), reply)]
        })],
    );
    for (name, queries) in [("a.example.org", 2), ("b.example.org", 3), ("c.example.org", 4)] {
        let waiter = world.ask(name);
        world.run_for(ms(20));
        assert_eq!(world.result(waiter).outcome, NOERROR);
        assert_eq!(world.net.got.len(), queries);
    }
}

#[test]
fn an_upstream_that_finds_fault_with_everything_is_believed_the_second_time() {
    let mut world = World::new(sequential(), vec![replies_with(Rcode::FORMERR, 1)]);
    for at in 0..2 {
        let waiter = world.ask(&format!("n{at}.example.org"));
        world.run_for(ms(20));
        assert_eq!(world.result(waiter).outcome, Ok((Rcode::FORMERR, 0)));
    }
    assert_eq!(world.net.got.len(), 4);
}

#[test]
fn forged_and_mistaken_replies_change_nothing() {
    let mut world = World::new(
        sequential(),
        vec![Box::new(|asked| {
            let good = answer(asked.bytes);
            let mut replies = Vec::new();
            for guess in 1..=500u16 {
                let mut forged = good.clone();
                let id = u16::from_be_bytes([good[0], good[1]]).wrapping_add(guess);
                forged[..2].copy_from_slice(&id.to_be_bytes());
                replies.push(Does::Reply(ms(1), forged));
            }
            let mut other_name = good.clone();
            other_name[13] ^= 1;
            let mut other_type = good.clone();
            other_type[12 + question_of(&good).len() - 3] = 28;
            let mut no_reply = good.clone();
            no_reply[2] &= 0x7f;
            for bad in [other_name, other_type, no_reply, good[..11].to_vec(), good[..1].to_vec(), Vec::new()]
            {
                replies.push(Does::Reply(ms(1), bad));
            }
            replies.push(Does::Reply(ms(5), good.clone()));
            replies.push(Does::Reply(ms(6), good));
            replies
        })],
    );
    let waiter = world.ask("example.org");
    world.run_for(ms(4));
    assert!(world.net.done.is_empty());
    world.run_for(ms(20));
    let done = world.result(waiter);
    assert_eq!((&done.outcome, done.at), (&NOERROR, ms(5)));
    // The duplicate arrives when the socket, retired after three unmatched datagrams, is closed.
    assert_eq!(world.upstream(1).metrics().unmatched.get(), 506);
    assert!(world.net.sockets.is_empty());
}

#[test]
fn a_socket_gets_no_query_after_three_datagrams_that_match_none() {
    let mut world = World::new(
        StanzaSpec::default(),
        vec![Box::new(|asked| {
            let good = answer(asked.bytes);
            let mut forged = good.clone();
            forged[0] ^= 0x55;
            let count = if asked.nth == 0 { 3 } else { 2 };
            let mut replies: Vec<Does> = (0..count).map(|_| Does::Reply(ms(2), forged.clone())).collect();
            replies.push(Does::Reply(ms(50), good));
            replies
        })],
    );
    let first = world.ask("a.example.org");
    world.run_for(ms(10));
    let of_first = world.net.got[0].socket.unwrap();
    assert!(world.net.sockets.contains_key(&of_first), "the query that is out is waited for");
    for n in 0..400 {
        world.ask(&format!("n{n}.example.org"));
        world.run_for(ms(1));
    }
    assert!(world.net.got[1..].iter().all(|got| got.socket != Some(of_first)), "and no other goes out there");
    world.run_for(ms(100));
    assert_eq!(world.result(first).at, ms(50));
    assert!(!world.net.sockets.contains_key(&of_first));
    // No query is lost, whatever arrives.
    assert!(world.net.done.iter().all(|done| done.outcome == Ok((Rcode::NOERROR, 1))));
    assert_eq!(world.net.by_waiter.len(), 401);
}

#[test]
fn a_refusal_by_icmp_sends_the_query_on_at_once() {
    let mut world = World::new(sequential(), vec![refuses(), answers(1)]);
    let waiter = world.ask("example.org");
    world.run_for(ms(20));
    let done = world.result(waiter);
    assert_eq!((&done.outcome, done.upstream), (&NOERROR, Some(address(2))));
    assert!(done.at <= ms(3));
}

#[test]
fn one_upstream_that_refuses_is_tried_twice() {
    let mut world = World::new(sequential(), vec![refuses()]);
    let waiter = world.ask("example.org");
    world.run_for(ms(20));
    let failure = world.result(waiter).outcome.clone().unwrap_err();
    assert!(failure.starts_with("read udp 127.0.0.1:4"), "{failure}");
    assert!(failure.ends_with("->127.0.0.101:53: read: connection refused"), "{failure}");
    assert_eq!(world.got(1), 2);
}

/// Tries that may fail are counted as the stanza specifies.
#[test]
fn failed_tries_count_by_stanza() {
    for (attempts, upstreams, sent) in
        [(None, 1, 2), (None, 3, 6), (Some(1), 3, 1), (Some(5), 2, 5), (Some(0), 1, 32)]
    {
        let spec = StanzaSpec { max_connect_attempts: attempts, ..sequential() };
        let mut world = World::new(spec, (0..upstreams).map(|_| refuses()).collect());
        world.ask("example.org");
        world.run_for(ms(5_000));
        assert_eq!(world.net.got.len(), sent, "{attempts:?} {upstreams}");
        assert_eq!(world.forwarder.in_flight(), 0);
    }
}

#[test]
fn without_descriptors_a_query_fails_instead_of_waiting() {
    let mut world = World::new(sequential(), vec![answers(1)]);
    world.net.unsendable = Some(SendError::Files);
    let waiter = world.ask("example.org");
    let failure = world.result(waiter).outcome.clone().unwrap_err();
    assert_eq!(failure, "dial udp 127.0.0.101:53: too many open files");
    assert_eq!((world.forwarder.in_flight(), world.forwarder.occupied()), (0, 0));
}

#[test]
fn a_list_swapped_while_a_query_runs_is_used_by_the_next() {
    let mut world = World::new(sequential(), vec![answers(10), answers(10)]);
    let stanza = world.chain.stanzas()[0].clone();
    let (first, second) = (world.upstream(1), world.upstream(2));
    let before = world.ask("a.example.org");
    stanza.set_upstreams(vec![second]).unwrap();
    let after = world.ask("b.example.org");
    world.run_for(ms(20));
    assert_eq!(world.result(before).upstream, Some(first.address()));
    assert_eq!(world.result(after).upstream, Some(address(2)));
    assert!(stanza.set_upstreams(vec![first; 16]).is_err());
}

#[test]
fn shutdown_returns_all_waiters() {
    let mut world = World::new(sequential(), vec![silent()]);
    let first = world.ask("a.example.org");
    let second = world.ask("a.example.org");
    world.run_for(ms(400));
    world.forwarder.shutdown();
    world.drive();
    assert_eq!(world.result(first).outcome, Err("shutting down".into()));
    assert_eq!(world.result(second).outcome, Err("shutting down".into()));
    assert!(world.net.sockets.is_empty());
    assert_eq!((world.forwarder.in_flight(), world.forwarder.occupied()), (0, 0));
    assert_eq!(world.forwarder.next_wake(), None);
}
