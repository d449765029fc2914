//! Collects changes of EndpointSlices, and assigns them to services.
//!
//! A service is rebuilt for each change of its slices, which takes time proportional to its
//! endpoints. Changes of a list or a batch are collected and applied service by service at its end.
//! Unchanged slices are not stored twice.

use std::sync::Arc;

use kubernetes_api::objects::{ObjectKey, Slice};

use super::{HashMap, HashSet, key};

/// All slices.
#[derive(Default)]
pub(super) struct SliceStore {
    /// Applied slices, with the names of their services.
    known: HashMap<Arc<ObjectKey>, (ServiceKeys, Arc<Slice>)>,
    /// Changed and removed slices of the list or batch in progress.
    collected: HashMap<Arc<ObjectKey>, Option<Arc<Slice>>>,
    /// Number of collected endpoints, and of all applied before.
    endpoints: usize,
    applied: usize,
}

/// Names of the service and the import of a slice.
type ServiceKeys = [Option<Arc<[u8]>>; 2];

/// Changes by name, of services and of imports.
pub(super) type ServiceChanges = [HashMap<Arc<[u8]>, SliceChange>; 2];

/// Changes of a service's slices.
#[derive(Default)]
pub(super) struct SliceChange {
    added: Vec<Arc<Slice>>,
    /// Keys of replaced and removed slices.
    replaced: HashSet<Arc<ObjectKey>>,
}

impl SliceStore {
    /// Adds or replaces a slice; returns the changes to apply. With `collect`, changes are
    /// collected up to [`MAX_COLLECTED`] endpoints, in an initial list (`is_first`) up to as many
    /// as were applied before, if those are more.
    pub(super) fn set(
        &mut self,
        of: &Arc<ObjectKey>,
        slice: Slice,
        collect: bool,
        is_first: bool,
    ) -> ServiceChanges {
        // The unchanged slice supersedes a collected change.
        if self.known.get(of).is_some_and(|(_, known)| same_answers(known, &slice)) {
            self.collected.remove(of);
            return ServiceChanges::default();
        }
        let slice = Arc::new(slice);
        if !collect {
            self.collected.remove(of);
            return self.changes([(of.clone(), Some(slice))]);
        }
        self.endpoints += 1 + slice.endpoints.len();
        self.collected.insert(of.clone(), Some(slice));
        // A service that is most of an initial list is rebuilt a few times, not once for each part
        // of it.
        let max = if is_first { MAX_COLLECTED.max(self.applied) } else { MAX_COLLECTED };
        if self.endpoints > max { self.take_collected(Vec::new()) } else { ServiceChanges::default() }
    }

    /// Removes a slice; returns the changes to apply.
    pub(super) fn remove(&mut self, of: &Arc<ObjectKey>, collect: bool) -> ServiceChanges {
        self.collected.remove(of);
        if collect && self.known.contains_key(of) {
            self.collected.insert(of.clone(), None);
            return ServiceChanges::default();
        }
        self.changes([(of.clone(), None)])
    }

    /// Whether changes are collected.
    pub(super) fn has_collected(&self) -> bool {
        !self.collected.is_empty()
    }

    /// Returns the collected changes, and the removal of slices that a list no longer has.
    pub(super) fn take_collected(&mut self, gone: Vec<Arc<ObjectKey>>) -> ServiceChanges {
        self.applied += std::mem::take(&mut self.endpoints);
        let collected = std::mem::take(&mut self.collected);
        self.changes(collected.into_iter().chain(gone.into_iter().map(|of| (of, None))))
    }

    /// Returns the name of the service of a slice.
    pub(super) fn service(&self, of: &ObjectKey) -> Option<&[u8]> {
        let ([service, _], _) = self.known.get(of)?;
        service.as_deref()
    }

    fn changes(
        &mut self,
        slices: impl IntoIterator<Item = (Arc<ObjectKey>, Option<Arc<Slice>>)>,
    ) -> ServiceChanges {
        let mut all = ServiceChanges::default();
        for (of, slice) in slices {
            let new = slice.as_deref().map(names_of).unwrap_or_default();
            let old = match &slice {
                Some(slice) => self.known.insert(of.clone(), (new.clone(), slice.clone())),
                None => self.known.remove(&of),
            };
            let is_replaced = old.is_some();
            let old = old.map(|(names, _)| names).unwrap_or_default();
            for (all, (old, new)) in all.iter_mut().zip(old.into_iter().zip(new)) {
                if let Some(left) = old.filter(|old| new.as_ref() != Some(old)) {
                    all.entry(left).or_default().replaced.insert(of.clone());
                }
                if let Some((new, slice)) = new.zip(slice.as_ref()) {
                    let change = all.entry(new).or_default();
                    // Never in an initial list, which thus allocates no set.
                    if is_replaced {
                        change.replaced.insert(of.clone());
                    }
                    change.added.push(slice.clone());
                }
            }
        }
        all
    }

    /// Whether there are no slices.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.collected.is_empty()
    }
}

impl SliceChange {
    /// Returns the new slices of a service with the slices `old`.
    pub(super) fn of(self, old: &[Arc<Slice>]) -> Box<[Arc<Slice>]> {
        let kept = old.iter().filter(|slice| !self.replaced.contains(&slice.key));
        kept.cloned().chain(self.added).collect()
    }
}

fn names_of(slice: &Slice) -> ServiceKeys {
    let namespace = &slice.key.namespace;
    let import = slice.import.as_ref().and_then(|import| key(&import.service, namespace));
    [key(&slice.service, namespace), import]
}

/// Whether two slices yield the same answers, which do not depend on the change time.
fn same_answers(one: &Slice, other: &Slice) -> bool {
    one.service == other.service
        && one.endpoints == other.endpoints
        && one.ports == other.ports
        && one.import == other.import
}

/// Maximum collected endpoints, stored beside the endpoints that they replace: some 8 MB.
const MAX_COLLECTED: usize = 32_768;
