//! The content of /status: served zones and their plugins, upstreams, caches. Read at each request;
//! its size is bounded by the Corefile's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use cache::AnswerKind;
use forwarder::{Upstream, UpstreamPath};
use serde_json::{Value, json};

use crate::reload_state::{ReloadState, StatusReader};
use configuration::Configuration;
use listen::ServerState;
use metrics::{Gatherer, MetricFamily, names};
use node_run::{LeaseState, STATUS_FORMAT};
use plugins::kubernetes::{ClusterRegistry, ClusterStatus, KindStatus, SyncProblem};
use plugins::plugin_cfg;

/// Sources of the status.
pub(crate) struct Status {
    /// The configuration's file.
    pub(crate) corefile: Option<PathBuf>,
    pub(crate) started: Instant,
    /// The state of the leases, with `node run`.
    pub(crate) leased: Arc<OnceLock<Arc<LeaseState>>>,
    pub(crate) gatherer: Arc<OnceLock<Gatherer>>,
    pub(crate) reloads: Arc<ReloadState>,
}

impl Status {
    /// Returns the status as one JSON object.
    pub(crate) fn json(&self, running: &ServerState, reader: StatusReader) -> Value {
        let now = clock::now();
        let configuration = running.configuration.load_full();
        let counted = self.gatherer.get().map(|from| from.gather(false)).unwrap_or_default();
        let kept = running.shared.lasting.all();
        let not_ready: Vec<_> = kept.iter().filter_map(|kept| kept.not_ready()).collect();
        let list = running.shared.node_upstreams.as_ref().map(|upstreams| upstreams.list());
        let servers = list.iter().flat_map(|list| list.iter());
        let servers: Vec<_> = servers.map(|server| node::AddressText(*server).to_string()).collect();
        json!({
            "format": STATUS_FORMAT,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_seconds": now.saturating_duration_since(self.started).as_secs(),
            "not_ready": not_ready,
            "corefile": self.corefile.as_ref().filter(|_| reader == StatusReader::Owner),
            "reload_failed": self.reloads.failure(now, reader),
            "answers": answers(&counted),
            "serves": serves(&configuration),
            "upstreams": upstreams(&configuration),
            "cache": { "bytes": running.shared.cache.bytes(), "partitions": partitions(&configuration) },
            "hosts": hosts(running, now),
            "refresh": refresh::report(&running.shared.hosts.kept),
            "kubernetes": clusters(running, now),
            "node": self.leased.get().map(|leased| leased.status(&servers)),
        })
    }
}

fn answers(counted: &[MetricFamily]) -> Value {
    let sum = |metric, labels: &[_]| metrics::sum(counted, metric, labels) as u64;
    json!({
        "queries": sum(names::DNS_RESPONSES, &[]),
        "servfail": sum(names::DNS_RESPONSES, &[("rcode", "SERVFAIL")]),
        "cache_hits": sum(names::CACHE_HITS, &[]),
        "cache_misses": sum(names::CACHE_MISSES, &[]),
        "served_stale": sum(names::CACHE_SERVED_STALE, &[]),
        "hosts_hits": sum(names::HOSTS_HITS, &[]),
        "dropped": sum(names::KERNEL_DROPS, &[]) + sum(names::QUERIES_SHED, &[]),
    })
}

fn serves(configuration: &Configuration) -> Vec<Value> {
    let zones = configuration.zones.iter().take(MOST).map(|zone| {
        json!({
            "server": zone.server,
            "zone": zone.zone.to_string(),
            "plugins": plugin_cfg::handlers(&zone.block.directives).collect::<Vec<_>>(),
            "corefile": zone.block.at.to_string(),
        })
    });
    zones.collect()
}

/// Returns each upstream once, with its health for the first `forward` that uses it.
fn upstreams(configuration: &Configuration) -> Vec<Value> {
    let mut by_upstream = BTreeMap::new();
    let blocks = configuration.blocks.iter();
    for stanza in blocks.filter_map(|block| block.pipeline.forwarding()).flat_map(|one| one.chain.stanzas()) {
        let spec = stanza.spec();
        let (asked, left_out) = (stanza.upstreams(), stanza.left_out());
        let loops = left_out.iter().map(|upstream| (upstream, true));
        for (upstream, loops) in asked.iter().map(|upstream| (upstream, false)).chain(loops) {
            let path = stanza.path_to(upstream);
            let of = (upstream.address(), upstream.tls().is_some());
            by_upstream.entry(of).or_insert_with(|| of_upstream(upstream, path, spec.max_fails, loops));
        }
    }
    by_upstream.into_values().take(MOST).collect()
}

/// Returns the status of one upstream. `loops`: it is not queried, since it would send queries back
/// to this server.
fn of_upstream(upstream: &Upstream, path: UpstreamPath, max_fails: u32, loops: bool) -> Value {
    let metrics = upstream.metrics();
    let (outstanding, limit) = upstream.outstanding(path);
    let transport = match (upstream.tls(), path) {
        (Some(_), _) => "TLS",
        (None, UpstreamPath::Stream) => "TCP",
        (None, UpstreamPath::Udp) => "UDP",
    };
    json!({
        "address": upstream.address().to_string(),
        "transport": transport,
        "up": !loops && !upstream.is_down(path, max_fails),
        "loops": loops,
        "fails": upstream.fails(path),
        "rtt_ms": upstream.srtt(path).map(|rtt| rtt.as_secs_f64() * 1000.0),
        "outstanding": outstanding,
        "outstanding_limit": limit,
        "connections": (path == UpstreamPath::Stream).then(|| metrics.open_connections()),
        "pipelining": (path == UpstreamPath::Stream).then(|| metrics.pipelines()),
        "replies": metrics.durations().flat_map(|(_, durations)| durations.counts()).sum::<u64>(),
        "failed_probes": metrics.healthcheck_failures.get(),
    })
}

/// Returns the clusters that blocks serve; `None` if there are none.
fn clusters(running: &ServerState, now: Instant) -> Option<Value> {
    let clusters = running.shared.lasting.get::<ClusterRegistry>().status(now);
    let synced = clusters.iter().all(ClusterStatus::is_synced);
    let all: Vec<_> = clusters.iter().take(MOST).map(of_cluster).collect();
    (!all.is_empty()).then(|| json!({ "synced": synced, "clusters": all }))
}

fn of_cluster(cluster: &ClusterStatus) -> Value {
    let of_kind = |of: &KindStatus| json!({ "kind": of.kind.resource(), "objects": of.objects, "known": of.is_known, "followed": of.is_followed });
    let of_problem = |SyncProblem { subject, problem, remedy }: &SyncProblem| json!({ "subject": subject, "problem": problem, "remedy": remedy });
    json!({
        "api": cluster.api,
        "synced": cluster.is_synced(),
        "stale": cluster.is_stale(),
        "kinds": cluster.kinds.iter().map(of_kind).collect::<Vec<_>>(),
        "event_age_seconds": cluster.event_age.map(|age| age.as_secs()),
        "snapshot_age_seconds": cluster.snapshot_age.map(|age| age.as_secs()),
        "rights_missing": cluster.rights_missing,
        "problems": cluster.problems.iter().map(of_problem).collect::<Vec<_>>(),
    })
}

/// Returns each block's cache partition once, under the block's first server.
fn partitions(configuration: &Configuration) -> Vec<Value> {
    let parts = configuration.blocks.iter().filter_map(|block| {
        let cache = block.pipeline.forwarding()?.cache.as_ref()?;
        Some(json!({
            "server": block.first_server,
            "zones": configuration::zones_label(cache.spec(), cache.zones()),
            "success": cache.entries(AnswerKind::Success),
            "denial": cache.entries(AnswerKind::Denial),
        }))
    });
    parts.take(MOST).collect()
}

fn hosts(running: &ServerState, now: Instant) -> Vec<Value> {
    let tables = running.shared.hosts.all().into_iter().take(MOST).map(|table| {
        json!({
            "file": table.spec().file.display().to_string(),
            "entries": table.entries(),
            "read_seconds_ago": now.saturating_duration_since(table.built()).as_secs(),
        })
    });
    tables.collect()
}

/// Maximum number of entries in a list: a Corefile may have thousands of blocks.
const MOST: usize = 500;
