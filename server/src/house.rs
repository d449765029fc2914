//! The house: a configuration ready to serve, built aside and swapped in whole.
//!
//! ```text
//! Spec -> addresses -> blocks with their pipelines -> a route for each listen address
//! ```
//! Nothing here binds a socket. What must outlive a reload (cache, upstreams' health, hosts tables, counters) comes from
//! [`Shared`] and is found again by its identity.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use corefile::{Located, Location};
use wire::{Flags, Name, OPTION_NSID, Query, Reply};

use crate::observe::counters::{Tally, ZoneLabels, ZoneRegistry, ZoneSet};
use crate::observe::{ErrorLog, LogRules, Logger};
use crate::pipeline::Pipeline;
use crate::plugin::hosts::HostsRegistry;
use crate::route::Route;
use crate::setup::args::Result;
use crate::setup::{AdminAddress, BlockSpec, ReloadSpec, SetupError, Spec, TimeoutsSpec};

/// What outlives every configuration.
pub struct Shared {
    /// All blocks' answers.
    pub cache: cache::Cache,
    /// All upstreams, their health and connections.
    pub upstreams: forwarder::Registry,
    /// What is counted of `forward`.
    pub forward: Arc<forwarder::GroupMetrics>,
    /// Files of upstreams that are followed.
    pub followed: crate::dial::Followed,
    /// All hosts tables.
    pub hosts: HostsRegistry,
    /// All zones' counters.
    pub zones: Arc<ZoneRegistry>,
    /// What is counted of templates.
    pub templates: crate::plugin::template::TemplateRegistry,
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

/// One configuration, ready to serve.
pub struct House {
    /// Every listen address with the zones served there, sorted.
    pub listeners: BTreeMap<SocketAddr, Listener>,
    /// Every server block, in file order.
    pub blocks: Vec<Arc<Block>>,
    /// Every served zone, by its index.
    pub zones: Vec<Arc<ServedZone>>,
    /// What `multisocket` asks for.
    pub workers: Option<usize>,
    /// `reload`, the first that stands in the file.
    pub reload: Option<ReloadSpec>,
    /// How long to go on after SIGTERM: the longest `lameduck`.
    pub lameduck: Duration,
    /// Admin listeners.
    pub admin: AdminPlan,
    /// Whether `debug` stands anywhere.
    pub debug: bool,
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

/// One listen address.
pub struct Listener {
    /// Which zone answers.
    pub route: Route,
    /// What is counted of queries that no zone answers; only where some block has `prometheus`.
    pub dropped: Option<ZoneSet>,
    /// TCP limits; the first block that has `timeouts` decides for its address.
    pub timeouts: TimeoutsSpec,
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
    /// Its first listen address, as `dns://ADDRESS:PORT`.
    pub first_server: String,
    /// What answers.
    pub pipeline: Pipeline,
    /// The identifier sent to those who ask for it.
    pub nsid: Option<Box<[u8]>>,
    /// The largest UDP reply.
    pub bufsize: usize,
    /// Which queries are logged.
    pub log: Option<LogRules>,
    /// Where failures are logged.
    pub errors: Option<Arc<ErrorLog>>,
}

/// One zone of one block on one listen address.
pub struct ServedZone {
    /// Its place in [`House::zones`].
    pub index: usize,
    /// The zone.
    pub zone: Name,
    /// The block that serves it.
    pub block: Arc<Block>,
    /// `dns://ADDRESS:PORT`.
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
    pub fn finish(&self, query: &Query<'_>, mut reply: Reply<'_>, limit: usize) -> (Flags, usize) {
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

/// Looks up what the machine says about a name in `bind`.
pub type AddressesOf<'a> = &'a dyn Fn(&str) -> std::result::Result<Vec<IpAddr>, node::NodeError>;

impl House {
    /// Builds a house from a configuration; nothing that serves now is touched.
    ///
    /// # Errors
    /// What cannot be served, at the word that says so.
    pub fn build(spec: &Spec, shared: &Shared, addresses_of: AddressesOf<'_>) -> Result<Self> {
        let plan = plan_listeners(spec, addresses_of)?;
        let ours: Vec<SocketAddr> = plan.values().flatten().map(|planned| planned.address).collect();
        let mut blocks = Vec::new();
        for (index, block) in spec.blocks.iter().enumerate() {
            let addresses: Vec<SocketAddr> = plan[&index].iter().map(|planned| planned.address).collect();
            blocks.push(Arc::new(build_block(index, block, shared, &addresses, &ours)?));
        }
        let mut zones = Vec::new();
        let mut by_address: BTreeMap<SocketAddr, Vec<Arc<ServedZone>>> = BTreeMap::new();
        for (index, planned) in
            plan.iter().flat_map(|(index, planned)| planned.iter().map(move |p| (*index, p)))
        {
            let block = &blocks[index];
            let server = server_label(planned.address);
            let counters = spec.blocks[index].prometheus.map(|_| {
                let plugin = plugin_label(&block.directives);
                let labels = ZoneLabels { server: server.clone(), zone: planned.zone.to_string(), plugin };
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
            by_address.entry(planned.address).or_default().push(zone);
        }
        let listeners = by_address
            .into_iter()
            .map(|(address, zones)| (address, listener(address, zones, spec, shared)))
            .collect();
        let admin = AdminPlan {
            health: unique(spec.blocks.iter().filter_map(|block| block.health.map(|health| health.address))),
            ready: unique(spec.blocks.iter().filter_map(|block| block.ready.map(|ready| ready.address))),
            metrics: unique(
                spec.blocks.iter().filter_map(|block| block.prometheus.map(|metrics| metrics.address)),
            ),
        };
        Ok(Self {
            listeners,
            blocks,
            zones,
            workers: spec.blocks.iter().find_map(|block| block.multisocket).flatten(),
            reload: spec.blocks.iter().find_map(|block| block.reload),
            lameduck: spec
                .blocks
                .iter()
                .filter_map(|b| b.health.map(|h| h.lameduck))
                .max()
                .unwrap_or_default(),
            admin,
            debug: spec.blocks.iter().any(|block| block.debug),
        })
    }

    /// The lines that CoreDNS prints at start: `ZONE:PORT` and, where bound, ` on ADDRESS`.
    pub fn banner(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .zones
            .iter()
            .map(|zone| {
                let address = zone.server.trim_start_matches("dns://");
                match address.rsplit_once(':') {
                    Some(("", port)) => format!("{}:{port}", zone.zone),
                    Some((host, port)) => {
                        format!(
                            "{}:{port} on {}",
                            zone.zone,
                            host.trim_start_matches('[').trim_end_matches(']')
                        )
                    }
                    None => zone.zone.to_string(),
                }
            })
            .collect();
        lines.dedup();
        lines
    }
}

/// One zone on one address, before its block is built.
struct Planned {
    address: SocketAddr,
    zone: Name,
}

/// Which block serves which zone on which address, and that none is served twice.
fn plan_listeners(spec: &Spec, addresses_of: AddressesOf<'_>) -> Result<BTreeMap<usize, Vec<Planned>>> {
    let mut plan: BTreeMap<usize, Vec<Planned>> = BTreeMap::new();
    let mut seen: HashMap<(SocketAddr, Name), &Location> = HashMap::new();
    let mut bound: HashMap<(Name, u16), (bool, &Location)> = HashMap::new();
    for (index, block) in spec.blocks.iter().enumerate() {
        let bind = block.bind.addresses(addresses_of)?;
        let hosts: Vec<IpAddr> = if block.bind.targets.is_empty() {
            vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
        } else {
            bind.clone()
        };
        let planned = plan.entry(index).or_default();
        for (zone, port, at) in &block.zones {
            let is_bound = !block.bind.targets.is_empty();
            let (first_bound, first_at) = *bound.entry((*zone, *port)).or_insert((is_bound, at));
            if first_bound != is_bound {
                let error = SetupError::Overlap {
                    server: format!("dns://{zone}:{port}"),
                    first: first_at.to_string(),
                };
                return Err(Located::new(at, error));
            }
            for host in &hosts {
                let address = SocketAddr::new(*host, *port);
                if let Some(first) = seen.insert((address, *zone), at) {
                    let on = if is_bound { format!(" on {host}") } else { String::new() };
                    let error = SetupError::AlreadyDefined {
                        server: format!("dns://{zone}:{port}{on}"),
                        first: first.to_string(),
                    };
                    return Err(Located::new(at, error));
                }
                planned.push(Planned { address, zone: *zone });
            }
        }
    }
    Ok(plan)
}

fn build_block(
    index: usize,
    spec: &BlockSpec,
    shared: &Shared,
    addresses: &[SocketAddr],
    ours: &[SocketAddr],
) -> Result<Block> {
    Ok(Block {
        index,
        id: shared.next_block.fetch_add(1, Relaxed),
        at: spec.at.clone(),
        directives: spec.directives.clone(),
        first_zone: spec.zones.first().map_or(Name::ROOT, |(zone, ..)| *zone),
        first_server: addresses.first().map(|&address| server_label(address)).unwrap_or_default(),
        pipeline: Pipeline::build(spec, shared, addresses, ours)?,
        nsid: spec.nsid.as_ref().map(|data| data.clone().unwrap_or_else(host_name).into_bytes().into()),
        bufsize: usize::from(spec.bufsize.unwrap_or(wire::UDP_SIZE)),
        log: (!spec.log.is_empty()).then(|| LogRules::new(spec.log.clone(), shared.logger.format())),
        errors: spec.errors.clone().map(|errors| Arc::new(ErrorLog::new(errors, shared.logger.clone()))),
    })
}

fn listener(address: SocketAddr, zones: Vec<Arc<ServedZone>>, spec: &Spec, shared: &Shared) -> Listener {
    let blocks: Vec<&BlockSpec> = zones.iter().map(|zone| &spec.blocks[zone.block.index]).collect();
    let timeouts = blocks.iter().find_map(|block| block.timeouts).unwrap_or_default();
    let dropped = blocks.iter().any(|block| block.prometheus.is_some()).then(|| {
        let labels = ZoneLabels { server: server_label(address), zone: "dropped".to_owned(), plugin: "" };
        shared.zones.zone(&labels, shared.writers)
    });
    Listener { route: Route::new(zones), dropped, timeouts, probe: shared.probe }
}

/// `dns://ADDRESS:PORT`; the wildcard of either family is `dns://:PORT`.
pub(crate) fn server_label(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("dns://:{}", address.port()),
        false => format!("dns://{address}"),
    }
}

/// CoreDNS names the plugin right below prometheus in its chain, whoever answers.
fn plugin_label(directives: &[&'static str]) -> &'static str {
    const NO_HANDLER: &[&str] = &[
        "root",
        "timeouts",
        "multisocket",
        "reload",
        "nsid",
        "bufsize",
        "bind",
        "debug",
        "ready",
        "health",
        "prometheus",
    ];
    directives.iter().copied().find(|name| !NO_HANDLER.contains(name)).unwrap_or_default()
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::control::{Draft, Origin};
    use crate::observe::Format;
    use crate::observe::counters::Proto;
    use crate::observe::logger::tests::Paper;
    use crate::plugin::Moment;
    use crate::serve::{self, Room, Served};
    use hickory_proto::op::Message;
    use std::time::Instant;
    use tokio::runtime::{Builder, Runtime};
    use wire::{Answer, Gate, RType, Rcode, accept};

    /// A house built from a Corefile, asked without a socket, at a time that only the test moves.
    pub(crate) struct Scene {
        pub(crate) house: House,
        pub(crate) shared: Shared,
        pub(crate) paper: Paper,
        pub(crate) now: Instant,
        pub(crate) room: Room,
        _runtime: Runtime,
    }

    impl Scene {
        pub(crate) fn new(corefile: &str) -> Self {
            Self::build(corefile).unwrap_or_else(|error| panic!("{error}"))
        }

        /// The first line of the error where the house cannot be built.
        pub(crate) fn build(corefile: &str) -> std::result::Result<Self, String> {
            let runtime = Builder::new_current_thread().build().unwrap();
            let (logger, paper) = Paper::logger(Format::Text);
            let now = crate::clock::now();
            let (mut shared, _probes) = Shared::new(1 << 20, 1, runtime.handle(), logger, now);
            shared.resolve_names = false;
            let house = Self::read(corefile, &shared)?;
            house.look_at_files(&shared, now, &shared.logger);
            Ok(Self { house, shared, paper, now, room: Room::Datagram, _runtime: runtime })
        }

        fn read(corefile: &str, shared: &Shared) -> std::result::Result<House, String> {
            let origin = Origin::Text(corefile.into());
            let draft = Draft::read(&origin, 53).map_err(|error| format!("{error:#}"))?;
            let addresses = |name: &str| match name {
                "eth0" => Ok(vec!["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()]),
                name => Err(node::NodeError::InterfaceAbsent { name: name.to_owned() }),
            };
            House::build(&draft.spec, shared, &addresses).map_err(|error| format!("{error:#}"))
        }

        /// Serves another Corefile, as a reload does.
        pub(crate) fn reload(&mut self, corefile: &str) {
            self.house = Self::read(corefile, &self.shared).unwrap_or_else(|error| panic!("{error}"));
            self.house.look_at_files(&self.shared, self.now, &self.shared.logger);
        }

        fn listener(&self, at: &str) -> &Listener {
            &self.house.listeners[&at.parse::<SocketAddr>().unwrap()]
        }

        /// Sends a packet to a listen address.
        pub(crate) fn send(&self, at: &str, packet: &[u8]) -> Sent {
            let moment =
                Moment { now: self.now, client: "192.0.2.200:40000".parse().unwrap(), proto: Proto::Udp };
            let mut out = b"left over".to_vec();
            let gate = accept(packet);
            match serve::serve(self.listener(at), gate, &moment, 0, self.room, &mut out) {
                Served::Nothing => Sent::Nothing,
                Served::Reply(outcome) | Served::ReplyAndRefresh(outcome, ..) => {
                    let message = Message::from_vec(&out).expect("every reply can be read");
                    Sent::Reply(Box::new((message, out, outcome)))
                }
                Served::Ask { patience, .. } => Sent::Ask(patience),
            }
        }

        /// Asks for a name and tells the reply as one line; `forward` and the patience where an upstream is to be asked.
        pub(crate) fn ask(&self, at: &str, name: &str, rtype: RType) -> String {
            self.send(at, &packet(name, rtype, None)).to_string()
        }

        /// Has an upstream answer with these records, as `name ttl A address`; none of them is NXDOMAIN with an SOA.
        pub(crate) fn keep(&self, at: &str, name: &str, rtype: RType, records: &[&str]) {
            let packet = packet(name, rtype, None);
            let Gate::Pass(query) = accept(&packet) else { panic!("refused") };
            let zone = self.listener(at).route.find(&query).unwrap();
            let room = zone.block.pipeline.dial().unwrap().cache.as_ref().unwrap();
            let mut made = crate::zonetext::Records::new(query.question);
            for record in records {
                made.push(wire::Section::Answer, record).unwrap();
            }
            if records.is_empty() {
                made.push(wire::Section::Authority, "example.org. 60 IN SOA ns. admin. 1 2 3 4 60").unwrap();
            }
            let (body, counts) = made.finish();
            let mut reply = packet[..4].to_vec();
            reply[2] |= 0x80;
            reply[3] |= if records.is_empty() { 3 } else { 0 };
            reply.extend_from_slice(&[0, 1]);
            reply.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
            reply.extend_from_slice(query.question);
            reply.extend_from_slice(&body);
            let mut answer = Answer::default();
            answer.read(&reply, query.question).unwrap();
            let stored = room.partition.store(&room.policy, &query, &mut answer, self.now);
            assert!(matches!(stored, cache::Stored::Kept(_)), "{name}: {stored:?}");
        }
    }

    /// What came back for a packet.
    pub(crate) enum Sent {
        Nothing,
        Reply(Box<(Message, Vec<u8>, serve::Outcome)>),
        Ask(Option<Duration>),
    }

    impl Sent {
        pub(crate) fn message(&self) -> &Message {
            match self {
                Self::Reply(reply) => &reply.0,
                _ => panic!("no reply"),
            }
        }
    }

    impl std::fmt::Display for Sent {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let message = match self {
                Self::Nothing => return f.write_str("nothing"),
                Self::Ask(None) => return f.write_str("forward"),
                Self::Ask(Some(patience)) => return write!(f, "forward, {patience:?}"),
                Self::Reply(reply) => &reply.0,
            };
            write!(f, "{}", Rcode(message.response_code.into()))?;
            f.write_str(if message.authoritative { " aa" } else { "" })?;
            f.write_str(if message.truncation { " tc" } else { "" })?;
            for (section, records) in [
                ("", &message.answers),
                (" authority", &message.authorities),
                (" additional", &message.additionals),
            ] {
                for record in records {
                    write!(f, ";{section} {record}")?;
                }
            }
            Ok(())
        }
    }

    /// A query with RD; with the data of an OPT record, if there is one.
    pub(crate) fn packet(name: &str, rtype: RType, options: Option<&[u8]>) -> Vec<u8> {
        let mut packet = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".to_vec();
        for label in name.split('.').filter(|label| !label.is_empty()) {
            packet.push(label.len() as u8);
            packet.extend_from_slice(label.as_bytes());
        }
        packet.push(0);
        packet.extend_from_slice(&rtype.0.to_be_bytes());
        packet.extend_from_slice(&[0, 1]);
        if let Some(options) = options {
            packet[11] = 1;
            packet.extend_from_slice(b"\0\0\x29\x10\0\0\0\0\0");
            packet.extend_from_slice(&(options.len() as u16).to_be_bytes());
            packet.extend_from_slice(options);
        }
        packet
    }

    #[test]
    fn a_zone_is_served_once_on_each_address() {
        const DEFINED: &str = "it is already defined at";
        const MIXED: &str = "one is bound to addresses, the other listens everywhere; give both a `bind`";
        for (corefile, error) in [
            (
                ". {\nwhoami\n}\n. {\nwhoami\n}\n",
                format!("stdin:4:1: cannot serve dns://.:53 - {DEFINED} stdin:1:1"),
            ),
            (
                ". {\nbind 127.0.0.1\n}\n.:53 {\nbind 127.0.0.1\n}\n",
                format!("stdin:4:1: cannot serve dns://.:53 on 127.0.0.1 - {DEFINED} stdin:1:1"),
            ),
            (
                ". {\nbind eth0\n}\n. {\nbind 192.0.2.10\n}\n",
                format!("stdin:4:1: cannot serve dns://.:53 on 192.0.2.10 - {DEFINED} stdin:1:1"),
            ),
            (
                "a.org b.org A.org {\nwhoami\n}\n",
                format!("stdin:1:13: cannot serve dns://a.org.:53 - {DEFINED} stdin:1:1"),
            ),
            (
                "10.0.0.0/24 0.0.10.in-addr.arpa {\nwhoami\n}\n",
                format!("stdin:1:13: cannot serve dns://0.0.10.in-addr.arpa.:53 - {DEFINED} stdin:1:1"),
            ),
            (
                ". {\nbind 127.0.0.1\n}\n. {\nwhoami\n}\n",
                format!(
                    "stdin:4:1: cannot serve dns://.:53 - zone overlap listener capacity with stdin:1:1: {MIXED}"
                ),
            ),
            (
                ". {\nwhoami\n}\n. {\nbind 127.0.0.1\n}\n",
                format!(
                    "stdin:4:1: cannot serve dns://.:53 - zone overlap listener capacity with stdin:1:1: {MIXED}"
                ),
            ),
            (
                ". {\nbind eth9\n}\n",
                "stdin:2:6: plugin/bind: no interface \"eth9\" on this machine".to_owned(),
            ),
            (
                ". {\nbind eth0 {\nexcept 192.0.2.10 2001:db8::10\n}\n}\n",
                "stdin:2:6: plugin/bind: `except` leaves no address to listen on".to_owned(),
            ),
        ] {
            assert_eq!(Scene::build(corefile).err(), Some(error), "{corefile}");
        }
    }

    #[test]
    fn equal_zones_on_different_addresses_or_ports_are_served() {
        let scene = Scene::new(
            ". {\nbind 127.0.0.1\nwhoami\n}\n. {\nbind 127.0.0.2\nwhoami\n}\n.:54 example.org {\nwhoami\n}\n",
        );
        let listeners: Vec<String> = scene.house.listeners.keys().map(ToString::to_string).collect();
        assert_eq!(
            listeners,
            ["0.0.0.0:53", "0.0.0.0:54", "127.0.0.1:53", "127.0.0.2:53", "[::]:53", "[::]:54"]
        );
        assert_eq!(
            scene.house.banner(),
            [".:53 on 127.0.0.1", ".:53 on 127.0.0.2", ".:54", "example.org.:53"]
        );
    }

    #[test]
    fn servers_are_labelled_as_coredns_labels_them() {
        let scene = Scene::new(
            ". {\nbind 127.0.0.1 ::1\nprometheus\nerrors\ncache\nforward . 192.0.2.53\n}\nexample.org:5300 {\nprometheus\nwhoami\n}\n",
        );
        let mut labels: Vec<_> = scene
            .shared
            .zones
            .all()
            .into_iter()
            .map(|(labels, _)| (labels.server, labels.zone, labels.plugin))
            .collect();
        labels.sort();
        let expected = [
            ("dns://127.0.0.1:53", ".", "errors"),
            ("dns://127.0.0.1:53", "dropped", ""),
            ("dns://:5300", "dropped", ""),
            ("dns://:5300", "example.org.", "whoami"),
            ("dns://[::1]:53", ".", "errors"),
            ("dns://[::1]:53", "dropped", ""),
        ];
        assert_eq!(labels, expected.map(|(server, zone, plugin)| (server.into(), zone.into(), plugin)));
    }

    #[test]
    fn what_stands_in_several_blocks_is_gathered() {
        let scene = Scene::new(
            "a. {\nhealth :8080 {\nlameduck 5s\n}\nready\nprometheus :9253\nreload 10s 2s\nwhoami\n}\n\
             b. {\nhealth :8080 {\nlameduck 7s\n}\nready 127.0.0.1:8181\nprometheus :9253\nmultisocket 3\ndebug\nwhoami\n}\n",
        );
        let house = &scene.house;
        let ports = |addresses: &[AdminAddress]| -> Vec<String> {
            addresses
                .iter()
                .map(|a| format!("{}:{}", a.host.map_or(String::new(), |h| h.to_string()), a.port))
                .collect()
        };
        assert_eq!(ports(&house.admin.health), [":8080"]);
        assert_eq!(ports(&house.admin.ready), [":8181", "127.0.0.1:8181"]);
        assert_eq!(ports(&house.admin.metrics), [":9253"]);
        assert_eq!((house.lameduck, house.workers, house.debug), (Duration::from_secs(7), Some(3), true));
        assert_eq!(house.reload.map(|reload| reload.interval), Some(Duration::from_secs(10)));
    }
}
