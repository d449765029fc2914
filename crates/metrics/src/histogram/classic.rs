//! Classic histograms: buckets with fixed bounds.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::native::{Native, NativeCounts};

/// A counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds, for a single writer.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }

    /// Adds, for several writers.
    #[inline]
    pub fn add_shared(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts per bucket, not cumulative, and their sum. The sum is first, next to the buckets of
/// nearly all values.
#[derive(Debug)]
#[repr(C)]
pub struct Histogram<const N: usize> {
    /// Sum of the values.
    pub sum: Counter,
    /// One for each bound.
    pub buckets: [Counter; N],
    /// Values above the last bound.
    pub above: Counter,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self {
            sum: Counter::default(),
            buckets: std::array::from_fn(|_| Counter::default()),
            above: Counter::default(),
        }
    }
}

impl<const N: usize> Histogram<N> {
    /// Whether any value was observed.
    pub fn is_used(&self) -> bool {
        self.buckets.iter().chain([&self.above]).any(|bucket| bucket.get() > 0)
    }

    /// Observes a value `times` times.
    #[inline]
    pub fn observe(&self, bounds: &[u64; N], value: u64, times: u64, add: impl Fn(&Counter, u64)) {
        let at = bounds.iter().position(|&bound| value <= bound);
        add(at.map_or(&self.above, |at| &self.buckets[at]), times);
        add(&self.sum, value * times);
    }

    /// Observes values. Consecutive values of one bucket, the common case, are added together
    /// first.
    #[inline]
    pub fn observe_all(
        &self,
        bounds: &[u64; N],
        values: impl Iterator<Item = u64>,
        add: impl Fn(&Counter, u64) + Copy,
    ) {
        let (mut bucket, mut first, mut last) = (&self.above, 1, 0);
        let (mut times, mut sum) = (0, 0);
        for value in values {
            if value < first || value > last {
                if times > 0 {
                    add(bucket, times);
                }
                let at = bounds.iter().position(|&bound| value <= bound);
                bucket = at.map_or(&self.above, |at| &self.buckets[at]);
                first = at.unwrap_or(N).checked_sub(1).map_or(0, |below| bounds[below] + 1);
                last = at.map_or(u64::MAX, |at| bounds[at]);
                times = 0;
            }
            times += 1;
            sum += value;
        }
        if times > 0 {
            add(bucket, times);
            add(&self.sum, sum);
        }
    }

    /// Counts of the buckets; the last is that of values above all bounds.
    pub fn counts(&self) -> Vec<u64> {
        self.buckets.iter().chain([&self.above]).map(Counter::get).collect()
    }

    /// Each bound divided by `per`, and its count; twice the last bound for values above all.
    pub fn by_bound(&self, bounds: &[u64; N], per: f64) -> impl Iterator<Item = (f64, u64)> {
        let above = bounds.last().map(|bound| bound * 2);
        let bounds = bounds.iter().copied().chain(above).map(move |bound| bound as f64 / per);
        bounds.zip(self.counts())
    }
}

/// Durations observed by several threads, with bounds in nanoseconds; in native buckets as well
/// once these were read.
#[derive(Debug)]
pub struct Durations<const N: usize> {
    bounds: &'static [u64; N],
    classic: Histogram<N>,
    native: OnceLock<Box<Native>>,
}

impl<const N: usize> Durations<N> {
    /// An empty histogram with these bounds.
    pub fn new(bounds: &'static [u64; N]) -> Self {
        Self { bounds, classic: Histogram::default(), native: OnceLock::new() }
    }

    /// Observes a duration.
    #[inline]
    pub fn observe(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.classic.observe(self.bounds, nanos, 1, Counter::add_shared);
        if let Some(native) = self.native.get() {
            native.observe(duration.as_secs_f64(), true);
        }
    }

    /// Whether any duration was observed.
    pub fn is_used(&self) -> bool {
        self.classic.is_used()
    }

    /// The bounds in seconds.
    pub fn bounds(&self) -> [f64; N] {
        self.bounds.map(|nanos| nanos as f64 / 1e9)
    }

    /// Counts between consecutive bounds; the last is that of values above all.
    pub fn counts(&self) -> Vec<u64> {
        self.classic.counts()
    }

    /// The sum in seconds.
    pub fn sum(&self) -> f64 {
        self.classic.sum.get() as f64 / 1e9
    }

    /// As a native histogram, kept from the first call on; earlier values are placed at their
    /// classic bounds.
    pub fn native(&self) -> NativeCounts {
        let native =
            self.native.get_or_init(|| Native::seconds(self.classic.by_bound(self.bounds, 1e9)).into());
        let mut counts = NativeCounts::default();
        native.add_to(&mut counts);
        counts
    }
}

/// CoreDNS's upper bounds of durations, in nanoseconds: 0.25 ms, doubled fifteen times.
pub const DURATIONS: [u64; 16] = doubling(250_000);

/// Bounds, each twice the one before.
pub const fn doubling<const N: usize>(first: u64) -> [u64; N] {
    let mut bounds = [first; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * 2;
        at += 1;
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_buckets() {
        let durations = Durations::new(&DURATIONS);
        for nanos in [0, 1, 249_999, 250_000, 250_001, 500_000, 8_192_000_000, 8_192_000_001, u64::MAX / 4] {
            let seconds = nanos as f64 / 1e9;
            let bounds = durations.bounds();
            let expected = bounds.iter().position(|&bound| seconds <= bound + 1e-12).unwrap_or(16);
            let before = durations.counts()[expected];
            durations.observe(Duration::from_nanos(nanos));
            assert_eq!(durations.counts()[expected], before + 1, "{nanos} ns");
        }
    }

    #[test]
    fn native_includes_earlier_values() {
        let durations = Durations::new(&DURATIONS);
        assert!(!durations.is_used());
        durations.observe(Duration::from_millis(1));
        durations.observe(Duration::from_secs(20));
        // 1 ms is 2^(-159.45 / 16); a value above all bounds counts as 16.384 s.
        assert!(durations.native().buckets.into_iter().eq([(-159, 1), (65, 1)]));
        durations.observe(Duration::from_millis(1));
        durations.observe(Duration::ZERO);
        let native = durations.native();
        assert_eq!((native.zero, native.total(), durations.sum()), (1, 4, 20.002));
        assert!(native.buckets.into_iter().eq([(-159, 2), (65, 1)]));
    }
}
