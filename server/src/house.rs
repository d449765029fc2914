//! The house: a configuration ready to serve, built aside and swapped in whole.
//!
//! ```text
//! Spec -> addresses -> blocks with their pipelines -> a route for each listen address
//! ```
//! Nothing here binds a socket. What must outlive a reload (cache, upstreams' health, hosts tables, counters) comes from
//! [`Shared`] and is found again by its identity.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use corefile::{Located, Location};
use wire::{Flags, Name, OPTION_NSID, Query, Reply};

use crate::circles;
use crate::endpoint::{Endpoint, Transport, host_text};
use crate::listen::SourcePorts;
use crate::observe::counters::{Tally, ZoneLabels, ZoneRegistry, ZoneSet};
use crate::observe::{ErrorLog, LogRules, Logger};
use crate::pipeline::Pipeline;
use crate::plugin::hosts::HostsRegistry;
use crate::plugin::lasting::Lasting;
use crate::plugin::spec::PluginSpec;
use crate::plugin::table;
use crate::plugin::tls::{Certificates, ServerTls};
use crate::plugin::{
    bind::BindSpec,
    bufsize::BufsizeSpec,
    cache::CacheSpec,
    debug::DebugSpec,
    errors::ErrorsSpec,
    forward::{self, ForwardSpecs},
    health::HealthSpec,
    log::LogSpec,
    metadata::MetadataSpec,
    multisocket::MultisocketSpec,
    nsid::NsidSpec,
    prometheus::PrometheusSpec,
    ready::ReadySpec,
    reload::ReloadSpec,
    timeouts::TimeoutsSpec,
    tls::TlsSpec,
};
use crate::route::Route;
use crate::setup::args::Result;
use crate::setup::{AdminAddress, BlockSpec, Key, SetupError, Spec};
use refresher::Environment;

/// What outlives every configuration.
pub struct Shared {
    /// All blocks' answers.
    pub cache: cache::Cache,
    /// All upstreams, their health and connections.
    pub upstreams: forwarder::Registry,
    /// What is counted of `forward`.
    pub forward: Arc<forwarder::GroupMetrics>,
    /// Files of upstreams that are followed.
    pub followed: forward::Followed,
    /// All hosts tables.
    pub hosts: Arc<HostsRegistry>,
    /// What the environment says about names to keep.
    pub environment: Environment,
    /// All zones' counters.
    pub zones: Arc<ZoneRegistry>,
    /// What plugins keep.
    pub lasting: Lasting,
    /// Octets that evaluations which wait hold.
    pub held: Arc<AtomicUsize>,
    /// The name by which this process asks itself whether it serves.
    pub probe: Name,
    /// The runtime that looks names up.
    pub handle: tokio::runtime::Handle,
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
    pub fn forward(&self) -> forward::Shared<'_> {
        forward::Shared {
            upstreams: &self.upstreams,
            forward: &self.forward,
            followed: &self.followed,
            handle: &self.handle,
            resolve_names: self.resolve_names,
        }
    }
}

/// One configuration, ready to serve.
pub struct House {
    /// Every endpoint with the zones served there, sorted.
    pub listeners: BTreeMap<Endpoint, Listener>,
    /// Every server block, in file order.
    pub blocks: Vec<Arc<Block>>,
    /// Every served zone, by its index.
    pub zones: Vec<Arc<ServedZone>>,
    /// How many UDP sockets each address has: what `multisocket` says.
    pub sockets: usize,
    /// `reload`, the first that stands in the file.
    pub reload: Option<ReloadSpec>,
    /// How long to go on after SIGTERM: the longest `lameduck`.
    pub lameduck: Duration,
    /// Admin listeners.
    pub admin: AdminPlan,
    /// Whether `debug` stands anywhere.
    pub debug: bool,
    /// Hosts files whose names are kept.
    pub keep: Vec<refresher::Plan>,
    /// Ports that upstreams are asked from; read with each configuration.
    pub source_ports: SourcePorts,
}

/// Where /health, /ready and /metrics are served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdminPlan {
    /// `health`.
    pub health: Vec<AdminAddress>,
    /// `ready`.
    pub ready: Vec<AdminAddress>,
    /// `prometheus`.
    pub metrics: Vec<AdminAddress>,
}

/// One endpoint.
pub struct Listener {
    /// Which zone answers; a query that must wait for an inner lookup keeps it.
    pub route: Arc<Route>,
    /// What is counted of queries that no zone answers; only where some block has `prometheus`.
    pub dropped: Option<ZoneSet>,
    /// TCP limits; the first block that has `timeouts` decides for its address.
    pub timeouts: TimeoutsSpec,
    /// What connections are encrypted with; none where they are not.
    pub tls: Option<Arc<ServerTls>>,
    /// The name by which this process asks itself whether it serves.
    pub probe: Name,
}

impl Listener {
    /// Where thread `writer` counts queries that no zone answers.
    #[inline]
    pub fn dropped_tally(&self, writer: usize) -> Tally<'_> {
        Tally::new(self.dropped.as_deref(), writer)
    }
}

/// One server block.
pub struct Block {
    /// Its place in the file.
    pub index: usize,
    /// Its number, different for every block built since the start.
    pub id: u64,
    /// Where its first key stands.
    pub at: Location,
    /// The directives it has, in the order in which they take effect.
    pub directives: Vec<&'static str>,
    /// The first of its zones.
    pub first_zone: Name,
    /// Its first endpoint, as [`Endpoint::label`].
    pub first_server: String,
    /// What answers.
    pub pipeline: Pipeline,
    /// Octets that evaluations which wait hold; those of all blocks.
    pub held: Arc<AtomicUsize>,
    /// The identifier sent to those who ask for it.
    pub nsid: Option<Box<[u8]>>,
    /// The largest UDP reply.
    pub bufsize: usize,
    /// Which queries are logged.
    pub log: Option<LogRules>,
    /// Where failures are logged.
    pub errors: Option<Arc<ErrorLog>>,
}

/// One zone of one block on one endpoint.
pub struct ServedZone {
    /// Its place in [`House::zones`].
    pub index: usize,
    /// The zone.
    pub zone: Name,
    /// The block that serves it.
    pub block: Arc<Block>,
    /// The endpoint, as [`Endpoint::label`].
    pub server: String,
    /// What is counted, if the block has `prometheus`.
    pub counters: Option<ZoneSet>,
}

impl std::fmt::Debug for ServedZone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.zone, self.server)
    }
}

impl ServedZone {
    /// Where thread `writer` counts.
    #[inline]
    pub fn tally(&self, writer: usize) -> Tally<'_> {
        Tally::new(self.counters.as_deref(), writer)
    }

    /// Completes a reply: identifier, size, header.
    #[inline]
    pub fn finish(&self, query: &Query<'_>, reply: &mut Reply<'_>, limit: usize) -> (Flags, usize) {
        if let Some(nsid) = &self.block.nsid
            && query.edns.is_some_and(|edns| edns.nsid)
        {
            reply.options.push(OPTION_NSID, nsid);
        }
        reply.finish(query, limit)
    }

    /// The largest reply over UDP to this query.
    #[inline]
    pub fn udp_limit(&self, query: &Query<'_>) -> usize {
        query.udp_limit().min(self.block.bufsize).max(512)
    }
}

/// Looks up what the machine says about a name in `bind`; ports are 0.
pub type AddressesOf<'a> = &'a dyn Fn(&str) -> std::result::Result<Vec<SocketAddr>, node::NodeError>;

impl House {
    /// Builds a house from a configuration; nothing that serves now is touched.
    ///
    /// # Errors
    /// What cannot be served, at the word that says so.
    pub fn build(spec: &Spec, shared: &Shared, addresses_of: AddressesOf<'_>) -> Result<Self> {
        let plan = plan_listeners(spec, addresses_of)?;
        // Who is asked for a name that we look up is asked over plain DNS.
        let plain = |planned: &&Planned| planned.endpoint.transport == Transport::Dns;
        let ours: Vec<SocketAddr> =
            plan.values().flatten().filter(plain).map(|planned| planned.endpoint.address).collect();
        if shared.resolve_names {
            let stanzas = spec
                .blocks
                .iter()
                .filter_map(|block| block.get::<ForwardSpecs>())
                .flat_map(|forward| &forward.stanzas);
            shared.followed.look_up(stanzas, &ours, &shared.handle);
        }
        let mut blocks = Vec::new();
        for (index, block) in spec.blocks.iter().enumerate() {
            let endpoints: Vec<Endpoint> = plan[&index].iter().map(|planned| planned.endpoint).collect();
            blocks.push(Arc::new(build_block(index, block, shared, &endpoints, &ours)?));
        }
        let mut zones = Vec::new();
        let tls = certificates(spec, shared)?;
        let mut by_endpoint: BTreeMap<Endpoint, Vec<Arc<ServedZone>>> = BTreeMap::new();
        for (index, planned) in
            plan.iter().flat_map(|(index, planned)| planned.iter().map(move |p| (*index, p)))
        {
            let block = &blocks[index];
            let server = planned.endpoint.label();
            let counters = spec.blocks[index].get::<PrometheusSpec>().map(|_| {
                let plugin = table::named_by_metrics(&block.directives);
                let cache_zones = spec.blocks[index]
                    .get()
                    .map(|policy: &CacheSpec| zones_label(&policy.zones))
                    .unwrap_or_default();
                let labels = ZoneLabels {
                    server: server.clone(),
                    zone: planned.zone.to_string(),
                    cache_zones,
                    plugin,
                };
                shared.zones.zone(&labels, shared.writers)
            });
            let zone = Arc::new(ServedZone {
                index: zones.len(),
                zone: planned.zone,
                block: block.clone(),
                server,
                counters,
            });
            zones.push(zone.clone());
            by_endpoint.entry(planned.endpoint).or_default().push(zone);
        }
        let listeners = by_endpoint
            .into_iter()
            .map(|(endpoint, zones)| Ok((endpoint, listener(endpoint, zones, spec, &tls, shared)?)))
            .collect::<Result<_>>()?;
        let admin = AdminPlan {
            health: unique(said(spec).map(|health: &HealthSpec| health.address)),
            ready: unique(said(spec).map(|ready: &ReadySpec| ready.address)),
            metrics: unique(said(spec).map(|metrics: &PrometheusSpec| metrics.address)),
        };
        let house = Self {
            listeners,
            blocks,
            zones,
            sockets: sockets(spec),
            reload: said(spec).next().copied(),
            lameduck: said(spec).map(|health: &HealthSpec| health.lameduck).max().unwrap_or_default(),
            admin,
            debug: said::<DebugSpec>(spec).next().is_some(),
            keep: crate::refreshing::plans(spec, &shared.environment),
            source_ports: SourcePorts::read(),
        };
        circles::refuse(spec, &house)?;
        Ok(house)
    }

    /// The lines that CoreDNS prints at start: `ZONE:PORT` and, where bound, ` on ADDRESS`.
    pub fn banner(&self) -> Vec<String> {
        let mut lines: Vec<(&str, String)> = self
            .zones
            .iter()
            .map(|zone| {
                let server = &zone.server;
                // CoreDNS names no transport where it is plain DNS.
                let address = server.strip_prefix("dns://").unwrap_or(server);
                let (transport, address) = match address.split_once("://") {
                    Some((transport, address)) => (format!("{transport}://"), address),
                    None => (String::new(), address),
                };
                let line = match address.rsplit_once(':') {
                    Some(("", port)) => format!("{transport}{}:{port}", zone.zone),
                    Some((host, port)) => {
                        let host = host.trim_start_matches('[').trim_end_matches(']');
                        format!("{transport}{}:{port} on {host}", zone.zone)
                    }
                    None => zone.zone.to_string(),
                };
                (address, line)
            })
            .collect();
        // CoreDNS sorts the zones of each address, and the addresses not at all.
        lines.sort();
        lines.dedup();
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

/// One zone on one endpoint, before its block is built.
struct Planned {
    endpoint: Endpoint,
    zone: Name,
}

/// Which block serves which zone on which endpoint, and that none is served twice.
fn plan_listeners(spec: &Spec, addresses_of: AddressesOf<'_>) -> Result<BTreeMap<usize, Vec<Planned>>> {
    let mut plan: BTreeMap<usize, Vec<Planned>> = BTreeMap::new();
    let mut seen: HashMap<(Endpoint, Name), &Location> = HashMap::new();
    let mut carried: HashMap<SocketAddr, (Transport, &Location)> = HashMap::new();
    let mut bound: HashMap<(Name, Transport, u16), (bool, &Location)> = HashMap::new();
    for (index, block) in spec.blocks.iter().enumerate() {
        let bind = block.get::<BindSpec>().map(|bind| bind.addresses(addresses_of)).transpose()?;
        let is_bound = bind.is_some();
        let hosts = bind
            .unwrap_or_else(|| vec![(Ipv4Addr::UNSPECIFIED, 0).into(), (Ipv6Addr::UNSPECIFIED, 0).into()]);
        let planned = plan.entry(index).or_default();
        for Key { zone, transport, port, at } in &block.keys {
            let scheme = transport.name();
            let (first_bound, first_at) = *bound.entry((*zone, *transport, *port)).or_insert((is_bound, at));
            if first_bound != is_bound {
                let error = SetupError::Overlap {
                    server: format!("{scheme}://{zone}:{port}"),
                    first: first_at.to_string(),
                };
                return Err(Located::new(at, error));
            }
            for host in &hosts {
                let mut address = *host;
                address.set_port(*port);
                let endpoint = Endpoint { transport: *transport, address };
                let (carries, first) = *carried.entry(address).or_insert((*transport, at));
                if carries != *transport {
                    let server = format!("{scheme}://{zone}:{port}");
                    let error = SetupError::TransportConflict { server, first: first.to_string() };
                    return Err(Located::new(at, error));
                }
                if let Some(first) = seen.insert((endpoint, *zone), at) {
                    let on = if is_bound { format!(" on {}", host_text(address)) } else { String::new() };
                    let error = SetupError::AlreadyDefined {
                        server: format!("{scheme}://{zone}:{port}{on}"),
                        first: first.to_string(),
                    };
                    return Err(Located::new(at, error));
                }
                planned.push(Planned { endpoint, zone: *zone });
            }
        }
    }
    Ok(plan)
}

/// What every block says that has such a directive, in file order.
fn said<T: PluginSpec>(spec: &Spec) -> impl Iterator<Item = &T> {
    spec.blocks.iter().filter_map(|block| block.get())
}

fn build_block(
    index: usize,
    spec: &BlockSpec,
    shared: &Shared,
    endpoints: &[Endpoint],
    ours: &[SocketAddr],
) -> Result<Block> {
    let labels = spec.get::<MetadataSpec>().is_some();
    Ok(Block {
        index,
        id: shared.next_block.fetch_add(1, Relaxed),
        at: spec.at.clone(),
        directives: spec.directives(),
        first_zone: spec.keys.first().map_or(Name::ROOT, |key| key.zone),
        first_server: endpoints.first().map(Endpoint::label).unwrap_or_default(),
        pipeline: Pipeline::build(spec, shared, endpoints, ours)?,
        held: shared.held.clone(),
        nsid: spec
            .get()
            .map(|nsid: &NsidSpec| nsid.data.clone().unwrap_or_else(host_name).into_bytes().into()),
        bufsize: spec.get().map_or(wire::UDP_SIZE, |bufsize: &BufsizeSpec| bufsize.octets).into(),
        log: spec.get().map(|log: &LogSpec| LogRules::new(log.rules.clone(), shared.logger.format(), labels)),
        errors: spec
            .get()
            .map(|errors: &ErrorsSpec| Arc::new(ErrorLog::new(errors.clone(), shared.logger.clone()))),
    })
}

/// What each block's `tls` says, with what stands in its files.
fn certificates(spec: &Spec, shared: &Shared) -> Result<HashMap<usize, Arc<ServerTls>>> {
    let all = shared.lasting.get::<Certificates>();
    let read = |(index, block): (usize, &BlockSpec)| {
        let tls = block.get::<TlsSpec>()?;
        let (now, serves) = (clock::now(), shared.resolve_names);
        let loaded = all.load(&tls.settings, serves, now, &shared.logger);
        Some(
            loaded
                .map(|loaded| (index, loaded))
                .map_err(|error| Located::new(&tls.at, SetupError::Tls { plugin: "tls", error })),
        )
    };
    spec.blocks.iter().enumerate().filter_map(read).collect()
}

/// What a listener of TLS uses: all of its blocks must say the same.
fn shared_tls(
    zones: &[Arc<ServedZone>],
    spec: &Spec,
    tls: &HashMap<usize, Arc<ServerTls>>,
) -> Result<Option<Arc<ServerTls>>> {
    let of = |zone: &Arc<ServedZone>| Some((zone.clone(), tls.get(&zone.block.index)?.clone()));
    let mut each = zones.iter().filter_map(of);
    let Some((first_zone, first)) = each.next() else { return Ok(None) };
    for (zone, other) in each {
        if let Some(why) = first.differs_from(&other) {
            let at = |zone: &ServedZone| spec.blocks[zone.block.index].get::<TlsSpec>().map(|tls| &tls.at);
            let (at, first) =
                (at(&zone).unwrap_or(&zone.block.at), at(&first_zone).unwrap_or(&zone.block.at));
            let port = zone.server.rsplit(':').next().unwrap_or_default();
            let server = format!("tls://{}:{port}", zone.zone);
            return Err(Located::new(at, SetupError::TlsConflict { server, first: first.to_string(), why }));
        }
    }
    Ok(Some(first))
}

fn listener(
    endpoint: Endpoint,
    zones: Vec<Arc<ServedZone>>,
    spec: &Spec,
    tls: &HashMap<usize, Arc<ServerTls>>,
    shared: &Shared,
) -> Result<Listener> {
    let tls = match endpoint.transport {
        Transport::Dns => None,
        Transport::Tls => shared_tls(&zones, spec, tls)?,
    };
    let blocks: Vec<&BlockSpec> = zones.iter().map(|zone| &spec.blocks[zone.block.index]).collect();
    let timeouts = blocks.iter().find_map(|block| block.get()).copied().unwrap_or_default();
    let dropped = blocks.iter().any(|block| block.get::<PrometheusSpec>().is_some()).then(|| {
        let labels = ZoneLabels {
            server: endpoint.label(),
            zone: "dropped".to_owned(),
            cache_zones: String::new(),
            plugin: "",
        };
        shared.zones.zone(&labels, shared.writers)
    });
    Ok(Listener { route: Arc::new(Route::new(zones)), dropped, timeouts, tls, probe: shared.probe })
}

/// How many UDP sockets each address of a configuration has: what `multisocket` says, else one for each core.
pub(crate) fn sockets(spec: &Spec) -> usize {
    let said = said(spec).next().and_then(|multisocket: &MultisocketSpec| multisocket.sockets);
    said.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from).min(MAX_DEFAULT_SOCKETS))
}

/// Zones as the label `zones` has them.
pub(crate) fn zones_label(zones: &[Name]) -> String {
    zones.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn unique(addresses: impl Iterator<Item = AdminAddress>) -> Vec<AdminAddress> {
    let mut unique: Vec<AdminAddress> = addresses.collect();
    unique.sort_unstable();
    unique.dedup();
    unique
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// Sockets, and workers, where the Corefile names no number: more than this rarely pays on a node that has other work.
const MAX_DEFAULT_SOCKETS: usize = 8;

#[cfg(test)]
pub(crate) mod tests;
