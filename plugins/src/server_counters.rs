//! Counters with the label `server`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::counters::PerThread;
use metrics::{Families, Metric};

/// The counters of one metric by server, for the life of the process.
#[derive(Debug, Default)]
pub(crate) struct ServerCounters(Mutex<BTreeMap<String, Arc<PerThread>>>);

impl ServerCounters {
    /// Returns the counter of a server; a new one has `threads` parts.
    pub(crate) fn counter(&self, server: &str, threads: usize) -> Arc<PerThread> {
        self.lock().entry(server.to_owned()).or_insert_with(|| Arc::new(PerThread::new(threads))).clone()
    }

    /// Adds the samples. As in CoreDNS, a counter has no sample before it is first incremented.
    pub(crate) fn collect(&self, metric: Metric, into: &mut Families) {
        for (server, counter) in self.lock().iter().filter(|(_, counter)| counter.get() > 0) {
            into.counter(metric, &[("server", server.as_str())], counter.get() as f64);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<PerThread>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
