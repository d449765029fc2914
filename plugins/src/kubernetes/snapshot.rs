//! `snapshot`: a cluster's index in a file. A separate thread writes the file periodically and
//! before the process ends; the file is read once at a start.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ::kubernetes::snapshot::{self, MAX_BYTES, Snapshot};
use ::kubernetes::{Index, IndexWriter};
use ::kubernetes_api::objects::SinceEpoch;
use files::{ReadError, ShownPath};
use kubernetes_api::{Access, Kind, WatchConfig};

use super::sync_problem::SyncProblem;
use logging::Logger;

/// The property `snapshot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSpec {
    /// Path of the file.
    pub file: ShownPath,
    /// Minimum interval between writes; default 30 s, at least 1 s.
    pub every: Duration,
}

/// The data that a snapshot is made of.
pub(super) struct Followed {
    pub(super) index: Arc<Index>,
    pub(super) access: Access,
    pub(super) wants: WatchConfig,
}

/// A cluster's snapshot while the cluster is watched.
pub(super) struct Kept {
    spec: SnapshotSpec,
    state: Mutex<State>,
    now: fn() -> SinceEpoch,
}

#[derive(Default)]
struct State {
    /// Kinds without a complete list since the snapshot was read.
    restored: Vec<Kind>,
    /// Age of the snapshot when it was read, and when it was read.
    read: Option<(Duration, Instant)>,
    /// The reason why the file cannot be used, until the file is replaced.
    unusable: Option<String>,
    written: u64,
    failed: u64,
    /// Whether the current series of failures is logged; reset by a successful write.
    is_logged: bool,
}

/// Ends the writer thread on drop.
pub(super) struct Writing {
    ask: Sender<Sender<Infallible>>,
}

impl Writing {
    /// Requests a write of the current changes. The returned channel closes when the write has
    /// succeeded or failed.
    pub(super) fn now(&self) -> Receiver<Infallible> {
        let (done, ends) = channel();
        // If the thread has ended, `done` is dropped here.
        let _ = self.ask.send(done);
        ends
    }
}

impl Kept {
    /// Creates the state; `now` reads the wall clock.
    pub(super) fn new(spec: SnapshotSpec, now: fn() -> SinceEpoch) -> Self {
        Self { spec, state: Mutex::default(), now }
    }

    pub(super) fn is_of(&self, spec: Option<&SnapshotSpec>) -> bool {
        spec == Some(&self.spec)
    }

    /// Loads the objects of the file into the index, unless other users can change the file. On
    /// failure the reason is logged, and the index stays empty.
    pub(super) fn restore(&self, of: &Followed, writer: &mut IndexWriter, at: Instant, logger: &Logger) {
        let file = self.spec.file.display();
        match self.load(of, writer, at, |error| error.to_string()) {
            Ok(None) => {}
            Ok(Some(age)) => {
                let line = format!(
                    "Answers are from the snapshot {file}, {} s old, until the lists of the API are complete",
                    age.as_secs()
                );
                logger.info(Some("kubernetes"), &line);
            }
            Err(cause) => {
                let line = format!("Cannot use the snapshot {file}: {cause}; {REPLACED}");
                logger.warning(Some("kubernetes"), &line);
                self.state().unusable = Some(cause);
            }
        }
    }

    /// Loads the file into the index for `explain`, if it exists, and returns the snapshot's age.
    /// The file is checked as by a server that runs as this process's user.
    ///
    /// # Errors
    /// The reason why the file cannot be used; the index is empty then.
    pub(super) fn load_snapshot(
        &self,
        of: &Followed,
        writer: &mut IndexWriter,
        at: Instant,
    ) -> Result<Option<Duration>, String> {
        self.load(of, writer, at, of_another_user)
            .map_err(|cause| format!("the snapshot {} is refused: {cause}", self.spec.file.display()))
    }

    fn load(
        &self,
        of: &Followed,
        writer: &mut IndexWriter,
        at: Instant,
        text: fn(ReadError) -> String,
    ) -> Result<Option<Duration>, String> {
        let age = self.read(of, writer, text)?;
        if let Some(age) = age {
            let mut state = self.state();
            state.restored = of.wants.kinds().collect();
            state.read = Some((age, at));
        }
        Ok(age)
    }

    fn read(
        &self,
        of: &Followed,
        writer: &mut IndexWriter,
        text: fn(ReadError) -> String,
    ) -> Result<Option<Duration>, String> {
        let octets = match files::read_own_state(&self.spec.file, MAX_BYTES as u64) {
            Ok(octets) => octets,
            Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(text(error)),
        };
        let found =
            Snapshot::read(&octets, &of.access, &of.wants).map_err(|unusable| unusable.to_string())?;
        writer.restore(found.objects());
        Ok(Some((self.now)().0.saturating_sub(found.written.0)))
    }

    /// Marks the list of a kind as complete; returns whether this was the last kind from the snapshot.
    pub(super) fn complete(&self, kind: Kind) -> bool {
        let mut state = self.state();
        let before = state.restored.len();
        state.restored.retain(|restored| *restored != kind);
        before > 0 && state.restored.is_empty()
    }

    /// Returns the age of the snapshot while answers use it.
    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        let state = self.state();
        let (age, read) = state.read.filter(|_| !state.restored.is_empty())?;
        Some(age + now.saturating_duration_since(read))
    }

    /// Returns the problem of the file, until the file is replaced.
    pub(super) fn problems(&self) -> Option<SyncProblem> {
        let cause = self.state().unusable.clone()?;
        let what = format!("{}: {cause}", self.spec.file.display());
        Some(SyncProblem { subject: "snapshot".to_owned(), problem: what, remedy: REPLACED })
    }

    /// Returns the number of writes and the number of failed writes.
    pub(super) fn counts(&self) -> [u64; 2] {
        let state = self.state();
        [state.written, state.failed]
    }

    /// Starts the writer thread.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn write(self: &Arc<Self>, of: Arc<Followed>, logger: Logger) -> io::Result<Writing> {
        let (ask, asked) = channel();
        let kept = self.clone();
        // The thread is not joined: it may hang on a disk when the server stops.
        thread::Builder::new().name("snapshot".to_owned()).spawn(move || kept.run(&of, &asked, &logger))?;
        Ok(Writing { ask })
    }

    fn run(&self, of: &Followed, asked: &Receiver<Sender<Infallible>>, logger: &Logger) {
        let (mut last, mut pause) = (None, LOOK);
        loop {
            // Dropping `_done` ends the caller's wait.
            let _done = match asked.recv_timeout(pause) {
                Ok(done) => Some(done),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let changes = of.index.changes();
            // While a kind still has data of the restored snapshot, no snapshot is written: old
            // data would get a new date.
            let is_whole = of.index.unsynced().is_empty() && self.state().restored.is_empty();
            pause = if is_whole { self.spec.every } else { LOOK };
            if !is_whole || last == Some(changes) {
                continue;
            }
            let outcome = put(&self.spec.file, of, (self.now)());
            if outcome.is_ok() {
                last = Some(changes);
            }
            self.record(outcome, logger);
        }
    }

    fn record(&self, outcome: Result<(), String>, logger: &Logger) {
        let mut state = self.state();
        match outcome {
            Ok(()) => {
                state.written += 1;
                state.is_logged = false;
                state.unusable = None;
            }
            Err(cause) => {
                state.failed += 1;
                if !std::mem::replace(&mut state.is_logged, true) {
                    let line = format!(
                        "Cannot keep the snapshot: {cause}; a restart without the API knows what was kept before"
                    );
                    logger.warning(Some("kubernetes"), &line);
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces the file atomically.
fn put(file: &ShownPath, of: &Followed, now: SinceEpoch) -> Result<(), String> {
    let octets = snapshot::write(&of.index, &of.access, &of.wants, now);
    let octets = octets
        .ok_or_else(|| format!("{}: expected at most {MAX_BYTES} octets, found more", file.display()))?;
    files::atomic_write(file, None, &octets).map_err(|error| error.shown_as(file).to_string())
}

/// Returns why `explain` cannot read the file. The server may run as another user.
fn of_another_user(error: ReadError) -> String {
    match error {
        ReadError::Foreign { uid, mode } if mode & 0o022 == 0 => {
            format!("{error}; if the server runs as user {uid}, run `explain` as that user")
        }
        error => error.to_string(),
    }
}

/// Interval between checks whether all kinds are synced: the minimum interval of writes.
const LOOK: Duration = Duration::from_secs(1);
const REPLACED: &str = "it is replaced once the lists of the API are complete";
