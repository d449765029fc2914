//! Answers from memory allocate nothing: neither reply nor metrics nor log line.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use allocation_counter::measure;
use configuration::{Configuration, PersistentState};
use logging::{Format, LineRing, Logger};
use plugin::endpoint::Endpoint;
use plugin::{HostsGuard, QueryContext};
use query::serve::{self, Observed, Outcome, Served};
use wire::{Answer, Flags, Proto, Query, Verdict, accept};

/// Every plugin that answers from memory, with metrics and log.
const COREFILE: &str = r#"
. {
    bind 127.0.0.1
    log
    errors
    prometheus
    nsid node-1
    bufsize 1232
    template ANY ANY denied.example.org {
        match "^[a-z]+\.denied\.example\.org\.$"
        rcode NXDOMAIN
        ederror 15 "blocked here"
        fallthrough
    }
    hosts /nowhere/hosts {
        192.0.2.1 web.example.org www.example.org
        2001:db8::1 web.example.org
        192.0.2.9 only4.example.org
        192.0.2.5 *.wild.example.org
        fallthrough
    }
    cache 3600 {
        serve_stale 1h immediate
        prefetch 5 1m 10%
    }
    loop
    forward . 192.0.2.53
}
whoami.example.org {
    bind 127.0.0.1
    log
    prometheus
    nsid node-1
    whoami
}
logged.example.org {
    bind 127.0.0.1
    log . "{combined} {proto} {local} {>do}" {
        class denial success
    }
    hosts /nowhere/hosts {
        192.0.2.1 a.logged.example.org
    }
}
steps.example.org {
    bind 127.0.0.1
    loadbalance
    cache
    forward . 192.0.2.53
}
idle.example.org {
    bind 127.0.0.1
    rewrite type MX TXT
    rewrite class CH IN
    acl {
        block type A net 203.0.113.0/24
    }
    hosts /nowhere/hosts {
        192.0.2.1 a.idle.example.org
    }
}
plain.example.org {
    bind 127.0.0.1
    hosts /nowhere/hosts {
        192.0.2.1 a.plain.example.org
    }
}
"#;

const QUERIES: usize = 1000;
const AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 53);

#[allow(clippy::disallowed_methods, reason = "the one start from which all times are counted")]
fn start() -> Instant {
    Instant::now()
}

/// A configuration that takes queries as packets and discards replies.
struct Scene {
    configuration: Configuration,
    _shared: PersistentState,
    lines: LineRing,
    out: Vec<u8>,
    now: Instant,
    client: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl Scene {
    fn new(format: Format) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let logger = Logger::start(format, std::io::sink()).unwrap();
        let now = start();
        let (shared, _probes) = PersistentState::new(1 << 20, 2, runtime.handle(), logger.clone(), now);
        let spec = scene::spec(COREFILE).unwrap_or_else(|error| panic!("{error}"));
        let configuration =
            Configuration::build(&spec, &shared, &|_| Ok(Vec::new())).unwrap_or_else(|e| panic!("{e}"));
        let lines = logger.ring(1 << 20);
        let out = Vec::with_capacity(1500);
        let client = SocketAddr::from(([192, 0, 2, 200], 40_000));
        Self { configuration, _shared: shared, lines, out, now, client, _runtime: runtime }
    }

    /// Stores an upstream's answer to the query in `packet`: one record per address; none is a
    /// denial.
    fn keep(&self, packet: &[u8], ttl: u32, addresses: &[[u8; 4]]) {
        let query = query(packet);
        let zone =
            self.configuration.endpoints[&Endpoint::dns(AT)].served.route.candidates(&query).unwrap()[0];
        let cache = zone.block.pipeline.forwarding().unwrap().cache.as_ref().unwrap();
        let mut reply = packet[..12].to_vec();
        reply[2] |= 0x80;
        reply.extend_from_slice(query.question);
        reply[11] = 0;
        reply[6..8].copy_from_slice(&(addresses.len() as u16).to_be_bytes());
        for address in addresses {
            reply.extend_from_slice(b"\xc0\x0c\0\x01\0\x01");
            reply.extend_from_slice(&ttl.to_be_bytes());
            reply.extend_from_slice(b"\0\x04");
            reply.extend_from_slice(address);
        }
        if addresses.is_empty() {
            reply[3] |= 3;
            reply[9] = 1;
            reply.extend_from_slice(b"\0\0\x06\0\x01");
            reply.extend_from_slice(&ttl.to_be_bytes());
            reply.extend_from_slice(b"\0\x16\0\0");
            for _ in 0..5 {
                reply.extend_from_slice(&ttl.to_be_bytes());
            }
        }
        let mut answer = Answer::default();
        answer.read(&reply, query.question).unwrap();
        let kept = cache.store(&query, &mut answer, self.now);
        assert!(matches!(kept, cache::StoreResult::Kept(_)), "{kept:?}");
    }

    /// Serves, counts and logs a packet as a worker does.
    fn ask(&mut self, packet: &[u8]) -> Option<Outcome> {
        let client = self.client.into();
        let context = QueryContext::new(self.now, &client, self.client, Proto::Udp, 0);
        let mut tables = HostsGuard::default();
        let served = &self.configuration.endpoints[&Endpoint::dns(AT)].served;
        let gate = accept(packet);
        let mut outcome = Outcome::OPEN;
        let out = &mut self.out;
        match serve::serve(served, &gate, &context, &mut tables, out, &mut outcome) {
            Served::Reply | Served::Ask { replied: true, .. } | Served::Follow { replied: true, .. } => {}
            Served::Nothing
            | Served::Silence
            | Served::Stream(_)
            | Served::Ask { .. }
            | Served::Follow { .. } => {
                return None;
            }
        }
        let alike = std::slice::from_ref(&outcome);
        let seen = Observed {
            client: self.client,
            local: Some(AT),
            proto: Proto::Udp,
            nanos: 1234,
            now: self.now,
            upstream: None,
        };
        match outcome.zone {
            Some(index) => {
                let zone = &self.configuration.zones[index as usize];
                serve::count(zone.counters(0), alike, seen.proto, self.client.is_ipv6(), seen.nanos);
                serve::log(zone, &outcome, &seen, &query(packet), &mut self.lines);
            }
            None => {
                serve::count(
                    served.dropped_counters(0),
                    alike,
                    seen.proto,
                    self.client.is_ipv6(),
                    seen.nanos,
                );
            }
        }
        Some(outcome)
    }
}

fn query(packet: &[u8]) -> Query<'_> {
    let Verdict::Pass(query) = accept(packet) else { panic!("refused") };
    query
}

/// A query as clients send it; `edns` adds an OPT with NSID and DO.
fn packet(name: &str, rtype: wire::RType, edns: bool) -> Vec<u8> {
    let mut packet = b"\x12\x34".to_vec();
    packet.extend_from_slice(&Flags::RD.to_be_bytes());
    packet.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, u8::from(edns)]);
    packet.extend_from_slice(wire::Name::from_text(name).unwrap().as_wire());
    packet.extend_from_slice(&rtype.0.to_be_bytes());
    packet.extend_from_slice(&[0, 1]);
    if edns {
        packet.extend_from_slice(b"\0\0\x29\x10\0\0\0\x80\0\0\x04\0\x03\0\0");
    }
    packet
}

/// Name, type, rcode, records in the answer section.
const HITS: &[(&str, wire::RType, wire::Rcode, u16)] = &[
    ("WEB.example.org", wire::RType::A, wire::Rcode::NOERROR, 1),
    ("web.example.org", wire::RType::AAAA, wire::Rcode::NOERROR, 1),
    ("x.wild.example.org", wire::RType::A, wire::Rcode::NOERROR, 1),
    ("1.2.0.192.in-addr.arpa", wire::RType::PTR, wire::Rcode::NOERROR, 2),
    ("only4.example.org", wire::RType::AAAA, wire::Rcode::NOERROR, 0),
    ("web.example.org", wire::RType::TXT, wire::Rcode::NOERROR, 0),
    ("x.denied.example.org", wire::RType::A, wire::Rcode::NXDOMAIN, 0),
    ("any.whoami.example.org", wire::RType::A, wire::Rcode::NOERROR, 0),
    ("a.logged.example.org", wire::RType::A, wire::Rcode::NOERROR, 1),
    ("a.logged.example.org", wire::RType::AAAA, wire::Rcode::NOERROR, 0),
    ("a.plain.example.org", wire::RType::A, wire::Rcode::NOERROR, 1),
    ("kept.example.org", wire::RType::A, wire::Rcode::NOERROR, 3),
    ("gone.example.org", wire::RType::A, wire::Rcode::NXDOMAIN, 0),
];

fn nothing_is_allocated(scene: &mut Scene, packet: &[u8], expected: (wire::Rcode, u16), what: &str) {
    for _ in 0..10 {
        let outcome = scene.ask(packet).unwrap_or_else(|| panic!("{what}: memory has no answer"));
        assert_eq!((outcome.rcode, outcome.answers), expected, "{what}");
    }
    let mut answered = 0;
    let counted = measure(|| {
        for _ in 0..QUERIES {
            answered += usize::from(scene.ask(packet).is_some());
        }
    });
    assert_eq!(answered, QUERIES, "{what}: queries answered");
    assert_eq!(counted.count_total, 0, "{what}: allocations in {QUERIES} queries");
}

#[test]
fn hits_do_not_allocate() {
    for format in [Format::Text, Format::Json] {
        let mut scene = Scene::new(format);
        scene.keep(&packet("kept.example.org", wire::RType::A, false), 300, &[[192, 0, 2, 7]; 3]);
        scene.keep(&packet("kept.example.org", wire::RType::A, true), 300, &[[192, 0, 2, 7]; 3]);
        scene.keep(&packet("gone.example.org", wire::RType::A, false), 300, &[]);
        scene.keep(&packet("gone.example.org", wire::RType::A, true), 300, &[]);
        for (name, rtype, rcode, answers) in HITS {
            for edns in [false, true] {
                let what = format!("{name} {rtype}, EDNS and NSID {edns}, {format:?}");
                let packet = packet(name, *rtype, edns);
                nothing_is_allocated(&mut scene, &packet, (*rcode, *answers), &what);
                let nsid = scene.out.windows(6).any(|window| window == b"node-1");
                assert_eq!(
                    nsid,
                    edns && !name.ends_with("logged.example.org") && !name.ends_with("plain.example.org")
                );
            }
        }
    }
}

/// Middleware that does not act on the query.
#[test]
fn passive_middleware_does_not_allocate() {
    let mut scene = Scene::new(Format::Text);
    let asked = packet("a.idle.example.org", wire::RType::A, true);
    nothing_is_allocated(&mut scene, &asked, (wire::Rcode::NOERROR, 1), "idle steps");
}

/// A stale hit does not allocate, and neither does a prefetch.
#[test]
fn stale_hits_do_not_allocate() {
    let mut scene = Scene::new(Format::Text);
    let kept = packet("kept.example.org", wire::RType::A, false);
    scene.keep(&kept, 300, &[[192, 0, 2, 7]]);
    for (later, what) in [(280, "soon to end"), (600, "expired")] {
        scene.now += Duration::from_secs(later);
        nothing_is_allocated(&mut scene, &kept, (wire::Rcode::NOERROR, 1), what);
    }
}

#[test]
fn refusals_do_not_allocate() {
    let mut scene = Scene::new(Format::Text);
    let mut status = packet("web.example.org", wire::RType::SOA, false);
    status[2] |= 0x10;
    nothing_is_allocated(&mut scene, &status, (wire::Rcode::NOTIMP, 0), "STATUS");
    let mut two_questions = packet("web.example.org", wire::RType::A, true);
    two_questions[5] = 2;
    nothing_is_allocated(&mut scene, &two_questions, (wire::Rcode::FORMERR, 0), "two questions");
    let silent = measure(|| {
        for _ in 0..QUERIES {
            assert!(scene.ask(b"short").is_none());
        }
    });
    assert_eq!(silent.count_total, 0);
}

#[test]
fn middleware_sees_records_of_a_datagram() {
    let mut scene = Scene::new(Format::Text);
    let mut allocated = |addresses: usize| {
        let packet = packet(&format!("n{addresses}.steps.example.org"), wire::RType::A, true);
        scene.keep(&packet, 300, &vec![[192, 0, 2, 7]; addresses]);
        let mut outcome = None;
        let counted = measure(|| outcome = scene.ask(&packet));
        let outcome = outcome.unwrap();
        assert!(outcome.flags.has(Flags::TC) && outcome.response_size <= 1232, "{outcome:?}");
        counted.count_total
    };
    let (few, many) = (allocated(400), allocated(4_000));
    assert!(many <= few, "{many} allocations for 4,000 records, {few} for 400");
}

#[test]
fn counter_counts_allocations() {
    let one = measure(|| drop(std::hint::black_box(Box::new(std::hint::black_box(7)))));
    assert_eq!(one.count_total, 1);
}
