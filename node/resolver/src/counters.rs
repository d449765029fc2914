//! Counters of rounds, for `/metrics`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hostsfile::managed::UpdateOutcome;
use stub_resolver::LookupOutcome;

use super::reconcile::{Outcomes, WantedLines};
use metrics::{Families, MetricSource, names};

/// The counters, updated after each round and read at each scrape.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    rounds: u64,
    lookups: BTreeMap<&'static str, u64>,
    writes: BTreeMap<&'static str, u64>,
    last_good: Option<Instant>,
    /// Verdict and number of lines of each service, after the last round that could update the
    /// file.
    services: BTreeMap<String, (&'static str, usize)>,
}

impl Counters {
    /// Counts the results of a round's lookups.
    pub(crate) fn looked_up(&self, outcomes: &Outcomes) {
        let mut counts = self.counts();
        counts.rounds += 1;
        for outcome in outcomes.values() {
            *counts.lookups.entry(label(outcome)).or_default() += 1;
        }
    }

    /// Counts a round's update of the file; `written` is `None` if the file could not be updated.
    pub(crate) fn wrote(&self, now: Instant, written: Option<UpdateOutcome>, plan: &WantedLines) {
        let mut counts = self.counts();
        let result = match written {
            None => "failed",
            Some(UpdateOutcome::Unchanged) => "unchanged",
            Some(UpdateOutcome::Replaced) => "replaced",
            Some(UpdateOutcome::InPlace) => "in_place",
        };
        *counts.writes.entry(result).or_default() += 1;
        if written.is_some() {
            counts.last_good = Some(now);
            let lines = |name: &str| plan.entries.iter().filter(|entry| &*entry.name == name).count();
            let services = plan.verdicts.iter();
            counts.services = services
                .map(|(service, verdict)| (service.to_string(), (verdict.label(), lines(service.as_str()))))
                .collect();
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetricSource for Counters {
    fn collect(&self, into: &mut Families) {
        let counts = self.counts();
        into.counter(names::NODE_RESOLVER_ROUNDS, &[], counts.rounds as f64);
        for outcome in ["addresses", "failed", "no_data", "no_such_name"] {
            let count = counts.lookups.get(outcome).copied().unwrap_or_default();
            into.counter(names::NODE_RESOLVER_LOOKUPS, &[("outcome", outcome)], count as f64);
        }
        for result in ["failed", "in_place", "replaced", "unchanged"] {
            let count = counts.writes.get(result).copied().unwrap_or_default();
            into.counter(names::NODE_RESOLVER_WRITES, &[("result", result)], count as f64);
        }
        if let Some(last) = counts.last_good {
            let age = clock::now().saturating_duration_since(last).as_secs_f64();
            into.gauge(names::NODE_RESOLVER_AGE, &[], age);
        }
        for (service, (verdict, lines)) in &counts.services {
            let labels = [("service", service.as_str()), ("verdict", verdict)];
            into.gauge(names::NODE_RESOLVER_LINES, &labels, *lines as f64);
        }
    }
}

fn label(outcome: &LookupOutcome) -> &'static str {
    match outcome {
        LookupOutcome::Addresses { .. } => "addresses",
        LookupOutcome::NoSuchName => "no_such_name",
        LookupOutcome::NoData => "no_data",
        LookupOutcome::Failed(_) => "failed",
    }
}
