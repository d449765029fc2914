//! From `forward` directives to upstreams: addresses, files, host names, certificates.

mod handler;
mod hostname_upstreams;
pub mod metrics;
mod setup;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corefile::{Located, Location};
use files::{FileRead, ShownPath};
use forwarder::{ResolveError, Stanza, Stanzas, TlsSettings, Upstream, UpstreamTlsSpec};
use tls::TlsError;
use wire::Name;

pub use handler::ForwardSource;
use hostname_upstreams::{Names, News, ResolvedNames};
use logging::Logger;
use plugin::args::Result;
use plugin::endpoint::Endpoint;
use plugin::{SetupError, Spec};
pub(crate) use setup::read;
pub use setup::{FILE_INTERVAL, ForwardSpec, ForwardSpecs, ForwardTarget, TlsFiles, odd};

/// The name of the directive.
pub const PLUGIN: &str = "forward";

/// State to build stanzas with, kept across configurations.
#[derive(Clone, Copy)]
pub struct ForwardContext<'s> {
    /// All upstreams, their health and connections.
    pub upstreams: &'s forwarder::Registry,
    /// Counters of all stanzas.
    pub forward: &'s Arc<forwarder::StanzaMetrics>,
    /// The servers of the node's network, if the target 168.63.129.16 stands for them.
    pub node_upstreams: Option<&'s node::Upstreams>,
    /// Files and names of upstreams that are checked for changes.
    pub followed: &'s Followed,
    /// The runtime that looks names up.
    pub handle: &'s tokio::runtime::Handle,
    /// Whether host names among upstreams are looked up; false if nothing will be forwarded.
    pub resolve_names: bool,
    /// Logs targets that are left out.
    pub logger: &'s Logger,
}

/// Returns the upstreams that would send a stanza's queries back to it. Needs the whole
/// configuration.
pub type Ourselves<'s> = &'s dyn Fn(&Stanza, &[Arc<Upstream>]) -> Vec<Arc<Upstream>>;

/// Result of a check of files and names.
#[derive(Debug, PartialEq, Eq)]
pub struct Looked {
    /// When the next check is due; `None` for never.
    pub next: Option<Instant>,
    /// Whether a stanza has other upstreams.
    pub changed: bool,
}

/// Returns the warning for an upstream that is this server itself.
pub fn left_out(upstream: Endpoint) -> String {
    format!(
        "plugin/forward: the upstream {upstream} is this server itself: queries would return to this block, so it is left out"
    )
}

/// Builds the stanzas of a block.
///
/// A target or property cannot be used; the error has its location. `ours`, this server's own
/// addresses, are not queried for the names of upstreams.
pub fn chain(spec: &ForwardSpecs, context: ForwardContext<'_>, ours: &[SocketAddr]) -> Result<Arc<Stanzas>> {
    let stanzas = spec.stanzas.iter().map(|spec| stanza(spec, context, ours)).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Stanzas::new(stanzas)))
}

fn stanza(spec: &ForwardSpec, context: ForwardContext<'_>, ours: &[SocketAddr]) -> Result<Arc<Stanza>> {
    let lists = spec.files().map(|(path, at)| List::read(path, at)).collect::<Result<Vec<_>>>()?;
    let resolver = Resolver { spec, context, lists: &lists };
    // The change counter is read before the list, so that the next check notices a later change.
    let changes = resolver.of_node().map(node::Upstreams::changes);
    let Found { upstreams, passed_over } = resolver.upstreams()?;
    let stanza = Stanza::new(spec.stanza.clone(), upstreams, context.forward.clone()).map_err(|_| {
        let rule = "at most 15 upstreams can stand in one `forward`";
        Located::new(&spec.at, SetupError::Order { plugin: "forward", rule })
    })?;
    for error in passed_over {
        context.logger.warning(None, &format!("{error:#}; until then it is passed over"));
    }
    let stanza = Arc::new(stanza);
    context.followed.follow(spec, ours, context, &stanza, (lists, changes));
    Ok(stanza)
}

struct Resolver<'s> {
    spec: &'s ForwardSpec,
    context: ForwardContext<'s>,
    /// The contents of the stanza's files.
    lists: &'s [List],
}

/// The upstreams of a stanza's targets.
#[derive(Default)]
struct Found {
    /// The upstreams of all targets, in file order, without duplicates.
    upstreams: Vec<Arc<Upstream>>,
    /// Errors of targets that have no upstreams yet.
    passed_over: Vec<Located<SetupError>>,
}

impl Resolver<'_> {
    /// Returns the servers of the node's network, if a target stands for them.
    fn of_node(&self) -> Option<&node::Upstreams> {
        let upstreams = self.context.node_upstreams?;
        self.spec.targets.iter().any(|(target, _)| target.port_of_node().is_some()).then_some(upstreams)
    }

    /// Returns the upstreams of all targets. Files without a name server and names that cannot be
    /// resolved are skipped if other targets remain.
    fn upstreams(&self) -> Result<Found> {
        let mut found = Found::default();
        for (target, at) in &self.spec.targets {
            let addresses = match self.addresses(target, at) {
                Ok(addresses) => addresses,
                Err(error)
                    if matches!(
                        error.error,
                        SetupError::NoNameservers(_) | SetupError::Unresolved { .. }
                    ) =>
                {
                    found.passed_over.push(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            for (address, tls) in addresses {
                let source = self.spec.source;
                if let Some(source_address) = source.filter(|source| source.is_ipv4() != address.is_ipv4()) {
                    return Err(Located::new(
                        at,
                        SetupError::SourceFamily { upstream: address, source_address },
                    ));
                }
                let upstream = self.context.upstreams.upstream(address, tls, source);
                if !found.upstreams.iter().any(|known| Arc::ptr_eq(known, &upstream)) {
                    found.upstreams.push(upstream);
                }
            }
        }
        let is_host = |(target, _): &(ForwardTarget, Location)| matches!(target, ForwardTarget::Host { .. });
        let may_be_left = !self.context.resolve_names && self.spec.targets.iter().any(is_host);
        match found.passed_over.is_empty() || !found.upstreams.is_empty() || may_be_left {
            true => Ok(found),
            false => Err(found.passed_over.swap_remove(0)),
        }
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
                let servers = self.lists.iter().find(|list| list.path == *path).map(|list| &list.servers);
                match servers.filter(|servers| !servers.is_empty()) {
                    Some(servers) => Ok(servers.iter().map(|server| (*server, None)).collect()),
                    None => Err(Located::new(at, SetupError::NoNameservers(path.clone()))),
                }
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

    /// Returns the addresses of a host name, from the lookup of all names of the configuration.
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
            let file = self.spec.tls_at.iter().find(|(path, _)| Some(path) == error.file());
            let word = match error {
                TlsError::ServerName(_) => own_name.map(|(_, at)| at),
                _ => file.map(|(_, at)| at),
            };
            Located::new(word.unwrap_or(at), SetupError::Tls { plugin: "forward", error })
        })?;
        Ok(Arc::new(settings))
    }
}

/// Files and names of upstreams that are checked for changes while their stanzas are in use.
#[derive(Default)]
pub struct Followed {
    files: Mutex<Files>,
    names: Names,
}

#[derive(Default)]
struct Files {
    follows: Vec<FollowedForward>,
    /// When all files and names are checked again.
    due: Option<Instant>,
}

struct FollowedForward {
    spec: ForwardSpec,
    ours: Vec<SocketAddr>,
    stanza: std::sync::Weak<Stanza>,
    lists: Vec<List>,
    names: ResolvedNames,
    /// The change counter of the node's network, if a target stands for its servers.
    of_node: Option<u64>,
    /// The reason why the current files and names are not used.
    refused: Option<String>,
}

/// A file of upstreams.
struct List {
    path: ShownPath,
    at: Location,
    /// The last text.
    text: Vec<u8>,
    /// The servers in the last text that had any.
    servers: Vec<SocketAddr>,
    look: FileRead<std::io::Result<Vec<u8>>>,
}

impl List {
    fn read(path: &ShownPath, at: &Location) -> Result<Self> {
        let of = |error| Located::new(at, SetupError::File { plugin: "forward", path: path.clone(), error });
        let text = read_list(path).map_err(of)?;
        let servers = resolv_conf(text.clone()).map_err(of)?;
        Ok(Self { path: path.clone(), at: at.clone(), text, servers, look: FileRead::default() })
    }

    /// Stores a new text of the file. Returns whether the servers have changed; a text without
    /// servers changes nothing.
    ///
    /// # Errors
    /// The reason why the servers stay unchanged.
    fn take(&mut self, text: Vec<u8>) -> Result<bool> {
        self.text.clone_from(&text);
        let (plugin, path) = ("forward", self.path.clone());
        let servers = resolv_conf(text)
            .map_err(|error| Located::new(&self.at, SetupError::File { plugin, path, error }))?;
        if servers.is_empty() && !self.servers.is_empty() {
            return Err(Located::new(&self.at, SetupError::NoNameservers(self.path.clone())));
        }
        Ok(std::mem::replace(&mut self.servers, servers.clone()) != servers)
    }
}

impl Followed {
    /// Looks up every host name among the upstreams of a configuration, within 4 s in total, and
    /// replaces all results. Servers in `ours` are not queried.
    pub fn look_up(&self, spec: &Spec, ours: &[SocketAddr], handle: &tokio::runtime::Handle) {
        let stanzas = spec.specs().flat_map(|forward: &ForwardSpecs| &forward.stanzas);
        self.names.look_up(stanzas, ours, handle);
    }

    /// Starts checking the files and names of a stanza. `lists` are the stanza's files, and
    /// `of_node` is the change counter of the node's network, if a target stands for its servers.
    fn follow(
        &self,
        spec: &ForwardSpec,
        ours: &[SocketAddr],
        context: ForwardContext<'_>,
        stanza: &Arc<Stanza>,
        (lists, of_node): (Vec<List>, Option<u64>),
    ) {
        let names = match context.resolve_names {
            true => ResolvedNames::new(spec, &self.names),
            false => ResolvedNames::default(),
        };
        if lists.is_empty() && names.is_empty() && of_node.is_none() {
            return;
        }
        let (spec, ours, stanza) = (spec.clone(), ours.to_vec(), Arc::downgrade(stanza));
        self.files().follows.push(FollowedForward {
            spec,
            ours,
            stanza,
            lists,
            names,
            of_node,
            refused: None,
        });
    }

    /// Checks every file, and names with expired results. A change gives the stanza a new list of
    /// upstreams, without this server itself. A file that is missing or has no nameserver changes
    /// nothing, nor does a list that would become empty; both are logged.
    ///
    /// Waits for each file for at most `patience`; the result of a slower read is used at the next
    /// check.
    pub fn look(
        &self,
        context: ForwardContext<'_>,
        ourselves: Ourselves<'_>,
        now: Instant,
        patience: Duration,
        logger: &Logger,
    ) -> Looked {
        let mut files = self.files();
        files.follows.retain(|follow| follow.stanza.strong_count() > 0);
        let begin = files.due.is_none_or(|due| due <= now);
        if begin {
            files.due = Some(now + FILE_INTERVAL);
        }
        let mut next = files.due.unwrap_or(now + FILE_INTERVAL);
        let mut changed = false;
        for follow in &mut files.follows {
            let Some(stanza) = follow.stanza.upgrade() else { continue };
            let news = follow.names.look(now, &follow.ours, context.handle);
            if let News::Failed(error) = &news {
                stays(logger, error);
            }
            let of_node = follow.node_changed(context);
            // After an address leaves this machine, an upstream may no longer be this server.
            let again = begin && follow.refused.is_some();
            if follow.changed(begin, now, patience, logger) || of_node || news == News::Changed || again {
                follow.names.publish(&self.names);
                changed |= follow.apply(&stanza, context, ourselves, logger);
            }
            for list in follow.lists.iter().filter(|list| list.look.is_pending()) {
                next = next.min(list.look.next_poll(now));
            }
        }
        Looked { next: (!files.follows.is_empty()).then_some(next), changed }
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

    fn changed(&mut self, begin: bool, now: Instant, patience: Duration, logger: &Logger) -> bool {
        let mut changed = false;
        for list in &mut self.lists {
            if begin {
                let of = list.path.clone();
                list.look.start(&list.path, now, move || Ok(files::read(&of, MAX_LIST)?));
            }
            if let Some(Ok(Ok(found))) = list.look.poll(now, patience)
                && found != list.text
            {
                match list.take(found) {
                    Ok(others) => changed |= others,
                    Err(error) => stays(logger, &format!("{error:#}")),
                }
            }
        }
        changed
    }

    /// Gives the stanza its current upstreams. Returns whether the upstreams have changed.
    fn apply(
        &mut self,
        stanza: &Stanza,
        context: ForwardContext<'_>,
        ourselves: Ourselves<'_>,
        logger: &Logger,
    ) -> bool {
        let resolver = Resolver { spec: &self.spec, context, lists: &self.lists };
        let found = resolver.upstreams().map_err(|error| format!("{error:#}"));
        let outcome = found.and_then(|Found { upstreams, .. }| {
            let ourselves = ourselves(stanza, &upstreams);
            let upstream = |upstream: &Arc<Upstream>| {
                Endpoint::of_upstream(upstream.address(), upstream.tls().is_some())
            };
            if let Some(last) = ourselves.last().filter(|_| ourselves.len() == upstreams.len()) {
                return Err(SetupError::Circle { upstream: upstream(last) }.to_string());
            }
            let warnings: Vec<String> = ourselves.iter().map(|one| left_out(upstream(one))).collect();
            let set = stanza.set_upstreams_but(upstreams, ourselves);
            set.map(|()| warnings).map_err(|error| error.to_string())
        });
        match outcome {
            Ok(warnings) => {
                let asked: Vec<_> = stanza.upstreams().iter().map(|one| one.address().to_string()).collect();
                logger.info(Some("forward"), &format!("upstreams changed: {}", asked.join(" ")));
                warnings.iter().for_each(|warning| logger.warning(None, warning));
                self.refused = None;
                true
            }
            Err(error) => {
                if self.refused.as_ref() != Some(&error) {
                    stays(logger, &error);
                }
                self.refused = Some(error);
                false
            }
        }
    }
}

fn stays(logger: &Logger, error: &str) {
    logger.error(Some("forward"), &format!("upstreams stay as they were: {error}"));
}

impl ForwardTarget {
    /// Returns the port, if the target stands for the servers of the node's network.
    pub fn port_of_node(&self) -> Option<u16> {
        match self {
            Self::Address { address, tls: false, .. } if address.ip() == node::WIRE_SERVER => {
                Some(address.port())
            }
            _ => None,
        }
    }
}

/// Returns the same server, with its link, at another port.
fn with_port(mut server: SocketAddr, port: u16) -> SocketAddr {
    server.set_port(port);
    server
}

impl ForwardSpec {
    fn files(&self) -> impl Iterator<Item = (&ShownPath, &Location)> {
        self.targets.iter().filter_map(|(target, at)| match target {
            ForwardTarget::File(path) => Some((path, at)),
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

/// Reads a file of upstreams.
pub(crate) fn read_list(path: &Path) -> std::io::Result<Vec<u8>> {
    Ok(files::read_with_timeout(path, MAX_LIST)?)
}

/// Maximum bytes of a file of upstreams; a resolv.conf has some hundred.
const MAX_LIST: u64 = 1 << 20;
