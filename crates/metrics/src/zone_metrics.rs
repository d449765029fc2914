//! Metrics of the zones' counters: CoreDNS's of `prometheus` and `cache`, and localdns's of
//! `hosts`.

use crate::histogram::NativeCounts;

use super::counters::{
    Counter, DURATIONS, Histogram, NativeCounters, NativeSums, RCODES, SIZES, TYPES, ZoneCounters,
    ZoneLabels, ZoneRegistry,
};
use super::families::{Distribution, Families, Metric, MetricSource};
use super::names;
use wire::{Proto, Rcode};

impl MetricSource for ZoneRegistry {
    /// Adds the counters of each zone, summed over its threads. Series that are still 0 are left out, as in Go.
    fn collect(&self, into: &mut Families) {
        let zones = self.all();
        let all = zones.iter().flat_map(|(_, set)| set.iter());
        let mut room =
            MOST_NATIVE.saturating_sub(all.filter(|counters| counters.native.get().is_some()).count());
        for (labels, set) in &zones {
            let native = (into.are_native() && labels.queries).then(|| native(set, &mut room));
            Zone { labels, set, native }.collect(into);
        }
    }
}

/// The native histograms of a zone, summed over its threads. They are kept from the first scrape on after any thread has counted,
/// while `room` is above 0; otherwise they are only as precise as the classic ones.
fn native(set: &[ZoneCounters], room: &mut usize) -> NativeSums {
    let mut sums = NativeSums::default();
    let used = set.iter().any(|counters| counters.durations.is_used());
    for counters in set.iter().filter(|_| used) {
        let made = || Box::new(NativeCounters::of(counters));
        match counters.native.get() {
            Some(native) => native.add_to(&mut sums),
            None if *room == 0 => made().add_to(&mut sums),
            None => {
                *room -= 1;
                counters.native.get_or_init(made).add_to(&mut sums);
            }
        }
    }
    sums
}

struct Zone<'z> {
    labels: &'z ZoneLabels,
    set: &'z [ZoneCounters],
    native: Option<NativeSums>,
}

impl<'z> Zone<'z> {
    fn collect(&self, into: &mut Families) {
        if self.labels.queries {
            self.queries(into);
            self.sizes(into);
        }
        self.cache(into);
        self.hosts(into);
    }

    fn queries(&self, into: &mut Families) {
        let [server, zone, view] = self.zone_labels();
        for proto in PROTOS {
            for (ipv6, family) in [(0, "1"), (1, "2")] {
                for at in 0..=TYPES.len() {
                    let total = self.sum(|counters| &counters.requests[proto as usize][ipv6][at]);
                    let rtype = TYPES.get(at).map_or("other", |(_, name)| name);
                    let own = [("proto", proto.label()), ("family", family), ("type", rtype)];
                    counted(into, names::DNS_REQUESTS, &[server, zone, view, own[0], own[1], own[2]], total);
                }
            }
        }
        counted(
            into,
            names::DNS_DO_REQUESTS,
            &[server, zone, view],
            self.sum(|counters| &counters.dnssec_ok),
        );
        for at in 0..RCODES {
            let rcode = Rcode(at as u16).to_string();
            let mut written = self.sum(|counters| &counters.responses[at]);
            let failed = self.sum(|counters| &counters.failures[at]);
            let mut count = |plugin, total| {
                let own = [("rcode", rcode.as_str()), ("plugin", plugin)];
                counted(into, names::DNS_RESPONSES, &[server, zone, view, own[0], own[1]], total);
            };
            // Responses of no server block have an empty `plugin` label, failures or not, so both are one sample.
            if self.labels.plugin.is_empty() {
                written += failed;
            } else {
                count("", failed);
            }
            count(self.labels.plugin, written);
        }
        let seconds = DURATIONS.map(|nanos| nanos as f64 / 1e9);
        let native = self.native.as_ref().map(|sums| &sums.durations);
        let labels = [server, zone, view];
        self.histogram(into, names::DNS_REQUEST_DURATION, &labels, (&seconds, 1e9), native, |counters| {
            &counters.durations
        });
    }

    fn sizes(&self, into: &mut Families) {
        let [server, zone, view] = self.zone_labels();
        let bounds = SIZES.map(|bytes| bytes as f64);
        for proto in PROTOS {
            let labels = [server, zone, view, ("proto", proto.label())];
            let at = proto as usize;
            let native = self.native.as_ref().map(|sums| (&sums.request_sizes[at], &sums.response_sizes[at]));
            let (requests, responses) = native.unzip();
            self.histogram(into, names::DNS_REQUEST_SIZE, &labels, (&bounds, 1.0), requests, |counters| {
                &counters.request_sizes[at]
            });
            self.histogram(into, names::DNS_RESPONSE_SIZE, &labels, (&bounds, 1.0), responses, |counters| {
                &counters.response_sizes[at]
            });
        }
    }

    fn cache(&self, into: &mut Families) {
        let [server, _, view] = self.zone_labels();
        let labels = [server, ("zones", self.labels.cache_zones.as_str()), view];
        counted(into, names::CACHE_REQUESTS, &labels, self.sum(|counters| &counters.cache_requests));
        counted(into, names::CACHE_MISSES, &labels, self.sum(|counters| &counters.cache_misses));
        counted(into, names::CACHE_PREFETCH, &labels, self.sum(|counters| &counters.cache_prefetches));
        counted(into, names::CACHE_SERVED_STALE, &labels, self.sum(|counters| &counters.cache_stale));
        for (at, kind) in ["success", "denial"].into_iter().enumerate() {
            let labels = [labels[0], labels[1], labels[2], ("type", kind)];
            counted(into, names::CACHE_HITS, &labels, self.sum(|counters| &counters.cache_hits[at]));
        }
    }

    fn hosts(&self, into: &mut Families) {
        let hits = self.sum(|counters| &counters.hosts_hits);
        let misses = self.sum(|counters| &counters.hosts_misses);
        // Hits and misses are exposed together, since a hit rate needs both, zero or not.
        if hits + misses > 0 {
            into.counter(names::HOSTS_HITS, &self.zone_labels(), hits as f64);
            into.counter(names::HOSTS_MISSES, &self.zone_labels(), misses as f64);
        }
    }

    fn zone_labels(&self) -> [(&'static str, &'z str); 3] {
        [("server", &self.labels.server), ("zone", &self.labels.zone), ("view", &self.labels.view)]
    }

    fn sum(&self, counter: impl Fn(&ZoneCounters) -> &Counter) -> u64 {
        self.set.iter().map(|counters| counter(counters).get()).sum()
    }

    /// Adds a histogram with its sum in units of 1/`per`.
    fn histogram<const N: usize>(
        &self,
        into: &mut Families,
        metric: Metric,
        labels: &[(&'static str, &str)],
        (bounds, per): (&[f64; N], f64),
        native: Option<&NativeCounts>,
        histogram: impl Fn(&ZoneCounters) -> &Histogram<N>,
    ) {
        let mut counts: Vec<u64> =
            (0..N).map(|at| self.sum(|counters| &histogram(counters).buckets[at])).collect();
        counts.push(self.sum(|counters| &histogram(counters).above));
        if counts.iter().any(|&count| count > 0) {
            let sum = self.sum(|counters| &histogram(counters).sum) as f64 / per;
            into.histogram(metric, labels, Distribution { bounds, counts: &counts, sum, native });
        }
    }
}

fn counted(into: &mut Families, metric: Metric, labels: &[(&'static str, &str)], total: u64) {
    if total > 0 {
        into.counter(metric, labels, total as f64);
    }
}

/// Maximum number of native histogram sets, one for each zone and thread: 5 MiB.
const MOST_NATIVE: usize = 512;
const PROTOS: [Proto; 2] = [Proto::Udp, Proto::Tcp];

#[cfg(test)]
mod tests {
    use wire::RType;

    use super::*;
    use crate::counters::Counted;

    #[test]
    fn a_thread_that_counts_first_after_the_first_page_counts_finely_at_once() {
        let set: Vec<ZoneCounters> = (0..3).map(|_| ZoneCounters::default()).collect();
        let counted = Counted {
            proto: Proto::Udp,
            ipv6: false,
            rtype: RType::A,
            dnssec_ok: false,
            rcode: Rcode::NOERROR,
            failed: false,
            nanos: 700_000,
        };
        let mut room = 8;
        assert_eq!((native(&set, &mut room).request_sizes[0].total(), room), (0, 8), "no thread has counted");
        set[0].count(&counted, [[27, 27]].into_iter(), false);
        assert_eq!((native(&set, &mut room).request_sizes[0].total(), room), (1, 5));
        set[1].count(&counted, [[27, 27]].into_iter(), false);
        let sizes = &native(&set, &mut room).request_sizes[0];
        // At most 100 bytes, by the classic buckets; and at most 2 to the power of 77/16, which is 28.1.
        assert!(sizes.buckets.keys().eq([&77, &107]), "{sizes:?}");
        assert_eq!(room, 5);
    }
}
