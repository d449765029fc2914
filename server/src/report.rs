//! What everybody counts, as metric families: read at the moment of a scrape.

use std::sync::{Arc, OnceLock, Weak};

use cache::Kind;
use forwarder::Proto;

use crate::node_run::{Leased, exporter};
use crate::reloads::Reloads;
use admin::{HealthProbe, Process};
use listen::Running;
use observe::collector::Build;
use observe::{Collector, Families, MetricSource, names};
use plugins::table;

/// Everything that /metrics tells.
pub(crate) fn collector(running: &Running, told: ServerMetrics, health: Arc<HealthProbe>) -> Collector {
    let build = Build { version: env!("CARGO_PKG_VERSION"), revision: "", compiler: "rust" };
    Collector::new(running.shared.zones.clone(), running.logger.clone(), build)
        .with(Arc::new(told))
        .with(health)
        .with(Arc::new(Process))
}

/// Of whom /metrics tells.
pub(crate) struct ServerMetrics {
    pub(crate) running: Weak<Running>,
    pub(crate) reloads: Arc<Reloads>,
    /// The leases of our addresses, where we keep any.
    pub(crate) leased: Arc<OnceLock<Arc<Leased>>>,
}

impl MetricSource for ServerMetrics {
    fn collect(&self, into: &mut Families) {
        let Some(running) = self.running.upgrade() else { return };
        into.counter(names::PANICS, &[], running.panics.get() as f64);
        into.gauge(names::WORKERS, &[], running.workers() as f64);
        into.counter(names::KERNEL_DROPS, &[], running.kernel_drops.get() as f64);
        into.gauge(names::WORKER_HEARTBEAT_AGE, &[], running.slowest_worker(clock::now()).as_secs_f64());
        into.counter(names::WORKER_RESTARTS, &[], running.worker_restarts.get() as f64);
        into.counter(names::QUERIES_SHED, &[], running.shed.get() as f64);
        for (was, count) in running.connections.evicted() {
            into.counter(names::CONNECTIONS_EVICTED, &[("was", was)], count as f64);
        }
        into.counter(names::CONNECTIONS_REFUSED, &[], running.connections.refused.get() as f64);
        into.gauge(names::STREAM_BYTES, &[], running.connections.octets() as f64);
        into.gauge(names::CACHE_BYTES, &[], running.shared.cache.bytes() as f64);
        plugins(&running, into);
        caches(&running, into);
        forward(&running, into);
        for kept in running.shared.lasting.all() {
            kept.collect(into);
        }
        if let Some(leased) = self.leased.get() {
            leased.collect(into);
            if leased.is_exported() {
                exporter::collect(&running.configuration.load(), into);
            }
        }
        refresher::collect(&running.shared.hosts.kept, into);
        self.reloads(&running, into);
    }
}

impl ServerMetrics {
    fn reloads(&self, running: &Running, into: &mut Families) {
        if running.configuration.load().reload.is_none() {
            return;
        }
        into.counter(names::RELOAD_FAILED, &[], self.reloads.failed.get() as f64);
        let hash = self.reloads.hash();
        into.gauge(names::RELOAD_VERSION_INFO, &[("hash", "sha512"), ("value", &hash)], 1.0);
    }
}

fn plugins(running: &Running, into: &mut Families) {
    for zone in &running.configuration.load().zones {
        if !zone.block.envelope.counts {
            continue;
        }
        let name = zone.zone.to_string();
        for plugin in table::handlers(&zone.block.directives) {
            let labels = [("server", zone.server.as_str()), ("zone", &name), ("view", ""), ("name", plugin)];
            into.gauge(names::PLUGIN_ENABLED, &labels, 1.0);
        }
    }
}

fn caches(running: &Running, into: &mut Families) {
    for zone in &running.configuration.load().zones {
        let Some(cache) = zone.block.pipeline.forwarding().and_then(|forwarding| forwarding.cache.as_ref())
        else {
            continue;
        };
        // A block has one cache for all its zones and addresses: it is exposed once, under the block's first server.
        if zone.counters.is_none()
            || zone.block.first_zone != zone.zone
            || zone.block.first_server != zone.server
        {
            continue;
        }
        let zones = configuration::zones_label(&cache.zones);
        let (server, zones, view) =
            (("server", zone.server.as_str()), ("zones", zones.as_str()), ("view", ""));
        for kind in Kind::ALL {
            let labels = [server, ("type", kind.label()), zones, view];
            into.gauge(names::CACHE_ENTRIES, &labels, cache.partition.entries(kind) as f64);
            let evictions = cache.partition.evictions(kind);
            if evictions > 0 {
                into.counter(names::CACHE_EVICTIONS, &labels, evictions as f64);
            }
        }
    }
}

fn forward(running: &Running, into: &mut Families) {
    let group = &running.shared.forward;
    into.counter(names::FORWARD_HEALTHCHECK_BROKEN, &[], group.healthcheck_broken.get() as f64);
    into.counter(names::FORWARD_MAX_CONCURRENT_REJECTS, &[], group.max_concurrent_rejects.get() as f64);
    for upstream in running.shared.upstreams.upstreams() {
        let to = upstream.address().to_string();
        let metrics = upstream.metrics();
        let proxy = [("proxy_name", "forward"), ("to", to.as_str())];
        for (rcode, durations) in metrics.durations() {
            let rcode = rcode.map_or_else(|| "other".to_owned(), |rcode| rcode.to_string());
            let labels = [proxy[0], proxy[1], ("rcode", &rcode)];
            into.durations(names::PROXY_REQUEST_DURATION, &labels, durations);
        }
        into.counter(names::PROXY_HEALTHCHECK_FAILURES, &proxy, metrics.healthcheck_failures.get() as f64);
        for proto in Proto::ALL {
            let labels = [proxy[0], proxy[1], ("proto", proto.label())];
            for (metric, count) in [
                (names::PROXY_CONN_CACHE_HITS, metrics.conn_cache_hits(proto)),
                (names::PROXY_CONN_CACHE_MISSES, metrics.conn_cache_misses(proto)),
            ] {
                if count > 0 {
                    into.counter(metric, &labels, count as f64);
                }
            }
        }
        let to = [("to", to.as_str())];
        into.counter(names::FORWARD_HEDGES, &to, metrics.hedges.get() as f64);
        into.counter(names::FORWARD_UNMATCHED_REPLIES, &to, metrics.unmatched.get() as f64);
        into.counter(names::FORWARD_LATE_REPLIES, &to, metrics.late.get() as f64);
    }
}
