//! The I/O of refreshed names: servers, lookups, hosts files, status.
//!
//! ```text
//! Corefile, environment -> plan -> RefreshedFile, one for each file -> driver: servers -> lookups -> tables -> file
//! hosts file -> a table looks -> RefreshedFile::read -> the text that is served
//! ```
//! The server is a trait, [`Server`]: the tables that serve a text, and the upstreams.
//!
//! No query waits for a refresh: new addresses become a new table, which replaces the old one as a
//! whole.

mod driver;
mod environment;
mod once;
mod servers;
mod spec;
mod status;
mod upstreams;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::{Clock, NameStore, Round};
use corefile::go_values::format_duration;
use files::ShownPath;
use stub_resolver::{LookupOutcome, Question};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

pub use environment::Environment;
pub use once::{Once, once};
pub use servers::{Scheme, ServerSyntax, Via, WrittenServer};
pub use spec::{RefreshPlan, RefreshSpec, plan};
pub use status::{DEFAULT_SOCKET, Shown, StatusSocket, collect, listen, print, report};
pub use upstreams::Upstreams;

use clock::throttle;
use logging::Logger;
use tokio::runtime::Handle;

/// The server that names are refreshed for.
pub trait Server: Send + Sync + 'static {
    /// Makes every table of this file serve [`RefreshedFile::text`].
    fn serve(&self, kept: &RefreshedFile);
    /// Its /status, with [`report`] in it.
    fn status(&self) -> serde_json::Value;
    /// Its upstreams and listen addresses.
    fn upstreams(&self) -> Upstreams;
    /// The hosts files with refreshed names.
    fn kept(&self) -> &RefreshedFiles;
    /// The environment variables.
    fn environment(&self) -> &Environment;
    /// The runtime of rounds.
    fn runtime(&self) -> &Handle;
    /// The process's log.
    fn logger(&self) -> &Logger;
}

/// A hosts file with refreshed names, shared by all server blocks that read it.
#[derive(Debug)]
pub struct RefreshedFile {
    file: ShownPath,
    /// The shipped file, for hosts files that do not exist.
    shipped: PathBuf,
    state: Mutex<State>,
    /// Notified when the names change.
    woken: Notify,
}

#[derive(Debug)]
struct State {
    names: NameStore,
    plan: RefreshPlan,
    driver: Option<AbortHandle>,
    /// The DNS servers queried in the last round.
    servers: Vec<stub_resolver::Server>,
    last: Option<LastRound>,
    /// The number of rounds after which all, some or none of the names had a good answer.
    rounds: [u64; 3],
    /// The questions without a good answer that were logged last.
    troubled: Vec<Question>,
    publish_failures: u64,
    /// Incremented when addresses are learned or the file is written: text that was read before is obsolete.
    learned: u64,
    /// Why the file could not be written.
    publish_error: Option<String>,
    publish_again: Option<Instant>,
}

/// The result of the last round.
#[derive(Debug, Clone, Copy)]
struct LastRound {
    began: Instant,
    took: Duration,
    wall: u64,
    answered: usize,
    failed: usize,
    /// The state of all names after it, also of those that were not due: an index of [`RESULTS`].
    result: usize,
}

/// The result of a look at the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caught {
    /// The text that was last read or written, or no file.
    Known,
    /// Text of another program.
    New,
    /// Text that another program is still writing.
    Torn,
}

/// Results of rounds, as in metrics and status.
const RESULTS: [&str; 3] = ["ok", "partial", "failed"];

/// All hosts files with refreshed names, by path.
#[derive(Debug, Default)]
pub struct RefreshedFiles {
    kept: Mutex<Vec<Arc<RefreshedFile>>>,
}

impl RefreshedFiles {
    /// The file at `path`, if it has refreshed names.
    pub fn find(&self, path: &Path) -> Option<Arc<RefreshedFile>> {
        self.all().into_iter().find(|kept| kept.file.as_path() == path)
    }

    /// All files in use.
    pub fn all(&self) -> Vec<Arc<RefreshedFile>> {
        self.lock().clone()
    }

    /// Adds the files of `plans` that are missing, since a table's first text may depend on them. Sends no query.
    pub fn prepare(&self, plans: &[RefreshPlan], environment: &Environment, now: Instant) {
        let mut all = self.lock();
        for plan in plans {
            if !all.iter().any(|kept| kept.file.as_path() == plan.file.as_path()) {
                all.push(Arc::new(RefreshedFile::new(plan.clone(), environment, now)));
            }
        }
    }

    /// Refreshes the names of `plans` from now on, and stops refreshing all others.
    pub fn apply<S: Server>(&self, plans: &[RefreshPlan], running: &Arc<S>) {
        let now = clock::now();
        self.prepare(plans, running.environment(), now);
        self.lock().retain(|kept| {
            let stays = plans.iter().any(|plan| plan.file.as_path() == kept.file.as_path());
            if !stays {
                kept.stop();
                let message = format!("the names of {} are refreshed no more", kept.file.display());
                running.logger().info(Some("hosts"), &message);
            }
            stays
        });
        for plan in plans {
            if let Some(kept) = self.find(&plan.file) {
                kept.follow(plan.clone(), running, now);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<RefreshedFile>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RefreshedFile {
    fn new(plan: RefreshPlan, environment: &Environment, now: Instant) -> Self {
        let state = State {
            names: NameStore::new(plan.settings.clone(), reading(now)).resting(throttle::step),
            plan: plan.clone(),
            driver: None,
            servers: Vec::new(),
            last: None,
            rounds: [0; 3],
            troubled: Vec::new(),
            publish_failures: 0,
            learned: 0,
            publish_error: None,
            publish_again: None,
        };
        Self {
            file: plan.file,
            shipped: environment.shipped.clone(),
            state: Mutex::new(state),
            woken: Notify::new(),
        }
    }

    /// The file.
    pub fn file(&self) -> &ShownPath {
        &self.file
    }

    /// The counter of learned and written texts.
    pub fn learned(&self) -> u64 {
        self.state().learned
    }

    /// The text to serve for a file with `text` that was written `age` ago. `None` if the counter has changed from `since`, its value
    /// before the read: the file must be read again.
    pub fn read(&self, since: u64, text: &[u8], age: Duration, now: Instant) -> Option<Arc<[u8]>> {
        let mut state = self.state();
        (state.learned == since).then(|| state.names.read(text, age, reading(now)))
    }

    /// The text to serve if there is no file.
    pub fn missing(&self, now: Instant) -> Arc<[u8]> {
        let shipped = files::read_with_timeout(&self.shipped, MAX_SHIPPED).unwrap_or_default();
        self.state().names.ship(&shipped, reading(now))
    }

    /// The text to serve.
    pub fn text(&self) -> Arc<[u8]> {
        self.state().names.text()
    }

    /// The section of its names, for another process.
    pub fn section(&self, now: Instant) -> Vec<u8> {
        self.state().names.section(reading(now))
    }

    /// Takes later addresses of its names from another process. Returns whether the text to serve has changed.
    pub fn inherit(&self, section: &[u8], now: Instant) -> bool {
        let mut state = self.state();
        let learned = state.names.inherit(section, reading(now));
        state.learned += u64::from(learned);
        learned
    }

    fn follow<S: Server>(self: &Arc<Self>, plan: RefreshPlan, running: &Arc<S>, now: Instant) {
        let changed = {
            let mut state = self.state();
            let changed = state.plan != plan;
            if changed || state.driver.is_none() {
                let RefreshPlan { file, settings, because, .. } = &plan;
                let message = format!(
                    "{} names of {} are refreshed every {}, because of {because}",
                    settings.names.len(),
                    file.display(),
                    format_duration(settings.schedule.interval())
                );
                running.logger().info(Some("hosts"), &message);
            }
            state.names.set(plan.settings.clone(), reading(now));
            state.plan = plan;
            if state.driver.is_none() {
                let driver = driver::run(self.clone(), Arc::downgrade(running));
                state.driver = Some(running.runtime().spawn(driver).abort_handle());
            }
            changed
        };
        if changed {
            running.serve(self);
            self.woken.notify_one();
        }
    }

    fn stop(&self) {
        if let Some(driver) = self.state().driver.take() {
            driver.abort();
        }
    }

    /// Applies outcomes of a round: to memory first, then to the file. Blocks while the disk does. Returns the number of names and
    /// families with a good answer, and without.
    pub fn finish(
        &self,
        began: Instant,
        outcomes: Vec<(Question, LookupOutcome)>,
        draw: f64,
        running: &Weak<impl Server>,
    ) -> (usize, usize) {
        let Some(running) = running.upgrade() else { return (0, 0) };
        // Text that another program wrote since the last look is older than these answers.
        let caught = self.catch_up();
        let round = {
            let mut state = self.state();
            state.learned += 1;
            state.names.finish(began, outcomes, reading(clock::now()), draw)
        };
        self.serve_and_log(&round, &*running);
        self.publish(caught, &*running);
        (round.answered, round.failed)
    }

    /// Counts a round at its end, and logs the names without a good answer when these change.
    fn over(
        &self,
        began: Instant,
        answered: usize,
        failed: usize,
        servers: Vec<stub_resolver::Server>,
        logger: &Logger,
    ) {
        let mut state = self.state();
        let now = clock::now();
        let all = state.names.entries().count();
        let failing: Vec<_> =
            state.names.entries().filter_map(|(q, entry)| Some((*q, entry.failure?))).collect();
        let result = match failing.len() {
            0 => 0,
            failing if failing == all => 2,
            _ => 1,
        };
        let took = now.saturating_duration_since(began);
        state.rounds[result] += 1;
        state.last = Some(LastRound { began, took, wall: reading(now).wall, answered, failed, result });
        state.servers = servers;
        let troubled: Vec<_> = failing.iter().map(|(question, _)| *question).collect();
        // That there are no servers is already logged.
        if troubled == state.troubled || state.servers.is_empty() {
            return;
        }
        state.troubled = troubled;
        drop(state);
        let file = self.file.display();
        if failing.is_empty() {
            return logger.info(Some("hosts"), &format!("all names of {file} are answered again"));
        }
        let named: Vec<_> = failing
            .iter()
            .take(MAX_LISTED)
            .map(|(Question { name, family }, failure)| {
                format!("{} {}: {failure}", name.to_string().trim_end_matches('.'), family.rtype())
            })
            .collect();
        let more = match failing.len() - named.len() {
            0 => String::new(),
            more => format!("; {more} more are in `localdns status`"),
        };
        let (some, named) = (failing.len(), named.join("; "));
        let message =
            format!("{some} of {all} lookups for {file} fail, and what was known is kept: {named}{more}");
        logger.warning(Some("hosts"), &message);
    }

    /// Retries a failed write of the file.
    fn publish_again(&self, running: &impl Server) {
        self.state().publish_again = None;
        self.publish(self.catch_up(), running);
    }

    /// Removes entries that are too old.
    fn expire(&self, running: &impl Server) {
        let changes = self.state().names.expire(reading(clock::now()));
        if !changes.is_empty() {
            self.serve_and_log(&Round { changes, ..Round::default() }, running);
            self.publish(Ok(Caught::Known), running);
        }
    }

    fn serve_and_log(&self, round: &Round, running: &impl Server) {
        if round.changes.is_empty() {
            return;
        }
        running.serve(self);
        for change in &round.changes {
            let list = |addresses: &[std::net::IpAddr]| {
                addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            };
            let name = change.name.to_string();
            let name = name.trim_end_matches('.');
            let line = match (change.before.is_empty(), change.after.is_empty()) {
                (true, _) => format!("{name} is {}", list(&change.after)),
                (_, true) => {
                    format!("{name} goes upstream: {} had no good answer for too long", list(&change.before))
                }
                _ => format!("{name} is {}, was {}", list(&change.after), list(&change.before)),
            };
            running.logger().info(Some("hosts"), &line);
        }
    }

    /// Reads the file if another program has written it.
    fn catch_up(&self) -> io::Result<Caught> {
        let (text, age) = match read_file(&self.file) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Caught::Known),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(Caught::Torn),
            Err(error) => return Err(error),
        };
        let mut state = self.state();
        state.learned += 1;
        if state.names.knows(&text) {
            state.names.read(&text, age, reading(clock::now()));
            return Ok(Caught::Known);
        }
        if text.last().is_none_or(|&last| last != b'\n') {
            return Ok(Caught::Torn);
        }
        state.names.read(&text, age, reading(clock::now()));
        Ok(Caught::New)
    }

    /// Writes the file if it differs from memory. If that fails, memory is served on, and the write is retried.
    fn publish(&self, caught: io::Result<Caught>, running: &impl Server) {
        match caught {
            Ok(Caught::Known) => {}
            // Tables with `reload 0` do not check the file themselves.
            Ok(Caught::New) => running.serve(self),
            Ok(Caught::Torn) => return self.state().publish_again = Some(clock::now() + CATCH_UP_AGAIN),
            Err(error) => {
                let error = format!("cannot read {}: {error}", self.file.display());
                return self.cannot_publish(error, running.logger());
            }
        }
        let (text, base) = {
            let mut state = self.state();
            let Some(text) = state.names.to_publish() else { return };
            state.learned += 1;
            (text, state.names.base())
        };
        match files::atomic_write(&self.file, Some(&base), &text) {
            Ok(()) => {
                let mut state = self.state();
                state.learned += 1;
                state.names.published(text, clock::now());
                (state.publish_error, state.publish_again) = (None, None);
            }
            // Another program has written the file: its addresses hold until the next round, which is soon.
            Err(files::WriteError::Changed(_)) => {
                let soon = clock::now() + CATCH_UP_AGAIN;
                let caught = self.catch_up();
                let mut state = self.state();
                state.names.hurry(soon);
                state.publish_again = (!matches!(caught, Ok(Caught::New))).then_some(soon);
                drop(state);
                running.serve(self);
            }
            Err(error) => self.cannot_publish(error.shown_as(&self.file).to_string(), running.logger()),
        }
    }

    fn cannot_publish(&self, error: String, logger: &Logger) {
        let mut state = self.state();
        state.publish_failures += 1;
        state.publish_again = Some(clock::now() + PUBLISH_AGAIN);
        if state.publish_error.as_ref() != Some(&error) {
            logger.error(Some("hosts"), &format!("{error}; what was learned is served from memory"));
            state.publish_error = Some(error);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a hosts file's text and age.
fn read_file(path: &Path) -> io::Result<(Vec<u8>, Duration)> {
    let rests = throttle::rests();
    let rest = move || {
        if rests {
            throttle::rest()
        }
    };
    let (text, stamp) = files::read_version(path, MAX_FILE, rest)?;
    Ok((text, stamp.age(clock::wall_ms())))
}

fn reading(now: Instant) -> Clock {
    Clock { now, wall: clock::wall_ms() / 1000 }
}

/// Maximum number of failed names that are logged one by one.
const MAX_LISTED: usize = 3;
const PUBLISH_AGAIN: Duration = Duration::from_secs(30);
/// How long another program may take to finish its write.
const CATCH_UP_AGAIN: Duration = Duration::from_secs(5);

/// Maximum size of a hosts file in bytes: more than a table can hold.
pub const MAX_FILE: u64 = 256 << 20;
/// Maximum size in bytes of the hosts file that `LOCALDNS_SHIPPED_HOSTS` names.
const MAX_SHIPPED: u64 = 16 << 20;
