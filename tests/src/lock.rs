//! Mutexes usable after a panic: a failing test still needs its log.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The guard, whether or not a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
