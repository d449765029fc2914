//! The lines that wait for the writer thread, and how threads wait for it: state that the handles of the log share with it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::ring::{self, Consumer, Producer};

/// The queue of lines without a ring, the rings that the writer does not know yet, and the state of sleep and flush.
#[derive(Debug, Default)]
pub(super) struct LogQueue {
    /// Lines that were logged without a ring.
    lines: Mutex<Vec<u8>>,
    /// Rings that the writer does not know yet.
    pub(super) new_rings: Mutex<Vec<Consumer>>,
    pub(super) dropped: Arc<AtomicU64>,
    writer: OnceLock<Thread>,
    /// The writer's queue was empty and it sleeps: the next line wakes it.
    pub(super) asleep: AtomicBool,
    pub(super) flushes_wanted: AtomicU64,
    flushes_done: Mutex<u64>,
    flushed: Condvar,
}

impl LogQueue {
    /// Sets the thread that new lines wake.
    pub(super) fn set_writer(&self, thread: Thread) {
        self.writer.get_or_init(|| thread);
    }

    /// Adds a ring of `bytes` bytes.
    pub(super) fn ring(&self, bytes: usize) -> Producer {
        let (producer, consumer) = ring::ring(bytes, self.dropped.clone());
        lock(&self.new_rings).push(consumer);
        producer
    }

    /// Queues a line, or counts it as dropped.
    pub(super) fn push(&self, line: &[u8]) {
        let mut lines = self.lines();
        // The lock is held while a line is copied, never while the queue is written out.
        if lines.len() + line.len() > QUEUE_BYTES {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        lines.extend_from_slice(line);
        drop(lines);
        self.wake();
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, Vec<u8>> {
        lock(&self.lines)
    }

    /// Waits until the writer has written all lines logged before this call, at most `patience`.
    /// Returns whether it has.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let Some(writer) = self.writer.get() else { return false };
        let goal = self.flushes_wanted.fetch_add(1, Ordering::SeqCst) + 1;
        writer.unpark();
        let (done, timeout) = self
            .flushed
            .wait_timeout_while(lock(&self.flushes_done), patience, |done| *done < goal)
            .unwrap_or_else(PoisonError::into_inner);
        drop(done);
        !timeout.timed_out()
    }

    /// Reports to the waiting threads that flushes up to the `done`th are written.
    pub(super) fn flushed(&self, done: u64) {
        let mut so_far = lock(&self.flushes_done);
        if *so_far < done {
            *so_far = done;
            self.flushed.notify_all();
        }
    }

    /// Wakes the writer if it sleeps.
    ///
    /// The load is relaxed: a line pushed just as the writer falls asleep may be missed, and then waits for the next line or for the
    /// end of its sleep. A fence on every line would cost more than that.
    #[inline]
    pub(super) fn wake(&self) {
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::Relaxed)
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }
}

/// Locks a mutex that a panicked thread may have held: the data behind these locks is whole between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum size of the lines that wait outside the rings, in bytes.
pub(super) const QUEUE_BYTES: usize = 256 * 1024;
