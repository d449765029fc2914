//! Queries of CoreDNS's own tests: every name in `plugin/kubernetes`, `plugin/k8s_external` and in
//! `test/kubernetes` of coredns/ci, for a cluster with their objects, some of which are added
//! during the test. One is missing: `upriver`, an alias that `template` points back to itself.
//! CoreDNS 1.15.0 does not answer it here; `kube/program` shows localdns's answer.

use serde_json::{Value, json};
use tests::kube::{Object, SERVICES};

use super::imports::{import, of_cluster};
use super::{below, namespace, pod, service, setup, slice};
use crate::corefiles::block;
use crate::run::Setup;

/// One Corefile for each setup of those tests.
pub(super) fn fixed() -> Vec<Setup> {
    BLOCKS
        .iter()
        .map(|(of_cluster, around)| {
            let zones = "cluster.local clusterset.local 10.0.0.0/24 192.168.1.0/24 172.17.0.0/24 0.10.in-addr.arpa ip6.arpa";
            let text =
                format!("{around}\nkubernetes {zones} {{\nendpoint @API@\n{of_cluster}\n}}\nforward . @UP@");
            let (mut objects, mut names) = (objects(), names());
            if of_cluster.contains("multicluster") {
                objects.extend(imported());
                // CoreDNS forms a name with an empty label for this endpoint and sends nothing.
                names.retain(|name| !name.ends_with("8.7.6.5.ip6.arpa"));
            }
            let name = format!("CoreDNS's own: {of_cluster}; {around}");
            // A cluster zone that is also a cluster set's zone contains no names of services.
            let later = if of_cluster.contains("multicluster cluster.local") { Vec::new() } else { later() };
            Setup { later, ..setup(&name, block(&text), objects, names) }
        })
        .collect()
}

/// Properties of `kubernetes`, and other directives.
const BLOCKS: &[(&str, &str)] = &[
    ("namespaces testns test-1 podns svcns kube-system", ""),
    (
        "pods verified\nnamespaces test-1 podns",
        "k8s_external example.com example.org 2.1.in-addr.arpa {\nheadless\n}",
    ),
    ("pods insecure\nignore empty_service\nendpoint_pod_names", "k8s_external example.com {\nfallthrough\n}"),
    ("zonal\nfallthrough", ""),
    ("namespaces test-1\nfallthrough svc.cluster.local", ""),
    ("endpoint_pod_names", ""),
    ("multicluster cluster.local", ""),
    ("multicluster clusterset.local", "metadata"),
];

fn objects() -> Vec<Object> {
    let none = json!({});
    let http = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    let dns = json!([{"name": "dns", "protocol": "UDP", "port": 53}]);
    let c_port = json!([{"name": "c-port", "protocol": "UDP", "port": 1234}]);
    let two = json!([{"name": "http", "protocol": "TCP", "port": 80}, {"name": "https", "protocol": "TCP", "port": 443}]);
    let at = |addresses: &[&str], ports: &Value| json!({"type": "ClusterIP", "clusterIP": addresses[0], "clusterIPs": addresses, "ports": ports});
    let leads_to = |name: &str| json!({"type": "ExternalName", "externalName": name, "ports": http});
    let ready = json!({"ready": true});
    let endpoint = |address: &str| json!({"addresses": [address], "conditions": ready});
    let named =
        |address: &str, name: &str| json!({"addresses": [address], "conditions": ready, "hostname": name});
    let in_zone =
        |address: &str, zone: &str| json!({"addresses": [address], "conditions": ready, "zone": zone});
    let mut all: Vec<Object> =
        ["testns", "test-1", "test-2", "test-3", "kube-system", "podns", "svcns", "unexposedns", "pod-nons"]
            .map(|name| namespace(name, &none))
            .into();
    all.extend([
        service("kube-system", "kubedns", &none, at(&["10.0.0.10"], &dns)),
        service("testns", "svc1", &none, at(&["10.0.0.1"], &http)),
        service("testns", "svcempty", &none, at(&["10.0.0.2"], &http)),
        service("testns", "svc6", &none, at(&["1234:abcd::1"], &http)),
        service("testns", "hdls1", &none, at(&["None"], &json!([]))),
        service("testns", "hdlsprtls", &none, at(&["None"], &json!([]))),
        service("testns", "hdls", &none, at(&["None"], &http)),
        service("testns", "clstr", &none, at(&["10.0.0.4"], &http)),
        service("testns", "external", &none, leads_to("a.target.test")),
        service("testns", "external-to-service", &none, leads_to("svc1.testns.svc.cluster.local.")),
        service("testns", "svc-dual-stack", &none, at(&["10.0.0.3", "10::3"], &http)),
        service("unexposedns", "svc1", &none, at(&["10.0.0.99"], &http)),
        service("test-1", "svc-1-a", &none, at(&["10.0.0.100"], &two)),
        service("test-1", "svc-1-b", &none, at(&["10.0.0.110"], &http)),
        service("test-1", "svc-c", &none, at(&["10.0.0.115"], &c_port)),
        service("test-1", "headless-svc", &none, at(&["None"], &c_port)),
        service("test-1", "ext-svc", &none, leads_to("a.target.test")),
        service("test-2", "svc-1-a", &none, at(&["10.0.0.120"], &http)),
        service("test-3", "headless-1", &none, at(&["None"], &http)),
        service("test-3", "headless-2", &none, at(&["None"], &http)),
        service("testns", "rev", &none, at(&["192.168.1.100"], &http)),
        service("testns", "rev6", &none, at(&["None"], &http)),
        of_pods("headless-1", &["172.17.3.1", "172.17.3.2"], "headless-1-6b9d", &http),
        // The pod's name exceeds the length of a label: the endpoint is named by its address.
        of_pods("headless-2", &["172.17.3.3"], &"headless-2".repeat(7), &http),
        slice(
            "testns",
            "rev6-a",
            "rev6",
            "IPv6",
            &json!([named("fd00:77:30::a", "ip6svc1ex"), named("fd00:77:30::2:9ba6", "ip6svc1in")]),
            &http,
        ),
        slice("testns", "svc1-a", "svc1", "IPv4", &json!([named("172.0.0.1", "ep1a")]), &http),
        slice("testns", "svcempty-a", "svcempty", "IPv4", &json!([]), &http),
        slice(
            "testns",
            "hdls1-a",
            "hdls1",
            "IPv4",
            &json!([
                endpoint("172.0.0.2"),
                endpoint("172.0.0.3"),
                named("172.0.0.4", "dup-name"),
                named("172.0.0.5", "dup-name"),
            ]),
            &http,
        ),
        slice(
            "testns",
            "hdls1-b",
            "hdls1",
            "IPv6",
            &json!([endpoint("5678:abcd::1"), endpoint("5678:abcd::2")]),
            &http,
        ),
        slice("testns", "hdlsprtls-a", "hdlsprtls", "IPv4", &json!([endpoint("172.0.0.20")]), &json!([])),
        slice(
            "testns",
            "hdls-a",
            "hdls",
            "IPv4",
            &json!([in_zone("172.0.0.31", "us-west-2a"), in_zone("172.0.0.32", "us-west-2b")]),
            &http,
        ),
        slice(
            "test-1",
            "headless-svc-a",
            "headless-svc",
            "IPv4",
            &json!([named("172.17.0.254", "svc-d"), endpoint("172.17.0.255")]),
            &c_port,
        ),
        slice(
            "test-1",
            "headless-svc-b",
            "headless-svc",
            "IPv6",
            &json!([named("1234:abcd::3", "headless-svc-3")]),
            &c_port,
        ),
        slice("test-1", "svc-1-a-a", "svc-1-a", "IPv4", &json!([endpoint("172.17.0.253")]), &two),
        slice("test-2", "svc-1-a-a", "svc-1-a", "IPv4", &json!([endpoint("172.17.0.252")]), &http),
        pod("podns", "foo", &["10.240.0.1"]),
        pod("test-1", "client", &["10.20.0.101"]),
        outside("svc11", json!(["1.2.3.4"]), &http),
        outside("svc12", json!(["1.2.3.5", "1:2::5"]), &two),
        service("testns", "svc-headless", &none, at(&["None"], &http)),
        slice(
            "testns",
            "svc-headless-a",
            "svc-headless",
            "IPv4",
            &json!([named("1.2.3.4", "endpoint-svc-0"), named("1.2.3.5", "endpoint-svc-1")]),
            &http,
        ),
    ]);
    all
}

/// Objects added during the test: a service and a headless service, each with an endpoint.
fn later() -> Vec<Object> {
    let http = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    let ready = json!([{"addresses": ["172.17.0.222"], "conditions": {"ready": true}, "hostname": "new-ep"}]);
    let at = |ip: &str| json!({"clusterIP": ip, "clusterIPs": [ip], "ports": http});
    vec![
        service("test-1", "new-svc", &json!({}), at("10.0.0.222")),
        slice("test-1", "new-svc-a", "new-svc", "IPv4", &ready, &http),
        service("test-1", "new-headless", &json!({}), at("None")),
        slice("test-1", "new-headless-a", "new-headless", "IPv4", &ready, &http),
    ]
}

/// A slice of a controller's pods.
fn of_pods(of: &str, addresses: &[&str], pod: &str, ports: &Value) -> Object {
    let one = |(number, address): (usize, &&str)| json!({"addresses": [address], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": format!("{pod}-{number}")}});
    let endpoints: Vec<Value> = addresses.iter().enumerate().map(one).collect();
    slice("test-3", &format!("{of}-a"), of, "IPv4", &json!(endpoints), ports)
}

/// The cluster set's objects of those tests.
fn imported() -> Vec<Object> {
    let http = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    let ready = json!({"ready": true});
    let endpoint = |address: &str| json!({"addresses": [address], "conditions": ready});
    let dup = |address: &str| json!({"addresses": [address], "conditions": ready, "hostname": "dup-name"});
    let four = json!([endpoint("172.0.0.2"), endpoint("172.0.0.3"), dup("172.0.0.4"), dup("172.0.0.5")]);
    let six = json!([endpoint("5678:abcd::1"), endpoint("5678:abcd::2")]);
    vec![
        import("testns", "svc1", "ClusterSetIP", &json!(["10.0.0.1"]), &http),
        import("testns", "svcempty", "ClusterSetIP", &json!(["10.0.0.2"]), &http),
        import("testns", "svc6", "ClusterSetIP", &json!(["1234:abcd::1"]), &http),
        import("testns", "hdls1", "Headless", &json!([]), &http),
        import("testns", "hdlsprtls", "Headless", &json!([]), &json!([])),
        import("ns", "s", "Headless", &json!([]), &http),
        namespace("ns", &json!({})),
        of_cluster("testns", "hdls1", "cluster1", "IPv4", &four, &http),
        of_cluster("testns", "hdls1", "cluster1", "IPv6", &six, &http),
        of_cluster("testns", "hdlsprtls", "cluster1", "IPv4", &json!([endpoint("172.0.0.20")]), &json!([])),
        of_cluster(
            "ns",
            "s",
            "c1",
            "IPv4",
            &json!([{"addresses": ["172.0.0.9"], "conditions": ready, "hostname": "ep"}]),
            &http,
        ),
    ]
}

/// A service with external addresses.
fn outside(name: &str, external: Value, ports: &Value) -> Object {
    let metadata = json!({"name": name, "namespace": "testns", "resourceVersion": "2"});
    let spec = json!({"type": "ClusterIP", "clusterIP": "10.0.0.50", "clusterIPs": ["10.0.0.50"], "externalIPs": external, "ports": ports});
    (SERVICES, json!({"metadata": metadata, "spec": spec}))
}

fn names() -> Vec<String> {
    let mut all = below(
        "svc1.testns SvC1.TeStNs _HtTp._TcP.sVc1.TeStNs svc0.testns not-a-service.testns svc1.nsnoexist svc1.unexposedns svc0.svc-nons \
         _http._tcp.svc1.testns _http._tcp.svc6.testns _http._tcp.svcempty.testns _http._tcp.hdls1.testns \
         svc6.testns svcempty.testns hdls1.testns hdlsprtls.testns svc-dual-stack.testns external.testns external-to-service.testns \
         172-0-0-2.hdls1.testns 172-0-0-3.hdls1.testns 5678-abcd--1.hdls1.testns 5678-abcd--2.hdls1.testns dup-name.hdls1.testns \
         172-0-0-20.hdlsprtls.testns bogusendpoint.hdls1.testns bogusendpoint.svc0.testns bogusendpoint.svc1.testns ep1a.svc1.testns \
         endpoint.external.testns subdomain.subdomain.external.testns testns svcns nsnoexist foo \
         us-west-2a.pin._zone.hdls.testns us-west-2b.pin._zone.hdls.testns us-west-2c.pin._zone.hdls.testns us-west-2a.prefer._zone.hdls.testns \
         us-west-2c.prefer._zone.hdls.testns us-west-2a.florp._zone.hdls.testns us-west-2a.pin._zone.clstr.testns us-west-2a.pin._zone.ghost.testns \
         svc-1-a.test-1 svc-1-b.test-1 svc-c.test-1 headless-svc.test-1 ext-svc.test-1 bogusservice.test-1 bogusendpoint.svc-1-a.test-1 svc-1-a.* *.test-1 *.test-2 svc-1-a.test-2 \
         _c-port._udp.svc-c.test-1 _c-port._udp.headless-svc.test-1 _c-port._tcp.svc-c.test-1 _*._*.svc-1-a.test-1 *.*.svc-1-a.test-1 _http._*.svc-1-a.test-1 \
         172-17-0-255.headless-svc.test-1 svc-d.headless-svc.test-1 headless-svc-3.headless-svc.test-1 172-17-0-253.svc-1-a.test-1 \
         *._tcp.svc-1-a.test-1 *.*.bogusservice.test-1 *.any.svc-1-a.* any.*.svc-1-a.any *.*.bogusservice.* *.*.bogusservice.any _c-port._udp.*.test-1 \
         *._tcp.any.test-1 *.*.any.test-2 *.*.*.test-2 _http._tcp.*.* *.svc-1-a.test-1 *._not-udp-or-tcp.svc-1-a.test-1 svc-c.test-2 f.b \
         headless-1.test-3 headless-2.test-3 headless-1-6b9d-0.headless-1.test-3 172-17-3-1.headless-1.test-3 172-17-3-3.headless-2.test-3 \
         _http._tcp.headless-1.test-3 _http._tcp.headless-2.test-3 new-svc.test-1 _http._tcp.new-svc.test-1 new-ep.new-svc.test-1 new-headless.test-1 \
         new-ep.new-headless.test-1 172-0-0-2.cluster1.hdls1.testns 172-0-0-3.cluster1.hdls1.testns 5678-abcd--1.cluster1.hdls1.testns \
         5678-abcd--2.cluster1.hdls1.testns dup-name.cluster1.hdls1.testns 172-0-0-20.cluster1.hdlsprtls.testns s.ns _http._tcp.s.ns ep.s.ns",
        "svc.cluster.local",
    );
    all.extend(below(
        "10-240-0-1.podns 172-0-0-2.podns blah.podns blah.pod-nons pod-nons podns 10-20-0-101.test-1 10-20-0-101.test-2 10-20-0-101.bogusnamespace",
        "pod.cluster.local",
    ));
    all.extend(below(
        "svc1.testns svc6.testns svcempty.testns hdls1.testns _http._tcp.hdls1.testns 172-0-0-2.cluster1.hdls1.testns dup-name.cluster1.hdls1.testns \
         172-0-0-20.cluster1.hdlsprtls.testns ep.c1.s.ns s.ns",
        "svc.clusterset.local",
    ));
    all.extend(below("svc1.testns svc6.testns svc11.testns svc12.testns", "example.org"));
    all.extend(below(
        "foo svc pod dns-version foo.bar.notapod example.org 100.0.0.10 ns.dns",
        "cluster.local",
    ));
    all.extend(below(
        "svc1.testns svc6.testns svc11.testns svc12.testns svc0.testns not-existing.testns svc0.svc-nons testns _http._tcp.svc11.testns _http._tcp.svc12.testns \
         *._not-udp-or-tcp.svc11.testns headless-svc.test-1 _c-port._udp.headless-svc.test-1 svc-d.headless-svc.test-1 endpoint-1.svc-nons.testns dns ns1.dns \
         _http._tcp.svc1.testns _http._tcp.svc6.testns svc-headless.testns _http._tcp.svc-headless.testns endpoint-svc-0.svc-headless.testns \
         endpoint-svc-1.svc-headless.testns",
        "example.com",
    ));
    for name in [
        "cluster.local",
        "Cluster.local",
        "not-a-service.testns.svc.ClUsTeR.lOcAl",
        "example.com",
        "100.0.0.10.in-addr.arpa",
        "1.0.0.10.in-addr.arpa",
        "99.0.0.10.in-addr.arpa",
        "120.0.0.10.in-addr.arpa",
        "200.0.0.10.in-addr.arpa",
        "253.0.17.172.in-addr.arpa",
        "252.0.17.172.in-addr.arpa",
        "254.0.17.172.in-addr.arpa",
        "200.0.17.172.in-addr.arpa",
        "svc1.testns.svc.0.10.in-addr.arpa",
        "101.0.0.10.in-addr.arpa",
        "222.0.0.10.in-addr.arpa",
        "222.0.17.172.in-addr.arpa",
        "100.1.168.192.in-addr.arpa",
        "101.1.168.192.in-addr.arpa",
        "4.3.2.1.in-addr.arpa",
        "a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.0.0.7.7.0.0.0.0.d.f.ip6.arpa",
        "6.a.b.9.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.0.0.7.7.0.0.0.0.d.f.ip6.arpa",
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.4.3.2.1.ip6.arpa",
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.8.7.6.5.ip6.arpa",
    ] {
        all.push(name.to_owned());
    }
    all
}
