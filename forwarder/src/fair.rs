//! Places that many clients share: how many one of them may take, so that it never leaves the others without.
//!
//! The rule is that of switches whose ports share a memory (Choudhury and Hahne, "Dynamic queue length thresholds",
//! 1998): a client takes one more place only while it has fewer than [`SHARE`] times as many as are free. Whoever takes all he can
//! leaves some free, and two who do so leave some, too: nobody who comes later has to wait for them, and nothing that was
//! taken has to be taken back. As others come, fewer are free, and who has many gets no more until they have as many.

use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::quality::RandomState;

/// So many places for one client, and a quarter more for all together. Any thread may take them.
#[derive(Debug)]
pub struct Fair {
    /// For one; 0: no limit.
    most: u32,
    taken: AtomicU32,
    /// Absent where there is no limit.
    counts: Option<Box<[[AtomicU32; COUNTERS]; 2]>>,
}

impl Fair {
    /// `most` places for one client; 0: no limit.
    pub fn new(most: u32) -> Self {
        let row = || [const { AtomicU32::new(0) }; COUNTERS];
        Self { most, taken: AtomicU32::new(0), counts: (most > 0).then(|| Box::new([row(), row()])) }
    }

    /// How many places there are for all together; 0: no limit.
    pub fn places(&self) -> u32 {
        self.most.saturating_add(self.most / SHARE)
    }

    /// How many are taken.
    pub fn taken(&self) -> u32 {
        self.taken.load(Relaxed)
    }

    /// Takes a place for a client; false where there is none for it. What is taken is given back, by the same client.
    pub fn take(&self, who: Who) -> bool {
        self.take_some(who, 1)
    }

    /// Takes so many at once, as if one after the other; none where there are not so many for it.
    pub fn take_some(&self, who: Who, many: u32) -> bool {
        let taken = self.taken.fetch_add(many, Relaxed);
        let Some(counts) = self.counts(who) else { return true };
        let [one, other] = counts.map(|count| count.fetch_add(many, Relaxed));
        // What there was before the last of them.
        let before = many.saturating_sub(1);
        let mine = one.min(other).saturating_add(before);
        let free = self.places().saturating_sub(taken).saturating_sub(before);
        let fits = many == 0 || (mine < self.most && mine < free.saturating_mul(SHARE));
        if !fits {
            self.give_back_some(who, many);
        }
        fits
    }

    /// Gives a place back.
    pub fn give_back(&self, who: Who) {
        self.give_back_some(who, 1);
    }

    /// Gives so many back.
    pub fn give_back_some(&self, who: Who, many: u32) {
        self.taken.fetch_sub(many, Relaxed);
        for count in self.counts(who).into_iter().flatten() {
            count.fetch_sub(many, Relaxed);
        }
    }

    /// Whether a client may have one more of `places`, fewer than there are: the same rule, for a bound that changes.
    pub(crate) fn has_room(&self, who: Who, places: u32) -> bool {
        let mine = self.counts(who).map_or(0, |[one, other]| one.load(Relaxed).min(other.load(Relaxed)));
        mine < places.saturating_sub(self.taken()).saturating_mul(SHARE)
    }

    /// Whether a client has half of the most for one, or more.
    pub fn has_half(&self, who: Who) -> bool {
        self.counts(who)
            .is_some_and(|[one, other]| one.load(Relaxed).min(other.load(Relaxed)) >= self.most / 2)
    }

    fn counts(&self, who: Who) -> Option<[&AtomicU32; 2]> {
        let [one, other] = &**self.counts.as_ref()?;
        Some([&one[usize::from(who.0[0])], &other[usize::from(who.0[1])]])
    }
}

/// A client, as places are counted: by two counters that few others share, of which the lesser is nearest to the truth. One
/// greedy client shares both with one in 262,144, and nobody outside knows with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who([u16; 2]);

impl Who {
    /// The client with this number.
    pub fn of(number: u128) -> Self {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        let hash = SEED.hash_one(number);
        Self([(hash >> 55) as u16, (hash >> 46) as u16 & (COUNTERS as u16 - 1)])
    }
}

/// A client's address as a number, the same for an IPv4 address however it is written.
pub fn client_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// How many times as many places as are free a client may have; one of so many parts is what all have beyond one's most.
const SHARE: u32 = 4;
/// In each of two rows: 4 KiB.
const COUNTERS: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    /// How many places a client gets that asks for this many.
    fn gets(fair: &Fair, client: u128, asks: usize) -> usize {
        (0..asks).filter(|_| fair.take(Who::of(client))).count()
    }

    #[test]
    fn one_alone_gets_exactly_the_most() {
        for most in (1..200).chain([1_000, 1_003, 4_096, 8_192]) {
            let fair = Fair::new(most);
            assert_eq!(gets(&fair, 1, 2 * most as usize), most as usize);
            assert_eq!(fair.taken(), most);
        }
        assert_eq!(gets(&Fair::new(0), 1, 10_000), 10_000, "no limit");
    }

    #[test]
    fn whoever_takes_all_they_can_leave_places_for_others_and_none_takes_more_than_there_are() {
        for greedy in 1..=8 {
            let fair = Fair::new(1_000);
            for round in 0..2_000 {
                for client in 0..greedy {
                    fair.take(Who::of(client));
                }
                assert!(fair.taken() <= fair.places(), "round {round}");
            }
            let left = fair.places() - fair.taken();
            assert!(left as u128 >= 1_250 / (4 * greedy + 1) - greedy, "{greedy} leave {left}");
            assert_eq!(gets(&fair, 100, 10), 10, "beside {greedy}");
        }
    }

    #[test]
    fn some_at_once_are_as_many_as_one_after_the_other() {
        for (most, others) in [(1_000, 0), (1_000, 900), (1_003, 1_000), (8, 1), (1, 0)] {
            for many in 0..=most + 1 {
                let [at_once, in_turn] = [(); 2].map(|()| Fair::new(most));
                for fair in [&at_once, &in_turn] {
                    gets(fair, 2, others);
                }
                let fits = at_once.take_some(Who::of(1), many);
                assert_eq!(fits, gets(&in_turn, 1, many as usize) == many as usize, "{most} {others} {many}");
                let taken = at_once.taken();
                assert_eq!(taken, others as u32 + if fits { many } else { 0 }, "{most} {others} {many}");
            }
        }
    }

    #[test]
    fn what_is_given_back_is_there_for_those_who_have_few() {
        let fair = Fair::new(100);
        assert_eq!((gets(&fair, 1, 200), gets(&fair, 2, 200)), (100, 20));
        for _ in 0..15 {
            fair.give_back(Who::of(1));
            assert!(!fair.take(Who::of(1)), "it has many, and few are free");
        }
        assert_eq!(gets(&fair, 3, 20), 16);
        for (client, count) in [(1, 85), (2, 20), (3, 16)] {
            (0..count).for_each(|_| fair.give_back(Who::of(client)));
        }
        assert_eq!((fair.taken(), gets(&fair, 1, 200)), (0, 100));
    }
}
