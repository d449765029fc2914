//! The program with kubeadm's Corefile and a scripted API.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tests::kube::{Api, NAMESPACES, Object, SERVICES, SLICES, ScriptedCluster};
use tests::{
    Action, Ask, Metrics, Says, Server, Upstream, ask, eventually, fixtures, fresh_ip, http_get, isolated,
};

pub(super) fn namespace(name: &str) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": "1"}})
}

pub(super) fn service(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "t1", "resourceVersion": "2"}, "spec": spec})
}

pub(super) fn slice(version: u32, ready: &[(&str, &str)]) -> Value {
    let endpoints: Vec<Value> = ready
        .iter()
        .map(|(address, name)| json!({"addresses": [address], "hostname": name, "conditions": {"ready": true}}))
        .collect();
    json!({
        "metadata": {"name": "hl-1", "namespace": "t1", "resourceVersion": version.to_string(), "labels": {"kubernetes.io/service-name": "hl"}, "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-23T13:42:25Z"}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "c", "protocol": "UDP", "port": 1234}],
    })
}

pub(super) fn objects() -> Vec<Object> {
    let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    let web = json!({"type": "ClusterIP", "clusterIP": "10.96.0.100", "clusterIPs": ["10.96.0.100", "fd00:96::64"], "ports": ports});
    let external = |name: &str| json!({"type": "ExternalName", "externalName": name});
    vec![
        (NAMESPACES, namespace("t1")),
        (SERVICES, service("web", web)),
        (
            SERVICES,
            service(
                "hl",
                json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "ports": ports}),
            ),
        ),
        (SERVICES, service("ext", external("example.net"))),
        (SERVICES, service("dark", external("fails.example.net"))),
        (SERVICES, service("again", external("web.t1.svc.cluster.local"))),
        (SLICES, slice(3, &[("172.17.0.254", "h1")])),
    ]
}

pub(super) fn upstream() -> Upstream {
    Upstream::start(fresh_ip(), |asked| match (&*asked.name, asked.rtype) {
        ("example.net.", 1) => Action::answer("example.net. 60 IN A 192.0.2.80"),
        (name, _) if name.starts_with("fails.") => Action::rcode(2),
        _ => Action::Reply(Says::nodata("net. 300 IN SOA ns.net. host.net. 1 7200 900 86400 20")),
    })
}

/// kubeadm's Corefile with its API at the test's address.
pub(super) fn corefile(at: SocketAddr, api: &Api, upstream: &Upstream) -> String {
    let endpoint = format!("kubernetes cluster.local in-addr.arpa ip6.arpa {{\n    endpoint {}\n", api.url());
    let text = fixtures::KUBEADM.replace("kubernetes cluster.local in-addr.arpa ip6.arpa {\n", &endpoint);
    assert_ne!(text, fixtures::KUBEADM);
    let text = text.replace(".:53 {", &format!(".:{} {{\nbind {}\n", at.port(), at.ip()));
    let text = text
        .replace("/etc/resolv.conf", &upstream.word())
        .replace("health {", &format!("health {}:8080 {{", at.ip()));
    text.replace("    ready\n", &format!("    ready {}:8181\n", at.ip()))
        .replace("prometheus :", &format!("prometheus {}:", at.ip()))
}

pub(super) fn ready(at: SocketAddr) -> (u16, String) {
    http_get((at.ip(), 8181).into(), "/ready").expect("the page is served")
}

/// Waits until /ready gives this reason: it takes time until the API's first reply arrives or is
/// overdue.
pub(super) fn not_ready(at: SocketAddr, why: &str) {
    eventually("why it is not ready", Duration::from_secs(10), || {
        let (status, cause) = ready(at);
        assert!(status == 503 && cause.starts_with("kubernetes"), "{status} {cause}");
        (cause == why).then_some(())
    });
}

pub(super) fn until(at: SocketAddr, name: &str, addresses: &[&str]) {
    eventually(&format!("{name} at {addresses:?}"), Duration::from_secs(30), || {
        (ask(at, name, "A").short() == addresses).then_some(())
    });
}

/// kubeadm's Corefile answers the cluster's names and follows changes.
#[test]
fn kubeadms_corefile_follows_changes() {
    let (cluster, upstream) = (ScriptedCluster::start(objects(), false), upstream());
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let server = Server::start(&corefile(at, &cluster.api, &upstream));
    // The start waited until the cluster was synchronized.
    assert_eq!(ready(at), (200, "OK".to_owned()));
    for (name, rtype, expected) in [
        ("Web.t1.svc.cluster.local", "A", &["10.96.0.100"][..]),
        ("web.t1.svc.cluster.local", "AAAA", &["fd00:96::64"]),
        ("_http._tcp.web.t1.svc.cluster.local", "SRV", &["0 50 80 web.t1.svc.cluster.local."]),
        ("hl.t1.svc.cluster.local", "A", &["172.17.0.254"]),
        ("h1.hl.t1.svc.cluster.local", "A", &["172.17.0.254"]),
        ("100.0.96.10.in-addr.arpa", "PTR", &["web.t1.svc.cluster.local."]),
        ("254.0.17.172.in-addr.arpa", "PTR", &["h1.hl.t1.svc.cluster.local."]),
        ("1-2-3-4.t1.pod.cluster.local", "A", &["1.2.3.4"]),
        ("ext.t1.svc.cluster.local", "A", &["example.net.", "192.0.2.80"]),
        ("again.t1.svc.cluster.local", "A", &["web.t1.svc.cluster.local.", "10.96.0.100"]),
        ("example.net", "A", &["192.0.2.80"]),
    ] {
        let mut reply = ask(at, name, rtype).short().into_iter().map(str::to_owned).collect::<Vec<_>>();
        reply.sort();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(reply, expected, "{name} {rtype}");
        assert_eq!(Ask::new(name, rtype).tcp().of(at).status(), "NOERROR", "{name} {rtype} over TCP");
    }
    for (name, rtype, status) in [
        ("other.t1.svc.cluster.local", "A", "NXDOMAIN"),
        ("web.t2.svc.cluster.local", "A", "NXDOMAIN"),
        ("web.t1.svc.cluster.local", "MX", "NOERROR"),
        // The lookup of the alias's target fails, so the whole query does.
        ("dark.t1.svc.cluster.local", "A", "SERVFAIL"),
    ] {
        let ask = Ask::new(name, rtype).edns(1232);
        for reply in [ask.of(at), ask.tcp().of(at)] {
            assert_eq!((reply.status(), reply.short().len()), (status, 0), "{name} {rtype}");
            // A failure has an extended error.
            let has_reason = reply.extended_error().is_some();
            assert_eq!(has_reason, status == "SERVFAIL", "{name} {rtype}: {:?}", reply.extended_error());
        }
    }
    assert!(ask(at, "web.t1.svc.cluster.local", "A").rows()[0].contains(" 30 "), "the TTL of the Corefile");
    cluster.put(SLICES, "MODIFIED", slice(101, &[("172.17.0.253", "h2")]));
    until(at, "hl.t1.svc.cluster.local", &["172.17.0.253"]);
    assert_eq!(ask(at, "h1.hl.t1.svc.cluster.local", "A").status(), "NXDOMAIN");
    let metrics = Metrics::of((at.ip(), 9153).into());
    let kind = [("service_kind", "headless_with_selector")];
    assert_eq!(metrics.value("coredns_kubernetes_dns_programming_duration_seconds_count", &kind), Some(1.0));
    assert_eq!(metrics.value("localdns_kubernetes_objects", &[("kind", "services")]), Some(5.0));
    assert!(metrics.count("coredns_kubernetes_rest_client_requests_total", &[("code", "200")]) >= 3.0);
    let paced = "coredns_kubernetes_rest_client_rate_limiter_duration_seconds_count";
    let host = cluster.api.address().to_string();
    assert!(metrics.count(paced, &[("verb", "GET"), ("host", &host)]) >= 3.0);
    drop(server);
}

/// The loss of the API changes no answer; names deleted meanwhile are gone when the API is back.
#[test]
fn lost_api_changes_no_answer() {
    let (cluster, upstream) = (ScriptedCluster::start(objects(), false), upstream());
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let server = Server::start(&corefile(at, &cluster.api, &upstream));
    cluster.fail();
    let line = server.wait_for_log("Cannot follow", Duration::from_secs(30));
    assert!(line.contains("answers do not change until"), "{line}");
    cluster.put(SERVICES, "DELETED", service("web", json!({})));
    cluster.put(SLICES, "MODIFIED", slice(102, &[("172.17.0.252", "h3")]));
    assert_eq!(ask(at, "web.t1.svc.cluster.local", "A").short(), ["10.96.0.100"]);
    assert_eq!(ask(at, "hl.t1.svc.cluster.local", "A").short(), ["172.17.0.254"]);
    assert_eq!(ready(at).0, 200);
    cluster.recover();
    until(at, "hl.t1.svc.cluster.local", &["172.17.0.252"]);
    eventually("the deleted service is gone", Duration::from_secs(30), || {
        (ask(at, "web.t1.svc.cluster.local", "A").status() == "NXDOMAIN").then_some(())
    });
    server.wait_for_log("the Kubernetes API is followed again", Duration::from_secs(30));
    assert_eq!(
        ask(at, "100.0.96.10.in-addr.arpa", "PTR").status(),
        "NOERROR",
        "it falls through to the upstream"
    );
}

/// Names queried before the first list fail with a reason and are not forwarded.
#[test]
fn names_before_the_first_list() {
    let (cluster, upstream) = (ScriptedCluster::start(objects(), true), upstream());
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let text = corefile(at, &cluster.api, &upstream);
    let server = Server::start(&text.replace("pods insecure", "pods insecure\n    startup_timeout 600ms"));
    server.wait_for_log("starting server with unsynced Kubernetes API", Duration::from_secs(10));
    not_ready(at, "kubernetes: 503 from the API: scripted: ServiceUnavailable");
    for (name, rtype) in [
        ("web.t1.svc.cluster.local", "A"),
        ("100.0.96.10.in-addr.arpa", "PTR"),
        ("1-2-3-4.t1.pod.cluster.local", "A"),
    ] {
        let reply = Ask::new(name, rtype).edns(1232).of(at);
        assert_eq!(reply.status(), "SERVFAIL", "{name}");
        assert_eq!(reply.extended_error().map(|(code, _)| code), Some(14), "{name}");
    }
    assert_eq!(ask(at, "example.net", "A").short(), ["192.0.2.80"], "others are served");
    assert_eq!(ask(at, "cluster.local", "SOA").status(), "NOERROR");
    cluster.recover();
    until(at, "web.t1.svc.cluster.local", &["10.96.0.100"]);
    eventually("ready", Duration::from_secs(30), || (ready(at).0 == 200).then_some(()));
    let asked: Vec<String> = upstream.asked().into_iter().map(|asked| asked.name).collect();
    assert!(
        asked.iter().all(|name| !name.contains("cluster.local") && !name.contains("10.in-addr")),
        "{asked:?}"
    );
}

/// A start waits until all lists are complete, and no longer than `startup_timeout`.
#[test]
fn startup_timeout_is_respected() {
    const LATE: &str = "starting server with unsynced Kubernetes API";
    let (cluster, upstream) = (ScriptedCluster::start(objects(), true), upstream());
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let text = corefile(at, &cluster.api, &upstream);
    let with = |property: &str| text.replace("pods insecure", &format!("pods insecure\n    {property}"));
    for (property, least) in [("", 5_000), ("startup_timeout 1500ms", 1_500), ("startup_timeout 0s", 0)] {
        let server = Server::start(&with(property));
        assert!(server.started_in() >= Duration::from_millis(least), "{property}: {:?}", server.started_in());
        let serves = format!(".:{} on ", at.port());
        server.wait_for_log(&serves, Duration::from_secs(10));
        let log = server.log_lines();
        let place = |part: &str| log.iter().position(|line| line.contains(part));
        // It logs that it waits, that it gives up, and that it serves; with a timeout of 0 it does
        // not log that it waits.
        let (waits, late) = (place("waiting for Kubernetes API before starting server"), place(LATE));
        assert!(late.is_some() && late < place(&serves), "{log:#?}");
        assert_eq!(waits.is_some(), least > 0, "{property}: {log:#?}");
        assert!(waits < late, "{log:#?}");
        assert_eq!(ready(at).0, 503, "{property}");
    }
    // The API is back after one failed request: a server that waited for the whole minute would
    // exceed the ten seconds that a start may take here.
    let before = cluster.api.requests().len();
    let server = thread::scope(|scope| {
        scope.spawn(|| {
            eventually("the API is asked", Duration::from_secs(10), || {
                (cluster.api.requests().len() > before).then_some(())
            });
            // The liveness probe does not kill it: its pages are served before queries are.
            eventually("/ready says what is waited for", Duration::from_secs(10), || {
                let (code, text) = http_get((at.ip(), 8181).into(), "/ready").ok()?;
                (code == 503 && text.starts_with("kubernetes")).then_some(())
            });
            // A query during the wait is answered once the cluster is synchronized.
            scope.spawn(|| assert_eq!(ask(at, "web.t1.svc.cluster.local", "A").short(), ["10.96.0.100"]));
            cluster.recover();
        });
        Server::start(&with("startup_timeout 1m"))
    });
    assert_eq!(ask(at, "web.t1.svc.cluster.local", "A").short(), ["10.96.0.100"]);
    assert_eq!(ready(at), (200, "OK".to_owned()));
    assert!(!server.log_text().contains(LATE), "{}", server.log_text());
}

/// kubeadm's unmodified Corefile starts without a cluster.
#[test]
fn kubeadms_corefile_without_a_cluster() {
    isolated(|| {
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.53\n").unwrap();
        let at: SocketAddr = ([127, 0, 0, 1], 53).into();
        let server = Server::start(fixtures::KUBEADM);
        let words = "not set; outside of a pod use `endpoint` or `kubeconfig`";
        not_ready(at, &format!("kubernetes: KUBERNETES_SERVICE_HOST: {words}"));
        let reply = Ask::new("web.t1.svc.cluster.local", "A").edns(1232).of(at);
        assert_eq!((reply.status(), reply.extended_error().map(|(code, _)| code)), ("SERVFAIL", Some(14)));
        let line = server.wait_for_log("KUBERNETES_SERVICE_HOST", Duration::from_secs(10));
        assert!(line.contains("outside of a pod use `endpoint` or `kubeconfig`"), "{line}");
        assert!(line.contains("the environment is read once") && !line.contains("no restart"), "{line}");
    });
}

/// An alias that a template directs back to itself ends with an answer.
#[test]
fn template_alias_loop_ends() {
    let external = json!({"type": "ExternalName", "externalName": "river.test"});
    let objects = objects().into_iter().chain([(SERVICES, service("upriver", external))]);
    let (cluster, upstream) = (ScriptedCluster::start(objects, false), upstream());
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let back = "template IN A river.test {\nanswer \"{{ .Name }} 60 IN CNAME upriver.t1.svc.cluster.local.\"\n}\nkubernetes";
    let text = corefile(at, &cluster.api, &upstream).replacen("kubernetes", back, 1);
    let _server = Server::start(&text);
    for (name, expected) in [
        ("upriver.t1.svc.cluster.local", &["river.test.", "upriver.t1.svc.cluster.local."][..]),
        ("river.test", &["upriver.t1.svc.cluster.local."]),
    ] {
        for reply in [Ask::new(name, "A").of(at), Ask::new(name, "A").tcp().of(at)] {
            let mut data = reply.short();
            data.sort_unstable();
            assert_eq!((reply.status(), &*data), ("NOERROR", expected), "{name}");
        }
    }
    assert_eq!(ask(at, "web.t1.svc.cluster.local", "A").short(), ["10.96.0.100"]);
}

/// A reload that follows the same cluster keeps its objects.
#[test]
fn reload_keeps_what_is_known() {
    let (cluster, upstream) = (ScriptedCluster::start(objects(), false), upstream());
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let text = corefile(at, &cluster.api, &upstream);
    let server = Server::start(&text);
    let requests = cluster.api.requests().len();
    server.write_corefile(&text.replace("ttl 30", "ttl 7"));
    server.signal("USR1");
    server.wait_for_log("Reloading complete", Duration::from_secs(10));
    assert!(ask(at, "web.t1.svc.cluster.local", "A").rows()[0].contains(" 7 "));
    assert_eq!(cluster.api.requests().len(), requests, "nothing is asked again");
}
