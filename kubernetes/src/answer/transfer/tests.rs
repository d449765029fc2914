use std::collections::HashMap;

use super::*;
use crate::External;
use crate::testing::*;
use kubernetes_api::{Kind, Object, Sink, WatchConfig};

fn objects() -> Vec<Object> {
    vec![
        namespace("t1"),
        namespace("t2"),
        service("t2/web", "10.96.0.200", "dns:53/udp dns-tcp:53/tcp"),
        service("t1/web", "10.96.0.100 fd00:96::64", "http:80/tcp :81/tcp"),
        service("t1/pending", "", "http:80/tcp"),
        service("t1/hl", "None", "c:1234/udp"),
        slice("t1/hl-a", "hl", "172.17.0.2=h1 172.17.0.1", "c:1234/udp :80/tcp"),
        slice("t1/hl-b", "hl", "172.17.0.1 172.17.0.2=h1", "c:1234/udp"),
        service("t1/none", "None", "c:1234/udp"),
        service("t1/ext", "to example.net", ""),
        service("t1/odd", "to 192.0.2.1", ""),
        service("t3/web", "10.96.0.1", "http:80/tcp"),
        slice("t1/lost", "lost", "172.17.0.9", ""),
    ]
}

fn cluster() -> Cluster {
    let mut rules = rules("cluster.local in-addr.arpa clusterset.local");
    rules.own = vec!["192.0.2.53".parse().unwrap(), "2001:db8::53".parse().unwrap()];
    rules.multicluster = vec![Name::from_text("clusterset.local").unwrap()];
    let wants = WatchConfig { imports: true, ..everything() };
    let imports = [
        import("t1/far", "None", "c:1234/udp"),
        imported("t1/far-c1", "far", "c1", "10.1.0.1=h", "c:1234/udp"),
        import("t1/set", "10.42.0.1", "http:80/tcp"),
    ];
    Cluster::of(&wants, rules, objects().into_iter().chain(imports))
}

const SOA: &str = "SOA ns.dns.cluster.local. hostmaster.cluster.local. 1700000000 7200 1800 86400 5";

#[test]
fn transfer_has_each_record_once() {
    let expected = [
        SOA,
        "NS ns.dns.cluster.local.",
        "ns.dns.cluster.local. A 192.0.2.53",
        "ns.dns.cluster.local. AAAA 2001:db8::53",
        "ext.t1.svc.cluster.local. CNAME example.net.",
        "hl.t1.svc.cluster.local. A 172.17.0.1",
        "hl.t1.svc.cluster.local. A 172.17.0.2",
        "172-17-0-1.hl.t1.svc.cluster.local. A 172.17.0.1",
        "_c._udp.hl.t1.svc.cluster.local. SRV 0 50 1234 172-17-0-1.hl.t1.svc.cluster.local.",
        "h1.hl.t1.svc.cluster.local. A 172.17.0.2",
        "_c._udp.hl.t1.svc.cluster.local. SRV 0 50 1234 h1.hl.t1.svc.cluster.local.",
        "web.t1.svc.cluster.local. A 10.96.0.100",
        "web.t1.svc.cluster.local. AAAA fd00:96::64",
        "web.t1.svc.cluster.local. SRV 0 100 80 web.t1.svc.cluster.local.",
        "_http._tcp.web.t1.svc.cluster.local. SRV 0 100 80 web.t1.svc.cluster.local.",
        "web.t1.svc.cluster.local. SRV 0 100 81 web.t1.svc.cluster.local.",
        "web.t2.svc.cluster.local. A 10.96.0.200",
        "web.t2.svc.cluster.local. SRV 0 100 53 web.t2.svc.cluster.local.",
        "_dns._udp.web.t2.svc.cluster.local. SRV 0 100 53 web.t2.svc.cluster.local.",
        "_dns-tcp._tcp.web.t2.svc.cluster.local. SRV 0 100 53 web.t2.svc.cluster.local.",
        SOA,
    ];
    for most in [1, 2, 7, 1_000] {
        assert_eq!(cluster().transfer("cluster.local", None, most).unwrap(), expected, "{most}");
    }
    let set = cluster().transfer("clusterset.local", None, 3).unwrap();
    for record in [
        "h.c1.far.t1.svc.clusterset.local. A 10.1.0.1",
        "_c._udp.far.t1.svc.clusterset.local. SRV 0 100 1234 h.c1.far.t1.svc.clusterset.local.",
        "set.t1.svc.clusterset.local. A 10.42.0.1",
    ] {
        assert!(set.iter().any(|own| own == record), "{record} in {set:#?}");
    }
}

#[test]
fn server_services_have_addresses_once() {
    let objects = [
        namespace("kube-system"),
        namespace("t1"),
        service("kube-system/kube-dns", "10.96.0.10 fd00:96::a", "dns:53/udp"),
        slice("kube-system/kube-dns-a", "kube-dns", "192.0.2.53", "dns:53/udp"),
        service("kube-system/peers", "None", "dns:53/udp"),
        slice("kube-system/peers-a", "peers", "192.0.2.53=a 192.0.2.54=b", "dns:53/udp"),
    ];
    for namespaces in [&[][..], &["t1"], &["kube-system"]] {
        let mut rules = rules("cluster.local");
        rules.own = vec!["192.0.2.53".parse().unwrap()];
        rules.namespaces = namespaces.iter().map(|name| (*name).into()).collect();
        let sent =
            Cluster::of(&everything(), rules, objects.clone()).transfer("cluster.local", None, 9).unwrap();
        for record in [
            "NS kube-dns.kube-system.svc.cluster.local.",
            "NS a.peers.kube-system.svc.cluster.local.",
            "kube-dns.kube-system.svc.cluster.local. A 10.96.0.10",
            "kube-dns.kube-system.svc.cluster.local. AAAA fd00:96::a",
            "a.peers.kube-system.svc.cluster.local. A 192.0.2.53",
            "b.peers.kube-system.svc.cluster.local. A 192.0.2.54",
        ] {
            let count = sent.iter().filter(|own| *own == record).count();
            assert_eq!(count, 1, "{namespaces:?}: {record} in {sent:#?}");
        }
    }
}

#[test]
fn change_within_second_gets_next_serial() {
    let mut cluster = cluster();
    for at in ["t1/web", "t2/web"] {
        let serial = cluster.index.serial();
        let before = cluster.transfer("cluster.local", None, 9).unwrap();
        cluster.writer.delete(Kind::Service, key(at));
        // Transfers in this second have the same content.
        assert_eq!(cluster.index.serial(), serial, "{at}");
        assert_eq!(cluster.transfer("cluster.local", Some(serial), 9).unwrap().len(), 1, "{at}");
        assert_eq!(cluster.transfer("cluster.local", None, 9).unwrap(), before, "{at}");
        LATER.set(LATER.get() + 1);
        assert_eq!(cluster.index.serial(), serial + 1, "{at}");
        let after = cluster.transfer("cluster.local", Some(serial), 9).unwrap();
        assert!(after.len() > 1 && after.len() < before.len(), "{at}: {after:#?}");
    }
}

#[test]
fn serial_never_exceeds_clock() {
    let mut cluster = cluster();
    let mut listings: HashMap<String, Vec<String>> = HashMap::new();
    for number in 0..600_u64 {
        // A hundred of each in a second.
        LATER.set(number / 100);
        cluster.writer.apply(service("t1/web", &format!("10.0.{}.{}", number >> 8, number & 0xff), ""));
        let sent = cluster.transfer("cluster.local", None, 9).unwrap();
        let serial = sent[0].split(' ').nth(3).unwrap().to_owned();
        assert_eq!(serial, cluster.index.serial().to_string());
        assert!(serial.parse::<u64>().unwrap() <= SERIAL + LATER.get(), "{serial} in {number}");
        assert_eq!(*listings.entry(serial).or_insert_with(|| sent.clone()), sent, "{number}");
    }
    assert_eq!(listings.len(), 6, "one for each second");
    LATER.set(6);
    let last = cluster.transfer("cluster.local", None, 9).unwrap();
    assert!(last.contains(&"web.t1.svc.cluster.local. A 10.0.2.87".to_owned()), "{last:#?}");
}

#[test]
fn clock_set_back_repeats_no_serial() {
    let mut cluster = cluster();
    LATER.set(3_600);
    cluster.writer.apply(service("t1/web", "10.0.0.1", ""));
    let first = cluster.index.serial();
    cluster.transfer("cluster.local", None, 9).unwrap();
    for (serial, second) in (first..).zip(0..3) {
        LATER.set(second);
        cluster.writer.apply(service("t1/web", &format!("10.0.1.{second}"), ""));
        assert_eq!(cluster.index.serial(), serial + 1, "{second}");
        assert!(cluster.transfer("cluster.local", Some(serial), 9).unwrap().len() > 1, "{second}");
    }
}

#[test]
fn listing_is_dropped_after_its_second() {
    let mut cluster = cluster();
    cluster.transfer("cluster.local", None, 9).unwrap();
    let was = |cluster: &Cluster| Arc::downgrade(&cluster.index.services.get(b"\x03web\x02t1").unwrap());
    let web = was(&cluster);
    cluster.writer.apply(service("t1/web", "10.0.0.1", ""));
    assert!(web.upgrade().is_some(), "it is shared within this second");
    LATER.set(1);
    cluster.writer.apply(service("t2/web", "10.0.0.2", ""));
    assert!(web.upgrade().is_none());
}

#[test]
fn keeps_two_listings() {
    let mut cluster = cluster();
    let zone = Name::from_text("cluster.local").unwrap();
    let begin = |cluster: &Cluster, has| {
        let mut begun = cluster.responder.transfer(&cluster.index, &zone, has, false).unwrap();
        let mut serial = None;
        begun.next(&mut |_, _, _, data| {
            serial = data.last_chunk::<20>().and_then(|numbers| numbers.first_chunk()).copied();
            false
        });
        (begun, u32::from_be_bytes(serial.unwrap()))
    };
    let (mut open, mut replaced) = (Vec::new(), Vec::new());
    for number in 0..16 {
        LATER.set(number);
        cluster.writer.apply(service("t1/web", &format!("10.0.0.{number}"), ""));
        replaced.push(Arc::downgrade(&cluster.index.services.get(b"\x03web\x02t1").unwrap()));
        open.push(begin(&cluster, None));
    }
    LATER.set(16);
    cluster.writer.apply(service("t1/web", "10.0.1.0", ""));
    let kept = |replaced: &[std::sync::Weak<Service>]| {
        replaced.iter().filter(|service| service.strong_count() > 0).count()
    };
    assert_eq!(kept(&replaced), 2);
    let serials: Vec<_> = open.iter().map(|(_, serial)| *serial).collect();
    let first = SERIAL as u32;
    assert_eq!(serials[0], first);
    assert_eq!(serials[1..], [first + 1; 15], "later transfers share the newer listing");
    // Clients with this serial get no records.
    let (_, serial) = begin(&cluster, Some(first + 1));
    assert_eq!(serial, first + 1);
    let sent = cluster.transfer("cluster.local", Some(first + 1), 9).unwrap();
    assert_eq!(sent.len(), 1, "{sent:#?}");
    // When the older one ends, there is space for a current listing; the newer one ends, too.
    open.remove(0);
    let now = begin(&cluster, None);
    assert_eq!(now.1, first + 16);
    open.clear();
    assert_eq!(kept(&replaced), 0);
}

#[test]
fn same_named_endpoints_appear_once() {
    let imports = [
        namespace("t1"),
        import("t1/far", "None", ""),
        imported("t1/far-a", "far", "c1", "10.1.0.1=h 10.1.0.4=h 10.1.0.7=h", "a:1/tcp"),
        imported("t1/far-b", "far", "c2", "10.1.0.2=h 10.1.0.5=h", "a:1/tcp"),
        imported("t1/far-c", "far", "c1", "10.1.0.3=h 10.1.0.7=h", "b:2/tcp"),
    ];
    let mut rules = rules("cluster.local clusterset.local");
    rules.multicluster = vec![Name::from_text("clusterset.local").unwrap()];
    let wants = WatchConfig { imports: true, ..everything() };
    let mut sent = Cluster::of(&wants, rules, imports).transfer("clusterset.local", None, 3).unwrap();
    let count = sent.len();
    sent.retain(|record| !record.starts_with("SOA"));
    sent.sort();
    sent.dedup();
    assert_eq!(sent.len() + 2, count, "{sent:#?}");
    let of =
        |cluster: &str| sent.iter().filter(|record| record.starts_with(&format!("h.{cluster}."))).count();
    let ports = sent.iter().filter(|record| record.contains(" SRV ")).count();
    assert_eq!((of("c1"), of("c2"), ports), (4, 2, 3), "{sent:#?}");
}

#[test]
fn hostile_slices_have_bounded_cost() {
    let mut rules = rules("cluster.local");
    rules.own = vec!["192.0.2.53".parse().unwrap()];
    let ports: Vec<_> = (1..=20_000).map(|port| format!("p{port}:{port}/tcp")).collect();
    let named: Vec<_> =
        (0..1_000).map(|number| format!("10.1.{}.{}=h", number >> 8, number & 0xff)).collect();
    let objects = [
        namespace("t1"),
        service("t1/hl", "None", ""),
        slice("t1/hl-a", "hl", &named.join(" "), &ports.join(" ")),
    ];
    let sent = Cluster::of(&everything(), rules, objects).transfer("cluster.local", None, 1_000).unwrap();
    // Two SOAs, NS and its address; each address at the names of service and endpoint; each port.
    assert_eq!(sent.len(), 4 + 2 * 1_000 + 20_000);
}

#[test]
fn current_serial_gets_soa() {
    let mut cluster = cluster();
    let serial = cluster.index.serial();
    assert_eq!(cluster.transfer("cluster.local", Some(serial), 9).unwrap(), [SOA]);
    assert!(cluster.transfer("cluster.local", Some(serial - 1), 9).unwrap().len() > 20);
    for none in ["in-addr.arpa", "svc.cluster.local", "local", "example.org"] {
        assert_eq!(cluster.transfer(none, None, 9), Err(AnswerOutcome::NotInZones), "{none}");
    }
    // Later changes are not included.
    let mut begun = cluster
        .responder
        .transfer(&cluster.index, &Name::from_text("cluster.local").unwrap(), None, false)
        .unwrap();
    begun.next(&mut |_, rtype, _, _| rtype == RType::SOA);
    for at in ["t1/web", "t2/web", "t1/hl", "t1/ext"] {
        cluster.writer.delete(Kind::Service, key(at));
    }
    let mut left = 0;
    let progress = begun.next(&mut |_, _, _, _| {
        left += 1;
        true
    });
    assert_eq!(progress, Progress::All);
    assert_eq!(left, 20);
    LATER.set(1);
    assert_eq!(cluster.transfer("cluster.local", None, 9).unwrap().len(), 5);
    let early = Cluster::new(&everything(), rules("cluster.local"));
    assert_eq!(early.transfer("cluster.local", None, 9), Err(AnswerOutcome::Unsynced(Kind::Service)));
}

#[test]
fn transfer_pauses_without_records() {
    const ENDPOINTS: usize = 20;
    const PORTS: usize = 3_000;
    let endpoints: Vec<_> = (0..ENDPOINTS).map(|number| format!("10.1.0.{number}")).collect();
    let external = External::new(crate::ExternalRules {
        zones: [Name::from_text("example.org").unwrap()].into(),
        apex: "dns".into(),
        ttl: 5,
        headless: true,
    })
    .unwrap();
    // Without numbers an endpoint has its address only; with a number and without names, one more
    // record.
    for (port, least, most) in [("c:-/tcp", 1, 1), (":80/tcp", ENDPOINTS * PORTS / 1_000, usize::MAX)] {
        let ports = [port; PORTS];
        let objects = [
            namespace("t1"),
            service("t1/hl", "None", ""),
            slice("t1/hl-a", "hl", &endpoints.join(" "), &ports.join(" ")),
        ];
        let cluster = Cluster::of(&everything(), rules("cluster.local"), objects);
        let zone = |text| Name::from_text(text).unwrap();
        let inside = cluster.responder.transfer(&cluster.index, &zone("cluster.local"), None, false);
        let outside =
            external.transfer(&cluster.responder, &cluster.index, &zone("example.org"), None, false);
        for mut transfer in [inside.unwrap(), outside.unwrap()] {
            let mut turns = 0;
            let mut progress = Progress::Paused;
            while progress != Progress::All {
                let before = transfer.at;
                let mut records = 0;
                progress = transfer.next(&mut |_, _, _, _| {
                    records += 1;
                    true
                });
                assert!(progress == Progress::All || transfer.at != before, "no progress");
                assert!(records <= 1_000, "{records} at once");
                turns += 1;
            }
            assert!((least..=most).contains(&turns), "{port}: {turns} turns");
        }
    }
}
