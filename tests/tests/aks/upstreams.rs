//! The choice of upstream and transport, and the replies to clients when an upstream fails.

use std::thread::{scope, sleep};
use std::time::Duration;

use tests::{
    Action, Ask, Connection, Metrics, Says, Transport, Upstream, add_address, ask, eventually, fixtures,
    isolated, now, steadily,
};

use super::{NODE, Node, PODS, answer_all, at, at9253, dotted};

#[test]
fn each_listener_has_its_upstream() {
    isolated(|| {
        let node = Node::start("");
        let table = [
            (NODE, "bing.com", "198.51.100.1", Transport::Udp),
            (PODS, "bing.com", "198.51.100.2", Transport::Udp),
            (NODE, "kubernetes.default.svc.cluster.local", "198.51.100.2", Transport::Tcp),
            (PODS, "kubernetes.default.svc.cluster.local", "198.51.100.2", Transport::Tcp),
        ];
        for (ip, name, answer, transport) in table {
            for query in [Ask::new(name, "A"), Ask::new(name, "A").tcp()] {
                assert_eq!(query.of(at(ip)).short(), [answer], "{name} at {ip}");
            }
            let asked = [node.vnet.asked_for(&dotted(name)), node.cluster.asked_for(&dotted(name))].concat();
            // With force_tcp the upstream is always queried over TCP; with prefer_udp over UDP,
            // even for clients over TCP.
            assert!(asked.iter().all(|asked| asked.transport == transport), "{name} at {ip}: {asked:?}");
        }
        assert_eq!(node.vnet.count("bing.com."), 1, "the second client is served from the cache");
        assert_eq!(node.vnet.count("kubernetes.default.svc.cluster.local."), 0, "cluster names stay inside");
    });
}

/// After a truncated reply the query is repeated over TCP.
#[test]
fn prefer_udp_repeats_over_tcp() {
    isolated(|| {
        let node = Node::start("");
        node.vnet.answer_by(|asked| {
            let lines: String =
                (0..100).map(|n| format!("{} 300 IN A 198.51.100.{n}\n", asked.name)).collect();
            Action::Truncate(Says::answer(&lines))
        });
        let reply = Ask::new("many.example", "A").tcp().of(at(NODE));
        assert_eq!((reply.status(), reply.answers.len()), ("NOERROR", 100));
        let transports: Vec<Transport> =
            node.vnet.asked_for("many.example.").iter().map(|asked| asked.transport).collect();
        assert_eq!(transports, [Transport::Udp, Transport::Tcp]);
        let small = Ask::new("many.example", "A").of(at(NODE));
        assert!(
            small.flag_names().contains("tc") && small.bytes.len() <= 512,
            "{} octets",
            small.bytes.len()
        );
    });
}

#[test]
fn max_concurrent_refuses_at_once() {
    isolated(|| {
        steadily(|| {
            let node = Node::start_on("", &fixtures::AKS.replace("max_concurrent 1000", "max_concurrent 3"));
            node.vnet.answer_by(|asked| answer_all(asked, 1).after(Duration::from_millis(1500)));
            scope(|scope| {
                let waiting: Vec<_> = (0..3)
                    .map(|n| scope.spawn(move || ask(at(NODE), &format!("slow{n}.example"), "A").status()))
                    .collect();
                eventually("three queries in flight", Duration::from_secs(1), || {
                    let slow = (0..3).filter(|n| node.vnet.count(&format!("slow{n}.example.")) > 0);
                    (slow.count() == 3).then_some(())
                });
                let reply = ask(at(NODE), "one-too-many.example", "A");
                assert_eq!(reply.status(), "REFUSED");
                assert!(reply.elapsed < Duration::from_millis(500), "{:?}", reply.elapsed);
                for waiting in waiting {
                    assert_eq!(waiting.join().unwrap(), "NOERROR");
                }
            });
            assert_eq!(ask(at(NODE), "slow0.example", "A").status(), "NOERROR");
            let metrics = Metrics::of(at9253());
            assert!(metrics.count("coredns_forward_max_concurrent_rejects_total", &[]) >= 1.0);
        });
    });
}

#[test]
fn dead_first_upstream_costs_no_answer() {
    isolated(|| {
        steadily(|| {
            add_address("10.0.0.1/32");
            let text = fixtures::AKS.replace("forward . 168.63.129.16", "forward . 10.0.0.1 168.63.129.16");
            let dead = Upstream::at("10.0.0.1:53".parse().unwrap(), |_| Action::Silent);
            let _node = Node::start_on("", &text);
            for n in 0..3 {
                let reply = ask(at(NODE), &format!("n{n}.example"), "A");
                assert_eq!(reply.short(), ["198.51.100.1"]);
                assert!(reply.elapsed < Duration::from_millis(700), "{:?}", reply.elapsed);
            }
            assert!(dead.total() > 0, "sequential asks the first one first");
        });
    });
}

/// Stale answers replace failed upstreams, with `immediate` and with `verify`.
#[test]
fn serve_stale_outlives_upstreams() {
    isolated(|| {
        steadily(|| {
            // This Corefile's cache keeps records for at least 5 s.
            let mut node = Node::start("");
            node.vnet.answer_by(|asked| Action::answer(&format!("{} 1 IN A 198.51.100.1", asked.name)));
            node.cluster.answer_by(|asked| Action::answer(&format!("{} 1 IN A 198.51.100.2", asked.name)));
            let stored = now();
            assert_eq!(ask(at(NODE), "stale.example", "A").short(), ["198.51.100.1"]);
            assert_eq!(ask(at(PODS), "stale.example", "A").short(), ["198.51.100.2"]);
            node.vnet.stop();
            node.cluster.stop();
            sleep(Duration::from_secs(6).saturating_sub(stored.elapsed()));
            let reply = ask(at(NODE), "stale.example", "A");
            assert_eq!((reply.status(), reply.short()), ("NOERROR", vec!["198.51.100.1"]));
            assert!(reply.elapsed < Duration::from_millis(300), "immediate: {:?}", reply.elapsed);
            assert!(reply.answers[0].ttl <= 30, "{:?}", reply.rows());
            let reply = ask(at(PODS), "stale.example", "A");
            assert_eq!((reply.status(), reply.short()), ("NOERROR", vec!["198.51.100.2"]));
            assert!(reply.elapsed < Duration::from_millis(2500), "verify: {:?}", reply.elapsed);
        });
    });
}

#[test]
fn pipelined_tcp_queries_are_independent() {
    isolated(|| {
        let node = Node::start("192.0.2.10 mcr.microsoft.com\n");
        node.vnet.answer_by(|asked| answer_all(asked, 1).after(Duration::from_millis(800)));
        let mut connection = Connection::open(at(NODE), Duration::from_secs(3)).unwrap();
        connection.send(&Ask::new("slow.example", "A").id(1).bytes()).unwrap();
        connection.send(&Ask::new("mcr.microsoft.com", "A").id(2).bytes()).unwrap();
        let ids = [connection.message().unwrap().id, connection.message().unwrap().id];
        assert_eq!(ids, [2, 1], "the hit is first");
    });
}
