//! [`PersistentState`]: the state that outlives reloads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use client_quota::ClientQuota;
use logging::Logger;
use metrics::counters::ZoneRegistry;
use plugin::reload_state::ReloadState;
use plugins::forward;
use plugins::hosts::HostsRegistry;
use rand::Rng as _;
use refresh::Environment;
use tokio::runtime::Handle;
use wire::Name;

/// The state that all configurations of the process share.
pub struct PersistentState {
    /// The cache of all blocks.
    pub cache: cache::Cache,
    /// All upstreams, their health and connections.
    pub upstreams: forwarder::Registry,
    /// Metrics of `forward`.
    pub forward: Arc<forwarder::StanzaMetrics>,
    /// The DNS servers of the node's network, if 168.63.129.16 stands for them among upstreams.
    pub node_upstreams: Option<Arc<node::Upstreams>>,
    /// Watched files of upstreams.
    pub followed: forward::Followed,
    /// All hosts tables.
    pub hosts: Arc<HostsRegistry>,
    /// Environment variables about refreshed names.
    pub environment: Environment,
    /// All zones' counters.
    pub zones: Arc<ZoneRegistry>,
    /// State of plugins.
    pub lasting: ReloadState,
    /// The quota of bytes held by suspended evaluations.
    pub held: Arc<ClientQuota>,
    /// The name of the watchdog's self-probe.
    pub probe: Name,
    /// The runtime of name lookups.
    pub handle: Handle,
    /// Whether host names among upstreams are looked up; false if the configuration is only
    /// checked.
    pub resolve_names: bool,
    /// The process's log.
    pub logger: Logger,
    /// The number of the next block.
    pub next_block: AtomicU64,
    /// The number of threads with counters: every worker and, last, the stream runtime.
    pub writers: usize,
}

impl PersistentState {
    /// Returns the context that `forward` is built with.
    pub fn forward(&self) -> forward::ForwardContext<'_> {
        forward::ForwardContext {
            upstreams: &self.upstreams,
            forward: &self.forward,
            node_upstreams: self.node_upstreams.as_deref(),
            followed: &self.followed,
            handle: &self.handle,
            resolve_names: self.resolve_names,
            logger: &self.logger,
        }
    }
}

impl PersistentState {
    /// Creates the state of a new process, and the receiver of upstreams' probe requests.
    pub fn new(
        cache_bytes: usize,
        writers: usize,
        handle: &Handle,
        logger: Logger,
        start: Instant,
    ) -> (Self, forwarder::ProbeRequests) {
        let lasting = ReloadState::default();
        let (upstreams, probes) = forwarder::Registry::new(start);
        let shared = Self {
            cache: cache::Cache::new(cache_bytes, start),
            upstreams,
            forward: Arc::default(),
            node_upstreams: None,
            followed: forward::Followed::default(),
            hosts: lasting.get(),
            environment: Environment::default(),
            zones: Arc::default(),
            lasting,
            held: query::memory_quota::room(),
            probe: probe_name(),
            handle: handle.clone(),
            resolve_names: true,
            logger,
            next_block: AtomicU64::new(0),
            writers,
        };
        shared.next_block.store(1, Relaxed);
        (shared, probes)
    }
}

/// Returns a random name that no other process can guess. A query for it in class CH is answered
/// before all other steps, and is not counted, logged or forwarded.
fn probe_name() -> Name {
    let secret: [u64; 2] = rand::rng().random();
    // The text consists of letters, digits and dots, and is always a valid name.
    Name::from_text(&format!("{:016x}.{:016x}.probe.localdns.", secret[0], secret[1])).unwrap_or(Name::ROOT)
}
