//! Options that select the objects to answer for.

use super::*;
use kubernetes_api::Kind;

#[test]
fn namespaces_option() {
    let chosen = cluster(|_, rules| rules.namespaces = ["t1", "t9"].map(Into::into).into());
    check(
        &chosen,
        &[
            ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("t1.svc.cluster.local A", NODATA),
            ("web.t2.svc.cluster.local A", NXDOMAIN),
            ("t2.svc.cluster.local A", NXDOMAIN),
            ("t9.svc.cluster.local A", NXDOMAIN),
            ("200.0.96.10.in-addr.arpa PTR", "NXDOMAIN in-addr.arpa."),
            ("9.0.17.172.in-addr.arpa PTR", "PTR 172-17-0-9.web.t1.svc.cluster.local."),
        ],
    );
}

#[test]
fn pods_option() {
    let row = |cluster: &Cluster, question: &str, expected: &str| {
        assert_eq!(cluster.ask(question), expected, "{question}");
    };
    let insecure = cluster(|_, rules| rules.pods = Pods::Insecure);
    for (question, expected) in [
        ("1-2-3-4.t1.pod.cluster.local A", "A 1.2.3.4"),
        ("1-2-3-4.t1.pod.cluster.local AAAA", NODATA),
        ("x.1-2-3-4.t1.pod.cluster.local A", "A 1.2.3.4"),
        ("fd00--1.t1.pod.cluster.local AAAA", "AAAA fd00::1"),
        ("1--4-5.t1.pod.cluster.local AAAA", "AAAA 1::4:5"),
        ("1-2-3-4.t3.pod.cluster.local A", NXDOMAIN),
        ("1-2-3-256.t1.pod.cluster.local A", NXDOMAIN),
        ("1-2-3.t1.pod.cluster.local A", NXDOMAIN),
        ("web.t1.pod.cluster.local A", NXDOMAIN),
    ] {
        row(&insecure, question, expected);
    }
    let mut verified = cluster(|wants, rules| {
        wants.pods = Some(Default::default());
        rules.pods = Pods::Verified;
    });
    for object in [
        pod("t1/a", "172.17.0.9 fd00::9"),
        pod("t3/a", "172.17.0.10"),
        terminating(pod("t1/goes", "172.17.0.12")),
        pod("t1/will", "172.17.0.13 172.17.0.14"),
        terminating(pod("t1/will", "172.17.0.13")),
    ] {
        Sink::apply(&mut verified.writer, object);
    }
    for (question, expected) in [
        ("172-17-0-9.t1.pod.cluster.local A", "A 172.17.0.9"),
        ("fd00--9.t1.pod.cluster.local AAAA", "AAAA fd00::9"),
        ("172-17-0-9.t2.pod.cluster.local A", NXDOMAIN),
        ("172-17-0-10.t3.pod.cluster.local A", NXDOMAIN),
        ("172-17-0-11.t1.pod.cluster.local A", NXDOMAIN),
        // Until it is deleted, at its current addresses.
        ("172-17-0-12.t1.pod.cluster.local A", "A 172.17.0.12"),
        ("172-17-0-13.t1.pod.cluster.local A", "A 172.17.0.13"),
        ("172-17-0-14.t1.pod.cluster.local A", NXDOMAIN),
    ] {
        row(&verified, question, expected);
    }
    for (name, question) in
        [("t1/goes", "172-17-0-12.t1.pod.cluster.local A"), ("t1/will", "172-17-0-13.t1.pod.cluster.local A")]
    {
        Sink::delete(&mut verified.writer, Kind::Pod, key(name));
        row(&verified, question, NXDOMAIN);
    }
    row(&cluster(|_, _| {}), "172-17-0-9.t1.pod.cluster.local A", NXDOMAIN);
}

#[test]
fn options_change_answers() {
    let by_pod = cluster(|wants, _| wants.pod_names = true);
    check(
        &by_pod,
        &[
            ("web-0.web.t1.svc.cluster.local A", "A 172.17.0.9"),
            ("172-17-0-9.web.t1.svc.cluster.local A", NXDOMAIN),
            (
                "9.0.17.172.in-addr.arpa PTR",
                "PTR web-0.web.t1.svc.cluster.local., PTR shared.web.t2.svc.cluster.local.",
            ),
        ],
    );
    let ignoring = cluster(|_, rules| rules.ignore_empty = true);
    check(
        &ignoring,
        &[
            ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("v4.t1.svc.cluster.local A", NXDOMAIN),
            ("v4.t1.svc.cluster.local SRV", NXDOMAIN),
            ("ext.t1.svc.cluster.local CNAME", "CNAME example.net."),
        ],
    );
    let never = cluster(|_, rules| rules.ttl = 0);
    check(&never, &[("web.t1.svc.cluster.local A", "A 10.96.0.100"), ("x.cluster.local A", NXDOMAIN)]);
    let mut without = Cluster::new(&WatchConfig::default(), rules("cluster.local"));
    without.list(objects().into_iter().filter(|object| !matches!(object, Object::Slice(_))));
    check(
        &without,
        &[
            ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("hl.t1.svc.cluster.local A", NXDOMAIN),
            ("172-17-0-9.web.t1.svc.cluster.local A", NXDOMAIN),
        ],
    );
}

#[test]
fn zonal_names() {
    let zonal = cluster(|wants, rules| {
        wants.zones = true;
        rules.zonal = true;
    });
    check(
        &zonal,
        &[
            ("a.pin._zone.hl.t1.svc.cluster.local A", "A 172.17.0.254"),
            ("A.pin._zone.hl.t1.svc.cluster.local A", "A 172.17.0.254"),
            ("a.pin._zone.hl.t1.svc.cluster.local AAAA", NODATA),
            ("c.pin._zone.hl.t1.svc.cluster.local A", NODATA),
            ("c.pin._zone.hl.t1.svc.cluster.local TXT", NODATA),
            ("c.prefer._zone.hl.t1.svc.cluster.local A", "A 172.17.0.254, A 172.17.0.255"),
            ("b.prefer._zone.hl.t1.svc.cluster.local A", "A 172.17.0.255"),
            ("corp.example.com.pin._zone.hl.t1.svc.cluster.local AAAA", "AAAA fd00:17::1"),
            ("c.pin._zone.none.t1.svc.cluster.local A", NODATA),
            ("c.prefer._zone.none.t1.svc.cluster.local A", NODATA),
            ("a.pin._zone.web.t1.svc.cluster.local A", NXDOMAIN),
            ("a.pin._zone.ext.t1.svc.cluster.local A", NXDOMAIN),
            ("a.pin._zone.gone.t1.svc.cluster.local A", NXDOMAIN),
            ("a.other._zone.hl.t1.svc.cluster.local A", NXDOMAIN),
            (
                "b.pin._zone.hl.t1.svc.cluster.local SRV",
                "SRV 0 100 1234 172-17-0-255.hl.t1.svc.cluster.local., \
                 + 172-17-0-255.hl.t1.svc.cluster.local. A 172.17.0.255",
            ),
        ],
    );
}

#[test]
fn multicluster_zone() {
    let mut rules = rules("cluster.local clusterset.local in-addr.arpa");
    rules.multicluster = vec![Name::from_text("clusterset.local").unwrap()];
    let mut objects = objects();
    objects.extend([
        import("t1/web", "10.112.0.1", "http:80/tcp"),
        import("nowhere/web", "10.112.0.3", "http:80/tcp"),
        import("t1/hl", "None", "c:1234/udp"),
        imported("t1/hl-one", "hl", "one", "172.18.0.1=h1", "c:1234/udp"),
        imported("t1/hl-two", "hl", "two", "172.19.0.1=h1 172.19.0.2", "c:1234/udp"),
    ]);
    let cluster = Cluster::of(&everything(), rules, objects);
    let nxdomain = "NXDOMAIN clusterset.local.";
    check(
        &cluster,
        &[
            ("dns-version.clusterset.local TXT", "28800 TXT \"1.0.0\""),
            ("dns-version.cluster.local TXT", "28800 TXT \"1.1.0\""),
            ("web.t1.svc.clusterset.local A", "A 10.112.0.1"),
            ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("v4.t1.svc.clusterset.local A", nxdomain),
            ("hl.t1.svc.clusterset.local A", "A 172.18.0.1, A 172.19.0.1, A 172.19.0.2"),
            ("h1.one.hl.t1.svc.clusterset.local A", "A 172.18.0.1"),
            ("h1.two.hl.t1.svc.clusterset.local A", "A 172.19.0.1"),
            ("172-19-0-2.two.hl.t1.svc.clusterset.local A", "A 172.19.0.2"),
            ("h1.three.hl.t1.svc.clusterset.local A", nxdomain),
            ("h1.hl.t1.svc.clusterset.local A", nxdomain),
            ("h1.hl.t1.svc.cluster.local A", "A 172.17.0.254"),
            (
                "_c._udp.hl.t1.svc.clusterset.local SRV",
                "SRV 0 33 1234 172-19-0-2.two.hl.t1.svc.clusterset.local., \
                 SRV 0 33 1234 h1.one.hl.t1.svc.clusterset.local., SRV 0 33 1234 h1.two.hl.t1.svc.clusterset.local., \
                 + 172-19-0-2.two.hl.t1.svc.clusterset.local. A 172.19.0.2, \
                 + h1.one.hl.t1.svc.clusterset.local. A 172.18.0.1, + h1.two.hl.t1.svc.clusterset.local. A 172.19.0.1",
            ),
            ("1.0.112.10.in-addr.arpa PTR", "PTR web.t1.svc.clusterset.local."),
            ("web.nowhere.svc.clusterset.local A", nxdomain),
            ("3.0.112.10.in-addr.arpa PTR", "NXDOMAIN in-addr.arpa."),
        ],
    );
}
