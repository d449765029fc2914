//! Metrics of reloads.

use metrics::{Families, Metric};

/// Adds the number of failed reloads, which CoreDNS counts with and without `reload`.
pub fn collect_failed(failed: u64, into: &mut Families) {
    into.counter(FAILED, &[], failed as f64);
}

/// Adds the SHA-512 of the serving configuration.
pub fn collect_version(hash: &str, into: &mut Families) {
    into.gauge(VERSION_INFO, &[("hash", "sha512"), ("value", hash)], 1.0);
}

/// Counter.
const FAILED: Metric =
    Metric { name: "coredns_reload_failed_total", help: "Counter of the number of failed reload attempts." };
/// Gauge {hash, value}, always 1; hash: sha512.
const VERSION_INFO: Metric = Metric {
    name: "coredns_reload_version_info",
    help: "A metric with a constant '1' value labeled by hash, and value which type of hash generated.",
};
