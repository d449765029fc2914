use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::testing::*;

use kubernetes_api::objects::{
    Endpoint, ExternalAddress, Kind, ObjectKey, Pod, Port, Protocol, Service, ServiceImport, Slice, Target,
};
use kubernetes_api::settings::ClientFiles;

fn wants() -> WatchConfig {
    WatchConfig {
        endpoints: true,
        pod_names: true,
        zones: true,
        imports: true,
        pods: Some(PodWatch { node: None, labels: vec!["app".into()] }),
        ..WatchConfig::default()
    }
}

fn access() -> Access {
    Access::InCluster("/account".into())
}

const NOW: SinceEpoch = SinceEpoch(Duration::from_millis(1_795_441_345_678));

fn objects() -> Vec<Object> {
    let mut all = vec![
        namespace("a"),
        namespace("b"),
        service("a/web", "10.0.0.1 fd00::1", "http:80/tcp dns:53/udp"),
        service("a/hl", "None", "http:80/tcp"),
        service("b/ext", "to example.net", ""),
        slice("a/hl-1", "hl", "10.1.0.1=h 10.1.0.2", "http:80/tcp"),
        slice("a/hl-2", "hl", "fd00:1::1", "sctp:9/sctp"),
        slice("b/of-none", "gone", "10.1.0.9", ""),
    ];
    if let Object::Service(web) = &mut all[2] {
        web.external =
            [ExternalAddress::Ip("192.0.2.1".parse().unwrap()), ExternalAddress::Name("lb".into())].into();
    }
    if let Object::Slice(slice) = &mut all[5] {
        slice.endpoints[0].zone = Some("zone-a".into());
        slice.endpoints[1].pod = Some("pod-2".into());
        slice.import =
            Some(Box::new(kubernetes_api::objects::Imported { service: "far".into(), cluster: "c1".into() }));
    }
    all
}

fn questions() -> Vec<&'static str> {
    vec![
        "a.svc.cluster.local A",
        "web.a.svc.cluster.local A",
        "web.a.svc.cluster.local AAAA",
        "_dns._udp.web.a.svc.cluster.local SRV",
        "hl.a.svc.cluster.local A",
        "hl.a.svc.cluster.local SRV",
        "h.hl.a.svc.cluster.local A",
        "pod-2.hl.a.svc.cluster.local A",
        "ext.b.svc.cluster.local A",
        "none.b.svc.cluster.local A",
        "1.0.0.10.in-addr.arpa PTR",
        "2.0.1.10.in-addr.arpa PTR",
        "9.0.1.10.in-addr.arpa PTR",
    ]
}

fn empty() -> Cluster {
    Cluster::new(&wants(), rules("cluster.local in-addr.arpa"))
}

fn known() -> Cluster {
    Cluster::of(&wants(), rules("cluster.local in-addr.arpa"), objects())
}

fn octets() -> Vec<u8> {
    write(&known().index, &access(), &wants(), NOW).expect("it is small")
}

fn restored(octets: &[u8]) -> Cluster {
    let mut cluster = empty();
    let snapshot = Snapshot::read(octets, &access(), &wants()).expect("it was written");
    assert_eq!(snapshot.written, NOW);
    cluster.writer.restore(snapshot.objects());
    cluster
}

#[test]
fn restores_an_index() {
    let (before, mut after) = (known(), restored(&octets()));
    assert!(after.index.unsynced().is_empty());
    for question in questions() {
        assert_eq!(after.ask(question), before.ask(question), "{question}");
    }
    let mut again = Snapshot::read(&octets(), &access(), &wants()).unwrap().objects().collect::<Vec<_>>();
    again.retain(|object| matches!(object, Object::Service(service) if &*service.key.name == "web"));
    assert_eq!(again, [objects()[2].clone()]);

    let left = [namespace("a"), service("a/web", "10.0.0.7", "")];
    after.list(left.clone());
    let plain = Cluster::of(&wants(), rules("cluster.local in-addr.arpa"), left);
    for question in questions() {
        assert_eq!(after.ask(question), plain.ask(question), "{question}");
    }
    assert_eq!(Kind::ALL.map(|kind| after.index.count(kind)), Kind::ALL.map(|kind| plain.index.count(kind)));
}

#[test]
fn refuses_changed_bytes() {
    let octets = octets();
    let read = |octets: &[u8]| Snapshot::read(octets, &access(), &wants()).map(|_| ());
    assert_eq!(read(&octets), Ok(()));
    for at in 0..octets.len() {
        let mut other = octets.clone();
        other[at] ^= 0x10;
        let expected = if at < MAGIC.len() { SnapshotError::Foreign } else { SnapshotError::Damaged };
        assert_eq!(read(&other), Err(expected), "{at}");
        assert!(read(&octets[..at]).is_err(), "{at}");
    }
    let another = Access::Endpoint { url: "http://127.0.0.1".into(), tls: None };
    assert_eq!(Snapshot::read(&octets, &another, &wants()).err(), Some(SnapshotError::Another));
    let fewer = WatchConfig { zones: false, ..wants() };
    assert_eq!(Snapshot::read(&octets, &access(), &fewer).err(), Some(SnapshotError::Another));
}

/// Adds a valid checksum.
fn signed(content: &[u8]) -> Vec<u8> {
    [MAGIC, &Sha256::digest(content), content].concat()
}

#[test]
fn limits_parts_of_objects() {
    let octets = octets();
    let mut head = Decoder::new(&octets[CONTENT..]);
    head.text().unwrap();
    head.number().unwrap();
    let head = &octets[CONTENT..octets.len() - head.rest().len()];
    let address: IpAddr = "10.0.0.1".parse().unwrap();
    let key = || Arc::new(ObjectKey { namespace: "a".into(), name: "n".into() });
    let port = Port { name: "".into(), protocol: Protocol::Tcp, port: Some(80) };
    // Labels of 2 bytes become records of 32 bytes: their number must have a limit.
    let pod = |addresses: usize, labels: usize| {
        Object::Pod(Pod {
            key: key(),
            addresses: vec![address; addresses].into(),
            host_network: false,
            running: true,
            terminating: false,
            labels: vec![Default::default(); labels].into(),
        })
    };
    let service = |addresses: usize, ports: usize, external: usize| {
        Object::Service(Service {
            key: key(),
            target: Target::ClusterIps(vec![address; addresses].into()),
            ports: vec![port.clone(); ports].into(),
            external: vec![ExternalAddress::Ip(address); external].into(),
        })
    };
    let import = |addresses: usize, ports: usize| {
        Object::ServiceImport(ServiceImport {
            key: key(),
            target: Target::ClusterIps(vec![address; addresses].into()),
            ports: vec![port.clone(); ports].into(),
        })
    };
    let slice = |endpoints: usize, ports: usize| {
        let endpoint = Endpoint { address, hostname: None, pod: None, zone: None };
        Object::Slice(Slice {
            key: key(),
            service: "s".into(),
            import: None,
            endpoints: vec![endpoint; endpoints].into(),
            ports: vec![port.clone(); ports].into(),
            changed: None,
        })
    };
    let most =
        [pod(100, 32_768), service(100, 32_768, 65_536), import(32_768, 32_768), slice(100_000, 32_768)];
    let more = [
        [pod(101, 1), pod(1, 32_769)],
        [service(101, 1, 1), service(1, 32_769, 1)],
        [service(1, 1, 65_537), import(32_769, 1)],
        [slice(100_001, 1), slice(1, 32_769)],
    ];
    let rows = most.map(|object| (object, Ok(()))).into_iter();
    let too_many = more.into_iter().flatten().map(|object| (object, Err(SnapshotError::Malformed)));
    for (object, expected) in rows.chain(too_many) {
        let mut to = Encoder(head.to_vec());
        match &object {
            Object::Service(service) => to.service(service),
            Object::ServiceImport(import) => to.import(&import.key, &import.target, &import.ports),
            Object::Slice(slice) => to.slice(slice),
            Object::Pod(pod) => to.pod(pod),
            Object::Namespace(_) => unreachable!("it has no parts"),
        }
        let read = Snapshot::read(&signed(&to.0), &access(), &wants()).map(|_| ());
        assert_eq!(read, expected, "{:?} of {} octets", object.kind(), to.0.len());
    }
}

#[test]
fn refuses_truncated_snapshots() {
    let octets = octets();
    let content = &octets[CONTENT..];
    let mut whole = 0;
    for end in 0..content.len() {
        // With a valid checksum.
        if let Ok(snapshot) = Snapshot::read(&signed(&content[..end]), &access(), &wants()) {
            assert_eq!(snapshot.objects().count(), whole);
            whole += 1;
        }
    }
    assert_eq!(whole, Snapshot::read(&octets, &access(), &wants()).unwrap().objects().count());
}

proptest! {
    // Each case makes several clusters.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_do_not_panic(
        head in 0usize..400,
        tail in proptest::collection::vec(any::<u8>(), 0..200),
        plain in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let octets = octets();
        let content = &octets[CONTENT..];
        let cut = &content[..head.min(content.len())];
        for content in [[cut, &tail].concat(), plain] {
            if let Ok(snapshot) = Snapshot::read(&signed(&content), &access(), &wants()) {
                empty().writer.restore(snapshot.objects());
            }
        }
    }
}

/// It is stored in files: another text refuses the snapshots of every earlier version.
#[test]
fn identity_is_a_fixed_text() {
    let tls = ClientFiles { certificate: "/c".into(), key: "/k".into(), authority: "/a".into() };
    let pods = PodWatch { node: Some("n1".into()), labels: vec!["app".into()] };
    let labels = Some(Selector::parse("a=b").unwrap());
    let some =
        WatchConfig { pods: Some(pods), namespaces: vec!["ns".into()], labels, ..WatchConfig::default() };
    for (access, wants, expected) in [
        (
            Access::InCluster("/var/run".into()),
            WatchConfig::default(),
            "in-cluster \"/var/run\"; endpoints false; pod_names false; zones false; pods None; imports false; \
             namespaces []; labels None; namespace_labels None",
        ),
        (
            Access::Endpoint { url: "https://a".into(), tls: Some(tls) },
            some,
            "endpoint \"https://a\" tls Some([\"/c\", \"/k\", \"/a\"]); endpoints false; pod_names false; zones false; \
             pods Some((Some(\"n1\"), [\"app\"])); imports false; namespaces [\"ns\"]; labels Some(\"a=b\"); \
             namespace_labels None",
        ),
        (
            Access::Kubeconfig { file: "/k".into(), context: Some("dev".into()) },
            WatchConfig::default(),
            "kubeconfig \"/k\" Some(\"dev\"); endpoints false; pod_names false; zones false; pods None; imports false; \
             namespaces []; labels None; namespace_labels None",
        ),
    ] {
        assert_eq!(identity(&access, &wants), expected);
    }
}
