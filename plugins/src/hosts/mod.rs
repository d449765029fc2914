//! `hosts`: a table of names in memory, built from a file and swapped as a whole.

mod registry;
mod setup;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use files::{Change, FileRead, FileVersion, READ_TIMEOUT, read_if_changed};
use hostsfile::{Found, Options, Report, Table};
use refresh::{MAX_FILE, RefreshedFile, RefreshedFiles};
use wire::{Class, Flags, Query, RType, Reply};

pub use self::registry::{HostsRegistry, plans};
use self::setup::PLUGIN;
pub(crate) use self::setup::read;
pub use self::setup::{HostsSpec, TlsWords};
use clock::throttle;
use logging::Logger;
use metrics::counters::ThreadCounters;
use plugin::failure::{Failure, FailureKind};
use plugin::spec::{BuildContext, Explanation, Source, SourceSpec};
use plugin::{HostsGuard, Lookup, QueryContext, Scope};

/// One block's view of a table.
struct Hosts {
    table: Arc<HostsTable>,
    scope: Scope,
}

/// A table that is rebuilt when its file changes; blocks with equal directives share one.
pub struct HostsTable {
    spec: HostsSpec,
    current: ArcSwap<Table>,
    /// Number of entries from the lines in the Corefile.
    inline_entries: usize,
    /// The file's modification time in milliseconds since 1970; 0 before it was read.
    modified_ms: AtomicU64,
    made: Instant,
    /// When the serving table was built, in nanoseconds since `made`.
    built_ns: AtomicU64,
    state: Mutex<State>,
    /// The files with refreshed names; entries in memory may be newer than those on disk.
    kept: Arc<RefreshedFiles>,
}

/// The state of the only reader of the file.
#[derive(Default)]
struct State {
    /// The read in progress.
    look: FileRead<io::Result<Change>>,
    /// Refresh counter of the file's names when the read began.
    since: Option<u64>,
    /// Newer names were learned during the read, so that its result is outdated.
    overtaken: bool,
    seen: Option<FileVersion>,
    /// A version that looks like a write in progress: used only if the next read finds it
    /// unchanged.
    doubted: Option<FileVersion>,
    next_look: Option<Instant>,
    /// Replaced tables, dropped by this reader and not by a worker that still uses them.
    replaced: Vec<Arc<Table>>,
    missing_reported: bool,
    /// A new configuration requests one check of the file, regardless of `reload`.
    again: bool,
    /// The text of the serving table, if the file has refreshed names.
    kept_text: Option<Arc<[u8]>>,
}

impl SourceSpec for HostsSpec {
    fn build(&self, context: &BuildContext<'_>) -> plugin::args::Result<Box<dyn Source>> {
        self.check_tls()?;
        let table = context.reload_state.get::<HostsRegistry>().table(self);
        Ok(Box::new(Hosts { table, scope: context.scope(&self.zones) }))
    }
}

impl Source for Hosts {
    /// Answers A, AAAA and PTR; another type of a name in the table gets NODATA.
    #[inline]
    fn lookup<'h>(
        &'h self,
        _: &QueryContext<'_>,
        tables: &mut HostsGuard<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        counters: ThreadCounters<'_>,
    ) -> Lookup {
        if query.class != Class::IN {
            return Lookup::Pass;
        }
        let table = tables.table(&self.table.current);
        match table.lookup(&query.name, query.rtype) {
            Found::Ready { body, count } => {
                reply.flags = Flags::AA;
                reply.push_ready(body, [count, 0, 0]);
                counters.add(|zone| &zone.hosts_hits);
                Lookup::Answer
            }
            Found::NoData if self.goes_on(query) => Lookup::Pass,
            Found::NoData => {
                reply.flags = Flags::AA;
                counters.add(|zone| &zone.hosts_hits);
                Lookup::Answer
            }
            Found::Absent => {
                if !self.scope.holds(&query.name) {
                    return Lookup::Pass;
                }
                counters.add(|zone| &zone.hosts_misses);
                if query.rtype == RType::PTR || self.table.spec.fallthrough.through(&query.name) {
                    Lookup::Pass
                } else {
                    // As in CoreDNS, the query fails: there is no SOA for a denial.
                    Lookup::Fail(Failure::own(PLUGIN, FailureKind::NotMine, "no such name"))
                }
            }
        }
    }

    fn explain(&self, query: &Query<'_>) -> Explanation {
        let (spec, name) = (self.table.spec(), &query.name);
        let file = spec.file.display();
        match self.table.knows(name, query.rtype) {
            Some(true) => Explanation::Ends(format!("{file} has {} records of the name", query.rtype)),
            Some(false) if !self.goes_on(query) => Explanation::Ends(format!(
                "NODATA: {file} has the name, but no {} records of it",
                query.rtype
            )),
            Some(false) => Explanation::Passes(None),
            None => {
                if self.scope.holds(name) && query.rtype != RType::PTR && !spec.fallthrough.through(name) {
                    return Explanation::Ends(format!(
                        "SERVFAIL: {file} does not have the name, and `fallthrough` is not set"
                    ));
                }
                Explanation::Passes(Some(format!("not in {file}")))
            }
        }
    }
}

impl Hosts {
    /// Whether an unsupported type of a name in the table passes to the next plugin.
    fn goes_on(&self, query: &Query<'_>) -> bool {
        let supported = matches!(query.rtype, RType::A | RType::AAAA | RType::PTR);
        self.table.spec.fallthrough_unsupported
            && !supported
            && self.table.spec.fallthrough.through(&query.name)
    }
}

impl HostsTable {
    /// Returns the directive.
    pub fn spec(&self) -> &HostsSpec {
        &self.spec
    }

    /// Returns the number of entries: names and addresses are counted as in CoreDNS.
    pub fn entries(&self) -> usize {
        self.current.load().entries()
    }

    /// Returns the file's modification time in milliseconds since 1970; 0 if it was never read.
    pub fn modified_ms(&self) -> u64 {
        self.modified_ms.load(Relaxed)
    }

    /// Returns when the serving table was built.
    pub fn built(&self) -> Instant {
        self.made + Duration::from_nanos(self.built_ns.load(Relaxed))
    }

    /// Returns whether the table has the name, for `explain`.
    pub fn knows(&self, name: &wire::Name, rtype: RType) -> Option<bool> {
        match self.current.load().lookup(name, rtype) {
            Found::Ready { .. } => Some(true),
            Found::NoData => Some(false),
            Found::Absent => None,
        }
    }

    /// Checks the file if due, and returns when the next check is due; `None` for never. Waits for
    /// the disk for at most `patience`, which is no longer than [`READ_TIMEOUT`].
    ///
    /// A file that is missing, unreadable or being written leaves the table unchanged: a change
    /// that would remove every name, or that has an incomplete last line, is used only if the next
    /// check finds it unchanged.
    pub fn look_for(&self, now: Instant, patience: Duration, logger: &Logger) -> Option<Instant> {
        let mut state = self.state();
        let next = self.look_at(&mut state, now, patience, logger);
        match state.look.is_pending() && patience < READ_TIMEOUT {
            true => self.look_at(&mut state, now + READ_TIMEOUT, Duration::ZERO, logger),
            false => next,
        }
    }

    /// As [`Self::look_for`], without waiting: the result of a read in progress is used at the next
    /// check.
    pub fn glance(&self, now: Instant, logger: &Logger) -> Option<Instant> {
        match self.state.try_lock() {
            Ok(mut state) => self.look_at(&mut state, now, Duration::ZERO, logger),
            // Another thread has the lock: a reload that waits for the disk, or a thread that
            // publishes refreshed names.
            Err(TryLockError::WouldBlock) => Some(now + BUSY),
            Err(TryLockError::Poisoned(state)) => {
                self.look_at(&mut state.into_inner(), now, Duration::ZERO, logger)
            }
        }
    }

    fn look_at(
        &self,
        state: &mut State,
        now: Instant,
        patience: Duration,
        logger: &Logger,
    ) -> Option<Instant> {
        state.replaced.retain(|table| Arc::strong_count(table) > 1);
        if !state.look.is_pending() {
            if self.spec.reload.is_zero() && !state.again {
                return None;
            }
            if let Some(next) = state.next_look
                && now < next
            {
                return Some(next);
            }
            let (of, seen, rests) = (self.spec.file.clone(), state.seen, throttle::rests());
            let look = move || read_if_changed(&of, seen, MAX_FILE, throttle::rest);
            let work = move || if rests { throttle::with_rests(look) } else { look() };
            state.since = self.kept.find(&self.spec.file).map(|kept| kept.learned());
            state.look.start(&self.spec.file, now, work);
        }
        let Some(found) = state.look.poll(now, patience) else { return Some(state.look.next_poll(now)) };
        let whole = self.took(state, found.map_err(Into::into).flatten(), now, logger);
        if state.look.is_pending() {
            return Some(state.look.next_poll(now));
        }
        state.again = !whole;
        if std::mem::take(&mut state.overtaken) {
            // A new table is empty until the file is read; meanwhile the text of `RefreshedFile` is
            // served.
            if let Some(kept) = self.kept.find(&self.spec.file) {
                self.serve_text(state, kept.text());
            }
            state.next_look = None;
            return Some(now + BUSY);
        }
        let interval = match self.spec.reload {
            Duration::ZERO if !state.again => return None,
            Duration::ZERO => AGAIN,
            reload => reload.max(Duration::from_millis(100)),
        };
        state.next_look = Some(now + interval);
        state.next_look
    }

    /// Serves a file that has changed; returns false if another process seems to be writing the
    /// file.
    fn took(&self, state: &mut State, found: io::Result<Change>, now: Instant, logger: &Logger) -> bool {
        let kept = self.kept.find(&self.spec.file);
        if !state.look.is_pending() && kept.as_ref().map(|kept| kept.learned()) != state.since {
            state.overtaken = true;
            return false;
        }
        let since = state.since.unwrap_or_default();
        let (text, stamp) = match found {
            Ok(Change::Text(text, stamp)) => (text, stamp),
            Ok(Change::Unchanged) => {
                state.doubted = None;
                return true;
            }
            Ok(Change::BeingWritten) => {
                state.doubted = None;
                return false;
            }
            Err(error) => {
                self.unreadable(state, kept, &error, now, logger);
                return true;
            }
        };
        state.missing_reported = false;
        if let Some(kept) = kept.as_ref().filter(|_| state.kept_text.as_deref() == Some(&*text)) {
            // The file has the text that this process wrote and already serves: no new table is
            // built.
            return match kept.read(since, &text, stamp.age(clock::wall_ms()), now) {
                Some(served) => {
                    self.serve_text(state, served);
                    self.saw(state, stamp);
                    true
                }
                None => {
                    state.overtaken = true;
                    false
                }
            };
        }
        let (table, report) = self.build(&text);
        let emptied = table.entries() == self.inline_entries && self.entries() > self.inline_entries;
        let doubtful = state.seen.is_some() && (emptied || text.last().is_some_and(|&last| last != b'\n'));
        if doubtful && state.doubted != Some(stamp) {
            state.doubted = Some(stamp);
            return false;
        }
        match kept.map(|kept| kept.read(since, &text, stamp.age(clock::wall_ms()), now)) {
            Some(None) => {
                state.overtaken = true;
                return false;
            }
            Some(Some(served)) if *served != *text => self.serve_text(state, served),
            served => {
                state.kept_text = served.flatten();
                self.swap(state, table);
            }
        }
        self.saw(state, stamp);
        self.report(&report, logger);
        true
    }

    /// Handles a missing or unreadable file, logged once. Refreshed names are still served.
    fn unreadable(
        &self,
        state: &mut State,
        kept: Option<Arc<RefreshedFile>>,
        error: &io::Error,
        now: Instant,
        logger: &Logger,
    ) {
        if std::mem::replace(&mut state.missing_reported, true) {
            return;
        }
        let file = self.spec.file.display();
        match kept.filter(|_| error.kind() == io::ErrorKind::NotFound) {
            Some(kept) => {
                logger.info(
                    Some("hosts"),
                    &format!("{file} does not exist; its names are refreshed, and it is written then"),
                );
                self.serve_text(state, kept.missing(now));
            }
            None => {
                let outcome = match self.entries() > self.inline_entries {
                    true => "the entries stay",
                    false => "it has no entries, and is looked at again",
                };
                logger.warning(Some("hosts"), &format!("Cannot read {file}: {error}; {outcome}"));
            }
        }
    }

    fn saw(&self, state: &mut State, stamp: FileVersion) {
        state.doubted = None;
        state.seen = Some(stamp);
        self.modified_ms.store(stamp.modified_ms(), Relaxed);
    }

    /// Serves the current refreshed names of the table's file.
    pub fn serve(&self, kept: &RefreshedFile) {
        let mut state = self.state();
        self.serve_text(&mut state, kept.text());
    }

    fn serve_text(&self, state: &mut State, text: Arc<[u8]>) {
        if state.kept_text.as_ref().is_some_and(|served| Arc::ptr_eq(served, &text) || *served == text) {
            return;
        }
        // Lines with errors were logged when the file was read.
        let (table, _) = self.build(&text);
        state.kept_text = Some(text);
        self.swap(state, table);
    }

    fn build(&self, text: &[u8]) -> (Table, Report) {
        let name = self.spec.file.display().to_string();
        let sources = [
            hostsfile::HostsText { name: &name, text },
            hostsfile::HostsText { name: "Corefile", text: self.spec.inline.as_bytes() },
        ];
        Table::build(&sources, &self.options(), &mut throttle::step)
    }

    fn options(&self) -> Options {
        Options { ttl: self.spec.ttl, zones: self.spec.zones.clone(), reverse: self.spec.reverse }
    }

    fn swap(&self, state: &mut State, table: Table) {
        state.replaced.push(self.current.swap(Arc::new(table)));
        self.built_ns.store(clock::now().duration_since(self.made).as_nanos() as u64, Relaxed);
    }

    fn report(&self, report: &Report, logger: &Logger) {
        for line in &report.bad_lines {
            logger.error(
                Some("hosts"),
                &format!("Hosts file {:?}, line {}: {}", &*line.source, line.line, line.error),
            );
        }
        if report.bad_count > report.bad_lines.len() {
            let more = report.bad_count - report.bad_lines.len();
            logger.error(Some("hosts"), &format!("Hosts file {:?}: {more} more bad lines", self.spec.file));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time for a write in progress to finish, if `reload` is 0.
const AGAIN: Duration = Duration::from_secs(5);
/// Delay of the next check if another thread has locked the table.
const BUSY: Duration = Duration::from_millis(100);
