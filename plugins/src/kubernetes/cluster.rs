//! One cluster: its index, the watcher of its API, and its log lines.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::mem::{Discriminant, discriminant};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::kubernetes::index::IndexObserver;
use ::kubernetes::{Index, IndexWriter, SnapshotAge, SnapshotSource};
use ::kubernetes_api::objects::SinceEpoch;
use ::kubernetes_api::{DecodeError, RequestMetrics};
use kubernetes_api::{Access, ClientSettings, Kind, RateLimit, WatchConfig, WatchError, WatchHandle, follow};

use super::memory_limit::room;
use super::metrics::Metrics;
use super::snapshot::{Followed, Kept, SnapshotSpec, Writing};
use super::sync_problem::SyncProblem;
use logging::Logger;

/// A watched cluster; blocks with directives that watch the same objects share one.
pub(super) struct Cluster {
    followed: Arc<Followed>,
    shared: Arc<Shared>,
    /// The watches and the snapshot writer; set when a configuration with this cluster starts to
    /// serve.
    following: Mutex<Option<(WatchHandle, Option<Writing>)>>,
    /// Maximum time that a start waits for the cluster, and the rate limit of API requests.
    start: Mutex<(Duration, RateLimit)>,
}

/// State that the watcher's thread shares with readers.
struct Shared {
    index: Arc<Index>,
    snapshot: Option<Arc<Kept>>,
    metrics: Arc<Metrics>,
    reports: Mutex<Reports>,
    /// Notified when a kind is synced.
    known: Condvar,
}

/// Events of each kind of object, and the causes that were logged.
#[derive(Default)]
struct Reports {
    /// Kinds without a connected watch: the error and its remedy.
    lost: BTreeMap<Kind, (String, &'static str)>,
    /// Logged causes by class of error; each is logged once until all kinds are watched again.
    causes: HashMap<(Discriminant<WatchError>, Option<Kind>), HashSet<String>>,
    unreadable: HashSet<Kind>,
    /// Kinds with objects that exceeded the memory limit, logged once until they are synced again.
    crowded: BTreeSet<Kind>,
    /// Missing permissions of the account: kind and verb.
    forbidden: BTreeMap<Kind, &'static str>,
    /// Time of the last event.
    heard: Option<Instant>,
}

impl Cluster {
    /// Creates a cluster without watches.
    pub(super) fn new(
        access: Access,
        wants: WatchConfig,
        snapshot: Option<SnapshotSpec>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let index = Arc::new(Index::new(&wants, wall));
        let snapshot = snapshot.map(|spec| Arc::new(Kept::new(spec, wall)));
        let followed = Arc::new(Followed { index: index.clone(), access, wants });
        let shared = Shared { index, snapshot, metrics, reports: Mutex::default(), known: Condvar::new() };
        Self { followed, shared: Arc::new(shared), following: Mutex::default(), start: Mutex::default() }
    }

    /// Whether the cluster has this API, these watched objects and this snapshot.
    pub(super) fn is_of(
        &self,
        access: &Access,
        wants: &WatchConfig,
        snapshot: Option<&SnapshotSpec>,
    ) -> bool {
        let is_kept_there = match &self.shared.snapshot {
            Some(kept) => kept.is_of(snapshot),
            None => snapshot.is_none(),
        };
        self.followed.access == *access && self.followed.wants == *wants && is_kept_there
    }

    pub(super) fn access(&self) -> &Access {
        &self.followed.access
    }

    pub(super) fn wants(&self) -> &WatchConfig {
        &self.followed.wants
    }

    pub(super) fn snapshot(&self) -> Option<&Kept> {
        self.shared.snapshot.as_deref()
    }

    #[inline]
    pub(super) fn index(&self) -> &Index {
        &self.shared.index
    }

    pub(super) fn shared_index(&self) -> Arc<Index> {
        self.shared.index.clone()
    }

    /// Whether all kinds have been synced once.
    pub(super) fn is_known(&self) -> bool {
        self.index().unsynced().is_empty()
    }

    /// Returns the time of the last event.
    pub(super) fn heard(&self) -> Option<Instant> {
        self.shared.reports().heard
    }

    /// Returns the missing permissions of the account, such as `watch services`.
    pub(super) fn rights_missing(&self) -> Vec<String> {
        self.shared.reports().forbidden.iter().map(|(kind, verb)| format!("{verb} {kind}")).collect()
    }

    /// Returns the problems: one for each cause, with its kinds of objects, and that of the
    /// snapshot.
    pub(super) fn problems(&self) -> Vec<SyncProblem> {
        let mut all: Vec<SyncProblem> = Vec::new();
        for (kind, (what, remedy)) in &self.shared.reports().lost {
            match all.iter_mut().find(|one| one.problem == *what) {
                Some(one) => one.subject = format!("{}, {kind}", one.subject),
                None => all.push(SyncProblem { subject: kind.to_string(), problem: what.clone(), remedy }),
            }
        }
        let reports = self.shared.reports();
        let crowded = self.index().unsynced().kinds().filter(|kind| reports.crowded.contains(kind));
        all.extend(crowded.map(|kind| SyncProblem {
            subject: kind.to_string(),
            problem: "some objects did not fit into memory".to_owned(),
            remedy: FOLLOW_FEWER,
        }));
        drop(reports);
        all.extend(self.snapshot().and_then(Kept::problems));
        all
    }

    /// Sets how long a start waits, at least as long as before, and the rate limit of API requests.
    pub(super) fn start_with(&self, timeout: Duration, pace: RateLimit) {
        let mut start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        *start = (timeout.max(start.0), pace);
    }

    /// Starts the watches, unless they run. Returns until when a start may wait for them.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn begin(&self, logger: &Logger) -> io::Result<Option<Instant>> {
        let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        if following.is_some() {
            return Ok(None);
        }
        let Followed { access, wants, .. } = &*self.followed;
        let (shared, wanted) = (self.shared.clone(), wants.kinds().collect());
        let watcher = Teller { shared, logger: logger.clone(), wanted };
        let mut writer = IndexWriter::new(self.shared.index.clone(), wants, room(), Box::new(watcher));
        if let Some(kept) = &self.shared.snapshot {
            kept.restore(&self.followed, &mut writer, clock::now(), logger);
        }
        let (timeout, pace) = *self.start.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = ClientSettings { access: access.clone(), wants: wants.clone(), pace, now: clock::now };
        let follows = follow(settings, Box::new(writer))?;
        let write = |kept: &Arc<Kept>| kept.write(self.followed.clone(), logger.clone());
        *following = Some((follows, self.shared.snapshot.as_ref().map(write).transpose()?));
        Ok(Some(clock::now() + timeout))
    }

    /// Requests a snapshot of the current changes, if snapshots are configured. The returned
    /// channel closes when the snapshot is written.
    pub(super) fn write_now(&self) -> Option<Receiver<Infallible>> {
        // The lock is taken while a reload begins, which may read a snapshot from a disk that
        // hangs.
        Some(self.following.try_lock().ok()?.as_ref()?.1.as_ref()?.now())
    }

    /// Waits until all kinds are synced, at most until `end`.
    pub(super) fn wait_until(&self, end: Instant, logger: &Logger) {
        let mut reports = self.shared.reports();
        let mut is_logged = false;
        while !self.is_known() {
            let left = end.saturating_duration_since(clock::now());
            if left.is_zero() {
                logger.warning(Some("kubernetes"), "starting server with unsynced Kubernetes API");
                return;
            }
            let patience = if is_logged { left } else { left.min(LOG_AFTER) };
            let (guard, timeout) =
                self.shared.known.wait_timeout(reports, patience).unwrap_or_else(PoisonError::into_inner);
            reports = guard;
            if timeout.timed_out() && !is_logged {
                logger.info(Some("kubernetes"), "waiting for Kubernetes API before starting server");
                is_logged = true;
            }
        }
    }
}

impl Shared {
    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The observer of the index: updates log and metrics, and wakes waiting threads.
struct Teller {
    shared: Arc<Shared>,
    logger: Logger,
    /// Kinds to watch.
    wanted: Vec<Kind>,
}

impl IndexObserver for Teller {
    fn programmed(&mut self, headless: bool, cause: SinceEpoch) {
        let now = Duration::from_millis(clock::wall_ms());
        self.shared.metrics.programmed(headless, now.saturating_sub(cause.0));
    }

    fn updated(&mut self) {
        self.shared.reports().heard = Some(clock::now());
    }

    fn complete(&mut self, kind: Kind) {
        if self.shared.snapshot.as_ref().is_some_and(|kept| kept.complete(kind)) {
            self.logger.info(
                Some("kubernetes"),
                "The lists of the API are complete: the snapshot is not used any more",
            );
        }
        // The lock is held so that a thread between its check and its wait does not miss the wake-up.
        let mut reports = self.shared.reports();
        let unknown = self.shared.index.unsynced();
        reports.crowded.retain(|crowded| *crowded != kind || unknown.kinds().any(|unknown| unknown == kind));
        self.shared.known.notify_all();
    }

    fn watching(&mut self, kind: Kind) {
        let mut reports = self.shared.reports();
        reports.forbidden.remove(&kind);
        reports.lost.remove(&kind);
        // A kind that is not listed yet, or is being listed again, is not watched either, but needs
        // no log line.
        let is_all = self.wanted.iter().all(|kind| self.shared.index.is_connected(*kind));
        if is_all && !reports.causes.is_empty() {
            reports.causes.clear();
            self.logger.info(Some("kubernetes"), "the Kubernetes API is followed again");
        }
    }

    fn failed(&mut self, kind: Kind, why: &WatchError) {
        let mut reports = self.shared.reports();
        reports.lost.insert(kind, (why.to_string(), why.remedy()));
        // All objects are listed again at once, or requested in another form: answers stay
        // available, so that nothing is logged.
        if matches!(
            why,
            WatchError::Expired(_)
                | WatchError::OutOfOrder(..)
                | WatchError::RelistForMemory
                | WatchError::Unsupported { .. }
        ) {
            return;
        }
        if let WatchError::Forbidden { verb, .. } = why {
            reports.forbidden.insert(kind, verb);
        }
        let of_kind =
            matches!(why, WatchError::Forbidden { .. } | WatchError::NoSuchResource { .. }).then_some(kind);
        // Causes may alternate, such as a refused connection and a wrong certificate; each is
        // logged once. The bound keeps an API with a new cause each time from filling the log.
        let causes = reports.causes.entry((discriminant(why), of_kind)).or_default();
        if causes.len() >= MOST_CAUSES || !causes.insert(why.to_string()) {
            return;
        }
        let meanwhile = match self.shared.index.unsynced().is_empty() {
            true => "answers do not change until the API answers again",
            false => "names that depend on it are SERVFAIL until then",
        };
        self.logger.warning(
            Some("kubernetes"),
            &format!("Cannot follow {kind}: {why}; {}; {meanwhile}", why.remedy()),
        );
    }

    fn invalid(&mut self, kind: Kind, what: &DecodeError) {
        self.shared.metrics.unreadable(kind);
        if self.shared.reports().unreadable.insert(kind) {
            let line = format!(
                "Some {kind} of the API are invalid and left out; the first is {what}. Correct it or delete it: \
                 `kubectl get {kind} -A -o yaml` shows it"
            );
            self.logger.warning(Some("kubernetes"), &line);
        }
    }

    fn out_of_memory(&mut self, kind: Kind, most_octets: usize) {
        if self.shared.reports().crowded.insert(kind) {
            let line = format!(
                "More {kind} than there is room for: objects of a cluster have {} MiB; what is not known of them is SERVFAIL. {}",
                most_octets >> 20,
                FOLLOW_FEWER
            );
            self.logger.error(Some("kubernetes"), &line);
        }
    }

    fn request_done(&mut self, asked: &RequestMetrics<'_>) {
        self.shared.metrics.asked(asked);
    }
}

impl SnapshotSource for Cluster {
    fn load_snapshot(&self) -> SnapshotAge {
        let following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = self.shared.snapshot.as_ref().filter(|_| following.is_none()) else {
            return SnapshotAge(Ok(None));
        };
        let now = clock::now();
        if let Some(age) = kept.age(now) {
            return SnapshotAge(Ok(Some(age)));
        }
        let wants = &self.followed.wants;
        let mut writer = IndexWriter::new(self.shared.index.clone(), wants, room(), Box::new(()));
        SnapshotAge(kept.load_snapshot(&self.followed, &mut writer, now))
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

/// Returns the wall-clock time, for comparison with timestamps of other machines and files.
fn wall() -> SinceEpoch {
    SinceEpoch(Duration::from_millis(clock::wall_ms()))
}

/// The remedy if the objects exceed the memory limit.
const FOLLOW_FEWER: &str = "Follow fewer, by `namespaces` or `labels`, or let it have more memory";
/// Maximum number of causes of one kind of error that are logged until all kinds are watched again.
const MOST_CAUSES: usize = 4;
/// Delay before a log line about a waiting start.
const LOG_AFTER: Duration = Duration::from_millis(500);
