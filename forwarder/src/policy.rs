//! The order in which a query tries its stanza's upstreams. Pure: knows neither health nor time.

use rand::Rng;
use rand::seq::SliceRandom;
use std::sync::atomic::{AtomicU32, Ordering};

/// `policy random|round_robin|sequential`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// A random order for each query.
    #[default]
    Random,
    /// Each query starts at the next upstream; the others follow in written order.
    RoundRobin,
    /// Written order.
    Sequential,
}

impl Policy {
    /// Returns the order for one query among `count` upstreams; `turns` counts the stanza's
    /// queries.
    pub(crate) fn order(self, count: usize, turns: &AtomicU32, rng: &mut impl Rng) -> Order {
        let mut order = Order::in_sequence(count);
        match self {
            Self::Sequential => {}
            _ if count < 2 => {}
            Self::Random => order.places[..order.len as usize].shuffle(rng),
            Self::RoundRobin => {
                let turn = turns.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
                let first = turn as usize % order.len as usize;
                order.places[..=first].rotate_right(1);
            }
        }
        order
    }
}

/// Indices into a list of upstreams, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    places: [u8; MAX_UPSTREAMS],
    len: u8,
}

impl Order {
    /// Returns the written order; upstreams beyond [`MAX_UPSTREAMS`] are left out.
    pub(crate) fn in_sequence(count: usize) -> Self {
        Self { places: std::array::from_fn(|at| at as u8), len: count.min(MAX_UPSTREAMS) as u8 }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns the upstream to try at `turn`, modulo the number of upstreams.
    pub(crate) fn at(&self, turn: usize) -> u8 {
        self.places[turn % self.len().max(1)]
    }

    /// Moves the upstreams for which `back` returns true behind the others; a stable partition.
    pub(crate) fn put_back(&mut self, mut back: impl FnMut(u8) -> bool) {
        let (mut kept, mut moved) = ([0; MAX_UPSTREAMS], [0; MAX_UPSTREAMS]);
        let (mut kept_len, mut moved_len) = (0, 0);
        for &place in &self.places[..self.len()] {
            let (list, len) =
                if back(place) { (&mut moved, &mut moved_len) } else { (&mut kept, &mut kept_len) };
            list[*len] = place;
            *len += 1;
        }
        self.places[..kept_len].copy_from_slice(&kept[..kept_len]);
        self.places[kept_len..kept_len + moved_len].copy_from_slice(&moved[..moved_len]);
    }
}

/// The most upstreams that a stanza may have, as in CoreDNS.
pub const MAX_UPSTREAMS: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn orders(policy: Policy, count: usize, queries: usize) -> Vec<Vec<u8>> {
        let turns = AtomicU32::new(0);
        let mut rng = StdRng::seed_from_u64(7);
        (0..queries)
            .map(|_| {
                let order = policy.order(count, &turns, &mut rng);
                (0..order.len()).map(|turn| order.at(turn)).collect()
            })
            .collect()
    }

    #[test]
    fn sequential_keeps_the_written_order() {
        assert_eq!(orders(Policy::Sequential, 3, 2), [[0, 1, 2], [0, 1, 2]]);
    }

    #[test]
    fn round_robin_moves_on_by_one_and_keeps_the_others_in_order() {
        assert_eq!(orders(Policy::RoundRobin, 3, 4), [[1, 0, 2], [2, 0, 1], [0, 1, 2], [1, 0, 2]]);
    }

    #[test]
    fn random_starts_with_each_equally_often() {
        let mut first = [0; 5];
        for order in orders(Policy::Random, 5, 5_000) {
            first[usize::from(order[0])] += 1;
        }
        assert!(first.iter().all(|&count| (850..1150).contains(&count)), "{first:?}");
    }

    #[test]
    fn putting_back_keeps_both_parts_in_order() {
        let mut order = Order::in_sequence(5);
        order.put_back(|place| place % 2 == 0);
        assert_eq!((0..5).map(|turn| order.at(turn)).collect::<Vec<_>>(), [1, 3, 0, 2, 4]);
    }

    #[test]
    fn an_empty_list_and_a_long_one_have_an_order() {
        assert_eq!(orders(Policy::Random, 0, 1), [Vec::<u8>::new()]);
        assert_eq!(orders(Policy::RoundRobin, 99, 1)[0].len(), MAX_UPSTREAMS);
    }
}
