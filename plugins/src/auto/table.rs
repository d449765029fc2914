//! Zones of directories, kept over reloads.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Instant;

use arc_swap::ArcSwap;
use files::{ReadError, ShownPath};
use logging::Logger;
use plugin::reload_state::Persistent;
use wire::Name;
use zone::{Problem, Zone};

use super::scan::{Found, Known, Problems, Scan, scan};
use super::setup::{DirectorySpec, PLUGIN};
use crate::followed::{BUSY, PATIENCE, Polled, Poller, Tables};
use crate::zone_file::{Failed, log_loaded};

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
    poller: Poller<io::Result<Scan>>,
    known: HashMap<Name, Known>,
    /// Replaced zones, dropped here and not by a worker that was still reading.
    replaced: Vec<Arc<Zones>>,
    /// Problems of the last scan, so that each is logged once.
    reported: Problems,
}

/// The zones of all directories.
#[derive(Default)]
pub(super) struct AutoTables(Tables<AutoTable>);

impl AutoTables {
    /// The zones of a directory, or a new table without zones.
    pub(super) fn table(&self, spec: &DirectorySpec) -> Arc<AutoTable> {
        self.0.get(
            |table| table.spec == *spec,
            || AutoTable { spec: spec.clone(), zones: ArcSwap::default(), state: Mutex::default() },
        )
    }
}

impl Persistent for AutoTables {
    fn look(&self, now: Instant, logger: &Logger) -> Option<Instant> {
        self.0.held().iter().filter_map(|table| table.look(now, logger)).min()
    }
}

impl AutoTable {
    /// Scans the directory for a new configuration; waits for up to a minute. Without a result the
    /// zones stay as they were, and the next scan follows.
    pub(super) fn scan(&self, logger: &Logger) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (spec, known) = (self.spec.clone(), state.known.clone());
        let scanned = files::with_timeout(&self.spec.directory, PATIENCE, move || scan(&spec, &known));
        state.poller.restart();
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
        let (spec, before) = (&self.spec, &mut *state);
        let polled = before.poller.poll(&spec.directory, interval, now, || {
            let (spec, known) = (spec.clone(), before.known.clone());
            move || scan(&spec, &known)
        });
        match polled {
            Polled::Wait(next) => Some(next),
            Polled::Read(scanned) => {
                self.apply(&mut state, scanned, logger);
                Some(now + interval)
            }
        }
    }

    fn apply(&self, state: &mut State, scanned: Result<io::Result<Scan>, ReadError>, logger: &Logger) {
        let scan = match scanned.map_err(io::Error::from).flatten() {
            Ok(scan) => scan,
            Err(error) => {
                let directory = self.spec.directory.display();
                let stay = if self.zones.load().is_empty() { "it has no zones" } else { "its zones stay" };
                let mut problems = Problems::default();
                problems.add(format!("Cannot read {directory}: {error}; {stay}"));
                return report(state, problems, logger);
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
                    failed
                        .message(&file.display(), stays)
                        .into_iter()
                        .for_each(|problem| problems.add(problem));
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
fn report(state: &mut State, problems: Problems, logger: &Logger) {
    let before = std::mem::replace(&mut state.reported, problems);
    for problem in state.reported.first.iter().filter(|problem| !before.first.contains(problem)) {
        logger.warning(Some(PLUGIN), problem);
    }
    let (more, were) = (state.reported.more, before.more);
    if more > 0 && more != were {
        logger.warning(Some(PLUGIN), &format!("{more} more files of the directory are not served"));
    }
}
