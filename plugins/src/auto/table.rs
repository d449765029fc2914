//! Zones of directories, kept over reloads.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use clock::throttle;
use files::{FileRead, READ_TIMEOUT, ReadError, ShownPath};
use logging::Logger;
use plugin::reload_state::Persistent;
use wire::Name;
use zone::{Problem, Zone};

use super::scan::{Found, Known, Scan, scan};
use super::setup::{DirectorySpec, PLUGIN};
use crate::zone_file::{Failed, PATIENCE, log_loaded};

/// A zone and its file.
#[derive(Debug, Clone)]
pub(super) struct Served {
    pub(super) zone: Arc<Zone>,
    pub(super) file: ShownPath,
}

/// Zones by name in wire form.
pub(super) type Zones = HashMap<Box<[u8]>, Served>;

/// The zones of a directory; directives with the same properties share one.
pub(super) struct AutoTable {
    pub(super) spec: DirectorySpec,
    pub(super) zones: ArcSwap<Zones>,
    state: Mutex<State>,
}

/// State of the directory's only reader.
#[derive(Default)]
struct State {
    read: FileRead<io::Result<Scan>>,
    known: HashMap<Name, Known>,
    next: Option<Instant>,
    /// Replaced zones, dropped here and not by a worker that was still reading.
    replaced: Vec<Arc<Zones>>,
    /// Problems of the last scan, so that each is logged once.
    reported: Vec<String>,
}

/// The zones of all directories, kept over reloads.
#[derive(Default)]
pub(super) struct AutoTables(Mutex<Vec<Arc<AutoTable>>>);

impl AutoTables {
    /// The zones of a directory, or a new table without zones.
    pub(super) fn table(&self, spec: &DirectorySpec) -> Arc<AutoTable> {
        let mut tables = self.lock();
        tables.retain(|table| Arc::strong_count(table) > 1 || table.spec == *spec);
        if let Some(table) = tables.iter().find(|table| table.spec == *spec) {
            return table.clone();
        }
        let zones = ArcSwap::default();
        let table = Arc::new(AutoTable { spec: spec.clone(), zones, state: Mutex::default() });
        tables.push(table.clone());
        table
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<AutoTable>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Persistent for AutoTables {
    fn look(&self, now: Instant, logger: &Logger) -> Option<Instant> {
        let mut tables = self.lock();
        tables.retain(|table| Arc::strong_count(table) > 1);
        let tables = tables.clone();
        tables.iter().filter_map(|table| table.look(now, logger)).min()
    }
}

impl AutoTable {
    /// Scans the directory for a new configuration; waits for up to a minute. Without a result the
    /// zones stay as they were, and the next scan follows.
    pub(super) fn prepare(&self, logger: &Logger) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (spec, known) = (self.spec.clone(), state.known.clone());
        let scanned = files::with_timeout(&self.spec.directory, PATIENCE, move || scan(&spec, &known));
        state.next = None;
        self.apply(&mut state, scanned, logger);
    }

    /// Scans the directory if due, without waiting, and returns when the next call is due.
    fn look(&self, now: Instant, logger: &Logger) -> Option<Instant> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            // A new configuration scans the directory.
            Err(TryLockError::WouldBlock) => return Some(now + BUSY),
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
        };
        state.replaced.retain(|zones| Arc::strong_count(zones) > 1);
        if self.spec.reload.is_zero() {
            return (!state.replaced.is_empty()).then_some(now + BUSY);
        }
        let interval = self.spec.reload.max(BUSY);
        if !state.read.is_pending() {
            let next = *state.next.get_or_insert(now + interval);
            if now < next {
                return Some(next);
            }
            let (spec, known, rests) = (self.spec.clone(), state.known.clone(), throttle::rests());
            let work = move || scan(&spec, &known);
            let work = move || if rests { throttle::with_rests(work) } else { work() };
            state.read.start(&self.spec.directory, now, work);
        }
        let scanned = match state.read.poll(now, Duration::ZERO) {
            None => return Some(state.read.next_poll(now)),
            // Many or large zones take longer than that.
            Some(Err(ReadError::TimedOut(_))) => return Some(now + READ_TIMEOUT),
            Some(scanned) => scanned,
        };
        state.next = Some(now + interval);
        self.apply(&mut state, scanned, logger);
        state.next
    }

    fn apply(&self, state: &mut State, scanned: Result<io::Result<Scan>, ReadError>, logger: &Logger) {
        let scan = match scanned.map_err(io::Error::from).flatten() {
            Ok(scan) => scan,
            Err(error) => {
                let directory = self.spec.directory.display();
                let stay = if self.zones.load().is_empty() { "it has no zones" } else { "its zones stay" };
                return report(state, vec![format!("Cannot read {directory}: {error}; {stay}")], logger);
            }
        };
        let old = self.zones.load_full();
        let (mut zones, mut known, mut problems) = (Zones::new(), HashMap::new(), scan.ignored);
        for Found { origin, file, read: (seen, loaded) } in scan.zones {
            let served = old.get(origin.as_wire());
            let mut found = Known { path: file.as_path().to_owned(), seen };
            let zone = match loaded {
                Ok(None) => served.map(|served| served.zone.clone()),
                Ok(Some(loaded)) => {
                    let kept = served.filter(|served| served.zone.serial() == loaded.zone.serial());
                    Some(match kept {
                        Some(served) => served.zone.clone(),
                        None => log_loaded(PLUGIN, &file.display(), loaded, served.is_some(), logger),
                    })
                }
                Err(failed) => {
                    let stays =
                        if served.is_some() { "the zone stays as it was" } else { "the zone is not served" };
                    problems.extend(failed.message(&file.display(), stays));
                    // Files that are included may appear.
                    if !matches!(&failed, Failed::Text(error) if !matches!(error.problem, Problem::Include { .. }))
                    {
                        found.seen.clear();
                    }
                    served.map(|served| served.zone.clone())
                }
            };
            known.insert(origin, found);
            zones.extend(zone.map(|zone| (origin.as_wire().into(), Served { zone, file })));
        }
        for (_, served) in old.iter().filter(|(origin, _)| !zones.contains_key(&origin[..])) {
            let (file, origin) = (served.file.display(), served.zone.origin());
            logger.info(Some(PLUGIN), &format!("{file} is gone: the zone {origin} is no longer served"));
        }
        state.known = known;
        report(state, problems, logger);
        state.replaced.push(self.zones.swap(Arc::new(zones)));
    }
}

/// Logs problems that the scan before did not have.
fn report(state: &mut State, problems: Vec<String>, logger: &Logger) {
    let is_new = |problem: &&String| !state.reported.contains(problem);
    for (index, problem) in problems.iter().filter(is_new).enumerate() {
        if index == MOST_MESSAGES {
            logger.warning(Some(PLUGIN), "More files of the directory are not served");
            break;
        }
        logger.warning(Some(PLUGIN), problem);
    }
    state.reported = problems;
}

/// Delay of the next scan while the table is locked; the shortest interval of scans.
const BUSY: Duration = Duration::from_millis(100);
/// Messages of one scan.
const MOST_MESSAGES: usize = 16;
