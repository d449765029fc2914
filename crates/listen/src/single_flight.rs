//! Single flight across workers: which worker has a query in flight, so that equal misses on
//! different workers share one upstream query.

use std::collections::HashMap;

use foldhash::fast::{FixedState, RandomState};

use crate::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

/// All queries in flight, by the hash of their key, with their worker.
///
/// If two different queries have the same hash, one of them is sent to the worker of the other
/// query, which serves it as well.
pub struct FlightRegistry {
    shards: Vec<Mutex<HashMap<u64, u16, FixedState>>>,
    pub(crate) hasher: RandomState,
}

impl FlightRegistry {
    /// Creates a registry without queries in flight.
    pub fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hasher: RandomState::default() }
    }

    /// Claims the flight for `worker`; if another worker has the flight, returns that worker.
    pub fn claim(&self, key: u64, worker: usize) -> Option<usize> {
        let owner = usize::from(*self.shard(key).entry(key).or_insert(worker as u16));
        (owner != worker).then_some(owner)
    }

    /// Releases the flight, if `worker` has it.
    pub fn release(&self, key: u64, worker: usize) {
        let mut shard = self.shard(key);
        if shard.get(&key) == Some(&(worker as u16)) {
            shard.remove(&key);
        }
    }

    /// Releases all flights of a worker that lost its state.
    pub fn release_all(&self, worker: usize) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|_, owner| usize::from(*owner) != worker);
        }
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, HashMap<u64, u16, FixedState>> {
        self.shards[(key >> 58) as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for FlightRegistry {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_lost_its_flights_keeps_no_claim_and_others_keep_theirs() {
        let flights = FlightRegistry::new();
        let keys: Vec<u64> = (0..200).map(|n| n << 56 | n).collect();
        for (n, &key) in keys.iter().enumerate() {
            assert_eq!(flights.claim(key, n % 2), None, "{key:x}");
        }
        flights.release_all(0);
        for (n, &key) in keys.iter().enumerate() {
            assert_eq!(flights.claim(key, 7), (n % 2 == 1).then_some(1), "{key:x}");
        }
    }
}
