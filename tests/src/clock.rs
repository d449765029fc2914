//! The kit's one clock, waiting for a condition instead of for a time, and what to do on a machine that stood still.

use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::isolated::tell;

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

/// Runs `test`, the whole of a test that holds the server to a time; again, from its beginning, when it failed while the machine stood still.
///
/// On a machine that others slow down such a failure says nothing of the server. A processor stands still when a thread that sleeps 5 ms on it wakes 50 ms
/// late or later. No bound is another then: some run has to keep to all of them, and the fourth is the last. What is run again is told.
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
                tell(&format!("repeated: {place}: it failed while the machine stood still for {stall:?}"));
            }
            Err(panic) => resume_unwind(panic),
            Ok(()) => return,
        }
    }
    test();
}

/// Also returns for how long one of the processors stood still at most meanwhile.
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
/// Half of the least time that a test bounds.
const STALL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_runs_once_and_what_fails_is_a_failure_after_four_runs_at_most() {
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
