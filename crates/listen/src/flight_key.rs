//! The key of a flight: a hash of the fields by which queries are equal.

use std::hash::BuildHasher as _;

use forwarder::ForwardQuery;
use wire::{Proto, Query};

use super::single_flight::FlightRegistry;
use super::waiter::Miss;
use query::Block;

impl FlightRegistry {
    /// Returns the hash of a query of this block: equal for queries that a forwarder would join to
    /// one flight.
    pub fn key(&self, block: &Block, query: &Query<'_>, proto: Proto) -> u64 {
        let Some(forwarding) = block.pipeline.forwarding() else { return 0 };
        let chain = &forwarding.chain;
        let ask = ForwardQuery { chain, query, proto, block: block.id, key: 0, patience: None, asker: 0 };
        ask.fingerprint(&self.hasher).unwrap_or_default()
    }

    /// Returns the worker that forwards the query, and the key that this worker releases: the
    /// worker that has the same query in flight, else `own`, else the worker that the key chooses.
    ///
    /// A query with a client subnet has one worker for its name, whatever the subnet: that worker
    /// bounds such queries in flight (RFC 7871, section 11.2). They are not registered, so they
    /// have no key.
    pub(crate) fn worker_for(&self, miss: &Miss, own: Option<usize>, workers: usize) -> (usize, u64) {
        let Miss { query, waiter, .. } = miss;
        if workers == 1 {
            return (0, 0);
        }
        let question = query.query();
        if query.has_subnet() {
            let number = u32::from(question.rtype.0) << 16 | u32::from(question.class.0);
            let hash = self.hasher.hash_one((question.name.as_wire(), number));
            return ((hash % workers as u64) as usize, 0);
        }
        let key = self.key(&waiter.zone.block, &question, waiter.client.proto());
        let chosen = own.unwrap_or((key % workers as u64) as usize);
        (self.claim(key, chosen).unwrap_or(chosen), key)
    }
}
