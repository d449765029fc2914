//! Builds a configuration aside.
//!
//! ```text
//! Spec -> addresses -> blocks with their pipelines -> a route for each listen address
//! ```
//! Nothing here binds a socket. What must outlive a reload (cache, upstreams' health, hosts tables, counters) comes from
//! [`Shared`] and is found again by its identity.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use admin::AdminAddress;
use corefile::{Located, Location};
use node::SourcePorts;
use observe::counters::ZoneLabels;
use plugin::args::Result;
use plugin::endpoint::{Endpoint, Transport, host_text};
use plugin::envelope::Envelope;
use plugin::lent::Lent;
use plugin::spec::{BuildContext, PluginSpec, Role};
use plugin::{BlockSpec, Key, SetupError, Spec};
use plugins::tls::{Certificates, ServerTls, TlsSpec};
use plugins::{
    bind::BindSpec,
    cache::{self, CacheSpec, Kept},
    debug::DebugSpec,
    forward::{self, Asks, ForwardSpecs},
    health::HealthSpec,
    hosts::HostsSpec,
    kubernetes::KubernetesSpec,
    multisocket::MultisocketSpec,
    prometheus::PrometheusSpec,
    ready::ReadySpec,
    table,
};
use query::pipeline::{Forwarding, Named, Pipeline};
use query::route::Route;
use query::{Block, ServedEndpoint, ServedZone};
use refresher::Environment;
use wire::Name;

use crate::circles;
use crate::serving::{AdminPlan, Configuration, Listener};
use crate::shared::Shared;

/// Looks up what the machine says about a name in `bind`; ports are 0.
pub type AddressesOf<'a> = &'a dyn Fn(&str) -> std::result::Result<Vec<SocketAddr>, node::NodeError>;

impl Configuration {
    /// Builds a configuration from a configuration; nothing that serves now is touched.
    ///
    /// # Errors
    /// What cannot be served, at the word that says so.
    pub fn build(spec: &Spec, shared: &Shared, addresses_of: AddressesOf<'_>) -> Result<Self> {
        let plan = plan_listeners(spec, addresses_of)?;
        keep_snapshots_apart(spec)?;
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
            let counters = block.envelope.counts.then(|| {
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
        let configuration = Self {
            listeners,
            blocks,
            zones,
            sockets: sockets(spec),
            reload: said(spec).next().copied(),
            lameduck: said(spec).map(|health: &HealthSpec| health.lameduck).max().unwrap_or_default(),
            admin,
            debug: said::<DebugSpec>(spec).next().is_some(),
            asks_ready_again: said(spec).any(|ready: &ReadySpec| ready.continuously),
            keep: plans(spec, &shared.environment),
            source_ports: SourcePorts::read(),
        };
        circles::refuse(spec, &configuration)?;
        Ok(configuration)
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

/// Refuses one file for the snapshots of two clusters.
fn keep_snapshots_apart(spec: &Spec) -> Result<()> {
    let mut kept: Vec<&KubernetesSpec> = Vec::new();
    for block in &spec.blocks {
        let Some(cluster) = block.get::<KubernetesSpec>().filter(|cluster| cluster.snapshot.is_some()) else {
            continue;
        };
        if kept.iter().any(|other| cluster.is_in_the_way_of(other)) {
            let rule = "another block keeps something else, or at other times, in the file that `snapshot` names; name two files";
            return Err(Located::new(&block.at, SetupError::Order { plugin: "kubernetes", rule }));
        }
        kept.push(cluster);
    }
    Ok(())
}

fn build_block(
    index: usize,
    spec: &BlockSpec,
    shared: &Shared,
    endpoints: &[Endpoint],
    ours: &[SocketAddr],
) -> Result<Block> {
    let servers: Vec<String> = endpoints.iter().map(Endpoint::label).collect();
    let zones = spec.zone_names();
    let lent = Lent::default();
    let mut context = BuildContext {
        lasting: &shared.lasting,
        lent: &lent,
        logger: &shared.logger,
        servers: &servers,
        zones: &zones,
        plugins: &spec.plugins,
        threads: shared.writers,
        envelope: Envelope::default(),
    };
    // Sources and steps may want to know what is around them.
    for envelope in spec.plugins.iter().filter_map(|(_, role)| role.envelope()) {
        envelope.build(&mut context);
    }
    Ok(Block {
        index,
        id: shared.next_block.fetch_add(1, Relaxed),
        at: spec.at.clone(),
        directives: spec.directives(),
        first_zone: spec.keys.first().map_or(Name::ROOT, |key| key.zone),
        first_server: endpoints.first().map(Endpoint::label).unwrap_or_default(),
        pipeline: pipeline(spec, shared, endpoints, ours, &context)?,
        held: shared.held.clone(),
        envelope: context.envelope,
        lent,
    })
}

/// What acts and answers in a block.
///
/// # Errors
/// What the Corefile names and the machine does not have, at its word.
fn pipeline(
    spec: &BlockSpec,
    shared: &Shared,
    endpoints: &[Endpoint],
    ours: &[SocketAddr],
    context: &BuildContext<'_>,
) -> Result<Pipeline> {
    let (mut specs, mut sources, mut tail) = (Vec::new(), Vec::new(), Vec::new());
    for (name, role) in &spec.plugins {
        match role {
            Role::Step(step) => specs.push(step),
            Role::Source(source) => sources.push(Named { name, source: source.build(context) }),
            Role::Tail(source) => tail.push(Named { name, source: source.build(context) }),
            Role::Forwarding(_) | Role::Envelope(_) | Role::Setting(_) => {}
        }
    }
    // Steps may want what sources lend.
    let steps = specs.iter().map(|step| step.build(context)).collect::<Result<Vec<_>>>()?;
    let forwarding = forwarding(spec, shared, endpoints, ours, context)?;
    // A block without handlers refuses everything.
    let last = table::handlers(&spec.directives()).next_back();
    Ok(Pipeline::new(steps, sources, forwarding, tail, last))
}

/// What asks upstreams for a block, with what keeps their answers around it; without `forward` there are none to keep.
///
/// # Errors
/// Upstreams that cannot be used, at their word.
fn forwarding(
    spec: &BlockSpec,
    shared: &Shared,
    endpoints: &[Endpoint],
    ours: &[SocketAddr],
    context: &BuildContext<'_>,
) -> Result<Option<Forwarding>> {
    let Some(forward) = spec.get() else { return Ok(None) };
    let chain = forward::chain(forward, shared.forward(), ours)?;
    let asks = Named { name: forward::PLUGIN, source: Box::new(Asks::new(chain.clone(), context)) };
    let cache = spec.get().map(|policy: &CacheSpec| {
        let partition = shared.cache.partition(&identity(spec, endpoints));
        cache::of_block(policy, partition, context)
    });
    let kept = cache.clone().map(|cache| Named { name: cache::PLUGIN, source: Box::new(Kept::new(cache)) });
    Ok(Some(Forwarding { cache, chain, kept, asks }))
}

/// The same block keeps its answers over a reload: what counts are its zones and where it listens.
fn identity(spec: &BlockSpec, endpoints: &[Endpoint]) -> String {
    use std::fmt::Write as _;
    let mut identity = String::new();
    for key in &spec.keys {
        let _ = write!(identity, "{}:{} ", key.zone, key.port);
    }
    for endpoint in endpoints {
        let _ = write!(identity, "{endpoint} ");
    }
    identity
}

/// What is to be kept: the Corefile's properties and the environment in one.
pub fn plans(spec: &Spec, environment: &Environment) -> Vec<refresher::RefreshPlan> {
    let hosts = spec.blocks.iter().filter_map(|block| block.get::<HostsSpec>());
    let hosts: Vec<_> = hosts.map(|hosts| (hosts.file.as_path(), &hosts.refresh)).collect();
    refresher::plan(&hosts, environment)
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
    let timeouts = zones.iter().find_map(|zone| spec.blocks[zone.block.index].get());
    let timeouts = timeouts.copied().unwrap_or_default();
    let dropped = zones.iter().any(|zone| zone.block.envelope.counts).then(|| {
        let labels = ZoneLabels {
            server: endpoint.label(),
            zone: "dropped".to_owned(),
            cache_zones: String::new(),
            plugin: "",
        };
        shared.zones.zone(&labels, shared.writers)
    });
    let served = ServedEndpoint { route: Arc::new(Route::new(zones)), dropped, probe: shared.probe };
    Ok(Listener { served, timeouts, tls })
}

/// How many UDP sockets each address of a configuration has: what `multisocket` says, else one for each core.
pub fn sockets(spec: &Spec) -> usize {
    let said = said(spec).next().and_then(|multisocket: &MultisocketSpec| multisocket.sockets);
    said.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from).min(MAX_DEFAULT_SOCKETS))
}

/// Zones as the label `zones` has them.
pub fn zones_label(zones: &[Name]) -> String {
    zones.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn unique(addresses: impl Iterator<Item = AdminAddress>) -> Vec<AdminAddress> {
    let mut unique: Vec<AdminAddress> = addresses.collect();
    unique.sort_unstable();
    unique.dedup();
    unique
}

/// Sockets, and workers, where the Corefile names no number: more than this rarely pays on a node that has other work.
const MAX_DEFAULT_SOCKETS: usize = 8;
