//! From `forward` directives to upstreams: addresses, files, host names, certificates.

mod handler;
pub mod metrics;
mod names;
mod setup;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corefile::{Located, Location};
use forwarder::{Chain, ResolveError, Stanza, TlsError, TlsSettings, Upstream, UpstreamTlsSpec};
use readfile::Look;
use wire::Name;

pub use handler::ForwardSource;
use names::{Names, News, ResolvedNames};
use observe::Logger;
use plugin::args::Result;
use plugin::endpoint::Endpoint;
use plugin::{SetupError, Spec};
pub(crate) use setup::read;
pub use setup::{FILE_INTERVAL, ForwardSpec, ForwardSpecs, ForwardTarget, TlsFiles, odd};

/// The directive.
pub const PLUGIN: &str = "forward";

/// What stanzas are built with, of what outlives configurations.
#[derive(Clone, Copy)]
pub struct ForwardContext<'s> {
    /// All upstreams, their health and connections.
    pub upstreams: &'s forwarder::Registry,
    /// What is counted of all stanzas.
    pub forward: &'s Arc<forwarder::StanzaMetrics>,
    /// Whom 168.63.129.16 stands for, where it stands for the servers of the node's network.
    pub node_upstreams: Option<&'s node::Upstreams>,
    /// Files and names of upstreams that are followed.
    pub followed: &'s Followed,
    /// The runtime that looks names up.
    pub handle: &'s tokio::runtime::Handle,
    /// Whether host names among upstreams are looked up; not where nothing will be asked.
    pub resolve_names: bool,
}

/// Who knows which of these upstreams, if any, sends a stanza's queries back to it: whoever has the whole configuration.
pub type LeadsBack<'s> = &'s dyn Fn(&Stanza, &[Arc<Upstream>]) -> Option<Endpoint>;

/// The stanzas of a block, ready to be asked.
///
/// # Errors
/// At the target or property that cannot be used. `ours`, this server's own addresses, are not asked for the names of
/// upstreams.
pub fn chain(spec: &ForwardSpecs, context: ForwardContext<'_>, ours: &[SocketAddr]) -> Result<Arc<Chain>> {
    let stanzas = spec.stanzas.iter().map(|spec| stanza(spec, context, ours)).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Chain::new(stanzas)))
}

fn stanza(spec: &ForwardSpec, context: ForwardContext<'_>, ours: &[SocketAddr]) -> Result<Arc<Stanza>> {
    let resolver = Resolver { spec, context, lists: &[] };
    // Before the list is read: what changes meanwhile is seen by the next look.
    let changes = resolver.of_node().map(node::Upstreams::changes);
    let upstreams = resolver.upstreams()?;
    let stanza = Stanza::new(spec.stanza.clone(), upstreams, context.forward.clone()).map_err(|_| {
        let rule = "at most 15 upstreams can stand in one `forward`";
        Located::new(&spec.at, SetupError::Order { plugin: "forward", rule })
    })?;
    let stanza = Arc::new(stanza);
    let may_change =
        |target: &ForwardTarget| matches!(target, ForwardTarget::File(_) | ForwardTarget::Host { .. });
    if changes.is_some() || spec.targets.iter().any(|(target, _)| may_change(target)) {
        context.followed.follow(spec.clone(), ours.to_vec(), &stanza, changes);
    }
    Ok(stanza)
}

struct Resolver<'s> {
    spec: &'s ForwardSpec,
    context: ForwardContext<'s>,
    /// Files that are read already.
    lists: &'s [List],
}

impl Resolver<'_> {
    /// The servers of the node's network, where a target stands for them.
    fn of_node(&self) -> Option<&node::Upstreams> {
        let upstreams = self.context.node_upstreams?;
        self.spec.targets.iter().any(|(target, _)| target.port_of_node().is_some()).then_some(upstreams)
    }

    /// Every target's upstreams, in written order, each once.
    fn upstreams(&self) -> Result<Vec<Arc<Upstream>>> {
        let mut upstreams: Vec<Arc<Upstream>> = Vec::new();
        for (target, at) in &self.spec.targets {
            for (address, tls) in self.addresses(target, at)? {
                let source = self.spec.source;
                if let Some(source_address) = source.filter(|source| source.is_ipv4() != address.is_ipv4()) {
                    return Err(Located::new(
                        at,
                        SetupError::SourceFamily { upstream: address, source_address },
                    ));
                }
                let upstream = self.context.upstreams.upstream(address, tls, source);
                if !upstreams.iter().any(|known| Arc::ptr_eq(known, &upstream)) {
                    upstreams.push(upstream);
                }
            }
        }
        Ok(upstreams)
    }

    fn addresses(
        &self,
        target: &ForwardTarget,
        at: &Location,
    ) -> Result<Vec<(SocketAddr, Option<Arc<TlsSettings>>)>> {
        if let (Some(port), Some(upstreams)) = (target.port_of_node(), self.context.node_upstreams)
            && let list = upstreams.list()
            && !list.is_empty()
        {
            return Ok(list.iter().map(|server| (with_port(*server, port), None)).collect());
        }
        match target {
            ForwardTarget::Address { address, tls, server_name } => {
                let settings = tls.then(|| self.tls(server_name.as_deref(), at)).transpose()?;
                Ok(vec![(*address, settings)])
            }
            ForwardTarget::File(path) => {
                let text = match self.lists.iter().find(|list| list.path == *path) {
                    Some(list) => Ok(list.text.clone()),
                    None => read_list(path),
                };
                let addresses = text.and_then(resolv_conf).map_err(|error| {
                    Located::new(at, SetupError::File { plugin: "forward", path: path.clone(), error })
                })?;
                if addresses.is_empty() {
                    return Err(Located::new(at, SetupError::NoNameservers(path.clone())));
                }
                Ok(addresses.into_iter().map(|address| (address, None)).collect())
            }
            ForwardTarget::Host { .. } if !self.context.resolve_names => Ok(Vec::new()),
            ForwardTarget::Host { name, port, tls } => {
                let found = self.resolve(name).map_err(|error| {
                    Located::new(at, SetupError::Unresolved { name: name.to_string(), error })
                })?;
                let mut addresses = Vec::new();
                for ip in found {
                    let address = SocketAddr::new(ip, *port);
                    let text = name.to_string();
                    let server_name = text.trim_end_matches('.');
                    let settings = tls.then(|| self.tls(Some(server_name), at)).transpose()?;
                    addresses.push((address, settings));
                }
                Ok(addresses)
            }
        }
    }

    /// The addresses of a host name, as they were found with all others of the configuration.
    fn resolve(&self, name: &Name) -> std::result::Result<Vec<IpAddr>, Box<ResolveError>> {
        let found = self.context.followed.names.find(&(*name, self.spec.resolvers.clone()));
        found.unwrap_or_else(|| Err(Box::new(ResolveError::NoServer(*name)))).map(|found| found.addresses)
    }

    fn tls(&self, server_name: Option<&str>, at: &Location) -> Result<Arc<TlsSettings>> {
        let files = self.spec.tls.clone().unwrap_or_default();
        let own_name = self.spec.tls_servername.as_ref();
        let name = own_name.map(|(name, _)| name.as_str()).or(server_name);
        let spec = UpstreamTlsSpec {
            client: files.client,
            authority: files.ca,
            server_name: name.map(str::to_owned),
        };
        let settings = TlsSettings::load(&spec).map_err(|error| {
            let file = self.spec.tls_at.iter().find(|(path, _)| Some(path.as_path()) == error.file());
            let word = match error {
                TlsError::ServerName(_) => own_name.map(|(_, at)| at),
                _ => file.map(|(_, at)| at),
            };
            Located::new(word.unwrap_or(at), SetupError::Tls { plugin: "forward", error })
        })?;
        Ok(Arc::new(settings))
    }
}

/// Files and names of upstreams that are followed while their stanzas are in use.
#[derive(Default)]
pub struct Followed {
    files: Mutex<Files>,
    names: Names,
}

#[derive(Default)]
struct Files {
    follows: Vec<FollowedForward>,
    /// When all are looked at again.
    due: Option<Instant>,
}

struct FollowedForward {
    spec: ForwardSpec,
    ours: Vec<SocketAddr>,
    stanza: std::sync::Weak<Stanza>,
    lists: Vec<List>,
    names: ResolvedNames,
    /// How often the servers of the node's network had changed, where a target stands for them.
    of_node: Option<u64>,
}

/// A file of upstreams as it was seen last.
struct List {
    path: PathBuf,
    text: Vec<u8>,
    look: Look<std::io::Result<Vec<u8>>>,
}

impl Followed {
    /// Looks up every host name among the upstreams of a configuration, at most 4 s for all, in place of what was known
    /// before. `ours` are not asked.
    pub fn look_up(&self, spec: &Spec, ours: &[SocketAddr], handle: &tokio::runtime::Handle) {
        let stanzas = spec.said().flat_map(|forward: &ForwardSpecs| &forward.stanzas);
        self.names.look_up(stanzas, ours, handle);
    }

    fn follow(&self, spec: ForwardSpec, ours: Vec<SocketAddr>, stanza: &Arc<Stanza>, of_node: Option<u64>) {
        let list = |path: &Path| {
            let text = read_list(path).unwrap_or_default();
            List { path: path.to_owned(), text, look: Look::default() }
        };
        let lists: Vec<_> = spec.files().map(list).collect();
        let names = ResolvedNames::new(&spec, &self.names);
        if lists.is_empty() && names.is_empty() && of_node.is_none() {
            return;
        }
        let follow = FollowedForward { spec, ours, stanza: Arc::downgrade(stanza), lists, names, of_node };
        self.files().follows.push(follow);
    }

    /// Looks at every file and at names whose time is over, and says when it will be the next time; `None` for never. What
    /// changed gives its stanza a new list. A file that is gone, has no nameserver or names one that leads back here
    /// changes nothing, and that is said.
    ///
    /// Each file is waited for, for at most `patience`; what one that takes longer says is for the next time.
    pub fn look(
        &self,
        context: ForwardContext<'_>,
        leads_back: LeadsBack<'_>,
        now: Instant,
        patience: Duration,
        logger: &Logger,
    ) -> Option<Instant> {
        let mut files = self.files();
        files.follows.retain(|follow| follow.stanza.strong_count() > 0);
        let begin = files.due.is_none_or(|due| due <= now);
        if begin {
            files.due = Some(now + FILE_INTERVAL);
        }
        let mut next = files.due?;
        for follow in &mut files.follows {
            let Some(stanza) = follow.stanza.upgrade() else { continue };
            let news = follow.names.look(now, &follow.ours, context.handle);
            if let News::Failed(error) = &news {
                logger.error(Some("forward"), &format!("upstreams stay as they were: {error}"));
            }
            let of_node = follow.node_changed(context);
            if follow.changed(begin, now, patience) || of_node || news == News::Changed {
                follow.names.publish(&self.names);
                follow.apply(&stanza, context, leads_back, logger);
            }
            for list in follow.lists.iter().filter(|list| list.look.goes_on()) {
                next = next.min(list.look.again(now));
            }
        }
        (!files.follows.is_empty()).then_some(next)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FollowedForward {
    fn node_changed(&mut self, context: ForwardContext<'_>) -> bool {
        let (Some(seen), Some(upstreams)) = (&mut self.of_node, context.node_upstreams) else { return false };
        let changes = upstreams.changes();
        std::mem::replace(seen, changes) != changes
    }

    fn changed(&mut self, begin: bool, now: Instant, patience: Duration) -> bool {
        let mut changed = false;
        for List { path, text, look } in &mut self.lists {
            if begin {
                let of = path.clone();
                look.begin(path, now, move || Ok(readfile::read(&of, MAX_LIST)?));
            }
            if let Some(Ok(Ok(found))) = look.take(now, patience)
                && found != *text
            {
                *text = found;
                changed = true;
            }
        }
        changed
    }

    fn apply(
        &self,
        stanza: &Stanza,
        context: ForwardContext<'_>,
        leads_back: LeadsBack<'_>,
        logger: &Logger,
    ) {
        let resolver = Resolver { spec: &self.spec, context, lists: &self.lists };
        let outcome = resolver.upstreams().map_err(|error| format!("{error:#}")).and_then(|upstreams| {
            if let Some(upstream) = leads_back(stanza, &upstreams) {
                return Err(SetupError::Circle { upstream }.to_string());
            }
            let addresses: Vec<String> =
                upstreams.iter().map(|upstream| upstream.address().to_string()).collect();
            stanza.set_upstreams(upstreams).map(|()| addresses.join(" ")).map_err(|error| error.to_string())
        });
        match outcome {
            Ok(addresses) => logger.info(Some("forward"), &format!("upstreams changed: {addresses}")),
            Err(error) => logger.error(Some("forward"), &format!("upstreams stay as they were: {error}")),
        }
    }
}

impl ForwardTarget {
    /// The port at which it stands for the servers of the node's network, where those are known.
    pub fn port_of_node(&self) -> Option<u16> {
        match self {
            Self::Address { address, tls: false, .. } if address.ip() == node::WIRE_SERVER => {
                Some(address.port())
            }
            _ => None,
        }
    }
}

/// The same server, its link too, at another port.
fn with_port(mut server: SocketAddr, port: u16) -> SocketAddr {
    server.set_port(port);
    server
}

impl ForwardSpec {
    fn files(&self) -> impl Iterator<Item = &Path> {
        self.targets.iter().filter_map(|(target, _)| match target {
            ForwardTarget::File(path) => Some(path.as_path()),
            _ => None,
        })
    }
}

pub(crate) fn read_resolv_conf(path: &Path) -> std::io::Result<Vec<SocketAddr>> {
    read_list(path).and_then(resolv_conf)
}

fn resolv_conf(text: Vec<u8>) -> std::io::Result<Vec<SocketAddr>> {
    let text = String::from_utf8(text).map_err(|_| std::io::ErrorKind::InvalidData)?;
    Ok(node::name_servers(&text))
}

/// A list of servers.
pub(crate) fn read_list(path: &Path) -> std::io::Result<Vec<u8>> {
    Ok(readfile::read_in_time(path, MAX_LIST)?)
}

/// A resolv.conf has some hundred octets.
const MAX_LIST: u64 = 1 << 20;
