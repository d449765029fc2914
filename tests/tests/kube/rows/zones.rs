//! Transfers of whole zones, and the zone of a cluster set.

use std::net::SocketAddr;

use serde_json::json;
use tests::kube::Cluster;
use tests::{Ask, Message, Upstream, ask, eventually, exchange_udp, record};

use super::super::lab::{PATIENCE, check, labelled};
use super::super::zone::records;
use super::{start_set, tables};

const REFUSED: u16 = 5;

/// A transfer contains each object's records by the specification, none twice, between two equal
/// SOAs; a secondary with the current serial receives the SOA alone.
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
    // A secondary with an older serial receives the whole zone.
    let again = records(at, &ixfr(zone, serial - 1)).expect("it is sent");
    assert_eq!(again, sent);
    for rr in [one(at, &ixfr(zone, serial)), over_udp(at, &ixfr(zone, serial)), over_udp(at, &ixfr(zone, 1))]
    {
        assert_eq!(rr, sent[..1]);
    }
    // No transfer of a subdomain, of a reverse zone, or of another zone.
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

/// An IXFR query of a secondary that has this serial (RFC 1995, section 3).
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

/// The CRD of KEP-1645, its objects, and slices exported by other clusters.
pub(super) fn cluster_set_answers_from_imports(cluster: &Cluster, upstream: &Upstream) {
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
    // A service that is no longer imported disappears, and so does its address.
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
