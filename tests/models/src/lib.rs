//! Loom models of concurrent data structures: waker, mailbox, flight registry, log ring, and a
//! cluster's index.
//!
//! The files of `sockets`, `logging`, `listen` and `kubernetes` are compiled here a second time,
//! with loom's atomics, locks and reference counts in place of `crate::sync`. The tests run a few
//! steps of them in every order of a bounded number of preemptions, with every value that a weak
//! memory model may show. Loom has no loads that see later stores: bugs that need one are not found
//! here.
//!
//! Only two things are mocked: the descriptor of a waker, a counter that orders nothing, because no
//! thread may rely on the ordering of a system call; and `arc_swap`, whose steps are not modelled.

mod arc_swap;
#[path = "../../../kubernetes/src/index/cow_map.rs"]
#[allow(dead_code, reason = "not everything of an index is modelled")]
mod cow_map;
#[path = "../../../crates/listen/src/single_flight.rs"]
#[allow(dead_code, reason = "what hashes a query is not modelled")]
pub mod flights;
pub mod index;
#[path = "../../../kubernetes/src/index/kind_set.rs"]
#[allow(dead_code, reason = "not everything of an index is modelled")]
mod kind_set;
#[path = "../../../crates/listen/src/wake_queue.rs"]
pub mod mailbox;
#[path = "../../../crates/logging/src/ring.rs"]
pub mod ring;
pub mod seqlock;
#[path = "../../../kubernetes/src/index/seqlock_table.rs"]
#[allow(dead_code, reason = "not everything of an index is modelled")]
mod seqlock_table;
#[path = "../../../crates/sockets/src/wake_flag.rs"]
mod wake_flag;

mod sync {
    pub(crate) use std::sync::PoisonError;

    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, atomic};

    pub(crate) use crate::Waker;
    pub(crate) use crate::arc_swap::{ArcSwapOption, Guard};
}

use loom::sync::atomic::{AtomicUsize, Ordering};

/// `sockets::Waker` with a mock descriptor.
#[derive(Debug)]
pub struct Waker {
    pending: wake_flag::WakeFlag,
    eventfd: AtomicUsize,
}

impl Waker {
    /// A waker without a pending wake-up.
    ///
    /// # Errors
    /// None here; creating a kernel descriptor can fail.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { pending: wake_flag::WakeFlag::new(), eventfd: AtomicUsize::new(0) })
    }

    /// Makes the descriptor readable, until drained.
    pub fn wake(&self) {
        self.pending.raise(|| {
            self.eventfd.fetch_add(1, Ordering::Relaxed);
        });
    }

    /// Makes the descriptor unreadable.
    pub fn drain(&self) {
        self.pending.lower(|| {
            self.eventfd.swap(0, Ordering::Relaxed);
        });
    }

    /// Whether epoll would return.
    pub fn is_readable(&self) -> bool {
        // A read-modify-write sees the latest value, as epoll does; a plain load may see an older
        // one.
        self.eventfd.fetch_add(0, Ordering::Relaxed) > 0
    }
}

/// Runs `steps` in every order with at most three preemptions.
///
/// # Panics
/// If `steps` panics in any of them.
pub fn explore(steps: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(steps);
}
