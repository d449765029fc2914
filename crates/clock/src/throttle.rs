//! Throttles long background work: it sleeps 50 us after each 100 us or more, so that the workers
//! on its core never wait for long.
//!
//! A lower priority would starve it on a busy machine, and a thread cannot raise its priority again
//! without a privilege. Start and reload wait for such work, so it is throttled only on threads
//! that ask for it.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

/// Runs `work` throttled, at its calls of [`step`] and [`rest`].
pub fn with_rests<T>(work: impl FnOnce() -> T) -> T {
    let before = PACE.replace(Some(Pace::new()));
    let done = work();
    PACE.set(before);
    done
}

/// Whether this thread is throttled; work that it gives to other threads should be as well.
pub fn rests() -> bool {
    PACE.with_borrow(Option::is_some)
}

/// After each small step of long work: sleeps if it is time and this thread is throttled.
#[inline]
pub fn step() {
    PACE.with_borrow_mut(|pace| pace.iter_mut().for_each(Pace::step));
}

/// The same after a longer step.
pub fn rest() {
    PACE.with_borrow_mut(|pace| pace.iter_mut().for_each(Pace::rest));
}

thread_local! {
    static PACE: RefCell<Option<Pace>> = const { RefCell::new(None) };
}

/// Alternates between work and sleep.
struct Pace {
    steps: u32,
    began: Instant,
    turn: Duration,
}

impl Pace {
    /// Starts with work.
    fn new() -> Self {
        Self { steps: 0, began: crate::now(), turn: TURN }
    }

    fn step(&mut self) {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(STEPS) {
            self.rest();
        }
    }

    /// Sleeps. If others used the processor meanwhile, the next turn is as long as this sleep was,
    /// so that the work gets its share.
    fn rest(&mut self) {
        let now = crate::now();
        if now.saturating_duration_since(self.began) < self.turn {
            return;
        }
        thread::sleep(REST);
        self.began = crate::now();
        self.turn = self.began.saturating_duration_since(now).clamp(TURN, LONGEST_TURN);
    }
}

const TURN: Duration = Duration::from_micros(100);
const LONGEST_TURN: Duration = Duration::from_millis(1);
const REST: Duration = Duration::from_micros(50);
/// Reading the clock costs as much as a few steps.
const STEPS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttled_work_sleeps() {
        // Voluntary context switches of this thread.
        let rests = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:\t"));
            count.unwrap().parse::<u32>().unwrap()
        };
        let processor_time = || {
            let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::try_from(spent).unwrap()
        };
        let work = |step: fn()| {
            let (before, mut worked, mut last) = (rests(), Duration::ZERO, processor_time());
            while worked < Duration::from_millis(50) {
                step();
                let now = processor_time();
                // No step takes longer; the rest is a paused machine, which the kernel accounts as
                // work.
                worked += (now - last).min(Duration::from_micros(100));
                last = now;
            }
            rests() - before
        };
        // A more expensive step would reduce the count.
        for (what, step) in [("steps", step as fn()), ("rests", rest)] {
            let count = with_rests(|| work(step));
            assert!(count >= 25, "{what}: {count}");
            let count = work(step);
            assert!(count < 5, "{what}, without a request: {count}");
        }
    }
}
