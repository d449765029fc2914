//! From `forward` directives to upstreams: addresses, files, host names, certificates.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use corefile::{Located, Location};
use forwarder::{Chain, Group, ResolveError, TlsSettings, TlsSpec, Upstream};
use wire::Name;

use crate::house::Shared;
use crate::observe::Logger;
use crate::setup::args::Result;
use crate::setup::{ForwardSpec, SetupError, Target};

/// The stanzas of a block, ready to be asked; `None` without any.
///
/// # Errors
/// At the target or property that cannot be used. An upstream that is one of `ours`, this server's own addresses, is
/// refused: every query would go round in circles.
pub(crate) fn chain(
    specs: &[ForwardSpec],
    shared: &Shared,
    ours: &[SocketAddr],
) -> Result<Option<Arc<Chain>>> {
    if specs.is_empty() {
        return Ok(None);
    }
    let groups = specs.iter().map(|spec| group(spec, shared, ours)).collect::<Result<Vec<_>>>()?;
    Ok(Some(Arc::new(Chain::new(groups))))
}

fn group(spec: &ForwardSpec, shared: &Shared, ours: &[SocketAddr]) -> Result<Arc<Group>> {
    let resolver = Resolver { spec, shared, ours: ours.to_vec() };
    let upstreams = resolver.upstreams()?;
    let group = Group::new(spec.group.clone(), upstreams, shared.forward.clone()).map_err(|_| {
        let rule = "at most 15 upstreams can stand in one `forward`";
        Located::new(&spec.at, SetupError::Order { plugin: "forward", rule })
    })?;
    let group = Arc::new(group);
    if spec.targets.iter().any(|(target, _)| matches!(target, Target::File(_))) {
        shared.followed.follow(spec.clone(), ours.to_vec(), &group);
    }
    Ok(group)
}

struct Resolver<'s> {
    spec: &'s ForwardSpec,
    shared: &'s Shared,
    ours: Vec<SocketAddr>,
}

impl Resolver<'_> {
    /// Every target's upstreams, in written order, each once.
    fn upstreams(&self) -> Result<Vec<Arc<Upstream>>> {
        let mut upstreams: Vec<Arc<Upstream>> = Vec::new();
        for (target, at) in &self.spec.targets {
            for (address, tls) in self.addresses(target, at)? {
                if is_ours(address, &self.ours) {
                    return Err(Located::new(at, SetupError::UpstreamIsOurs { upstream: address }));
                }
                let upstream = self.shared.upstreams.upstream(address, tls);
                if !upstreams.iter().any(|known| Arc::ptr_eq(known, &upstream)) {
                    upstreams.push(upstream);
                }
            }
        }
        Ok(upstreams)
    }

    fn addresses(
        &self,
        target: &Target,
        at: &Location,
    ) -> Result<Vec<(SocketAddr, Option<Arc<TlsSettings>>)>> {
        match target {
            Target::Address { address, tls, server_name } => {
                let settings = tls.then(|| self.tls(server_name.as_deref(), at)).transpose()?;
                Ok(vec![(*address, settings)])
            }
            Target::File(path) => {
                let addresses = read_resolv_conf(path).map_err(|error| {
                    Located::new(at, SetupError::File { plugin: "forward", path: path.clone(), error })
                })?;
                if addresses.is_empty() {
                    return Err(Located::new(at, SetupError::NoNameservers(path.clone())));
                }
                Ok(addresses.into_iter().map(|address| (address, None)).collect())
            }
            Target::Host { .. } if !self.shared.resolve_names => Ok(Vec::new()),
            Target::Host { name, port, tls } => {
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

    /// The addresses of a host name: each server is asked in turn, `resolver`'s or those of the system.
    fn resolve(&self, name: &Name) -> std::result::Result<Vec<IpAddr>, ResolveError> {
        let servers = match self.spec.resolvers.as_slice() {
            [] => read_resolv_conf(Path::new("/etc/resolv.conf")).unwrap_or_default(),
            resolvers => resolvers.to_vec(),
        };
        let mut last = ResolveError::NoServer(*name);
        for server in servers {
            match self.shared.handle.block_on(forwarder::resolve(name, &[server], &self.ours)) {
                Ok(addresses) => return Ok(addresses),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn tls(&self, server_name: Option<&str>, at: &Location) -> Result<Arc<TlsSettings>> {
        let files = self.spec.tls.clone().unwrap_or_default();
        let name = self.spec.tls_servername.as_deref().or(server_name);
        let spec =
            TlsSpec { client: files.client, authority: files.ca, server_name: name.map(str::to_owned) };
        let settings = TlsSettings::load(&spec)
            .map_err(|error| Located::new(at, SetupError::Tls { plugin: "forward", error }))?;
        Ok(Arc::new(settings))
    }
}

/// Files of upstreams that are followed while their stanzas are in use.
#[derive(Default)]
pub struct Followed {
    files: Mutex<Vec<Follow>>,
}

struct Follow {
    spec: ForwardSpec,
    ours: Vec<SocketAddr>,
    group: std::sync::Weak<Group>,
    seen: Vec<(PathBuf, Vec<u8>)>,
}

impl Followed {
    fn follow(&self, spec: ForwardSpec, ours: Vec<SocketAddr>, group: &Arc<Group>) {
        let seen =
            spec.files().map(|path| (path.to_owned(), std::fs::read(path).unwrap_or_default())).collect();
        let follow = Follow { spec, ours, group: Arc::downgrade(group), seen };
        self.files.lock().unwrap_or_else(PoisonError::into_inner).push(follow);
    }

    /// Looks at every file; one that changed and names other upstreams gives its stanza a new list. A file that is gone,
    /// has no nameserver or names only ourselves changes nothing, and that is said.
    pub fn look(&self, shared: &Shared, now: Instant, logger: &Logger) -> Option<Instant> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|follow| follow.group.strong_count() > 0);
        for follow in files.iter_mut() {
            let Some(group) = follow.group.upgrade() else { continue };
            if follow.changed() {
                follow.apply(&group, shared, logger);
            }
        }
        (!files.is_empty()).then(|| now + crate::setup::FILE_INTERVAL)
    }
}

impl Follow {
    fn changed(&mut self) -> bool {
        let mut changed = false;
        for (path, seen) in &mut self.seen {
            if let Ok(text) = std::fs::read(&*path)
                && text != *seen
            {
                *seen = text;
                changed = true;
            }
        }
        changed
    }

    fn apply(&self, group: &Group, shared: &Shared, logger: &Logger) {
        let resolver = Resolver { spec: &self.spec, shared, ours: self.ours.clone() };
        let outcome = resolver.upstreams().map_err(|error| format!("{error:#}")).and_then(|upstreams| {
            let addresses: Vec<String> =
                upstreams.iter().map(|upstream| upstream.address().to_string()).collect();
            group.set_upstreams(upstreams).map(|()| addresses.join(" ")).map_err(|error| error.to_string())
        });
        match outcome {
            Ok(addresses) => logger.info(Some("forward"), &format!("upstreams changed: {addresses}")),
            Err(error) => logger.error(Some("forward"), &format!("upstreams stay as they were: {error}")),
        }
    }
}

impl ForwardSpec {
    fn files(&self) -> impl Iterator<Item = &Path> {
        self.targets.iter().filter_map(|(target, _)| match target {
            Target::File(path) => Some(path.as_path()),
            _ => None,
        })
    }
}

fn read_resolv_conf(path: &Path) -> std::io::Result<Vec<SocketAddr>> {
    std::fs::read_to_string(path)
        .map(|text| forwarder::resolv_conf::parse(&text, forwarder::resolv_conf::interface_index))
}

/// Whether queries to `upstream` would come back to one of `ours`; a wildcard has every local address.
fn is_ours(upstream: SocketAddr, ours: &[SocketAddr]) -> bool {
    ours.iter().any(|own| {
        own.port() == upstream.port()
            && (own.ip() == upstream.ip()
                || (own.ip().is_unspecified()
                    && (upstream.ip().is_unspecified() || node::has_address(upstream.ip()))))
    })
}
