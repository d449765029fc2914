//! Finds the zone that serves a query: by endpoint and longest matching zone.

use std::sync::Arc;

use hashbrown::HashTable;
use wire::{Class, Name, Query, RType, hash_of};

use crate::ServedZone;
use plugin::failure::Failure;

/// The zones served on one endpoint.
#[derive(Debug, Default)]
pub struct Route {
    /// Stored apart, because most endpoints serve only the root, which is found without hashing.
    root: Option<Arc<ServedZone>>,
    zones: HashTable<Arc<ServedZone>>,
    /// Bit n: some zone below the root has n labels (bit 127: 127 or more). Lengths without a zone
    /// cost no lookup.
    lengths: u128,
    /// Whether some block on this endpoint answers classes other than IN.
    other_classes: bool,
}

impl Route {
    /// Creates the route from the zones of one endpoint, each at most once.
    pub fn new(zones: impl IntoIterator<Item = Arc<ServedZone>>) -> Self {
        let mut route = Self::default();
        for zone in zones {
            route.other_classes |= zone.block.pipeline.takes_other_classes();
            if zone.zone == Name::ROOT {
                route.root = Some(zone);
                continue;
            }
            route.lengths |= bit(zone.zone.label_count());
            let hash = zone.zone.hash_code();
            route.zones.insert_unique(hash, zone, |zone| zone.zone.hash_code());
        }
        route
    }

    /// Returns the zone that serves a query.
    ///
    /// A DS question belongs to the parent (RFC 4035, section 3.1.4.1), if the parent is served
    /// here as well. The root does not count as a parent: otherwise DS questions for a stub's
    /// names, which no public parent knows, would go to the root's upstreams.
    ///
    /// # Errors
    /// [`Failure::NoZone`] and [`Failure::Class`].
    #[inline]
    pub fn find(&self, query: &Query<'_>) -> Result<&Arc<ServedZone>, Failure> {
        if query.class != Class::IN && !self.other_classes {
            return Err(Failure::Class);
        }
        let mut own = None;
        if self.lengths != 0 {
            let mut left = query.name.label_count();
            for suffix in query.name.suffixes().take(left) {
                if self.lengths & bit(left) != 0
                    && let Some(found) = self.exact(&query.name, suffix)
                {
                    if query.rtype != RType::DS || suffix.len() < query.name.as_wire().len() {
                        return Ok(found);
                    }
                    own = Some(found);
                }
                left -= 1;
            }
        }
        own.or(self.root.as_ref()).ok_or(Failure::NoZone)
    }

    /// Returns the longest zone that contains the name.
    pub fn longest(&self, name: &Name) -> Option<&Arc<ServedZone>> {
        name.suffixes().find_map(|suffix| self.exact(name, suffix)).or(self.root.as_ref())
    }

    /// Returns every zone served here.
    pub fn zones(&self) -> impl Iterator<Item = &Arc<ServedZone>> {
        self.root.iter().chain(&self.zones)
    }

    /// Returns the zone with exactly this name.
    pub fn zone(&self, name: &Name) -> Option<&Arc<ServedZone>> {
        if *name == Name::ROOT { self.root.as_ref() } else { self.exact(name, name.as_wire()) }
    }

    /// Returns the zone named exactly like this suffix of `name`.
    #[inline]
    fn exact(&self, name: &Name, suffix: &[u8]) -> Option<&Arc<ServedZone>> {
        // The whole name was hashed when it was read from the packet.
        let hash = if suffix.len() == name.as_wire().len() { name.hash_code() } else { hash_of(suffix) };
        self.zones.find(hash, |zone| zone.zone.as_wire() == suffix)
    }
}

fn bit(labels: usize) -> u128 {
    1 << labels.min(127)
}
