//! Which worker has a query in flight, so that equal misses on different workers share one upstream query.

use std::collections::HashMap;

use foldhash::fast::{FixedState, RandomState};

use crate::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

/// Every query in flight, by a hash of what makes two equal, with its worker.
///
/// A hash that two different queries share only sends one of them to the other's worker, where it is served as well.
pub struct FlightRegistry {
    shards: Vec<Mutex<HashMap<u64, u16, FixedState>>>,
    pub(crate) hasher: RandomState,
}

impl FlightRegistry {
    /// Nothing in flight.
    pub fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hasher: RandomState::default() }
    }

    /// Takes the flight for `worker`, unless another worker has it: then that one is returned.
    pub fn claim(&self, key: u64, worker: usize) -> Option<usize> {
        let owner = usize::from(*self.shard(key).entry(key).or_insert(worker as u16));
        (owner != worker).then_some(owner)
    }

    /// Gives the flight back.
    pub fn release(&self, key: u64, worker: usize) {
        let mut shard = self.shard(key);
        if shard.get(&key) == Some(&(worker as u16)) {
            shard.remove(&key);
        }
    }

    /// Gives back every flight of a worker that lost them all.
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
