//! Objects of a cluster set: imported services, and their endpoints in each cluster (KEP-1645).

use serde_json::{Value, json};
use tests::kube::{IMPORTS, Object};

use super::{below, slice};

/// Imports of each kind, some with names of services.
pub(super) fn objects() -> Vec<Object> {
    let ports = json!([
        {"name": "http", "protocol": "TCP", "port": 80},
        {"name": "", "protocol": "TCP", "port": 81},
        {"name": "dns", "protocol": "UDP", "port": 53},
    ]);
    let headless = json!([{"name": "c", "protocol": "UDP", "port": 1234}]);
    let ready = json!({"ready": true});
    vec![
        import("t1", "web", "ClusterSetIP", &json!(["10.112.0.1", "fd00:112::1"]), &ports),
        import("t2", "far", "ClusterSetIP", &json!(["10.112.0.2"]), &json!([])),
        import("t1", "hl", "Headless", &json!([]), &headless),
        import("t1", "none", "Headless", &json!([]), &headless),
        import("nowhere", "web", "ClusterSetIP", &json!(["10.112.0.3"]), &ports),
        of_cluster(
            "t1",
            "hl",
            "one",
            "IPv4",
            &json!([
                {"addresses": ["172.18.0.1"], "conditions": ready, "hostname": "h1"},
                {"addresses": ["172.18.0.2"], "conditions": {"ready": false}},
            ]),
            &headless,
        ),
        of_cluster(
            "t1",
            "hl",
            "two",
            "IPv4",
            &json!([
                {"addresses": ["172.19.0.1"], "conditions": ready, "hostname": "h1"},
                {"addresses": ["172.19.0.2"], "conditions": ready},
            ]),
            &headless,
        ),
        of_cluster(
            "t1",
            "hl",
            "six",
            "IPv6",
            &json!([{"addresses": ["fd00:18::1"], "conditions": ready, "hostname": "h6"}]),
            &headless,
        ),
    ]
}

pub(super) fn import(namespace: &str, name: &str, kind: &str, ips: &Value, ports: &Value) -> Object {
    let metadata = json!({"name": name, "namespace": namespace, "resourceVersion": "2"});
    let spec = json!({"type": kind, "ips": ips, "ports": ports});
    (IMPORTS, json!({"metadata": metadata, "spec": spec}))
}

/// A slice of an import's endpoints in one cluster.
pub(super) fn of_cluster(
    namespace: &str,
    of: &str,
    cluster: &str,
    family: &str,
    endpoints: &Value,
    ports: &Value,
) -> Object {
    let (path, mut object) =
        slice(namespace, &format!("{of}-{cluster}-{}", family.to_lowercase()), of, family, endpoints, ports);
    object["metadata"]["labels"] = json!({
        "multicluster.kubernetes.io/service-name": of,
        "multicluster.kubernetes.io/source-cluster": cluster,
    });
    (path, object)
}

/// Names of the imports, and similar ones.
pub(super) fn names() -> Vec<String> {
    let mut all = below(
        "web.t1 WEB.T1 far.t2 hl.t1 none.t1 six.t1 ext.t1 absent.t1 web.nowhere t1 t2 nowhere \
         _http._tcp.web.t1 http.tcp.web.t1 _http._udp.web.t1 _nope._tcp.web.t1 _c._udp.hl.t1 _c._udp.none.t1 w1.web.t1 \
         h1.one.hl.t1 H1.One.hl.t1 h1.two.hl.t1 h1.three.hl.t1 h1.hl.t1 one.hl.t1 h6.six.hl.t1 172-19-0-2.two.hl.t1 172-19-0-2.one.hl.t1 172-18-0-2.one.hl.t1 \
         x.h1.one.hl.t1 a.b.c.web.t1",
        "svc.clusterset.local",
    );
    all.extend(below("svc pod dns-version x ns.dns 1-2-3-4.t1.pod t1.pod any.t1", "clusterset.local"));
    for name in [
        "clusterset.local",
        "ClusterSet.LOCAL",
        "1.0.112.10.in-addr.arpa",
        "2.0.112.10.in-addr.arpa",
        "3.0.112.10.in-addr.arpa",
        "1.0.18.172.in-addr.arpa",
        "2.0.19.172.in-addr.arpa",
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.1.0.0.0.0.d.f.ip6.arpa",
    ] {
        all.push(name.to_owned());
    }
    all
}
