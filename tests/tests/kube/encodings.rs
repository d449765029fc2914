//! The store equals an API's state, in either content type.

use kubernetes_api::objects::{ExternalAddress, Target};
use kubernetes_api::{Kind, Object, PodWatch, WatchConfig};
use serde_json::json;
use tests::kube::{Api, Form, Reply};

use super::scripted_faults::{BOTH, SERVICES, endpoint, listed, quiet, service, start};

/// Objects in JSON and in protobuf give the same store.
#[test]
fn both_encodings_are_kept_alike() {
    let slice = json!({
        "metadata": {"name": "web-1", "namespace": "default", "resourceVersion": "3", "labels": {
            "kubernetes.io/service-name": "web", "other": "x",
            "multicluster.kubernetes.io/service-name": "web", "multicluster.kubernetes.io/source-cluster": "c1"}},
        "addressType": "IPv6",
        "ports": [{"name": "", "protocol": "UDP", "port": 53}, {"name": "all"}, {"name": "odd", "protocol": "X", "port": 1},
            {"name": "large", "protocol": "TCP", "port": 65536}],
        "endpoints": [
            {"addresses": ["fd00::1", "nonsense", "::ffff:192.0.2.1"], "conditions": {"ready": true}, "hostname": "a",
             "zone": "Zone-A", "nodeName": "n", "targetRef": {"kind": "Pod", "name": "pod-1"}, "hints": {"forZones": [{"name": "z"}]}},
            {"addresses": ["fd00::2"], "conditions": {"ready": false}},
            {"addresses": ["fd00::3"], "conditions": {"serving": true}, "targetRef": {"name": "p".repeat(64)}},
            {"addresses": ["fd00::4"]}],
    });
    let pods = [
        json!({"metadata": {"name": "host", "namespace": "default", "resourceVersion": "4",
                "deletionTimestamp": "2026-11-23T13:42:25Z", "labels": {"app": "a", "tier": "b"}},
            "spec": {"hostNetwork": true, "nodeName": "n"},
            "status": {"phase": "Running", "podIP": "192.0.2.9", "podIPs": [{"ip": "192.0.2.9"}, {"ip": "fd00::9"}]}}),
        json!({"metadata": {"name": "young", "namespace": "default", "resourceVersion": "5"},
            "spec": {}, "status": {"phase": "Pending"}}),
    ];
    let mut balanced = service("balanced", 6, "10.96.0.6");
    balanced["spec"]["externalIPs"] = json!(["192.0.2.1", "none"]);
    balanced["status"] =
        json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}, {"hostname": "lb.example"}, {}]}});
    let services = [
        balanced,
        service("headless", 7, "None"),
        json!({
            "metadata": {"name": "ext", "namespace": "default", "resourceVersion": "8"},
            "spec": {"type": "ExternalName", "externalName": "example.net"},
        }),
    ];
    let kept = BOTH.map(|form| {
        let (slice, pods, services) = (slice.clone(), pods.clone(), services.clone());
        let api = Api::start(move |request| {
            let objects = match &*request.path {
                SERVICES => ("Service", &services[..]),
                "/api/v1/pods" => ("Pod", &pods[..]),
                "/api/v1/namespaces" => return quiet(form, request),
                _ => ("EndpointSlice", std::slice::from_ref(&slice)),
            };
            let events = objects.1.iter().flat_map(|object| form.event("ADDED", objects.0, object)).collect();
            Reply::watch(form).octets(events).octets(listed(form, objects.0, 10)).stall()
        });
        let wants = WatchConfig {
            endpoints: true,
            pod_names: true,
            zones: true,
            imports: false,
            pods: Some(PodWatch { node: None, labels: vec!["tier".into(), "none".into()] }),
            ..WatchConfig::default()
        };
        let (seen, _following) = start(endpoint(&api), wants);
        seen.until_following(&[Kind::Service, Kind::Slice, Kind::Pod]);
        let objects = std::mem::take(&mut seen.store().objects);
        assert!(seen.store().lost.is_empty() && seen.store().unreadable == 0, "{:?}", seen.store().lost);
        objects.into_values().collect::<Vec<_>>()
    });
    assert_eq!(kept[0], kept[1]);
    let text = format!("{:#?}", kept[0]);
    for (part, times) in [
        ("fd00::1", 1),
        ("192.0.2.1", 2),
        ("fd00::2", 0),
        ("fd00::3", 1),
        ("pod-1", 2),
        ("zone-a", 2),
        ("ppp", 0),
        ("tier", 1),
        ("odd", 0),
        ("large", 0),
    ] {
        assert_eq!(text.matches(part).count(), times, "{part} in {text}");
    }
    let Some(Object::Service(balanced)) = kept[0].first() else { panic!("{text}") };
    let external = [
        ExternalAddress::Ip("192.0.2.1".parse().unwrap()),
        ExternalAddress::Ip("192.0.2.2".parse().unwrap()),
        ExternalAddress::Name("lb.example".into()),
    ];
    assert_eq!(*balanced.external, external);
}

/// ServiceImports and what other clusters export.
#[test]
fn imports_and_exports_in_json() {
    let exported = json!({
        "metadata": {"name": "web-c1", "namespace": "default", "resourceVersion": "3", "labels": {
            "multicluster.kubernetes.io/service-name": "web", "multicluster.kubernetes.io/source-cluster": "c1"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}], "ports": null,
    });
    let imports = [
        json!({"metadata": {"name": "web", "namespace": "default", "resourceVersion": "4"},
            "spec": {"type": "ClusterSetIP", "ips": ["10.42.0.1"], "ports": [{"port": 80, "protocol": "TCP", "name": "http"}]}}),
        json!({"metadata": {"name": "db", "namespace": "default", "resourceVersion": "5"}, "spec": {"type": "Headless"}}),
    ];
    let api = Api::start(move |request| {
        let (kind, objects, form) = match &*request.path {
            "/apis/multicluster.x-k8s.io/v1alpha1/serviceimports" => {
                ("ServiceImport", &imports[..], Form::Json)
            }
            "/apis/discovery.k8s.io/v1/endpointslices" => {
                ("EndpointSlice", std::slice::from_ref(&exported), Form::Protobuf)
            }
            _ => return quiet(Form::Protobuf, request),
        };
        let events = objects.iter().flat_map(|object| form.event("ADDED", kind, object)).collect();
        Reply::watch(form).octets(events).octets(listed(form, kind, 10)).stall()
    });
    let wants = WatchConfig { endpoints: true, imports: true, ..WatchConfig::default() };
    let (seen, _following) = start(endpoint(&api), wants);
    seen.until_following(&[Kind::ServiceImport, Kind::Slice]);
    let store = seen.store();
    let Some(Object::Slice(slice)) = store.get(Kind::Slice, "default", "web-c1") else { panic!("no slice") };
    let import = slice.import.as_ref().map(|import| (&*import.service, &*import.cluster));
    assert_eq!((&*slice.service, import, slice.endpoints.len()), ("", Some(("web", "c1")), 1));
    let target = |name| match store.get(Kind::ServiceImport, "default", name) {
        Some(Object::ServiceImport(import)) => (import.target.clone(), import.ports.len()),
        found => panic!("{name}: {found:?}"),
    };
    assert_eq!(target("web"), (Target::ClusterIps(["10.42.0.1".parse().unwrap()].into()), 1));
    assert_eq!(target("db"), (Target::Headless, 0));
}
