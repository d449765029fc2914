//! The pages of the admin server, and their content.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use tokio::runtime::Handle;

use crate::metrics::{self, ServerMetrics};
use crate::refresh_adapter::RefreshAdapter;
use crate::reload_state::StatusReader;
use ::metrics::Gatherer;
use admin::{AdminAddress, AdminServer, PageSources, ServedPages};
use configuration::AdminPlan;
use listen::ServerState;
use node_run::exporter;

/// Returns the pages to serve: those of a configuration, and from the command line one more address
/// of metrics and the exporter.
pub(crate) fn plan(
    admin: &AdminPlan,
    (more_metrics, exporter): (Option<AdminAddress>, Option<AdminAddress>),
) -> ServedPages {
    let mut plan = ServedPages::default();
    for address in admin.metrics.iter().chain(&more_metrics) {
        plan.metrics(*address);
    }
    if let Some(address) = exporter {
        plan.exporter(address);
    }
    for address in &admin.health {
        plan.health(*address);
    }
    for address in &admin.ready {
        plan.ready(*address);
    }
    plan
}

/// Creates the admin server, and sets `gatherer`.
pub(crate) fn admin_server(
    server: &Arc<RefreshAdapter>,
    server_metrics: ServerMetrics,
    gatherer: &Arc<OnceLock<Gatherer>>,
    handle: &Handle,
) -> AdminServer {
    let running = &server.running;
    let scraped = gatherer.clone();
    let (of_status, of_exporter) = (Arc::downgrade(server), Arc::downgrade(running));
    let status = move || {
        let server = of_status.upgrade()?;
        Some(format!("{}\n", server.status.json(&server.running, StatusReader::Anyone)))
    };
    let exporter = move || of_exporter.upgrade().map(|running| exporter::page(&running.configuration.load()));
    let content = PageSources {
        metrics: Box::new(move |native| scraped.get().map(|from| from.gather(native)).unwrap_or_default()),
        not_ready: Box::new(not_ready(running)),
        status: Some(Box::new(move || status().unwrap_or_default().into_bytes())),
        exporter: Some(Box::new(move || exporter().unwrap_or_default())),
    };
    let admin = AdminServer::new(handle.clone(), content, running.logger.clone());
    let _ = gatherer.set(metrics::gatherer(running, server_metrics, admin.health_probe()));
    admin
}

/// Returns a function that lists the plugins that are not ready. Once all were ready it returns
/// none until another configuration serves, unless a block has `monitor continuously`.
fn not_ready(running: &Arc<ServerState>) -> impl Fn() -> Vec<Cow<'static, str>> + Send + Sync + use<> {
    let (running, was_ready) = (Arc::downgrade(running), Mutex::new(Weak::new()));
    move || {
        let Some(running) = running.upgrade() else { return Vec::new() };
        let configuration = running.configuration.load_full();
        let mut was_ready = was_ready.lock().unwrap_or_else(PoisonError::into_inner);
        let this = Arc::downgrade(&configuration);
        if was_ready.ptr_eq(&this) && !configuration.asks_ready_again {
            return Vec::new();
        }
        let missing: Vec<_> =
            running.shared.lasting.all().iter().filter_map(|kept| kept.not_ready()).collect();
        *was_ready = if missing.is_empty() { this } else { Weak::new() };
        missing
    }
}
