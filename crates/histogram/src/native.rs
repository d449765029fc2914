//! Native histograms as Prometheus's Go library cuts them at CoreDNS's factor of 1.05: sixteen buckets for each doubling,
//! which is schema 4.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets of the values that one quantity can have; lower values are in the lowest one, higher ones in the highest.
#[derive(Debug)]
pub struct Native {
    /// Key of the lowest bucket.
    first: i32,
    zero: AtomicU64,
    buckets: Box<[AtomicU64]>,
}

/// What was counted, by bucket; those without a value are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NativeCounts {
    /// Values that are 0.
    pub zero: u64,
    /// Values above `2^((key-1)/16)` and not above `2^(key/16)`, by key.
    pub buckets: BTreeMap<i32, u64>,
}

impl Native {
    /// Of durations in seconds, from a microsecond to a minute.
    pub fn seconds(counted: impl Iterator<Item = (f64, u64)>) -> Self {
        Self::over(-20, 6, counted)
    }

    /// Of a message's octets: no header is shorter than 12, no message longer than 65,535.
    pub fn octets(counted: impl Iterator<Item = (f64, u64)>) -> Self {
        Self::over(3, 16, counted)
    }

    /// Buckets from `2^low` to `2^high`. What was counted under classic bounds alone is taken for the bounds themselves.
    fn over(low: i32, high: i32, counted: impl Iterator<Item = (f64, u64)>) -> Self {
        let buckets = (low * PER_DOUBLING..high * PER_DOUBLING).map(|_| AtomicU64::new(0)).collect();
        let native = Self { first: low * PER_DOUBLING + 1, zero: AtomicU64::new(0), buckets };
        for (bound, count) in counted {
            native.place(bound).fetch_add(count, Relaxed);
        }
        native
    }

    /// Counts one value; `shared`: other threads count here, too.
    #[inline]
    pub fn observe(&self, value: f64, shared: bool) {
        let place = self.place(value);
        if shared {
            place.fetch_add(1, Relaxed);
        } else {
            place.store(place.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    fn place(&self, value: f64) -> &AtomicU64 {
        if value <= ZERO_THRESHOLD {
            return &self.zero;
        }
        let last = self.buckets.len() - 1;
        let at = usize::try_from(key(value) - self.first).unwrap_or(0).min(last);
        self.buckets.get(at).unwrap_or(&self.zero)
    }

    /// Adds what was counted to that of others.
    pub fn add_to(&self, counts: &mut NativeCounts) {
        counts.zero += self.zero.load(Relaxed);
        for (key, bucket) in (self.first..).zip(&self.buckets) {
            let count = bucket.load(Relaxed);
            if count > 0 {
                *counts.buckets.entry(key).or_default() += count;
            }
        }
    }
}

impl NativeCounts {
    /// How many values were counted.
    pub fn total(&self) -> u64 {
        self.zero + self.buckets.values().sum::<u64>()
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, more: &Self) {
        self.zero += more.zero;
        for (&key, count) in &more.buckets {
            *self.buckets.entry(key).or_default() += count;
        }
    }
}

/// The bucket of a value above 0. No logarithm: the exponent is in the value's bits, and the rest is compared.
fn key(value: f64) -> i32 {
    let bits = value.to_bits();
    let exponent = (bits >> MANTISSA_BITS & 0x7ff) as i32 - HALF;
    let fraction = f64::from_bits(bits & ((1 << MANTISSA_BITS) - 1) | (HALF as u64) << MANTISSA_BITS);
    let below = BOUNDS.iter().filter(|&&bound| bound < fraction).count() as i32;
    (exponent - 1) * PER_DOUBLING + below
}

/// Prometheus's schema: 2^4 buckets for each doubling.
pub const SCHEMA: i32 = 4;
/// The zero threshold, as in Go's library, `2^-128`: values up to it are in the zero bucket.
pub const ZERO_THRESHOLD: f64 = 2.938735877055719e-39;

const PER_DOUBLING: i32 = 16;
const MANTISSA_BITS: u32 = 52;
/// The exponent, as the bits have it, of values from 0.5 to 1.
const HALF: i32 = 1022;
/// Sixteenths of the way from 0.5 to 1, geometrically; digit by digit those of Go's library.
const BOUNDS: [f64; PER_DOUBLING as usize] = [
    0.5,
    0.5221368912137069,
    0.5452538663326288,
    0.5693943173783458,
    0.5946035575013605,
    0.620928906036742,
    0.6484197773255048,
    0.6771277734684463,
    0.7071067811865475,
    0.7384130729697496,
    0.7711054127039704,
    0.805245165974627,
    0.8408964152537144,
    0.8781260801866495,
    0.9170040432046711,
    0.9576032806985735,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(native: &Native) -> NativeCounts {
        let mut counts = NativeCounts::default();
        native.add_to(&mut counts);
        counts
    }

    #[test]
    fn a_bucket_holds_its_upper_bound_and_not_its_lower_one() {
        for (value, expected) in [(1.0, 0), (2.0, 16), (0.5, -16), (1.000_001, 1), (1.5, 10), (40.0, 86)] {
            assert_eq!(key(value), expected, "{value}");
        }
        for nanos in [17, 999, 20_000, 250_000, 1_000_001, 63_999_999_999_u64] {
            let seconds = nanos as f64 / 1e9;
            let key = f64::from(key(seconds));
            assert!(seconds <= (key / 16.0).exp2() * (1.0 + 1e-12), "{nanos} ns");
            assert!(seconds > ((key - 1.0) / 16.0).exp2() * (1.0 - 1e-12), "{nanos} ns");
        }
    }

    #[test]
    fn values_out_of_range_are_in_the_outermost_buckets() {
        let native = Native::seconds([(0.25, 7), (0.5, 0)].into_iter());
        for seconds in [0.0, 1e-9, 1e-6, 64.0, 64.1, f64::MAX] {
            native.observe(seconds, false);
            native.observe(seconds, true);
        }
        let counts = counts(&native);
        let expected = [(-319, 2), (-318, 2), (-32, 7), (96, 6)];
        assert_eq!((counts.zero, counts.total()), (2, 19));
        assert!(counts.buckets.into_iter().eq(expected));
    }

    #[test]
    fn messages_of_every_size_have_a_bucket() {
        let native = Native::octets([].into_iter());
        for octets in [1.0, 12.0, 65_535.0, 1e9] {
            native.observe(octets, false);
        }
        assert!(counts(&native).buckets.into_iter().eq([(49, 1), (58, 1), (256, 2)]));
    }
}
