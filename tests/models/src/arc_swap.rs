//! Model of `arc_swap` as documented: a load is one non-blocking step, and returns a whole value
//! with all writes that happened before its store. Reclamation is not modelled: no value is freed.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::{Acquire, Release};

/// `arc_swap::ArcSwapOption`.
pub(crate) struct ArcSwapOption<T> {
    /// Index of the value stored last.
    current: AtomicUsize,
    /// All values. The lock is not part of the model: no thread is preempted while it holds it, and
    /// it orders nothing.
    values: Mutex<Vec<Option<Arc<T>>>>,
}

/// `arc_swap::Guard`.
pub(crate) struct Guard<T>(T);

impl<T> ArcSwapOption<T> {
    pub(crate) fn empty() -> Self {
        Self { current: AtomicUsize::new(0), values: Mutex::new(vec![None]) }
    }

    pub(crate) fn load(&self) -> Guard<Option<Arc<T>>> {
        Guard(self.load_full())
    }

    pub(crate) fn load_full(&self) -> Option<Arc<T>> {
        let current = self.current.load(Acquire);
        self.values()[current].clone()
    }

    pub(crate) fn store(&self, value: Option<Arc<T>>) {
        let number = {
            let mut values = self.values();
            values.push(value);
            values.len() - 1
        };
        self.current.store(number, Release);
    }

    fn values(&self) -> MutexGuard<'_, Vec<Option<Arc<T>>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for Guard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
