//! The index of a cluster's objects. One writer updates it; all workers read it without waiting.
//!
//! ```text
//! (namespace, service) -> slot with its A and AAAA data (seqlock table)
//! (namespace, service) -> bucket -> service with its endpoints (copy-on-write)
//! (address, role)      -> bucket -> hashes of services' names, looked up as above
//! namespace, pod       -> bucket
//! ```
//! After the initial lists, a change of an object replaces its service with its slot, the bucket of
//! the service, and the buckets of added and removed addresses. Removing a namespace that has
//! services scans all slots; adding one scans all services.

mod cow_map;
mod dns_label;
mod endpoint_slices;
mod initial_sync;
mod inline_service;
mod kind_set;
mod memory_accounting;
mod pods;
mod seqlock_table;
mod service;
mod service_index;
mod soa_serial;
mod writer;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use wire::hash_of;

use cow_map::{BucketView, CowMap};
use kind_set::KindSet;
use kubernetes_api::objects::{self, Kind, Pod, Slice};
use kubernetes_api::settings::WatchConfig;
use service_index::hash_of_role;
use soa_serial::SoaSerial;

pub(crate) use dns_label::key;
pub(crate) use inline_service::InlineService;
use inline_service::InlineServices;
use service::AddressRole;
pub(crate) use service::{AddressSource, Namespace, Service, SliceEndpoint};
pub use soa_serial::WallClock;
pub(crate) use soa_serial::{Listed, Listing};
pub use writer::{IndexObserver, IndexWriter};

/// Seeded per process, since names are untrusted.
type HashMap<K, V> = hashbrown::HashMap<K, V, foldhash::fast::RandomState>;
type HashSet<K> = hashbrown::HashSet<K, foldhash::fast::RandomState>;

/// An object in the index.
pub(crate) enum IndexedObject<'k> {
    Service(&'k objects::Service),
    Import(&'k objects::Service),
    Slice(&'k Slice),
    Namespace(&'k str),
    Pod(&'k Pod),
}

/// Index of a cluster's objects.
pub struct Index {
    /// Services.
    pub(crate) services: ServiceIndex,
    /// ServiceImports.
    pub(crate) imports: ServiceIndex,
    namespaces: CowMap<Arc<Namespace>>,
    pods: CowMap<PodEntry>,
    /// Bits of the watched kinds.
    watched: u8,
    /// Kinds of which a list has completed.
    synced: KindSet,
    /// Kinds with a connected watch.
    connected: KindSet,
    serials: SoaSerial,
    /// Number of changes, for snapshots.
    changes: AtomicU64,
    /// Number of objects of each kind.
    counts: [AtomicUsize; Kind::ALL.len()],
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("serial", &self.serial()).finish_non_exhaustive()
    }
}

/// A pod that represents all pods with its address; untrusted users may give many pods the same
/// address.
#[derive(Clone)]
pub(crate) struct PodEntry {
    address: IpAddr,
    role: PodRole,
    pod: Arc<Pod>,
}

/// Which pods an entry represents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PodRole {
    /// At the hash of the address: any pod with it. `certain`: clients at this address are in its
    /// namespace.
    Any { certain: bool },
    /// At the hash of address and namespace: a pod of another namespace than that of `Any`.
    OfNamespace,
}

/// Watched kinds of which no list has completed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsyncedKinds(u8);

/// Services by name and by address.
pub(crate) struct ServiceIndex {
    /// Existing services with few addresses, as far as there are slots.
    entries: InlineServices,
    by_name: CowMap<Arc<Service>>,
    /// Hash of address and role -> hash of the service's name. Collisions are resolved by comparing
    /// the service. Buckets of integers are copied without touching other memory.
    by_address: CowMap<u64>,
}

impl Index {
    /// Creates an empty index for the kinds of `wants`; `now` reads the wall clock.
    pub fn new(wants: &WatchConfig, now: WallClock) -> Self {
        Self {
            services: ServiceIndex::new(BUCKETS),
            imports: ServiceIndex::new(if wants.imports { BUCKETS } else { 1 }),
            namespaces: CowMap::new(NAMESPACE_BUCKETS),
            pods: CowMap::new(if wants.pods.is_some() { BUCKETS } else { 1 }),
            watched: wants.kinds().fold(0, |all, kind| all | bit(kind)),
            synced: KindSet::none(),
            connected: KindSet::none(),
            serials: SoaSerial::new(now),
            changes: AtomicU64::new(0),
            counts: Default::default(),
        }
    }

    /// Returns the kinds that are not synced. Call it before a lookup: if all kinds were synced, an
    /// object that is not found does not exist.
    #[inline]
    pub fn unsynced(&self) -> UnsyncedKinds {
        UnsyncedKinds(self.watched & !self.synced.bits())
    }

    /// Returns all watched kinds.
    fn watched(&self) -> UnsyncedKinds {
        UnsyncedKinds(self.watched)
    }

    /// Returns the number of objects of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize].load(Relaxed)
    }

    /// Whether the watch of a kind is connected.
    pub fn is_connected(&self, kind: Kind) -> bool {
        self.connected.bits() & bit(kind) != 0
    }

    /// Returns the SOA serial of the zones.
    pub fn serial(&self) -> u32 {
        self.serials.shown()
    }

    /// Returns all services at one serial, the current one or that of a listing in use; later
    /// changes get another serial. The calling thread collects them under the writer's lock, once a
    /// second at most.
    pub(crate) fn listing(&self) -> Arc<Listing> {
        self.serials.listing(|| [&self.services, &self.imports].map(ServiceIndex::sorted))
    }

    /// Returns the number of changes that affect a snapshot.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Calls `visit` for each object; concurrent changes may or may not be included.
    pub(crate) fn each(&self, visit: &mut dyn FnMut(IndexedObject<'_>)) {
        self.namespaces.each(|namespace| {
            if let Ok(name) = str::from_utf8(&namespace.name) {
                visit(IndexedObject::Namespace(name));
            }
        });
        for (directory, is_import) in [(&self.services, false), (&self.imports, true)] {
            directory.by_name.each(|service| {
                let known = if is_import { IndexedObject::Import } else { IndexedObject::Service };
                service.object.iter().for_each(|object| visit(known(object)));
                service.slices.iter().for_each(|slice| visit(IndexedObject::Slice(slice)));
            });
        }
        self.pods.each(|entry| {
            let is_representative = |address: &&IpAddr| {
                self.pod_of(**address, &entry.pod.key.namespace).is_some_and(|pod| pod.key == entry.pod.key)
            };
            // Once, at the first address that it represents.
            if entry.pod.addresses.iter().find(is_representative) == Some(&entry.address) {
                visit(IndexedObject::Pod(&entry.pod));
            }
        });
    }

    /// Whether the namespace exists; `name` in lower case.
    pub(crate) fn has_namespace(&self, name: &[u8]) -> bool {
        self.namespaces.of(hash_of(name)).find(|namespace| *namespace.name == *name).is_some()
    }

    /// Returns a pod with `address` if the namespace of clients at this address is certain: all
    /// pods with it are in one namespace, are running, are not being deleted, and do not use the
    /// host network; and pods are synced and connected.
    ///
    /// An address may belong to another pod as soon as its pod has ended, before the API reports
    /// it: a pod that is being deleted may have lost it already.
    pub fn certain_pod(&self, address: IpAddr) -> Option<Arc<Pod>> {
        if !self.is_connected(Kind::Pod) || self.synced.bits() & bit(Kind::Pod) == 0 {
            return None;
        }
        let found = self.pods.of(hash_of_address(address));
        let entry = found.find(|entry| entry.address == address && entry.role != PodRole::OfNamespace)?;
        (entry.role == PodRole::Any { certain: true }).then(|| entry.pod.clone())
    }

    /// Returns a pod of the namespace (in any case) with an address.
    pub(crate) fn pod_of(&self, address: IpAddr, namespace: &str) -> Option<Arc<Pod>> {
        let namespace = namespace.to_ascii_lowercase();
        let matches = |entry: &PodEntry| {
            entry.address == address && entry.pod.key.namespace.eq_ignore_ascii_case(&namespace)
        };
        let any = self.pods.of(hash_of_address(address));
        if let Some(entry) = any.find(matches) {
            return Some(entry.pod.clone());
        }
        self.pods.of(hash_of_pod(address, &namespace)).find(matches).map(|entry| entry.pod.clone())
    }
}

impl UnsyncedKinds {
    /// Whether all kinds are synced. Answers are complete from then on, also while the API is
    /// unreachable.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the kinds.
    pub fn kinds(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(move |kind| self.0 & bit(*kind) != 0)
    }

    /// Returns the first of these kinds that is not synced.
    pub(crate) fn first_of(self, kinds: &[Kind]) -> Option<Kind> {
        self.kinds().find(|kind| kinds.contains(kind))
    }
}

impl ServiceIndex {
    fn new(count: usize) -> Self {
        Self {
            entries: InlineServices::new(count),
            by_name: CowMap::new(count),
            by_address: CowMap::new(count),
        }
    }

    /// Returns the inline data of an existing service with few addresses.
    #[inline]
    pub(crate) fn entry(&self, key: &[u8]) -> Option<InlineService> {
        self.entries.get(hash_of(key), key)
    }

    /// Returns the bucket of a name, for [`named`].
    pub(crate) fn of_name(&self, key: &[u8]) -> BucketView<Arc<Service>> {
        self.by_name.of(hash_of(key))
    }

    /// Returns the service of a name.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Arc<Service>> {
        named(&self.of_name(key), key).cloned()
    }

    /// Returns the services with an address, sorted by name. For each role, at most as many as fit
    /// a message, in the order in which they were added.
    pub(crate) fn of_address(&self, address: IpAddr) -> Vec<Arc<Service>> {
        let mut services = Vec::new();
        for has in AddressRole::ALL {
            let max = services.len() + MAX_PER_ROLE;
            for name in self.by_address.of(hash_of_role(has, address)).iter() {
                let named = self.by_name.of(*name);
                services.extend(named.iter().filter(|service| service.has(address)).cloned());
                if services.len() >= max {
                    break;
                }
            }
        }
        services.sort_by(|one, other| one.key().cmp(other.key()));
        // Names may have the same hash.
        services.dedup_by(|one, other| one.key() == other.key());
        services
    }
}

/// Returns the service of a name in a bucket.
pub(crate) fn named<'f>(found: &'f BucketView<Arc<Service>>, key: &[u8]) -> Option<&'f Arc<Service>> {
    found.find(|service| service.key() == key)
}

fn hash_of_address(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => hash_of(&address.octets()),
        IpAddr::V6(address) => hash_of(&address.octets()),
    }
}

/// Returns the hash of an address and a namespace in lower case.
fn hash_of_pod(address: IpAddr, namespace: &str) -> u64 {
    hash_of(namespace.as_bytes()).rotate_left(1) ^ hash_of_address(address)
}

fn bit(kind: Kind) -> u8 {
    const { assert!(Kind::ALL.len() <= u8::BITS as usize) };
    1 << kind as u8
}

/// Number of buckets for services, addresses and pods: with 10,000 services most have one entry or
/// none, with 100,000 endpoints six. Unit tests drop hundreds of indexes, and dropping an `ArcSwap`
/// visits a slot of every thread.
const BUCKETS: usize = if cfg!(test) { 1_024 } else { 16_384 };
/// Services of an address and role: records of 32 bytes that fill the largest message.
const MAX_PER_ROLE: usize = 2_048;
/// Number of buckets for namespaces.
const NAMESPACE_BUCKETS: usize = 256;

// Not in the file itself, which the loom models compile as well.
#[cfg(test)]
#[path = "seqlock_table/tests.rs"]
mod seqlock_table_tests;
#[cfg(test)]
mod tests;
