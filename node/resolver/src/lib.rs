//! `localdns node-resolver`: writes Kubernetes services as lines into the node's own /etc/hosts.
//!
//! ```text
//! names -> lookups at the cluster's DNS -> plan (pure) -> managed lines in the hosts file
//! ```
//!
//! For programs that read /etc/hosts and cannot query the cluster, such as the container runtime
//! that pulls from the image registry. The hosts file is the only state: its managed lines are kept
//! while no DNS server answers. Serves no queries.

mod cli;
mod counters;
mod reconcile;
mod services;
mod settings;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use files::WriteError;
use hostsfile::managed::{HostsFile, ManagedLine, UpdateOutcome};
use rand::Rng as _;
use stub_resolver::{Family, Question, Resolver};
use thiserror::Error;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use admin::{AdminServer, PageSources, Process, ServedPages};
use counters::Counters;
use logging::logger::LAST_LINES;
use logging::{Format, Logger};
use metrics::Gatherer;
use reconcile::{Outcomes, Rules, Verdict, WantedLines, plan};
use services::{Looked, Service, Services, ServicesFile};
use settings::Settings;

pub use cli::command;
pub use services::ServicesError;
pub use settings::{Request, SettingsError};

/// Runs until SIGTERM or SIGINT, for one round, or only to remove the managed lines.
///
/// # Errors
/// The error that ends the run, in one or more lines.
pub fn run(request: &Request) -> Result<ExitCode, RunError> {
    if request.remove {
        return remove(request);
    }
    let settings = Settings::read(request)?;
    let logger = Logger::stdout(if request.json { Format::Json } else { Format::Text })?;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let mut resolver = NodeResolver::new(settings, logger.clone());
        let _admin = resolver.serve_metrics(&Handle::current())?;
        if request.once { resolver.round().await } else { resolver.keep().await }
    });
    runtime.shutdown_background();
    logger.flush(LAST_LINES);
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Why the run ends.
#[derive(Debug, Error)]
pub enum RunError {
    /// The environment, a flag or the list of services is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The hosts file cannot be changed.
    #[error(transparent)]
    Hosts(#[from] WriteError),
    /// The address for metrics cannot be used.
    #[error(transparent)]
    Metrics(#[from] admin::AdminError),
    /// An error of threads, signals or standard output.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

fn remove(request: &Request) -> Result<ExitCode, RunError> {
    let file = HostsFile::new(&request.hosts_file, settings::marker(request)?);
    let mut lines = 0;
    let written = file.update(|text| {
        lines = text.managed_lines();
        Vec::new()
    })?;
    let path = file.path().display();
    // Errors of standard output are ignored.
    let _ = match written {
        UpdateOutcome::Unchanged => writeln!(std::io::stdout(), "{path} has no managed lines"),
        UpdateOutcome::Replaced | UpdateOutcome::InPlace => {
            writeln!(std::io::stdout(), "{path}: {lines} lines removed")
        }
    };
    Ok(ExitCode::SUCCESS)
}

struct NodeResolver {
    file: HostsFile,
    rules: Rules,
    services: Services,
    via: refresh::Via,
    /// With its connections, while rounds follow each other closely.
    resolver: Option<Arc<Resolver>>,
    interval: Duration,
    metrics: Option<admin::AdminAddress>,
    counters: Arc<Counters>,
    logger: Logger,
    /// The last logged verdict of each service.
    logged_verdicts: BTreeMap<Service, Verdict>,
    /// The last logged error of a round, which is not logged again.
    logged_error: Option<String>,
}

impl NodeResolver {
    fn new(settings: Settings, logger: Logger) -> Self {
        Self {
            file: settings.file,
            rules: settings.rules,
            services: settings.services,
            via: settings.via,
            resolver: None,
            interval: settings.interval,
            metrics: settings.metrics,
            counters: Arc::default(),
            logger,
            logged_verdicts: BTreeMap::new(),
            logged_error: None,
        }
    }

    /// Serves `/metrics`, if configured, until the result is dropped.
    fn serve_metrics(&self, runtime: &Handle) -> Result<Option<AdminServer>, RunError> {
        let Some(address) = self.metrics else { return Ok(None) };
        let metrics = Gatherer::new([self.counters.clone(), Arc::new(Process)]);
        let content = PageSources {
            metrics: Box::new(move |native| metrics.gather(native)),
            not_ready: Box::new(Vec::new),
            status: None,
            exporter: None,
        };
        let admin = AdminServer::new(runtime.clone(), content, self.logger.clone());
        let mut plan = ServedPages::default();
        plan.metrics(address);
        admin.commit(admin.prepare(plan)?);
        Ok(Some(admin))
    }

    /// Runs rounds until a signal.
    async fn keep(&mut self) -> Result<(), RunError> {
        let mut signals = Signals::new()?;
        // Created outside of the loop, so that the end of a round does not restart this check.
        let mut look = Box::pin(Self::read_services(self.services.file()));
        loop {
            let began = Instant::now();
            tokio::select! {
                // A round has no await point once it has begun to write, so a signal cannot cancel
                // a write.
                ended = self.round() => match ended {
                    Err(RunError::Hosts(error @ WriteError::Orphaned(_))) => return Err(error.into()),
                    ended => self.log_error(ended.err()),
                },
                () = signals.stop() => return Ok(()),
            }
            let jitter = self.interval.mul_f64(JITTER * rand::rng().random_range(0.0..=1.0_f64));
            let next = began + self.interval - jitter;
            loop {
                tokio::select! {
                    () = sleep_until(next) => break,
                    // Signals are handled during this read: the list may be on a disk that hangs.
                    read = &mut look => {
                        look.set(Self::read_services(self.services.file()));
                        if read.is_some_and(|read| self.took_services(read)) {
                            break;
                        }
                    }
                    () = signals.stop() => return Ok(()),
                }
            }
        }
    }

    /// Looks every service up once, and updates the hosts file.
    async fn round(&mut self) -> Result<(), RunError> {
        let outcomes = self.look_up().await?;
        self.counters.looked_up(&outcomes);
        let names = self.rules.names_of(self.services.names());
        let (mut before, mut plan_made) = (Vec::new(), WantedLines::default());
        let written = self.file.update(|text| {
            before = text.entries();
            plan_made =
                plan(self.services.names(), &self.rules, &outcomes, &before, &text.defined_by_others(&names));
            plan_made.entries.clone()
        });
        self.counters.wrote(clock::now(), written.as_ref().ok().copied(), &plan_made);
        self.log_verdicts(&plan_made);
        if written? != UpdateOutcome::Unchanged {
            self.log_changes(&before, &plan_made.entries);
        }
        Ok(())
    }

    async fn look_up(&mut self) -> Result<Outcomes, RunError> {
        let mut questions = Vec::new();
        let mut services = BTreeMap::new();
        for service in self.services.names() {
            // Lengths of service and domain were checked when they were read.
            let Some(name) = service.full_name(&self.rules.domain) else { continue };
            services.insert(name.to_string(), service.clone());
            questions.extend([Family::Ipv4, Family::Ipv6].map(|family| Question { name, family }));
        }
        let resolver = self.resolver().await?;
        let outcomes = resolver.round(&questions, ROUND).await;
        self.resolver = Some(resolver).filter(|_| self.interval <= IDLE);
        let of_services = outcomes.into_iter().filter_map(|(asked, outcome)| {
            Some(((services.get(&asked.name.to_string())?.clone(), asked.family), outcome))
        });
        Ok(of_services.collect())
    }

    /// Returns the resolver of the last round, or another one if certificates have changed.
    async fn resolver(&mut self) -> Result<Arc<Resolver>, RunError> {
        let via = self.via.clone();
        let loaded = spawn_blocking(move || via.load()).await.map_err(std::io::Error::other)?;
        let servers = loaded.map_err(|error| SettingsError::Tls { variable: "TLS_CA", error })?;
        let kept = self.resolver.take().filter(|resolver| resolver.asks(&servers));
        Ok(kept.unwrap_or_else(|| Arc::new(Resolver::new(&servers).without_aliases())))
    }

    /// Reads the list of services after [`LOOK`].
    async fn read_services(file: Option<ServicesFile>) -> Option<services::Read> {
        sleep(LOOK).await;
        let file = file?;
        // The join fails only when the runtime ends.
        spawn_blocking(|| file.read()).await.ok()
    }

    /// Replaces the list of services if it has changed; returns whether it has.
    fn took_services(&mut self, read: services::Read) -> bool {
        match self.services.take(read) {
            Looked::Same => false,
            Looked::New => {
                let count = self.services.names().len();
                self.logger.info(None, &format!("{}: {count} services", self.services.source()));
                true
            }
            Looked::Bad(error) => {
                self.logger.error(None, &format!("the list of services is unchanged: {error}"));
                false
            }
        }
    }

    fn log_verdicts(&mut self, plan: &WantedLines) {
        self.logged_verdicts.retain(|service, _| plan.verdicts.contains_key(service));
        for (service, verdict) in &plan.verdicts {
            let before = self.logged_verdicts.insert(service.clone(), verdict.clone());
            if before.as_ref().is_some_and(|before| before.label() == verdict.label()) {
                continue;
            }
            match verdict {
                Verdict::Known if before.is_none() => {}
                Verdict::Known | Verdict::Absent => self.logger.info(None, &format!("{service}: {verdict}")),
                Verdict::Kept(_) | Verdict::LeftOut(_) => {
                    self.logger.warning(None, &format!("{service}: {verdict}"));
                }
            }
        }
    }

    fn log_changes(&self, before: &[ManagedLine], after: &[ManagedLine]) {
        let addresses = |entries: &[ManagedLine]| {
            let mut of: BTreeMap<Box<str>, Vec<String>> = BTreeMap::new();
            for entry in entries {
                of.entry(entry.name.clone()).or_default().push(entry.address.to_string());
            }
            of.values_mut().for_each(|addresses| addresses.sort());
            of
        };
        let (before, after) = (addresses(before), addresses(after));
        for (name, new) in after.iter().filter(|(name, new)| before.get(*name) != Some(new)) {
            self.logger.info(None, &format!("{}: {name} is {}", self.file.path().display(), new.join(" ")));
        }
        for name in before.keys().filter(|name| !after.contains_key(*name)) {
            self.logger.info(None, &format!("{}: {name} removed", self.file.path().display()));
        }
    }

    fn log_error(&mut self, error: Option<RunError>) {
        let error = error.map(|error| error.to_string());
        if let Some(error) = error.as_ref().filter(|error| self.logged_error.as_ref() != Some(error)) {
            self.logger.error(None, error);
        }
        self.logged_error = error;
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The marker of OpenShift's script, so that lines of that script are managed, too.
pub const DEFAULT_MARKER: &str = "openshift-generated-node-resolver";
/// Time limit of a round's lookups.
const ROUND: Duration = Duration::from_secs(10);
/// Connections are kept until the next round if the interval is no longer than this.
const IDLE: Duration = Duration::from_secs(30);
/// Interval of checks of the list of services.
const LOOK: Duration = Duration::from_secs(5);
/// Fraction of the interval over which nodes that started together are spread.
const JITTER: f64 = 0.1;

#[cfg(test)]
mod tests;
