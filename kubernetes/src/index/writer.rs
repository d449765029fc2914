//! Puts what the API tells into the index.

mod namespaces;

use std::mem;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::endpoint_slices::{Changes, Slices};
use super::initial_sync::FirstServices;
use super::memory_accounting::{key_of, octets_of};
use super::pods::Addresses;
use super::service::{Namespace, Naming, Service};
use super::service_index::Which;
use super::{HashMap, HashSet, Index, bit, key};
use kubernetes_api::objects::{self, Kind, Object, ObjectKey, Pod, SinceEpoch, Slice, Target};
use kubernetes_api::settings::{Lost, Wants};
use kubernetes_api::{Asked, Sink, Unreadable};

/// The one who changes an index.
pub struct Writer {
    index: Arc<Index>,
    pod_names: bool,
    watcher: Box<dyn Watcher>,
    /// Of each kind, what is known.
    seen: [HashMap<Arc<ObjectKey>, Seen>; Kind::ALL.len()],
    /// Octets of all of it, and how many there may be.
    octets: usize,
    most_octets: usize,
    /// Of each kind, what the smallest object takes that found no room since its last list began; `None` where all did. What is not
    /// known of a kind of which one found none may be there.
    refused: [Option<usize>; Kind::ALL.len()],
    /// How many lists of each kind have begun.
    lists: [u32; Kind::ALL.len()],
    /// Kinds of which a list is coming.
    listing: u8,
    /// Kinds of which more may be at hand, and what caused changes of endpoints that wait for that.
    gathering: u8,
    causes: Vec<(Arc<ObjectKey>, SinceEpoch)>,
    slices: Slices,
    pods: HashMap<Arc<ObjectKey>, Arc<Pod>>,
    addresses: Addresses,
    /// Those that the API has and those that services lie in, with how many lie there.
    namespaces: HashMap<Vec<u8>, (Arc<Namespace>, usize)>,
    /// The names of those that came and that services lie in, whose entries are missing yet.
    new_namespaces: HashSet<Box<[u8]>>,
    /// Services, and imports, until every kind but pods is known. Before that endpoints' addresses lead back to none of them: nobody
    /// may know yet what else they lead to.
    first: Option<[FirstServices; 2]>,
}

/// An object that the API has told of.
#[derive(Clone, Copy)]
struct Seen {
    /// In which of the lists of its kind it came last.
    list: u32,
    octets: u32,
}

/// Who hears what becomes of an index.
pub trait Watcher: Send {
    /// A change of endpoints can be asked for; when what caused it happened.
    fn programmed(&mut self, _headless: bool, _cause: SinceEpoch) {}

    /// Something was heard of an object.
    fn heard(&mut self) {}

    /// Every object of a kind is known.
    fn complete(&mut self, _kind: Kind) {}

    /// Changes come from now on.
    fn following(&mut self, _kind: Kind) {}

    /// No changes come until `following`.
    fn lost(&mut self, _kind: Kind, _why: &Lost) {}

    /// An object that makes no sense was left out.
    fn unreadable(&mut self, _kind: Kind, _what: &Unreadable) {}

    /// An object was left out, for all together would have more than so many octets.
    fn crowded(&mut self, _kind: Kind, _most_octets: usize) {}

    /// A request came to its end.
    fn asked(&mut self, _asked: &Asked<'_>) {}
}

/// Nobody.
impl Watcher for () {}

impl Writer {
    /// The writer of `index`: it has no other. What all objects together may take, about, is `most_octets`.
    pub fn new(index: Arc<Index>, wants: &Wants, most_octets: usize, watcher: Box<dyn Watcher>) -> Self {
        Self {
            index,
            pod_names: wants.pod_names,
            watcher,
            seen: Default::default(),
            octets: 0,
            most_octets,
            refused: Default::default(),
            lists: [0; Kind::ALL.len()],
            listing: 0,
            gathering: 0,
            causes: Vec::new(),
            slices: Slices::default(),
            pods: HashMap::default(),
            addresses: Addresses::default(),
            namespaces: HashMap::default(),
            new_namespaces: HashSet::default(),
            first: Some(Default::default()),
        }
    }

    /// Puts in what a snapshot has, as lists of all kinds: it counts until the next ones, and nobody hears of it.
    pub fn restore(&mut self, objects: impl Iterator<Item = Object>) {
        let watcher = mem::replace(&mut self.watcher, Box::new(()));
        let kinds: Vec<_> = self.index.wanted().kinds().collect();
        kinds.iter().for_each(|kind| self.begin(*kind));
        objects.filter(|object| kinds.contains(&object.kind())).for_each(|object| self.apply(object));
        kinds.iter().for_each(|kind| self.complete(*kind));
        self.watcher = watcher;
    }

    fn changed(&self) {
        self.index.changes.fetch_add(1, Relaxed);
        self.index.serials.changed();
    }

    /// Counts an object in, if there is room for it; what was known of it stays where there is none.
    fn see(&mut self, kind: Kind, key: &Arc<ObjectKey>, octets: usize) -> bool {
        let (list, seen) = (self.lists[kind as usize], &mut self.seen[kind as usize]);
        let known = seen.get_mut(key);
        let before = known.as_ref().map_or(0, |known| known.octets as usize);
        let has_room = self.octets - before + octets <= self.most_octets;
        if !has_room {
            let refused = &mut self.refused[kind as usize];
            *refused = Some(refused.map_or(octets, |least| least.min(octets)));
        }
        let octets = if has_room { octets } else { before };
        self.octets = self.octets - before + octets;
        // An object has a few MiB at most.
        let now = Seen { list, octets: octets as u32 };
        match known {
            Some(known) => *known = now,
            None if has_room => _ = seen.insert(key.clone(), now),
            None => {}
        }
        if !has_room {
            self.index.known.remove(bit(kind));
            self.watcher.crowded(kind, self.most_octets);
        }
        has_room
    }

    /// A key as it is kept: every table shares one.
    fn known_key(&self, kind: Kind, key: Arc<ObjectKey>) -> Arc<ObjectKey> {
        let known = self.seen[kind as usize].get_key_value(&key);
        known.map_or(key, |(known, _)| known.clone())
    }

    fn unsee(&mut self, kind: Kind, key: &ObjectKey) {
        if let Some(seen) = self.seen[kind as usize].remove(key) {
            self.octets -= seen.octets as usize;
        }
    }

    fn tell_count(&mut self, kind: Kind) {
        self.index.counts[kind as usize].store(self.seen[kind as usize].len(), Relaxed);
        self.watcher.heard();
    }

    fn set_object(&mut self, which: Which, of: &ObjectKey, object: Option<objects::Service>) {
        let Some(name) = key(&of.name, &of.namespace) else { return };
        let old = self.service(which, &name);
        let slices = match &old {
            Some(old) if old.object.as_deref() == object.as_ref() => return,
            Some(old) => old.slices.clone(),
            None => Box::default(),
        };
        self.put(which, name, old, object.map(Arc::new), slices, which.kind());
    }

    /// Takes a slice that the API has told of.
    fn come(&mut self, of: &Arc<ObjectKey>, slice: Slice) {
        let changes = self.slices.come(of, slice, self.gathers(), self.first.is_some());
        self.hand_over(changes);
    }

    /// Whether more slices come that are put in together with those before.
    fn gathers(&self) -> bool {
        (self.listing | self.gathering) & bit(Kind::Slice) != 0
    }

    /// Puts in what was gathered, but for a list that is coming.
    fn hand_over_gathered(&mut self) {
        if self.listing & bit(Kind::Slice) == 0 && self.slices.has_gathered() {
            let index = self.index.clone();
            let _changing = index.serials.changing();
            let changes = self.slices.told(Vec::new());
            self.hand_over(changes);
        }
        for (of, cause) in mem::take(&mut self.causes) {
            self.tell_programmed(&of, cause);
        }
    }

    /// Gives services their slices, those that changed and those that are left, each service all at once.
    fn hand_over(&mut self, changes: Changes) {
        for (which, changes) in Which::ALL.into_iter().zip(changes) {
            for (name, change) in changes {
                let old = self.service(which, &name);
                let slices = change.of(old.as_ref().map(|old| &*old.slices).unwrap_or_default());
                let object = old.as_ref().and_then(|old| old.object.clone());
                self.put(which, name, old, object, slices, Kind::Slice);
            }
        }
    }

    /// A service as it was put last.
    fn service(&self, which: Which, name: &[u8]) -> Option<Arc<Service>> {
        match &self.first {
            Some(first) => first[which as usize].get(name),
            None => which.of(&self.index).get(name),
        }
    }

    /// Puts a service in place of the one that was, for the sake of an object of this kind; nothing where neither its own object
    /// nor a slice is left.
    fn put(
        &mut self,
        which: Which,
        name: Arc<[u8]>,
        old: Option<Arc<Service>>,
        object: Option<Arc<objects::Service>>,
        slices: Box<[Arc<Slice>]>,
        kind: Kind,
    ) {
        let is_left = object.is_some() || !slices.is_empty();
        let namespace = match &old {
            Some(old) if is_left => old.namespace.clone(),
            _ => self.lie_in(namespace_of(&name), old.is_some(), is_left),
        };
        let naming = Naming { pods: self.pod_names, clusters: matches!(which, Which::Imports) };
        let new = is_left.then(|| Arc::new(Service::new(&name, namespace, object, slices, naming)));
        if let Some(first) = &mut self.first {
            let ahead = (self.listing & bit(kind) != 0).then_some(kind);
            first[which as usize].set(name.clone(), new.clone(), ahead);
            if ahead.is_some() {
                return;
            }
        }
        which.of(&self.index).replace(&name, old.as_deref(), new, self.first.is_none());
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

    /// Says since when a change of endpoints was to come here, if that is told.
    fn tell_programmed(&mut self, of: &ObjectKey, cause: SinceEpoch) {
        let Some(name) = self.slices.service(of) else { return };
        let service = self.index.services.get(name);
        if let Some(target) = service.as_ref().and_then(|service| service.target()) {
            self.watcher.programmed(*target == Target::Headless, cause);
        }
    }

    /// Shows what waited for the end of this list, one of the first ones; `is_last` where no kind is waited for.
    fn show_first(&mut self, list: Kind, is_last: bool) {
        let Some(mut first) = self.first.take() else { return };
        let index = self.index.clone();
        let _changing = index.serials.changing();
        let directories = Which::ALL.map(|which| which.of(&index));
        let is_new = if is_last {
            first.into_iter().zip(directories).for_each(|(first, directory)| first.show_whole(directory));
            self.new_namespaces.clear();
            true
        } else {
            let shown =
                first.iter_mut().zip(directories).map(|(first, directory)| first.show(directory, list));
            let is_new = shown.fold(false, |any, is_new| any | is_new);
            self.first = Some(first);
            is_new
        };
        if is_new {
            self.changed();
        }
    }

    /// Where a list ends, whole or not: what it has told is put in, and what is gone by it is not there any more.
    fn end_list(&mut self, kind: Kind, gone: Vec<Arc<ObjectKey>>, is_last: bool) {
        if kind == Kind::Slice {
            let index = self.index.clone();
            let _changing = index.serials.changing();
            let changes = self.slices.told(gone);
            self.hand_over(changes);
        } else if kind == Kind::Namespace {
            let index = self.index.clone();
            let _changing = index.serials.changing();
            self.lose_namespaces(&gone);
        } else {
            gone.iter().for_each(|key| self.set(kind, key, None));
        }
        self.listing &= !bit(kind);
        self.show_first(kind, is_last);
        self.show_namespaces();
    }

    fn set(&mut self, kind: Kind, key: &Arc<ObjectKey>, object: Option<Object>) {
        let index = self.index.clone();
        let _changing = index.serials.changing();
        match (kind, object) {
            (_, Some(Object::Service(service))) => self.set_object(Which::Services, key, Some(service)),
            (_, Some(Object::ServiceImport(import))) => {
                let objects::ServiceImport { key: own, target, ports } = import;
                let service = objects::Service { key: own, target, ports, external: Box::default() };
                self.set_object(Which::Imports, key, Some(service));
            }
            (_, Some(Object::Slice(slice))) => {
                let cause = slice.changed.filter(|_| self.listing & bit(Kind::Slice) == 0);
                self.come(key, slice);
                match cause {
                    Some(cause) if self.gathers() => self.causes.push((key.clone(), cause)),
                    Some(cause) => self.tell_programmed(key, cause),
                    None => {}
                }
            }
            (_, Some(Object::Namespace(name))) => self.tell_namespace(&name, true),
            (_, Some(Object::Pod(pod))) => self.set_pod(key, Some(pod)),
            (Kind::Service, None) => self.set_object(Which::Services, key, None),
            (Kind::ServiceImport, None) => self.set_object(Which::Imports, key, None),
            (Kind::Slice, None) => {
                let gone = self.slices.without(key, self.gathers());
                self.hand_over(gone);
            }
            (Kind::Namespace, None) => self.lose_namespaces(slice::from_ref(key)),
            (Kind::Pod, None) => self.set_pod(key, None),
        }
    }
}

impl Sink for Writer {
    fn gather(&mut self, kind: Kind) {
        self.gathering |= bit(kind);
    }

    fn settle(&mut self, kind: Kind) {
        self.gathering &= !bit(kind);
        if kind == Kind::Slice {
            self.hand_over_gathered();
        }
    }

    fn begin(&mut self, kind: Kind) {
        self.end_list(kind, Vec::new(), false);
        self.lists[kind as usize] = self.lists[kind as usize].wrapping_add(1);
        self.listing |= bit(kind);
        self.refused[kind as usize] = None;
    }

    fn apply(&mut self, object: Object) {
        let kind = object.kind();
        let key = self.known_key(kind, key_of(&object));
        if self.see(kind, &key, octets_of(&object)) {
            self.set(kind, &key, Some(object));
        }
        self.tell_count(kind);
    }

    fn delete(&mut self, kind: Kind, key: ObjectKey) {
        let key = self.known_key(kind, Arc::new(key));
        self.unsee(kind, &key);
        self.set(kind, &key, None);
        self.tell_count(kind);
    }

    fn complete(&mut self, kind: Kind) {
        let list = self.lists[kind as usize];
        let gone: Vec<_> = self.seen[kind as usize].extract_if(|_, seen| seen.list != list).collect();
        self.octets -= gone.iter().map(|(_, seen)| seen.octets as usize).sum::<usize>();
        let is_last = self.index.unknown().0 & !bit(kind) & !bit(Kind::Pod) == 0;
        self.end_list(kind, gone.into_iter().map(|(key, _)| key).collect(), is_last);
        self.tell_count(kind);
        if self.refused[kind as usize].is_none() {
            self.index.known.add(bit(kind));
        }
        self.watcher.complete(kind);
    }

    fn following(&mut self, kind: Kind) {
        self.index.followed.add(bit(kind));
        self.watcher.following(kind);
    }

    fn lost(&mut self, kind: Kind, why: &Lost) {
        self.index.followed.remove(bit(kind));
        self.end_list(kind, Vec::new(), false);
        self.watcher.lost(kind, why);
    }

    fn unreadable(&mut self, kind: Kind, what: &Unreadable) {
        self.watcher.unreadable(kind, what);
    }

    fn wants_list(&mut self, kind: Kind) -> bool {
        // Where none fits all are refused again, and would be listed for without end.
        let finds_room =
            self.refused[kind as usize].is_some_and(|refused| self.octets + refused <= self.most_octets);
        finds_room
            && self.listing & bit(kind) == 0
            && self.octets < self.most_octets / ROOM_AGAIN.1 * ROOM_AGAIN.0
    }

    fn asked(&mut self, asked: &Asked<'_>) {
        self.watcher.asked(asked);
    }
}

/// The second label of a service's name.
fn namespace_of(name: &[u8]) -> &[u8] {
    name.first().and_then(|length| name.get(usize::from(*length) + 2..)).unwrap_or_default()
}

/// All room is filled up to seven eighths at most when what found no room is listed again.
const ROOM_AGAIN: (usize, usize) = (7, 8);
#[cfg(test)]
impl Writer {
    /// With room for so many octets.
    pub(super) fn within(mut self, most_octets: usize) -> Self {
        self.most_octets = most_octets;
        self
    }

    /// Octets of all objects, as they are counted.
    pub(super) fn octets(&self) -> usize {
        self.octets
    }

    /// Whether every object is forgotten.
    pub(super) fn holds_nothing(&self) -> bool {
        let seen = self.seen.iter().all(HashMap::is_empty);
        seen && self.octets == 0
            && self.slices.is_empty()
            && self.pods.is_empty()
            && self.namespaces.is_empty()
    }
}
