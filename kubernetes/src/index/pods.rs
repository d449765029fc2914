//! Pods by address, and which pods represent an address in the index.
//!
//! Pods on the host network share an address, and a user who may write pod status can give any
//! number of pods the same one. A bucket is copied for each change, so that it has at most one pod
//! of each namespace for an address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use kubernetes_api::objects::{ObjectKey, Pod};

use super::{CowMap, HashMap, PodEntry, PodRole, hash_of_address, hash_of_pod};

/// All pods at each of their addresses.
#[derive(Default)]
pub(super) struct PodAddresses {
    /// Sorted by address, then by namespace.
    pods: BTreeMap<(IpAddr, Arc<ObjectKey>), Arc<Pod>>,
    /// For each address, the number of pods that make the clients at the address uncertain.
    uncertain: HashMap<IpAddr, usize>,
}

impl PodAddresses {
    /// Adds or removes a pod at an address, and updates the index.
    pub(super) fn set(
        &mut self,
        buckets: &CowMap<PodEntry>,
        address: IpAddr,
        key: &Arc<ObjectKey>,
        pod: Option<Arc<Pod>>,
    ) {
        let place = (address, key.clone());
        let old = match pod.clone() {
            Some(pod) => self.pods.insert(place, pod),
            None => self.pods.remove(&place),
        };
        let is_uncertain = |pod: &Option<Arc<Pod>>| {
            pod.as_ref().is_some_and(|pod| !pod.running || pod.terminating || pod.host_network)
        };
        let uncertain = self.uncertain.get(&address).copied().unwrap_or_default();
        match uncertain + usize::from(is_uncertain(&pod)) - usize::from(is_uncertain(&old)) {
            0 => _ = self.uncertain.remove(&address),
            uncertain => _ = self.uncertain.insert(address, uncertain),
        }
        self.update(buckets, address, key);
    }

    /// Updates the entries of an address, and of the namespace of the changed pod.
    fn update(&self, buckets: &CowMap<PodEntry>, address: IpAddr, changed: &ObjectKey) {
        let first = self.from(address, "");
        let namespace = |pod: &Pod| pod.key.namespace.clone();
        let first_of_all = first.map(|pod| namespace(pod));
        let is_certain = first.is_some_and(|first| {
            let others = (address, Arc::new(after(&first.key.namespace)));
            let of_others = self.pods.range(others..).next();
            !self.uncertain.contains_key(&address)
                && of_others.is_none_or(|((other, _), _)| *other != address)
        });
        let role = PodRole::Any { certain: is_certain };
        let entry = first.map(|pod| PodEntry { address, role, pod: pod.clone() });
        let is_any = |entry: &PodEntry| entry.address == address && entry.role != PodRole::OfNamespace;
        let hash = hash_of_address(address);
        let before =
            buckets.of(hash).find(is_any).map(|entry| (namespace(&entry.pod), entry.role, entry.pod.clone()));
        let unchanged = match (&before, &entry) {
            (Some((_, role, pod)), Some(entry)) => *role == entry.role && Arc::ptr_eq(pod, &entry.pod),
            (None, None) => true,
            _ => false,
        };
        // The entry of a namespace moves when it becomes, or ceases to be, the first one; it is
        // added before it is removed.
        let before =
            before.map(|(namespace, ..)| namespace).filter(|before| Some(before) != first_of_all.as_ref());
        for namespace in [Some(&changed.namespace), before.as_ref()].into_iter().flatten() {
            if Some(namespace) != first_of_all.as_ref() {
                self.update_namespace(buckets, address, namespace, true);
            }
        }
        if !unchanged {
            buckets.set(hash, is_any, entry);
        }
        if let Some(first) = &first_of_all {
            self.update_namespace(buckets, address, first, false);
        }
    }

    fn update_namespace(&self, buckets: &CowMap<PodEntry>, address: IpAddr, namespace: &str, is_there: bool) {
        let pod = self.from(address, namespace);
        let pod = pod.filter(|pod| is_there && *pod.key.namespace == *namespace);
        let hash = hash_of_pod(address, &namespace.to_ascii_lowercase());
        let is_it = |entry: &PodEntry| {
            let is_of = entry.address == address && *entry.pod.key.namespace == *namespace;
            is_of && entry.role == PodRole::OfNamespace
        };
        let unchanged = match (buckets.of(hash).find(is_it), pod) {
            (Some(entry), Some(pod)) => Arc::ptr_eq(&entry.pod, pod),
            (None, None) => true,
            _ => false,
        };
        if !unchanged {
            let role = PodRole::OfNamespace;
            buckets.set(hash, is_it, pod.map(|pod| PodEntry { address, role, pod: pod.clone() }));
        }
    }

    /// Returns the first pod with an address in this namespace or a later one.
    fn from(&self, address: IpAddr, namespace: &str) -> Option<&Arc<Pod>> {
        let start = ObjectKey { namespace: namespace.into(), name: Box::default() };
        let mut pods = self.pods.range((address, Arc::new(start))..);
        pods.next().filter(|((other, _), _)| *other == address).map(|(_, pod)| pod)
    }
}

/// Returns a key after all pods of a namespace and before those of later namespaces.
fn after(namespace: &str) -> ObjectKey {
    ObjectKey { namespace: format!("{namespace}\0").into(), name: Box::default() }
}

#[cfg(test)]
mod tests;
