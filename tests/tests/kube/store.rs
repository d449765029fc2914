//! A sink that stores the objects it receives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubernetes_api::{DecodeError, Kind, Object, ObjectKey, RequestMetrics, Sink, WatchError};

/// A store that tests read while it is written.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Store>>);

#[derive(Default)]
pub(super) struct Store {
    pub(super) objects: BTreeMap<(Kind, ObjectKey), Object>,
    /// Kinds with a complete list, and the number of lists.
    pub(super) lists: BTreeMap<Kind, usize>,
    pub(super) following: BTreeSet<Kind>,
    /// Errors that ended a watch, as text, in order.
    pub(super) lost: Vec<(Kind, String)>,
    pub(super) unreadable: usize,
    /// The delay of each request by the rate limit, in order.
    pub(super) waited: Vec<Duration>,
    pub(super) events: usize,
    /// Objects of a list that is not complete.
    listing: BTreeMap<Kind, BTreeSet<ObjectKey>>,
}

impl Seen {
    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` is true for the store.
    pub(super) fn until(&self, what: &str, look: impl Fn(&Store) -> bool) {
        tests::eventually(what, Duration::from_secs(30), || look(&self.store()).then_some(()));
    }

    /// Waits until all of these kinds have been listed and are watched.
    pub(super) fn until_following(&self, kinds: &[Kind]) {
        self.until("following", |store| kinds.iter().all(|kind| store.following.contains(kind)));
    }
}

impl Store {
    pub(super) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Object> {
        self.objects.get(&(kind, ObjectKey { namespace: namespace.into(), name: name.into() }))
    }

    pub(super) fn count(&self, kind: Kind) -> usize {
        self.objects.keys().filter(|(of, _)| *of == kind).count()
    }
}

fn key(object: &Object) -> ObjectKey {
    match object {
        Object::Service(service) => (*service.key).clone(),
        Object::Slice(slice) => (*slice.key).clone(),
        Object::Namespace(name) => ObjectKey { namespace: "".into(), name: name.clone() },
        Object::Pod(pod) => (*pod.key).clone(),
        Object::ServiceImport(import) => (*import.key).clone(),
    }
}

impl Sink for Seen {
    fn begin(&mut self, kind: Kind) {
        self.store().listing.insert(kind, BTreeSet::new());
    }

    fn apply(&mut self, object: Object) {
        let (kind, key) = (object.kind(), key(&object));
        let mut store = self.store();
        store.events += 1;
        if let Some(listed) = store.listing.get_mut(&kind) {
            listed.insert(key.clone());
        }
        store.objects.insert((kind, key), object);
    }

    fn delete(&mut self, kind: Kind, key: ObjectKey) {
        let mut store = self.store();
        store.events += 1;
        if let Some(listed) = store.listing.get_mut(&kind) {
            listed.remove(&key);
        }
        store.objects.remove(&(kind, key));
    }

    fn complete(&mut self, kind: Kind) {
        let mut store = self.store();
        let listed = store.listing.remove(&kind).expect("a list begins before it is whole");
        store.objects.retain(|(of, key), _| *of != kind || listed.contains(key));
        *store.lists.entry(kind).or_default() += 1;
    }

    fn watching(&mut self, kind: Kind) {
        self.store().following.insert(kind);
    }

    fn failed(&mut self, kind: Kind, why: &WatchError) {
        let mut store = self.store();
        store.following.remove(&kind);
        store.lost.push((kind, why.to_string()));
    }

    fn request_done(&mut self, asked: &RequestMetrics<'_>) {
        self.store().waited.push(asked.waited);
    }

    fn invalid(&mut self, _: Kind, _: &DecodeError) {
        self.store().unreadable += 1;
    }
}
