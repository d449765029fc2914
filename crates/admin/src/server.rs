//! The admin server: listeners by address that outlive reloads.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::connection::{self, Patience, Site};
use super::listen::{AdminError, listen};
use super::made::{MadePage, Make};
use super::pages::{NotReady, Pages, ServedPages};
use super::probe::HealthProbe;
use super::scrape::Scrapes;
use super::slots::Slots;
use crate::AdminAddress;
use logging::Logger;
use metrics::Families;

/// What the pages say.
pub struct Content {
    /// `/metrics`, for all who ask at a time, with native histograms or without; on a thread of its own.
    pub metrics: Box<dyn Fn(bool) -> Families + Send + Sync>,
    /// The plugins that are not ready, for `/ready`; for each request. Quick: it runs between those of other clients.
    pub not_ready: Box<NotReady>,
    /// `/status`, JSON, wherever `/metrics` is, and `/status.html`, which shows it; `None` for neither.
    pub status: Option<Box<Make>>,
    /// `/metrics` of an exporter's address, in the text format.
    pub exporter: Option<Box<Make>>,
}

/// The thread that serves the connections: however much they read, queries do not wait for it.
#[derive(Debug)]
pub struct AdminThread {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl AdminThread {
    /// Starts it.
    ///
    /// # Errors
    /// What the kernel says to a thread or to epoll.
    pub fn start() -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).max_blocking_threads(1).thread_name("admin").enable_all();
        let runtime = builder.build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Where its tasks are spawned.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for AdminThread {
    fn drop(&mut self) {
        // A drop of the runtime itself would wait for pages that are still being made.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A plan whose new addresses are bound. Dropping it closes them and changes nothing.
#[derive(Debug)]
#[must_use = "nothing is served before it is committed"]
pub struct Prepared {
    pages: BTreeMap<AdminAddress, Pages>,
    bound: BTreeMap<AdminAddress, Vec<TcpListener>>,
}

/// Serves the pages. Dropping it ends every listener and connection at once.
pub struct AdminServer {
    runtime: Handle,
    scrapes: Scrapes,
    not_ready: Arc<NotReady>,
    made: [Option<Arc<MadePage>>; 2],
    logger: Logger,
    probe: Arc<HealthProbe>,
    patience: Patience,
    serving: Mutex<BTreeMap<AdminAddress, Serving>>,
}

impl AdminServer {
    /// A server that serves nothing yet.
    pub fn new(runtime: Handle, content: Content, logger: Logger) -> Self {
        Self::with_patience(runtime, content, logger, Patience::default())
    }

    pub(super) fn with_patience(
        runtime: Handle,
        content: Content,
        logger: Logger,
        patience: Patience,
    ) -> Self {
        let probe = Arc::new(HealthProbe::new(logger.clone()));
        Self {
            runtime,
            scrapes: Scrapes::start(content.metrics, &logger),
            not_ready: content.not_ready.into(),
            made: [content.status, content.exporter].map(|make| Some(Arc::new(MadePage::new(make?)))),
            logger,
            probe,
            patience,
            serving: Mutex::default(),
        }
    }

    /// The self-probe of `/health`, a source of its metrics.
    pub fn health_probe(&self) -> Arc<HealthProbe> {
        self.probe.clone()
    }

    /// Binds what is new in `plan`. An address that cannot be bound is logged, and left out until the next plan, unless
    /// it is to serve `/health`.
    ///
    /// # Errors
    /// [`AdminError::Bind`] for an address of `/health`; everything bound here is closed again.
    pub fn prepare(&self, plan: ServedPages) -> Result<Prepared, AdminError> {
        let mut prepared = Prepared { pages: plan.pages, bound: BTreeMap::new() };
        let serving = self.serving();
        for (&address, &pages) in prepared.pages.iter().filter(|(address, _)| !serving.contains_key(address))
        {
            match listen(address) {
                Ok(listeners) => {
                    prepared.bound.insert(address, listeners);
                }
                Err(error) if pages.health => return Err(error),
                Err(error) => {
                    if pages.metrics || pages.exporter {
                        self.logger.error(None, &format!("Failed to start metrics handler: {error}"));
                    }
                    if pages.ready {
                        self.logger.error(Some("ready"), &format!("Failed to start ready handler: {error}"));
                    }
                }
            }
        }
        Ok(prepared)
    }

    /// Serves what was prepared, and no longer what is not in it. Listeners that stay notice nothing but their pages.
    pub fn commit(&self, mut prepared: Prepared) {
        let mut serving = self.serving();
        serving.retain(|address, _| prepared.pages.contains_key(address));
        for (address, pages) in prepared.pages {
            if let Some(listeners) = prepared.bound.remove(&address) {
                serving.insert(address, self.start(listeners));
            }
            if let Some(here) = serving.get_mut(&address) {
                here.site.pages.store(pages.to_bits(), Ordering::Relaxed);
                self.probe_if(pages.health, here);
            }
        }
    }

    /// Serves `/ready` no longer, as the first step of a shutdown: an address that has no other page is closed.
    pub fn stop_ready(&self) {
        self.serving().retain(|_, here| {
            let pages = Pages { ready: false, ..Pages::from_bits(here.site.pages.load(Ordering::Relaxed)) };
            here.site.pages.store(pages.to_bits(), Ordering::Relaxed);
            pages != Pages::default()
        });
    }

    /// Serves nothing any more.
    pub fn close(&self) {
        self.serving().clear();
    }

    /// The addresses listened on, with the ports that the system chose for port 0.
    pub fn addresses(&self) -> Vec<(AdminAddress, SocketAddr)> {
        let serving = self.serving();
        serving.iter().flat_map(|(address, here)| here.local.iter().map(|&local| (*address, local))).collect()
    }

    fn start(&self, listeners: Vec<TcpListener>) -> Serving {
        let _inside = self.runtime.enter();
        let [status, exporter] = self.made.clone();
        let site = Arc::new(Site {
            pages: AtomicU8::new(0),
            status,
            exporter,
            scrapes: self.scrapes.clone(),
            not_ready: self.not_ready.clone(),
            waited_for: Mutex::default(),
            logger: self.logger.clone(),
            patience: self.patience,
        });
        let (stop, stopped) = watch::channel(false);
        let mut serving = Serving { site, stop, tasks: Vec::new(), local: Vec::new(), probe: None };
        for listener in listeners {
            let local = listener.local_addr();
            // It can only fail outside a runtime, or without its I/O driver.
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => {
                    serving.local.extend(local.ok());
                    let accepting = accept(listener, serving.site.clone(), stopped.clone());
                    serving.tasks.push(self.runtime.spawn(accepting));
                }
                Err(error) => self.logger.error(None, &format!("Failed to start admin handler: {error}")),
            }
        }
        serving
    }

    fn probe_if(&self, health: bool, here: &mut Serving) {
        if !health {
            here.end_probe();
        } else if here.probe.is_none() {
            here.probe = here.local.first().map(|&local| self.runtime.spawn(self.probe.clone().run(local)));
        }
    }

    fn serving(&self) -> MutexGuard<'_, BTreeMap<AdminAddress, Serving>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One address being served.
struct Serving {
    site: Arc<Site>,
    /// Tells connections to end after the request they are at.
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    local: Vec<SocketAddr>,
    probe: Option<JoinHandle<()>>,
}

impl Serving {
    fn end_probe(&mut self) {
        if let Some(probe) = self.probe.take() {
            probe.abort();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end_probe();
        for task in &self.tasks {
            task.abort();
        }
        self.stop.send_replace(true);
    }
}

/// Accepts connections for ever. Of too many, one gives way.
async fn accept(listener: tokio::net::TcpListener, site: Arc<Site>, stop: watch::Receiver<bool>) {
    let mut slots = Slots::default();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Most likely there are no file descriptors left: to accept again without a pause would be a busy loop.
            slots.make_room(clock::now());
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let slot = slots.take(peer.ip(), clock::now());
        tokio::spawn(connection::serve(stream, slot, site.clone(), stop.clone()));
        // The new connection's task runs first: a request that came with the connection is read before another connection may
        // take its slot.
        yield_now().await;
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").finish_non_exhaustive()
    }
}

impl fmt::Debug for AdminServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminServer").field("serving", &self.addresses()).finish_non_exhaustive()
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
