//! Hits and denials allocate nothing, and lists allocate little for an object.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use allocation_counter::measure;
use kubernetes::{AnswerOutcome, Index, IndexWriter, Responder, Rules};
use kubernetes_api::objects::{Endpoint, Port, Protocol, Service, SinceEpoch, Slice, Target};
use kubernetes_api::{Kind, Object, ObjectKey, Sink, WatchConfig, WatchError};
use wire::{Flags, Name, RType, Rcode, Reply, Verdict, accept};

fn key(name: &str) -> Arc<ObjectKey> {
    ObjectKey { namespace: "t1".into(), name: name.into() }.into()
}

fn objects() -> Vec<Object> {
    let ports: Box<[Port]> = [Port { name: "http".into(), protocol: Protocol::Tcp, port: Some(80) }].into();
    let service = |name: &str, target| {
        Object::Service(Service { key: key(name), target, ports: ports.clone(), external: [].into() })
    };
    let endpoint = |n: u8| Endpoint { address: [10, 1, 0, n].into(), hostname: None, pod: None, zone: None };
    let slice = Slice {
        key: key("hl-1"),
        service: "hl".into(),
        import: None,
        endpoints: (0..100).map(endpoint).collect(),
        ports: ports.clone(),
        changed: None,
    };
    let addresses = ["10.96.0.100", "fd00:96::64"].map(|text| text.parse().unwrap());
    vec![
        Object::Namespace("t1".into()),
        service("web", Target::ClusterIps(addresses.into())),
        service("hl", Target::Headless),
        Object::Slice(slice),
    ]
}

fn packet(name: &str, rtype: RType, edns: bool) -> Vec<u8> {
    let mut packet = b"\x12\x34".to_vec();
    packet.extend_from_slice(&Flags::RD.to_be_bytes());
    packet.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, u8::from(edns)]);
    packet.extend_from_slice(Name::from_text(name).unwrap().as_wire());
    packet.extend_from_slice(&rtype.0.to_be_bytes());
    packet.extend_from_slice(&[0, 1]);
    if edns {
        packet.extend_from_slice(b"\0\0\x29\x10\0\0\0\x80\0\0\0");
    }
    packet
}

#[test]
fn hit_and_denial_allocate_nothing() {
    let wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
    let now = || SinceEpoch(Duration::from_secs(1_700_000_000));
    let index = Arc::new(Index::new(&wants, now));
    let mut writer = IndexWriter::new(index.clone(), &wants, 256 << 20, Box::new(()));
    Kind::ALL.into_iter().for_each(|kind| writer.begin(kind));
    objects().into_iter().for_each(|object| writer.apply(object));
    Kind::ALL.into_iter().for_each(|kind| writer.complete(kind));
    let responder = Responder::new(Rules::of(vec![Name::from_text("cluster.local").unwrap()]));
    let mut out = Vec::with_capacity(4_096);
    for (name, rtype, rcode, answers) in [
        ("web.t1.svc.cluster.local", RType::A, Rcode::NOERROR, 1),
        ("WEB.t1.svc.cluster.local", RType::AAAA, Rcode::NOERROR, 1),
        ("_http._tcp.web.t1.svc.cluster.local", RType::A, Rcode::NOERROR, 1),
        ("hl.t1.svc.cluster.local", RType::A, Rcode::NOERROR, 100),
        ("web.t1.svc.cluster.local", RType::TXT, Rcode::NOERROR, 0),
        ("hl.t1.svc.cluster.local", RType::AAAA, Rcode::NOERROR, 0),
        ("t1.svc.cluster.local", RType::A, Rcode::NOERROR, 0),
        ("none.t1.svc.cluster.local", RType::A, Rcode::NXDOMAIN, 0),
        ("web.none.svc.cluster.local", RType::AAAA, Rcode::NXDOMAIN, 0),
        // Names made by search paths.
        ("example.com.t1.svc.cluster.local", RType::A, Rcode::NXDOMAIN, 0),
        ("example.com.cluster.local", RType::A, Rcode::NXDOMAIN, 0),
    ] {
        for edns in [false, true] {
            let packet = packet(name, rtype, edns);
            let mut ask = || {
                let Verdict::Pass(query) = accept(&packet) else { panic!("{name} is refused") };
                let mut reply = Reply::start(&mut out, &query);
                if let AnswerOutcome::NoName(zone) = responder.answer(&index, &query, 4_096, &mut reply) {
                    responder.deny(&index, zone, &query, &mut reply);
                }
                let (rcode, answers) = (reply.rcode, reply.counts()[0]);
                reply.finish(&query, 4_096);
                (rcode, answers)
            };
            assert_eq!(ask(), (rcode, answers), "{name} {rtype}");
            let counted = measure(|| (0..1_000).for_each(|_| _ = ask()));
            assert_eq!(counted.count_total, 0, "{name} {rtype}, EDNS {edns}");
        }
    }
}

/// Applies a list of objects.
fn list(writer: &mut IndexWriter, objects: impl IntoIterator<Item = Object>) {
    Kind::ALL.into_iter().for_each(|kind| writer.begin(kind));
    objects.into_iter().for_each(|object| writer.apply(object));
    Kind::ALL.into_iter().for_each(|kind| writer.complete(kind));
}

/// `count` slices of ten endpoints, `of_a_service` for each service; the endpoints' addresses end
/// in `first` and the following bytes.
fn slices(count: u16, of_a_service: u16, first: u8) -> impl Iterator<Item = Object> {
    let slice = move |number: u16| {
        let endpoint = |last: u8| {
            let [high, low] = number.to_be_bytes();
            Endpoint { address: [10, high, low, last].into(), hostname: None, pod: None, zone: None }
        };
        Object::Slice(Slice {
            key: key(&format!("many-{number}")),
            service: format!("many-{}", number / of_a_service).into(),
            import: None,
            endpoints: (first..first + 10).map(endpoint).collect(),
            ports: [].into(),
            changed: None,
        })
    };
    (0..count).map(slice)
}

fn writer() -> IndexWriter {
    let wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
    let now = || SinceEpoch(Duration::from_secs(1_700_000_000));
    IndexWriter::new(Arc::new(Index::new(&wants, now)), &wants, 256 << 20, Box::new(()))
}

#[test]
fn list_rebuilds_service_once() {
    // Slices of the second list: first octet of their endpoints, or none.
    for (what, later) in [("as they were", Some(0)), ("all changed", Some(1)), ("all gone", None)] {
        let [few, many] = [100, 1_600].map(|count| {
            let (mut writer, later) = (writer(), later.map(|first| slices(count, count, first)));
            let first = measure(|| list(&mut writer, objects().into_iter().chain(slices(count, count, 0))));
            let later =
                measure(|| list(&mut writer, objects().into_iter().chain(later.into_iter().flatten())));
            [first, later].map(|counted| counted.bytes_total)
        });
        for (few, many) in few.into_iter().zip(many) {
            // 16 times as many objects; tables grow in steps.
            assert!(many < 2 * 16 * few, "{what}: {few} and {many} octets");
        }
    }
}

#[test]
fn broken_list_rebuilds_service_once() {
    let [few, many] = [100, 1_600].map(|count| {
        let mut writer = writer();
        list(&mut writer, objects().into_iter().chain(slices(count, count, 0)));
        let counted = measure(|| {
            writer.begin(Kind::Slice);
            slices(count, count, 1).for_each(|object| writer.apply(object));
            writer.failed(Kind::Slice, &WatchError::Silent(Duration::from_secs(150)));
        });
        counted.bytes_total
    });
    assert!(many < 2 * 16 * few, "{few} and {many} octets");
}

#[test]
fn relist_needs_little_memory() {
    for (what, first) in [("as they were", 0), ("all changed", 1)] {
        let (mut writer, count) = (writer(), 20_000);
        let known = measure(|| list(&mut writer, objects().into_iter().chain(slices(count, 10, 0))));
        let later = measure(|| list(&mut writer, objects().into_iter().chain(slices(count, 10, first))));
        let [known, later] = [known.bytes_max, later.bytes_max];
        assert!(later < known / 3, "{what}: {later} octets beside {known}");
    }
}

/// Allocations are most of the cost of a start beside decoding its lists.
#[test]
fn small_service_needs_few_allocations() {
    const COUNT: u16 = 4_096;
    let service = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let target = Target::ClusterIps([[11, 0, high, low].into()].into());
        let key = key(&format!("many-{number}"));
        Object::Service(Service { key, target, ports: [].into(), external: [].into() })
    };
    let objects: Vec<_> = (0..COUNT).map(service).chain(slices(COUNT, 1, 0)).collect();
    let mut writer = writer();
    let counted = measure(|| list(&mut writer, objects));
    let each = counted.count_total / u64::from(COUNT);
    // 37; eight of them are buckets of the endpoints' addresses, of which a larger cluster needs
    // fewer for each service.
    assert!(each <= 40, "{each} allocations of {} octets", counted.bytes_total / u64::from(COUNT));
}
