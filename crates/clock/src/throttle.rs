//! Long work beside workers: it rests every moment, so that whoever shares its core never waits for long.
//!
//! A lower priority would starve it on a busy machine, and a thread cannot have its own back without a privilege. Start and
//! reload wait for their work, and it does not rest there: a thread says that it should.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

/// Does `work` with rests: those of [`step`] and [`rest`].
pub fn with_rests<T>(work: impl FnOnce() -> T) -> T {
    let before = PACE.replace(Some(Pace::new()));
    let done = work();
    PACE.set(before);
    done
}

/// Whether this thread rests: work that it gives to another does, too.
pub fn rests() -> bool {
    PACE.with_borrow(Option::is_some)
}

/// After every small step of long work: rests, if it is time to and this thread does.
#[inline]
pub fn step() {
    PACE.with_borrow_mut(|pace| pace.iter_mut().for_each(Pace::step));
}

/// The same, after a step that takes a while.
pub fn rest() {
    PACE.with_borrow_mut(|pace| pace.iter_mut().for_each(Pace::rest));
}

thread_local! {
    static PACE: RefCell<Option<Pace>> = const { RefCell::new(None) };
}

/// Whoever works and rests by turns.
struct Pace {
    steps: u32,
    began: Instant,
    turn: Duration,
}

impl Pace {
    /// Begins with work.
    fn new() -> Self {
        Self { steps: 0, began: crate::now(), turn: TURN }
    }

    fn step(&mut self) {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(STEPS) {
            self.rest();
        }
    }

    /// Where others keep the processor meanwhile, the next turn is as long as that rest was, so that it gets its share.
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
/// A look at the clock costs as much as a few steps.
const STEPS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_rests_at_least_every_millisecond_where_it_should() {
        // How often this thread has left the processor by itself.
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
                // No step takes longer: the rest is a machine that stood still, which the kernel books as work.
                worked += (now - last).min(Duration::from_micros(100));
                last = now;
            }
            rests() - before
        };
        // A step that costs more than the work of a step here would let them be fewer.
        for (what, step) in [("steps", step as fn()), ("rests", rest)] {
            let count = with_rests(|| work(step));
            assert!(count >= 25, "{what}: {count}");
            let count = work(step);
            assert!(count < 5, "{what}, where nobody asked for it: {count}");
        }
    }
}
