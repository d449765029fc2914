//! Finds the zone that serves a query: by endpoint, longest matching zone and `view`.

mod viewed;

use std::sync::Arc;

use hashbrown::HashTable;
use wire::{Class, Name, Query, RType, hash_of};

use crate::ServedZone;
use plugin::QueryContext;
use plugin::failure::Failure;
use viewed::ViewedZones;

/// The zones served on one endpoint.
#[derive(Debug, Default)]
pub struct Route {
    /// Stored apart, because most endpoints serve only the root, which is found without hashing.
    root: Option<Arc<ServedZone>>,
    zones: HashTable<Arc<ServedZone>>,
    /// Bit n: some zone below the root has n labels (bit 127: 127 or more). Lengths without a zone
    /// cost no lookup.
    lengths: u128,
    /// All zones, if some block on this endpoint has a `view`; then `root` and `zones` are empty, so
    /// that routes without views test nothing more.
    viewed: Option<Box<ViewedZones>>,
    /// Whether some block on this endpoint answers classes other than IN.
    other_classes: bool,
}

impl Route {
    /// Creates the route from the zones of one endpoint in the order of their blocks. A zone occurs
    /// at most once without `view`.
    pub fn new(zones: Vec<Arc<ServedZone>>) -> Self {
        let other_classes = zones.iter().any(|zone| zone.block.pipeline.takes_other_classes());
        let mut route = Self { other_classes, ..Self::default() };
        if zones.iter().any(|zone| zone.block.envelope.view.is_some()) {
            route.viewed = Some(Box::new(ViewedZones::new(zones)));
            return route;
        }
        for zone in zones {
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
    /// Blocks with a `view` that does not admit the query are passed by.
    ///
    /// # Errors
    /// [`Failure::NoZone`] and [`Failure::Class`].
    #[inline]
    pub fn find(&self, query: &Query<'_>, context: &QueryContext<'_>) -> Result<&Arc<ServedZone>, Failure> {
        match self.viewed.as_deref() {
            None => self.find_plain(query),
            Some(viewed) => self.find_viewed(viewed, query, context),
        }
    }

    /// The same on an endpoint without views.
    #[inline]
    fn find_plain(&self, query: &Query<'_>) -> Result<&Arc<ServedZone>, Failure> {
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

    #[cold]
    fn find_viewed<'r>(
        &'r self,
        viewed: &'r ViewedZones,
        query: &Query<'_>,
        context: &QueryContext<'_>,
    ) -> Result<&'r Arc<ServedZone>, Failure> {
        if query.class != Class::IN && !self.other_classes {
            return Err(Failure::Class);
        }
        let admits = |zone: &&Arc<ServedZone>| zone.block.envelope.admits(query, context);
        viewed.candidates(query).find(admits).ok_or(Failure::NoZone)
    }

    /// Returns the zones that may serve a query, in the order in which their views are asked. The
    /// last one has no view, unless a query that all views pass by is refused.
    ///
    /// # Errors
    /// As [`find`](Self::find), if no zone may serve it.
    pub fn candidates(&self, query: &Query<'_>) -> Result<Vec<&Arc<ServedZone>>, Failure> {
        let Some(viewed) = &self.viewed else { return Ok(vec![self.find_plain(query)?]) };
        let mut candidates = Vec::new();
        for zone in viewed.candidates(query) {
            candidates.push(zone);
            if zone.block.envelope.view.is_none() {
                break;
            }
        }
        if candidates.is_empty() { Err(Failure::NoZone) } else { Ok(candidates) }
    }

    /// Returns the longest zone that contains the name; `None` too if a `view` decides.
    pub fn longest(&self, name: &Name) -> Option<&Arc<ServedZone>> {
        match &self.viewed {
            Some(viewed) => viewed.longest(name).filter(|zone| zone.block.envelope.view.is_none()),
            None => name.suffixes().find_map(|suffix| self.exact(name, suffix)).or(self.root.as_ref()),
        }
    }

    /// Returns every zone served here.
    pub fn zones(&self) -> impl Iterator<Item = &Arc<ServedZone>> {
        let viewed = self.viewed.iter().flat_map(|viewed| viewed.zones());
        self.root.iter().chain(&self.zones).chain(viewed)
    }

    /// Returns the zone with exactly this name: of several the one without `view`, else the first.
    pub fn zone(&self, name: &Name) -> Option<&Arc<ServedZone>> {
        match &self.viewed {
            Some(viewed) => viewed.zone(name),
            None if *name == Name::ROOT => self.root.as_ref(),
            None => self.exact(name, name.as_wire()),
        }
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
