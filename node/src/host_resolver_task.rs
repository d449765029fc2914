//! Points the machine's own lookups at us once we answer, on a thread that may wait for programs.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::{HostResolver, HostResolverError, Listener, upstream_discovery};

/// What is done about the machine's own lookups.
#[derive(Debug)]
pub struct HostResolverTask {
    resolver: HostResolver,
    /// The resolv.conf of the node's network.
    upstreams: PathBuf,
    /// Whether they are to be ours; false ends what goes on.
    wanted: Arc<AtomicBool>,
    putting: Option<JoinHandle<Put>>,
    /// Whom they were led to last, or are being led to.
    server: Option<IpAddr>,
    state: HostResolverState,
    /// When what failed is tried again, or what was put looked for.
    again: Option<Instant>,
    /// Why a stop would leave the machine without anybody to ask.
    unkept: Option<String>,
    /// What a server of another `-host-resolver` left, and could not be taken back; nothing before that was tried.
    left: Option<Vec<String>>,
}

/// What came of it, and what else is left.
type Put = (Result<Option<PathBuf>, HostResolverError>, Option<Vec<String>>);

/// How far that has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostResolverState {
    /// Not yet.
    NotYet,
    /// By this file; by none where nobody is to be told.
    Put(Option<PathBuf>),
    /// Why not.
    Failed(String),
}

impl HostResolverTask {
    /// Nothing is done yet.
    pub fn new(resolver: HostResolver, upstreams: PathBuf) -> Self {
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
            unkept: None,
            left: None,
        }
    }

    /// How far it has got.
    pub fn state(&self) -> &HostResolverState {
        &self.state
    }

    /// What is wrong though they come here.
    pub fn wrong(&self) -> impl Iterator<Item = &String> {
        self.left.iter().flatten().chain(&self.unkept)
    }

    /// Goes on with it: begins where we answer, and again where the address is no longer ours; and hears of the end. True where it
    /// has ended, well or not.
    pub async fn goes_on(&mut self, listeners: &[Listener]) -> bool {
        if self.putting.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(putting) = self.putting.take()
        {
            self.state = match putting.await {
                Ok((Ok(path), left)) => {
                    self.left = left.or_else(|| self.left.take());
                    HostResolverState::Put(path)
                }
                Ok((Err(error), _)) => HostResolverState::Failed(error.to_string()),
                Err(panic) => HostResolverState::Failed(panic.to_string()),
            };
            self.again = Some(Instant::now() + AGAIN);
            self.unkept = HostResolver::unkept().map(|error| error.to_string());
        }
        let is_time = self.again.is_none_or(|again| again <= Instant::now());
        if let (HostResolverState::Put(Some(path)), Some(server)) = (&self.state, self.server)
            && is_time
            && self.putting.is_none()
        {
            self.again = Some(Instant::now() + AGAIN);
            self.unkept = HostResolver::unkept().map(|error| error.to_string());
            if !self.resolver.is_put(path, server) {
                let why = format!("{} was removed by another program; it is restored", path.display());
                self.state = HostResolverState::Failed(why);
            }
        }
        // With a reload its address may go.
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

    /// Gives them back; what could not be.
    pub async fn take_back(&mut self) -> Vec<HostResolverError> {
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

/// Takes back what a server of another `-host-resolver` left; what of it is left.
fn clear(resolver: HostResolver) -> Vec<String> {
    let (_, failed) = resolver.take_back_others();
    // That is told by `unkept`.
    let is_unkept = |error: &HostResolverError| {
        matches!(error, HostResolverError::Unkept { .. } | HostResolverError::Changed { .. })
    };
    let failed = failed.iter().filter(|error| !is_unkept(error));
    failed.map(|error| format!("the settings of another -host-resolver remain: {error}")).collect()
}

/// The address that the machine asks: the node's where it has production's, else the first.
pub fn server(listeners: &[Listener]) -> Option<IpAddr> {
    let mut addresses = listeners.iter().map(|listener| listener.address);
    let first = addresses.next()?;
    Some(addresses.find(|address| *address == NODE_ADDRESS).unwrap_or(first))
}

/// The address that AKS LocalDNS answers the node at.
const NODE_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 10, 10));
const AGAIN: Duration = Duration::from_secs(30);
