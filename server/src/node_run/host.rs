//! Points the machine's own lookups at us once we answer, on a thread that may wait for programs.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use node::{HostResolver, HostResolverError, Listener};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use super::discovery;

/// What is done about the machine's own lookups.
pub(crate) struct Host {
    resolver: HostResolver,
    /// The resolv.conf of the node's network.
    upstreams: PathBuf,
    /// Whether they are to be ours; false ends what goes on.
    wanted: Arc<AtomicBool>,
    putting: Option<JoinHandle<Result<Option<PathBuf>, HostResolverError>>>,
    state: State,
    /// When what failed is tried again, or what was put looked for.
    again: Option<Instant>,
}

/// How far that has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Not yet.
    NotYet,
    /// By this file; by none where nobody is to be told.
    Put(Option<PathBuf>),
    /// Why not.
    Failed(String),
}

impl Host {
    pub(crate) fn new(resolver: HostResolver, upstreams: PathBuf) -> Self {
        let state = if resolver == HostResolver::None { State::Put(None) } else { State::NotYet };
        let wanted = Arc::new(AtomicBool::new(true));
        Self { resolver, upstreams, wanted, putting: None, state, again: None }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Goes on with it: begins where we answer, and hears of the end. True where it has ended, well or not.
    pub(crate) async fn goes_on(&mut self, listeners: &[Listener]) -> bool {
        if self.putting.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(putting) = self.putting.take()
        {
            self.state = match putting.await {
                Ok(Ok(path)) => State::Put(path),
                Ok(Err(error)) => State::Failed(error.to_string()),
                Err(panic) => State::Failed(panic.to_string()),
            };
            self.again = Some(Instant::now() + AGAIN);
        }
        let is_time = self.again.is_none_or(|again| again <= Instant::now());
        if let State::Put(Some(path)) = &self.state
            && is_time
        {
            self.again = Some(Instant::now() + AGAIN);
            if !HostResolver::stands().contains(path) {
                let why = format!("somebody has taken {} away; it is put back", path.display());
                self.state = State::Failed(why);
            }
        }
        let begin = match &self.state {
            State::NotYet => true,
            State::Put(_) => false,
            State::Failed(_) => is_time,
        };
        if begin
            && self.putting.is_none()
            && let Some(server) = server(listeners)
        {
            let (resolver, upstreams, wanted) = (self.resolver, self.upstreams.clone(), self.wanted.clone());
            self.putting = Some(spawn_blocking(move || {
                resolver.put(server, &|| discovery::text_of(&upstreams), &wanted)
            }));
        }
        self.state != State::NotYet
    }

    /// Gives them back; what could not be.
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

/// The address that the machine asks: the node's where it has production's, else the first.
pub(crate) fn server(listeners: &[Listener]) -> Option<IpAddr> {
    let mut addresses = listeners.iter().map(|listener| listener.address);
    let first = addresses.next()?;
    Some(addresses.find(|address| *address == NODE_ADDRESS).unwrap_or(first))
}

/// The address that AKS LocalDNS answers the node at.
const NODE_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 10, 10));
const AGAIN: Duration = Duration::from_secs(30);
