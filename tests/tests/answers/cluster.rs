//! Corefiles with `kubernetes`. A scripted API serves the same objects to both servers, some for
//! each row of the specification.

mod imports;
mod questions;

use serde_json::{Value, json};
use tests::kube::{NAMESPACES, Object, PODS, SERVICES, SLICES};
use tests::{Ask, fixtures};

use crate::battery::{tcp, udp};
use crate::corefiles::{block, with_metrics};
use crate::exchange::Query;
use crate::run::Setup;

/// Returns Corefiles from production and from CoreDNS's documentation, and one for each property,
/// for a cluster with every kind of object.
pub(crate) fn fixed() -> Vec<Setup> {
    let kubeadm = fixtures::KUBEADM
        .replace(".:53 {", ".:@PORT@ {\n    bind @IP@")
        .replace("ip6.arpa {\n       pods", "ip6.arpa {\n       endpoint @API@\n       pods")
        .replace("/etc/resolv.conf", "@UP@")
        .replace("    loadbalance\n", "")
        .replace("health {", "health @IP@:8080 {")
        .replace("    ready\n", "    ready @IP@:8181\n")
        .replace("prometheus :", "prometheus @IP@:");
    let mut setups = vec![setup("kubeadm with a cluster", kubeadm, objects(), names())];
    for (zones, properties, around) in ROWS {
        let text = block(&format!("{around}\nkubernetes {zones} {{\nendpoint @API@\n{properties}\n}}"));
        let name = format!("kubernetes {zones} {{ {properties} }} {around}");
        let later = if properties.contains("pods verified") { later() } else { Vec::new() };
        setups.push(Setup { later, ..setup(&name, text, objects(), names()) });
    }
    for directives in SEARCHED {
        let name = format!("searched: {directives}");
        setups.push(with_metrics(setup(&name, block(directives), objects(), searched())));
    }
    for text in PAGES {
        setups.push(setup(&format!("page: {text}"), (*text).to_owned(), objects(), names()));
    }
    setups.into_iter().chain(questions::fixed()).collect()
}

pub(crate) fn setup(name: &str, text: String, mut objects: Vec<Object>, mut names: Vec<String>) -> Setup {
    if text.contains("multicluster") {
        objects = imports_too(objects);
        names.extend(imports::names());
    }
    let queries = names.iter().flat_map(|name| about(name)).collect();
    Setup { name: name.to_owned(), text, queries, metrics: None, objects, later: Vec::new() }
}

/// Adds the objects of a cluster set.
pub(crate) fn imports_too(mut objects: Vec<Object>) -> Vec<Object> {
    objects.extend(imports::objects());
    objects
}

/// The queries for a name.
fn about(name: &str) -> Vec<Query> {
    let mut queries: Vec<Query> =
        TYPES.iter().map(|rtype| udp(&format!("{name} {rtype}"), &Ask::new(name, rtype))).collect();
    queries.push(udp(&format!("{name} A do"), &Ask::new(name, "A").dnssec_ok()));
    queries.push(tcp(&format!("{name} tcp"), &[Ask::new(name, "AAAA"), Ask::new(name, "SRV").edns(1232)]));
    queries
}

const TYPES: &[&str] = &["A", "AAAA", "SRV", "TXT", "PTR", "NS", "SOA", "CNAME", "MX"];

/// Zones, properties, and other directives.
pub(crate) const ROWS: &[(&str, &str, &str)] = &[
    ("cluster.local in-addr.arpa ip6.arpa", "", ""),
    (
        "cluster.local in-addr.arpa ip6.arpa",
        "pods insecure\nfallthrough in-addr.arpa ip6.arpa",
        "forward . @UP@",
    ),
    ("cluster.local", "pods verified\nttl 0", "forward . @UP@"),
    ("cluster.local", "fallthrough\nttl 60", "cache 30\nforward . @UP@"),
    ("cluster.local 10.96.0.0/16 fd00:96::/112", "pods disabled\nttl 3600", "forward . @UP@"),
    ("cluster.local in-addr.arpa", "endpoint_pod_names", ""),
    ("cluster.local", "noendpoints", ""),
    ("cluster.local in-addr.arpa ip6.arpa", "namespaces t1", ""),
    ("cluster.local in-addr.arpa", "namespace_labels team=dns", ""),
    ("cluster.local in-addr.arpa", "labels app=web", ""),
    ("cluster.local", "ignore empty_service", ""),
    ("cluster.local", "zonal", ""),
    ("cluster.local other.zone", "pods insecure", "forward . @UP@"),
    ("cluster.local in-addr.arpa", "pods verified", LABELS),
    ("cluster.local in-addr.arpa", "pods verified", LABELS_OF_SOME),
    (
        "cluster.local clusterset.local in-addr.arpa ip6.arpa",
        "multicluster clusterset.local\nfallthrough in-addr.arpa",
        "forward . @UP@",
    ),
];

/// Answers TXT with the labels of the name and of the client.
const LABELS: &str = "metadata\ntemplate IN TXT {\nanswer \"{{ .Name }} 60 IN TXT {{ .Meta \\\"kubernetes/service\\\" }}-{{ .Meta \\\"kubernetes/client-namespace\\\" }}\"\n}";
const LABELS_OF_SOME: &str = "metadata t1.svc.cluster.local 172.17.0.0/16\ntemplate IN TXT {\nanswer \"{{ .Name }} 60 IN TXT {{ .Meta \\\"kubernetes/service\\\" }}-{{ .Meta \\\"kubernetes/client-namespace\\\" }}\"\n}";

/// Blocks with search lists: the client, 127.0.0.1, is a pod of `t1`.
pub(crate) const SEARCHED: &[&str] = &[
    "autopath @DIR@/search.conf\nforward . @UP@",
    "autopath @DIR@/search.conf\ncache 30\nforward . @UP@",
    "autopath cluster.local @DIR@/search.conf\nhosts @DIR@/hosts {\nfallthrough\n}\nforward . @UP@",
    "autopath @DIR@/search.conf\nacl svc.cluster.local {\nblock type A\n}\nkubernetes cluster.local {\nendpoint @API@\n}\nforward . @UP@",
    "autopath @kubernetes\nkubernetes cluster.local {\nendpoint @API@\npods verified\n}\nforward . @UP@",
    "autopath @kubernetes\nkubernetes cluster.local in-addr.arpa {\nendpoint @API@\npods verified\nfallthrough in-addr.arpa\n}\ncache 30\nforward . @UP@",
    "autopath @kubernetes\nkubernetes cluster.local {\nendpoint @API@\npods insecure\n}\nforward . @UP@",
    "autopath cluster.local @kubernetes\nkubernetes cluster.local {\nendpoint @API@\npods verified\n}\nforward . @UP@",
    "autopath @DIR@/first.conf\ntemplate ANY ANY first.test {\nrcode NXDOMAIN\n}\nkubernetes cluster.local {\nendpoint @API@\n}\nforward . @UP@",
    "autopath @DIR@/first.conf\ntemplate IN A alias.test {\nanswer \"{{ .Name }} 60 IN CNAME a.far.test.first.test.\"\n}\ntemplate ANY ANY first.test {\nrcode NXDOMAIN\n}\nforward . @UP@",
    "autopath @DIR@/first.conf\nrewrite cname exact other.test. a.far.test.first.test.\ntemplate IN A alias.test {\nanswer \"{{ .Name }} 60 IN CNAME other.test.\"\n}\ntemplate ANY ANY first.test {\nrcode NXDOMAIN\n}\nforward . @UP@",
];

/// The server blocks in CoreDNS's documentation of `kubernetes`, `autopath` and `transfer`, with
/// the test's API, upstreams, networks, namespaces and listen address. Only blocks that refuse
/// transfers are here for `transfer`; `transferred` compares the transfers.
const PAGES: &[&str] = &[
    "10.96.0.0/17:@PORT@ cluster.local:@PORT@ {\nbind @IP@\nkubernetes {\nendpoint @API@\npods verified\n}\n}\n",
    "cluster.local:@PORT@ {\nbind @IP@\nkubernetes cluster.local {\nendpoint @API@\nnamespaces t1 t2\n}\n}\n",
    "cluster.local:@PORT@ {\nbind @IP@\nkubernetes cluster.local {\nendpoint @API@\n}\n}\nexample.local:@PORT@ {\nbind @IP@\nforward . @UP2@\n}\n.:@PORT@ {\nbind @IP@\nforward . @UP@\n}\n",
    "cluster.local:@PORT@ {\nbind @IP@\nkubernetes cluster.local {\nendpoint @TLSAPI@\ntls @DIR@/cert.pem @DIR@/key.pem @DIR@/ca.pem\n}\n}\n",
    ".:@PORT@ {\nbind @IP@\nkubernetes cluster.local clusterset.local {\nendpoint @API@\nmulticluster clusterset.local\n}\n}\n",
    "cluster.local:@PORT@ {\nbind @IP@\nautopath @kubernetes\nkubernetes {\nendpoint @API@\npods verified\n}\n}\n",
    "cluster.local:@PORT@ {\nbind @IP@\nacl {\nallow type AXFR net 10.1.0.0/16\nallow type IXFR net 10.1.0.0/16\nblock type AXFR net *\nblock type IXFR net *\n}\ntransfer {\nto *\n}\nkubernetes {\nendpoint @API@\n}\n}\n",
    "cluster.local:@PORT@ {\nbind @IP@\ntransfer {\nto 2001:db8::1\nsource 2001:db8::53\n}\nkubernetes {\nendpoint @API@\n}\n}\n",
];

/// The content of `@DIR@/search.conf`.
pub(crate) const SEARCH: &str = "search t1.svc.cluster.local svc.cluster.local cluster.local host.test\n";
/// The content of `@DIR@/first.conf`: the first domain is not in a cluster's zone.
pub(crate) const SEARCH_FIRST: &str = "search first.test cluster.local\n";

pub(crate) fn namespace(name: &str, labels: &Value) -> Object {
    (NAMESPACES, json!({"metadata": {"name": name, "resourceVersion": "1", "labels": labels}}))
}

pub(crate) fn service(namespace: &str, name: &str, labels: &Value, spec: Value) -> Object {
    let metadata = json!({"name": name, "namespace": namespace, "resourceVersion": "2", "labels": labels});
    (SERVICES, json!({"metadata": metadata, "spec": spec}))
}

pub(crate) fn slice(
    namespace: &str,
    name: &str,
    of: &str,
    family: &str,
    endpoints: &Value,
    ports: &Value,
) -> Object {
    let labels = json!({"kubernetes.io/service-name": of, "app": "web"});
    let metadata = json!({"name": name, "namespace": namespace, "resourceVersion": "3", "labels": labels});
    (SLICES, json!({"metadata": metadata, "addressType": family, "endpoints": endpoints, "ports": ports}))
}

pub(crate) fn pod(namespace: &str, name: &str, addresses: &[&str]) -> Object {
    let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let metadata = json!({"name": name, "namespace": namespace, "resourceVersion": "4"});
    let status = json!({"phase": "Running", "podIP": addresses.first(), "podIPs": ips});
    (PODS, json!({"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": status}))
}

/// Returns the pod in the state of being deleted.
pub(crate) fn to_go((path, mut pod): Object) -> Object {
    pod["metadata"]["deletionTimestamp"] = "2026-11-23T13:42:25Z".into();
    (path, pod)
}

/// Objects of every kind.
pub(crate) fn objects() -> Vec<Object> {
    kinds().into_iter().chain(aliases()).collect()
}

/// Alias loops, and a chain of twelve aliases.
fn aliases() -> Vec<Object> {
    let alias = |name: &str, target: &str| {
        let target = format!("{target}.svc.cluster.local");
        service("t1", name, &json!({}), json!({"type": "ExternalName", "externalName": target}))
    };
    let chain = (0..11).map(|n| alias(&format!("extc-{n}"), &format!("extc-{}.t1", n + 1)));
    let round = [
        ("extself", "extself.t1"),
        ("extping", "extpong.t1"),
        ("extpong", "extping.t1"),
        ("extc-11", "web.t2"),
    ];
    chain.chain(round.map(|(name, target)| alias(name, target))).collect()
}

fn kinds() -> Vec<Object> {
    let none = json!({});
    let web = json!({"app": "web"});
    let ports = json!([
        {"name": "http", "protocol": "TCP", "port": 80},
        {"name": "https", "protocol": "TCP", "port": 443},
        {"name": "dns", "protocol": "UDP", "port": 53},
    ]);
    let headless = json!([{"name": "c", "protocol": "UDP", "port": 1234}]);
    let external = |name: &str| json!({"type": "ExternalName", "externalName": name});
    let ready = json!({"ready": true});
    vec![
        namespace("t1", &json!({"team": "dns"})),
        namespace("t2", &none),
        namespace("empty", &none),
        service(
            "t1",
            "web",
            &web,
            json!({"clusterIP": "10.96.0.100", "clusterIPs": ["10.96.0.100", "fd00:96::64"], "ports": ports}),
        ),
        service(
            "t2",
            "web",
            &none,
            json!({"clusterIP": "10.96.0.102", "clusterIPs": ["10.96.0.102"], "ports": [{"port": 8080, "protocol": "TCP"}]}),
        ),
        service(
            "t1",
            "six",
            &none,
            json!({"clusterIP": "fd00:96::65", "clusterIPs": ["fd00:96::65"], "ports": ports}),
        ),
        service("t1", "portless", &none, json!({"clusterIP": "10.96.0.103", "clusterIPs": ["10.96.0.103"]})),
        service(
            "t1",
            "outside",
            &none,
            json!({"clusterIP": "10.96.0.104", "clusterIPs": ["10.96.0.104"], "externalIPs": ["192.168.200.123"], "ports": ports}),
        ),
        service("t1", "hl", &web, json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": headless})),
        service("t1", "none", &none, json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": headless})),
        service("t1", "four", &none, json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": headless})),
        service("t1", "ext", &none, external("a.target.test")),
        service("t1", "extnx", &none, external("nx.target.test")),
        service("t1", "extnodata", &none, external("nodata.target.test")),
        service("t1", "extin", &none, external("web.t2.svc.cluster.local")),
        service("t1", "extip", &none, external("192.0.2.7")),
        // Aliases with targets that exist only without the first domain of a search list.
        service("t1", "extbelow", &none, external("a.far.test.t1.svc.cluster.local")),
        service("t1", "extfirst", &none, external("a.far.test.first.test")),
        slice(
            "t1",
            "web-1",
            "web",
            "IPv4",
            &json!([{"addresses": ["172.17.1.1"], "conditions": ready, "hostname": "w1", "zone": "z1"}]),
            &ports,
        ),
        slice(
            "t1",
            "hl-1",
            "hl",
            "IPv4",
            &json!([
                {"addresses": ["172.17.0.254"], "conditions": ready, "hostname": "h1", "zone": "z1", "targetRef": {"kind": "Pod", "name": "pod-1"}},
                {"addresses": ["172.17.0.255"], "conditions": ready, "zone": "z2", "targetRef": {"kind": "Pod", "name": "pod-2"}},
                {"addresses": ["172.17.0.9"], "conditions": {"ready": false}},
            ]),
            &headless,
        ),
        slice(
            "t1",
            "hl-2",
            "hl",
            "IPv6",
            &json!([{"addresses": ["fd00:17::1"], "conditions": ready, "hostname": "h3", "zone": "z1"}, {"addresses": ["fd00:17::"], "conditions": ready}]),
            &headless,
        ),
        pod_slice("t1", "four", "172.17.4.4", &headless),
        pod("t1", "client", &["127.0.0.1"]),
        pod("t1", "pod-1", &["172.17.0.254"]),
        pod("t2", "pod-2", &["172.17.0.255", "fd00:17::2"]),
        to_go(pod("t1", "pod-3", &["172.17.0.3", "fd00:17::3"])),
        pod("t1", "pod-4", &["172.17.0.4", "fd00:17::4"]),
    ]
}

/// Changes during the test: a pod is being deleted, and another is added.
fn later() -> Vec<Object> {
    let goes = to_go(pod("t1", "pod-4", &["172.17.0.4", "fd00:17::4"]));
    vec![goes, pod("t1", "pod-5", &["172.17.0.5"])]
}

/// A slice with one ready endpoint of a service.
pub(crate) fn pod_slice(namespace: &str, of: &str, address: &str, ports: &Value) -> Object {
    let endpoints = json!([{"addresses": [address], "conditions": {"ready": true}}]);
    slice(namespace, &format!("{of}-1"), of, "IPv4", &endpoints, ports)
}

/// Names within a zone.
pub(crate) fn below(names: &str, zone: &str) -> Vec<String> {
    names.split_whitespace().map(|name| format!("{name}.{zone}")).collect()
}

/// Names of the objects, and similar ones.
fn names() -> Vec<String> {
    let mut all = below(
        "web.t1 WEB.T1 web.t2 six.t1 portless.t1 hl.t1 four.t1 172-17-4-4.four.t1 _c._udp.four.t1 none.t1 ext.t1 extnx.t1 extnodata.t1 extin.t1 extip.t1 extself.t1 extping.t1 extc-0.t1 extc-1.t1 web.nowhere nowhere.t1 t1 t2 empty nowhere \
         _http._tcp.web.t1 http.tcp.web.t1 _http._udp.web.t1 _nope._tcp.web.t1 _c._udp.hl.t1 _c._udp.none.t1 _http._tcp.ext.t1 _._tcp.web.t2 \
         w1.web.t1 172-17-1-1.web.t1 h1.hl.t1 H1.hl.t1 172-17-0-255.hl.t1 172-17-0-254.hl.t1 h3.hl.t1 fd00-17--0.hl.t1 fd00-17--.hl.t1 pod-1.hl.t1 pod-2.hl.t1 nobody.hl.t1 \
         x.ext.t1 x.h1.hl.t1 a.b.c.web.t1 z1.pin._zone.hl.t1 z1.prefer._zone.hl.t1 z9.prefer._zone.hl.t1 z9.pin._zone.hl.t1 z1.pin._zone.web.t1",
        "svc.cluster.local",
    );
    all.extend(below(
        "172-17-0-254.t1 172-17-0-255.t1 172-17-0-255.t2 fd00-17--2.t2 172-17-0-3.t1 fd00-17--3.t1 x.172-17-0-3.t1 172-17-0-3.t2 172-17-0-4.t1 fd00-17--4.t1 172-17-0-5.t1 1-2-3-4.t1 1-2-3-4.nowhere 1-2-3.t1 fd00--1.t1 t1 x.1-2-3-4.t1 nowhere 999-2-3-4.t1",
        "pod.cluster.local",
    ));
    all.extend(below("svc pod dns-version x dns.x ns.dns x.svc.y any.t1", "cluster.local"));
    for name in [
        "cluster.local",
        "Cluster.LOCAL",
        "ns.dns.cluster.local",
        "web.t1.svc.other.zone",
        "other.zone",
        "a.target.test",
        "100.0.96.10.in-addr.arpa",
        "102.0.96.10.in-addr.arpa",
        "99.0.96.10.in-addr.arpa",
        "254.0.17.172.in-addr.arpa",
        "255.0.17.172.in-addr.arpa",
        "9.0.17.172.in-addr.arpa",
        "1.1.17.172.in-addr.arpa",
        "17.172.in-addr.arpa",
        "0.96.10.in-addr.arpa",
        "in-addr.arpa",
        "4.6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa",
        "4.6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa",
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.7.1.0.0.0.0.d.f.ip6.arpa",
    ] {
        all.push(name.to_owned());
    }
    all
}

/// Names with the search domain of a pod of `t1`, one for every kind of answer.
fn searched() -> Vec<String> {
    let mut all = Vec::new();
    for base in [
        "web",
        "Web",
        "hl",
        "none",
        "ext",
        "extin",
        "extbelow",
        "extfirst",
        "nowhere",
        "web.t2",
        "web.t2.svc",
        "web.t2.svc.cluster.local",
        "web.t1",
        "h1.hl",
        "a.far.test",
        "cname.far.test",
        "nodata.far.test",
        "nx.far.test",
        "servfail.far.test",
        "many.far.test",
        "mixed.far.test",
        "dname.far.test",
        "refused.far.test",
        "172-17-0-254.t1.pod",
        "host.example",
        "www.example.com",
    ] {
        all.push(format!("{base}.t1.svc.cluster.local"));
        all.push(format!("{base}.t2.svc.cluster.local"));
    }
    for name in [
        "t1.svc.cluster.local",
        "svc.cluster.local",
        "cluster.local",
        "web.svc.cluster.local",
        "a.far.test",
        "a.far.test.first.test",
        "alias.test",
        "first.test",
    ] {
        all.push(name.to_owned());
    }
    all
}
