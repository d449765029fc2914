//! Long work beside workers: it rests every moment, so that whoever shares its core never waits for long.
//!
//! A lower priority would starve it on a busy machine, and a thread cannot have its own back without a privilege.

use std::thread;
use std::time::{Duration, Instant};

use crate::clock;

/// Whoever works and rests by turns.
pub(crate) struct Pace {
    steps: u32,
    began: Instant,
    turn: Duration,
}

impl Pace {
    /// Begins with work.
    pub(crate) fn new() -> Self {
        Self { steps: 0, began: clock::now(), turn: TURN }
    }

    /// After every small step: rests, if it is time to.
    ///
    /// Where others keep the processor meanwhile, the next turn is as long as that rest was, so that it gets its share.
    pub(crate) fn step(&mut self) {
        self.steps = self.steps.wrapping_add(1);
        if !self.steps.is_multiple_of(STEPS) {
            return;
        }
        let now = clock::now();
        if now.saturating_duration_since(self.began) < self.turn {
            return;
        }
        thread::sleep(REST);
        self.began = clock::now();
        self.turn = self.began.saturating_duration_since(now).clamp(TURN, LONGEST_TURN);
    }
}

const TURN: Duration = Duration::from_micros(100);
const LONGEST_TURN: Duration = Duration::from_millis(1);
const REST: Duration = Duration::from_micros(50);
/// A look at the clock costs as much as a few steps.
const STEPS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_rests_at_least_every_millisecond() {
        // How often this thread has left the processor by itself.
        let rests = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:\t"));
            count.unwrap().parse::<u32>().unwrap()
        };
        let (before, began) = (rests(), sockets::thread_cpu_time());
        let mut pace = Pace::new();
        while sockets::thread_cpu_time() - began < Duration::from_millis(50) {
            pace.step();
        }
        // A step that costs more than the work of a step here would let it be fewer.
        assert!(rests() - before >= 25, "{}", rests() - before);
    }
}
