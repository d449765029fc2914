//! What CoreDNS's own tests ask: the names of `plugin/kubernetes`, `plugin/k8s_external` and of `test/kubernetes` in coredns/ci,
//! of a cluster with what they are about.

use serde_json::{Value, json};
use tests::kube::{Object, SERVICES};

use super::{below, namespace, pod, service, setup, slice};
use crate::corefiles::block;
use crate::run::Setup;

/// One Corefile for each way in which those tests are set up.
pub(super) fn fixed() -> Vec<Setup> {
    BLOCKS
        .iter()
        .map(|(of_cluster, around)| {
            let zones = "cluster.local 10.0.0.0/24 172.17.0.0/24 0.10.in-addr.arpa ip6.arpa";
            let text =
                format!("{around}\nkubernetes {zones} {{\nendpoint @API@\n{of_cluster}\n}}\nforward . @UP@");
            setup(&format!("CoreDNS's own: {of_cluster}; {around}"), block(&text), objects(), names())
        })
        .collect()
}

/// Properties of `kubernetes`, and what stands beside it.
const BLOCKS: &[(&str, &str)] = &[
    ("namespaces testns test-1 podns svcns kube-system", ""),
    ("pods verified\nnamespaces test-1 podns", "k8s_external example.com {\nheadless\n}"),
    ("pods insecure\nignore empty_service\nendpoint_pod_names", "k8s_external example.com {\nfallthrough\n}"),
    ("zonal\nfallthrough", ""),
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
        ["testns", "test-1", "test-2", "kube-system", "podns", "svcns", "unexposedns", "pod-nons"]
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
    ]);
    all
}

/// A service that is reached from outside.
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
         172-17-0-255.headless-svc.test-1 svc-d.headless-svc.test-1 headless-svc-3.headless-svc.test-1 172-17-0-253.svc-1-a.test-1",
        "svc.cluster.local",
    );
    all.extend(below(
        "10-240-0-1.podns 172-0-0-2.podns blah.podns blah.pod-nons pod-nons podns 10-20-0-101.test-1 10-20-0-101.test-2 10-20-0-101.bogusnamespace",
        "pod.cluster.local",
    ));
    all.extend(below(
        "foo svc pod dns-version foo.bar.notapod example.org 100.0.0.10 ns.dns",
        "cluster.local",
    ));
    all.extend(below(
        "svc1.testns svc6.testns svc11.testns svc12.testns svc0.testns not-existing.testns svc0.svc-nons testns _http._tcp.svc11.testns _http._tcp.svc12.testns \
         *._not-udp-or-tcp.svc11.testns headless-svc.test-1 _c-port._udp.headless-svc.test-1 svc-d.headless-svc.test-1 endpoint-1.svc-nons.testns dns ns1.dns",
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
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.4.3.2.1.ip6.arpa",
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.8.7.6.5.ip6.arpa",
    ] {
        all.push(name.to_owned());
    }
    all
}
