//! Counts the responses of DNS over HTTPS and QUIC by endpoint and status.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use encrypted::Outcome;
use metrics::counters::Counter;
use plugin::endpoint::Endpoint;

/// The responses of all endpoints; those of an endpoint that was closed stay.
#[derive(Debug, Default)]
pub struct ResponseCounts(Mutex<BTreeMap<Endpoint, Arc<EndpointResponses>>>);

/// The responses of one endpoint, by status.
#[derive(Debug, Default)]
pub struct EndpointResponses([Counter; Outcome::ALL.len()]);

impl EndpointResponses {
    /// Counts a response.
    pub(crate) fn count(&self, outcome: Outcome) {
        self.0[outcome as usize].add_shared(1);
    }
}

impl ResponseCounts {
    /// Returns the counters of an endpoint, created on first use.
    pub(crate) fn of(&self, endpoint: Endpoint) -> Arc<EndpointResponses> {
        self.lock().entry(endpoint).or_default().clone()
    }

    /// Returns the endpoint, the status and the number of responses, of statuses that were sent: as
    /// in CoreDNS, a counter has no sample before it is first incremented.
    pub fn all(&self) -> Vec<(Endpoint, &'static str, u64)> {
        let mut all = Vec::new();
        for (endpoint, counts) in self.lock().iter() {
            for status in Outcome::ALL {
                let count = counts.0[status as usize].get();
                if count > 0 {
                    all.push((*endpoint, status.name(), count));
                }
            }
        }
        all
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Endpoint, Arc<EndpointResponses>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
