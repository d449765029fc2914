//! The metrics that moved: how far each series of CoreDNS's went on both sides.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use serde_json::json;
use tests::kube::ScriptedCluster;
use tests::{Metrics, Server, eventually, fresh_ip, http_get, now};

use crate::cluster;
use crate::coredns::CoreDns;

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
            if !FAMILIES.contains(&name) {
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

/// The families of CoreDNS's that the pages of our plugins name and that are not compared, nor said not to be.
pub(crate) fn forgotten() -> Vec<String> {
    let plugins = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/src");
    let folders = std::fs::read_dir(plugins).expect("the folders are there");
    let pages =
        folders.filter_map(|folder| std::fs::read_to_string(folder.ok()?.path().join("README.md")).ok());
    let is_of_name = |c: char| c == '_' || c.is_ascii_lowercase();
    let mut families = BTreeSet::new();
    for page in pages {
        let metrics = page.split_once("\n## Metrics\n").expect("each page has its metrics").1;
        let metrics = metrics.split_once("\n## ").expect("examples come behind them").0;
        let words = metrics.split(|c| !is_of_name(c)).filter(|word| word.starts_with("coredns_"));
        families.extend(words.map(str::to_owned));
    }
    assert!(families.len() > 30, "the pages name metrics: {families:?}");
    let is_compared =
        |family: &str| FAMILIES.iter().any(|name| name.strip_suffix("_count").unwrap_or(name) == family);
    families.retain(|family| !is_compared(family) && !NOT_MOVED.contains(&family.as_str()));
    families.into_iter().collect()
}

/// The families that both have and that queries move.
const FAMILIES: &[&str] = &[
    "coredns_dns_requests_total",
    "coredns_dns_responses_total",
    "coredns_dns_do_requests_total",
    "coredns_dns_request_duration_seconds_count",
    "coredns_dns_request_size_bytes_count",
    "coredns_dns_request_size_bytes_sum",
    "coredns_dns_response_size_bytes_count",
    "coredns_acl_allowed_requests_total",
    "coredns_acl_blocked_requests_total",
    "coredns_acl_dropped_requests_total",
    "coredns_acl_filtered_requests_total",
    "coredns_autopath_success_total",
    "coredns_cache_requests_total",
    "coredns_cache_hits_total",
    "coredns_cache_misses_total",
    "coredns_cache_drops_total",
    "coredns_cache_prefetch_total",
    "coredns_cache_served_stale_total",
    "coredns_forward_healthcheck_broken_total",
    "coredns_forward_max_concurrent_rejects_total",
    "coredns_proxy_request_duration_seconds_count",
    "coredns_template_matches_total",
    "coredns_template_template_failures_total",
    "coredns_template_rr_failures_total",
    "coredns_panics_total",
];

/// Those that both have and that no query moves, or not alike.
const NOT_MOVED: &[&str] = &[
    // What is there, told whoever asks.
    "coredns_build_info",
    "coredns_plugin_enabled",
    "coredns_hosts_entries",
    "coredns_hosts_reload_timestamp_seconds",
    // A capacity is another number of entries there: "CAPACITY is honoured as written" in docs/differences.md.
    "coredns_cache_entries",
    "coredns_cache_evictions_total",
    // Each server's own looks, once a second, and probes.
    "coredns_health_request_duration_seconds",
    "coredns_health_request_failures_total",
    "coredns_proxy_healthcheck_failures_total",
    // Which connection is free when a query goes out is a matter of time, and here one carries several.
    "coredns_proxy_conn_cache_hits_total",
    "coredns_proxy_conn_cache_misses_total",
    // Nothing is reloaded while queries are asked.
    "coredns_reload_failed_total",
    "coredns_reload_version_info",
    // By `of_clusters`: requests to the API, and changes there.
    "coredns_kubernetes_dns_programming_duration_seconds",
    "coredns_kubernetes_rest_client_rate_limiter_duration_seconds",
    "coredns_kubernetes_rest_client_request_duration_seconds",
    "coredns_kubernetes_rest_client_requests_total",
];
