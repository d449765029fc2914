//! What outlives every configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use client_quota::ClientQuota;
use observe::Logger;
use observe::counters::ZoneRegistry;
use plugin::reload_state::ReloadState;
use plugins::forward;
use plugins::hosts::HostsRegistry;
use rand::Rng as _;
use refresher::Environment;
use tokio::runtime::Handle;
use wire::Name;

/// What outlives every configuration.
pub struct Shared {
    /// All blocks' answers.
    pub cache: cache::Cache,
    /// All upstreams, their health and connections.
    pub upstreams: forwarder::Registry,
    /// What is counted of `forward`.
    pub forward: Arc<forwarder::StanzaMetrics>,
    /// Whom 168.63.129.16 stands for among upstreams, where it stands for the servers of the node's network.
    pub node_upstreams: Option<Arc<node::Upstreams>>,
    /// Files of upstreams that are followed.
    pub followed: forward::Followed,
    /// All hosts tables.
    pub hosts: Arc<HostsRegistry>,
    /// What the environment says about names to keep.
    pub environment: Environment,
    /// All zones' counters.
    pub zones: Arc<ZoneRegistry>,
    /// What plugins keep.
    pub lasting: ReloadState,
    /// Octets that evaluations which wait hold.
    pub held: Arc<ClientQuota>,
    /// The name by which this process asks itself whether it serves.
    pub probe: Name,
    /// The runtime that looks names up.
    pub handle: Handle,
    /// Whether host names among upstreams are looked up; not where nothing will be asked.
    pub resolve_names: bool,
    /// The process's log.
    pub logger: Logger,
    /// The number of the next block.
    pub next_block: AtomicU64,
    /// How many threads count: every worker and, last, the stream side.
    pub writers: usize,
}

impl Shared {
    /// What `forward` is built with.
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

impl Shared {
    /// What a process starts with, and the probes that upstreams will ask for.
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

/// A name that nobody outside can guess: a query for it in class CH is answered before anything else and is neither
/// counted nor logged nor forwarded.
fn probe_name() -> Name {
    let secret: [u64; 2] = rand::rng().random();
    // Letters, digits and dots: it is always a name.
    Name::from_text(&format!("{:016x}.{:016x}.probe.localdns.", secret[0], secret[1])).unwrap_or(Name::ROOT)
}
