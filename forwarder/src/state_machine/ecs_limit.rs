//! Bounds the flights for one name that differ only in the client subnet (ECS), against the
//! birthday attack.

use std::hash::{BuildHasher, Hasher};

use hashbrown::HashMap;
use wire::Query;

/// The number of flights with a subnet, by a hash of name, type and class.
///
/// RFC 7871, section 11.2: with many subnets a forger has many queries in flight that one guess can
/// match. Queries beyond the bound are sent without subnet, and share one flight. Two names with
/// the same hash share the bound.
#[derive(Debug, Default)]
pub(super) struct EcsLimit {
    flights: HashMap<u64, u8, foldhash::fast::RandomState>,
}

impl EcsLimit {
    /// Whether the bound for this name is reached.
    pub(super) fn is_full(&self, query: &Query<'_>, hasher: &impl BuildHasher) -> bool {
        self.flights.get(&key(query, hasher)).is_some_and(|&count| count >= SUBNETS_MAX)
    }

    /// Counts one more flight.
    pub(super) fn enter(&mut self, query: &Query<'_>, hasher: &impl BuildHasher) {
        *self.flights.entry(key(query, hasher)).or_default() += 1;
    }

    /// Counts one less flight.
    pub(super) fn leave(&mut self, query: &Query<'_>, hasher: &impl BuildHasher) {
        let key = key(query, hasher);
        if let Some(count) = self.flights.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.flights.remove(&key);
            }
        }
    }
}

fn key(query: &Query<'_>, hasher: &impl BuildHasher) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u32(u32::from(query.rtype.0) << 16 | u32::from(query.class.0));
    state.write(query.name.as_wire());
    state.finish()
}

/// Concurrent subnets for one name: three bits of the thirty that a forger must guess.
const SUBNETS_MAX: u8 = 8;
