//! What is counted of clusters.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::kubernetes_api::Asked;
use histogram::{Native, NativeCounts};
use kubernetes_api::Kind;

use observe::{Distribution, Families, Metric, names};

/// What is counted of all clusters.
#[derive(Default)]
pub(super) struct Metrics(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// By whether the service is headless.
    programming: [Durations; 2],
    /// By verb and host.
    requests: BTreeMap<(&'static str, String), Durations>,
    /// By status, method and host.
    results: BTreeMap<(String, String), u64>,
    unreadable: BTreeMap<Kind, u64>,
}

/// A histogram; written a few times a second at most, but for changes of endpoints.
#[derive(Default)]
struct Durations {
    counts: Vec<u64>,
    sum: f64,
    native: Option<Native>,
}

impl Metrics {
    /// A change of endpoints was there to be asked for so long after its cause.
    pub(super) fn programmed(&self, headless: bool, after: Duration) {
        self.counts().programming[usize::from(headless)].observe(&programming_bounds(), after);
    }

    /// A request to the API came to its end.
    pub(super) fn asked(&self, asked: &Asked<'_>) {
        let mut counts = self.counts();
        let host = asked.host.to_owned();
        let code = asked.status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
        *counts.results.entry((code, host.clone())).or_default() += 1;
        // As client-go calls both.
        counts.requests.entry(("GET", host)).or_default().observe(&REQUEST_BOUNDS, asked.took);
    }

    pub(super) fn unreadable(&self, kind: Kind) {
        *self.counts().unreadable.entry(kind).or_default() += 1;
    }

    pub(super) fn collect(&self, into: &mut Families) {
        let mut counts = self.counts();
        for (durations, kind) in counts.programming.iter_mut().zip(["cluster_ip", "headless_with_selector"]) {
            let labels = [("service_kind", kind)];
            durations.collect(names::KUBERNETES_PROGRAMMING_DURATION, &programming_bounds(), &labels, into);
        }
        for ((verb, host), durations) in &mut counts.requests {
            let labels = [("verb", *verb), ("host", host.as_str())];
            durations.collect(names::KUBERNETES_REQUEST_DURATION, &REQUEST_BOUNDS, &labels, into);
        }
        for ((code, host), count) in &counts.results {
            let labels = [("code", code.as_str()), ("method", "GET"), ("host", host.as_str())];
            into.counter(names::KUBERNETES_REQUESTS, &labels, *count as f64);
        }
        for (kind, count) in &counts.unreadable {
            into.counter(names::KUBERNETES_UNREADABLE, &[("kind", kind.resource())], *count as f64);
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Durations {
    fn observe(&mut self, bounds: &[f64], duration: Duration) {
        self.counts.resize(bounds.len() + 1, 0);
        let seconds = duration.as_secs_f64();
        let place = bounds.partition_point(|bound| *bound < seconds);
        self.counts[place] += 1;
        self.sum += seconds;
        if let Some(native) = &self.native {
            native.observe(seconds, true);
        }
    }

    /// Nothing, as in Go, where nothing was counted.
    fn collect(
        &mut self,
        metric: Metric,
        bounds: &[f64],
        labels: &[(&'static str, &str)],
        into: &mut Families,
    ) {
        if self.counts.is_empty() {
            return;
        }
        let native = into.are_native().then(|| self.native(bounds));
        let seen = Distribution { bounds, counts: &self.counts, sum: self.sum, native: native.as_ref() };
        into.histogram(metric, labels, seen);
    }

    /// Kept from the first call on; what came before is at its classic bound.
    fn native(&mut self, bounds: &[f64]) -> NativeCounts {
        let above = bounds.last().map(|last| last * 2.0);
        let counted = bounds.iter().copied().chain(above).zip(self.counts.iter().copied());
        let mut counts = NativeCounts::default();
        self.native.get_or_insert_with(|| Native::seconds(counted)).add_to(&mut counts);
        counts
    }
}

/// From a millisecond to 17 minutes, doubling.
fn programming_bounds() -> [f64; 20] {
    std::array::from_fn(|power| 0.001 * f64::from(1 << power))
}

/// Those that Prometheus's Go library has by default.
const REQUEST_BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
