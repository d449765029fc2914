//! Cost of a query with hostile slices: scanned endpoints and ports are counted.

use crate::answer::External;
use crate::answer::port_match::MAX_SCANNED;
use crate::cost_counter::count_of;
use crate::testing::*;
use crate::{ExternalRules, Rules};
use kubernetes_api::Object;
use wire::Name;

const ENDPOINTS: usize = 400;
const PORTS: usize = 2_000;
/// Endpoints and ports are scanned a few times, and not each port for each endpoint.
const MOST: usize = 16 * (ENDPOINTS + PORTS);

fn cluster(ports: impl Fn(usize) -> String, endpoint: impl Fn(usize) -> String) -> Cluster {
    let ports: Vec<String> = (0..PORTS).map(ports).collect();
    let endpoints: Vec<String> = (0..ENDPOINTS).map(endpoint).collect();
    of([
        namespace("t1"),
        service("t1/big", "None", ""),
        slice("t1/big-1", "big", &endpoints.join(" "), &ports.join(" ")),
    ])
}

fn of(objects: impl IntoIterator<Item = Object>) -> Cluster {
    Cluster::of(&everything(), Rules { ttl: 5, ..rules("cluster.local in-addr.arpa") }, objects)
}

fn external_zone() -> External {
    let zones = [Name::from_text("example.org").unwrap()].into();
    External::new(ExternalRules { zones, apex: "dns".into(), ttl: 5, headless: true }).unwrap()
}

fn address(number: usize) -> String {
    format!("10.1.{}.{}", number / 250, number % 250)
}

#[test]
fn ports_are_scanned_once_per_query() {
    let long = "h".repeat(63);
    let rows: &[(&str, Cluster)] = &[
        ("without numbers", cluster(|port| format!("p{port}:-/tcp"), address)),
        ("one number", cluster(|port| format!("p{port}:80/tcp"), address)),
        ("their own", cluster(|port| format!("p{port}:{}/tcp", port + 1), address)),
        ("one target", cluster(|port| format!("p{port}:80/tcp"), |number| format!("{}=h", address(number)))),
        (
            "long targets",
            cluster(|port| format!("p{port}:{}/tcp", port + 1), |n| format!("{}={long}", address(n))),
        ),
        ("one address", cluster(|port| format!("p{port}:80/tcp"), |_| address(1))),
    ];
    let last = format!("p{}", PORTS - 1);
    for (what, cluster) in rows {
        for name in ["big", &format!("_{last}._tcp.big"), "_none._tcp.big", "_p0._udp.big"] {
            for rtype in ["SRV", "A", "AAAA", "TXT"] {
                for room in [512, 65_535] {
                    let question = format!("{name}.t1.svc.cluster.local {rtype}");
                    let looks = count_of(|| _ = cluster.ask_within(&question, room));
                    assert!(looks <= MOST, "{what}: {question} in {room}: {looks}");
                }
                let question = format!("{name}.t1.example.org {rtype}");
                let looks = count_of(|| _ = cluster.ask_external(&external_zone(), &question));
                assert!(looks <= MOST, "{what}: {question}: {looks}");
            }
        }
    }
}

#[test]
fn scan_limit_without_records() {
    const MANY: usize = 5 * MAX_SCANNED;
    let address = |number: usize| format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
    let addresses: Vec<String> = (0..MANY).map(address).collect();
    let ports: Vec<String> = (1..=MANY).map(|port| format!("p{port}:{port}/tcp")).collect();
    let slices = |name: &'static str, port: &'static str| {
        let of_slice = addresses.chunks(1_000).zip(0..);
        of_slice.map(move |(some, number)| slice(&format!("t1/{name}-{number}"), name, &some.join(" "), port))
    };
    let cluster = of([namespace("t1")]
        .into_iter()
        .chain([external("t1/lb", "192.0.2.1", &ports.join(" "), &addresses.join(" "))])
        .chain([service("t1/none", "None", ""), service("t1/last", "None", "")])
        .chain(slices("none", "h:-/tcp"))
        .chain(slices("last", "h:-/tcp"))
        .chain([slice("t1/last-z", "last", "10.255.255.255=z", "h:80/tcp g:81/tcp")])
        .chain((0..MANY).map(|number| slice(&format!("t1/slices-{number}"), "slices", "10.9.9.9", "")))
        .chain([service("t1/slices", "None", "")]));
    for name in ["lb", "none", "last", "slices", "_none._tcp.lb", "_p1._tcp.lb", "_g._tcp.last"] {
        for rtype in ["A", "AAAA", "SRV", "MX"] {
            for zone in ["svc.cluster.local", "example.org"] {
                let question = format!("{name}.t1.{zone} {rtype}");
                let looks = count_of(|| match zone {
                    "example.org" => _ = cluster.ask_external(&external_zone(), &question),
                    _ => _ = cluster.ask(&question),
                });
                // Ports twice, and endpoints with them as often; without a match, once.
                let most = if name == "none" && rtype == "SRV" { 1_000 } else { 4 * MAX_SCANNED };
                assert!(looks <= most, "{question}: {looks}");
            }
        }
    }
    let of_label = cluster.ask("z.last.t1.svc.cluster.local SRV");
    assert!(of_label.starts_with("SRV 0 50 80 z.last.t1.svc.cluster.local."), "{of_label}");
}

#[test]
fn address_lookup_is_binary_search() {
    const SERVICES: usize = 64;
    const EACH: usize = 2_000;
    let mut addresses: Vec<String> = (0..EACH).map(address).collect();
    addresses.push("192.0.2.1".into());
    let addresses = addresses.join(" ");
    let services =
        (0..SERVICES).map(|number| external(&format!("t1/x{number}"), "10.96.0.1", "", &addresses));
    let cluster = of([namespace("t1")].into_iter().chain(services));
    for zone in ["in-addr.arpa", "example.org"] {
        let question = "1.2.0.192.in-addr.arpa PTR";
        let looks = count_of(|| match zone {
            "example.org" => _ = cluster.ask_external(&external_zone(), question),
            _ => _ = cluster.ask(question),
        });
        assert!(looks <= SERVICES, "{zone}: {looks}");
    }
}

#[test]
fn server_names_have_scan_limit() {
    let own = vec!["10.9.9.9".parse().unwrap()];
    let rules = Rules { own, ttl: 5, ..rules("cluster.local in-addr.arpa") };
    // A service without an object, which has no records.
    let endpoints = vec!["10.9.9.9"; 1_000].join(" ");
    let slices = (0..40).map(|number| slice(&format!("t1/x-{number}"), "x", &endpoints, ""));
    let cluster = Cluster::of(&everything(), rules, [namespace("t1")].into_iter().chain(slices));
    for question in ["cluster.local NS", "ns.dns.cluster.local A"] {
        let looks = count_of(|| _ = cluster.ask(question));
        assert!((MAX_SCANNED..MAX_SCANNED + 100).contains(&looks), "{question}: {looks}");
    }
}

#[test]
fn ptr_names_stop_at_message_size() {
    const SERVICES: usize = 20;
    const EACH: usize = 1_000;
    let host = "h".repeat(40);
    let endpoints: Vec<String> = (0..EACH).map(|number| format!("10.9.9.9={host}-{number}")).collect();
    let endpoints = endpoints.join(" ");
    let services = (0..SERVICES).flat_map(|number| {
        let name = format!("b{number}");
        let own = service(&format!("t1/{name}"), "None", "");
        [own, slice(&format!("t1/{name}-1"), &name, &endpoints, "")]
    });
    let cluster = of([namespace("t1")].into_iter().chain(services));
    for (rtype, most) in [("PTR", 2_000), ("A", 500), ("TXT", 500)] {
        let looks = count_of(|| _ = cluster.ask(&format!("9.9.9.10.in-addr.arpa {rtype}")));
        assert!(looks <= most, "{rtype}: {looks} of {}", SERVICES * EACH);
    }
    assert!(cluster.ask_within("9.9.9.10.in-addr.arpa PTR", 65_535).1, "it is cut");
}

#[test]
fn endpoint_exists_in_large_slices() {
    let many: Vec<String> = (0..70_000)
        .map(|number| format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255))
        .collect();
    let one_slice = [service("t1/one", "None", ""), slice("t1/one-1", "one", &many.join(" "), "")];
    let slices = (0..66_000).map(|number| {
        slice(
            &format!("t1/many-{number}"),
            "many",
            &format!("11.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255),
            "",
        )
    });
    let objects =
        [namespace("t1"), service("t1/many", "None", "")].into_iter().chain(one_slice).chain(slices);
    let cluster = of(objects);
    for (name, address) in [("10-1-17-111.one", "10.1.17.111"), ("11-1-1-207.many", "11.1.1.207")] {
        assert_eq!(cluster.ask(&format!("{name}.t1.svc.cluster.local A")), format!("A {address}"));
    }
}
