//! Counters of each zone and thread: a query takes no lock and computes no hash.
//!
//! Each worker has its own counters of each zone and is their only writer, so that an addition is a plain load and store. The
//! threads of the stream side (TCP) share one set and add atomically. The collector sums all sets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

pub use crate::histogram::{Counter, DURATIONS, Histogram};
use crate::histogram::{Native, NativeCounts};
use wire::{Proto, RType, Rcode};

/// A counter with a cache line for each thread; the threads of the stream side share the last one.
#[derive(Debug)]
pub struct PerThread(Box<[Line]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(Counter);

impl PerThread {
    /// Zero, for this many threads.
    pub fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Line::default()).collect())
    }

    /// Adds one for thread `writer`.
    #[inline]
    pub fn add(&self, writer: usize) {
        let Some(Line(counter)) = self.0.get(writer) else { return };
        if writer + 1 == self.0.len() { counter.add_shared(1) } else { counter.add(1) }
    }

    /// The sum.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|line| line.0.get()).sum()
    }
}

/// The types with their own label; all others count as `other`.
pub const TYPES: [(RType, &str); 19] = [
    (RType::A, "A"),
    (RType::AAAA, "AAAA"),
    (RType::CNAME, "CNAME"),
    (RType::DNSKEY, "DNSKEY"),
    (RType::DS, "DS"),
    (RType::MX, "MX"),
    (RType::NSEC, "NSEC"),
    (RType::NSEC3, "NSEC3"),
    (RType::NS, "NS"),
    (RType::PTR, "PTR"),
    (RType::RRSIG, "RRSIG"),
    (RType::SOA, "SOA"),
    (RType::SRV, "SRV"),
    (RType::TXT, "TXT"),
    (RType::HTTPS, "HTTPS"),
    (RType::SVCB, "SVCB"),
    (RType::IXFR, "IXFR"),
    (RType::AXFR, "AXFR"),
    (RType::ANY, "ANY"),
];

/// Upper bounds of message sizes in bytes.
pub const SIZES: [u64; 14] =
    [0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16_000, 32_000, 48_000, 64_000];

/// The number of rcode counters; higher rcodes share the last one.
pub const RCODES: usize = 24;

/// The counters of one zone on one thread.
///
/// The order and the alignment to a cache line matter: with a thousand zones the cache lines that are touched dominate a query's cost.
/// The counters of every hit are first; new fields belong at the end.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ZoneCounters {
    /// Queries answered by hosts.
    pub hosts_hits: Counter,
    /// Queries for names that are not in hosts.
    pub hosts_misses: Counter,
    /// Lookups in the cache.
    pub cache_requests: Counter,
    /// Hits by kind: success, denial.
    pub cache_hits: [Counter; 2],
    /// Misses.
    pub cache_misses: Counter,
    /// Requests with DO.
    pub dnssec_ok: Counter,
    /// Stale answers served.
    pub cache_stale: Counter,
    /// Responses by rcode that a plugin wrote.
    pub responses: [Counter; RCODES],
    /// Request sizes by protocol.
    pub request_sizes: [Histogram<14>; 2],
    /// Response sizes by protocol.
    pub response_sizes: [Histogram<14>; 2],
    /// Native histograms, from the first scrape that requests them.
    pub native: OnceLock<Box<NativeCounters>>,
    /// Durations in nanoseconds.
    pub durations: Histogram<16>,
    /// Requests by protocol (udp, tcp), family (1, 2) and type.
    pub requests: [[[Counter; TYPES.len() + 1]; 2]; 2],
    /// Responses by rcode where no plugin had an answer.
    pub failures: [Counter; RCODES],
    /// Prefetches started.
    pub cache_prefetches: Counter,
}

/// The native histograms of one zone on one thread: 10 KiB, allocated once they are requested.
#[derive(Debug)]
pub struct NativeCounters {
    /// Durations in seconds.
    pub durations: Native,
    /// Request sizes by protocol.
    pub request_sizes: [Native; 2],
    /// Response sizes by protocol.
    pub response_sizes: [Native; 2],
}

/// The native histograms of one zone, summed over its threads.
#[derive(Debug, Default)]
pub struct NativeSums {
    /// Durations in seconds.
    pub durations: NativeCounts,
    /// Request sizes by protocol.
    pub request_sizes: [NativeCounts; 2],
    /// Response sizes by protocol.
    pub response_sizes: [NativeCounts; 2],
}

/// The counted attributes that a batch of queries has in common, all but the sizes.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// The client's transport.
    pub proto: Proto,
    /// Whether the client used IPv6.
    pub ipv6: bool,
    /// The query type.
    pub rtype: RType,
    /// Whether the client set DO.
    pub dnssec_ok: bool,
    /// The reply's rcode.
    pub rcode: Rcode,
    /// Whether no plugin had an answer.
    pub failed: bool,
    /// From receipt to reply, in nanoseconds.
    pub nanos: u64,
}

impl ZoneCounters {
    /// Counts queries with equal attributes, each with the sizes of query and reply in bytes. `shared`: other threads write these
    /// counters, too.
    #[inline]
    pub fn count(
        &self,
        counted: &Counted,
        sizes: impl ExactSizeIterator<Item = [u32; 2]> + Clone,
        shared: bool,
    ) {
        if shared {
            self.count_with(counted, sizes.clone(), Counter::add_shared)
        } else {
            self.count_with(counted, sizes.clone(), Counter::add)
        }
        if let Some(native) = self.native.get() {
            native.count(counted, sizes, shared);
        }
    }

    #[inline]
    fn count_with(
        &self,
        counted: &Counted,
        sizes: impl ExactSizeIterator<Item = [u32; 2]> + Clone,
        add: impl Fn(&Counter, u64) + Copy,
    ) {
        let queries = sizes.len() as u64;
        let proto = counted.proto.label_index();
        let rtype = match counted.rtype {
            RType::A => 0,
            RType::AAAA => 1,
            other => TYPES.iter().position(|(rtype, _)| *rtype == other).unwrap_or(TYPES.len()),
        };
        add(&self.requests[proto][usize::from(counted.ipv6)][rtype], queries);
        if counted.dnssec_ok {
            add(&self.dnssec_ok, queries);
        }
        let responses = if counted.failed { &self.failures } else { &self.responses };
        add(&responses[usize::from(counted.rcode.0).min(RCODES - 1)], queries);
        self.durations.observe(&DURATIONS, counted.nanos, queries, add);
        let requests = sizes.clone().map(|[request, _]| request.into());
        self.request_sizes[proto].observe_all(&SIZES, requests, add);
        let responses = sizes.map(|[_, response]| response.into());
        self.response_sizes[proto].observe_all(&SIZES, responses, add);
    }
}

impl NativeCounters {
    /// Converts the classic histograms, each value at the bound of its bucket. A query that is counted concurrently may be missed.
    pub fn of(counters: &ZoneCounters) -> Self {
        let bytes = |histogram: &Histogram<14>| Native::bytes(histogram.by_bound(&SIZES, 1.0));
        Self {
            durations: Native::seconds(counters.durations.by_bound(&DURATIONS, 1e9)),
            request_sizes: counters.request_sizes.each_ref().map(bytes),
            response_sizes: counters.response_sizes.each_ref().map(bytes),
        }
    }

    /// Adds all to the sums over threads.
    pub fn add_to(&self, sums: &mut NativeSums) {
        self.durations.add_to(&mut sums.durations);
        for proto in 0..2 {
            self.request_sizes[proto].add_to(&mut sums.request_sizes[proto]);
            self.response_sizes[proto].add_to(&mut sums.response_sizes[proto]);
        }
    }

    #[cold]
    fn count(&self, counted: &Counted, sizes: impl Iterator<Item = [u32; 2]>, shared: bool) {
        let proto = counted.proto.label_index();
        for [request, response] in sizes {
            self.durations.observe(counted.nanos as f64 / 1e9, shared);
            self.request_sizes[proto].observe(request.into(), shared);
            self.response_sizes[proto].observe(response.into(), shared);
        }
    }
}

/// The counters of one zone for one thread; none if the zone is not measured.
#[derive(Debug, Clone, Copy)]
pub struct ThreadCounters<'z> {
    counters: Option<&'z ZoneCounters>,
    shared: bool,
}

impl<'z> ThreadCounters<'z> {
    /// The counters of thread `writer`; the last set is written by several threads.
    #[inline]
    pub fn new(set: Option<&'z [ZoneCounters]>, writer: usize) -> Self {
        let counters = set.and_then(|set| set.get(writer));
        Self { counters, shared: set.is_some_and(|set| writer + 1 == set.len()) }
    }

    /// Adds one to a counter.
    #[inline]
    pub fn add(&self, counter: impl FnOnce(&ZoneCounters) -> &Counter) {
        let Some(counters) = self.counters else { return };
        if self.shared { counter(counters).add_shared(1) } else { counter(counters).add(1) }
    }

    /// Counts queries with equal attributes, each with the sizes of query and reply in bytes.
    #[inline]
    pub fn count(&self, counted: &Counted, sizes: impl ExactSizeIterator<Item = [u32; 2]> + Clone) {
        if let Some(counters) = self.counters {
            counters.count(counted, sizes, self.shared);
        }
    }
}

/// The labels of one served zone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ZoneLabels {
    /// `dns://ADDRESS:PORT`.
    pub server: String,
    /// The zone with its final dot, or `dropped`.
    pub zone: String,
    /// The name of the block's view, or empty.
    pub view: String,
    /// The label `zones` of the cache's metrics: the cache's zones, joined by commas.
    pub cache_zones: String,
    /// The label `plugin` of responses that a plugin wrote; it is empty for all others.
    pub plugin: &'static str,
    /// Whether its queries are exposed; its plugins' counters always are.
    pub queries: bool,
}

/// Counters of one zone, one set per worker and one, the last, for the stream side.
pub type ZoneSet = Arc<[ZoneCounters]>;

/// Every zone's counters, for the life of the process, so that a reload loses none.
#[derive(Debug, Default)]
pub struct ZoneRegistry {
    zones: Mutex<HashMap<ZoneLabels, ZoneSet>>,
}

impl ZoneRegistry {
    /// The counters with these labels, made on first use for `threads` writers.
    pub fn zone(&self, labels: &ZoneLabels, threads: usize) -> ZoneSet {
        let mut zones = self.zones.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let set = zones
            .entry(labels.clone())
            .or_insert_with(|| (0..threads).map(|_| ZoneCounters::default()).collect());
        set.clone()
    }

    /// Every zone seen since the start, sorted by labels.
    pub fn all(&self) -> Vec<(ZoneLabels, ZoneSet)> {
        let zones = self.zones.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut all: Vec<_> = zones.iter().map(|(labels, set)| (labels.clone(), set.clone())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_that_ended_alike_count_as_each_by_itself() {
        let counted = Counted {
            proto: Proto::Tcp,
            ipv6: true,
            rtype: RType::AAAA,
            dnssec_ok: true,
            rcode: Rcode::NXDOMAIN,
            failed: false,
            nanos: 700_000,
        };
        for shared in [false, true] {
            let (together, alone) = (ZoneCounters::default(), ZoneCounters::default());
            let sizes = [0, 1, 100, 100, 101, 99, 512, 511, 64_000, 64_001, 65_535, 65_535, 0, 40, 0]
                .map(|size: u32| [size, 65_535 - size]);
            together.count(&counted, sizes.into_iter(), shared);
            for size in sizes {
                alone.count(&counted, [size].into_iter(), shared);
            }
            assert_eq!(format!("{together:?}"), format!("{alone:?}"));
            let sum: u64 = sizes.iter().map(|[request, _]| u64::from(*request)).sum();
            assert_eq!(together.request_sizes[1].sum.get(), sum);
            assert_eq!(together.durations.buckets[2].get(), sizes.len() as u64);
        }
    }
}
