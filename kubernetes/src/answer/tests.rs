mod costs;
mod explain;
mod options;

use super::*;
use crate::testing::*;
use kubernetes_api::{Object, Sink, WatchConfig};

fn check(cluster: &Cluster, rows: &[(&str, &str)]) {
    for (question, expected) in rows {
        assert_eq!(cluster.ask(question), *expected, "{question}");
    }
}

/// The cluster for which CoreDNS's answers are recorded.
fn objects() -> Vec<Object> {
    vec![
        namespace("t1"),
        namespace("t2"),
        namespace("bare"),
        service("t1/web", "10.96.0.100 fd00:96::64", "http:80/tcp https:443/tcp"),
        slice("t1/web-a", "web", "172.17.0.9#web-0", "http:8080/tcp https:8443/tcp"),
        service("t1/v4", "10.96.0.101", "dns:53/udp dns-tcp:53/tcp"),
        service("t1/v6", "fd00:96::65", ":80/tcp"),
        service("t1/portless", "10.96.0.102", ""),
        service("t1/pending", "", "http:80/tcp"),
        service("t1/hl", "None", "c:1234/udp"),
        slice("t1/hl-a", "hl", "172.17.0.254=h1@a 172.17.0.255@b", "c:1234/udp"),
        slice("t1/hl-b", "hl", "fd00:17::1=h3@corp.example.com", "c:1234/udp"),
        service("t1/dup", "None", "c:1234/udp"),
        slice("t1/dup-a", "dup", "172.17.1.1=same 172.17.1.2=same 172.17.1.1=same", "c:1234/udp d:1235/tcp"),
        slice("t1/dup-b", "dup", "172.17.1.1=same", "c:1234/udp d:1235/tcp"),
        service("t1/bare", "None", ""),
        slice("t1/bare-a", "bare", "172.17.2.1", ""),
        service("t1/none", "None", "c:1234/udp"),
        service("t1/ext", "to example.net", "http:80/tcp"),
        service("t1/ext-ip", "to 192.0.2.1x", ""),
        service("t2/web", "10.96.0.200", "http:80/tcp"),
        slice("t2/two", "web", "172.17.0.9=shared", "http:8080/tcp"),
        slice("t2/lost", "gone", "172.17.3.1", "http:80/tcp"),
    ]
}

fn cluster(change: impl FnOnce(&mut WatchConfig, &mut Rules)) -> Cluster {
    let mut rules = rules("cluster.local in-addr.arpa ip6.arpa");
    let mut wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
    change(&mut wants, &mut rules);
    Cluster::of(&wants, rules, objects())
}

const NODATA: &str = "NODATA cluster.local.";
const NXDOMAIN: &str = "NXDOMAIN cluster.local.";

#[test]
fn cluster_ip_answers() {
    check(
        &cluster(|_, _| {}),
        &[
            ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("WEB.T1.svc.Cluster.Local A", "A 10.96.0.100"),
            ("web.t1.svc.cluster.local AAAA", "AAAA fd00:96::64"),
            ("v4.t1.svc.cluster.local AAAA", NODATA),
            ("v6.t1.svc.cluster.local A", NODATA),
            ("v6.t1.svc.cluster.local AAAA", "AAAA fd00:96::65"),
            ("portless.t1.svc.cluster.local A", "A 10.96.0.102"),
            ("pending.t1.svc.cluster.local A", NODATA),
            ("pending.t1.svc.cluster.local SRV", NODATA),
            ("_http._tcp.web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("http.tcp.web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("_nope._tcp.web.t1.svc.cluster.local A", NXDOMAIN),
            ("_http._udp.web.t1.svc.cluster.local A", NXDOMAIN),
            ("_http._tcp.portless.t1.svc.cluster.local A", NXDOMAIN),
            ("other.t1.svc.cluster.local A", NXDOMAIN),
            ("web.t3.svc.cluster.local A", NXDOMAIN),
            ("web.t1.cluster.local A", NXDOMAIN),
            ("x._http._tcp.web.t1.svc.cluster.local A", NXDOMAIN),
            // Endpoints of a service with cluster IPs have names, too.
            ("172-17-0-9.web.t1.svc.cluster.local A", "A 172.17.0.9"),
            ("172-17-0-9.web.t1.svc.cluster.local AAAA", NODATA),
            ("web-0.web.t1.svc.cluster.local A", NXDOMAIN),
            ("shared.web.t2.svc.cluster.local A", "A 172.17.0.9"),
            // Only a slice exists.
            ("gone.t2.svc.cluster.local A", NXDOMAIN),
            ("172-17-3-1.gone.t2.svc.cluster.local A", NXDOMAIN),
            ("web.t1.svc.example.org A", "not mine"),
        ],
    );
}

#[test]
fn srv_weights_and_additional() {
    let h1 = "h1.hl.t1.svc.cluster.local.";
    check(
        &cluster(|_, _| {}),
        &[
            (
                "_http._tcp.web.t1.svc.cluster.local SRV",
                "SRV 0 50 80 web.t1.svc.cluster.local., + web.t1.svc.cluster.local. A 10.96.0.100, \
                 + web.t1.svc.cluster.local. AAAA fd00:96::64",
            ),
            (
                "web.t1.svc.cluster.local SRV",
                "SRV 0 25 80 web.t1.svc.cluster.local., SRV 0 25 443 web.t1.svc.cluster.local., \
                 + A 10.96.0.100, + AAAA fd00:96::64",
            ),
            // One record for two protocols with the same number.
            ("v4.t1.svc.cluster.local SRV", "SRV 0 50 53 v4.t1.svc.cluster.local., + A 10.96.0.101"),
            (
                "_dns._udp.v4.t1.svc.cluster.local SRV",
                "SRV 0 100 53 v4.t1.svc.cluster.local., + v4.t1.svc.cluster.local. A 10.96.0.101",
            ),
            ("v6.t1.svc.cluster.local SRV", "SRV 0 100 80 v6.t1.svc.cluster.local., + AAAA fd00:96::65"),
            ("portless.t1.svc.cluster.local SRV", NODATA),
            ("_nope._tcp.web.t1.svc.cluster.local SRV", NXDOMAIN),
            (
                "_c._udp.hl.t1.svc.cluster.local SRV",
                "SRV 0 33 1234 172-17-0-255.hl.t1.svc.cluster.local., SRV 0 33 1234 h1.hl.t1.svc.cluster.local., \
                 SRV 0 33 1234 h3.hl.t1.svc.cluster.local., + 172-17-0-255.hl.t1.svc.cluster.local. A 172.17.0.255, \
                 + h1.hl.t1.svc.cluster.local. A 172.17.0.254, + h3.hl.t1.svc.cluster.local. AAAA fd00:17::1",
            ),
            ("h1.hl.t1.svc.cluster.local SRV", &format!("SRV 0 100 1234 {h1}, + A 172.17.0.254")),
            (
                "dup.t1.svc.cluster.local SRV",
                "SRV 0 12 1234 same.dup.t1.svc.cluster.local., SRV 0 12 1235 same.dup.t1.svc.cluster.local., \
                 + same.dup.t1.svc.cluster.local. A 172.17.1.1, + same.dup.t1.svc.cluster.local. A 172.17.1.2",
            ),
            ("bare.t1.svc.cluster.local SRV", NODATA),
            ("none.t1.svc.cluster.local SRV", NXDOMAIN),
            ("ext.t1.svc.cluster.local SRV", NODATA),
        ],
    );
}

#[test]
fn srv_target_address_from_any_slice() {
    let slices = [("a", ""), ("b", "c:1234/udp"), ("c", "")]
        .map(|(name, ports)| slice(&format!("t1/hl-{name}"), "hl", "172.17.0.1=h", ports));
    let expected = "SRV 0 33 1234 h.hl.t1.svc.cluster.local., + h.hl.t1.svc.cluster.local. A 172.17.0.1";
    for order in [[0, 1, 2], [1, 0, 2], [2, 0, 1]] {
        let slices = order.map(|number: usize| slices[number].clone());
        let objects = [namespace("t1"), service("t1/hl", "None", "")].into_iter().chain(slices);
        let wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
        let cluster = Cluster::of(&wants, rules("cluster.local"), objects);
        check(&cluster, &[("hl.t1.svc.cluster.local SRV", expected)]);
    }
}

#[test]
fn srv_additional_uses_compression() {
    let endpoints = "10.0.0.1=long-host-name-1 fd00::1=long-host-name-1 10.0.0.2=long-host-name-2 10.0.0.3";
    let objects =
        [namespace("t1"), service("t1/hl", "None", ""), slice("t1/hl-1", "hl", endpoints, "a:1/tcp b:2/tcp")];
    let wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
    let cluster = Cluster::of(&wants, rules("cluster.local"), objects);
    let question = "HL.t1.svc.cluster.local SRV";
    let target = |label: &str| 18 + label.len() + 1 + "\x02hl\x02t1\x03svc\x07cluster\x05local\0".len();
    let answers: usize = ["10-0-0-3", "long-host-name-1", "long-host-name-2"].map(target).iter().sum();
    let addresses = 3 * (2 + 10 + 4) + 2 + 10 + 16;
    let whole =
        wire::HEADER + "\x02hl\x02t1\x03svc\x07cluster\x05local\0".len() + 4 + 2 * answers + addresses;
    let (words, is_cut) = cluster.ask_within(question, whole);
    assert!(!is_cut && words.matches('+').count() == 4, "{words}");
    assert!(words.ends_with("+ long-host-name-2.hl.t1.svc.cluster.local. A 10.0.0.2"), "{words}");
}

#[test]
fn headless_answers() {
    check(
        &cluster(|_, _| {}),
        &[
            ("hl.t1.svc.cluster.local A", "A 172.17.0.254, A 172.17.0.255"),
            ("hl.t1.svc.cluster.local AAAA", "AAAA fd00:17::1"),
            ("h1.hl.t1.svc.cluster.local A", "A 172.17.0.254"),
            ("H1.hl.t1.svc.cluster.local A", "A 172.17.0.254"),
            ("h1.hl.t1.svc.cluster.local AAAA", NODATA),
            ("172-17-0-255.hl.t1.svc.cluster.local A", "A 172.17.0.255"),
            ("172-17-0-254.hl.t1.svc.cluster.local A", NXDOMAIN),
            ("h2.hl.t1.svc.cluster.local A", NXDOMAIN),
            ("_c._udp.hl.t1.svc.cluster.local A", "A 172.17.0.254, A 172.17.0.255"),
            ("_c._tcp.hl.t1.svc.cluster.local A", NXDOMAIN),
            ("dup.t1.svc.cluster.local A", "A 172.17.1.1, A 172.17.1.2"),
            ("same.dup.t1.svc.cluster.local A", "A 172.17.1.1, A 172.17.1.2"),
            ("bare.t1.svc.cluster.local A", "A 172.17.2.1"),
            ("172-17-2-1.bare.t1.svc.cluster.local A", "A 172.17.2.1"),
            ("none.t1.svc.cluster.local A", NXDOMAIN),
            ("none.t1.svc.cluster.local MX", NXDOMAIN),
            ("a.pin._zone.hl.t1.svc.cluster.local A", NXDOMAIN),
        ],
    );
}

#[test]
fn external_name_is_cname() {
    let rows = [
        ("ext.t1.svc.cluster.local A", "CNAME example.net. ..."),
        ("ext.t1.svc.cluster.local AAAA", "CNAME example.net. ..."),
        ("ext.t1.svc.cluster.local CNAME", "CNAME example.net."),
        ("ext.t1.svc.cluster.local TXT", NODATA),
        ("x.ext.t1.svc.cluster.local A", NXDOMAIN),
        ("_http._tcp.ext.t1.svc.cluster.local SRV", NXDOMAIN),
        ("web.t1.svc.cluster.local CNAME", NODATA),
    ];
    check(&cluster(|_, _| {}), &rows);
    for no_name in ["192.0.2.1", "fd00::1", "", ".", "a..b", &"x.".repeat(128)] {
        let mut cluster = cluster(|_, _| {});
        let Object::Service(mut service) = service("t1/ext", "None", "") else { unreachable!("a service") };
        service.target = Target::ExternalName(no_name.into());
        Sink::apply(&mut cluster.writer, Object::Service(service));
        check(
            &cluster,
            &[("ext.t1.svc.cluster.local A", NXDOMAIN), ("ext.t1.svc.cluster.local CNAME", NXDOMAIN)],
        );
    }
}

#[test]
fn nodata_for_other_types() {
    let cluster = cluster(|_, _| {});
    for name in
        ["", "svc.", "pod.", "t1.svc.", "bare.svc.", "t1.pod.", "ns.dns.", "dns-version.", "web.t1.svc."]
    {
        for rtype in ["MX", "HTTPS", "ANY", "PTR", "CNAME"] {
            check(&cluster, &[(&format!("{name}cluster.local {rtype}"), NODATA)]);
        }
    }
    for name in ["t3.svc.", "t3.pod.", "dns.", "x.", "x.dns-version.", "x.svc.x.", "1-2-3-4.t1.pod."] {
        for rtype in ["A", "AAAA", "TXT", "NS", "SRV", "PTR", "CNAME", "MX", "ANY"] {
            check(&cluster, &[(&format!("{name}cluster.local {rtype}"), NXDOMAIN)]);
        }
    }
    // As in CoreDNS, except SOA.
    for name in ["x.", "web.t1.svc.", "other.t1.svc.", "x.x.x.x.x.x."] {
        check(&cluster, &[(&format!("{name}cluster.local SOA"), NODATA)]);
    }
}

#[test]
fn apex_soa_ns_version() {
    let soa = "SOA ns.dns.cluster.local. hostmaster.cluster.local. 1700000000 7200 1800 86400 5";
    let own =
        cluster(|_, rules| rules.own = vec!["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()]);
    check(
        &own,
        &[
            ("cluster.local SOA", soa),
            ("Cluster.Local A", NODATA),
            ("cluster.local TXT", NODATA),
            ("dns-version.cluster.local TXT", "28800 TXT \"1.1.0\""),
            ("ns.dns.cluster.local A", "A 192.0.2.10"),
            ("ns.dns.cluster.local AAAA", "AAAA 2001:db8::10"),
            (
                "cluster.local NS",
                "NS ns.dns.cluster.local., + ns.dns.cluster.local. A 192.0.2.10, \
                 + ns.dns.cluster.local. AAAA 2001:db8::10",
            ),
            ("svc.cluster.local NS", NODATA),
            (
                "in-addr.arpa NS",
                "NS ns.dns.cluster.local., + ns.dns.cluster.local. A 192.0.2.10, \
                 + ns.dns.cluster.local. AAAA 2001:db8::10",
            ),
        ],
    );
    // A server that is an endpoint of services has their names.
    let served =
        cluster(|_, rules| rules.own = vec!["172.17.0.9".parse().unwrap(), "172.17.0.254".parse().unwrap()]);
    check(
        &served,
        &[
            (
                "cluster.local NS",
                "NS h1.hl.t1.svc.cluster.local., NS web.t1.svc.cluster.local., NS web.t2.svc.cluster.local., \
                 NS 172-17-0-255.hl.t1.svc.cluster.local., + h1.hl.t1.svc.cluster.local. A 172.17.0.254, \
                 + web.t1.svc.cluster.local. A 10.96.0.100, + web.t1.svc.cluster.local. AAAA fd00:96::64, \
                 + web.t2.svc.cluster.local. A 10.96.0.200, \
                 + 172-17-0-255.hl.t1.svc.cluster.local. A 172.17.0.255",
            ),
            ("ns.dns.cluster.local AAAA", "AAAA fd00:96::64"),
        ],
    );
    check(&cluster(|_, _| {}), &[("cluster.local NS", NODATA), ("ns.dns.cluster.local A", NODATA)]);
    check(
        &cluster(|_, rules| rules.ttl = 3600),
        &[("x.cluster.local A", NXDOMAIN), ("web.t1.svc.cluster.local A", "A 10.96.0.100")],
    );
}

#[test]
fn ptr_of_services_and_endpoints() {
    let arpa = "NXDOMAIN in-addr.arpa.";
    let rows = [
        ("100.0.96.10.in-addr.arpa PTR", "PTR web.t1.svc.cluster.local."),
        ("254.0.17.172.in-addr.arpa PTR", "PTR h1.hl.t1.svc.cluster.local."),
        ("255.0.17.172.in-addr.arpa PTR", "PTR 172-17-0-255.hl.t1.svc.cluster.local."),
        (
            "9.0.17.172.in-addr.arpa PTR",
            "PTR shared.web.t2.svc.cluster.local., PTR 172-17-0-9.web.t1.svc.cluster.local.",
        ),
        ("1.1.17.172.in-addr.arpa PTR", "PTR same.dup.t1.svc.cluster.local."),
        ("1.3.17.172.in-addr.arpa PTR", "PTR 172-17-3-1.gone.t2.svc.cluster.local."),
        (
            "4.6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa PTR",
            "PTR web.t1.svc.cluster.local.",
        ),
        ("100.0.96.10.in-addr.arpa A", "NODATA in-addr.arpa."),
        ("in-addr.arpa PTR", "NODATA in-addr.arpa."),
        ("99.0.96.10.in-addr.arpa PTR", arpa),
        ("96.10.in-addr.arpa PTR", arpa),
        ("svc1.t1.svc.10.in-addr.arpa A", arpa),
        ("99.0.96.10.in-addr.arpa SOA", "NODATA in-addr.arpa."),
        ("x.ip6.arpa PTR", "NXDOMAIN ip6.arpa."),
        ("web.t1.svc.cluster.local PTR", NODATA),
        ("100.0.96.10.cluster.local PTR", NXDOMAIN),
    ];
    check(&cluster(|_, _| {}), &rows);
}

#[test]
fn reply_has_one_excess_record() {
    let endpoints: Vec<String> =
        (0..1000).map(|number| format!("10.0.{}.{}", number / 250, number % 250)).collect();
    let mut objects = vec![namespace("t1"), service("t1/big", "None", "")];
    for slice_of in 0..6 {
        let endpoints = endpoints.join(" ").replace("10.0.", &format!("10.{slice_of}."));
        objects.push(slice(&format!("t1/{slice_of}"), "big", &endpoints, "http:80/tcp"));
    }
    let cluster = Cluster::of(
        &WatchConfig { endpoints: true, ..WatchConfig::default() },
        rules("cluster.local"),
        objects,
    );
    for question in [
        "big.t1.svc.cluster.local A",
        "big.t1.svc.cluster.local SRV",
        "_http._tcp.big.t1.svc.cluster.local A",
    ] {
        for room in [512, 1232, 65_535] {
            let (words, cut) = cluster.ask_within(question, room);
            assert!(cut, "{question} in {room}");
            assert!(words.len() < room * 8, "{question} in {room}: {}", words.len());
        }
    }
}

#[test]
fn unsynced_kinds_are_not_denied() {
    let mut rules = rules("cluster.local in-addr.arpa ip6.arpa");
    rules.pods = Pods::Verified;
    let mut cluster = Cluster::new(&everything(), rules);
    let sure = [
        ("cluster.local A", NODATA),
        ("svc.cluster.local A", NODATA),
        ("x.svc.cluster.local SOA", NODATA),
        ("dns-version.cluster.local TXT", "28800 TXT \"1.1.0\""),
        ("x.cluster.local A", NXDOMAIN),
        ("x.in-addr.arpa PTR", "NXDOMAIN in-addr.arpa."),
    ];
    let mut zeros = cluster.index.serial();
    assert_eq!(zeros, 0);
    check(&cluster, &sure);
    check(
        &cluster,
        &[
            ("t1.svc.cluster.local A", "namespaces are not known"),
            ("web.t1.svc.cluster.local A", "services are not known"),
            ("1-2-3-4.t1.pod.cluster.local A", "namespaces are not known"),
            ("100.0.96.10.in-addr.arpa PTR", "endpointslices are not known"),
            // The services of which this server is an endpoint.
            ("cluster.local NS", "services are not known"),
            ("ns.dns.cluster.local A", "services are not known"),
        ],
    );
    let complete = |cluster: &mut Cluster, kind: Kind| {
        Sink::begin(&mut cluster.writer, kind);
        let own = objects().into_iter().filter(|object| object.kind() == kind);
        own.for_each(|object| Sink::apply(&mut cluster.writer, object));
        Sink::complete(&mut cluster.writer, kind);
    };
    complete(&mut cluster, Kind::Service);
    // The namespace is not synced.
    check(&cluster, &[("web.t1.svc.cluster.local A", "endpointslices are not known")]);
    complete(&mut cluster, Kind::Namespace);
    check(&cluster, &sure[3..]);
    check(
        &cluster,
        &[
            ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("100.0.96.10.in-addr.arpa PTR", "PTR web.t1.svc.cluster.local."),
            ("254.0.17.172.in-addr.arpa PTR", "endpointslices are not known"),
            ("hl.t1.svc.cluster.local A", "endpointslices are not known"),
            ("h1.web.t1.svc.cluster.local A", "endpointslices are not known"),
            ("other.t1.svc.cluster.local A", "endpointslices are not known"),
            ("t3.svc.cluster.local A", NXDOMAIN),
            ("1-2-3-4.t1.pod.cluster.local A", "pods are not known"),
        ],
    );
    complete(&mut cluster, Kind::Slice);
    complete(&mut cluster, Kind::Pod);
    zeros = cluster.index.serial();
    assert_eq!(u64::from(zeros), SERIAL);
    check(
        &cluster,
        &[
            ("hl.t1.svc.cluster.local A", "A 172.17.0.254, A 172.17.0.255"),
            ("other.t1.svc.cluster.local A", NXDOMAIN),
            ("1-2-3-4.t1.pod.cluster.local A", NXDOMAIN),
        ],
    );
    assert_eq!(cluster.index.unsynced().kinds().collect::<Vec<_>>(), [Kind::ServiceImport]);
}

#[test]
fn truncated_records_are_not_written() {
    let ports: String = (1..=20_000).map(|port| format!("p{port}:{port}/tcp ")).collect();
    let one = |n: usize| service(&format!("t1/many-{n}"), "None", "c:1/udp");
    let same = |n: usize| slice(&format!("t1/many-{n}"), &format!("many-{n}"), "10.1.0.1", "c:1/udp");
    let services = (0..5_000).flat_map(|n| [one(n), same(n)]);
    let more = [
        namespace("t1"),
        service("t1/web", "10.96.0.100", &ports),
        service("t1/hl", "None", ""),
        slice("t1/hl", "hl", "10.0.0.1 10.0.0.2", &ports),
    ];
    let wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
    let mut rules = rules("cluster.local in-addr.arpa");
    rules.own = vec!["10.1.0.1".parse().unwrap()];
    let cluster = Cluster::of(&wants, rules, more.into_iter().chain(services));
    for question in [
        "web.t1.svc.cluster.local SRV",
        "hl.t1.svc.cluster.local SRV",
        "10-0-0-1.hl.t1.svc.cluster.local SRV",
        "1.0.1.10.in-addr.arpa PTR",
        "cluster.local NS",
    ] {
        for room in [512, 1_232, 65_535] {
            let (written, cut) = cluster.written(question, room);
            assert!(cut && written <= room + 512, "{question} {room}: {written}");
        }
    }
}
