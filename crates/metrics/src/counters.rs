//! What is counted per zone and thread: no lock and no hash on a query's way.
//!
//! Each worker has its own counters of each zone and is the only one that writes them, so adding is a plain load and
//! store. The stream side (TCP) has one set for all its threads and adds atomically. The collector sums what it finds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

pub use crate::histogram::{Counter, DURATIONS, Histogram};
use crate::histogram::{Native, NativeCounts};
use wire::{Proto, RType, Rcode};

/// A number that each thread adds to on a cache line of its own; the last one is for those that share it.
#[derive(Debug)]
pub struct PerThread(Box<[Line]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(Counter);

impl PerThread {
    /// Zero, for so many threads.
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

/// The types with a label of their own; every other one counts as `other`.
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

/// Upper bounds of message sizes in octets.
pub const SIZES: [u64; 14] =
    [0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16_000, 32_000, 48_000, 64_000];

/// How many rcodes are told apart; higher ones share the last place.
pub const RCODES: usize = 24;

/// What is counted of one zone on one thread.
///
/// In this order and at the start of a cache line: with a thousand zones it is the lines touched that a query costs. What every
/// hit counts stands first, so a new field belongs to the end.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ZoneCounters {
    /// Names that hosts answered.
    pub hosts_hits: Counter,
    /// Names that hosts was asked for and did not know.
    pub hosts_misses: Counter,
    /// Lookups in the cache.
    pub cache_requests: Counter,
    /// Hits by kind: success, denial.
    pub cache_hits: [Counter; 2],
    /// Misses.
    pub cache_misses: Counter,
    /// Requests with DO.
    pub dnssec_ok: Counter,
    /// Stale answers given.
    pub cache_stale: Counter,
    /// Responses by rcode that a plugin wrote.
    pub responses: [Counter; RCODES],
    /// Request sizes by protocol.
    pub request_sizes: [Histogram<14>; 2],
    /// Response sizes by protocol.
    pub response_sizes: [Histogram<14>; 2],
    /// Finer buckets, from when on a scraper asked for them.
    pub native: OnceLock<Box<NativeCounters>>,
    /// Durations in nanoseconds.
    pub durations: Histogram<16>,
    /// Requests by protocol (udp, tcp), family (1, 2) and type.
    pub requests: [[[Counter; TYPES.len() + 1]; 2]; 2],
    /// Responses by rcode that say that no plugin could.
    pub failures: [Counter; RCODES],
    /// Prefetches started.
    pub cache_prefetches: Counter,
}

/// The native histograms of one zone on one thread: 10 KiB, which only those have who ask for them.
#[derive(Debug)]
pub struct NativeCounters {
    /// Durations in seconds.
    pub durations: Native,
    /// Request sizes by protocol.
    pub request_sizes: [Native; 2],
    /// Response sizes by protocol.
    pub response_sizes: [Native; 2],
}

/// The native histograms of one zone, all threads together.
#[derive(Debug, Default)]
pub struct NativeSums {
    /// Durations in seconds.
    pub durations: NativeCounts,
    /// Request sizes by protocol.
    pub request_sizes: [NativeCounts; 2],
    /// Response sizes by protocol.
    pub response_sizes: [NativeCounts; 2],
}

/// How queries ended, as they are counted; their sizes, which may differ, aside.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// The client's transport.
    pub proto: Proto,
    /// Whether the client came over IPv6.
    pub ipv6: bool,
    /// The type asked for.
    pub rtype: RType,
    /// Whether the client set DO.
    pub dnssec_ok: bool,
    /// What was answered.
    pub rcode: Rcode,
    /// Whether it says that no plugin had an answer.
    pub failed: bool,
    /// From receipt to reply, in nanoseconds.
    pub nanos: u64,
}

impl ZoneCounters {
    /// Counts queries that ended alike, each by the octets of query and reply. `shared`: other threads write these
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
        let proto = counted.proto as usize;
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
    /// What was counted until now, each value at the bound of its classic bucket. A query that is counted meanwhile may be
    /// missed.
    pub fn of(counters: &ZoneCounters) -> Self {
        let octets = |histogram: &Histogram<14>| Native::octets(histogram.by_bound(&SIZES, 1.0));
        Self {
            durations: Native::seconds(counters.durations.by_bound(&DURATIONS, 1e9)),
            request_sizes: counters.request_sizes.each_ref().map(octets),
            response_sizes: counters.response_sizes.each_ref().map(octets),
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
        let proto = counted.proto as usize;
        for [request, response] in sizes {
            self.durations.observe(counted.nanos as f64 / 1e9, shared);
            self.request_sizes[proto].observe(request.into(), shared);
            self.response_sizes[proto].observe(response.into(), shared);
        }
    }
}

/// Where one thread counts one zone; nowhere if the zone is not measured.
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

    /// Counts queries that ended alike, each by the octets of query and reply.
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
    /// What the label `zones` of the cache's metrics says: the zones it is for, joined by commas.
    pub cache_zones: String,
    /// What the label `plugin` says of responses that a plugin wrote; it is empty for all others.
    pub plugin: &'static str,
    /// Whether its queries are told; what its plugins count is in any case.
    pub queries: bool,
}

/// Counters of one zone, one set per worker and one, the last, for the stream side.
pub type ZoneSet = Arc<[ZoneCounters]>;

/// Every zone's counters, kept for as long as the process lives so that a reload loses none.
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
