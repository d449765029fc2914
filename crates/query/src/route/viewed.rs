//! The zones of an endpoint where some block has a `view`.

use std::sync::Arc;

use hashbrown::HashTable;
use wire::{Name, Query, RType, hash_of};

use crate::ServedZone;

/// The zones of one endpoint, several of which may have the same name.
#[derive(Debug, Default)]
pub(super) struct ViewedZones {
    root: Vec<Arc<ServedZone>>,
    /// The zones of one name in the order of their blocks; never an empty list.
    zones: HashTable<Vec<Arc<ServedZone>>>,
}

impl ViewedZones {
    /// Creates the table from zones in the order of their blocks.
    pub(super) fn new(zones: Vec<Arc<ServedZone>>) -> Self {
        let mut all = Self::default();
        for zone in zones {
            if zone.zone == Name::ROOT {
                all.root.push(zone);
                continue;
            }
            let hash = zone.zone.hash_code();
            match all.zones.find_mut(hash, |same| same[0].zone == zone.zone) {
                Some(same) => same.push(zone),
                None => {
                    all.zones.insert_unique(hash, vec![zone], |same| same[0].zone.hash_code());
                }
            }
        }
        all
    }

    /// Returns the zones that contain the queried name: longest zone first, those of one name in
    /// the order of their blocks. A DS question for a zone's own name goes to the zones above, the
    /// root excepted, before the zone itself.
    pub(super) fn candidates<'z, 'q>(
        &'z self,
        query: &'q Query<'q>,
    ) -> impl Iterator<Item = &'z Arc<ServedZone>> + use<'z, 'q> {
        let name = &query.name;
        let goes_last =
            move |suffix: &&[u8]| query.rtype == RType::DS && suffix.len() == name.as_wire().len();
        let suffixes = || name.suffixes().take(name.label_count());
        let first = suffixes().filter(move |suffix| !goes_last(suffix));
        let last = suffixes().filter(goes_last);
        first.chain(last).flat_map(|suffix| self.exact(name, suffix)).chain(&self.root)
    }

    /// Returns the first block's zone among the longest zones that contain the name.
    pub(super) fn longest(&self, name: &Name) -> Option<&Arc<ServedZone>> {
        name.suffixes().find_map(|suffix| self.exact(name, suffix).first()).or_else(|| self.root.first())
    }

    /// Returns all zones.
    pub(super) fn zones(&self) -> impl Iterator<Item = &Arc<ServedZone>> {
        self.root.iter().chain(self.zones.iter().flatten())
    }

    /// Returns the zone of exactly this name without `view`, else the first of them.
    pub(super) fn zone(&self, name: &Name) -> Option<&Arc<ServedZone>> {
        let zones = if *name == Name::ROOT { &self.root } else { self.exact(name, name.as_wire()) };
        zones.iter().find(|zone| zone.block.envelope.view.is_none()).or_else(|| zones.first())
    }

    fn exact(&self, name: &Name, suffix: &[u8]) -> &[Arc<ServedZone>] {
        let hash = if suffix.len() == name.as_wire().len() { name.hash_code() } else { hash_of(suffix) };
        self.zones.find(hash, |same| same[0].zone.as_wire() == suffix).map_or(&[], Vec::as_slice)
    }
}
