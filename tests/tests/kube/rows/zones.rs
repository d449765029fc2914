//! Zones as a whole: transfers, and the zone of a set of clusters.

use std::net::SocketAddr;

use serde_json::json;
use tests::kube::Cluster;
use tests::{Ask, Message, Upstream, ask, eventually, exchange_udp, record};

use super::super::lab::{PATIENCE, check, labelled};
use super::super::zone::records;
use super::{start_set, tables};

const REFUSED: u16 = 5;

/// What is sent is what the specification has of each object, no record twice, between two of the same SOA; whoever has the
/// serial already is sent that alone.
pub(super) fn is_sent_whole_and_by_its_serial(at: SocketAddr) {
    let zone = "cluster.local";
    let sent = records(at, &Ask::new(zone, "AXFR").bytes()).expect("it is sent");
    let soa = sent.first().expect("a zone begins").clone();
    assert_eq!((soa.rtype, sent.last()), (6, Some(&soa)), "{sent:#?}");
    let other_ttl: Vec<_> = sent.iter().filter(|record| record.ttl != 5).collect();
    assert!(other_ttl.is_empty(), "{other_ttl:#?}");
    let mut words: Vec<String> = sent[1..sent.len() - 1]
        .iter()
        .map(|record| format!("{} {} {}", record.name, tests::rtype_name(record.rtype), record.data))
        .collect();
    words.sort();
    let mut expected = tables::SENT.to_vec();
    expected.sort_unstable();
    assert_eq!(words, expected);

    let serial = soa.data.split(' ').nth(2).expect("a serial").parse::<u32>().expect("a number");
    // By whoever has an older one it is sent whole.
    let again = records(at, &ixfr(zone, serial - 1)).expect("it is sent");
    assert_eq!(again, sent);
    for rr in [one(at, &ixfr(zone, serial)), over_udp(at, &ixfr(zone, serial)), over_udp(at, &ixfr(zone, 1))]
    {
        assert_eq!(rr, sent[..1]);
    }
    // Not what is no zone of its own, and not an address's.
    for zone in ["svc.cluster.local", "in-addr.arpa", "example.net"] {
        assert_eq!(records(at, &Ask::new(zone, "AXFR").bytes()), Err(REFUSED), "{zone}");
    }
    assert_eq!(Ask::new(zone, "AXFR").of(at).status(), "REFUSED", "over UDP");
}

pub(super) fn is_refused_without_transfer(at: SocketAddr) {
    for query in [Ask::new("cluster.local", "AXFR").bytes(), ixfr("cluster.local", 1)] {
        assert_eq!(records(at, &query), Err(REFUSED));
    }
}

/// A request of whoever has the zone at this serial (RFC 1995, section 3).
fn ixfr(zone: &str, serial: u32) -> Vec<u8> {
    let mut query = Ask::new(zone, "IXFR").bytes();
    query[9] = 1;
    query.extend(record(&format!("{zone} 0 IN SOA ns.{zone}. host.{zone}. {serial} 7200 1800 86400 5")));
    query
}

fn one(at: SocketAddr, query: &[u8]) -> Vec<tests::Record> {
    let mut connection = tests::Connection::open(at, PATIENCE).expect("the server takes connections");
    connection.send(query).expect("it reads");
    connection.message().expect("a message").answers
}

fn over_udp(at: SocketAddr, query: &[u8]) -> Vec<tests::Record> {
    let octets = exchange_udp(at, query, PATIENCE).expect("a reply");
    Message::decode(&octets).expect("a reply can be read").answers
}

/// The kind that KEP-1645 adds to the API, its objects, and slices that other clusters have exported.
pub(super) fn a_set_of_clusters_is_answered_from_imports(cluster: &Cluster, upstream: &Upstream) {
    cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", IMPORTS);
    let path = "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/t1/serviceimports";
    eventually("the new kind", PATIENCE, || (cluster.send("GET", path, "").0 == 200).then_some(()));
    for (name, spec) in [
        (
            "web",
            json!({"type": "ClusterSetIP", "ips": ["10.112.0.1", "fd00:112::1"], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}),
        ),
        ("hl", json!({"type": "Headless", "ports": [{"name": "c", "port": 1234, "protocol": "UDP"}]})),
    ] {
        let object = json!({"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport",
            "metadata": {"name": name}, "spec": spec});
        cluster.create(path, &object.to_string());
    }
    for (at, of, endpoints) in [
        ("t1/set-one", "one", "172.18.0.1=h1"),
        ("t1/set-two", "two", "172.19.0.1=h1 172.19.0.2 !172.19.0.3=h3"),
    ] {
        let labels = json!({"multicluster.kubernetes.io/service-name": "hl",
            "multicluster.kubernetes.io/source-cluster": of});
        let (path, object) = labelled(at, labels, endpoints, "c:1234/UDP");
        cluster.create(&path, &object);
    }
    let (at, _server) = start_set(cluster, upstream);
    check(at, 5, tables::SET);
    // What is imported no more is gone, and so is its address.
    let (code, body) = cluster.send("DELETE", &format!("{path}/web"), "");
    assert_eq!(code, 200, "{body}");
    eventually("it is gone", PATIENCE, || {
        (ask(at, "web.t1.svc.clusterset.local", "A").status() == "NXDOMAIN").then_some(())
    });
    assert_eq!(ask(at, "1.0.112.10.in-addr.arpa", "PTR").status(), "NXDOMAIN");
    assert_eq!(ask(at, "web.t1.svc.cluster.local", "A").short(), ["10.96.0.100"]);
}

const IMPORTS: &str = r#"{
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "serviceimports.multicluster.x-k8s.io", "annotations":
        {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1645"}},
    "spec": {
        "group": "multicluster.x-k8s.io", "scope": "Namespaced",
        "names": {"plural": "serviceimports", "singular": "serviceimport", "kind": "ServiceImport"},
        "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}"#;
