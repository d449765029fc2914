//! Corefiles with `k8s_external`: services of a cluster by their external addresses.

use serde_json::{Value, json};
use tests::kube::{Object, SERVICES};

use crate::cluster::{self, below, pod_slice, setup};
use crate::corefiles::block;
use crate::run::Setup;

/// One Corefile for each property, and the block in CoreDNS's documentation.
pub(crate) fn fixed() -> Vec<Setup> {
    let mut setups = Vec::new();
    for row @ (zones, properties, of_cluster) in ROWS {
        let text = corefile(row);
        let name = format!("k8s_external {zones} {{ {properties} }} of kubernetes {{ {of_cluster} }}");
        setups.push(setup(&name, text, objects(), names()));
    }
    for text in PAGES {
        setups.push(setup(&format!("page: {text}"), (*text).to_owned(), objects(), names()));
    }
    setups
}

pub(crate) fn corefile((zones, properties, of_cluster): &(&str, &str, &str)) -> String {
    block(&format!(
        "kubernetes cluster.local {{\nendpoint @API@\n{of_cluster}\n}}\nk8s_external {zones} {{\n{properties}\n}}\nforward . @UP@"
    ))
}

/// Zones, properties, and properties of the block's `kubernetes`.
pub(crate) const ROWS: &[(&str, &str, &str)] = &[
    ("example.org", "", ""),
    ("example.org in-addr.arpa ip6.arpa", "headless", ""),
    ("example.org in-addr.arpa ip6.arpa", "ttl 0\nfallthrough in-addr.arpa", "ttl 60"),
    ("example.org", "apex ns\nttl 3600\nfallthrough", "namespaces t1"),
    ("example.org", "headless\nfallthrough", "noendpoints"),
    ("example.org x.example.org", "headless", "endpoint_pod_names"),
];

/// The server blocks in CoreDNS's documentation, with the test's API, upstreams and listen address.
const PAGES: &[&str] = &[
    ".:@PORT@ {\nbind @IP@\nkubernetes cluster.local {\nendpoint @API@\n}\nk8s_external example.org\n}\n",
    ".:@PORT@ {\nbind @IP@\ntransfer example.org {\nto *\n}\nkubernetes cluster.local {\nendpoint @API@\n}\nk8s_external example.org\n}\n",
    ".:@PORT@ {\nbind @IP@\nkubernetes cluster.local {\nendpoint @API@\nfallthrough\n}\nk8s_external example.org {\nfallthrough\n}\nforward . @UP@\n}\n",
];

fn from_outside(namespace: &str, name: &str, spec: Value, ingress: Value) -> Object {
    let metadata = json!({"name": name, "namespace": namespace, "resourceVersion": "2"});
    (SERVICES, json!({"metadata": metadata, "spec": spec, "status": {"loadBalancer": {"ingress": ingress}}}))
}

/// As many endpoints with host names as fit in 512 bytes with their addresses, if these use
/// compressed names.
fn crowded(ports: &Value) -> Object {
    let endpoint = |n: u32| json!({"addresses": [format!("172.17.8.{n}")], "conditions": {"ready": true}, "hostname": format!("h{n}")});
    let endpoints: Vec<Value> = (1..=6).map(endpoint).collect();
    cluster::slice("t1", "crowded-1", "crowded", "IPv4", &json!(endpoints), ports)
}

/// Objects of every kind, and services of every kind with external addresses.
pub(crate) fn objects() -> Vec<Object> {
    let ports = json!([
        {"name": "http", "protocol": "TCP", "port": 80},
        {"name": "https", "protocol": "TCP", "port": 443},
        {"name": "dns", "protocol": "UDP", "port": 443},
    ]);
    let at = |address: &str, ports: &Value, external: Value| json!({"type": "LoadBalancer", "clusterIP": address, "clusterIPs": [address], "ports": ports, "externalIPs": external});
    let named = |host: &str| json!([{"hostname": host}]);
    let headless = json!([{"name": "c", "protocol": "UDP", "port": 1234}]);
    let crowd = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": headless});
    let more = [
        cluster::service("t1", "crowded", &json!({}), crowd),
        from_outside("t1", "lb", at("10.96.1.1", &ports, json!([])), json!([{"ip": "192.0.2.81"}])),
        from_outside(
            "t1",
            "both",
            at("10.96.1.2", &ports, json!(["192.0.2.82", "2001:db8::82"])),
            json!([{"ip": "192.0.2.83"}, {"ip": "192.0.2.82"}]),
        ),
        from_outside("t1", "host", at("10.96.1.3", &ports, json!([])), named("a.target.test")),
        from_outside("t1", "one", at("10.96.1.9", &json!([ports[0]]), json!([])), named("a.target.test")),
        from_outside("t1", "hostnx", at("10.96.1.4", &json!([ports[0]]), json!([])), named("nx.target.test")),
        from_outside(
            "t1",
            "hostfails",
            at("10.96.1.5", &json!([ports[0]]), json!([])),
            named("servfail.far.test"),
        ),
        from_outside("t1", "pending", at("10.96.1.6", &ports, json!([])), json!([])),
        from_outside("t1", "bare", at("10.96.1.8", &json!([]), json!(["192.0.2.84"])), json!([])),
        from_outside("t2", "lb", at("10.96.1.7", &json!([ports[0]]), json!(["192.0.2.85"])), json!([])),
        from_outside(
            "t1",
            "hlout",
            json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": headless, "externalIPs": ["192.0.2.86"]}),
            json!([]),
        ),
        crowded(&headless),
        pod_slice("t1", "hlout", "172.17.9.1", &headless),
        pod_slice("t1", "lb", "172.17.9.2", &ports),
    ];
    cluster::objects().into_iter().chain(more).collect()
}

/// External names of the objects, and similar ones.
fn names() -> Vec<String> {
    let mut all = below(
        "lb.t1 LB.T1 both.t1 host.t1 one.t1 hostnx.t1 hostfails.t1 pending.t1 bare.t1 portless.t1 lb.t2 hlout.t1 outside.t1 web.t1 web.t2 six.t1 \
         hl.t1 crowded.t1 none.t1 ext.t1 extin.t1 absent.t1 lb.nowhere t1 t2 empty nowhere x \
         _http._tcp.lb.t1 http.tcp.lb.t1 _HTTP._TCP.lb.t1 _http._udp.lb.t1 _nope._tcp.lb.t1 _https._tcp.both.t1 _http._tcp.host.t1 _c._udp.hl.t1 _c._udp.hlout.t1 \
         x.lb.t1 172-17-9-2.lb.t1 x.host.t1 h1.hl.t1 H1.hl.t1 h3.hl.t1 172-17-0-255.hl.t1 pod-1.hl.t1 nobody.hl.t1 172-17-9-1.hlout.t1 w1.web.t1 a.b.c.lb.t1 \
         _http._tcp.x.lb.t1 dns ns1.dns ns2.dns x.ns1.dns ns ns1.ns any.t1",
        "example.org",
    );
    for name in [
        "example.org",
        "Example.ORG",
        "x.example.org",
        "lb.t1.x.example.org",
        "lb.t1.svc.cluster.local",
        "h1.hl.t1.svc.cluster.local",
        "a.target.test",
        "81.2.0.192.in-addr.arpa",
        "82.2.0.192.in-addr.arpa",
        "84.2.0.192.in-addr.arpa",
        "85.2.0.192.in-addr.arpa",
        "86.2.0.192.in-addr.arpa",
        "123.200.168.192.in-addr.arpa",
        "99.2.0.192.in-addr.arpa",
        "1.1.96.10.in-addr.arpa",
        "254.0.17.172.in-addr.arpa",
        "2.0.192.in-addr.arpa",
        "in-addr.arpa",
        "2.8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa",
    ] {
        all.push(name.to_owned());
    }
    all
}
