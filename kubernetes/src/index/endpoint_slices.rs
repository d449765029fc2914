//! Slices on their way to the services that they are of.
//!
//! A service is put together anew for each change of its slices, which takes as long as it has endpoints. What a list changes is
//! gathered, and handed over service by service when it ends; so are changes that come together. What is as it was is not kept
//! a second time.

use std::sync::Arc;

use kubernetes_api::objects::{ObjectKey, Slice};

use super::{HashMap, HashSet, key};

/// Every slice that is known.
#[derive(Default)]
pub(super) struct Slices {
    /// Those that services have, and of which ones they are.
    known: HashMap<Arc<ObjectKey>, (Named, Arc<Slice>)>,
    /// Those that differ from these in the list that is coming, or in changes that come together: as they will be, or gone.
    coming: HashMap<Arc<ObjectKey>, Option<Arc<Slice>>>,
    /// How many endpoints were told of in those, and in all that were handed over before.
    endpoints: usize,
    told: usize,
}

/// The names of what a slice is of: a service, an import.
type Named = [Option<Arc<[u8]>>; 2];

/// By the names of services and of imports.
pub(super) type Changes = [HashMap<Arc<[u8]>, Change>; 2];

/// What becomes of a service's slices.
#[derive(Default)]
pub(super) struct Change {
    come: Vec<Arc<Slice>>,
    /// These, and those that are not the service's any more.
    replaced: HashSet<Arc<ObjectKey>>,
}

impl Slices {
    /// A slice that is told of, more of which may come at once; what is to be done before that. Of a first list nothing is kept
    /// twice: as much is gathered as there is already.
    pub(super) fn come(
        &mut self,
        of: &Arc<ObjectKey>,
        slice: Slice,
        gather: bool,
        is_first: bool,
    ) -> Changes {
        // What was told of it before does not count any more.
        if self.known.get(of).is_some_and(|(_, known)| answer_alike(known, &slice)) {
            self.coming.remove(of);
            return Changes::default();
        }
        let slice = Arc::new(slice);
        if !gather {
            self.coming.remove(of);
            return self.changes([(of.clone(), Some(slice))]);
        }
        self.endpoints += 1 + slice.endpoints.len();
        self.coming.insert(of.clone(), Some(slice));
        // So that a service that is all of a first list is put together a few times, and not once for each part of it.
        let most = if is_first { MOST_COMING.max(self.told) } else { MOST_COMING };
        if self.endpoints > most { self.told(Vec::new()) } else { Changes::default() }
    }

    /// One that is gone.
    pub(super) fn without(&mut self, of: &Arc<ObjectKey>, gather: bool) -> Changes {
        self.coming.remove(of);
        if gather && self.known.contains_key(of) {
            self.coming.insert(of.clone(), None);
            return Changes::default();
        }
        self.changes([(of.clone(), None)])
    }

    /// Whether something waits for more.
    pub(super) fn has_gathered(&self) -> bool {
        !self.coming.is_empty()
    }

    /// What was gathered so far, and what is gone by a list.
    pub(super) fn told(&mut self, gone: Vec<Arc<ObjectKey>>) -> Changes {
        self.told += std::mem::take(&mut self.endpoints);
        let coming = std::mem::take(&mut self.coming);
        self.changes(coming.into_iter().chain(gone.into_iter().map(|of| (of, None))))
    }

    /// The name of the service that a slice is of.
    pub(super) fn service(&self, of: &ObjectKey) -> Option<&[u8]> {
        let ([service, _], _) = self.known.get(of)?;
        service.as_deref()
    }

    fn changes(&mut self, slices: impl IntoIterator<Item = (Arc<ObjectKey>, Option<Arc<Slice>>)>) -> Changes {
        let mut all = Changes::default();
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
                    // None of a first list is: no set is made then.
                    if is_replaced {
                        change.replaced.insert(of.clone());
                    }
                    change.come.push(slice.clone());
                }
            }
        }
        all
    }

    /// Whether none is known.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.coming.is_empty()
    }
}

impl Change {
    /// The slices of a service that had these.
    pub(super) fn of(self, old: &[Arc<Slice>]) -> Box<[Arc<Slice>]> {
        let kept = old.iter().filter(|slice| !self.replaced.contains(&slice.key));
        kept.cloned().chain(self.come).collect()
    }
}

fn names_of(slice: &Slice) -> Named {
    let namespace = &slice.key.namespace;
    let import = slice.import.as_ref().and_then(|import| key(&import.service, namespace));
    [key(&slice.service, namespace), import]
}

/// Whether one may stand for the other: when it was changed is in no answer.
fn answer_alike(one: &Slice, other: &Slice) -> bool {
    one.service == other.service
        && one.endpoints == other.endpoints
        && one.ports == other.ports
        && one.import == other.import
}

/// So many endpoints are kept beside those that they are to replace, before a list has ended: some 8 MB.
const MOST_COMING: usize = 32_768;
