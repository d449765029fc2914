//! Tables that follow files: kept over reloads, and read again at an interval.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clock::throttle;
use files::{FileRead, READ_TIMEOUT, ReadError};

/// The tables of one plugin.
#[derive(Debug)]
pub(crate) struct Tables<T>(Mutex<Vec<Arc<T>>>);

impl<T> Default for Tables<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Tables<T> {
    /// Returns the table that `is_same` accepts, or adds a new one. A table is dropped when nothing
    /// else holds it: the caller keeps the result.
    pub(crate) fn get(&self, is_same: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> Arc<T> {
        let mut tables = self.lock();
        tables.retain(|table| Arc::strong_count(table) > 1 || is_same(table));
        if let Some(table) = tables.iter().find(|table| is_same(table)) {
            return table.clone();
        }
        let table = Arc::new(new());
        tables.push(table.clone());
        table
    }

    /// Returns the tables that a configuration holds, and drops the others.
    pub(crate) fn held(&self) -> Vec<Arc<T>> {
        let mut tables = self.lock();
        tables.retain(|table| Arc::strong_count(table) > 1);
        tables.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads at an interval, without blocking its caller.
#[derive(Debug)]
pub(crate) struct Poller<R> {
    read: FileRead<R>,
    /// The read in progress began before [`Self::restart`]: its result is not used.
    is_outdated: bool,
    next: Option<Instant>,
}

impl<R> Default for Poller<R> {
    fn default() -> Self {
        Self { read: FileRead::default(), is_outdated: false, next: None }
    }
}

/// The result of [`Poller::poll`].
pub(crate) enum Polled<R> {
    /// The next call is due then.
    Wait(Instant),
    /// A read has ended.
    Read(Result<R, ReadError>),
}

impl<R: Send + 'static> Poller<R> {
    /// Starts the interval again at the next call of [`Self::poll`], since the caller has read the
    /// file itself.
    pub(crate) fn restart(&mut self) {
        self.next = None;
        self.is_outdated = self.read.is_pending();
    }

    /// Starts the work that `work` returns, which reads `path`, if it is due, and returns its result
    /// when it has ended. The first read is due one `interval` after the first call.
    pub(crate) fn poll<W: FnOnce() -> R + Send + 'static>(
        &mut self,
        path: &Path,
        interval: Duration,
        now: Instant,
        work: impl FnOnce() -> W,
    ) -> Polled<R> {
        if !self.read.is_pending() {
            let next = *self.next.get_or_insert(now + interval);
            if now < next {
                return Polled::Wait(next);
            }
            let (work, rests) = (work(), throttle::rests());
            self.read.start(path, now, move || if rests { throttle::with_rests(work) } else { work() });
        }
        let read = match self.read.poll(now, Duration::ZERO) {
            None => return Polled::Wait(self.read.next_poll(now)),
            // Large or many files take longer than that.
            Some(Err(ReadError::TimedOut(_))) => return Polled::Wait(now + READ_TIMEOUT),
            Some(read) => read,
        };
        self.next = Some(now + interval);
        match std::mem::take(&mut self.is_outdated) {
            true => Polled::Wait(now + interval),
            false => Polled::Read(read),
        }
    }
}

/// Delay of the next call while a table is locked; the shortest interval.
pub(crate) const BUSY: Duration = Duration::from_millis(100);
/// Time limit of reads at start and at a reload of the Corefile.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
