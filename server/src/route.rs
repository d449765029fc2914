//! Which server block answers a query: by the address it came to and the longest zone that holds its name.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher as _;
use wire::{Class, Name, Query, RType};

use crate::failure::Failure;
use crate::house::ServedZone;

/// The zones served on one listen address.
#[derive(Debug, Default)]
pub struct Route {
    zones: HashTable<Arc<ServedZone>>,
    hasher: RandomState,
    /// Bit n: some zone has n labels (127 stands for more, too). Lengths without a zone cost no lookup.
    lengths: u128,
    /// Whether classes other than IN pass: some block on this address forwards.
    other_classes: bool,
}

impl Route {
    /// The zones of one address; each at most once.
    pub fn new(zones: impl IntoIterator<Item = Arc<ServedZone>>) -> Self {
        let mut route = Self::default();
        for zone in zones {
            route.lengths |= bit(zone.zone.label_count());
            route.other_classes |= zone.block.pipeline.forwards();
            let hasher = &route.hasher;
            let hash = hasher.hash_one(zone.zone.as_wire());
            route.zones.insert_unique(hash, zone, |zone| hasher.hash_one(zone.zone.as_wire()));
        }
        route
    }

    /// The zone that answers.
    ///
    /// A DS question is the parent's to answer (RFC 4035, section 3.1.4.1), if the parent is served here, too.
    ///
    /// # Errors
    /// [`Failure::NoZone`] and [`Failure::Class`].
    #[inline]
    pub fn find(&self, query: &Query<'_>) -> Result<&Arc<ServedZone>, Failure> {
        if query.class != Class::IN && !self.other_classes {
            return Err(Failure::Class);
        }
        let mut left = query.name.label_count();
        let mut own = None;
        for suffix in query.name.suffixes() {
            if self.lengths & bit(left) != 0
                && let Some(found) = self.exact(suffix)
            {
                if query.rtype != RType::DS || suffix.len() < query.name.as_wire().len() {
                    return Ok(found);
                }
                own = Some(found);
            }
            left = left.saturating_sub(1);
        }
        own.ok_or(Failure::NoZone)
    }

    /// Every zone served here.
    pub fn zones(&self) -> impl Iterator<Item = &Arc<ServedZone>> {
        self.zones.iter()
    }

    /// The zone of exactly this name.
    pub fn zone(&self, name: &Name) -> Option<&Arc<ServedZone>> {
        self.exact(name.as_wire())
    }

    fn exact(&self, wire: &[u8]) -> Option<&Arc<ServedZone>> {
        self.zones.find(self.hasher.hash_one(wire), |zone| zone.zone.as_wire() == wire)
    }
}

fn bit(labels: usize) -> u128 {
    1 << labels.min(127)
}
