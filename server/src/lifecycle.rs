//! The life of a server: start (`start`), reload (here), stop (`stop`), and its place taken by another process (`succession`).
//!
//! ```text
//! read -> build -> bind -> swap          a start, and each reload: what fails leaves the old configuration standing
//! stop: /ready ends -> lameduck -> workers drain -> the end
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
use listen::{BindError, Endpoints, Running};
use node_run::LeaseManager;
use plugin::{SetupError, Spec};
use plugins::bind::BindSpec;
use plugins::r#loop::{self, Watch};
use refresher::StatusSocket;

pub use takeover::NextPhase;
use takeover::Succession;

/// Why a configuration is not served.
#[derive(Debug, Error)]
pub enum StartError {
    /// The Corefile.
    #[error("{0}")]
    Corefile(#[from] Box<Located<SetupError>>),
    /// An address of the Corefile.
    #[error(transparent)]
    Bind(BindError),
    /// An address that a `bind` names and no interface has.
    #[error("{0}")]
    Absent(Box<Located<AbsentAddress>>),
    /// The address of `health`.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// Who serves where this process is to.
    #[error("cannot take over from the running process: {0}; stop it first, or start without -handover")]
    Predecessor(std::io::Error),
    /// There are no servers that upstreams stand for.
    #[error("{0}")]
    NoUpstreams(String),
    /// Something that the machine does not give: a thread, a file descriptor.
    #[error("cannot start: {0}")]
    Machine(std::io::Error),
}

impl StartError {
    /// With its place in the Corefile, where that names an address which nobody has.
    fn of_bind(error: BindError, spec: &Spec) -> Self {
        let BindError::Absent { address, .. } = &error else { return Self::Bind(error) };
        match spec.said().find_map(|bind: &BindSpec| bind.word_of(address.ip())) {
            Some(word) => {
                Self::Absent(Box::new(Located { at: word.at.clone(), error: AbsentAddress(error) }))
            }
            None => Self::Bind(error),
        }
    }

    /// What is wrong, without a word of the configuration and without what the machine runs.
    fn without_words(&self) -> String {
        match self {
            Self::Corefile(error) => error.without_words(),
            Self::Absent(error) => error.without_words(),
            // Addresses are no secrets: /status lists those that are served.
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

    /// The exit code of a `node run` that could not start, as production's script has them.
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

/// An address that a `bind` names and no interface has.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct AbsentAddress(BindError);

impl Kind for AbsentAddress {
    fn kind(&self) -> String {
        "cannot listen on an address that no interface has".to_owned()
    }
}

/// A configuration that is built and not bound.
pub struct PreparedReload {
    draft: ValidatedConfig,
    configuration: Configuration,
}

/// A server that serves.
pub struct Server {
    running: Arc<Running>,
    /// The same, for the names that it keeps.
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
    /// Who probes us, and pings; ended with the listeners that it asks.
    watchdog: Option<Watchdog>,
    /// Where metrics are besides the configuration's, and those of the exporter.
    more_pages: (Option<AdminAddress>, Option<AdminAddress>),
    status_path: Option<PathBuf>,
    status: Option<StatusSocket>,
    /// Told when an address may have been taken from the machine.
    address_gone: Arc<Notify>,
    watching: bool,
    /// What will tell it again.
    putting_back: Option<tokio::task::JoinHandle<()>>,
    /// Who keeps queries to our addresses here.
    keeper: Option<LeaseManager>,
    /// The processes before and after this one.
    succession: Succession,
}

/// Who hears what the server's threads have for the main thread.
pub struct Senders {
    /// What it cannot go on without.
    pub fatal: mpsc::UnboundedSender<String>,
    /// What comes to pass between this process and another.
    pub handover: HandoverEvents,
}

impl Server {
    /// What the running server shares.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// How long an end may take beside `lameduck` and what is in flight: until systemd has said what it is, those are sent
    /// elsewhere whose queries come here, and who still asks is answered.
    pub fn leave_taking(&self) -> Duration {
        let asks = if self.notifier.has_manager() { Job::PATIENCE } else { Duration::ZERO };
        self.keeper.as_ref().map_or(asks, |_| Job::PATIENCE + SENT_ELSEWHERE + LAST_CLIENTS)
    }

    /// Says that a reload begins, and what its slow part is: reading, looking up, building, on a thread that may wait for
    /// disks and servers. Who does not want what comes of it any more drops it.
    ///
    /// `signal` asked for it; without one, the plugin `reload` did.
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

    /// Serves what came of a reload if it can be; else the old configuration serves on, and why is logged.
    ///
    /// `signal` as for its beginning.
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

    /// Says which configuration serves, where `reload` is written.
    pub fn tell_hash(&self) {
        if self.running.configuration.load().reload.is_some() {
            let hash = self.reloads.hash();
            self.running.logger.info(Some("reload"), &format!("Running configuration SHA512 = {hash}"));
        }
    }

    /// What finds the hash of the Corefile as it stands now, or what is wrong with it. It may wait for a disk.
    pub fn look(&self) -> impl FnOnce() -> String + Send + 'static {
        let origin = self.origin.clone();
        move || match origin.read() {
            Ok(corefile) => corefile_source::hash(&corefile),
            Err(error) => error.to_string(),
        }
    }

    /// Whether a look found another Corefile than the one that serves; an unreadable file counts once.
    pub fn changed(&self, found: String, last_seen: &mut String) -> bool {
        let changed = found != *last_seen && found != self.reloads.hash();
        // The file was put back to what serves: the failed reload is no longer worth telling.
        if found == self.reloads.hash() {
            self.reloads.mended();
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
        // No step from here on can fail, so the old configuration is given up.
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
        self.tell_hash();
        Ok(())
    }

    /// Until an address that we added may have been taken away.
    pub async fn address_gone(&self) {
        self.address_gone.notified().await;
    }

    /// Puts back the addresses that we added and somebody took away.
    pub fn put_back_addresses(&mut self) {
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

    /// Whether `node down` has taken away what would be put back.
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

    /// Listens for removals as long as the process lives, once there is an address that we added.
    fn watch_addresses(&mut self) {
        if self.watching || !self.endpoints.has_added() {
            return;
        }
        self.watching = true;
        let gone = self.address_gone.clone();
        self.handle.spawn(node::watch_removals(self.endpoints.ours(), move || gone.notify_one()));
    }

    /// Serves /status on a unix socket, whose owner alone may read all of it; once it listens it
    /// stays.
    fn serve_status(&mut self) {
        let path = self.status_path.as_deref().unwrap_or_else(|| Path::new(refresher::DEFAULT_SOCKET));
        if self.status.is_some() || path.as_os_str().is_empty() {
            return;
        }
        match refresher::listen(path, &self.refreshed) {
            Ok(socket) => self.status = Some(socket),
            Err(error) => {
                let why = format!("/status is not served at {}: {error}", path.display());
                let logger = &self.running.logger;
                // Unless it is asked for, or names are kept, the place may be another server's, or
                // one of other users.
                match self.status_path.is_some() || !self.running.configuration.load().keep.is_empty() {
                    true => logger.warning(None, &why),
                    false => logger.debug(None, &why),
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

/// The addresses of an interface, as `bind` names it; their ports are 0.
///
/// # Errors
/// The interface is not there.
pub fn addresses_of(interface: &str) -> Result<Vec<std::net::SocketAddr>, node::NodeError> {
    Ok(node::addresses_of(interface)?.into_iter().map(|address| address.socket_addr(0)).collect())
}

/// How long those are answered whose queries still come here when they are sent elsewhere.
const LAST_CLIENTS: Duration = Duration::from_secs(5);
/// How long networkd may take to be told that the machine asks elsewhere.
const SENT_ELSEWHERE: Duration = Duration::from_secs(5);
/// How soon an address that could not be put back is tried again.
const PUT_BACK_AGAIN: Duration = Duration::from_secs(1);
