//! The start of a process. Its steps and their order are those of a reload.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forwarder::Streams;
use handover::InheritedSockets;
use node::{AddressPolicy, Notifier};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::{Senders, Server, StartError, Succession, addresses_of};
use crate::admin_pages::{admin_server, plan};
use crate::cli::Flags;
use crate::corefile_source::{Origin, ValidatedConfig};
use crate::metrics::ServerMetrics;
use crate::refresh_adapter::RefreshAdapter;
use crate::reload_state::{ReloadState, StatusReader};
use crate::status::Status;
use crate::warm_start;
use crate::watchdog::Watchdog;
use admin::{AdminServer, AdminThread};
use configuration::{Configuration, PersistentState};
use listen::{Endpoints, ServerState, StreamResults};
use logging::Logger;
use node_run::upstream_discovery::Discovery;
use node_run::{LeaseManager, LeaseState, NodeSettings, Readiness, ReloadStatus};

impl Server {
    /// Reads, builds, binds and starts, in this order; an error leaves nothing behind.
    ///
    /// The watchdog, which is started last, sends READY to systemd once every endpoint has answered
    /// its probe and, with `node`, the rules are in place.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        flags: &Flags,
        node: Option<NodeSettings>,
        origin: Origin,
        handle: &Handle,
        logger: Logger,
        senders: Senders,
        start: Instant,
    ) -> Result<Self, StartError> {
        let env = |name: &str| std::env::var(name).ok();
        let predecessor =
            crate::next_process::predecessor(flags.handover.as_deref()).map_err(StartError::Predecessor)?;
        let mut inherited = match &predecessor {
            Some(predecessor) => predecessor.receive_sockets().map_err(StartError::Predecessor)?,
            None => InheritedSockets::from_manager(&env),
        };
        let draft = ValidatedConfig::first(&origin, flags.dns_port, node.is_some())?;
        if node.is_some() {
            node_run::check(&draft.spec)?;
        }
        for warning in &draft.warnings {
            logger.warning(None, warning);
        }
        let ours = match &node {
            Some(settings) if settings.adds_addresses => AddressPolicy::Named(settings.link),
            _ => AddressPolicy::LinkLocal,
        };
        let (running, discovery) =
            build(flags, &draft, node.as_ref(), handle, &logger, senders.fatal, start)?;
        let configuration = running.configuration.load_full();
        if let Some(left) = inherited.warm() {
            warm_start::take(&configuration, &running, left);
        }
        if predecessor.is_none() {
            let wanted: Vec<_> = configuration.endpoints.keys().map(|endpoint| endpoint.address).collect();
            inherited.close_overlapping(&wanted);
        }
        inherited.forget_useless(&Notifier::from_environment());
        let workers = running.workers();
        let mut endpoints = Endpoints::new(ours, inherited);
        let wanted = configuration.endpoints.keys().copied();
        let bound = endpoints.bind(wanted, configuration.sockets, workers, handle);
        let bound = bound.map_err(|error| StartError::of_bind(error, &draft.spec))?;
        let reloads = Arc::new(ReloadState::default());
        reloads.serves(draft.hash, node_run::needs_list(&draft.spec));
        let admin_thread = AdminThread::start().map_err(StartError::Machine)?;
        let leased = Arc::<OnceLock<_>>::default();
        let (refreshed, admin) =
            pages(&running, &reloads, &leased, admin_thread.handle(), (start, origin.path()));
        let more_pages = (flags.more_metrics, flags.exporter);
        let mut prepared = Some(admin.prepare(plan(&configuration.admin, more_pages))?);
        if predecessor.is_none() {
            // The admin pages are served from here on, since the next steps may wait for a cluster;
            // in a handover the predecessor still serves them. Their address may exist only since
            // the endpoints were bound.
            prepared.take().into_iter().for_each(|prepared| admin.commit(prepared));
        }
        running.shared.lasting.all().iter().for_each(|kept| kept.begin(&logger));
        if let Some(predecessor) = &predecessor {
            predecessor.ready().map_err(StartError::Predecessor)?;
        }

        let mut threads = Vec::with_capacity(workers);
        for index in 0..workers {
            threads.push(listen::spawn(running.clone(), index).map_err(StartError::Machine)?);
        }
        endpoints.open(bound, &running, handle);
        prepared.into_iter().for_each(|prepared| admin.commit(prepared));
        logger.set_debug(configuration.debug);
        crate::file_watcher::spawn(&running, handle).map_err(StartError::Machine)?;
        running.shared.hosts.kept.apply(&configuration.keep, &refreshed);
        let notifier = Arc::new(Notifier::from_environment());
        if notifier.leaves_it_to_another() {
            logger.info(None, LEFT_TO_ANOTHER);
        }
        let mut server = Self {
            running,
            refreshed,
            endpoints,
            admin,
            _admin_thread: admin_thread,
            workers: threads,
            handle: handle.clone(),
            origin,
            dns_port: flags.dns_port,
            reloads,
            notifier,
            watchdog: None,
            more_pages,
            status_path: flags.status.clone(),
            status: None,
            address_gone: Arc::default(),
            watching: false,
            putting_back: None,
            keeper: None,
            succession: Succession::new(senders.handover.clone(), predecessor, flags),
        };
        server.watch_addresses();
        server.serve_status();
        server.running.settle(handle);
        server.detect_loops();
        // READY waits for the rules, if there are any.
        let (in_place, ready) = watch::channel(node.is_none().then(Vec::new));
        let looks_for_rules = node.is_none() && server.succession.taker.is_some();
        if let (Some(settings), Some(discovery)) = (node, discovery) {
            server.keep_leases(settings, discovery, in_place, &leased).map_err(StartError::Machine)?;
        }
        let running = Arc::downgrade(&server.running);
        let notifier = server.notifier.clone();
        let watchdog = Watchdog::start(running, notifier, ready, senders.handover, looks_for_rules);
        server.watchdog = Some(watchdog.map_err(StartError::Machine)?);
        Ok(server)
    }

    /// Starts the lease thread; `in_place` is set once rules and leases are in place.
    fn keep_leases(
        &mut self,
        settings: NodeSettings,
        discovery: Discovery,
        in_place: watch::Sender<Readiness>,
        leased: &OnceLock<Arc<LeaseState>>,
    ) -> std::io::Result<()> {
        let origin = self.origin.clone();
        let filler = origin.filler().cloned();
        let read = Arc::new(move || Some((origin.text().ok()?, origin.read().ok()?)));
        let reloads = self.reloads.clone();
        let reload_status = Box::new(move || ReloadStatus {
            needs_list: reloads.needs_list(),
            failure: reloads.failure(clock::now(), StatusReader::Anyone),
        });
        let keeper =
            LeaseManager::start(&self.running, settings, (read, discovery, filler), reload_status, in_place)?;
        // During a handover `node down` is refused: one of the two processes would restore what it
        // removes.
        keeper.state().hands_over(self.succession.taker.is_some());
        let _ = leased.set(keeper.state().clone());
        self.keeper = Some(keeper);
        Ok(())
    }
}

/// Builds the first configuration and its long-lived state, without sockets and workers. With
/// `node` the network's name servers are read first.
fn build(
    flags: &Flags,
    draft: &ValidatedConfig,
    node: Option<&NodeSettings>,
    handle: &Handle,
    logger: &Logger,
    fatal: mpsc::UnboundedSender<String>,
    start: Instant,
) -> Result<(Arc<ServerState>, Option<Discovery>), StartError> {
    let workers = plugins::multisocket::sockets(&draft.spec);
    let (mut shared, probes) =
        PersistentState::new(flags.cache_bytes, workers + 1, handle, logger.clone(), start);
    let discovery = node.map(|settings| node_run::discovery(&settings.upstreams, &draft.spec));
    let discovery = discovery.transpose().map_err(StartError::NoUpstreams)?;
    shared.node_upstreams = discovery.as_ref().map(|discovery| discovery.upstreams().clone());
    shared.environment = flags.environment.clone();
    for warning in &shared.environment.warnings {
        logger.warning(Some("hosts"), warning);
    }
    let configuration = Configuration::build(&draft.spec, &shared, &addresses_of).map_err(Box::new)?;
    configuration.look_at_files(&shared, start, logger);
    let delivery = StreamResults::new();
    let streams = Streams::new(handle.clone(), delivery.clone());
    handle.spawn(forwarder::health::run(probes));
    let running = ServerState::new(configuration, shared, workers, streams, logger.clone(), fatal, start)
        .map_err(StartError::Machine)?;
    let running = Arc::new(running);
    delivery.serves(&running);
    Ok((running, discovery))
}

/// Creates the source of the admin pages, and the admin server.
fn pages(
    running: &Arc<ServerState>,
    reloads: &Arc<ReloadState>,
    leased: &Arc<OnceLock<Arc<LeaseState>>>,
    handle: &Handle,
    (started, corefile): (Instant, Option<PathBuf>),
) -> (Arc<RefreshAdapter>, AdminServer) {
    let server_metrics =
        ServerMetrics { running: Arc::downgrade(running), reloads: reloads.clone(), leased: leased.clone() };
    let gatherer = Arc::<OnceLock<_>>::default();
    let status = Status {
        corefile,
        started,
        leased: leased.clone(),
        gatherer: gatherer.clone(),
        reloads: reloads.clone(),
    };
    let refreshed = Arc::new(RefreshAdapter { running: running.clone(), status });
    let admin = admin_server(&refreshed, server_metrics, &gatherer, handle);
    (refreshed, admin)
}

const LEFT_TO_ANOTHER: &str = "systemd started another process than this one, which must send READY; use exec in a script that only starts this server";
