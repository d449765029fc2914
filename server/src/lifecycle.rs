//! The lifecycle of a server: start (`start`), reload (here), stop (`stop`), and handover between
//! processes (`takeover`).
//!
//! ```text
//! read -> build -> bind -> swap          a start, and each reload: an error keeps the old configuration
//! stop: /ready ends -> lameduck -> workers drain -> exit
//! ```

mod start;
mod stop;
mod takeover;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use corefile::{Kind, Located};
use node::{Job, Notifier};
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use crate::admin_pages::plan;
use crate::corefile_source::{self, Origin, ValidatedConfig};
use crate::next_process::HandoverEvents;
use crate::refresh_adapter::RefreshAdapter;
use crate::reload_state::{ReloadFailure, ReloadState};
use crate::watchdog::Watchdog;
use admin::{AdminAddress, AdminError, AdminServer, AdminThread};
use configuration::Configuration;
use listen::{BindError, Endpoints, ServerState};
use node_run::LeaseManager;
use plugin::{SetupError, Spec};
use plugins::bind::BindSpec;
use plugins::r#loop::{self, Watch};
use refresh::StatusSocket;

pub use takeover::NextPhase;
use takeover::Succession;

/// Why a configuration is not served.
#[derive(Debug, Error)]
pub enum StartError {
    /// The Corefile has an error.
    #[error("{0}")]
    Corefile(#[from] Box<Located<SetupError>>),
    /// A listen address of the Corefile cannot be bound.
    #[error(transparent)]
    Bind(BindError),
    /// An address of a `bind` that no interface has.
    #[error("{0}")]
    Absent(Box<Located<AbsentAddress>>),
    /// An address of the admin pages, such as that of `health`, cannot be bound.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The handover from the running process failed.
    #[error("cannot take over from the running process: {0}; stop it first, or start without -handover")]
    Predecessor(std::io::Error),
    /// No name servers of the node's network are known.
    #[error("{0}")]
    NoUpstreams(String),
    /// The operating system refuses a resource: a thread, a file descriptor.
    #[error("cannot start: {0}")]
    Machine(std::io::Error),
}

impl StartError {
    /// Adds the place in the Corefile for an address that no interface has.
    fn of_bind(error: BindError, spec: &Spec) -> Self {
        let BindError::Absent { address, .. } = &error else { return Self::Bind(error) };
        match spec.specs().find_map(|bind: &BindSpec| bind.word_of(address.ip())) {
            Some(word) => {
                Self::Absent(Box::new(Located { at: word.at.clone(), error: AbsentAddress(error) }))
            }
            None => Self::Bind(error),
        }
    }

    /// Returns the error without words of the configuration and without other processes' names.
    fn without_words(&self) -> String {
        match self {
            Self::Corefile(error) => error.without_words(),
            Self::Absent(error) => error.without_words(),
            // Addresses are not secret: /status lists those that are served.
            Self::Bind(BindError::InUse { address, transport, .. }) => {
                format!("cannot listen on {address} ({transport}): it is in use")
            }
            Self::Bind(
                BindError::NotPermitted(address)
                | BindError::Absent { address, .. }
                | BindError::Other { address, .. },
            ) => format!("cannot listen on {address}"),
            Self::Admin(_) => "cannot listen on an HTTP address".to_owned(),
            Self::Predecessor(_) => "cannot take over from the running process".to_owned(),
            Self::NoUpstreams(_) => "no name server of the node's network is known".to_owned(),
            Self::Machine(_) => "the operating system refuses a resource".to_owned(),
        }
    }

    /// Returns the exit code of a `node run` that could not start, as AKS's script defines it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Corefile(_) => 217,
            Self::Bind(_)
            | Self::Absent(_)
            | Self::Admin(_)
            | Self::NoUpstreams(_)
            | Self::Predecessor(_)
            | Self::Machine(_) => 216,
        }
    }
}

/// An address of a `bind` that no interface has.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct AbsentAddress(BindError);

impl Kind for AbsentAddress {
    fn kind(&self) -> String {
        "cannot listen on an address that no interface has".to_owned()
    }
}

/// A configuration that is built, but not bound to sockets.
pub struct PreparedReload {
    draft: ValidatedConfig,
    configuration: Configuration,
}

/// A running server.
pub struct Server {
    running: Arc<ServerState>,
    /// The adapter by which `refresh` uses this server.
    refreshed: Arc<RefreshAdapter>,
    endpoints: Endpoints,
    admin: AdminServer,
    _admin_thread: AdminThread,
    workers: Vec<JoinHandle<()>>,
    handle: Handle,
    origin: Origin,
    dns_port: u16,
    reloads: Arc<ReloadState>,
    notifier: Arc<Notifier>,
    /// Probes the server and pings systemd; ended together with the probed listeners.
    watchdog: Option<Watchdog>,
    /// Addresses from the command line: of more metrics, and of the exporter.
    more_pages: (Option<AdminAddress>, Option<AdminAddress>),
    status_path: Option<PathBuf>,
    status: Option<StatusSocket>,
    /// Notified when an address that the server added may have been removed from the host.
    address_gone: Arc<Notify>,
    watching: bool,
    /// The pending retry of restoring addresses.
    putting_back: Option<tokio::task::JoinHandle<()>>,
    /// The lease thread of `node run`.
    keeper: Option<LeaseManager>,
    /// The state of handovers with the previous and the next process.
    succession: Succession,
}

/// Channels to the main thread.
pub struct Senders {
    /// Fatal errors.
    pub fatal: mpsc::UnboundedSender<String>,
    /// Events of a handover.
    pub handover: HandoverEvents,
}

impl Server {
    /// Returns the server's shared state.
    pub fn running(&self) -> &Arc<ServerState> {
        &self.running
    }

    /// Returns the time that a stop takes besides `lameduck` and queries in flight: systemd reports
    /// its job, clients are failed over, and late queries are answered.
    pub fn leave_taking(&self) -> Duration {
        let asks = if self.notifier.has_manager() { Job::PATIENCE } else { Duration::ZERO };
        self.keeper.as_ref().map_or(asks, |_| Job::PATIENCE + SENT_ELSEWHERE + LAST_CLIENTS)
    }

    /// Logs the start of a reload, and returns its slow part: reading, lookups and building, for a
    /// thread that may wait for disks and servers. The result may be dropped.
    ///
    /// `signal` is the cause of the reload; `None` means the plugin `reload`.
    pub fn begin_reload(
        &self,
        signal: Option<&str>,
    ) -> impl FnOnce() -> Result<PreparedReload, StartError> + Send + use<> + 'static {
        let (running, origin, dns_port) = (self.running.clone(), self.origin.clone(), self.dns_port);
        if let Some(signal) = signal {
            running.logger.info(None, &format!("{signal}: Reloading"));
        }
        running.logger.info(None, "Reloading");
        let of_node = self.keeper.is_some();
        move || {
            let draft = ValidatedConfig::read(&origin, dns_port)?;
            if of_node {
                node_run::check(&draft.spec)?;
            }
            let configuration =
                Configuration::build(&draft.spec, &running.shared, &addresses_of).map_err(Box::new)?;
            configuration.look_at_files(&running.shared, clock::now(), &running.logger);
            running.shared.lasting.all().iter().for_each(|kept| kept.begin(&running.logger));
            Ok(PreparedReload { draft, configuration })
        }
    }

    /// Serves the result of a reload; on an error the old configuration continues, and the error is
    /// logged.
    ///
    /// `signal` is that of [`begin_reload`](Self::begin_reload).
    pub fn finish_reload(&mut self, next: Result<PreparedReload, StartError>, signal: Option<&str>) {
        let logger = self.running.logger.clone();
        match next.and_then(|next| self.serve_next(next)) {
            Ok(()) => logger.info(None, "Reloading complete"),
            Err(error) => {
                self.reloads.fails(ReloadFailure { full: error.to_string(), kind: error.without_words() });
                logger.error(None, &format!("Restart failed: {error}"));
                if signal.is_none() {
                    let error = error.to_string();
                    let first = error.lines().next().unwrap_or_default();
                    logger.error(Some("reload"), &format!("Corefile changed but reload failed: {first}"));
                }
            }
        }
    }

    /// Logs the configuration's hash if it has `reload`.
    pub fn log_hash(&self) {
        if self.running.configuration.load().reload.is_some() {
            let hash = self.reloads.hash();
            self.running.logger.info(Some("reload"), &format!("Running configuration SHA512 = {hash}"));
        }
    }

    /// Returns a function that computes the hash of the current Corefile, or its error. It may wait
    /// for a disk.
    pub fn look(&self) -> impl FnOnce() -> String + Send + 'static {
        let origin = self.origin.clone();
        move || match origin.read() {
            Ok(corefile) => corefile_source::hash(&corefile),
            Err(error) => error.to_string(),
        }
    }

    /// Returns whether a check found a Corefile other than the serving one. The same result of
    /// consecutive checks, such as an unreadable file, counts once.
    pub fn changed(&self, found: String, last_seen: &mut String) -> bool {
        let changed = found != *last_seen && found != self.reloads.hash();
        // The Corefile is the serving one again, so a failed reload is obsolete.
        if found == self.reloads.hash() {
            self.reloads.clear_failure();
        }
        *last_seen = found;
        changed
    }

    fn serve_next(
        &mut self,
        PreparedReload { draft, configuration }: PreparedReload,
    ) -> Result<(), StartError> {
        let running = self.running.clone();
        if self.is_let_go() {
            self.endpoints.let_go();
        }
        let wanted = configuration.endpoints.keys().copied();
        let bound = self.endpoints.bind(wanted, configuration.sockets, self.workers.len(), &self.handle);
        let bound = bound.map_err(|error| StartError::of_bind(error, &draft.spec))?;
        let prepared = self.admin.prepare(plan(&configuration.admin, self.more_pages))?;
        for warning in &draft.warnings {
            running.logger.warning(None, warning);
        }
        // No further step can fail, so the new configuration replaces the old one.
        let configuration = Arc::new(configuration);
        let old = self.endpoints.swap(configuration.clone(), bound, &running, &self.handle);
        self.watch_addresses();
        if !self.is_let_go() && !self.endpoints.put_back_all(&running, &self.handle) {
            self.put_back_again();
        }
        self.admin.commit(prepared);
        running.logger.set_debug(configuration.debug);
        self.reloads.serves(draft.hash, node_run::needs_list(&draft.spec));
        running.shared.hosts.kept.apply(&configuration.keep, &self.refreshed);
        self.serve_status();
        self.running.settle(&self.handle);
        drop(old);
        self.detect_loops();
        self.log_hash();
        Ok(())
    }

    /// Waits until an address that this server added may have been removed.
    pub async fn address_gone(&self) {
        self.address_gone.notified().await;
    }

    /// Restores the addresses that this server added and that were removed since.
    pub fn restore_addresses(&mut self) {
        if self.is_let_go() {
            return;
        }
        if !self.endpoints.put_back(&self.running, &self.handle) {
            self.put_back_again();
        }
        if let Some(keeper) = &self.keeper {
            keeper.state().addresses_looked_at();
        }
    }

    /// Whether `node down` has released the addresses.
    fn is_let_go(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.state().is_let_go())
    }

    fn put_back_again(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.state().count_interface();
        }
        if self.putting_back.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let gone = self.address_gone.clone();
        self.putting_back = Some(self.handle.spawn(async move {
            tokio::time::sleep(PUT_BACK_AGAIN).await;
            gone.notify_one();
        }));
    }

    /// Watches for removed addresses, for the life of the process, once this server has added an
    /// address.
    fn watch_addresses(&mut self) {
        if self.watching || !self.endpoints.has_added() {
            return;
        }
        self.watching = true;
        let gone = self.address_gone.clone();
        self.handle.spawn(node::watch_removals(self.endpoints.ours(), move || gone.notify_one()));
    }

    /// Serves /status on a unix socket that only its owner may open. A socket that is open already
    /// stays.
    fn serve_status(&mut self) {
        let path = self.status_path.as_deref().unwrap_or_else(|| Path::new(refresh::DEFAULT_SOCKET));
        if self.status.is_some() || path.as_os_str().is_empty() {
            return;
        }
        match refresh::listen(path, &self.refreshed) {
            Ok(socket) => self.status = Some(socket),
            Err(error) => {
                let why = format!("/status is not served at {}: {error}", path.display());
                let logger = &self.running.logger;
                // If the socket was not requested and no names are refreshed, the default path may
                // belong to another server or user, and the error is only debug output.
                match self.status_path.is_some() || !self.running.configuration.load().keep.is_empty() {
                    true => logger.warning(None, &why),
                    false => logger.debug(None, || why),
                }
            }
        }
    }

    fn detect_loops(&self) {
        let configuration = self.running.configuration.load_full();
        for block in &configuration.blocks {
            if let (Some(watch), Some(forwarding)) =
                (block.lent.get::<Watch>().get(), block.pipeline.forwarding())
            {
                let (chain, server) = (forwarding.chain.clone(), Arc::downgrade(&self.running));
                let logger = self.running.logger.clone();
                self.handle.spawn(r#loop::probe(watch.clone(), chain, server, logger));
            }
        }
    }
}

/// Returns the addresses of an interface that `bind` names, with port 0.
///
/// # Errors
/// If the interface does not exist.
pub fn addresses_of(interface: &str) -> Result<Vec<std::net::SocketAddr>, node::NodeError> {
    Ok(node::addresses_of(interface)?.into_iter().map(|address| address.socket_addr(0)).collect())
}

/// How long late queries are answered after clients are failed over.
const LAST_CLIENTS: Duration = Duration::from_secs(5);
/// Time limit for networkd to restore the host's resolver.
const SENT_ELSEWHERE: Duration = Duration::from_secs(5);
/// Interval of retries to restore an address.
const PUT_BACK_AGAIN: Duration = Duration::from_secs(1);
