use super::*;
use crate::testing::*;

fn cluster(headless: bool) -> (Cluster, External) {
    let mut rules = rules("cluster.local");
    rules.own = vec!["172.17.0.53".parse().unwrap()];
    rules.ttl = 7;
    let objects = [
        namespace("t1"),
        external("t1/lb", "10.96.0.1", "http:80/tcp https:443/tcp", "192.0.2.1 2001:db8::1 192.0.2.1"),
        external("t1/host", "10.96.0.2", "http:80/tcp https:443/tcp", "lb.example.net"),
        external("t1/portless", "10.96.0.3", "", "192.0.2.3"),
        service("t1/inside", "10.96.0.4", "http:80/tcp"),
        service("t1/hl", "None", "c:1234/udp"),
        slice("t1/hl-a", "hl", "172.17.0.1=h1 172.17.0.2", "c:1234/udp"),
        external("t1/dns", "10.96.0.10", "dns:53/udp", "192.0.2.53"),
        slice("t1/dns-a", "dns", "172.17.0.53", "dns:53/udp"),
        external("t2/hidden", "10.96.0.5", "http:80/tcp", "192.0.2.5"),
    ];
    let zones = ["example.org", "in-addr.arpa"].map(|zone| Name::from_text(zone).unwrap()).into();
    let external = External::new(ExternalRules { zones, apex: "dns".into(), ttl: 7, headless }).unwrap();
    (Cluster::of(&everything(), rules, objects), external)
}

fn check(headless: bool, rows: &[(&str, &str)]) {
    let (cluster, external) = cluster(headless);
    for (question, expected) in rows {
        assert_eq!(cluster.ask_external(&external, question), *expected, "{question}");
    }
}

#[test]
fn explains_objects_by_name() {
    for (headless, name, expected) in [
        (false, "lb.t1.example.org", "service t1/lb is reached at 192.0.2.1, 2001:db8::1, 192.0.2.1"),
        (false, "host.t1.example.org", "service t1/host is reached at \"lb.example.net\""),
        (false, "_http._udp.lb.t1.example.org", "service t1/lb has no matching port"),
        (false, "inside.t1.example.org", "service t1/inside has no external address"),
        (false, "hl.t1.example.org", "service t1/hl has no external address"),
        (
            true,
            "hl.t1.example.org",
            "service t1/hl: endpoint 172.17.0.2 of slice t1/hl-a, endpoint 172.17.0.1 of slice t1/hl-a",
        ),
        (true, "h1.hl.t1.example.org", "service t1/hl: endpoint 172.17.0.1 of slice t1/hl-a"),
        (true, "h9.hl.t1.example.org", "service t1/hl has no matching ready endpoint"),
        (false, "none.t1.example.org", "service t1/none does not exist"),
        (false, "t1.example.org", "namespace t1"),
        (false, "hidden.t2.example.org", "namespace t2 does not exist"),
        (false, "t2.example.org", "namespace t2 does not exist"),
        (false, "a.b.c.lb.t1.example.org", "not a valid name of a service"),
        (false, "ns1.dns.example.org", "the zone itself, with the addresses of this server"),
        (false, "1.2.0.192.in-addr.arpa", "service t1/lb is reached at 192.0.2.1"),
        (false, "9.2.0.192.in-addr.arpa", "no service is reached at 192.0.2.9"),
        (false, "example.net", "in none of its zones"),
    ] {
        let (cluster, external) = cluster(headless);
        assert_eq!(cluster.explain_external(&external, name), expected, "{name}");
    }
}

const NODATA: &str = "NODATA example.org.";
const NXDOMAIN: &str = "NXDOMAIN example.org.";

#[test]
fn external_addresses_of_services() {
    check(
        false,
        &[
            ("lb.t1.example.org A", "A 192.0.2.1"),
            ("LB.t1.Example.org AAAA", "AAAA 2001:db8::1"),
            ("_http._tcp.lb.t1.example.org A", "A 192.0.2.1"),
            ("_http._udp.lb.t1.example.org A", NXDOMAIN),
            (
                "_https._tcp.lb.t1.example.org SRV",
                "SRV 0 33 443 lb.t1.example.org., + lb.t1.example.org. A 192.0.2.1, + lb.t1.example.org. AAAA 2001:db8::1",
            ),
            (
                "lb.t1.example.org SRV",
                "SRV 0 16 80 lb.t1.example.org., SRV 0 16 443 lb.t1.example.org., + A 192.0.2.1, + AAAA 2001:db8::1",
            ),
            ("lb.t1.example.org TXT", NODATA),
            ("host.t1.example.org A", "CNAME lb.example.net. ..."),
            ("host.t1.example.org AAAA", "CNAME lb.example.net. ..."),
            ("host.t1.example.org SRV", "SRV 0 50 80 lb.example.net., SRV 0 50 443 lb.example.net."),
            ("host.t1.example.org CNAME", NODATA),
            ("portless.t1.example.org A", "A 192.0.2.3"),
            ("portless.t1.example.org SRV", NODATA),
            ("_http._tcp.portless.t1.example.org A", NXDOMAIN),
            ("3.2.0.192.in-addr.arpa PTR", "PTR portless.t1.example.org."),
            ("inside.t1.example.org A", NXDOMAIN),
            ("hl.t1.example.org A", NXDOMAIN),
            ("none.t1.example.org A", NXDOMAIN),
            ("t1.example.org A", NODATA),
            ("t2.example.org A", NXDOMAIN),
            ("hidden.t2.example.org A", NXDOMAIN),
            ("a.b.c.lb.t1.example.org A", NXDOMAIN),
            ("1.2.0.192.in-addr.arpa PTR", "PTR lb.t1.example.org."),
            ("1.2.0.192.in-addr.arpa A", "NODATA in-addr.arpa."),
            ("1.0.96.10.in-addr.arpa PTR", "NXDOMAIN in-addr.arpa."),
            ("lb.t1.example.com A", "not mine"),
        ],
    );
}

#[test]
fn zone_name_servers() {
    check(
        false,
        &[
            (
                "example.org SOA",
                "SOA ns1.dns.example.org. hostmaster.dns.example.org. 1700000000 7200 1800 86400 7",
            ),
            ("example.org NS", "NS ns1.dns.example.org., + ns1.dns.example.org. A 192.0.2.53"),
            ("example.org A", NODATA),
            ("dns.example.org A", NODATA),
            ("ns1.dns.example.org A", "A 192.0.2.53"),
            ("ns1.dns.example.org AAAA", NODATA),
            ("ns2.dns.example.org A", NXDOMAIN),
            ("x.ns1.dns.example.org A", NXDOMAIN),
        ],
    );
}

#[test]
fn limits_server_addresses() {
    let mut rules = rules("cluster.local");
    rules.own = vec!["172.17.0.53".parse().unwrap()];
    let mut objects = vec![namespace("t1")];
    for number in 1..=3 {
        let many: Vec<String> = (0..30_000).map(|n| format!("10.{number}.{}.{}", n / 250, n % 250)).collect();
        let many = many.join(" ");
        let (with, of) = (format!("t1/with-{number}"), format!("with-{number}"));
        objects.push(external(&with, &many, "dns:53/udp", &many));
        objects.push(slice(&with, &of, "172.17.0.53", "dns:53/udp"));
    }
    let cluster = Cluster::of(&everything(), rules, objects);
    let zones = [Name::from_text("example.org").unwrap()].into();
    let of = External::new(ExternalRules { zones, apex: "dns".into(), ttl: 7, headless: false }).unwrap();
    for words in [
        cluster.ask_external(&of, "ns1.dns.example.org A"),
        cluster.ask_external(&of, "example.org NS"),
        cluster.ask_external(&of, "with-1.t1.example.org A"),
        cluster.ask("ns.dns.cluster.local A"),
        cluster.ask("cluster.local NS"),
    ] {
        let count = words.split(", ").count();
        assert!((1_000..=4_096).contains(&count), "{count}: {}", &words[..100]);
    }
}

#[test]
fn apex_label_matches_whole() {
    let mut rules = rules("cluster.local");
    rules.own = vec!["172.17.0.53".parse().unwrap()];
    let objects = [namespace("x\u{3}dns"), external("x\u{3}dns/lb", "10.96.0.1", "", "192.0.2.1")];
    let (cluster, (_, external)) = (Cluster::of(&everything(), rules, objects), cluster(false));
    assert_eq!(cluster.ask_external(&external, "lb.x\u{3}dns.example.org A"), "7 A 192.0.2.1");
    let sent = cluster.transfer_external(&external, "example.org", None, 100).unwrap();
    assert!(sent.iter().any(|record| record.ends_with("A 192.0.2.1")), "{sent:?}");
}

#[test]
fn headless_option() {
    check(
        true,
        &[
            ("hl.t1.example.org A", "A 172.17.0.1, A 172.17.0.2"),
            ("h1.hl.t1.example.org A", "A 172.17.0.1"),
            ("172-17-0-2.hl.t1.example.org A", "A 172.17.0.2"),
            ("h2.hl.t1.example.org A", NXDOMAIN),
            ("h1.hl.t1.example.org SRV", "SRV 0 100 1234 h1.hl.t1.example.org., + A 172.17.0.1"),
            (
                "_c._udp.hl.t1.example.org SRV",
                "SRV 0 50 1234 172-17-0-2.hl.t1.example.org., SRV 0 50 1234 h1.hl.t1.example.org., \
                     + 172-17-0-2.hl.t1.example.org. A 172.17.0.2, + h1.hl.t1.example.org. A 172.17.0.1",
            ),
            ("lb.t1.example.org A", "A 192.0.2.1"),
            ("inside.t1.example.org A", NXDOMAIN),
        ],
    );
}
