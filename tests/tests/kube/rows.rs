//! The DNS specification row by row, against the real API: the answers for its objects, with each
//! property.

mod tables;
mod zones;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tests::kube::Cluster;
use tests::{Ask, Server, Upstream, add_address, ask, eventually, isolated_for, now, port, report, steadily};

use super::lab::{
    PATIENCE, check, endpoints, namespace, pod, service, slice, slices, spec, start, start_at, upstream,
};

const ZONES: &str = "cluster.local in-addr.arpa ip6.arpa";

/// Every row of the specification is answered from the real API's objects.
#[test]
fn specification_rows_with_the_real_api() {
    isolated_for(Duration::from_secs(300), || {
        const TEST: &str = "specification_rows_with_the_real_api";
        let Some(cluster) = Cluster::up(TEST) else { return };
        fill(&cluster);
        let upstream = upstream();
        let began = now();
        // An address that others can reach, so that it is the zone's name server.
        add_address("192.0.2.53/32");
        let at = ([192, 0, 2, 53], port()).into();
        let server = start_at(at, &cluster, &upstream, ZONES, "", "transfer cluster.local {\nto *\n}");
        check(at, 5, tables::PLAIN);
        aliases_are_first(at);
        zones::is_sent_whole_and_by_its_serial(at);
        for (properties, ttl, rows) in tables::PROPERTIES {
            let (at, _server) = start(&cluster, &upstream, ZONES, properties, "");
            check(at, *ttl, rows);
            zones::is_refused_without_transfer(at);
        }
        readiness_is_seen_in_order(&cluster, at);
        readiness_is_seen_within_a_second(&cluster, at);
        drop(server);
        zones::cluster_set_answers_from_imports(&cluster, &upstream);
        no_cluster_name_went_upstream(&upstream);
        report(&format!("measured: the rows of the specification in {:?}", began.elapsed()));
    });
}

/// Creates the fixture of our notes on CoreDNS's behaviour, where the API accepts it: it has no
/// services without ports, and its IPv6 range is fd00:10:96::/108.
fn fill(cluster: &Cluster) {
    for name in ["t1", "t2", "bare"] {
        namespace(cluster, name);
    }
    for (at, addresses, ports) in [
        ("t1/web", &["10.96.0.100", "fd00:10:96::64"][..], "http:80/TCP https:443/TCP"),
        ("t1/one", &["10.96.0.103"], "http:80/TCP https:443/TCP"),
        ("t1/v4", &["10.96.0.101"], "dns:53/UDP dns-tcp:53/TCP"),
        ("t1/v6", &["fd00:10:96::65"], ":80/TCP"),
        ("t1/hl", &["None"], "c:1234/UDP"),
        ("t1/dup", &["None"], "c:1234/UDP d:1235/TCP"),
        ("t1/none", &["None"], "c:1234/UDP"),
        ("t1/mark", &["None"], "c:1234/UDP"),
        ("t2/web", &["10.96.0.200"], "http:80/TCP"),
    ] {
        let mut spec = spec(addresses, ports);
        if addresses == ["None"] {
            spec = json!({"clusterIP": "None", "ports": spec["ports"]});
        }
        service(cluster, at, spec);
    }
    for (at, target) in [("t1/ext", "example.net"), ("t1/ext-ip", "192.0.2.1")] {
        service(cluster, at, json!({"type": "ExternalName", "externalName": target}));
    }
    for (at, of, endpoints, ports) in [
        ("t1/web-a", "web", "172.17.0.9#web-0", "http:8080/TCP https:8443/TCP"),
        ("t1/hl-a", "hl", FIRST, "c:1234/UDP"),
        ("t1/hl-b", "hl", "fd00:17::1=h3", "c:1234/UDP"),
        ("t1/dup-a", "dup", "172.17.1.1=same 172.17.1.2=same", "c:1234/UDP d:1235/TCP"),
        ("t1/none-a", "none", "!172.17.0.7=h7", "c:1234/UDP"),
        ("t1/mark-a", "mark", "172.17.9.0", "c:1234/UDP"),
        ("t2/two", "web", "172.17.0.9=shared", "http:8080/TCP"),
        ("t2/lost", "gone", "172.17.3.1", "http:80/TCP"),
    ] {
        slice(cluster, at, of, endpoints, ports);
    }
    let addresses =
        |texts: &[&str]| texts.iter().map(|text| text.parse().expect("an address")).collect::<Vec<_>>();
    pod(cluster, "t1/web-0", false, &addresses(&["172.17.0.9", "fd00:17::9"]));
    pod(cluster, "t2/other", false, &addresses(&["172.17.0.10"]));
}

/// The first endpoints of `hl`: one with a host name, one without, one not ready.
const FIRST: &str = "172.17.0.254=h1 172.17.0.255 !172.17.0.8=h8";

/// An alias precedes its target, which the upstream answers with its own TTL.
fn aliases_are_first(at: SocketAddr) {
    let reply = ask(at, "ext.t1.svc.cluster.local", "A");
    let rows: Vec<String> = reply.answers.iter().map(ToString::to_string).collect();
    let expected = ["ext.t1.svc.cluster.local. 5 IN CNAME example.net.", "example.net. 60 IN A 192.0.2.80"];
    assert_eq!(rows, expected);
}

/// Changes of one kind are applied in order: a client that sees a later one sees the earlier ones.
/// Without time bounds, so a slow machine cannot fail it.
fn readiness_is_seen_in_order(cluster: &Cluster, at: SocketAddr) {
    let all = ["172.17.0.254", "172.17.0.255", "172.17.0.8"];
    for (number, (endpoints, addresses)) in [
        ("172.17.0.254=h1 172.17.0.255 172.17.0.8=h8", &all[..]),
        ("!172.17.0.254=h1 172.17.0.255 172.17.0.8=h8", &all[1..]),
        ("!172.17.0.254=h1 !172.17.0.255 172.17.0.8=h8", &all[2..]),
        ("!172.17.0.254=h1 !172.17.0.255 !172.17.0.8=h8", &[]),
        ("172.17.0.254=h1 !172.17.0.255 !172.17.0.8=h8", &all[..1]),
        (FIRST, &all[..2]),
    ]
    .into_iter()
    .enumerate()
    {
        put(cluster, "hl-a", endpoints);
        let mark = format!("172.17.9.{}", number + 1);
        put(cluster, "mark-a", &mark);
        eventually("a later change", PATIENCE, || {
            (ask(at, "mark.t1.svc.cluster.local", "A").short() == [&*mark]).then_some(())
        });
        assert_eq!(ask(at, "hl.t1.svc.cluster.local", "A").short(), addresses, "{endpoints}");
        let srv = Ask::new("_c._udp.hl.t1.svc.cluster.local", "SRV").edns(1232).of(at);
        assert_eq!(srv.answers.len(), addresses.len() + 1, "{endpoints}: those and one of IPv6");
        for (name, host, address) in [("h1.hl", "254", all[0]), ("h8.hl", "8", all[2])] {
            let status = if addresses.contains(&address) { "NOERROR" } else { "NXDOMAIN" };
            assert_eq!(ask(at, &format!("{name}.t1.svc.cluster.local"), "A").status(), status, "{endpoints}");
            let pointer = ask(at, &format!("{host}.0.17.172.in-addr.arpa"), "PTR");
            assert_eq!(pointer.status(), status, "{endpoints}");
        }
    }
    // The name ends with its last ready endpoint.
    let alone = |endpoints, status| {
        put(cluster, "dup-a", endpoints);
        eventually(status, PATIENCE, || {
            (ask(at, "dup.t1.svc.cluster.local", "A").status() == status).then_some(())
        });
    };
    alone("!172.17.1.1=same !172.17.1.2=same", "NXDOMAIN");
    alone("172.17.1.1=same 172.17.1.2=same", "NOERROR");
}

/// One second is the promised bound, hundreds of times the usual delay. On a stalled machine the
/// test repeats with the same bound.
fn readiness_is_seen_within_a_second(cluster: &Cluster, at: SocketAddr) {
    steadily(|| {
        for (endpoints, status) in [("172.17.0.7=h7", "NOERROR"), ("!172.17.0.7=h7", "NXDOMAIN")] {
            put(cluster, "none-a", endpoints);
            eventually(&format!("{status} of {endpoints}"), Duration::from_secs(1), || {
                (ask(at, "none.t1.svc.cluster.local", "A").status() == status).then_some(())
            });
        }
    });
}

fn put(cluster: &Cluster, slice: &str, all: &str) {
    let path = format!("{}/{slice}", slices("t1"));
    let (code, body) = cluster.send("PATCH", &path, &json!({"endpoints": endpoints(all)}).to_string());
    assert_eq!(code, 200, "{body}");
}

fn no_cluster_name_went_upstream(upstream: &Upstream) {
    let asked = upstream.asked();
    assert!(!asked.is_empty() && asked.iter().all(|asked| asked.name == "example.net."), "{asked:?}");
}

/// A server with the zones of the cluster and of a cluster set.
fn start_set(cluster: &Cluster, upstream: &Upstream) -> (SocketAddr, Server) {
    let zones = "cluster.local clusterset.local in-addr.arpa ip6.arpa";
    start(cluster, upstream, zones, "multicluster clusterset.local", "")
}
