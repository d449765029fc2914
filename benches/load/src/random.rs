//! Pseudo-random numbers, the same for the same seed.

/// A SplitMix64 sequence.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`; 0 when `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.draw() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Returns a fraction from 0 to below 1.
    pub fn fraction(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns `draws` ranks from 0 to below `count`; the probability of rank r is proportional to
/// `1 / (r + 1)^exponent`.
pub fn zipf(count: u32, exponent: f64, draws: usize, random: &mut Random) -> Vec<u32> {
    let mut sums = Vec::with_capacity(count as usize);
    let mut sum = 0.0;
    for rank in 1..=count {
        sum += f64::from(rank).powf(-exponent);
        sums.push(sum);
    }
    let draw = |random: &mut Random| {
        let at = random.fraction() * sum;
        sums.partition_point(|&edge| edge <= at).min(sums.len().saturating_sub(1)) as u32
    };
    (0..draws).map(|_| draw(random)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_below_the_bound_is_drawn_about_equally_often() {
        let mut random = Random::new(1);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn zipf_draws_a_rank_in_proportion_to_its_share() {
        let draws = zipf(1000, 1.0, 200_000, &mut Random::new(7));
        let share = |rank| draws.iter().filter(|&&drawn| drawn == rank).count() as f64 / 200_000.0;
        // The harmonic number of 1000 is 7.485.
        for rank in [0u32, 1, 9] {
            let expected = 1.0 / (f64::from(rank) + 1.0) / 7.485;
            assert!((share(rank) / expected - 1.0).abs() < 0.05, "rank {rank}: {} {expected}", share(rank));
        }
        assert!(draws.iter().all(|&rank| rank < 1000));
        assert!(zipf(1, 1.2, 10, &mut Random::new(7)).iter().all(|&rank| rank == 0));
    }
}
