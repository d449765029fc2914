//! Metrics of clusters.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::kubernetes_api::RequestMetrics;
use kubernetes_api::Kind;
use metrics::histogram::{Durations, doubling};

use metrics::{Families, Metric};

/// Counters of all clusters.
#[derive(Default)]
pub(super) struct Metrics(Mutex<Counts>);

struct Counts {
    /// Indexed by whether the service is headless.
    programming: [Durations<20>; 2],
    /// By verb and host: delay by the rate limiter; `requests`: time until the response.
    paced: BTreeMap<(&'static str, String), Durations<11>>,
    requests: BTreeMap<(&'static str, String), Durations<11>>,
    /// By status, method and host.
    results: BTreeMap<(String, String), u64>,
    unreadable: BTreeMap<Kind, u64>,
}

impl Default for Counts {
    fn default() -> Self {
        let programming = std::array::from_fn(|_| Durations::new(&PROGRAMMING_BOUNDS));
        let (paced, requests, results, unreadable) = Default::default();
        Self { programming, paced, requests, results, unreadable }
    }
}

impl Metrics {
    /// Observes the time from the cause of an endpoint change until answers contain the change.
    pub(super) fn programmed(&self, headless: bool, after: Duration) {
        self.counts().programming[usize::from(headless)].observe(after);
    }

    /// Counts a completed request to the API.
    pub(super) fn asked(&self, asked: &RequestMetrics<'_>) {
        let mut counts = self.counts();
        let host = asked.host.to_owned();
        let code = asked.status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
        *counts.results.entry((code, host.clone())).or_default() += 1;
        // client-go labels both lists and watches with the verb GET.
        let paced = counts.paced.entry(("GET", host.clone()));
        paced.or_insert_with(|| Durations::new(&REQUEST_BOUNDS)).observe(asked.waited);
        let requests = counts.requests.entry(("GET", host));
        requests.or_insert_with(|| Durations::new(&REQUEST_BOUNDS)).observe(asked.took);
    }

    pub(super) fn unreadable(&self, kind: Kind) {
        *self.counts().unreadable.entry(kind).or_default() += 1;
    }

    pub(super) fn collect(&self, into: &mut Families) {
        let counts = self.counts();
        let programming = counts.programming.iter().zip(["cluster_ip", "headless_with_selector"]);
        // As in Go's client library, there is no sample before the first observation.
        for (durations, kind) in programming.filter(|(durations, _)| durations.is_used()) {
            into.durations(PROGRAMMING_DURATION, &[("service_kind", kind)], durations);
        }
        for (metric, all) in [(PACE_DURATION, &counts.paced), (REQUEST_DURATION, &counts.requests)] {
            for ((verb, host), durations) in all {
                into.durations(metric, &[("verb", *verb), ("host", host.as_str())], durations);
            }
        }
        for ((code, host), count) in &counts.results {
            let labels = [("code", code.as_str()), ("method", "GET"), ("host", host.as_str())];
            into.counter(REQUESTS, &labels, *count as f64);
        }
        for (kind, count) in &counts.unreadable {
            into.counter(UNREADABLE, &[("kind", kind.resource())], *count as f64);
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Histogram {service_kind}; service_kind: cluster_ip, headless_with_selector.
const PROGRAMMING_DURATION: Metric = Metric {
    name: "coredns_kubernetes_dns_programming_duration_seconds",
    help: "Histogram of the time (in seconds) it took to program a dns instance.",
};
/// Histogram {verb, host}.
const PACE_DURATION: Metric = Metric {
    name: "coredns_kubernetes_rest_client_rate_limiter_duration_seconds",
    help: "Client side rate limiter latency in seconds. Broken down by verb and host.",
};
/// Histogram {verb, host}.
const REQUEST_DURATION: Metric = Metric {
    name: "coredns_kubernetes_rest_client_request_duration_seconds",
    help: "Request latency in seconds. Broken down by verb and host.",
};
/// Counter {code, method, host}.
const REQUESTS: Metric = Metric {
    name: "coredns_kubernetes_rest_client_requests_total",
    help: "Number of HTTP requests, partitioned by status code, method, and host.",
};
/// Counter {kind}.
const UNREADABLE: Metric = Metric {
    name: "localdns_kubernetes_unreadable_total",
    help: "Counter of objects from the API that made no sense and were left out.",
};
/// From a millisecond to 9 minutes, doubling; in nanoseconds.
const PROGRAMMING_BOUNDS: [u64; 20] = doubling(1_000_000);
/// The default bounds of Prometheus's Go library, in nanoseconds.
const REQUEST_BOUNDS: [u64; 11] = [
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];
