//! Hosts files whose names are kept true: the machine's side of the crate `refresh`.
//!
//! ```text
//! Corefile, environment -> plan -> RefreshedFile, one for each file -> driver: servers -> lookups -> tables -> file
//! hosts file -> a table looks -> RefreshedFile::read -> the text that is served
//! ```
//! It knows the server that it works for as a [`Server`]: whose tables serve a text, and whom it would ask.
//!
//! Nothing of it is on a query's way: what is learned becomes a table that is swapped in whole, as a changed file does.

mod driver;
mod environment;
mod once;
mod plan;
mod servers;
mod status;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use corefile::go::format_duration;
use refresh::{Clock, Keeper, Round};
use stub_resolver::{LookupOutcome, Question};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

pub use environment::Environment;
pub use once::{Once, once};
pub use plan::{RefreshPlan, RefreshSpec, plan};
pub use servers::Upstreams;
pub use status::{DEFAULT_SOCKET, Shown, StatusSocket, collect, listen, print, report};

use clock::throttle;
use logging::Logger;
use tokio::runtime::Handle;

/// The server that names are kept for.
pub trait Server: Send + Sync + 'static {
    /// Has every table of this file serve [`RefreshedFile::text`].
    fn serve(&self, kept: &RefreshedFile);
    /// What its /status says, [`report`] within it.
    fn status(&self) -> serde_json::Value;
    /// Whom it asks, and where it listens.
    fn upstreams(&self) -> Upstreams;
    /// The files whose names it keeps.
    fn kept(&self) -> &RefreshedFiles;
    /// What the environment says.
    fn environment(&self) -> &Environment;
    /// Where rounds run.
    fn runtime(&self) -> &Handle;
    /// The process's log.
    fn logger(&self) -> &Logger;
}

/// One hosts file whose names are kept true, however many server blocks read it.
#[derive(Debug)]
pub struct RefreshedFile {
    file: PathBuf,
    /// What was shipped for files that do not exist.
    shipped: PathBuf,
    state: Mutex<State>,
    /// There are other names to keep.
    woken: Notify,
}

#[derive(Debug)]
struct State {
    keeper: Keeper,
    plan: RefreshPlan,
    driver: Option<AbortHandle>,
    /// Who was asked in the last round.
    servers: Vec<std::net::SocketAddr>,
    last: Option<LastRound>,
    /// Rounds after which every name, some names, no name had a good answer.
    rounds: [u64; 3],
    /// What has no good answer, as it was told last.
    troubled: Vec<Question>,
    publish_failures: u64,
    /// How often something was learned or written: what was read before that is older than it.
    learned: u64,
    /// Why the file is not what memory is.
    publish_error: Option<String>,
    publish_again: Option<Instant>,
}

/// How the last round went.
#[derive(Debug, Clone, Copy)]
struct LastRound {
    began: Instant,
    took: Duration,
    wall: u64,
    answered: usize,
    failed: usize,
    /// How names stand after it, those that were not its turn included: of [`RESULTS`].
    result: usize,
}

/// What a look at the file found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caught {
    /// What was read or written before; or no file.
    Known,
    /// What somebody else wrote.
    New,
    /// Somebody who is still writing.
    Torn,
}

/// How a round went as a whole, as metrics and status call it.
const RESULTS: [&str; 3] = ["ok", "partial", "failed"];

/// Every hosts file that is kept, found by its path.
#[derive(Debug, Default)]
pub struct RefreshedFiles {
    kept: Mutex<Vec<Arc<RefreshedFile>>>,
}

impl RefreshedFiles {
    /// The file at `path`, if its names are kept.
    pub fn find(&self, path: &Path) -> Option<Arc<RefreshedFile>> {
        self.all().into_iter().find(|kept| kept.file == path)
    }

    /// Every file in use.
    pub fn all(&self) -> Vec<Arc<RefreshedFile>> {
        self.lock().clone()
    }

    /// Makes what `plans` need and is not there: a table's first text may depend on it. Nothing is asked yet.
    pub fn prepare(&self, plans: &[RefreshPlan], environment: &Environment, now: Instant) {
        let mut all = self.lock();
        for plan in plans {
            if !all.iter().any(|kept| kept.file == plan.file) {
                all.push(Arc::new(RefreshedFile::new(plan.clone(), environment, now)));
            }
        }
    }

    /// Keeps what `plans` say from now on, and nothing else.
    pub fn apply<S: Server>(&self, plans: &[RefreshPlan], running: &Arc<S>) {
        let now = clock::now();
        self.prepare(plans, running.environment(), now);
        self.lock().retain(|kept| {
            let stays = plans.iter().any(|plan| plan.file == kept.file);
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
            keeper: Keeper::new(plan.settings.clone(), reading(now)).resting(throttle::step),
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
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// How often something was learned or written so far.
    pub fn learned(&self) -> u64 {
        self.state().learned
    }

    /// The text to serve where the file reads `text` and was written `age` ago. `None` where something was learned or
    /// written `since` the reading began: the file is to be read anew.
    pub fn read(&self, since: u64, text: &[u8], age: Duration, now: Instant) -> Option<Arc<[u8]>> {
        let mut state = self.state();
        (state.learned == since).then(|| state.keeper.read(text, age, reading(now)))
    }

    /// The text to serve where there is no file.
    pub fn missing(&self, now: Instant) -> Arc<[u8]> {
        let shipped = files::read_with_timeout(&self.shipped, MAX_SHIPPED).unwrap_or_default();
        self.state().keeper.ship(&shipped, reading(now))
    }

    /// The text to serve.
    pub fn text(&self) -> Arc<[u8]> {
        self.state().keeper.text()
    }

    /// What is known of its names, for another process.
    pub fn section(&self, now: Instant) -> Vec<u8> {
        self.state().keeper.section(reading(now))
    }

    /// Takes what another process knew of its names later; whether there is another text to serve.
    pub fn inherit(&self, section: &[u8], now: Instant) -> bool {
        let mut state = self.state();
        let learned = state.keeper.inherit(section, reading(now));
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
            state.keeper.set(plan.settings.clone(), reading(now));
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

    /// Takes what came of a round so far: memory first, then the file. Blocks while the disk does. Returns how many names
    /// and families were answered, and how many failed.
    pub fn finish(
        &self,
        began: Instant,
        outcomes: Vec<(Question, LookupOutcome)>,
        draw: f64,
        running: &Weak<impl Server>,
    ) -> (usize, usize) {
        let Some(running) = running.upgrade() else { return (0, 0) };
        // What another program wrote since the last look is older than these answers.
        let caught = self.catch_up();
        let round = {
            let mut state = self.state();
            state.learned += 1;
            state.keeper.finish(began, outcomes, reading(clock::now()), draw)
        };
        self.tell(&round, &*running);
        self.publish(caught, &*running);
        (round.answered, round.failed)
    }

    /// A round is over: counts it, and says what has no good answer, once and when that changes.
    fn over(
        &self,
        began: Instant,
        answered: usize,
        failed: usize,
        servers: Vec<std::net::SocketAddr>,
        logger: &Logger,
    ) {
        let mut state = self.state();
        let now = clock::now();
        let all = state.keeper.entries().count();
        let failing: Vec<_> =
            state.keeper.entries().filter_map(|(q, entry)| Some((*q, entry.failure?))).collect();
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
        // That there is nobody to ask is told already.
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
            .take(MOST_TOLD)
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

    /// Tries again to write what could not be written.
    fn publish_again(&self, running: &impl Server) {
        self.state().publish_again = None;
        self.publish(self.catch_up(), running);
    }

    /// Lets go of what is too old.
    fn expire(&self, running: &impl Server) {
        let changes = self.state().keeper.expire(reading(clock::now()));
        if !changes.is_empty() {
            self.tell(&Round { changes, ..Round::default() }, running);
            self.publish(Ok(Caught::Known), running);
        }
    }

    fn tell(&self, round: &Round, running: &impl Server) {
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

    /// Reads the file, if somebody else wrote it.
    fn catch_up(&self) -> io::Result<Caught> {
        let (text, age) = match read_file(&self.file) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Caught::Known),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(Caught::Torn),
            Err(error) => return Err(error),
        };
        let mut state = self.state();
        state.learned += 1;
        if state.keeper.knows(&text) {
            state.keeper.read(&text, age, reading(clock::now()));
            return Ok(Caught::Known);
        }
        if text.last().is_none_or(|&last| last != b'\n') {
            return Ok(Caught::Torn);
        }
        state.keeper.read(&text, age, reading(clock::now()));
        Ok(Caught::New)
    }

    /// Writes the file, if memory has what it has not. What cannot be written stays in memory, and is tried again.
    fn publish(&self, caught: io::Result<Caught>, running: &impl Server) {
        match caught {
            Ok(Caught::Known) => {}
            // The tables do not look by themselves where `reload` is 0.
            Ok(Caught::New) => running.serve(self),
            Ok(Caught::Torn) => return self.state().publish_again = Some(clock::now() + CATCH_UP_AGAIN),
            Err(error) => {
                let error = format!("cannot read {}: {error}", self.file.display());
                return self.cannot_publish(error, running.logger());
            }
        }
        let (text, base) = {
            let mut state = self.state();
            let Some(text) = state.keeper.to_publish() else { return };
            state.learned += 1;
            (text, state.keeper.base())
        };
        match files::atomic_write(&self.file, Some(&base), &text) {
            Ok(()) => {
                let mut state = self.state();
                state.learned += 1;
                state.keeper.published(text, clock::now());
                (state.publish_error, state.publish_again) = (None, None);
            }
            // Somebody else wrote the file: its addresses hold until the next round, which comes soon.
            Err(files::WriteError::Changed(_)) => {
                let soon = clock::now() + CATCH_UP_AGAIN;
                let caught = self.catch_up();
                let mut state = self.state();
                state.keeper.hurry(soon);
                state.publish_again = (!matches!(caught, Ok(Caught::New))).then_some(soon);
                drop(state);
                running.serve(self);
            }
            Err(error) => self.cannot_publish(error.to_string(), running.logger()),
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

/// A hosts file's text, and how long ago it was written.
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

/// Names that fail are told one by one up to so many.
const MOST_TOLD: usize = 3;
const PUBLISH_AGAIN: Duration = Duration::from_secs(30);
/// How long another program has to finish what it writes.
const CATCH_UP_AGAIN: Duration = Duration::from_secs(5);

/// The longest hosts file, in octets: more than the pairs that a table has room for.
pub const MAX_FILE: u64 = 256 << 20;
/// What is shipped are some names.
const MAX_SHIPPED: u64 = 16 << 20;
