//! A hashed timer wheel with one timer per flight: arming, disarming and firing take constant time.

use std::time::Duration;

/// Microseconds since the state machine was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MachineTime(pub(super) u64);

impl MachineTime {
    /// Later than every other time.
    pub(super) const NEVER: Self = Self(u64::MAX);

    pub(super) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }

    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// A wheel of doubly linked lists through a table of links: no entry is ever stale, and none is
/// allocated in the steady state.
///
/// A timer never fires early, and at most a tick (4.1 ms) late; one further away than a revolution
/// (16.7 s) fires after a revolution, and its owner arms it again.
#[derive(Debug)]
pub(super) struct TimerWheel {
    heads: Box<[u32]>,
    links: Vec<Link>,
    /// A bit per list: whether it has entries.
    filled: [u64; SLOTS / 64],
    /// The first tick that is not over.
    next: u64,
    armed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    /// The list that the timer is in, or [`NONE`].
    list: u32,
}

impl TimerWheel {
    pub(super) fn new() -> Self {
        Self {
            heads: vec![NONE; SLOTS].into_boxed_slice(),
            links: Vec::new(),
            filled: [0; SLOTS / 64],
            next: 0,
            armed: 0,
        }
    }

    /// Sets the timer of `slot`, replacing an earlier setting.
    pub(super) fn arm(&mut self, slot: u32, at: MachineTime) {
        let tick = at.0.div_ceil(1 << TICK_BITS).clamp(self.next + 1, self.next + SLOTS as u64 - 1);
        let list = (tick % SLOTS as u64) as u32;
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, Link { before: NONE, after: NONE, list: NONE });
        }
        if self.links[slot as usize].list == list {
            return;
        }
        self.disarm(slot);
        let head = std::mem::replace(&mut self.heads[list as usize], slot);
        if let Some(first) = self.links.get_mut(head as usize) {
            first.before = slot;
        }
        self.links[slot as usize] = Link { before: NONE, after: head, list };
        self.filled[list as usize / 64] |= 1 << (list % 64);
        self.armed += 1;
    }

    /// Clears the timer of `slot`, if it is set.
    pub(super) fn disarm(&mut self, slot: u32) {
        let Some(link) = self.links.get_mut(slot as usize) else { return };
        if link.list == NONE {
            return;
        }
        let Link { before, after, list } =
            std::mem::replace(link, Link { before: NONE, after: NONE, list: NONE });
        if let Some(next) = self.links.get_mut(after as usize) {
            next.before = before;
        }
        match self.links.get_mut(before as usize) {
            Some(previous) => previous.after = after,
            None => {
                self.heads[list as usize] = after;
                if after == NONE {
                    self.filled[list as usize / 64] &= !(1 << (list % 64));
                }
            }
        }
        self.armed -= 1;
    }

    /// Removes and returns a slot with a due timer; the timer is clear afterwards.
    pub(super) fn pop(&mut self, now: MachineTime) -> Option<u32> {
        let tick = now.0 >> TICK_BITS;
        let due = self.next_filled().filter(|&due| due <= tick);
        let Some(due) = due else {
            self.next = self.next.max(tick + 1);
            return None;
        };
        self.next = due;
        let slot = self.heads[(due % SLOTS as u64) as usize];
        self.disarm(slot);
        Some(slot)
    }

    /// Returns when the next timer fires.
    pub(super) fn next_due(&self) -> Option<MachineTime> {
        self.next_filled().map(|tick| MachineTime(tick << TICK_BITS))
    }

    fn next_filled(&self) -> Option<u64> {
        if self.armed == 0 {
            return None;
        }
        let start = (self.next % SLOTS as u64) as usize;
        let words = self.filled.len();
        // The word that holds `start` is visited twice: from `start` on, and at the end of the
        // revolution up to it.
        (0..=words).find_map(|step| {
            let word = (start / 64 + step) % words;
            let mut bits = self.filled[word];
            if step == 0 {
                bits &= u64::MAX << (start % 64);
            } else if step == words {
                bits &= !(u64::MAX << (start % 64));
            }
            let list = word * 64 + bits.trailing_zeros() as usize;
            (bits != 0).then(|| self.next + ((list + SLOTS - start) % SLOTS) as u64)
        })
    }
}

/// An offset from a flight's start, in microseconds, that stands for never.
pub(super) const NEVER: u32 = u32::MAX;
/// A tick is 4,096 microseconds: small against the 100 ms of the shortest wait.
const TICK_BITS: u32 = 12;
const SLOTS: usize = 4096;
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn timers_fire_in_order_never_early_and_at_most_a_tick_late() {
        let mut timers = TimerWheel::new();
        for (slot, at) in [(0, 300_000), (1, 100_000), (2, 300_001), (3, 16_000_000)] {
            timers.arm(slot, MachineTime(at));
        }
        timers.disarm(2);
        let mut fired = Vec::new();
        while let Some(due) = timers.next_due() {
            while let Some(slot) = timers.pop(due) {
                fired.push((slot, due.0));
            }
        }
        assert_eq!(fired.iter().map(|&(slot, _)| slot).collect::<Vec<_>>(), [1, 0, 3]);
        for ((_, due), at) in fired.into_iter().zip([100_000, 300_000, 16_000_000]) {
            assert!((at..at + 4_096).contains(&due), "{due} for {at}");
        }
    }

    #[test]
    fn a_timer_armed_while_its_tick_fires_waits_for_the_next_tick() {
        let mut timers = TimerWheel::new();
        timers.arm(0, MachineTime(5_000));
        let now = MachineTime(8_192);
        let mut fired = 0;
        while let Some(slot) = timers.pop(now) {
            fired += 1;
            timers.arm(slot, MachineTime(0));
        }
        assert_eq!(fired, 1);
        assert!(timers.next_due().unwrap() > now);
    }

    #[test]
    fn a_long_silence_loses_no_timer() {
        let mut timers = TimerWheel::new();
        timers.arm(7, MachineTime(1));
        assert_eq!(timers.pop(MachineTime(3_600_000_000)), Some(7));
        assert_eq!(timers.pop(MachineTime(3_600_000_000)), None);
        timers.arm(7, MachineTime(3_600_100_000));
        assert!(timers.next_due().unwrap() < MachineTime(3_600_110_000));
    }

    proptest! {
        #[test]
        fn the_wheel_agrees_with_a_sorted_list(
            steps in proptest::collection::vec((0u32..20, 0u64..12_000_000, any::<bool>(), 0u64..400_000), 1..200),
        ) {
            let (mut timers, mut model) = (TimerWheel::new(), BTreeMap::new());
            let mut now = 0;
            for (slot, delay, disarm, pass) in steps {
                if disarm {
                    timers.disarm(slot);
                    model.remove(&slot);
                } else {
                    timers.arm(slot, MachineTime(now + delay));
                    model.insert(slot, now + delay);
                }
                now += pass;
                while let Some(slot) = timers.pop(MachineTime(now)) {
                    let due = model.remove(&slot);
                    prop_assert!(due.is_some_and(|due| due <= now), "{slot} fired early");
                }
                for (slot, due) in &model {
                    prop_assert!(due + 3 * 4_096 > now, "{slot} is late");
                }
                prop_assert_eq!(timers.next_due().is_some(), !model.is_empty());
            }
        }
    }
}
