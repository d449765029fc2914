//! The index: what questions in a cluster's zone find. Written by the one who follows the API, read by every worker at once,
//! none of whom waits.
//!
//! ```text
//! (namespace, service) -> cell with A and AAAA of it
//! (namespace, service) -> bucket -> service with its endpoints
//! (address, how it is had) -> bucket -> hashes of services' names, looked up as above
//! namespace, pod       -> bucket
//! ```
//! Once the first lists are there, a change of one object costs its service with its cell, and the buckets that this and the addresses
//! that came or went lie in; a namespace that services lie in, a look at all cells when it goes, and at all services when it comes.

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

use cow_map::{BucketView, Buckets};
use kind_set::Kinds;
use kubernetes_api::objects::{self, Kind, Pod, Slice};
use kubernetes_api::settings::Wants;
use service_index::hash_of_had;
use soa_serial::Serials;

pub(crate) use dns_label::key;
use inline_service::Entries;
pub(crate) use inline_service::ServiceEntry;
use service::Has;
pub(crate) use service::{At, Leads, Namespace, Service};
pub use soa_serial::Now;
pub(crate) use soa_serial::{Listed, Listing};
pub use writer::{Watcher, Writer};

/// By names that are chosen by strangers.
type HashMap<K, V> = hashbrown::HashMap<K, V, foldhash::fast::RandomState>;
type HashSet<K> = hashbrown::HashSet<K, foldhash::fast::RandomState>;

/// Something that an index knows.
pub(crate) enum Known<'k> {
    Service(&'k objects::Service),
    Import(&'k objects::Service),
    Slice(&'k Slice),
    Namespace(&'k str),
    Pod(&'k Pod),
}

/// What is known of a cluster.
pub struct Index {
    /// Services of the cluster.
    pub(crate) services: Directory,
    /// Those of a set of clusters.
    pub(crate) imports: Directory,
    namespaces: Buckets<Arc<Namespace>>,
    pods: Buckets<PodEntry>,
    /// Which kinds are wanted, a bit for each.
    wanted: u8,
    /// Those of which a list has been whole once.
    known: Kinds,
    /// Those whose changes are heard just now.
    followed: Kinds,
    serials: Serials,
    /// How often something changed.
    changes: AtomicU64,
    /// How many objects of each kind there are.
    counts: [AtomicUsize; Kind::ALL.len()],
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("serial", &self.serial()).finish_non_exhaustive()
    }
}

/// A pod that stands for others: an address may be that of as many as who may write pods likes.
#[derive(Clone)]
pub(crate) struct PodEntry {
    address: IpAddr,
    role: PodRole,
    pod: Arc<Pod>,
}

/// What a pod says of its address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PodRole {
    /// At the hash of the address: one pod that has it. Whether it is certain that whoever asks from there is of its namespace.
    Any { certain: bool },
    /// At the hash of address and namespace, where that is not the namespace of the former: one of that namespace has it.
    OfNamespace,
}

/// Kinds that are wanted, and of which no list has been whole yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown(u8);

/// Services by name, and by the addresses that lead back to them.
pub(crate) struct Directory {
    /// Of those that are found and few addresses stand at, where there is room.
    entries: Entries,
    by_name: Buckets<Arc<Service>>,
    /// The hash of a service's name at the hash of each of its addresses and of how it has it: whose address it is, the service
    /// itself says. Buckets of numbers are copied without a look at anything else.
    by_address: Buckets<u64>,
}

impl Index {
    /// Nothing known yet of what `wants` says; `now` reads the time as other machines have it.
    pub fn new(wants: &Wants, now: Now) -> Self {
        Self {
            services: Directory::new(BUCKETS),
            imports: Directory::new(if wants.imports { BUCKETS } else { 1 }),
            namespaces: Buckets::new(FEW_BUCKETS),
            pods: Buckets::new(if wants.pods.is_some() { BUCKETS } else { 1 }),
            wanted: wants.kinds().fold(0, |all, kind| all | bit(kind)),
            known: Kinds::none(),
            followed: Kinds::none(),
            serials: Serials::new(now),
            changes: AtomicU64::new(0),
            counts: Default::default(),
        }
    }

    /// What is not known yet. To be asked for before anything is looked up: what is not found then, though everything was
    /// known before, is not there.
    #[inline]
    pub fn unknown(&self) -> Unknown {
        Unknown(self.wanted & !self.known.bits())
    }

    /// Everything that is wanted.
    fn wanted(&self) -> Unknown {
        Unknown(self.wanted)
    }

    /// How many objects of a kind are known.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize].load(Relaxed)
    }

    /// Whether changes of a kind are heard just now.
    pub fn is_followed(&self, kind: Kind) -> bool {
        self.followed.bits() & bit(kind) != 0
    }

    /// The serial of its zones.
    pub fn serial(&self) -> u32 {
        self.serials.shown()
    }

    /// Every service, at one serial, that of now or of a list that is read: whatever changes after that has another one. The thread
    /// that asks gathers them, and holds the writer's lock meanwhile: the one writer, and whoever asks as well, waits for that once a
    /// second at most.
    pub(crate) fn listing(&self) -> Arc<Listing> {
        self.serials.listing(|| [&self.services, &self.imports].map(Directory::in_order))
    }

    /// How often something changed that a snapshot has.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Every object that answers are made of; what changes meanwhile comes as it was or as it is.
    pub(crate) fn each(&self, tell: &mut dyn FnMut(Known<'_>)) {
        self.namespaces.each(|namespace| {
            if let Ok(name) = str::from_utf8(&namespace.name) {
                tell(Known::Namespace(name));
            }
        });
        for (directory, is_import) in [(&self.services, false), (&self.imports, true)] {
            directory.by_name.each(|service| {
                let known = if is_import { Known::Import } else { Known::Service };
                service.object.iter().for_each(|object| tell(known(object)));
                service.slices.iter().for_each(|slice| tell(Known::Slice(slice)));
            });
        }
        self.pods.each(|entry| {
            let stands_at = |address: &&IpAddr| {
                self.pod_of(**address, &entry.pod.key.namespace).is_some_and(|pod| pod.key == entry.pod.key)
            };
            // At the first of its addresses that it stands for others at.
            if entry.pod.addresses.iter().find(stands_at) == Some(&entry.address) {
                tell(Known::Pod(&entry.pod));
            }
        });
    }

    /// Whether the API has this namespace; `name` in lower case.
    pub(crate) fn has_namespace(&self, name: &[u8]) -> bool {
        self.namespaces.of(hash_of(name)).find(|namespace| *namespace.name == *name).is_some()
    }

    /// The pod that asks from `address`, where its namespace is beyond doubt: all pods that have it are of one namespace, run,
    /// will not be deleted, and do not share it with their node; and all pods are known, and their changes heard.
    ///
    /// An address is another pod's as soon as its pod has ended, which may be before the API says so: one that is to be
    /// deleted may have lost it already.
    pub fn certain_pod(&self, address: IpAddr) -> Option<Arc<Pod>> {
        if !self.is_followed(Kind::Pod) || self.known.bits() & bit(Kind::Pod) == 0 {
            return None;
        }
        let found = self.pods.of(hash_of_address(address));
        let entry = found.find(|entry| entry.address == address && entry.role != PodRole::OfNamespace)?;
        (entry.role == PodRole::Any { certain: true }).then(|| entry.pod.clone())
    }

    /// A pod of this namespace that has an address; its name in any case.
    pub(crate) fn pod_of(&self, address: IpAddr, namespace: &str) -> Option<Arc<Pod>> {
        let namespace = namespace.to_ascii_lowercase();
        let is_it = |entry: &PodEntry| {
            entry.address == address && entry.pod.key.namespace.eq_ignore_ascii_case(&namespace)
        };
        let any = self.pods.of(hash_of_address(address));
        if let Some(entry) = any.find(is_it) {
            return Some(entry.pod.clone());
        }
        self.pods.of(hash_of_pod(address, &namespace)).find(is_it).map(|entry| entry.pod.clone())
    }
}

impl Unknown {
    /// Whether every kind has been known once: from then on answers are whole, and stay so while the API is not heard.
    #[inline]
    pub fn is_nothing(self) -> bool {
        self.0 == 0
    }

    /// The kinds.
    pub fn kinds(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(move |kind| self.0 & bit(*kind) != 0)
    }

    /// The first of these kinds that is among them.
    pub(crate) fn first_of(self, kinds: &[Kind]) -> Option<Kind> {
        self.kinds().find(|kind| kinds.contains(kind))
    }
}

impl Directory {
    fn new(count: usize) -> Self {
        Self { entries: Entries::new(count), by_name: Buckets::new(count), by_address: Buckets::new(count) }
    }

    /// The service of this name in short, where it is one that is found and few addresses stand there.
    #[inline]
    pub(crate) fn entry(&self, key: &[u8]) -> Option<ServiceEntry> {
        self.entries.get(hash_of(key), key)
    }

    /// Where the service of this name is, if there is one: [`named`] finds it there.
    pub(crate) fn of_name(&self, key: &[u8]) -> BucketView<Arc<Service>> {
        self.by_name.of(hash_of(key))
    }

    /// The service of this name.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Arc<Service>> {
        named(&self.of_name(key), key).cloned()
    }

    /// The services that an address leads back to, by name. Of more than a message has room for that are reached there from
    /// outside, and of more that have an endpoint there, those that came first.
    pub(crate) fn of_address(&self, address: IpAddr) -> Vec<Arc<Service>> {
        let mut services = Vec::new();
        for has in Has::ALL {
            let most = services.len() + MOST_OF_ADDRESS;
            for name in self.by_address.of(hash_of_had(has, address)).iter() {
                let named = self.by_name.of(*name);
                services.extend(named.iter().filter(|service| service.has(address)).cloned());
                if services.len() >= most {
                    break;
                }
            }
        }
        services.sort_by(|one, other| one.key().cmp(other.key()));
        // Two names may have one hash.
        services.dedup_by(|one, other| one.key() == other.key());
        services
    }
}

/// The service of this name.
pub(crate) fn named<'f>(found: &'f BucketView<Arc<Service>>, key: &[u8]) -> Option<&'f Arc<Service>> {
    found.find(|service| service.key() == key)
}

fn hash_of_address(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => hash_of(&address.octets()),
        IpAddr::V6(address) => hash_of(&address.octets()),
    }
}

/// Of an address and a namespace in lower case.
fn hash_of_pod(address: IpAddr, namespace: &str) -> u64 {
    hash_of(namespace.as_bytes()).rotate_left(1) ^ hash_of_address(address)
}

fn bit(kind: Kind) -> u8 {
    const { assert!(Kind::ALL.len() <= u8::BITS as usize) };
    1 << kind as u8
}

/// Of services, addresses and pods: with 10,000 services most have one or none, with 100,000 endpoints six.
const BUCKETS: usize = 16_384;
/// Records of 32 octets that fill the largest message.
const MOST_OF_ADDRESS: usize = 2_048;
/// Of namespaces.
const FEW_BUCKETS: usize = 256;

// Not in the file itself, which `models/` compiles as well.
#[cfg(test)]
#[path = "seqlock_table/tests.rs"]
mod seqlock_table_tests;
#[cfg(test)]
mod tests;
