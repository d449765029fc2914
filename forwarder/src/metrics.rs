//! What the forwarder counts: plain atomics for the server's collector. Knows no metrics library.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time;

use wire::Rcode;

use histogram::{Native, NativeCounts};

/// Upper bounds of [`Duration`]'s buckets in seconds, as CoreDNS has them: 0.25 ms, doubled 15 times; +Inf follows.
pub const DURATION_BUCKETS: [f64; 16] = {
    let mut bounds = [0.00025; 16];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = bounds[at - 1] * 2.0;
        at += 1;
    }
    bounds
};

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    #[inline]
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The count.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram of durations over [`DURATION_BUCKETS`].
#[derive(Debug, Default)]
pub struct Duration {
    /// One per bound, then what is above the last; not cumulative.
    buckets: [Counter; 17],
    sum_ns: AtomicU64,
    /// From when on a scraper asked for it.
    native: OnceLock<Box<Native>>,
}

impl Duration {
    /// Counts one duration.
    #[inline]
    pub fn observe(&self, duration: time::Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // Bounds are 250 us times powers of two: the bucket is the number of doublings needed.
        let bucket = nanos.div_ceil(250_000).max(1).next_power_of_two().trailing_zeros();
        self.buckets[(bucket as usize).min(16)].add_one();
        self.sum_ns.fetch_add(nanos, Ordering::Relaxed);
        if let Some(native) = self.native.get() {
            native.observe(duration.as_secs_f64(), true);
        }
    }

    /// How many durations fell into each bucket, the last above every bound; not cumulative.
    pub fn buckets(&self) -> [u64; 17] {
        std::array::from_fn(|at| self.buckets[at].value())
    }

    /// As a native histogram, which is kept from the first call on; what came before is at its classic bound.
    pub fn native(&self) -> NativeCounts {
        let native = self.native.get_or_init(|| {
            let above = 2.0 * DURATION_BUCKETS[DURATION_BUCKETS.len() - 1];
            let bounds = DURATION_BUCKETS.into_iter().chain([above]);
            Box::new(Native::seconds(bounds.zip(self.buckets())))
        });
        let mut counts = NativeCounts::default();
        native.add_to(&mut counts);
        counts
    }

    /// Their sum in seconds.
    pub fn sum_seconds(&self) -> f64 {
        self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// How an upstream was reached, in CoreDNS's label `proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proto {
    /// `udp`.
    Udp,
    /// `tcp`.
    Tcp,
    /// `tcp-tls`.
    Tls,
}

impl Proto {
    /// Every one, in the order of the counters.
    pub const ALL: [Self; 3] = [Self::Udp, Self::Tcp, Self::Tls];

    /// The label's value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tcp-tls",
        }
    }
}

/// What is counted per upstream, by all workers together.
#[derive(Debug, Default)]
pub struct UpstreamMetrics {
    durations: [Duration; RCODES + 1],
    reused: [Counter; 3],
    opened: [Counter; 3],
    /// `coredns_proxy_healthcheck_failures_total`.
    pub healthcheck_failures: Counter,
    /// Queries sent to this upstream because another one (or itself) stayed silent, before that one had failed.
    pub hedges: Counter,
    /// Datagrams that matched no query of their socket, or not its question: forged, repeated or far too late.
    pub unmatched: Counter,
    /// Replies that came when everybody who waited had been told of the failure.
    pub late: Counter,
}

impl UpstreamMetrics {
    /// Counts one reply; `coredns_proxy_request_duration_seconds`.
    #[inline]
    pub(crate) fn replied(&self, rcode: Rcode, rtt: time::Duration) {
        self.durations[usize::from(rcode.0).min(RCODES)].observe(rtt);
    }

    #[inline]
    pub(crate) fn connection(&self, proto: Proto, reused: bool) {
        let counters = if reused { &self.reused } else { &self.opened };
        counters[proto as usize].add_one();
    }

    /// Durations by rcode, where there were any; `None` stands for all rcodes above 23 together.
    pub fn durations(&self) -> impl Iterator<Item = (Option<Rcode>, &Duration)> {
        self.durations.iter().enumerate().filter_map(|(at, duration)| {
            let rcode = (at < RCODES).then_some(Rcode(at as u16));
            duration.buckets().iter().any(|&count| count > 0).then_some((rcode, duration))
        })
    }

    /// `coredns_proxy_conn_cache_hits_total`: queries over a socket or connection that was there.
    pub fn conn_cache_hits(&self, proto: Proto) -> u64 {
        self.reused[proto as usize].value()
    }

    /// `coredns_proxy_conn_cache_misses_total`: sockets and connections opened for a query.
    pub fn conn_cache_misses(&self, proto: Proto) -> u64 {
        self.opened[proto as usize].value()
    }
}

/// What is counted per stanza. The server hands it in, so that it outlives a reload.
#[derive(Debug, Default)]
pub struct GroupMetrics {
    /// `coredns_forward_healthcheck_broken_total`: times that every upstream was down.
    pub healthcheck_broken: Counter,
    /// `coredns_forward_max_concurrent_rejects_total`.
    pub max_concurrent_rejects: Counter,
}

/// Rcodes with a histogram of their own: all that the registry names up to BADCOOKIE.
const RCODES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_first_bucket_that_holds_it() {
        let histogram = Duration::default();
        for nanos in [0, 1, 249_999, 250_000, 250_001, 500_000, 8_192_000_000, 8_192_000_001, u64::MAX / 4] {
            let seconds = nanos as f64 / 1e9;
            let expected = DURATION_BUCKETS.iter().position(|&bound| seconds <= bound + 1e-12).unwrap_or(16);
            let before = histogram.buckets()[expected];
            histogram.observe(time::Duration::from_nanos(nanos));
            assert_eq!(histogram.buckets()[expected], before + 1, "{nanos} ns");
        }
    }

    #[test]
    fn native_buckets_hold_what_was_counted_before_they_were_asked_for() {
        let histogram = Duration::default();
        histogram.observe(time::Duration::from_millis(1));
        histogram.observe(time::Duration::from_secs(20));
        // 1 ms is 2^(-159.45 / 16), and what is above all is taken for 16.384 s.
        assert!(histogram.native().buckets.into_iter().eq([(-159, 1), (65, 1)]));
        histogram.observe(time::Duration::from_millis(1));
        histogram.observe(time::Duration::ZERO);
        let native = histogram.native();
        assert_eq!((native.zero, native.total()), (1, 4));
        assert!(native.buckets.into_iter().eq([(-159, 2), (65, 1)]));
    }

    #[test]
    fn only_rcodes_that_came_are_reported() {
        let metrics = UpstreamMetrics::default();
        metrics.replied(Rcode::NXDOMAIN, time::Duration::from_millis(1));
        metrics.replied(Rcode(4000), time::Duration::from_millis(1));
        let rcodes: Vec<_> = metrics.durations().map(|(rcode, _)| rcode).collect();
        assert_eq!(rcodes, [Some(Rcode::NXDOMAIN), None]);
    }
}
