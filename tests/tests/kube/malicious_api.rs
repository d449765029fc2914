//! The program with a malicious API: names, addresses, ports, weights and aliases that no API
//! server would accept.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tests::kube::{NAMESPACES, Object, PODS, SERVICES, SLICES, ScriptedCluster};
use tests::{Ask, Metrics, Server, ask, assert_contains, fresh_ip, port};

use super::program::{objects, service, upstream};
use super::zone::transfer;

fn metadata(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "name": name, "resourceVersion": "7", "labels": {"kubernetes.io/service-name": name}})
}

fn alias(name: &str, target: &str) -> Object {
    (SERVICES, service(name, json!({"type": "ExternalName", "externalName": target})))
}

fn addresses(name: &str, ips: &[&str], ports: &Value) -> Object {
    (SERVICES, service(name, json!({"clusterIP": ips.first(), "clusterIPs": ips, "ports": ports})))
}

fn headless(name: &str, endpoints: &Value, ports: &Value) -> [Object; 2] {
    let spec = json!({"clusterIP": "None", "clusterIPs": ["None"]});
    let slice = json!({"metadata": metadata("t1", name), "addressType": "IPv4", "endpoints": endpoints, "ports": ports});
    [(SERVICES, service(name, spec)), (SLICES, slice)]
}

/// Invalid names for objects.
fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "",
        ".",
        "..",
        "a.b",
        "-",
        "Upper",
        "*",
        "_http._tcp",
        "\u{fc}mlaut",
        "with space",
        "nul\0",
        "quote\"",
        "svc",
        "pod",
    ]
    .map(str::to_owned)
    .into();
    names.extend([63, 64, 253, 254, 5_000].map(|length| "x".repeat(length)));
    names
}

fn malicious_objects() -> Vec<Object> {
    let none = json!([]);
    let mut all = objects();
    for name in names() {
        all.push((NAMESPACES, json!({"metadata": {"name": name, "resourceVersion": "7"}})));
        for namespace in ["t1", &name] {
            let spec = json!({"clusterIP": "10.96.9.9", "clusterIPs": ["10.96.9.9"], "ports": [{"name": name, "port": 80}]});
            all.push((SERVICES, json!({"metadata": metadata(namespace, &name), "spec": spec})));
            let endpoint = json!({"addresses": ["172.17.9.9"], "hostname": name, "zone": name, "targetRef": {"name": name}});
            let slice = json!({"metadata": metadata(namespace, &name), "endpoints": [endpoint]});
            all.push((SLICES, slice));
            let status = json!({"phase": name, "podIPs": [{"ip": name}, {"ip": "172.17.9.9"}]});
            all.push((PODS, json!({"metadata": metadata(namespace, &name), "status": status})));
        }
        all.push(alias("odd", &name));
    }
    let ports = [-1, 0, 65_535, 65_536, i64::MAX, i64::MIN]
        .map(|port| json!({"name": "p", "protocol": "TCP", "port": port}));
    all.push(addresses("ports", &["10.96.1.1"], &json!(ports)));
    all.push(addresses(
        "protocols",
        &["10.96.1.2"],
        &json!([{"name": "p", "protocol": "x", "port": 1}, {"protocol": "", "port": 2}]),
    ));
    let odd =
        ["nonsense", "", "0.0.0.0", "255.255.255.255", "::", "1.2.3.4.5", "10.96.1.3", "10.96.1.3", "None"];
    all.push(addresses("addresses", &odd, &none));
    let same: Vec<Value> =
        (0..1_000).map(|_| json!({"addresses": ["172.17.8.1"], "hostname": "h"})).collect();
    all.extend(headless("same", &json!(same), &json!([{"name": "p", "port": 1}])));
    let many: Vec<Value> =
        (0..1_000_u32).map(|n| json!({"addresses": [format!("172.18.{}.{}", n >> 8, n & 0xff)]})).collect();
    all.extend(headless("many", &json!(many), &json!([{"name": "p", "port": 1}])));
    // Alias loops, and a chain above the limit.
    all.extend([alias("self", "self.t1.svc.cluster.local"), alias("ping", "pong.t1.svc.cluster.local")]);
    all.extend([alias("pong", "PING.t1.svc.cluster.local."), alias("apex", "cluster.local")]);
    for n in 0..40 {
        all.push(alias(&format!("chain-{n}"), &format!("chain-{}.t1.svc.cluster.local", n + 1)));
    }
    all
}

/// Answers contain what is valid of an inconsistent API's objects.
#[test]
fn inconsistent_api() {
    let (cluster, upstream) = (ScriptedCluster::start(malicious_objects(), false), upstream());
    let at = SocketAddr::from((fresh_ip(), port()));
    let server = Server::start(&format!(
        ".:{} {{\nbind {ip}\nprometheus {ip}:9153\nkubernetes cluster.local in-addr.arpa {{\nendpoint {}\npods verified\nzonal\nendpoint_pod_names\n}}\n\
         transfer {{\nto *\n}}\nforward . {}\n}}\n",
        at.port(),
        cluster.api.url(),
        upstream.word(),
        ip = at.ip(),
    ));
    let line = server.wait_for_log("Some services of the API are invalid", PATIENCE);
    assert_contains!(
        line,
        "and left out; the first is t1/: no name or no namespace. Correct it or delete it: `kubectl get services -A -o yaml`"
    );
    let honest = || assert_eq!(ask(at, "web.t1.svc.cluster.local", "A").short(), ["10.96.0.100"]);
    let mut sane = names();
    let is_asked = |octet: u8| octet.is_ascii_graphic() && octet != b'"';
    sane.retain(|name| (1..64).contains(&name.len()) && name.bytes().all(is_asked));
    sane.retain(|name| !name.starts_with('.'));
    let mut failing = BTreeSet::new();
    for own in OWN.into_iter().chain(sane.iter().map(String::as_str)) {
        let below =
            ["", "_p._tcp.", "z.pin._zone."].map(|labels| format!("{labels}{own}.t1.svc.cluster.local"));
        for name in below.into_iter().chain([format!("{own}.t1.pod.cluster.local")]) {
            for rtype in ["A", "AAAA", "SRV", "CNAME"] {
                for asked in [Ask::new(&name, rtype).edns(1232), Ask::new(&name, rtype).tcp().edns(1232)] {
                    let reply = asked.of(at);
                    match reply.status() {
                        "NOERROR" | "NXDOMAIN" => {}
                        "SERVFAIL" => {
                            assert!(reply.extended_error().is_some(), "{name} {rtype}: {reply:?}");
                            failing.insert(own);
                        }
                        other => panic!("{name} {rtype}: {other}"),
                    }
                }
            }
        }
        honest();
    }
    // Only aliases that do not end within the limit fail.
    assert_eq!(failing, BTreeSet::from(["self", "ping", "pong", "chain-0"]));
    for (name, rtype, expected) in [
        ("ports.t1.svc.cluster.local", "SRV", &["0 100 65535 ports.t1.svc.cluster.local."][..]),
        ("protocols.t1.svc.cluster.local", "SRV", &["0 100 2 protocols.t1.svc.cluster.local."]),
        ("addresses.t1.svc.cluster.local", "A", &["0.0.0.0", "10.96.1.3", "255.255.255.255"]),
        ("addresses.t1.svc.cluster.local", "AAAA", &["::"]),
        ("same.t1.svc.cluster.local", "A", &["172.17.8.1"]),
        ("_p._tcp.same.t1.svc.cluster.local", "SRV", &["0 1 1 h.same.t1.svc.cluster.local."]),
        ("_p._tcp.web.t1.svc.cluster.local", "SRV", &[]),
        ("odd.t1.svc.cluster.local", "A", &[]),
        ("chain-39.t1.svc.cluster.local", "A", &["chain-40.t1.svc.cluster.local."]),
    ] {
        let reply = Ask::new(name, rtype).tcp().of(at);
        let mut short = reply.short();
        short.sort_unstable();
        assert_eq!(short, expected, "{name} {rtype}");
    }
    let sent = transfer(at, &Ask::new("cluster.local", "AXFR")).expect("it is sent");
    assert!(sent.iter().any(|(name, _)| name == "web.t1.svc.cluster.local."));
    assert!(sent.iter().all(|(name, _)| name.ends_with("cluster.local.")));
    assert_eq!(Metrics::of((at.ip(), 9153).into()).count("coredns_panics_total", &[]), 0.0);
    honest();
}

/// Valid services beside the invalid ones.
const OWN: [&str; 13] = [
    "odd",
    "ports",
    "protocols",
    "addresses",
    "same",
    "many",
    "h.same",
    "self",
    "ping",
    "pong",
    "apex",
    "chain-0",
    "chain-39",
];
const PATIENCE: Duration = Duration::from_secs(30);
