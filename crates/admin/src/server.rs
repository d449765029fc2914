//! The admin server: listeners by address, which outlive reloads.

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

use super::connection::{self, ListenerContext, Timeouts};
use super::connection_table::ConnectionTable;
use super::listen::{AdminError, listen};
use super::overload_probe::HealthProbe;
use super::page_cache::{CachedPage, RenderFn};
use super::pages::{NotReady, Pages, ServedPages};
use super::scrape::Scrapes;
use crate::AdminAddress;
use logging::Logger;
use metrics::MetricFamily;

/// The functions that render the pages.
pub struct PageSources {
    /// The families of `/metrics`, once for all concurrent requests, with or without native histograms; on a separate thread.
    pub metrics: Box<dyn Fn(bool) -> Vec<MetricFamily> + Send + Sync>,
    /// The plugins that are not ready, for each request of `/ready`. Must be quick: it runs on the thread of all connections.
    pub not_ready: Box<NotReady>,
    /// `/status` (JSON), served where `/metrics` is, with `/status.html`, which shows it; `None` for neither.
    pub status: Option<Box<RenderFn>>,
    /// `/metrics` at an exporter's address, in the text format.
    pub exporter: Option<Box<RenderFn>>,
}

/// The thread that serves the connections, apart from those that serve queries.
#[derive(Debug)]
pub struct AdminThread {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl AdminThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel's, for a thread or epoll.
    pub fn start() -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).max_blocking_threads(1).thread_name("admin").enable_all();
        let runtime = builder.build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// The runtime of its tasks.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for AdminThread {
    fn drop(&mut self) {
        // Dropping the runtime itself would wait for pages that are being rendered.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A plan with its new addresses bound. Dropping it closes them, and changes nothing else.
#[derive(Debug)]
#[must_use = "nothing is served before it is committed"]
pub struct Prepared {
    pages: BTreeMap<AdminAddress, Pages>,
    bound: BTreeMap<AdminAddress, Vec<TcpListener>>,
}

/// Serves the pages. Dropping it closes all listeners and connections at once.
pub struct AdminServer {
    runtime: Handle,
    scrapes: Scrapes,
    not_ready: Arc<NotReady>,
    cached_pages: [Option<Arc<CachedPage>>; 2],
    logger: Logger,
    probe: Arc<HealthProbe>,
    timeouts: Timeouts,
    serving: Mutex<BTreeMap<AdminAddress, ServedAddress>>,
}

impl AdminServer {
    /// A server without listeners.
    pub fn new(runtime: Handle, content: PageSources, logger: Logger) -> Self {
        Self::with_timeouts(runtime, content, logger, Timeouts::default())
    }

    pub(super) fn with_timeouts(
        runtime: Handle,
        content: PageSources,
        logger: Logger,
        timeouts: Timeouts,
    ) -> Self {
        let probe = Arc::new(HealthProbe::new(logger.clone()));
        Self {
            runtime,
            scrapes: Scrapes::start(content.metrics, &logger),
            not_ready: content.not_ready.into(),
            cached_pages: [content.status, content.exporter]
                .map(|render| Some(Arc::new(CachedPage::new(render?)))),
            logger,
            probe,
            timeouts,
            serving: Mutex::default(),
        }
    }

    /// The self-probe of `/health`, a source of its metrics.
    pub fn health_probe(&self) -> Arc<HealthProbe> {
        self.probe.clone()
    }

    /// Binds the new addresses of `plan`. One that cannot be bound is logged, and not served until the next plan, unless it has
    /// `/health`.
    ///
    /// # Errors
    /// [`AdminError::Bind`] for an address of `/health`; all addresses bound here are closed again.
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

    /// Serves the prepared plan, and closes listeners that are not in it. Listeners in both plans keep their connections.
    pub fn commit(&self, mut prepared: Prepared) {
        let mut serving = self.serving();
        serving.retain(|address, _| prepared.pages.contains_key(address));
        for (address, pages) in prepared.pages {
            if let Some(listeners) = prepared.bound.remove(&address) {
                serving.insert(address, self.start(listeners));
            }
            if let Some(here) = serving.get_mut(&address) {
                here.context.pages.store(pages.to_bits(), Ordering::Relaxed);
                self.probe_if(pages.health, here);
            }
        }
    }

    /// Removes `/ready` everywhere, as the first step of a shutdown; addresses without another page are closed.
    pub fn stop_ready(&self) {
        self.serving().retain(|_, here| {
            let pages =
                Pages { ready: false, ..Pages::from_bits(here.context.pages.load(Ordering::Relaxed)) };
            here.context.pages.store(pages.to_bits(), Ordering::Relaxed);
            pages != Pages::default()
        });
    }

    /// Closes all listeners and connections.
    pub fn close(&self) {
        self.serving().clear();
    }

    /// The listen addresses, with the ports that the kernel chose for port 0.
    pub fn addresses(&self) -> Vec<(AdminAddress, SocketAddr)> {
        let serving = self.serving();
        serving.iter().flat_map(|(address, here)| here.local.iter().map(|&local| (*address, local))).collect()
    }

    fn start(&self, listeners: Vec<TcpListener>) -> ServedAddress {
        let _inside = self.runtime.enter();
        let [status, exporter] = self.cached_pages.clone();
        let context = Arc::new(ListenerContext {
            pages: AtomicU8::new(0),
            status,
            exporter,
            scrapes: self.scrapes.clone(),
            not_ready: self.not_ready.clone(),
            reported_not_ready: Mutex::default(),
            logger: self.logger.clone(),
            timeouts: self.timeouts,
        });
        let (stop, stopped) = watch::channel(false);
        let mut serving = ServedAddress { context, stop, tasks: Vec::new(), local: Vec::new(), probe: None };
        for listener in listeners {
            let local = listener.local_addr();
            // Fails only outside a runtime, or without its I/O driver.
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => {
                    serving.local.extend(local.ok());
                    let accepting = accept(listener, serving.context.clone(), stopped.clone());
                    serving.tasks.push(self.runtime.spawn(accepting));
                }
                Err(error) => self.logger.error(None, &format!("Failed to start admin handler: {error}")),
            }
        }
        serving
    }

    fn probe_if(&self, health: bool, here: &mut ServedAddress) {
        if !health {
            here.end_probe();
        } else if here.probe.is_none() {
            here.probe = here.local.first().map(|&local| self.runtime.spawn(self.probe.clone().run(local)));
        }
    }

    fn serving(&self) -> MutexGuard<'_, BTreeMap<AdminAddress, ServedAddress>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A served address.
struct ServedAddress {
    context: Arc<ListenerContext>,
    /// Makes connections end after their current request.
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    local: Vec<SocketAddr>,
    probe: Option<JoinHandle<()>>,
}

impl ServedAddress {
    fn end_probe(&mut self) {
        if let Some(probe) = self.probe.take() {
            probe.abort();
        }
    }
}

impl Drop for ServedAddress {
    fn drop(&mut self) {
        self.end_probe();
        for task in &self.tasks {
            task.abort();
        }
        self.stop.send_replace(true);
    }
}

/// Accepts connections forever, and evicts one if there are too many.
async fn accept(
    listener: tokio::net::TcpListener,
    context: Arc<ListenerContext>,
    stop: watch::Receiver<bool>,
) {
    let mut connections = ConnectionTable::default();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Most likely no file descriptors are left: accepting again without a pause would be a busy loop.
            connections.make_room(clock::now());
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let slot = connections.take(peer.ip(), clock::now());
        tokio::spawn(connection::serve(stream, slot, context.clone(), stop.clone()));
        // The new connection's task runs first: a request that arrived with the connection is read before another connection may
        // take its slot.
        yield_now().await;
    }
}

impl fmt::Debug for PageSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageSources").finish_non_exhaustive()
    }
}

impl fmt::Debug for AdminServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminServer").field("serving", &self.addresses()).finish_non_exhaustive()
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
