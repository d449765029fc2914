//! Throttles long background work: the work sleeps 50 us after each 100 us or more of running, so
//! that other threads on its core never wait for long.
//!
//! A lower priority would starve the work on a busy machine, and a thread cannot raise its priority
//! again without a privilege. Only work within [`with_rests`] is throttled, since start and reload
//! wait for the same work.

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

/// Whether this thread is throttled; work that it passes to other threads should be throttled too.
pub fn rests() -> bool {
    PACE.with_borrow(Option::is_some)
}

/// Sleeps if this thread is throttled and its turn is over. Call this after each small step of long
/// work.
#[inline]
pub fn step() {
    PACE.with_borrow_mut(|pace| pace.iter_mut().for_each(Pace::step));
}

/// Does the same after a longer step: checks the clock at each call, not at every 16th.
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

    /// Sleeps if the turn is over. The next turn is as long as this sleep took, which is longer
    /// while other threads use the processor, so that the work gets its share.
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
/// Number of steps between two readings of the clock, which cost as much as a few steps each.
const STEPS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttled_work_sleeps() {
        // Returns the number of voluntary context switches of this thread.
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
                // No step takes longer than 100 us; a longer time is a pause of the machine, which
                // the kernel counts as running time.
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
