//! Builds a [`Configuration`] from a [`Spec`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use admin::AdminAddress;
use corefile::{Located, Location};
use metrics::counters::ZoneLabels;
use node::{SocketKind, SourcePorts};
use plugin::args::Result;
use plugin::endpoint::{Endpoint, Transport, host_text};
use plugin::extensions::Extensions;
use plugin::hooks::Hooks;
use plugin::spec::{BuildContext, Role};
use plugin::{BlockSpec, Key, SetupError, Spec};
use plugins::tls::ServerTls;
use plugins::{
    bind::BindSpec,
    cache::{self, CacheSource, CacheSpec},
    debug::DebugSpec,
    forward::{self, ForwardSource},
    health::HealthSpec,
    hosts,
    https::HttpsLimits,
    kubernetes, multisocket, plugin_cfg,
    prometheus::PrometheusSpec,
    proxyproto::ProxyProtoSpec,
    quic::QuicLimits,
    ready::ReadySpec,
    view::ViewSpec,
};
use query::pipeline::{Forwarding, NamedSource, Pipeline};
use query::route::Route;
use query::{Block, ServedEndpoint, ServedZone};
use wire::Name;

use crate::configuration::{AdminPlan, Configuration, EndpointPlan};
use crate::forward_loops;
use crate::reload_state::PersistentState;
use crate::tls;

/// A function that returns the addresses of an interface that `bind` names, with port 0.
pub type AddressesOf<'a> = &'a dyn Fn(&str) -> std::result::Result<Vec<SocketAddr>, node::NodeError>;

impl Configuration {
    /// Builds the configuration of a Corefile; the serving configuration is not changed.
    ///
    /// # Errors
    /// The first part that cannot be served, with the location of its word in the Corefile.
    pub fn build(spec: &Spec, shared: &PersistentState, addresses_of: AddressesOf<'_>) -> Result<Self> {
        let plan = planned_zones(spec, addresses_of)?;
        kubernetes::keep_snapshots_apart(spec)?;
        // Host names among upstreams are looked up over plain DNS, so a lookup could reach this
        // server only at a plain endpoint.
        let plain = |planned: &&Planned| planned.endpoint.transport == Transport::Dns;
        let ours: Vec<SocketAddr> =
            plan.values().flatten().filter(plain).map(|planned| planned.endpoint.address).collect();
        if shared.resolve_names {
            shared.followed.look_up(spec, &ours, &shared.handle);
        }
        let mut blocks = Vec::new();
        for (index, block) in spec.blocks.iter().enumerate() {
            let endpoints: Vec<Endpoint> = plan[&index].iter().map(|planned| planned.endpoint).collect();
            blocks.push(Arc::new(build_block(index, block, shared, &endpoints, &ours)?));
        }
        // Any block with `prometheus` exposes the counters of all caches.
        let exposes_caches = blocks.iter().any(|block| block.envelope.counts);
        let mut zones = Vec::new();
        let tls = tls::certificates(spec, shared)?;
        let mut by_endpoint: BTreeMap<Endpoint, Vec<Arc<ServedZone>>> = BTreeMap::new();
        for (index, planned) in
            plan.iter().flat_map(|(index, planned)| planned.iter().map(move |p| (*index, p)))
        {
            let block = &blocks[index];
            let server = planned.endpoint.label();
            let queries = block.envelope.counts;
            let keeps = block.pipeline.forwarding().is_some_and(|forwarding| forwarding.cache.is_some());
            let counters = (queries || exposes_caches && keeps).then(|| {
                let plugin = plugin_cfg::named_by_metrics(&block.directives);
                let cache_zones = spec.blocks[index]
                    .get()
                    .map(|cache: &CacheSpec| zones_label(cache, &cache.zones))
                    .unwrap_or_default();
                let labels = ZoneLabels {
                    server: server.clone(),
                    zone: planned.zone.to_string(),
                    view: block.envelope.view_name().to_owned(),
                    cache_zones,
                    plugin,
                    queries,
                };
                shared.zones.zone(&labels, shared.writers)
            });
            let zone = Arc::new(ServedZone {
                index: zones.len(),
                zone: planned.zone,
                block: block.clone(),
                endpoint: planned.endpoint,
                server,
                counters,
            });
            zones.push(zone.clone());
            by_endpoint.entry(planned.endpoint).or_default().push(zone);
        }
        let endpoints = by_endpoint
            .into_iter()
            .map(|(endpoint, zones)| Ok((endpoint, endpoint_plan(endpoint, zones, spec, &tls, shared)?)))
            .collect::<Result<_>>()?;
        let admin = AdminPlan {
            health: unique(spec.specs().map(|health: &HealthSpec| health.address)),
            ready: unique(spec.specs().map(|ready: &ReadySpec| ready.address)),
            metrics: unique(spec.specs().map(|metrics: &PrometheusSpec| metrics.address)),
        };
        let configuration = Self {
            endpoints,
            blocks,
            zones,
            sockets: multisocket::sockets(spec),
            reload: spec.specs().next().copied(),
            lameduck: spec.specs().map(|health: &HealthSpec| health.lameduck).max().unwrap_or_default(),
            admin,
            debug: spec.specs::<DebugSpec>().next().is_some(),
            asks_ready_again: spec.specs().any(|ready: &ReadySpec| ready.continuously),
            keep: hosts::plans(spec, &shared.environment),
            source_ports: SourcePorts::read(),
        };
        forward_loops::remove_loops(spec, &configuration, shared.resolve_names, &shared.logger)?;
        Ok(configuration)
    }
}

/// One zone on one endpoint, before its block is built.
struct Planned {
    endpoint: Endpoint,
    zone: Name,
}

/// Returns the zones and endpoints of each block, and checks that no two blocks without `view` serve a
/// zone on one endpoint.
fn planned_zones(spec: &Spec, addresses_of: AddressesOf<'_>) -> Result<BTreeMap<usize, Vec<Planned>>> {
    let mut plan: BTreeMap<usize, Vec<Planned>> = BTreeMap::new();
    let mut seen: HashMap<(Endpoint, Name), &Location> = HashMap::new();
    // UDP and TCP have ports of their own.
    let mut carried: HashMap<(SocketAddr, SocketKind), (Transport, &Location)> = HashMap::new();
    let mut bound: HashMap<(Name, Transport, u16), (bool, &Location)> = HashMap::new();
    for (index, block) in spec.blocks.iter().enumerate() {
        let bind = block.get::<BindSpec>().map(|bind| bind.addresses(addresses_of)).transpose()?;
        let (is_bound, has_view) = (bind.is_some(), block.get::<ViewSpec>().is_some());
        let hosts = bind
            .unwrap_or_else(|| vec![(Ipv4Addr::UNSPECIFIED, 0).into(), (Ipv6Addr::UNSPECIFIED, 0).into()]);
        let planned = plan.entry(index).or_default();
        for Key { zone, transport, port, at } in &block.keys {
            let scheme = transport.name();
            let mut first = bound.get(&(*zone, *transport, *port)).copied();
            if !has_view {
                first = Some(*bound.entry((*zone, *transport, *port)).or_insert((is_bound, at)));
            }
            if let Some((first_bound, first_at)) = first
                && first_bound != is_bound
            {
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
                let kinds = [(SocketKind::Udp, transport.has_udp()), (SocketKind::Tcp, transport.has_tcp())];
                for (kind, _) in kinds.into_iter().filter(|(_, is_used)| *is_used) {
                    let (carries, first) = *carried.entry((address, kind)).or_insert((*transport, at));
                    if carries != *transport {
                        let server = format!("{scheme}://{zone}:{port}");
                        let error = SetupError::TransportConflict { server, first: first.to_string() };
                        return Err(Located::new(at, error));
                    }
                }
                if !has_view && let Some(first) = seen.insert((endpoint, *zone), at) {
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

fn build_block(
    index: usize,
    spec: &BlockSpec,
    shared: &PersistentState,
    endpoints: &[Endpoint],
    ours: &[SocketAddr],
) -> Result<Block> {
    let servers: Vec<String> = endpoints.iter().map(Endpoint::label).collect();
    let zones = spec.zone_names();
    let lent = Extensions::default();
    let mut context = BuildContext {
        reload_state: &shared.lasting,
        extensions: &lent,
        logger: &shared.logger,
        endpoints,
        servers: &servers,
        zones: &zones,
        plugins: &spec.plugins,
        last_handler: plugin_cfg::handlers(&spec.directives()).next_back(),
        threads: shared.writers,
        hooks: Hooks::default(),
    };
    // Hooks are built first, since sources and steps read `context.envelope` and `context.lent`
    // when they are built.
    for envelope in spec.plugins.iter().filter_map(|(_, role)| role.hooks()) {
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
        envelope: context.hooks,
        lent,
    })
}

/// Builds the steps and sources of a block.
///
/// # Errors
/// A name or a file in the Corefile that cannot be used, with the location of its word.
fn pipeline(
    spec: &BlockSpec,
    shared: &PersistentState,
    endpoints: &[Endpoint],
    ours: &[SocketAddr],
    context: &BuildContext<'_>,
) -> Result<Pipeline> {
    let (mut specs, mut sources, mut tail) = (Vec::new(), Vec::new(), Vec::new());
    for (name, role) in &spec.plugins {
        match role {
            Role::Middleware(step) => specs.push((*name, step)),
            Role::Source(source) => sources.push(NamedSource { name, source: source.build(context)? }),
            Role::Tail(source) => tail.push(NamedSource { name, source: source.build(context)? }),
            Role::Forwarding(_) | Role::Hooks(_) | Role::Setting(_) => {}
        }
    }
    // Steps are built last: they may use what sources put into `context.lent`.
    let built = specs.iter().map(|(name, step)| Ok((*name, step.build(context)?)));
    let steps = built.collect::<Result<Vec<_>>>()?;
    let forwarding = forwarding(spec, shared, endpoints, ours, context)?;
    // A block without handlers refuses everything.
    Ok(Pipeline::new(steps, sources, forwarding, tail, context.last_handler))
}

/// Builds `forward` and the cache around it; a block without `forward` has neither.
///
/// # Errors
/// An upstream that cannot be used, with the location of its word.
fn forwarding(
    spec: &BlockSpec,
    shared: &PersistentState,
    endpoints: &[Endpoint],
    ours: &[SocketAddr],
    context: &BuildContext<'_>,
) -> Result<Option<Forwarding>> {
    let Some(forward) = spec.get() else { return Ok(None) };
    let chain = forward::chain(forward, shared.forward(), ours)?;
    let forward_source =
        NamedSource { name: forward::PLUGIN, source: Box::new(ForwardSource::new(chain.clone(), context)) };
    let cache = spec.get().map(|policy| {
        let partition = shared.cache.partition(&identity(spec, endpoints));
        Arc::new(cache::of_block(policy, partition, context))
    });
    let cache_source = cache
        .clone()
        .map(|cache| NamedSource { name: cache::PLUGIN, source: Box::new(CacheSource::new(cache)) });
    Ok(Some(Forwarding { cache, chain, cache_source, forward_source }))
}

/// Returns the key by which a block's cache is found again after a reload: the block's zones,
/// endpoints and view. Blocks with equal keys are equal in these.
fn identity(spec: &BlockSpec, endpoints: &[Endpoint]) -> String {
    use std::fmt::Write as _;
    let mut identity = String::new();
    for key in &spec.keys {
        let _ = write!(identity, "{}:{} ", key.zone, key.port);
    }
    for endpoint in endpoints {
        let _ = write!(identity, "{endpoint} ");
    }
    if let Some(view) = spec.get::<ViewSpec>() {
        identity.push_str(&view.identity());
    }
    identity
}

fn endpoint_plan(
    endpoint: Endpoint,
    zones: Vec<Arc<ServedZone>>,
    spec: &Spec,
    tls: &HashMap<usize, Arc<ServerTls>>,
    shared: &PersistentState,
) -> Result<EndpointPlan> {
    let tls = match endpoint.transport {
        Transport::Dns => None,
        Transport::Tls | Transport::Https | Transport::Quic => tls::of_listener(&zones, spec, tls)?,
    };
    // Blocks that share an endpoint of another transport may differ in these.
    let of = |transport| blocks_of(&zones, spec).filter(move |_| endpoint.transport == transport);
    let https = HttpsLimits::of_listener(of(Transport::Https).filter_map(BlockSpec::get))?;
    let quic = QuicLimits::of_listener(of(Transport::Quic).filter_map(BlockSpec::get))?;
    let timeouts = zones.iter().find_map(|zone| spec.blocks[zone.block.index].get());
    let timeouts = timeouts.copied().unwrap_or_default();
    let proxy = zones.iter().rev().find_map(|zone| spec.blocks[zone.block.index].get());
    let proxy = proxy.map(|proxy: &ProxyProtoSpec| Arc::new(proxy.build()));
    let dropped = zones.iter().any(|zone| zone.block.envelope.counts).then(|| {
        let labels = ZoneLabels {
            server: endpoint.label(),
            zone: "dropped".to_owned(),
            view: String::new(),
            cache_zones: String::new(),
            plugin: "",
            queries: true,
        };
        shared.zones.zone(&labels, shared.writers)
    });
    let served = ServedEndpoint { route: Arc::new(Route::new(zones)), dropped, probe: shared.probe };
    Ok(EndpointPlan { served, timeouts, proxy, tls, https, quic })
}

/// Returns the blocks of these zones, in file order, each once.
fn blocks_of<'s>(zones: &[Arc<ServedZone>], spec: &'s Spec) -> impl Iterator<Item = &'s BlockSpec> {
    let indices: BTreeSet<usize> = zones.iter().map(|zone| zone.block.index).collect();
    indices.into_iter().filter_map(|index| spec.blocks.get(index))
}

/// Returns the value of the metric label `zones`: the zones of a `cache`, without values of
/// environment variables.
pub fn zones_label(cache: &CacheSpec, zones: &[Name]) -> String {
    let text = || zones.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    cache.shown_zones.clone().unwrap_or_else(text)
}

fn unique(addresses: impl Iterator<Item = AdminAddress>) -> Vec<AdminAddress> {
    let mut unique: Vec<AdminAddress> = addresses.collect();
    unique.sort_unstable();
    unique.dedup();
    unique
}
