//! The metrics that moved: how far each series of CoreDNS's went on both sides.

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

/// The series of one server by name and labels, with its own addresses taken out.
pub(crate) type Series = BTreeMap<String, f64>;

/// What moved differently.
#[derive(Debug, Clone)]
pub(crate) struct Moved {
    /// Name and labels.
    pub(crate) series: String,
    /// How far CoreDNS's went.
    pub(crate) theirs: f64,
    /// How far ours went.
    pub(crate) ours: f64,
}

/// The series of both, now. The label `to` is left out: which upstream is asked may be a matter of chance.
fn scrape(ips: [[Ipv4Addr; 2]; 2], port: u16) -> [Series; 2] {
    ips.map(|ips| {
        // A page of 200 zones is long, and the machine may be busy.
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

/// The series of both, once two looks in a row find the same: nothing of what was asked before is still to be counted.
pub(crate) fn settled(ips: [[Ipv4Addr; 2]; 2], port: u16) -> [Series; 2] {
    let mut last = scrape(ips, port);
    eventually("metrics that stand still", Duration::from_secs(60), || {
        sleep(Duration::from_millis(50));
        let before = std::mem::replace(&mut last, scrape(ips, port));
        (before == last).then_some(before)
    })
}

/// What moved differently since `before`, of the series that `counts` says count. A query is counted after its reply has left, so this waits, up to 3 s,
/// until nothing differs.
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

/// What differs of the families that CoreDNS has of a cluster, and of their labels.
///
/// # Panics
/// When one of the servers does not hear of a change.
pub(crate) fn of_clusters(program: &Path) -> Vec<String> {
    let cluster = ScriptedCluster::start(cluster::objects(), false);
    // client-go times lists alone.
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
    // A change whose moment is known, of a service with endpoints of its own.
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
    let only = |one: &BTreeSet<String>, other, who| {
        one.difference(other).map(|family| format!("{who} alone has {family}")).collect::<Vec<_>>()
    };
    [only(&theirs, &ours, "CoreDNS"), only(&ours, &theirs, "localdns")].concat()
}

/// Families of clusters with the names of their labels.
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

/// The samples that are compared: of CoreDNS's families on the plugins' pages, but for those that their files leave out.
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

/// The families that a plugin's file leaves out and that its page does not have.
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
