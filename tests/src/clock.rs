//! The test kit's clock, waiting for a condition instead of a fixed time, and repeating tests on a
//! stalled machine.

use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::isolated::report;

/// The current time: black-box tests measure real time.
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    Instant::now()
}

/// Calls `look` every 2 ms until it returns something, at most for `patience`.
///
/// # Panics
/// When `patience` is over, with `what` in the message.
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

/// Runs `test`, the whole body of a test with time bounds; repeats it when it failed while the
/// machine was stalled.
///
/// On a machine slowed down by other load such a failure does not show a fault of the server. A
/// processor counts as stalled when a thread that sleeps 5 ms on it wakes 50 ms late or later. The
/// bounds stay the same: one run must keep all of them, and the fourth run is the last. Each
/// repetition is printed.
///
/// # Panics
/// As `test` does.
#[track_caller]
pub fn steadily(test: impl Fn()) {
    let place = Location::caller();
    for _ in 0..3 {
        let (result, stall) = while_watching(|| catch_unwind(AssertUnwindSafe(&test)));
        match result {
            Err(_) if stall >= STALL => {
                report(&format!("repeated: {place}: it failed while the machine stood still for {stall:?}"));
            }
            Err(panic) => resume_unwind(panic),
            Ok(()) => return,
        }
    }
    test();
}

/// Also returns the longest stall of any processor while `body` ran.
fn while_watching<T>(body: impl FnOnce() -> T) -> (T, Duration) {
    let (longest_ns, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let watch = |processor| {
        let mut here = CpuSet::new();
        if here.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &here)).is_err() {
            return;
        }
        while !over.load(Relaxed) {
            let slept = now();
            sleep(NAP);
            longest_ns.fetch_max(slept.elapsed().saturating_sub(NAP).as_nanos() as u64, Relaxed);
        }
    };
    let ours = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let result = scope(|scope| {
        for processor in (0..CpuSet::count()).filter(|&processor| ours.is_set(processor).unwrap_or(false)) {
            let watch = &watch;
            scope.spawn(move || watch(processor));
        }
        let result = body();
        over.store(true, Relaxed);
        result
    });
    (result, Duration::from_nanos(longest_ns.load(Relaxed)))
}

const NAP: Duration = Duration::from_millis(5);
/// Half of the shortest time bound in a test.
const STALL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    /// Success runs once; a failure is final after at most four runs.
    #[test]
    fn attempts_until_failure() {
        let runs = AtomicU64::new(0);
        steadily(|| assert!(runs.fetch_add(1, Relaxed) < 4));
        assert_eq!(runs.load(Relaxed), 1);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            steadily(|| panic!("run {}", runs.fetch_add(1, Relaxed)));
        }));
        let text = *failed.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(text, format!("run {}", runs.load(Relaxed) - 1), "the last run's own words");
        assert!((2..=5).contains(&runs.load(Relaxed)), "{text}");
    }
}
