//! Applies objects of the API to the index.

mod namespaces;

use std::mem;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::endpoint_slices::{ServiceChanges, SliceStore};
use super::initial_sync::InitialSync;
use super::memory_accounting::{bytes_of, key_of};
use super::pods::PodAddresses;
use super::service::{EndpointNaming, Namespace, Service};
use super::service_index::ServiceSet;
use super::{HashMap, HashSet, Index, bit, key};
use kubernetes_api::objects::{self, Kind, Object, ObjectKey, Pod, SinceEpoch, Slice, Target};
use kubernetes_api::settings::{WatchConfig, WatchError};
use kubernetes_api::{DecodeError, RequestMetrics, Sink};

/// Updates an index; an index has one writer.
pub struct IndexWriter {
    index: Arc<Index>,
    pod_names: bool,
    observer: Box<dyn IndexObserver>,
    /// All objects by kind.
    objects: [HashMap<Arc<ObjectKey>, KnownObject>; Kind::ALL.len()],
    /// Estimated memory of all objects, and its limit.
    bytes: usize,
    max_bytes: usize,
    /// By kind, the size of the smallest object that was skipped at the memory limit since the last
    /// list began. While an object is skipped, absence of an object of its kind means nothing.
    skipped: [Option<usize>; Kind::ALL.len()],
    /// Number of lists begun, by kind.
    lists: [u32; Kind::ALL.len()],
    /// Kinds with a list in progress.
    listing: u8,
    /// Kinds with a batch in progress, and change times of endpoints that wait for its end.
    batching: u8,
    causes: Vec<(Arc<ObjectKey>, SinceEpoch)>,
    slices: SliceStore,
    pods: HashMap<Arc<ObjectKey>, Arc<Pod>>,
    addresses: PodAddresses,
    /// Namespaces of the API and of services, with the number of their services.
    namespaces: HashMap<Vec<u8>, (Arc<Namespace>, usize)>,
    /// New namespaces with services without their inline services yet.
    new_namespaces: HashSet<Box<[u8]>>,
    /// Services and imports until all kinds except pods are synced. Until then addresses of
    /// endpoints are not indexed, since other services with them may be missing.
    initial: Option<[InitialSync; 2]>,
}

/// A received object.
#[derive(Clone, Copy)]
struct KnownObject {
    /// Number of the last list that contained it.
    list: u32,
    bytes: u32,
}

/// Receives events of an index.
pub trait IndexObserver: Send {
    /// A change of endpoints is visible; `cause` is the time of its cause.
    fn programmed(&mut self, _headless: bool, _cause: SinceEpoch) {}

    /// An object was received.
    fn updated(&mut self) {}

    /// A list of a kind has completed.
    fn complete(&mut self, _kind: Kind) {}

    /// The watch of a kind is connected.
    fn watching(&mut self, _kind: Kind) {}

    /// A request failed; the watch is disconnected until `watching`.
    fn failed(&mut self, _kind: Kind, _why: &WatchError) {}

    /// An invalid object was skipped.
    fn invalid(&mut self, _kind: Kind, _what: &DecodeError) {}

    /// An object was skipped, since all objects would exceed the memory limit.
    fn out_of_memory(&mut self, _kind: Kind, _max_bytes: usize) {}

    /// A request has ended.
    fn request_done(&mut self, _asked: &RequestMetrics<'_>) {}
}

/// Ignores all events.
impl IndexObserver for () {}

impl IndexWriter {
    /// Creates the writer of `index`, which must have no other. The estimated memory of all objects
    /// is limited to `max_bytes`.
    pub fn new(
        index: Arc<Index>,
        wants: &WatchConfig,
        max_bytes: usize,
        observer: Box<dyn IndexObserver>,
    ) -> Self {
        Self {
            index,
            pod_names: wants.pod_names,
            observer,
            objects: Default::default(),
            bytes: 0,
            max_bytes,
            skipped: Default::default(),
            lists: [0; Kind::ALL.len()],
            listing: 0,
            batching: 0,
            causes: Vec::new(),
            slices: SliceStore::default(),
            pods: HashMap::default(),
            addresses: PodAddresses::default(),
            namespaces: HashMap::default(),
            new_namespaces: HashSet::default(),
            initial: Some(Default::default()),
        }
    }

    /// Applies the objects of a snapshot like lists of all kinds, without events. The next lists
    /// replace them.
    pub fn restore(&mut self, objects: impl Iterator<Item = Object>) {
        let observer = mem::replace(&mut self.observer, Box::new(()));
        let kinds: Vec<_> = self.index.watched().kinds().collect();
        kinds.iter().for_each(|kind| self.begin(*kind));
        objects.filter(|object| kinds.contains(&object.kind())).for_each(|object| self.apply(object));
        kinds.iter().for_each(|kind| self.complete(*kind));
        self.observer = observer;
    }

    fn changed(&self) {
        self.index.changes.fetch_add(1, Relaxed);
        self.index.serials.changed();
    }

    /// Accounts for an object. Returns `false` at the memory limit; the old version then stays.
    fn account(&mut self, kind: Kind, key: &Arc<ObjectKey>, bytes: usize) -> bool {
        let (list, seen) = (self.lists[kind as usize], &mut self.objects[kind as usize]);
        let known = seen.get_mut(key);
        let before = known.as_ref().map_or(0, |known| known.bytes as usize);
        let fits = self.bytes - before + bytes <= self.max_bytes;
        if !fits {
            let skipped = &mut self.skipped[kind as usize];
            *skipped = Some(skipped.map_or(bytes, |least| least.min(bytes)));
        }
        let bytes = if fits { bytes } else { before };
        self.bytes = self.bytes - before + bytes;
        // An object takes a few MiB at most.
        let now = KnownObject { list, bytes: bytes as u32 };
        match known {
            Some(known) => *known = now,
            None if fits => _ = seen.insert(key.clone(), now),
            None => {}
        }
        if !fits {
            self.index.synced.remove(bit(kind));
            self.observer.out_of_memory(kind, self.max_bytes);
        }
        fits
    }

    /// Returns the shared key of a known object.
    fn shared_key(&self, kind: Kind, key: Arc<ObjectKey>) -> Arc<ObjectKey> {
        let known = self.objects[kind as usize].get_key_value(&key);
        known.map_or(key, |(known, _)| known.clone())
    }

    fn forget_object(&mut self, kind: Kind, key: &ObjectKey) {
        if let Some(seen) = self.objects[kind as usize].remove(key) {
            self.bytes -= seen.bytes as usize;
        }
    }

    fn update_count(&mut self, kind: Kind) {
        self.index.counts[kind as usize].store(self.objects[kind as usize].len(), Relaxed);
        self.observer.updated();
    }

    fn set_object(&mut self, which: ServiceSet, of: &ObjectKey, object: Option<objects::Service>) {
        let Some(name) = key(&of.name, &of.namespace) else { return };
        let old = self.service(which, &name);
        let slices = match &old {
            Some(old) if old.object.as_deref() == object.as_ref() => return,
            Some(old) => old.slices.clone(),
            None => Box::default(),
        };
        self.put(which, name, old, object.map(Arc::new), slices, which.kind());
    }

    /// Applies a slice.
    fn set_slice(&mut self, of: &Arc<ObjectKey>, slice: Slice) {
        let changes = self.slices.set(of, slice, self.is_collecting(), self.initial.is_some());
        self.apply_changes(changes);
    }

    /// Whether changes of slices are collected.
    fn is_collecting(&self) -> bool {
        (self.listing | self.batching) & bit(Kind::Slice) != 0
    }

    /// Applies collected changes of slices, unless a list is in progress.
    fn apply_collected(&mut self) {
        if self.listing & bit(Kind::Slice) == 0 && self.slices.has_collected() {
            let index = self.index.clone();
            let _changing = index.serials.changing();
            let changes = self.slices.take_collected(Vec::new());
            self.apply_changes(changes);
        }
        for (of, cause) in mem::take(&mut self.causes) {
            self.report_programmed(&of, cause);
        }
    }

    /// Rebuilds each service with changed slices once.
    fn apply_changes(&mut self, changes: ServiceChanges) {
        for (which, changes) in ServiceSet::ALL.into_iter().zip(changes) {
            for (name, change) in changes {
                let old = self.service(which, &name);
                let slices = change.of(old.as_ref().map(|old| &*old.slices).unwrap_or_default());
                let object = old.as_ref().and_then(|old| old.object.clone());
                self.put(which, name, old, object, slices, Kind::Slice);
            }
        }
    }

    /// Returns the latest version of a service.
    fn service(&self, which: ServiceSet, name: &[u8]) -> Option<Arc<Service>> {
        match &self.initial {
            Some(initial) => initial[which as usize].get(name),
            None => which.of(&self.index).get(name),
        }
    }

    /// Replaces a service after a change of an object of `kind`, or removes it without object and
    /// slices.
    fn put(
        &mut self,
        which: ServiceSet,
        name: Arc<[u8]>,
        old: Option<Arc<Service>>,
        object: Option<Arc<objects::Service>>,
        slices: Box<[Arc<Slice>]>,
        kind: Kind,
    ) {
        let exists = object.is_some() || !slices.is_empty();
        let namespace = match &old {
            Some(old) if exists => old.namespace.clone(),
            _ => self.count_service(namespace_of(&name), old.is_some(), exists),
        };
        let naming = EndpointNaming { pods: self.pod_names, clusters: matches!(which, ServiceSet::Imports) };
        let new = exists.then(|| Arc::new(Service::new(&name, namespace, object, slices, naming)));
        if let Some(initial) = &mut self.initial {
            let ahead = (self.listing & bit(kind) != 0).then_some(kind);
            initial[which as usize].set(name.clone(), new.clone(), ahead);
            if ahead.is_some() {
                return;
            }
        }
        which.of(&self.index).replace(&name, old.as_deref(), new, self.initial.is_none());
        self.changed();
    }

    fn set_pod(&mut self, of: &Arc<ObjectKey>, pod: Option<Pod>) {
        let pod = pod.map(Arc::new);
        let old = match &pod {
            Some(pod) => self.pods.insert(of.clone(), pod.clone()),
            None => self.pods.remove(of),
        };
        if old == pod {
            return;
        }
        let addresses =
            |pod: &Option<Arc<Pod>>| pod.iter().flat_map(|pod| pod.addresses.to_vec()).collect::<Vec<_>>();
        let (before, after) = (addresses(&old), addresses(&pod));
        for address in before.iter().chain(after.iter().filter(|address| !before.contains(address))) {
            let pod = pod.clone().filter(|_| after.contains(address));
            self.addresses.set(&self.index.pods, *address, of, pod);
        }
        if before != after {
            self.changed();
        } else {
            self.index.changes.fetch_add(1, Relaxed);
        }
    }

    /// Reports a visible change of endpoints with the time of its cause.
    fn report_programmed(&mut self, of: &ObjectKey, cause: SinceEpoch) {
        let Some(name) = self.slices.service(of) else { return };
        let service = self.index.services.get(name);
        if let Some(target) = service.as_ref().and_then(|service| service.target()) {
            self.observer.programmed(*target == Target::Headless, cause);
        }
    }

    /// Publishes services at the end of an initial list; `is_last` if all kinds except pods are
    /// synced.
    fn publish_initial(&mut self, list: Kind, is_last: bool) {
        let Some(mut initial) = self.initial.take() else { return };
        let index = self.index.clone();
        let _changing = index.serials.changing();
        let directories = ServiceSet::ALL.map(|which| which.of(&index));
        let is_new = if is_last {
            initial
                .into_iter()
                .zip(directories)
                .for_each(|(initial, directory)| initial.publish_complete(directory));
            self.new_namespaces.clear();
            true
        } else {
            let shown = initial
                .iter_mut()
                .zip(directories)
                .map(|(initial, directory)| initial.publish(directory, list));
            let is_new = shown.fold(false, |any, is_new| any | is_new);
            self.initial = Some(initial);
            is_new
        };
        if is_new {
            self.changed();
        }
    }

    /// Ends a list, complete or not: applies collected changes, and removes the objects `gone`.
    fn end_list(&mut self, kind: Kind, gone: Vec<Arc<ObjectKey>>, is_last: bool) {
        if kind == Kind::Slice {
            let index = self.index.clone();
            let _changing = index.serials.changing();
            let changes = self.slices.take_collected(gone);
            self.apply_changes(changes);
        } else if kind == Kind::Namespace {
            let index = self.index.clone();
            let _changing = index.serials.changing();
            self.remove_namespaces(&gone);
        } else {
            gone.iter().for_each(|key| self.set(kind, key, None));
        }
        self.listing &= !bit(kind);
        self.publish_initial(kind, is_last);
        self.add_inline_services();
    }

    fn set(&mut self, kind: Kind, key: &Arc<ObjectKey>, object: Option<Object>) {
        let index = self.index.clone();
        let _changing = index.serials.changing();
        match (kind, object) {
            (_, Some(Object::Service(service))) => self.set_object(ServiceSet::Services, key, Some(service)),
            (_, Some(Object::ServiceImport(import))) => {
                let objects::ServiceImport { key: own, target, ports } = import;
                let service = objects::Service { key: own, target, ports, external: Box::default() };
                self.set_object(ServiceSet::Imports, key, Some(service));
            }
            (_, Some(Object::Slice(slice))) => {
                let cause = slice.changed.filter(|_| self.listing & bit(Kind::Slice) == 0);
                self.set_slice(key, slice);
                match cause {
                    Some(cause) if self.is_collecting() => self.causes.push((key.clone(), cause)),
                    Some(cause) => self.report_programmed(key, cause),
                    None => {}
                }
            }
            (_, Some(Object::Namespace(name))) => self.set_namespace(&name, true),
            (_, Some(Object::Pod(pod))) => self.set_pod(key, Some(pod)),
            (Kind::Service, None) => self.set_object(ServiceSet::Services, key, None),
            (Kind::ServiceImport, None) => self.set_object(ServiceSet::Imports, key, None),
            (Kind::Slice, None) => {
                let gone = self.slices.remove(key, self.is_collecting());
                self.apply_changes(gone);
            }
            (Kind::Namespace, None) => self.remove_namespaces(slice::from_ref(key)),
            (Kind::Pod, None) => self.set_pod(key, None),
        }
    }
}

impl Sink for IndexWriter {
    fn begin_batch(&mut self, kind: Kind) {
        self.batching |= bit(kind);
    }

    fn end_batch(&mut self, kind: Kind) {
        self.batching &= !bit(kind);
        if kind == Kind::Slice {
            self.apply_collected();
        }
    }

    fn begin(&mut self, kind: Kind) {
        self.end_list(kind, Vec::new(), false);
        self.lists[kind as usize] = self.lists[kind as usize].wrapping_add(1);
        self.listing |= bit(kind);
        self.skipped[kind as usize] = None;
    }

    fn apply(&mut self, object: Object) {
        let kind = object.kind();
        let key = self.shared_key(kind, key_of(&object));
        if self.account(kind, &key, bytes_of(&object)) {
            self.set(kind, &key, Some(object));
        }
        self.update_count(kind);
    }

    fn delete(&mut self, kind: Kind, key: ObjectKey) {
        let key = self.shared_key(kind, Arc::new(key));
        self.forget_object(kind, &key);
        self.set(kind, &key, None);
        self.update_count(kind);
    }

    fn complete(&mut self, kind: Kind) {
        let list = self.lists[kind as usize];
        let gone: Vec<_> = self.objects[kind as usize].extract_if(|_, seen| seen.list != list).collect();
        self.bytes -= gone.iter().map(|(_, seen)| seen.bytes as usize).sum::<usize>();
        let is_last = self.index.unsynced().0 & !bit(kind) & !bit(Kind::Pod) == 0;
        self.end_list(kind, gone.into_iter().map(|(key, _)| key).collect(), is_last);
        self.update_count(kind);
        if self.skipped[kind as usize].is_none() {
            self.index.synced.add(bit(kind));
        }
        self.observer.complete(kind);
    }

    fn watching(&mut self, kind: Kind) {
        self.index.connected.add(bit(kind));
        self.observer.watching(kind);
    }

    fn failed(&mut self, kind: Kind, why: &WatchError) {
        self.index.connected.remove(bit(kind));
        self.end_list(kind, Vec::new(), false);
        self.observer.failed(kind, why);
    }

    fn invalid(&mut self, kind: Kind, what: &DecodeError) {
        self.observer.invalid(kind, what);
    }

    fn needs_relist(&mut self, kind: Kind) -> bool {
        // Without space for the smallest skipped object, each list would skip the same objects
        // again.
        let would_fit =
            self.skipped[kind as usize].is_some_and(|skipped| self.bytes + skipped <= self.max_bytes);
        would_fit
            && self.listing & bit(kind) == 0
            && self.bytes < self.max_bytes / RELIST_BELOW.1 * RELIST_BELOW.0
    }

    fn request_done(&mut self, asked: &RequestMetrics<'_>) {
        self.observer.request_done(asked);
    }
}

/// Returns the second label of a service's name.
fn namespace_of(name: &[u8]) -> &[u8] {
    name.first().and_then(|length| name.get(usize::from(*length) + 2..)).unwrap_or_default()
}

/// Fraction of the memory limit below which skipped objects are listed again.
const RELIST_BELOW: (usize, usize) = (7, 8);
#[cfg(test)]
impl IndexWriter {
    /// Changes the memory limit.
    pub(super) fn with_limit(mut self, max_bytes: usize) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Returns the estimated memory of all objects.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether no object is left.
    pub(super) fn is_empty(&self) -> bool {
        let seen = self.objects.iter().all(HashMap::is_empty);
        seen && self.bytes == 0
            && self.slices.is_empty()
            && self.pods.is_empty()
            && self.namespaces.is_empty()
    }
}
