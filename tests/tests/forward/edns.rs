//! Upstreams with faulty EDNS, and client subnets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::scope;
use std::time::Duration;

use tests::{Action, Ask, Asked, Dns, Says, Upstream, fresh_ip, steadily};

use super::good;

/// An upstream's action on a query with an OPT.
type Fault = fn(&Asked) -> Action;

const KINDS: [(&str, Fault); 7] = [
    ("silent", |_| Action::Silent),
    ("BADVERS", |_| Action::rcode(16)),
    ("FORMERR with OPT", |_| Action::rcode(1)),
    ("FORMERR", |_| Action::Reply(Says::rcode(1).without_edns())),
    ("NOTIMP", |_| Action::Reply(Says::rcode(4).without_edns())),
    ("garbage", garbage),
    (STRIPPED, |asked| {
        Action::Reply(Says::answer(&format!("{} 300 IN A 192.0.2.1", asked.name)).without_edns())
    }),
];
const STRIPPED: &str = "OPT stripped";
const ECS: u16 = 8;

/// A reply with the right ID and question, followed by garbage.
fn garbage(asked: &Asked) -> Action {
    let mut octets = asked.bytes.clone();
    octets.truncate(12 + asked.name.len() + 1 + 4);
    octets[2] |= 0x80;
    octets[6..12].copy_from_slice(&[0, 1, 0, 0, 0, 0]);
    octets.extend([0xff; 5]);
    Action::Octets(octets)
}

fn hostile(fault: Fault) -> Upstream {
    Upstream::start(fresh_ip(), move |asked| if asked.edns.is_some() { fault(asked) } else { good(asked) })
}

#[test]
fn upstreams_hostile_to_edns() {
    steadily(|| {
        scope(|scope| {
            for (what, fault) in KINDS {
                for count in [1, 2] {
                    scope.spawn(move || served(what, fault, count));
                }
            }
        });
    });
}

fn served(what: &str, fault: Fault, count: usize) {
    let upstreams: Vec<Upstream> = (0..count).map(|_| hostile(fault)).collect();
    let words: Vec<String> = upstreams.iter().map(Upstream::word).collect();
    let dns = Dns::start(&format!("forward . {} {{\npolicy sequential\n}}", words.join(" ")));
    assert_eq!(dns.ask("first.example").short(), ["192.0.2.1"], "{what}, {count}");
    // The first query learned the fault: the second is sent once, in the form that works.
    assert_eq!(dns.ask("second.example").short(), ["192.0.2.1"], "{what}, {count}");
    let asked: Vec<Asked> =
        upstreams.iter().flat_map(|upstream| upstream.asked_for("second.example.")).collect();
    assert_eq!(asked.len(), 1, "{what}, {count}");
    assert_eq!(asked[0].edns.is_some(), what == STRIPPED, "{what}, {count}");
    for (name, client) in [
        ("size.example", Ask::new("size.example", "A").edns(4096)),
        ("do.example", Ask::new("do.example", "A").dnssec_ok()),
    ] {
        let reply = client.timeout(Duration::from_secs(6)).of(dns.at);
        assert_eq!(reply.short(), ["192.0.2.1"], "{what}, {count}, {name}");
        assert!(reply.edns.is_some(), "an OPT is answered with ours: {what}, {count}, {name}");
    }
}

/// Clients keep DNSSEC if at least one upstream has it.
#[test]
fn dnssec_beside_upstreams_without_edns() {
    steadily(|| {
        scope(|scope| {
            for (what, fault) in KINDS {
                scope.spawn(move || {
                    let (bad, right) = (hostile(fault), Upstream::start(fresh_ip(), good));
                    let dns = Dns::start(&format!(
                        "forward . {} {} {{\npolicy sequential\n}}",
                        bad.word(),
                        right.word()
                    ));
                    for n in 0..3 {
                        dns.ask(&format!("plain{n}.example"));
                        let name = format!("signed{n}.example");
                        let reply =
                            Ask::new(&name, "A").dnssec_ok().timeout(Duration::from_secs(6)).of(dns.at);
                        assert_eq!(reply.short(), ["192.0.2.1"], "{what}, {n}");
                        let asked = right.asked_for(&format!("{name}."));
                        let with_do =
                            asked.iter().any(|asked| asked.edns.as_ref().is_some_and(|edns| edns.dnssec_ok));
                        assert!(with_do, "{what}, {n}: {asked:?}");
                    }
                });
            }
        });
    });
}

/// An upstream that rejects a subnet takes DNSSEC from no client.
#[test]
fn rejected_subnet_keeps_dnssec() {
    steadily(|| {
        // Like BIND: FORMERR without OPT.
        let upstream = Upstream::start(fresh_ip(), |asked| match &asked.edns {
            Some(edns) if !edns.options.is_empty() => Action::Reply(Says::rcode(1).without_edns()),
            _ => good(asked),
        });
        let dns = Dns::start(&format!("forward . {}", upstream.word()));
        let subnet = [0, 1, 24, 0, 192, 0, 2];
        for n in 0..3 {
            let odd = Ask::new(&format!("odd{n}.example"), "A").option(ECS, &subnet);
            assert_eq!(odd.of(dns.at).short(), ["192.0.2.1"]);
            let name = format!("signed{n}.example");
            Ask::new(&name, "A").dnssec_ok().of(dns.at);
            let seen = upstream.asked_for(&format!("{name}."));
            assert!(
                seen[0].edns.as_ref().is_some_and(|edns| edns.dnssec_ok),
                "query {n} keeps its DO: {seen:?}"
            );
        }
    });
}

/// The client gets the upstream's scope, which decides what is cached.
#[test]
fn subnet_scope_is_returned() {
    steadily(|| {
        let subnet = |scope| [0, 1, 24, scope, 198, 51, 100];
        let upstream = Upstream::start(fresh_ip(), move |asked| {
            let answer = Says::answer(&format!("{} 300 IN A 192.0.2.1", asked.name));
            match asked.name.as_str() {
                "none.example." => Action::Reply(answer),
                "all.example." => Action::Reply(answer.option(ECS, &subnet(0))),
                "part.example." => Action::Reply(answer.option(ECS, &subnet(20))),
                // A forged reply with another subnet, then the upstream's.
                _ => Action::Both(
                    Box::new(Action::Reply(
                        Says::answer(&format!("{} 300 IN A 203.0.113.66", asked.name))
                            .option(ECS, &[0, 1, 24, 0, 198, 51, 101]),
                    )),
                    Box::new(Action::Reply(answer.option(ECS, &subnet(0)))),
                ),
            }
        });
        let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
        // The returned scope, and the number of upstream queries for two queries with a subnet and
        // two without.
        for (name, scope, queries) in [
            ("none.example", None, 3),
            ("all.example", Some(0), 1),
            // This upstream limits its answer's scope also for queries without a subnet.
            ("part.example", Some(20), 4),
            ("forged.example", Some(0), 1),
        ] {
            let first = Ask::new(name, "A").option(ECS, &subnet(0)).of(dns.at);
            assert_eq!(first.short(), ["192.0.2.1"], "{name}");
            assert_eq!(first.option(ECS), scope.map(subnet).as_ref().map(|option| &option[..]), "{name}");
            let other = Ask::new(name, "A").option(ECS, &subnet(0)).of(dns.at);
            assert_eq!(other.short(), ["192.0.2.1"], "{name}");
            for _ in 0..2 {
                let reply = Ask::new(name, "A").edns(1232).of(dns.at);
                assert_eq!(reply.short(), ["192.0.2.1"], "{name}");
                assert_eq!(reply.option(ECS), None, "{name}: a client that sent none gets none");
            }
            assert_eq!(upstream.count(&format!("{name}.")), queries, "{name}");
        }
    });
}

#[test]
fn failure_for_one_subnet_is_separate() {
    steadily(|| {
        // Silent until the test changes it.
        let silent = Arc::new(AtomicBool::new(true));
        let is_silent = silent.clone();
        let upstream =
            Upstream::start(
                fresh_ip(),
                move |asked| {
                    if is_silent.load(Relaxed) { Action::Silent } else { good(asked) }
                },
            );
        let dns = Dns::start(&format!(
            "cache {{\nservfail 5m\n}}\nforward . {} {{\nread_timeout 200ms\nmax_fails 0\n}}",
            upstream.word()
        ));
        let subnet = [0, 1, 24, 0, 192, 0, 2];
        let failed = Ask::new("subnet.example", "A").option(ECS, &subnet).of(dns.at);
        assert_eq!(failed.status(), "SERVFAIL");
        assert_eq!(Ask::new("plain.example", "A").of(dns.at).status(), "SERVFAIL");
        silent.store(false, Relaxed);
        // A failure for all clients is cached, one for a single subnet is not.
        for (name, status) in [("subnet.example", "NOERROR"), ("plain.example", "SERVFAIL")] {
            assert_eq!(Ask::new(name, "A").of(dns.at).status(), status, "{name}");
        }
    });
}
