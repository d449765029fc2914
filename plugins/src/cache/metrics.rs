//! Metrics of the cache, besides the counters of each query (`metrics::counters::ZoneCounters`).

use ::cache::{AnswerKind, BlockCache, Cache};
use metrics::{Families, Metric};

/// Adds the size of the cache of all server blocks.
pub fn collect(cache: &Cache, into: &mut Families) {
    into.gauge(BYTES, &[], cache.bytes() as f64);
}

/// Adds a block's entries and evictions. `zones` and `view` are the values of these labels.
pub fn collect_block(cache: &BlockCache, server: &str, zones: &str, view: &str, into: &mut Families) {
    for kind in AnswerKind::ALL {
        let labels = [("server", server), ("type", kind.label()), ("zones", zones), ("view", view)];
        into.gauge(ENTRIES, &labels, cache.entries(kind) as f64);
        let evictions = cache.evictions(kind);
        // As in CoreDNS, a counter has no sample before it is first incremented.
        if evictions > 0 {
            into.counter(EVICTIONS, &labels, evictions as f64);
        }
    }
}

/// Gauge {server, type, zones, view}; type: success, denial.
const ENTRIES: Metric =
    Metric { name: "coredns_cache_entries", help: "The number of elements in the cache." };
/// Counter {server, type, zones, view}.
const EVICTIONS: Metric =
    Metric { name: "coredns_cache_evictions_total", help: "The count of cache evictions." };
/// Gauge.
const BYTES: Metric =
    Metric { name: "localdns_cache_bytes", help: "Memory held by the cache of all server blocks." };
