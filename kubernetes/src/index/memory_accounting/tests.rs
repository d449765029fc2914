use allocation_counter::measure;

use super::ALLOCATION;
use crate::testing::*;
use kubernetes_api::objects::Object;
use kubernetes_api::settings::WatchConfig;

/// Objects of a kind: enough to make constant costs negligible, at the minimum load of the tables.
const MANY: usize = 1_800;

/// Addresses of one object only, each with a suffix.
fn addresses(of: usize, count: usize, behind: &str) -> String {
    let address = |n: usize| format!("10.{}.{}.{n}{behind}", of / 250, of % 250);
    (1..=count).map(address).collect::<Vec<_>>().join(" ")
}

type Make = fn(usize) -> Vec<Object>;

/// Constructors of the nth object of each kind, or of several related objects.
fn rows() -> Vec<(&'static str, Make)> {
    vec![
        ("namespace", |n| vec![namespace(&format!("n-{n}"))]),
        ("service", |n| vec![service(&format!("t1/web-{n}"), &addresses(n, 1, ""), "http:80/tcp")]),
        ("without address", |n| vec![service(&format!("t1/web-{n}"), "", "")]),
        ("of two families", |n| {
            let both = format!("{} fd00::{n:x}", addresses(n, 1, ""));
            vec![service(&format!("t1/web-{n}"), &both, "http:80/tcp")]
        }),
        ("of long names", |n| {
            let label = format!("{n:0>63}");
            vec![namespace(&label), service(&format!("{label}/{label}"), &addresses(n, 1, ""), "http:80/tcp")]
        }),
        ("of many ports", |n| {
            let ports: Vec<_> = (1..=20).map(|port| format!("port-{port}:{port}/tcp")).collect();
            vec![service(&format!("t1/web-{n}"), &addresses(n, 1, ""), &ports.join(" "))]
        }),
        ("external name", |n| vec![service(&format!("t1/web-{n}"), "far.example.org", "")]),
        ("from outside", |n| {
            let outside = format!("{} lb.example.org", addresses(n, 3, "").replace("10.", "198."));
            vec![external(&format!("t1/web-{n}"), &addresses(n, 1, ""), "http:80/tcp", &outside)]
        }),
        ("import", |n| vec![import(&format!("t1/web-{n}"), &addresses(n, 1, ""), "http:80/tcp")]),
        ("headless", |n| vec![service(&format!("t1/web-{n}"), "None", "http:80/tcp")]),
        ("slice of none", |n| {
            vec![slice(&format!("t1/web-{n}-abcde"), &format!("web-{n}"), "", "http:80/tcp")]
        }),
        ("slice of no service", |n| {
            vec![slice(&format!("t1/web-{n}-abcde"), "", &addresses(n, 1, ""), "http:80/tcp")]
        }),
        ("slice of one", |n| {
            vec![slice(
                &format!("t1/web-{n}-abcde"),
                &format!("web-{n}"),
                &addresses(n, 1, ""),
                "http:80/tcp",
            )]
        }),
        ("slice of long names", |n| {
            let of = format!("{n:0>63}");
            vec![namespace(&of), slice(&format!("{of}/{n:0>120}"), &of, &addresses(n, 1, ""), "http:80/tcp")]
        }),
        ("slice of ten", |n| {
            let endpoints = addresses(n, 10, "");
            vec![slice(&format!("t1/web-{n}-abcde"), &format!("web-{n}"), &endpoints, "http:80/tcp")]
        }),
        ("slice of two clusters' service", |n| {
            let at = |cluster: &str| format!("t1/web-{n}-{cluster}");
            let of = |cluster: &str, count| {
                imported(&at(cluster), &format!("web-{n}"), cluster, &addresses(n, count, ""), "http:80/tcp")
            };
            vec![of("c1", 1), of("c2", 2)]
        }),
        ("service with slice", |n| {
            let (of, endpoints) =
                (format!("web-{n}"), addresses(n, 10, &format!("=host-{n}#web-{n}-abcde-fghij")));
            let own = addresses(n, 1, "").replace("10.", "11.");
            vec![
                service(&format!("t1/{of}"), &own, "http:80/tcp"),
                slice(&format!("t1/{of}-abcde"), &of, &endpoints, "http:80/tcp"),
            ]
        }),
        ("headless with slices", |n| {
            let (of, endpoints) =
                (format!("web-{n}"), addresses(n, 10, &format!("=host-{n}#web-{n}-abcde-fghij")));
            vec![
                service(&format!("t1/{of}"), "None", "http:80/tcp"),
                slice(&format!("t1/{of}-abcde"), &of, &endpoints, "http:80/tcp"),
                slice(
                    &format!("t1/{of}-fghij"),
                    &of,
                    &addresses(n, 1, "").replace("10.", "12."),
                    "http:80/tcp",
                ),
            ]
        }),
        ("pod", |n| vec![pod(&format!("t1/web-{n}-abcde"), &addresses(n, 1, ""))]),
        ("pod of two families", |n| {
            vec![pod(&format!("t1/web-{n}-abcde"), &format!("{} fd00::{n:x}", addresses(n, 1, "")))]
        }),
        ("pod of many namespaces", |n| vec![pod(&format!("n-{n}/web-{n}-abcde"), "10.0.0.1")]),
    ]
}

#[test]
fn counts_measured_memory() {
    let wants = WatchConfig { pod_names: true, ..everything() };
    let mut wrong = Vec::new();
    for (what, objects) in rows() {
        let mut cluster = Cluster::new(&wants, rules("cluster.local"));
        let taken = measure(|| cluster.list((0..MANY).flat_map(objects)));
        let taken = taken.bytes_current as usize + ALLOCATION * taken.count_current as usize;
        let (taken, counted) = (taken / MANY, cluster.writer.bytes() / MANY);
        let row = format!("{what}: {taken} octets are counted as {counted}");
        if !(taken..=2 * taken).contains(&counted) {
            wrong.push(row);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
