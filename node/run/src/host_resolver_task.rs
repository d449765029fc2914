//! Makes the host's resolver send lookups to the server once the server answers, on a thread that
//! may block.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::host_resolver::{HostResolver, HostResolverError};
use crate::upstream_discovery;
use node::{Diagnosis, Listener};

/// Applies, checks and removes the host-resolver setting.
#[derive(Debug)]
pub(crate) struct HostResolverTask {
    resolver: HostResolver,
    /// The resolv.conf of the node's network.
    upstreams: PathBuf,
    /// Whether lookups must be sent to the server; clearing the flag ends a pending wait.
    wanted: Arc<AtomicBool>,
    putting: Option<JoinHandle<Put>>,
    /// The server address of the setting that is applied or being applied.
    server: Option<IpAddr>,
    state: HostResolverState,
    /// When a failed try is repeated, or the applied setting is checked next.
    again: Option<Instant>,
    /// Why a stop would leave the host without a name server.
    lost_original: Option<Diagnosis>,
    /// Errors of removing settings of another `-host-resolver`; `None` until that was tried.
    left: Option<Vec<Diagnosis>>,
}

/// The result of a try, and the errors of removing other settings, if that was tried, too.
type Put = (Result<Option<PathBuf>, HostResolverError>, Option<Vec<Diagnosis>>);

/// Progress of the setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostResolverState {
    /// Not tried yet.
    NotYet,
    /// Applied by this file; `None` for `-host-resolver none`.
    Put(Option<PathBuf>),
    /// The error.
    Failed(Diagnosis),
}

impl HostResolverTask {
    /// Creates the task, without a change of the host's resolver.
    pub(crate) fn new(resolver: HostResolver, upstreams: PathBuf) -> Self {
        let state = if resolver == HostResolver::None {
            HostResolverState::Put(None)
        } else {
            HostResolverState::NotYet
        };
        let wanted = Arc::new(AtomicBool::new(true));
        Self {
            resolver,
            upstreams,
            wanted,
            putting: None,
            server: None,
            state,
            again: None,
            lost_original: None,
            left: None,
        }
    }

    /// Returns the current state.
    pub(crate) fn state(&self) -> &HostResolverState {
        &self.state
    }

    /// Returns problems that do not keep the setting from working.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &Diagnosis> {
        self.left.iter().flatten().chain(&self.lost_original)
    }

    /// Applies the setting, applies it again if the server no longer listens at its address, if
    /// another program removed it, or after an error, and collects results. Returns true once the
    /// first try has ended.
    pub(crate) async fn goes_on(&mut self, listeners: &[Listener]) -> bool {
        if self.putting.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(putting) = self.putting.take()
        {
            self.state = match putting.await {
                Ok((Ok(path), left)) => {
                    self.left = left.or_else(|| self.left.take());
                    HostResolverState::Put(path)
                }
                Ok((Err(error), _)) => HostResolverState::Failed(Diagnosis::from(&error)),
                Err(panic) => HostResolverState::Failed(Diagnosis::without_remedy(panic.to_string())),
            };
            self.again = Some(Instant::now() + AGAIN);
            self.lost_original = HostResolver::lost_original().as_ref().map(Diagnosis::from);
        }
        let is_time = self.again.is_none_or(|again| again <= Instant::now());
        if let (HostResolverState::Put(Some(path)), Some(server)) = (&self.state, self.server)
            && is_time
            && self.putting.is_none()
        {
            self.again = Some(Instant::now() + AGAIN);
            self.lost_original = HostResolver::lost_original().as_ref().map(Diagnosis::from);
            if !self.resolver.is_put(path, server) {
                let problem = format!("{} was removed by another program", path.display());
                self.state = HostResolverState::Failed(Diagnosis::new(problem, "it is restored"));
            }
        }
        // A reload may remove the address of the setting.
        let is_gone = self.server.is_some_and(|put| listeners.iter().all(|one| one.address != put));
        let begin = match &self.state {
            HostResolverState::NotYet => true,
            HostResolverState::Put(path) => path.is_some() && is_gone,
            HostResolverState::Failed(_) => is_time || is_gone,
        };
        if begin
            && self.putting.is_none()
            && let Some(server) = server(listeners)
        {
            self.server = Some(server);
            let (resolver, upstreams, wanted) = (self.resolver, self.upstreams.clone(), self.wanted.clone());
            let clears = self.left.is_none();
            self.putting = Some(spawn_blocking(move || {
                let put = resolver.put(server, &|| upstream_discovery::text_of(&upstreams), &wanted);
                let clears = clears && put.is_ok() && wanted.load(Relaxed);
                (put, clears.then(|| clear(resolver)))
            }));
        }
        self.state != HostResolverState::NotYet
    }

    /// Restores the host's resolver; returns the errors.
    pub(crate) async fn take_back(&mut self) -> Vec<HostResolverError> {
        self.wanted.store(false, Relaxed);
        if let Some(putting) = self.putting.take() {
            let _ = putting.await;
        }
        if self.resolver == HostResolver::None {
            return Vec::new();
        }
        spawn_blocking(HostResolver::take_back).await.map(|(_, failed)| failed).unwrap_or_default()
    }
}

/// Removes the settings of any other `-host-resolver`; returns the errors.
fn clear(resolver: HostResolver) -> Vec<Diagnosis> {
    let (_, failed) = resolver.restore_others();
    // The field `lost_original` reports a lost original text.
    let is_unkept = |error: &HostResolverError| {
        matches!(error, HostResolverError::Unkept { .. } | HostResolverError::Changed { .. })
    };
    let failed = failed.iter().filter(|error| !is_unkept(error));
    failed
        .map(|error| Diagnosis::from(error).context("the settings of another -host-resolver remain"))
        .collect()
}

/// Returns the address for the host's lookups: AKS's node address if it is a listener, else the
/// first listener.
pub(crate) fn server(listeners: &[Listener]) -> Option<IpAddr> {
    let mut addresses = listeners.iter().map(|listener| listener.address);
    let first = addresses.next()?;
    Some(addresses.find(|address| *address == NODE_ADDRESS).unwrap_or(first))
}

/// The address at which AKS LocalDNS answers the node.
const NODE_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 10, 10));
const AGAIN: Duration = Duration::from_secs(30);
