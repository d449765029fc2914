//! Compares how much each of CoreDNS's metrics changed in both servers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::Duration;

use serde_json::json;
use tests::kube::ScriptedCluster;
use tests::{Metrics, Server, eventually, fresh_ip, http_get, now};

use crate::cluster;
use crate::coredns::CoreDns;
use crate::rows::plugins;

/// One server's series by name and labels, with placeholders for its addresses.
pub(crate) type Series = BTreeMap<String, f64>;

/// A series with different changes.
#[derive(Debug, Clone)]
pub(crate) struct Moved {
    /// Name and labels.
    pub(crate) series: String,
    /// The change in CoreDNS.
    pub(crate) theirs: f64,
    /// The change in localdns.
    pub(crate) ours: f64,
}

/// Returns the current series of both servers, without the label `to`, as the choice of an upstream
/// may be random.
fn scrape(ips: [[Ipv4Addr; 2]; 2], port: u16) -> [Series; 2] {
    ips.map(|ips| {
        // With 200 zones the page is long, and the machine may be busy.
        let page = eventually("a page of metrics", Duration::from_secs(60), || {
            http_get(SocketAddr::from((ips[0], port)), "/metrics").ok().filter(|(status, _)| *status == 200)
        });
        let metrics = Metrics::parse(&page.1);
        let mut series = Series::new();
        for (name, labels, value) in metrics.samples() {
            if !COMPARED.contains(name) {
                continue;
            }
            let labels: Vec<String> = labels
                .iter()
                .filter(|(label, _)| *label != "to")
                .map(|(label, value)| format!("{label}={value:?}"))
                .collect();
            let mut text = format!("{name}{{{}}}", labels.join(","));
            for (n, ip) in ips.iter().enumerate() {
                text = text.replace(&ip.to_string(), ["@IP@", "@IP2@"][n]);
            }
            *series.entry(text).or_default() += value;
        }
        series
    })
}

/// Returns the series of both servers once two scrapes are equal: all earlier queries are counted.
pub(crate) fn settled(ips: [[Ipv4Addr; 2]; 2], port: u16) -> [Series; 2] {
    let mut last = scrape(ips, port);
    eventually("metrics that stand still", Duration::from_secs(60), || {
        sleep(Duration::from_millis(50));
        let before = std::mem::replace(&mut last, scrape(ips, port));
        (before == last).then_some(before)
    })
}

/// Returns the selected series that changed differently in both servers since `before`. A query is
/// counted only after its reply is sent, so this waits up to 3 s for equality.
pub(crate) fn moved(
    before: &[Series; 2],
    ips: [[Ipv4Addr; 2]; 2],
    port: u16,
    counts: impl Fn(&str) -> bool,
) -> Vec<Moved> {
    let deadline = now() + Duration::from_secs(3);
    loop {
        let after = scrape(ips, port);
        let mut found = Vec::new();
        let all: BTreeSet<&String> = after.iter().flat_map(Series::keys).collect();
        for series in all.into_iter().filter(|series| counts(series)) {
            let [theirs, ours] = [0, 1].map(|n| {
                let value = |all: &Series| all.get(series).copied().unwrap_or_default();
                value(&after[n]) - value(&before[n])
            });
            if theirs != ours {
                found.push(Moved { series: series.clone(), theirs, ours });
            }
        }
        if found.is_empty() || now() > deadline {
            return found;
        }
        sleep(Duration::from_millis(20));
    }
}

/// Differences in names and labels of CoreDNS's metrics of a cluster.
///
/// # Panics
/// When a server does not receive a change.
pub(crate) fn of_clusters(program: &Path) -> Vec<String> {
    let cluster = ScriptedCluster::start(cluster::objects(), false);
    // client-go measures only lists, not watches that begin with a list.
    cluster.lists();
    let ips = [fresh_ip(), fresh_ip()];
    let [theirs, ours] = ips.map(|ip| {
        format!(
            "cluster.local:{} {{\nbind {ip}\nprometheus {ip}:9253\nkubernetes {{\nendpoint {}\n}}\n}}\n",
            tests::port(),
            cluster.api.url()
        )
    });
    let _servers = (CoreDns::start(program, &theirs), Server::start(&ours));
    // A change with a timestamp, of a headless service's endpoints.
    let ports = json!([{"name": "c", "protocol": "UDP", "port": 1234}]);
    let (path, mut slice) = cluster::pod_slice("t1", "hl", "172.17.0.7", &ports);
    slice["metadata"]["annotations"] =
        json!({"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-23T13:42:25Z"});
    eventually("both follow slices", PATIENCE, || {
        let requests = cluster.api.requests();
        let watches = requests.iter().filter(|request| request.path == path && request.is_watch());
        (watches.count() >= 2).then_some(())
    });
    cluster.put(path, "ADDED", slice);
    let [theirs, ours] = ips.map(|ip| {
        eventually("a change of endpoints", PATIENCE, || {
            let found = labels((ip, 9253).into());
            found.iter().any(|family| family.contains("dns_programming")).then_some(found)
        })
    });
    let only = |one: &BTreeSet<String>, other, server| {
        one.difference(other).map(|family| format!("{server} alone has {family}")).collect::<Vec<_>>()
    };
    [only(&theirs, &ours, "CoreDNS"), only(&ours, &theirs, "localdns")].concat()
}

/// The metrics of clusters with their label names.
fn labels(at: SocketAddr) -> BTreeSet<String> {
    let metrics = Metrics::of(at);
    let of_clusters = metrics.samples().filter(|(name, ..)| name.starts_with("coredns_kubernetes_"));
    let family = |name, labels: &BTreeMap<String, String>| {
        let names: Vec<&str> = labels.keys().map(String::as_str).collect();
        format!("{name}{{{}}}", names.join(","))
    };
    of_clusters.map(|(name, labels, _)| family(name, labels)).collect()
}

const PATIENCE: Duration = Duration::from_secs(30);

/// The compared samples: CoreDNS's metrics in the plugins' documentation, without those that their
/// files exclude.
static COMPARED: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let mut all = BTreeSet::new();
    for plugin in plugins() {
        let rows = || plugin.section("metrics").iter().map(|row| row.split(' ').collect::<Vec<_>>());
        let left_out: Vec<&str> = rows().filter(|row| row[0] == "-").map(|row| row[1]).collect();
        let families = plugin.families.iter().filter(|family| !left_out.contains(&family.as_str()));
        all.extend(families.flat_map(|family| [family.clone(), format!("{family}_count")]));
        all.extend(rows().filter(|row| row[0] == "+").map(|row| row[1].to_owned()));
    }
    all
});

/// Returns metrics that a plugin's file excludes although the plugin's documentation does not name
/// them.
pub(crate) fn left_out_in_vain() -> Vec<String> {
    let mut all = Vec::new();
    for plugin in plugins() {
        let left_out =
            plugin.section("metrics").iter().filter_map(|row| row.strip_prefix("- ")?.split(' ').next());
        let is_on_page = |family: &&str| plugin.families.iter().any(|other| other == family);
        all.extend(
            left_out.filter(|family| !is_on_page(family)).map(|family| format!("{}: {family}", plugin.name)),
        );
    }
    all
}
