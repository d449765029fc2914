use super::*;
use crate::read_corefile::tests::{parsed, refused, refused_properties, with};
use ::kubernetes::Pods;
use kubernetes_api::{Access, ClientFiles, PodWatch, RateLimit, Selector};
use std::time::Duration;
use wire::Name;

/// Differences of a row from the bare directive.
type Change = fn(&mut KubernetesSpec);

fn name(text: &str) -> Name {
    Name::from_text(text).unwrap()
}

#[test]
fn arguments_and_properties() {
    let rows: &[(&str, Change)] = &[
        ("ttl 0", |s| s.rules.ttl = 0),
        ("ttl 3600", |s| s.rules.ttl = 3600),
        ("pods disabled", |_| {}),
        ("pods insecure", |s| s.rules.pods = Pods::Insecure),
        ("pods verified", |s| {
            s.rules.pods = Pods::Verified;
            s.wants.pods = Some(PodWatch::default());
        }),
        // Pods are not needed.
        ("node node-1", |s| s.node = Some("node-1".into())),
        ("endpoint_pod_names", |s| s.wants.pod_names = true),
        ("noendpoints", |s| s.wants.endpoints = false),
        ("zonal", |s| {
            s.wants.zones = true;
            s.rules.zonal = true;
        }),
        ("ignore empty_service", |s| s.rules.ignore_empty = true),
        ("fallthrough", |s| s.fallthrough.zones = vec![Name::ROOT]),
        ("fallthrough in-addr.arpa ip6.arpa", |s| {
            s.fallthrough.zones = vec![name("in-addr.arpa"), name("ip6.arpa")];
        }),
        ("startup_timeout 1m", |s| s.startup_timeout = Duration::from_secs(60)),
        ("snapshot /run/c", |s| {
            s.snapshot = Some(SnapshotSpec { file: "/run/c".into(), every: Duration::from_secs(30) });
        }),
        ("snapshot c 1m", |s| {
            s.snapshot = Some(SnapshotSpec { file: "c".into(), every: Duration::from_secs(60) });
        }),
        ("namespaces b a\nnamespaces c", |s| {
            s.rules.namespaces = ["a", "b", "c"].map(Into::into).into();
            s.wants.namespaces = ["a", "b", "c"].map(Into::into).into();
        }),
        ("labels environment in (staging, qa),application=nginx", |s| {
            s.wants.labels = Selector::parse("environment in (staging,qa),application=nginx").ok();
        }),
        ("namespace_labels istio-injection=enabled", |s| {
            s.wants.namespace_labels = Selector::parse("istio-injection=enabled").ok();
        }),
        ("multicluster clusterset.local", |s| {
            s.rules.multicluster = vec![name("clusterset.local")];
            s.wants.imports = true;
        }),
        ("multicluster", |_| {}),
        ("endpoint https://192.0.2.1:6443", |s| {
            s.access = Access::Endpoint { url: "https://192.0.2.1:6443".into(), tls: None };
        }),
        ("endpoint http://a http://b", |s| {
            s.passed_over = 1;
            s.access = Access::Endpoint { url: "http://a".into(), tls: None };
        }),
        ("tls cert /k ca\nendpoint https://a", |s| {
            let [certificate, key, authority] = ["cert", "/k", "ca"].map(Into::into);
            let tls = Some(ClientFiles { certificate, key, authority });
            s.access = Access::Endpoint { url: "https://a".into(), tls };
        }),
        ("tls cert key ca", |_| {}),
        ("kubeconfig /run/k", |s| s.access = Access::Kubeconfig { file: "/run/k".into(), context: None }),
        ("endpoint http://a\nkubeconfig /run/k dev", |s| {
            s.access = Access::Kubeconfig { file: "/run/k".into(), context: Some("dev".into()) };
        }),
        ("apiserver_qps 0.5", |s| s.pace = RateLimit { per_second: 0.5, burst: 10, in_flight: 0 }),
        ("apiserver_burst 5\napiserver_qps 50", |s| {
            s.pace = RateLimit { per_second: 50.0, burst: 5, in_flight: 0 }
        }),
        ("apiserver_qps 50\napiserver_burst 0", |s| {
            s.pace = RateLimit { per_second: 50.0, burst: 10, in_flight: 0 }
        }),
        ("apiserver_qps 50\napiserver_burst 100\napiserver_max_inflight 4", |s| {
            s.pace = RateLimit { per_second: 50.0, burst: 100, in_flight: 4 };
        }),
    ];
    let directive = "kubernetes cluster.local clusterset.local in-addr.arpa";
    let bare: KubernetesSpec = parsed(directive).unwrap();
    assert_eq!((bare.rules.ttl, bare.startup_timeout), (5, Duration::from_secs(5)));
    for (properties, change) in rows {
        let mut expected = bare.clone();
        change(&mut expected);
        assert_eq!(parsed(&with(directive, properties)), Some(expected), "{properties}");
    }
    let zones = |lines: &str| parsed::<KubernetesSpec>(lines).unwrap().rules.zones;
    assert_eq!(zones("kubernetes"), [Name::ROOT]);
    assert_eq!(
        zones("kubernetes cluster.local 10.96.0.0/16 fd00::/16"),
        [name("cluster.local"), name("96.10.in-addr.arpa"), name("0.0.d.f.ip6.arpa")]
    );
    // Zones that hide no names of each other.
    assert_eq!(
        zones("kubernetes example.org k8s.example.org example.org"),
        ["example.org", "k8s.example.org", "example.org"].map(name)
    );
}

#[test]
fn pods_are_watched_when_needed() {
    let of_node = |node: &str| Some(PodWatch { node: Some(node.into()), labels: Vec::new() });
    for (lines, wanted) in [
        ("kubernetes", None),
        ("kubernetes {\npods insecure\nnode a\n}", None),
        ("autopath resolv.conf\nkubernetes {\nnode a\n}", None),
        // As in CoreDNS, names alone do not need pods.
        ("autopath @kubernetes\nkubernetes", None),
        ("autopath @kubernetes\nkubernetes {\npods insecure\n}", None),
        ("autopath @kubernetes\nkubernetes {\npods verified\n}", Some(PodWatch::default())),
        ("kubernetes {\npods verified\n}", Some(PodWatch::default())),
        ("autopath @kubernetes\nkubernetes {\nnode a.b-1\n}", of_node("a.b-1")),
        ("kubernetes {\npods insecure\nnode a\n}\nautopath cluster.local @kubernetes", of_node("a")),
        ("metadata\nlog . \"{/kubernetes/client-namespace}\"\nkubernetes {\nnode a\n}", of_node("a")),
        ("metadata\nlog . \"{/kubernetes/namespace}\"\nkubernetes {\nnode a\n}", None),
        ("metadata\nlog . \"{/kubernetes/client-namespace}\"\nkubernetes", None),
    ] {
        assert_eq!(parsed::<KubernetesSpec>(lines).unwrap().wants.pods, wanted, "{lines}");
    }
}

#[test]
fn pod_labels_that_rules_read() {
    let kept = |lines: &str| {
        let pods = parsed::<KubernetesSpec>(lines).unwrap().wants.pods.unwrap();
        pods.labels.join(" ")
    };
    let readers = "log . \"{/kubernetes/client-label/tier}\"\n\
                   rewrite edns0 local set 0xffee {kubernetes/client-label/app.kubernetes.io/name}\n\
                   template IN A example.org {\nanswer \"{{ .Meta \\\"kubernetes/client-label/app\\\" }}\"\n}";
    let verified = "kubernetes {\npods verified\n}";
    for (lines, expected) in [
        (format!("metadata\n{readers}\n{verified}"), "app app.kubernetes.io/name tier"),
        (format!("metadata\n{readers}\nkubernetes {{\nnode a\n}}"), "app app.kubernetes.io/name tier"),
        // No label is read: without `metadata` by no rule, and with it there is no rule.
        (format!("{readers}\n{verified}"), ""),
        (format!("metadata\n{verified}"), ""),
    ] {
        assert_eq!(kept(&lines), expected, "{lines}");
    }
}

#[test]
fn errors_have_their_place() {
    refused(&[
        (
            "kubernetes in-addr.arpa 10.0.0.0/8",
            "2:1: plugin/kubernetes: one zone at least has to be for names, such as cluster.local: addresses lead back to it",
        ),
        ("kubernetes a..b", "2:12: the zone `a..b` has an empty label"),
        (
            "kubernetes cluster.local in-addr.arpa a.SVC.cluster.local",
            "2:39: plugin/kubernetes: a.svc.cluster.local. lies in cluster.local., whose names it would hide; remove one of them",
        ),
        (
            "kubernetes pod.cluster.local cluster.local",
            "2:12: plugin/kubernetes: pod.cluster.local. lies in cluster.local., whose names it would hide; remove one of them",
        ),
    ]);
    refused_properties(
        "kubernetes",
        &[
            ("pods", "1: plugin/kubernetes: `pods` needs disabled, insecure or verified"),
            ("node", "1: plugin/kubernetes: `node` needs the name of a node, such as {$NODE_NAME} has it"),
            (
                "node a,status.phase=Failed",
                "6: plugin/kubernetes: \"a,status.phase=Failed\" is not the name of a node, such as {$NODE_NAME} has it",
            ),
            (
                "node a b",
                "8: plugin/kubernetes: unexpected argument \"b\"; `node` needs the name of a node, such as {$NODE_NAME} has it",
            ),
            ("pods all", "6: plugin/kubernetes: \"all\" is not disabled, insecure or verified"),
            (
                "pods verified insecure",
                "15: plugin/kubernetes: unexpected argument \"insecure\"; `pods` needs disabled, insecure or verified",
            ),
            (
                "endpoint_pod_names x",
                "20: plugin/kubernetes: unexpected argument \"x\"; `endpoint_pod_names` needs no argument",
            ),
            (
                "noendpoints x",
                "13: plugin/kubernetes: unexpected argument \"x\"; `noendpoints` needs no argument",
            ),
            ("zonal x", "7: plugin/kubernetes: unexpected argument \"x\"; `zonal` needs no argument"),
            ("ttl", "1: plugin/kubernetes: `ttl` needs a TTL in seconds, 0 to 3600"),
            ("ttl 3601", "5: plugin/kubernetes: \"3601\" is not a TTL in seconds, 0 to 3600"),
            ("ttl -1", "5: plugin/kubernetes: \"-1\" is not a TTL in seconds, 0 to 3600"),
            ("ignore", "1: plugin/kubernetes: `ignore` needs empty_service"),
            ("ignore x", "8: plugin/kubernetes: \"x\" is not empty_service"),
            ("namespaces", "1: plugin/kubernetes: `namespaces` needs at least one namespace"),
            ("labels", "1: plugin/kubernetes: `labels` needs a label selector such as app=web,tier!=test"),
            (
                "labels app in web",
                "8: plugin/kubernetes: the label selector cannot be used: expected `(`, found \"web\"",
            ),
            (
                "namespace_labels a b",
                "18: plugin/kubernetes: the label selector cannot be used: expected one of `,`, `=`, `!=`, `in` and `notin`, found \"b\"",
            ),
            (
                "multicluster clusterset.local",
                "1: plugin/kubernetes: clusterset.local. is not a zone of this directive; add it there",
            ),
            ("endpoint", "1: plugin/kubernetes: `endpoint` needs the URL of the API"),
            ("tls a b", "1: plugin/kubernetes: `tls` needs CERT KEY CACERT, three files"),
            (
                "tls a b c d",
                "11: plugin/kubernetes: unexpected argument \"d\"; `tls` needs CERT KEY CACERT, three files",
            ),
            ("kubeconfig", "1: plugin/kubernetes: `kubeconfig` needs KUBECONFIG [CONTEXT]"),
            (
                "kubeconfig a b c",
                "16: plugin/kubernetes: unexpected argument \"c\"; `kubeconfig` needs KUBECONFIG [CONTEXT]",
            ),
            ("snapshot", "1: plugin/kubernetes: `snapshot` needs FILE [INTERVAL]"),
            ("snapshot a 999ms", "12: plugin/kubernetes: \"999ms\" is not a duration of 1s or more"),
            (
                "snapshot a 1s b",
                "15: plugin/kubernetes: unexpected argument \"b\"; `snapshot` needs FILE [INTERVAL]",
            ),
            ("startup_timeout 5", "17: plugin/kubernetes: \"5\" is not a duration such as 5s, 0 not to wait"),
            ("apiserver_qps -1", "15: plugin/kubernetes: \"-1\" is not a number of 0 or more"),
            ("apiserver_burst 1.5", "17: plugin/kubernetes: \"1.5\" is not a number of 0 or more"),
            ("apiserver_max_inflight x", "24: plugin/kubernetes: \"x\" is not a number of 0 or more"),
            ("pods insecure {\nx\n}", "1: plugin/kubernetes: `pods` has no sub-block; remove the braces"),
            (
                "name_spaces a",
                "1: plugin/kubernetes: unknown property \"name_spaces\"; did you mean `namespaces`?",
            ),
        ],
    );
    refused(&[(
        "kubernetes {\nnoendpoints\nzonal\n}",
        "4:1: plugin/kubernetes: `noendpoints` and `zonal` exclude each other; keep one",
    )]);
    for pods in ["pods verified\nnode a", "node a\npods verified"] {
        refused(&[(
            &format!("autopath @kubernetes\nkubernetes {{\n{pods}\n}}"),
            &format!(
                "{}:1: plugin/kubernetes: `node` and `pods verified` exclude each other; keep one",
                if pods.ends_with('a') { 4 } else { 5 }
            ),
        )]);
    }
    refused(&[(
        "kubernetes {\nnamespaces a\nnamespace_labels a=b\n}",
        "4:1: plugin/kubernetes: `namespaces` and `namespace_labels` exclude each other; keep one",
    )]);
}

#[test]
fn name_server_addresses() {
    let own = |endpoints: &[&str]| {
        own_addresses(&endpoints.iter().map(|endpoint| endpoint.parse().unwrap()).collect::<Vec<_>>())
    };
    let endpoints =
        ["192.0.2.1:53", "tls://[2001:db8::1]:853", "127.0.0.1:53", "[fe80::1]:53", "[fe80::2%1]:53"];
    assert_eq!(own(&endpoints), ["192.0.2.1".parse::<IpAddr>().unwrap(), "2001:db8::1".parse().unwrap()]);
    assert!(own(&["[::]:53"]).iter().all(|address| !address.is_loopback()));
}
