//! Reverse lookups with many services and slices for an address.

use kubernetes_api::Sink;
use wire::Name;

use crate::testing::*;
use crate::{External, ExternalRules};

/// More than the limit for an address.
const MANY: usize = 2_100;

#[test]
fn ptr_owner_among_many_services() {
    let own = || {
        [
            namespace("t1"),
            namespace("evil"),
            service("t1/web", "10.0.0.1", ""),
            slice("t1/web-1", "web", "10.1.0.1", ""),
            external("t1/lb", "10.0.0.2", "", "10.0.0.3"),
            service("t1/dns", "10.0.0.10", ""),
            slice("t1/dns-1", "dns", "192.0.2.53", ""),
        ]
    };
    let others = |number| {
        let address = if number % 2 == 0 { "None" } else { "10.9.9.9" };
        [
            external(&format!("evil/s{number}"), address, "", "10.0.0.1"),
            slice(
                &format!("evil/s{number}-1"),
                &format!("s{number}"),
                "10.0.0.1 10.0.0.3 10.1.0.1 192.0.2.53",
                "",
            ),
        ]
    };
    let rules = || {
        let own = vec!["192.0.2.53".parse().unwrap()];
        crate::Rules { own, ..rules("cluster.local in-addr.arpa") }
    };
    let outside = || {
        let zones = ["example.org", "in-addr.arpa"].map(|zone| Name::from_text(zone).unwrap()).into();
        External::new(ExternalRules { zones, apex: "dns".into(), ttl: 5, headless: false }).unwrap()
    };
    // In an initial list, and one by one afterwards.
    let listed = Cluster::of(&everything(), rules(), own().into_iter().chain((0..MANY).flat_map(others)));
    let mut incremental = Cluster::of(&everything(), rules(), own());
    (0..MANY).flat_map(others).for_each(|object| incremental.writer.apply(object));
    for cluster in [&listed, &incremental] {
        let answer = cluster.ask("1.0.0.10.in-addr.arpa PTR");
        assert_eq!(answer, "PTR web.t1.svc.cluster.local.", "its cluster address, and none of an endpoint");
        let explained = cluster.explain("1.0.0.10.in-addr.arpa PTR");
        assert!(explained.contains("web"), "{explained}");
        let answer = cluster.ask_external(&outside(), "3.0.0.10.in-addr.arpa PTR");
        assert_eq!(answer, "PTR lb.t1.example.org.", "where it is reached from outside");
    }
    // The endpoints added first are scanned.
    let answer = incremental.ask("1.0.1.10.in-addr.arpa PTR");
    assert!(answer.contains("PTR 10-1-0-1.web.t1.svc.cluster.local."), "{}", &answer[..200]);
    let answer = incremental.ask("cluster.local NS");
    assert!(answer.contains("NS dns.t1.svc.cluster.local."), "{}", &answer[..200]);
    assert!(incremental.ask("ns.dns.cluster.local A").contains("A 10.0.0.10"));
    // Removed services and changed addresses leave the index.
    incremental.writer.apply(service("t1/web", "10.0.0.4", ""));
    assert!(!incremental.ask("1.0.0.10.in-addr.arpa PTR").contains("web.t1"));
    assert_eq!(incremental.ask("4.0.0.10.in-addr.arpa PTR"), "PTR web.t1.svc.cluster.local.");
}
