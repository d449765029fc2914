//! Models of what threads do to each other: waker, mailbox, flight registry, log ring, and a cluster's index.
//!
//! The files of `sockets`, `observe`, `listen` and `kubernetes` themselves are compiled here a second time, with loom's atomics, locks
//! and counted pointers where theirs say `crate::sync`. The tests run a few steps of them in every order that so many preemptions
//! allow, with every value that a weak memory may show. Loom knows no load that sees a later store: what only such a load would
//! break is not found here.
//!
//! Beside that only two things are made up: the descriptor of a waker, a counter that orders nothing, for a thread must not rely on
//! what a system call happens to order, and `arc_swap`, whose own steps are not modelled.

mod arc_swap;
#[path = "../../../kubernetes/src/index/buckets.rs"]
#[allow(dead_code, reason = "not everything of an index is modelled")]
mod buckets;
#[path = "../../../kubernetes/src/index/cells.rs"]
#[allow(dead_code, reason = "not everything of an index is modelled")]
mod cells;
#[path = "../../../crates/listen/src/flights.rs"]
#[allow(dead_code, reason = "what hashes a query is not modelled")]
pub mod flights;
pub mod index;
#[path = "../../../kubernetes/src/index/kinds.rs"]
#[allow(dead_code, reason = "not everything of an index is modelled")]
mod kinds;
#[path = "../../../crates/listen/src/mailbox.rs"]
pub mod mailbox;
#[path = "../../../crates/observe/src/ring.rs"]
pub mod ring;
pub mod seqlock;
#[path = "../../../crates/sockets/src/wake_flag.rs"]
mod wake_flag;

mod sync {
    pub(crate) use std::sync::PoisonError;

    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, atomic};

    pub(crate) use crate::Waker;
    pub(crate) use crate::arc_swap::{ArcSwapOption, Guard};
}

use loom::sync::atomic::{AtomicUsize, Ordering};

/// `sockets::Waker` over a made-up descriptor.
#[derive(Debug)]
pub struct Waker {
    pending: wake_flag::Pending,
    eventfd: AtomicUsize,
}

impl Waker {
    /// A waker that nobody has called yet.
    ///
    /// # Errors
    /// None; the kernel's has some.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { pending: wake_flag::Pending::new(), eventfd: AtomicUsize::new(0) })
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
        // Not a load, which may be told an older value: epoll is not.
        self.eventfd.fetch_add(0, Ordering::Relaxed) > 0
    }
}

/// Runs `steps` in every order that three preemptions allow.
///
/// # Panics
/// When `steps` does in any of them.
pub fn explore(steps: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(steps);
}
