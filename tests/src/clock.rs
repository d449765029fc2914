//! The kit's one clock, and waiting for a condition instead of for a time.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Reads the clock: black-box tests measure real time.
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    Instant::now()
}

/// Looks every 2 ms until `look` finds something, at most for `patience`.
///
/// # Panics
/// When the time is over, naming `what` was awaited.
pub fn eventually<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = now() + patience;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(now() < deadline, "not seen within {patience:?}: {what}");
        sleep(Duration::from_millis(2));
    }
}
