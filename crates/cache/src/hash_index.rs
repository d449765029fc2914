//! Hash table from hashes to slots, stored apart from the entries, so that a lookup touches only
//! the entry that it finds.
//!
//! Not hashbrown: it costs 35 of 1,312 instructions more per hit, 20 of 1,508 behind a hosts table,
//! for the same memory.

use std::mem;

use crate::alloc_size::allocated;

/// A table with open addressing and linear probing, an eighth to three quarters full, without
/// tombstones.
#[derive(Default)]
pub(crate) struct HashIndex {
    /// The table; its length is 0 or a power of two.
    spots: Vec<Spot>,
    entries: usize,
}

/// A hash and the slot of its entry. Eight fit a cache line, so most lookups read one.
#[derive(Clone, Copy)]
struct Spot {
    hash: u32,
    at: u32,
}

const VACANT: Spot = Spot { hash: 0, at: u32::MAX };

/// Smallest table that is not empty.
const MIN: usize = 16;

impl HashIndex {
    /// Returns the bytes of heap in use.
    pub(crate) fn bytes(&self) -> usize {
        allocated(self.spots.len() * size_of::<Spot>())
    }

    /// Returns the bytes that one more entry would add.
    pub(crate) fn growth(&self) -> usize {
        if self.is_full() { allocated(self.next() * size_of::<Spot>()) - self.bytes() } else { 0 }
    }

    /// Returns the first slot with this hash for which `is` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.spots.len().checked_sub(1)?;
        let mut here = hash as usize;
        loop {
            let spot = self.spots[here & mask];
            if spot.hash == hash && spot.at != VACANT.at && is(spot.at) {
                return Some(spot.at);
            }
            if spot.at == VACANT.at {
                return None;
            }
            here += 1;
        }
    }

    pub(crate) fn insert(&mut self, hash: u32, at: u32) {
        if self.is_full() {
            self.resize(self.next());
        }
        self.place(Spot { hash, at });
        self.entries += 1;
    }

    /// Updates the slot of an entry that moved.
    pub(crate) fn moved(&mut self, hash: u32, from: u32, to: u32) {
        if let Some(spot) = self.spot(hash, from) {
            self.spots[spot].at = to;
        }
    }

    pub(crate) fn remove(&mut self, hash: u32, at: u32) {
        let Some(mut hole) = self.spot(hash, at) else { return };
        let mask = self.spots.len() - 1;
        let mut here = hole;
        loop {
            here = (here + 1) & mask;
            let spot = self.spots[here];
            if spot.at == VACANT.at {
                break;
            }
            // Backward-shift deletion: an entry with a probe sequence across the hole moves into
            // it, otherwise lookups would end at the hole.
            let steps = here.wrapping_sub(spot.hash as usize) & mask;
            if steps >= here.wrapping_sub(hole) & mask {
                self.spots[hole] = spot;
                hole = here;
            }
        }
        self.spots[hole] = VACANT;
        self.entries -= 1;
        if self.entries < self.spots.len() / 8 && self.spots.len() > MIN {
            self.resize(self.spots.len() / 2);
        }
    }

    fn resize(&mut self, len: usize) {
        for spot in mem::replace(&mut self.spots, vec![VACANT; len]) {
            if spot.at != VACANT.at {
                self.place(spot);
            }
        }
    }

    fn place(&mut self, spot: Spot) {
        let mask = self.spots.len() - 1;
        let mut here = spot.hash as usize & mask;
        while self.spots[here].at != VACANT.at {
            here = (here + 1) & mask;
        }
        self.spots[here] = spot;
    }

    fn spot(&self, hash: u32, at: u32) -> Option<usize> {
        let mask = self.spots.len().checked_sub(1)?;
        let mut here = hash as usize & mask;
        while self.spots[here].at != at {
            if self.spots[here].at == VACANT.at {
                return None;
            }
            here = (here + 1) & mask;
        }
        Some(here)
    }

    fn is_full(&self) -> bool {
        self.entries >= self.spots.len() / 4 * 3
    }

    fn next(&self) -> usize {
        (self.spots.len() * 2).max(MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares the index with a list; few hashes, so that many collide or are adjacent, also
        /// around the end of the table.
        #[test]
        fn index_equals_a_list(
            steps in proptest::collection::vec((0u32..24, 0u32..40, 0u8..4), 1..400),
        ) {
            let mut index = HashIndex::default();
            let mut list: Vec<(u32, u32)> = Vec::new();
            for (number, at, step) in steps {
                let hash = number.wrapping_sub(8);
                let known = list.iter().position(|&(_, place)| place == at);
                match (step, known) {
                    (0 | 1, None) => {
                        index.insert(hash, at);
                        list.push((hash, at));
                    }
                    (2, Some(known)) => {
                        let (hash, at) = list.swap_remove(known);
                        index.remove(hash, at);
                    }
                    (3, Some(known)) => {
                        index.moved(list[known].0, at, at + 100);
                        index.moved(list[known].0, at + 100, at);
                    }
                    _ => index.remove(hash, at + 1000),
                }
                prop_assert_eq!(index.entries, list.len());
                for at in 0..40 {
                    let known = list.iter().find(|&&(_, place)| place == at);
                    for hash in (0..24u32).map(|number| number.wrapping_sub(8)) {
                        let found = index.find(hash, |place| place == at);
                        prop_assert_eq!(found.is_some(), known.is_some_and(|known| known.0 == hash));
                    }
                }
            }
            prop_assert!(index.spots.len() <= MIN.max(list.len() * 8));
            let taken = index.spots.iter().filter(|spot| spot.at != VACANT.at).count();
            prop_assert_eq!(taken, list.len());
        }
    }
}
