//! The real API is down for a long time: answers stay unchanged, and follow the API when it is
//! back.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tests::kube::{Api, Cluster, NAMESPACES, SERVICES, SLICES};
use tests::{
    Ask, Message, Metrics, Server, Stream, ask, eventually, fresh_ip, isolated_for, now, port, report,
};

use super::program::{corefile, ready, until, upstream};

/// Answers stay while the real API is down.
#[test]
fn half_a_minute_without_the_api() {
    isolated_for(Duration::from_secs(300), || {
        outage("half_a_minute_without_the_api", Duration::from_secs(30));
    });
}

/// Answers stay while the real API is down.
#[test]
#[ignore = "takes ten minutes: the API is gone for so long"]
fn ten_minutes_without_the_api() {
    isolated_for(Duration::from_secs(900), || {
        outage("ten_minutes_without_the_api", Duration::from_secs(600));
    });
}

fn outage(test: &str, length: Duration) {
    let Some(cluster) = Cluster::up(test) else { return };
    fill(&cluster);
    let (upstream, at) = (upstream(), SocketAddr::from((fresh_ip(), port())));
    let unused_api = Api::start(|_| panic!("no client queries it"));
    let kubeconfig = format!("kubeconfig {}", cluster.path("dns.kubeconfig").display());
    let text =
        corefile(at, &unused_api, &upstream).replace(&format!("endpoint {}", unused_api.url()), &kubeconfig);
    let server = Server::start(&text);
    until(at, "goes.t1.svc.cluster.local", &["10.96.7.2"]);
    until(at, "hl.t2.svc.cluster.local", &["172.17.0.2"]);
    let before: Vec<_> = QUERIES.iter().map(|(name, rtype)| answer(&Ask::new(name, rtype).of(at))).collect();
    let reached = before.iter().filter(|(rcode, records)| *rcode == 0 && !records.is_empty()).count();
    assert_eq!(reached, QUERIES.len() - 2, "{before:?}");

    cluster.lose();
    let lost = now();
    server.wait_for_log("Cannot follow", PATIENCE);
    for key in [
        "services/specs/t1/goes",
        "services/specs/t2/hl",
        "services/specs/t2/ext",
        "endpointslices/t2/hl-1",
        "namespaces/t3",
    ] {
        cluster.forget(key);
    }
    eventually("no kind is followed", PATIENCE, || (followed(at) == 0.0).then_some(()));
    let stream = Stream::start(
        at,
        100,
        |n| Ask::new(QUERIES[n % QUERIES.len()].0, QUERIES[n % QUERIES.len()].1),
        move |n, message| answer(message) == before[n % before.len()],
    );
    let memory = server.rss_kb();
    while lost.elapsed() < length {
        assert_eq!(ready(at), (200, "OK".to_owned()));
        assert_eq!(followed(at), 0.0);
        sleep(Duration::from_secs(1));
    }
    let (age, grown) = (event_age(at), server.rss_kb().saturating_sub(memory));
    assert!(age >= length.as_secs_f64(), "{age} s since the last event");
    assert!(grown < 4096, "{grown} KiB more");
    let counts = stream.finish(PATIENCE);
    counts.assert_clean();
    let log = server.log_text();
    let causes: Vec<_> =
        log.lines().filter_map(|line| line.split("Cannot follow ").nth(1)?.split_once(": ")).collect();
    let distinct: HashSet<_> = causes.iter().map(|(_, cause)| cause).collect();
    assert_eq!(distinct.len(), causes.len(), "each cause is reported once:\n{log}");
    report(&format!("measured: {} queries while the API was gone for {length:?}", counts.sent));

    cluster.start();
    service(
        &cluster,
        "t1",
        r#"{"metadata": {"name": "new"}, "spec": {"clusterIP": "10.96.7.9", "ports": [{"port": 80}]}}"#,
    );
    // The client reconnects after 15 s at the latest, and lists at once where the API no longer has
    // its version.
    until(at, "new.t1.svc.cluster.local", &["10.96.7.9"]);
    for name in [
        "goes.t1.svc.cluster.local",
        "hl.t2.svc.cluster.local",
        "h1.hl.t2.svc.cluster.local",
        "ext.t2.svc.cluster.local",
        "1-2-3-4.t3.pod.cluster.local",
    ] {
        eventually(&format!("{name} is gone"), PATIENCE, || {
            (ask(at, name, "A").status() == "NXDOMAIN").then_some(())
        });
    }
    assert_eq!(ask(at, "stays.t1.svc.cluster.local", "A").short(), ["10.96.7.1"]);
    assert_eq!(ask(at, "stays.t2.svc.cluster.local", "A").short(), ["172.17.0.3"]);
    server.wait_for_log("the Kubernetes API is followed again", PATIENCE);
    // The store has as many objects as the API.
    for (kind, path) in [("services", SERVICES), ("endpointslices", SLICES), ("namespaces", NAMESPACES)] {
        let (status, body) = cluster.send("GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        let list: Value = serde_json::from_str(&body).expect("it is JSON");
        let there = list["items"].as_array().expect("a list").len() as f64;
        // A watch may resume first, and then be refused and need a new list.
        eventually(&format!("{there} {kind}"), PATIENCE, || {
            let metrics = Metrics::of((at.ip(), 9153).into());
            (metrics.value("localdns_kubernetes_objects", &[("kind", kind)]) == Some(there)).then_some(())
        });
    }
}

fn fill(cluster: &Cluster) {
    for name in ["t1", "t2", "t3"] {
        cluster.create(NAMESPACES, &format!(r#"{{"metadata": {{"name": "{name}"}}}}"#));
    }
    for (name, address) in [("stays", "10.96.7.1"), ("goes", "10.96.7.2")] {
        service(
            cluster,
            "t1",
            &format!(
                r#"{{"metadata": {{"name": "{name}"}}, "spec": {{"clusterIP": "{address}", "ports": [{{"name": "http", "port": 80}}]}}}}"#
            ),
        );
    }
    service(
        cluster,
        "t2",
        r#"{"metadata": {"name": "ext"}, "spec": {"type": "ExternalName", "externalName": "stays.t1.svc.cluster.local"}}"#,
    );
    for (name, endpoint) in [("hl", "172.17.0.2"), ("stays", "172.17.0.3")] {
        service(
            cluster,
            "t2",
            &format!(
                r#"{{"metadata": {{"name": "{name}"}}, "spec": {{"clusterIP": "None", "ports": [{{"name": "c", "port": 1234}}]}}}}"#
            ),
        );
        let slice = format!(
            r#"{{"metadata": {{"name": "{name}-1", "labels": {{"kubernetes.io/service-name": "{name}"}}}}, "addressType": "IPv4",
                "ports": [{{"name": "c", "port": 1234, "protocol": "TCP"}}],
                "endpoints": [{{"addresses": ["{endpoint}"], "hostname": "h1", "conditions": {{"ready": true}}}}]}}"#
        );
        cluster.create("/apis/discovery.k8s.io/v1/namespaces/t2/endpointslices", &slice);
    }
}

fn service(cluster: &Cluster, namespace: &str, object: &str) {
    cluster.create(&format!("/api/v1/namespaces/{namespace}/services"), object);
}

/// The rcode, and the records sorted.
fn answer(message: &Message) -> (u16, Vec<(u16, u32, String)>) {
    let record = |record: &tests::Record| (record.rtype, record.ttl, record.data.clone());
    let mut records: Vec<_> = message.answers.iter().map(record).collect();
    records.sort_unstable();
    (message.rcode(), records)
}

fn event_age(at: SocketAddr) -> f64 {
    let metrics = Metrics::of((at.ip(), 9153).into());
    metrics.value("localdns_kubernetes_event_age_seconds", &[]).expect("it is counted")
}

fn followed(at: SocketAddr) -> f64 {
    Metrics::of((at.ip(), 9153).into()).value("localdns_kubernetes_followed", &[]).expect("it is counted")
}

/// The last two names do not exist.
const QUERIES: [(&str, &str); 12] = [
    ("stays.t1.svc.cluster.local", "A"),
    ("goes.t1.svc.cluster.local", "A"),
    ("_http._tcp.goes.t1.svc.cluster.local", "SRV"),
    ("2.7.96.10.in-addr.arpa", "PTR"),
    ("hl.t2.svc.cluster.local", "A"),
    ("h1.hl.t2.svc.cluster.local", "A"),
    ("2.0.17.172.in-addr.arpa", "PTR"),
    ("_c._tcp.hl.t2.svc.cluster.local", "SRV"),
    ("ext.t2.svc.cluster.local", "A"),
    ("1-2-3-4.t3.pod.cluster.local", "A"),
    ("goes.t1.svc.cluster.local", "AAAA"),
    ("other.t1.svc.cluster.local", "A"),
];
const PATIENCE: Duration = Duration::from_secs(60);
