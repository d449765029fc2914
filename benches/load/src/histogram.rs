//! Counts of durations in buckets that grow with the duration. No clock.

/// A histogram of durations in nanoseconds, with a resolution of 1.6 %: 64 buckets for every
/// doubling. All of `u64` fits in 30 kB.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    max_ns: u64,
}

impl Histogram {
    /// Counts a duration.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns the number of counted durations.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Whether no duration was counted.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the longest duration, exactly.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Returns a duration that the share `share` (0 to 1) of all durations does not exceed: the
    /// upper end of a bucket, at most the longest duration. 0 if nothing was counted.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = ((share.clamp(0.0, 1.0) * self.total as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_end(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; bucket(u64::MAX) + 1].into(), total: 0, max_ns: 0 }
    }
}

/// Returns the bucket of a duration. Below 64 ns each value has its own bucket; above, the leading
/// bit and the six bits after it select the bucket.
#[inline]
fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - 1 - SUB_BITS).saturating_sub((ns | 1).leading_zeros());
    ((shift as usize) << SUB_BITS) + (ns >> shift) as usize
}

fn upper_end(bucket: usize) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1) as u32;
    let leading = (bucket - ((shift as usize) << SUB_BITS)) as u64;
    (leading << shift) | ((1 << shift) - 1)
}

const SUB_BITS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_of_a_known_row() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ns(0.5), 0);
        for ns in 1..=1000 {
            histogram.record(ns * 1000);
        }
        for (share, exact) in
            [(0.0, 1_000), (0.5, 500_000), (0.99, 990_000), (0.999, 999_000), (1.0, 1_000_000)]
        {
            let found = histogram.quantile_ns(share);
            assert!(found >= exact && found as f64 <= exact as f64 * 1.016, "{share}: {found}");
        }
        assert_eq!((histogram.len(), histogram.max_ns()), (1000, 1_000_000));
    }

    #[test]
    fn one_duration_is_every_quantile_exactly() {
        let mut histogram = Histogram::default();
        histogram.record(123_456_789);
        for share in [-1.0, 0.0, 0.5, 1.0, 2.0] {
            assert_eq!(histogram.quantile_ns(share), 123_456_789);
        }
    }

    #[test]
    fn merged_is_the_same_as_counted_together() {
        let (mut left, mut right, mut both) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for ns in [5, 70, 70, 900_000] {
            left.record(ns);
            both.record(ns);
        }
        for ns in [6, 1 << 40] {
            right.record(ns);
            both.record(ns);
        }
        left.merge(&right);
        assert_eq!((left.counts, left.total, left.max_ns), (both.counts, both.total, both.max_ns));
    }

    proptest! {
        #[test]
        fn a_duration_lies_in_its_bucket_and_the_next_bucket_begins_behind_it(ns in any::<u64>(), low in 0u64..100_000) {
            for ns in [ns, low] {
                let at = bucket(ns);
                prop_assert!(upper_end(at) >= ns);
                prop_assert!((upper_end(at) - ns) as f64 <= ns as f64 / 64.0);
                prop_assert!(at == 0 || upper_end(at - 1) < ns);
            }
        }
    }
}
