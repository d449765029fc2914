//! Zones in memory that follow their files, kept over reloads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use corefile::Located;
use logging::Logger;
use plugin::SetupError;
use plugin::args::Result;
use plugin::reload_state::Persistent;
use zone::{Loaded, Problem, Zone};

use super::setup::{PLUGIN, ZoneSpec};
use crate::followed::{BUSY, PATIENCE, Polled, Poller, Tables};
use crate::zone_file::{Failed, Read, Seen, log_loaded, read_zone};

/// A zone that follows its file; directives with the same zone, file and properties share one.
pub(super) struct ZoneTable {
    pub(super) spec: ZoneSpec,
    /// The zone; `None` until its file is read.
    pub(super) current: ArcSwapOption<Zone>,
    state: Mutex<State>,
}

/// State of the file's only reader.
#[derive(Default)]
struct State {
    poller: Poller<Read>,
    /// The files of the last read, the one of the directive first; empty to read it in any case.
    seen: Seen,
    /// Replaced zones, dropped here and not by a worker that was still reading.
    replaced: Vec<Arc<Zone>>,
    /// The last error, so that it is logged once.
    reported: String,
}

/// The zones of all `file` directives.
#[derive(Default)]
pub(super) struct ZoneTables(Tables<ZoneTable>);

impl ZoneTables {
    /// The zone of a directive, or a new one without records.
    pub(super) fn table(&self, spec: &ZoneSpec) -> Arc<ZoneTable> {
        let is_same = |table: &ZoneTable| {
            let own = &table.spec;
            (own.origin, &own.file, own.reload, own.by_mtime)
                == (spec.origin, &spec.file, spec.reload, spec.by_mtime)
        };
        self.0.get(is_same, || ZoneTable {
            spec: spec.clone(),
            current: ArcSwapOption::empty(),
            state: Mutex::default(),
        })
    }
}

impl Persistent for ZoneTables {
    fn look(&self, now: Instant, logger: &Logger) -> Option<Instant> {
        self.0.held().iter().filter_map(|table| table.look(now, logger)).min()
    }
}

impl ZoneTable {
    /// Reads the file for a new configuration, as CoreDNS does; waits for up to a minute.
    ///
    /// # Errors
    /// The file is no zone; or it cannot be read and is not checked again. The zone stays as it was.
    pub(super) fn read(&self, logger: &Logger) -> Result<()> {
        let mut state = self.state();
        let (spec, seen) = (self.spec.clone(), state.seen.clone());
        let read = files::with_timeout(&self.spec.file, PATIENCE, move || {
            read_zone(&spec.origin, &spec.file, spec.by_mtime, &seen)
        });
        let at = |error| Located::new(&self.spec.at, error);
        let (seen, loaded) = match read {
            Ok(read) => read,
            Err(error) => (Vec::new(), Err(Failed::File(error.into()))),
        };
        state.poller.restart();
        match loaded {
            Ok(Some(loaded)) => {
                state.seen = seen;
                state.reported.clear();
                self.swap(&mut state, loaded, logger);
            }
            Ok(None) => {}
            Err(Failed::Text(error)) => {
                return Err(at(SetupError::Own { plugin: PLUGIN, error }));
            }
            Err(Failed::File(error)) if self.spec.reload.is_zero() => {
                let path = self.spec.file.clone();
                return Err(at(SetupError::File { plugin: PLUGIN, path, error }));
            }
            Err(failed) => self.report(&mut state, &failed, logger),
        }
        Ok(())
    }

    /// Checks the file if due, without waiting, and returns when the next check is due.
    fn look(&self, now: Instant, logger: &Logger) -> Option<Instant> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            // A new configuration reads the file.
            Err(TryLockError::WouldBlock) => return Some(now + BUSY),
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
        };
        state.replaced.retain(|zone| Arc::strong_count(zone) > 1);
        if self.spec.reload.is_zero() {
            return (!state.replaced.is_empty()).then_some(now + BUSY);
        }
        let interval = self.spec.reload.max(BUSY);
        let (spec, known) = (&self.spec, &mut *state);
        let polled = known.poller.poll(&spec.file, interval, now, || {
            let (spec, seen) = (spec.clone(), known.seen.clone());
            move || read_zone(&spec.origin, &spec.file, spec.by_mtime, &seen)
        });
        let (seen, loaded) = match polled {
            Polled::Wait(next) => return Some(next),
            Polled::Read(Ok(read)) => read,
            Polled::Read(Err(error)) => (Vec::new(), Err(Failed::File(error.into()))),
        };
        match loaded {
            Ok(None) => {}
            Ok(Some(loaded)) => {
                state.seen = seen;
                state.reported.clear();
                let serial = self.current.load().as_ref().map(|zone| zone.serial());
                if self.spec.by_mtime || serial != Some(loaded.zone.serial()) {
                    self.swap(&mut state, loaded, logger);
                }
            }
            Err(failed) => {
                state.seen = match &failed {
                    // The file that is included may appear.
                    Failed::Text(error) if !matches!(error.problem, Problem::Include { .. }) => seen,
                    _ => Vec::new(),
                };
                self.report(&mut state, &failed, logger);
            }
        }
        Some(now + interval)
    }

    fn swap(&self, state: &mut State, loaded: Loaded, logger: &Logger) {
        let is_known = self.current.load().is_some();
        let zone = log_loaded(PLUGIN, &self.spec.file.display(), loaded, is_known, logger);
        let old = self.current.swap(Some(zone));
        state.replaced.extend(old);
    }

    /// Logs why there is no new zone, once.
    fn report(&self, state: &mut State, failed: &Failed, logger: &Logger) {
        let effect = match self.current.load().is_some() {
            true => "the zone stays as it was",
            false => "its names get SERVFAIL until it can be read",
        };
        let Some(why) = failed.message(&self.spec.file.display(), effect) else { return };
        if state.reported != why {
            match failed {
                Failed::File(_) => logger.warning(Some(PLUGIN), &why),
                _ => logger.error(Some(PLUGIN), &why),
            }
            state.reported = why;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
