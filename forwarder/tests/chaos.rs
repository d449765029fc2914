//! Random events in random order: nothing panics, each waiter is returned exactly once, and all
//! state is released.

mod common;

use std::time::Duration;

use common::{Does, Question, World, answer, message, ms, sequential};
use forwarder::{Limits, Policy, SendError, SocketId, StanzaSpec};
use proptest::prelude::*;
use wire::Rcode;

/// An upstream's action on one query.
#[derive(Clone, Copy, Debug)]
enum Act {
    Nothing,
    Answer(u64),
    Twice(u64),
    Rcode(u8, u64),
    Truncate(u64),
    Cut(u8, u64),
    Flip(u16, u64),
    Refuse(u64),
}

#[derive(Clone, Debug)]
enum Step {
    Ask { name: u8, tcp: bool, patience_ms: Option<u64> },
    Pass(u64),
    Forge { socket: u8, bytes: Vec<u8> },
    Trouble { socket: u8 },
    Unsendable(Option<SendError>),
    Spoil { socket: u8 },
    Swap(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let delay = || prop_oneof![Just(1u64), 0u64..400, 0u64..6_000, 0u64..12_000];
    prop_oneof![
        Just(Act::Nothing),
        delay().prop_map(Act::Answer),
        delay().prop_map(Act::Twice),
        (0u8..6, delay()).prop_map(|(rcode, delay)| Act::Rcode(rcode, delay)),
        delay().prop_map(Act::Truncate),
        (any::<u8>(), delay()).prop_map(|(length, delay)| Act::Cut(length, delay)),
        (any::<u16>(), delay()).prop_map(|(bit, delay)| Act::Flip(bit, delay)),
        delay().prop_map(Act::Refuse),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..12, any::<bool>(), proptest::option::of(0u64..5_000))
            .prop_map(|(name, tcp, patience_ms)| Step::Ask { name, tcp, patience_ms }),
        4 => prop_oneof![0u64..50, 0u64..2_000].prop_map(Step::Pass),
        1 => (any::<u8>(), proptest::collection::vec(any::<u8>(), 0..80))
            .prop_map(|(socket, bytes)| Step::Forge { socket, bytes }),
        1 => any::<u8>().prop_map(|socket| Step::Trouble { socket }),
        1 => prop_oneof![
            Just(None),
            Just(Some(SendError::Files)),
            Just(Some(SendError::Buffers)),
            Just(Some(SendError::Refused(std::io::ErrorKind::NetworkUnreachable))),
        ]
        .prop_map(Step::Unsendable),
        1 => any::<u8>().prop_map(|socket| Step::Spoil { socket }),
        1 => (0u8..4).prop_map(Step::Swap),
    ]
}

fn does(act: Act, query: &[u8]) -> Vec<Does> {
    match act {
        Act::Nothing => vec![],
        Act::Answer(after) => vec![Does::Reply(ms(after), answer(query))],
        Act::Twice(after) => {
            vec![Does::Reply(ms(after), answer(query)), Does::Reply(ms(after), answer(query))]
        }
        Act::Rcode(rcode, after) => {
            vec![Does::Reply(ms(after), message::with_rcode(query, Rcode(rcode.into())))]
        }
        Act::Truncate(after) => vec![Does::Reply(ms(after), message::truncated(query))],
        Act::Cut(length, after) => {
            let mut reply = answer(query);
            reply.truncate(usize::from(length));
            vec![Does::Reply(ms(after), reply)]
        }
        Act::Flip(bit, after) => {
            let mut reply = answer(query);
            let at = usize::from(bit) % (reply.len() * 8);
            reply[at / 8] ^= 1 << (at % 8);
            vec![Does::Reply(ms(after), reply)]
        }
        Act::Refuse(after) => vec![Does::Refuse(ms(after), std::io::ErrorKind::ConnectionRefused)],
    }
}

fn upstream(script: Vec<Act>) -> Box<dyn FnMut(common::Asked<'_>) -> Vec<Does>> {
    Box::new(move |asked| does(script[asked.nth % script.len()], asked.bytes))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    /// Each waiter is returned once, and all flights end.
    #[test]
    fn each_waiter_returned_once(
        scripts in proptest::collection::vec(proptest::collection::vec(act(), 1..6), 1..4),
        second in proptest::collection::vec(act(), 1..4),
        steps in proptest::collection::vec(step(), 1..60),
        policy in prop_oneof![Just(Policy::Random), Just(Policy::RoundRobin), Just(Policy::Sequential)],
        flags in any::<[bool; 4]>(),
        max_concurrent in 0u32..6,
        flights in 1usize..8,
        sockets in 1usize..4,
    ) {
        let [force_tcp, failover, next, failfast] = flags;
        let spec = StanzaSpec {
            policy,
            force_tcp,
            max_concurrent,
            failfast,
            failover: if failover { vec![Rcode::SERVFAIL, Rcode::REFUSED] } else { vec![] },
            next: if next { vec![Rcode::NXDOMAIN, Rcode::SERVFAIL] } else { vec![] },
            next_on_nodata: next,
            ..StanzaSpec::default()
        };
        let limits = Limits {
            flights,
            waiters: 5,
            sockets,
            socket_queries: 4,
            socket_age: Duration::from_millis(800),
        };
        let upstreams = scripts.len();
        let stanzas = vec![
            (spec, scripts.into_iter().map(upstream).collect::<Vec<_>>()),
            (sequential(), vec![upstream(second)]),
        ];
        let mut world = World::with_limits(limits, stanzas);
        let all: Vec<_> = (1..=upstreams).map(|at| world.upstream(at as u8)).collect();
        let most = (upstreams + 1) * sockets * 2;
        let mut taken = Vec::new();
        for step in steps {
            match step {
                Step::Ask { name, tcp, patience_ms } => {
                    let name = format!("n{name}.example.org");
                    let patience = patience_ms.map(Duration::from_millis);
                    let question = Question { tcp, patience, ..Question::new(&name) };
                    taken.extend(world.ask_with(question).ok());
                }
                Step::Pass(time) => world.run_for(ms(time)),
                Step::Forge { socket, bytes } => {
                    let now = world.net.now;
                    let Some(socket) = nth_socket(&world, socket) else { continue };
                    world.forwarder.datagram(now, socket, &bytes);
                    world.drive();
                }
                Step::Trouble { socket } => {
                    let Some(socket) = nth_socket(&world, socket) else { continue };
                    world.forwarder.socket_error(socket, std::io::ErrorKind::NetworkUnreachable);
                    world.drive();
                }
                Step::Unsendable(why) => world.net.unsendable = why,
                Step::Spoil { socket } => {
                    let Some(socket) = nth_socket(&world, socket) else { continue };
                    world.net.spoiled.insert(socket);
                }
                Step::Swap(keep) => {
                    let keep = usize::from(keep).min(upstreams);
                    world.chain.stanzas()[0].set_upstreams(all[..keep].to_vec()).unwrap();
                }
            }
            prop_assert!(world.forwarder.in_flight() <= flights);
            prop_assert!(world.forwarder.occupied() <= flights + flights / 4);
            prop_assert!(world.forwarder.in_flight() <= world.forwarder.occupied());
            prop_assert!(world.net.sockets.len() <= most, "{} sockets", world.net.sockets.len());
        }
        world.run_for(ms(4_810));
        prop_assert_eq!(world.forwarder.in_flight(), 0);
        for waiter in &taken {
            prop_assert!(world.net.by_waiter.contains_key(waiter), "waiter {} was forgotten", waiter);
        }
        prop_assert_eq!(world.net.by_waiter.len(), taken.len());
        world.run_for(ms(20_000));
        prop_assert_eq!(world.forwarder.occupied(), 0);
        prop_assert_eq!(world.net.sockets.len(), 0);
        prop_assert_eq!(world.forwarder.next_wake(), None);
        for stanza in world.chain.stanzas() {
            prop_assert_eq!(stanza.concurrent(), 0);
        }
    }
}

/// Returns one of the open sockets, or the first closed one.
fn nth_socket(world: &World, at: u8) -> Option<SocketId> {
    let net = &world.net;
    let (mut known, closed): (Vec<_>, Vec<_>) =
        net.opened.iter().copied().partition(|socket| net.sockets.contains_key(socket));
    known.extend(closed.first());
    known.get(usize::from(at).checked_rem(known.len())?).copied()
}
