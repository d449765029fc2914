//! Differences from old kube-dns: the table in docs/kubernetes.md.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tests::kube::{NAMESPACES, SERVICES, SLICES, ScriptedCluster};
use tests::{Server, ask, fresh_ip};

use super::program::{corefile, namespace, service, until, upstream};

/// The slice of a headless service: one endpoint has a host name, the other has not, but an
/// annotation that kube-dns would take for one.
fn slice(version: u32, second: &str) -> Value {
    json!({
        "metadata": {
            "name": "hl-1", "namespace": "t1", "resourceVersion": version.to_string(),
            "labels": {"kubernetes.io/service-name": "hl"},
            "annotations": {"endpoints.beta.kubernetes.io/hostnames-map": "{\"172.17.0.2\": {\"HostName\": \"h2\"}}"},
        },
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["172.17.0.1"], "hostname": "h1", "conditions": {"ready": true}},
            {"addresses": [second], "conditions": {"ready": true}},
        ],
        "ports": [{"name": "c", "protocol": "UDP", "port": 1234}],
    })
}

/// Names that kube-dns answered are answered as documented.
#[test]
fn old_kube_dns_answers() {
    let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    let web = json!({"clusterIP": "10.96.0.100", "clusterIPs": ["10.96.0.100"], "ports": ports});
    let headless = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": ports});
    let cluster = ScriptedCluster::start(
        [
            (NAMESPACES, namespace("t1")),
            (SERVICES, service("web", web)),
            (SERVICES, service("hl", headless)),
            (SLICES, slice(3, "172.17.0.2")),
        ],
        false,
    );
    let (at, upstream) = (SocketAddr::from((fresh_ip(), tests::port())), upstream());
    let _server = Server::start(&corefile(at, &cluster.api, &upstream));
    // kubeadm's Corefile sets kube-dns's TTL.
    let rows = ask(at, "web.t1.svc.cluster.local", "A").rows();
    assert_eq!(rows, ["web.t1.svc.cluster.local. 30 IN A 10.96.0.100"]);
    for (name, rtype, expected) in [
        // Priority, weight and target; two endpoints share the weight, and an endpoint without host
        // name is named by its address.
        ("_http._tcp.web.t1.svc.cluster.local", "SRV", &["0 100 80 web.t1.svc.cluster.local."][..]),
        (
            "_c._udp.hl.t1.svc.cluster.local",
            "SRV",
            &["0 50 1234 172-17-0-2.hl.t1.svc.cluster.local.", "0 50 1234 h1.hl.t1.svc.cluster.local."],
        ),
        ("172-17-0-2.hl.t1.svc.cluster.local", "A", &["172.17.0.2"]),
        // Reverse lookups: every ready endpoint, with a host name or without.
        ("100.0.96.10.in-addr.arpa", "PTR", &["web.t1.svc.cluster.local."]),
        ("1.0.17.172.in-addr.arpa", "PTR", &["h1.hl.t1.svc.cluster.local."]),
        ("2.0.17.172.in-addr.arpa", "PTR", &["172-17-0-2.hl.t1.svc.cluster.local."]),
        // Names of pods, IPv4 and IPv6.
        ("10-1-2-3.t1.pod.cluster.local", "A", &["10.1.2.3"]),
        ("fd00--1.t1.pod.cluster.local", "AAAA", &["fd00::1"]),
    ] {
        let reply = ask(at, name, rtype);
        let mut found = reply.short();
        found.sort_unstable();
        assert_eq!(found, expected, "{name} {rtype}");
    }
    for name in [
        // A namespace that does not exist.
        "10-1-2-3.nowhere.pod.cluster.local",
        // Wildcards for service, namespace and endpoint.
        "*.t1.svc.cluster.local",
        "web.*.svc.cluster.local",
        "*.hl.t1.svc.cluster.local",
        // A federation's name.
        "web.t1.myfederation.svc.cluster.local",
        // A host name given by an annotation.
        "h2.hl.t1.svc.cluster.local",
        // A name without `svc`.
        "web.t1.cluster.local",
    ] {
        assert_eq!(ask(at, name, "A").status(), "NXDOMAIN", "{name}");
    }
    // The watch delivers a change; there is no polling.
    cluster.put(SLICES, "MODIFIED", slice(4, "172.17.0.3"));
    until(at, "172-17-0-3.hl.t1.svc.cluster.local", &["172.17.0.3"]);
    assert_eq!(ask(at, "172-17-0-2.hl.t1.svc.cluster.local", "A").status(), "NXDOMAIN");
}
