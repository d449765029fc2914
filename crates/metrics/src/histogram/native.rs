//! Native histograms with the buckets of Prometheus's Go library for CoreDNS's factor of 1.05:
//! schema 4, sixteen buckets per doubling.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A native histogram with a fixed range; values outside are counted in its outermost buckets.
#[derive(Debug)]
pub struct Native {
    /// Key of the lowest bucket.
    first: i32,
    zero: AtomicU64,
    buckets: Box<[AtomicU64]>,
}

/// Counts by bucket; empty ones are omitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NativeCounts {
    /// Zero values.
    pub zero: u64,
    /// By key: values above `2^((key-1)/16)` and at most `2^(key/16)`.
    pub buckets: BTreeMap<i32, u64>,
}

impl Native {
    /// For durations in seconds, from a microsecond to a minute.
    pub fn seconds(counted: impl Iterator<Item = (f64, u64)>) -> Self {
        Self::over(-20, 6, counted)
    }

    /// For message sizes in bytes: a header has 12, the longest message 65,535.
    pub fn bytes(counted: impl Iterator<Item = (f64, u64)>) -> Self {
        Self::over(3, 16, counted)
    }

    /// Buckets from `2^low` to `2^high`. `counted`: earlier values with their classic bounds, at
    /// which they are placed.
    fn over(low: i32, high: i32, counted: impl Iterator<Item = (f64, u64)>) -> Self {
        let buckets = (low * PER_DOUBLING..high * PER_DOUBLING).map(|_| AtomicU64::new(0)).collect();
        let native = Self { first: low * PER_DOUBLING + 1, zero: AtomicU64::new(0), buckets };
        for (bound, count) in counted {
            native.place(bound).fetch_add(count, Relaxed);
        }
        native
    }

    /// Observes a value; `shared`: other threads observe as well.
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

    /// Adds these counts to `counts`.
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
    /// Number of values.
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

/// Bucket of a positive value, without a logarithm: from the exponent bits, and comparisons of the
/// rest.
fn key(value: f64) -> i32 {
    let bits = value.to_bits();
    let exponent = (bits >> MANTISSA_BITS & 0x7ff) as i32 - HALF;
    let fraction = f64::from_bits(bits & ((1 << MANTISSA_BITS) - 1) | (HALF as u64) << MANTISSA_BITS);
    let below = BOUNDS.iter().filter(|&&bound| bound < fraction).count() as i32;
    (exponent - 1) * PER_DOUBLING + below
}

/// Prometheus's schema: 2^4 buckets for each doubling.
pub const SCHEMA: i32 = 4;
/// The zero threshold of Go's library, `2^-128`: values up to it are in the zero bucket.
pub const ZERO_THRESHOLD: f64 = 2.938735877055719e-39;

const PER_DOUBLING: i32 = 16;
const MANTISSA_BITS: u32 = 52;
/// Biased exponent of values from 0.5 to 1.
const HALF: i32 = 1022;
/// Bounds from 0.5 to 1 in geometric sixteenths, with the exact digits of Go's library.
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
    fn bucket_includes_its_upper_bound() {
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
    fn out_of_range_values() {
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
    fn every_message_size_has_a_bucket() {
        let native = Native::bytes([].into_iter());
        for bytes in [1.0, 12.0, 65_535.0, 1e9] {
            native.observe(bytes, false);
        }
        assert!(counts(&native).buckets.into_iter().eq([(49, 1), (58, 1), (256, 2)]));
    }
}
