//! Pods by their addresses, and which of them stand for the others.
//!
//! Pods of the host's network share an address, and who may write a pod's status can give as many as he likes the same one. A
//! bucket is copied for each change: it holds one pod of each namespace that has the address, at most.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use kubernetes_api::objects::{ObjectKey, Pod};

use super::{Buckets, HashMap, PodEntry, PodRole, hash_of_address, hash_of_pod};

/// Every pod at each of its addresses.
#[derive(Default)]
pub(super) struct Addresses {
    /// Those of one address stand together, and there those of one namespace.
    pods: BTreeMap<(IpAddr, Arc<ObjectKey>), Arc<Pod>>,
    /// How many of an address's pods say that another may ask from it.
    doubtful: HashMap<IpAddr, usize>,
}

impl Addresses {
    /// Puts a pod to its address, or takes it away, and lets the index say so.
    pub(super) fn set(
        &mut self,
        buckets: &Buckets<PodEntry>,
        address: IpAddr,
        key: &Arc<ObjectKey>,
        pod: Option<Arc<Pod>>,
    ) {
        let place = (address, key.clone());
        let old = match pod.clone() {
            Some(pod) => self.pods.insert(place, pod),
            None => self.pods.remove(&place),
        };
        let is_doubtful = |pod: &Option<Arc<Pod>>| {
            pod.as_ref().is_some_and(|pod| !pod.running || pod.terminating || pod.host_network)
        };
        let doubtful = self.doubtful.get(&address).copied().unwrap_or_default();
        match doubtful + usize::from(is_doubtful(&pod)) - usize::from(is_doubtful(&old)) {
            0 => _ = self.doubtful.remove(&address),
            doubtful => _ = self.doubtful.insert(address, doubtful),
        }
        self.tell(buckets, address, key);
    }

    /// Lets the index say what it is to say of an address, and of the namespace of what changed there.
    fn tell(&self, buckets: &Buckets<PodEntry>, address: IpAddr, changed: &ObjectKey) {
        let first = self.from(address, "");
        let namespace = |pod: &Pod| pod.key.namespace.clone();
        let first_of_all = first.map(|pod| namespace(pod));
        let is_certain = first.is_some_and(|first| {
            let others = (address, Arc::new(after(&first.key.namespace)));
            let of_others = self.pods.range(others..).next();
            !self.doubtful.contains_key(&address) && of_others.is_none_or(|((other, _), _)| *other != address)
        });
        let role = PodRole::Any { certain: is_certain };
        let entry = first.map(|pod| PodEntry { address, role, pod: pod.clone() });
        let is_any = |entry: &PodEntry| entry.address == address && entry.role != PodRole::OfNamespace;
        let hash = hash_of_address(address);
        let before =
            buckets.of(hash).find(is_any).map(|entry| (namespace(&entry.pod), entry.role, entry.pod.clone()));
        let is_as_it_was = match (&before, &entry) {
            (Some((_, role, pod)), Some(entry)) => *role == entry.role && Arc::ptr_eq(pod, &entry.pod),
            (None, None) => true,
            _ => false,
        };
        // A namespace that is the first now, or was it until now, has its entry elsewhere; it comes before the other goes.
        let before =
            before.map(|(namespace, ..)| namespace).filter(|before| Some(before) != first_of_all.as_ref());
        for namespace in [Some(&changed.namespace), before.as_ref()].into_iter().flatten() {
            if Some(namespace) != first_of_all.as_ref() {
                self.tell_namespace(buckets, address, namespace, true);
            }
        }
        if !is_as_it_was {
            buckets.set(hash, is_any, entry);
        }
        if let Some(first) = &first_of_all {
            self.tell_namespace(buckets, address, first, false);
        }
    }

    fn tell_namespace(&self, buckets: &Buckets<PodEntry>, address: IpAddr, namespace: &str, is_there: bool) {
        let pod = self.from(address, namespace);
        let pod = pod.filter(|pod| is_there && *pod.key.namespace == *namespace);
        let hash = hash_of_pod(address, &namespace.to_ascii_lowercase());
        let is_it = |entry: &PodEntry| {
            let is_of = entry.address == address && *entry.pod.key.namespace == *namespace;
            is_of && entry.role == PodRole::OfNamespace
        };
        let is_as_it_was = match (buckets.of(hash).find(is_it), pod) {
            (Some(entry), Some(pod)) => Arc::ptr_eq(&entry.pod, pod),
            (None, None) => true,
            _ => false,
        };
        if !is_as_it_was {
            let role = PodRole::OfNamespace;
            buckets.set(hash, is_it, pod.map(|pod| PodEntry { address, role, pod: pod.clone() }));
        }
    }

    /// The first pod of an address in this namespace or one behind it.
    fn from(&self, address: IpAddr, namespace: &str) -> Option<&Arc<Pod>> {
        let start = ObjectKey { namespace: namespace.into(), name: Box::default() };
        let mut pods = self.pods.range((address, Arc::new(start))..);
        pods.next().filter(|((other, _), _)| *other == address).map(|(_, pod)| pod)
    }
}

/// Behind every pod of a namespace, and before those of all behind it.
fn after(namespace: &str) -> ObjectKey {
    ObjectKey { namespace: format!("{namespace}\0").into(), name: Box::default() }
}

#[cfg(test)]
mod tests;
