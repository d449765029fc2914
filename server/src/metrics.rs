//! All metrics as families, read at each scrape.

use std::sync::{Arc, OnceLock, Weak};

use crate::reload_state::ReloadState;
use admin::{HealthProbe, Process};
use listen::ServerState;
use metrics::gatherer::Build;
use metrics::{Families, Gatherer, MetricSource, names};
use node_run::{LeaseState, exporter};
use plugin::endpoint::Transport;
use plugins::plugin_cfg;

/// Creates the gatherer of all metrics.
pub(crate) fn gatherer(
    running: &ServerState,
    server_metrics: ServerMetrics,
    health: Arc<HealthProbe>,
) -> Gatherer {
    let build = Build { version: env!("CARGO_PKG_VERSION"), revision: "", compiler: "rust" };
    let zones = running.shared.zones.clone();
    Gatherer::new([Arc::new(build), zones, Arc::new(server_metrics), health, Arc::new(Process)])
}

/// Sources of the server's metrics.
pub(crate) struct ServerMetrics {
    pub(crate) running: Weak<ServerState>,
    pub(crate) reloads: Arc<ReloadState>,
    /// The state of the leases, with `node run`.
    pub(crate) leased: Arc<OnceLock<Arc<LeaseState>>>,
}

impl MetricSource for ServerMetrics {
    fn collect(&self, into: &mut Families) {
        let Some(running) = self.running.upgrade() else { return };
        into.counter(names::PANICS, &[], running.panics.get() as f64);
        into.counter(names::LOG_LINES_DROPPED, &[], running.logger.dropped_lines() as f64);
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
        for (endpoint, status, count) in running.responses.all() {
            let server = endpoint.label();
            let labels = [("server", server.as_str()), ("status", status)];
            let metric = match endpoint.transport {
                Transport::Quic => names::QUIC_RESPONSES,
                _ => names::HTTPS_RESPONSES,
            };
            into.counter(metric, &labels, count as f64);
        }
        enabled(&running, into);
        caches(&running, into);
        plugins::forward::metrics::collect(&running.shared.forward, into);
        for upstream in running.shared.upstreams.upstreams() {
            plugins::forward::metrics::collect_upstream(&upstream, into);
        }
        for kept in running.shared.lasting.all() {
            kept.collect(into);
        }
        if let Some(leased) = self.leased.get() {
            leased.collect(into);
            if leased.is_exported() {
                exporter::collect(&running.configuration.load(), into);
            }
        }
        refresh::collect(&running.shared.hosts.kept, into);
        plugins::reload::metrics::collect_failed(self.reloads.failed.get(), into);
        if running.configuration.load().reload.is_some() {
            plugins::reload::metrics::collect_version(&self.reloads.hash(), into);
        }
    }
}

fn enabled(running: &ServerState, into: &mut Families) {
    for zone in &running.configuration.load().zones {
        if !zone.block.envelope.counts {
            continue;
        }
        let name = zone.zone.to_string();
        for plugin in plugin_cfg::handlers(&zone.block.directives) {
            let view = zone.block.envelope.view_name();
            let labels =
                [("server", zone.server.as_str()), ("zone", &name), ("view", view), ("name", plugin)];
            into.gauge(names::PLUGIN_ENABLED, &labels, 1.0);
        }
    }
}

fn caches(running: &ServerState, into: &mut Families) {
    plugins::cache::metrics::collect(&running.shared.cache, into);
    for zone in &running.configuration.load().zones {
        let Some(cache) = zone.block.pipeline.forwarding().and_then(|forwarding| forwarding.cache.as_ref())
        else {
            continue;
        };
        // A block has one cache for all its zones and addresses: it is exposed once, under the
        // block's first server.
        if zone.counters.is_none()
            || zone.block.first_zone != zone.zone
            || zone.block.first_server != zone.server
        {
            continue;
        }
        let zones = configuration::zones_label(cache.spec(), cache.zones());
        plugins::cache::metrics::collect_block(
            cache,
            &zone.server,
            &zones,
            zone.block.envelope.view_name(),
            into,
        );
    }
}
