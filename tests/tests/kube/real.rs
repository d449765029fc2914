//! The real API: the store equals its state for every kind of access, and after an outage.

use std::net::IpAddr;

use kubernetes_api::objects::{Endpoint, ExternalAddress, Port, Protocol, Service, Target};
use kubernetes_api::{
    Access, ClientFiles, ClientSettings, Kind, Object, ObjectKey, PodWatch, RateLimit, Selector, WatchConfig,
    WatchHandle, follow,
};
use tests::kube::Cluster;
use tests::{isolated, now};

use super::store::{Seen, Store};

const FOLLOWED: [Kind; 4] = [Kind::Service, Kind::Slice, Kind::Namespace, Kind::Pod];

fn wants() -> WatchConfig {
    WatchConfig {
        endpoints: true,
        pod_names: true,
        zones: true,
        pods: Some(PodWatch { node: None, labels: vec!["app".into()] }),
        ..WatchConfig::default()
    }
}

fn start(access: Access, wants: WatchConfig) -> (Seen, WatchHandle) {
    let seen = Seen::default();
    let following =
        follow(ClientSettings { access, wants, pace: RateLimit::default(), now }, Box::new(seen.clone()))
            .expect("a thread can be had");
    (seen, following)
}

fn kubeconfig(cluster: &Cluster) -> Access {
    Access::Kubeconfig { file: cluster.path("dns.kubeconfig").into(), context: Some("kube".into()) }
}

const NAMESPACES: &str = "/api/v1/namespaces";
const SERVICES: &str = "/api/v1/namespaces/t1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/t1/endpointslices";
const PODS: &str = "/api/v1/namespaces/t1/pods";

fn fill(cluster: &Cluster) {
    cluster.create(NAMESPACES, r#"{"metadata": {"name": "t1", "labels": {"team": "dns"}}}"#);
    cluster.create(NAMESPACES, r#"{"metadata": {"name": "t2"}}"#);
    cluster.create(
        SERVICES,
        r#"{"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {
            "clusterIP": "10.96.0.100", "clusterIPs": ["10.96.0.100", "fd00:10:96::64"], "ipFamilyPolicy": "RequireDualStack",
            "externalIPs": ["192.0.2.7"],
            "ports": [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]}}"#,
    );
    cluster.create(
        SERVICES,
        r#"{"metadata": {"name": "hl"}, "spec": {"clusterIP": "None", "ports": [{"port": 1234, "protocol": "SCTP"}]}}"#,
    );
    cluster.create(
        SERVICES,
        r#"{"metadata": {"name": "ext"}, "spec": {"type": "ExternalName", "externalName": "example.net"}}"#,
    );
    cluster.create(
        SLICES,
        r#"{"metadata": {"name": "hl-1", "labels": {"kubernetes.io/service-name": "hl"},
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-23T13:42:25Z"}},
            "addressType": "IPv4", "ports": [{"name": "c", "port": 1234, "protocol": "UDP"}], "endpoints": [
                {"addresses": ["172.17.0.254"], "hostname": "h1", "conditions": {"ready": true}, "zone": "Zone-A",
                 "nodeName": "node-0", "targetRef": {"kind": "Pod", "name": "pod-1", "namespace": "t1"}},
                {"addresses": ["172.17.0.253"], "conditions": {"ready": false}},
                {"addresses": ["172.17.0.255"]}]}"#,
    );
    cluster.create(PODS, &pod("pod-1", "node-0"));
    cluster.create(PODS, &pod("pod-2", "node-1"));
    let status = r#"{"status": {"phase": "Running", "podIP": "172.17.0.254", "podIPs": [{"ip": "172.17.0.254"}, {"ip": "fd00:17::1"}]}}"#;
    let (code, body) = cluster.send("PATCH", &format!("{PODS}/pod-1/status"), status);
    assert_eq!(code, 200, "{body}");
}

fn pod(name: &str, node: &str) -> String {
    format!(
        r#"{{"metadata": {{"name": "{name}", "labels": {{"app": "web", "other": "x"}}}},
            "spec": {{"nodeName": "{node}", "containers": [{{"name": "main", "image": "none"}}]}}}}"#
    )
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn assert_filled(store: &Store) {
    let key = |name: &str| ObjectKey { namespace: "t1".into(), name: name.into() }.into();
    let port = |name: &str, protocol, port| Port { name: name.into(), protocol, port: Some(port) };
    let web = Service {
        key: key("web"),
        target: Target::ClusterIps(["10.96.0.100", "fd00:10:96::64"].map(ip).into()),
        ports: [port("http", Protocol::Tcp, 80), port("dns", Protocol::Udp, 53)].into(),
        external: [ExternalAddress::Ip(ip("192.0.2.7"))].into(),
    };
    assert_eq!(store.get(Kind::Service, "t1", "web"), Some(&Object::Service(web)));
    let target = |name| match store.get(Kind::Service, "t1", name) {
        Some(Object::Service(service)) => service.target.clone(),
        found => panic!("{name}: {found:?}"),
    };
    assert_eq!(target("hl"), Target::Headless);
    assert_eq!(target("ext"), Target::ExternalName("example.net".into()));
    let Some(Object::Slice(slice)) = store.get(Kind::Slice, "t1", "hl-1") else { panic!("no slice") };
    assert_eq!((&*slice.service, slice.changed.map(|at| at.0.as_secs())), ("hl", Some(1_795_441_345)));
    assert_eq!(*slice.ports, [port("c", Protocol::Udp, 1234)]);
    let endpoint = |address: &str| Endpoint { address: ip(address), hostname: None, pod: None, zone: None };
    let first = Endpoint {
        hostname: Some("h1".into()),
        pod: Some("pod-1".into()),
        zone: Some("zone-a".into()),
        ..endpoint("172.17.0.254")
    };
    assert_eq!(*slice.endpoints, [first, endpoint("172.17.0.255")]);
    let Some(Object::Pod(pod)) = store.get(Kind::Pod, "t1", "pod-1") else { panic!("no pod") };
    assert_eq!(*pod.addresses, ["172.17.0.254", "fd00:17::1"].map(ip));
    assert!(pod.running && !pod.host_network && !pod.terminating, "{pod:?}");
    assert_eq!(*pod.labels, [("app".into(), "web".into())]);
    assert!(store.get(Kind::Namespace, "", "t1").is_some() && store.get(Kind::Namespace, "", "t2").is_some());
    assert_eq!(store.unreadable, 0);
}

/// What the real API sends is kept by every kind of request and after an outage.
#[test]
fn real_api_by_every_request() {
    isolated(|| {
        let Some(cluster) = Cluster::up("real_api_by_every_request") else { return };
        // One watch begins before the objects exist, others after.
        let (early, _early) = start(kubeconfig(&cluster), wants());
        early.until_following(&FOLLOWED);
        fill(&cluster);
        let filled = |store: &Store| match store.get(Kind::Pod, "t1", "pod-1") {
            Some(Object::Pod(pod)) => pod.running && store.get(Kind::Pod, "t1", "pod-2").is_some(),
            _ => false,
        };
        early.until("all that was made", filled);
        assert_filled(&early.store());
        let tls = ClientFiles {
            certificate: cluster.path("client.crt").into(),
            key: cluster.path("client.key").into(),
            authority: cluster.path("ca.crt").into(),
        };
        let endpoint = Access::Endpoint { url: "https://127.0.0.1:6443".into(), tls: Some(tls) };
        for access in [kubeconfig(&cluster), endpoint] {
            let (late, _late) = start(access, wants());
            late.until_following(&FOLLOWED);
            assert_filled(&late.store());
            assert!(late.store().lost.is_empty(), "{:?}", late.store().lost);
        }

        cluster.lose();
        early.until("the loss", |store| store.following.is_empty());
        cluster.start();
        early.until_following(&FOLLOWED);
        assert_filled(&early.store());
        let (code, body) = cluster.send("DELETE", &format!("{SERVICES}/ext"), "");
        assert_eq!(code, 200, "{body}");
        let (code, body) = cluster.send("DELETE", &format!("{PODS}/pod-1?gracePeriodSeconds=0"), "");
        assert_eq!(code, 200, "{body}");
        early.until("what is gone", |store| {
            store.get(Kind::Service, "t1", "ext").is_none() && store.get(Kind::Pod, "t1", "pod-1").is_none()
        });
    });
}

/// The real API filters objects, and the client's error names the missing right.
#[test]
fn real_api_selects_and_names_rights() {
    isolated(|| {
        let Some(cluster) = Cluster::up("real_api_selects_and_names_rights") else {
            return;
        };
        fill(&cluster);
        let selector = |text| Some(Selector::parse(text).unwrap());
        let selected = WatchConfig {
            pods: Some(PodWatch { node: Some("node-1".into()), labels: Vec::new() }),
            labels: selector("app in (web, none),!missing"),
            namespace_labels: selector("team=dns"),
            ..wants()
        };
        let (seen, _following) = start(kubeconfig(&cluster), selected);
        seen.until_following(&FOLLOWED);
        let counts = FOLLOWED.map(|kind| seen.store().count(kind));
        assert_eq!(counts, [1, 0, 1, 1]);
        assert!(seen.store().get(Kind::Pod, "t1", "pod-2").is_some());

        let one = WatchConfig { namespaces: vec!["t1".into()], ..wants() };
        let (seen, _following) = start(kubeconfig(&cluster), one);
        seen.until_following(&FOLLOWED);
        assert_eq!(FOLLOWED.map(|kind| seen.store().count(kind)), [3, 1, 1, 2]);

        let imports = WatchConfig { imports: true, ..wants() };
        let (seen, _following) = start(kubeconfig(&cluster), imports.clone());
        seen.until("no such kind", |store| store.lost.iter().any(|(kind, _)| *kind == Kind::ServiceImport));
        let text = seen.store().lost[0].1.clone();
        assert!(text.starts_with("the API has no serviceimports: "), "{text}");

        let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/localdns";
        let rules = r#"{"rules": [{"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}]}"#;
        assert_eq!(cluster.send("PATCH", role, rules).0, 200);
        let (seen, _following) = start(kubeconfig(&cluster), imports);
        let is_reported = |store: &Store, part: &str| store.lost.iter().any(|(_, text)| text.contains(part));
        for part in
            ["may not watch services: ", "may not watch endpointslices: ", "may not watch namespaces: "]
        {
            seen.until(part, |store| is_reported(store, part));
        }
    });
}
