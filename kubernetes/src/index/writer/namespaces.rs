//! Namespaces, and their services.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Release};

use kubernetes_api::objects::{Kind, ObjectKey};
use wire::hash_of;

use super::super::service::Namespace;
use super::super::service_index::ServiceSet;
use super::{HashSet, IndexWriter, bit};

impl IndexWriter {
    /// Returns the namespace of a service, and counts the service in or out.
    pub(super) fn count_service(&mut self, name: &[u8], before: bool, after: bool) -> Arc<Namespace> {
        let (namespace, services) = self.namespace(name);
        *services = *services + usize::from(after) - usize::from(before);
        let namespace = namespace.clone();
        self.forget(&namespace);
        namespace
    }

    fn namespace(&mut self, name: &[u8]) -> &mut (Arc<Namespace>, usize) {
        self.namespaces.entry_ref(name).or_insert_with(|| {
            (Arc::new(Namespace { name: name.into(), is_known: AtomicBool::new(false) }), 0)
        })
    }

    /// Drops a namespace that neither exists in the API nor has services.
    fn forget(&mut self, namespace: &Namespace) {
        if !namespace.is_known()
            && self.namespaces.get(&*namespace.name).is_some_and(|(_, services)| *services == 0)
        {
            self.namespaces.remove(&*namespace.name);
        }
    }

    /// Removes namespaces. The inline services in them are removed before, in one scan for all.
    pub(super) fn remove_namespaces(&mut self, gone: &[Arc<ObjectKey>]) {
        let names = gone.iter().map(|key| key.name.to_ascii_lowercase().into_bytes());
        let has_services =
            |name: &Vec<u8>| self.namespaces.get(name).is_some_and(|(_, services)| *services > 0);
        let hidden: HashSet<Vec<u8>> = names.filter(has_services).collect();
        // Most namespaces are removed after their services.
        if !hidden.is_empty() {
            let is_hidden = |namespace: &[u8]| hidden.contains(namespace);
            ServiceSet::ALL.iter().for_each(|which| which.of(&self.index).hide(is_hidden));
        }
        gone.iter().for_each(|key| self.set_namespace(&key.name, false));
    }

    /// Records whether a namespace exists.
    pub(super) fn set_namespace(&mut self, name: &str, is_known: bool) {
        let name = name.to_ascii_lowercase();
        let (namespace, services) = self.namespace(name.as_bytes());
        let (namespace, has_services) = (namespace.clone(), *services > 0);
        if namespace.is_known() != is_known {
            namespace.is_known.store(is_known, Release);
            let entry = is_known.then(|| namespace.clone());
            let matches = |other: &Arc<Namespace>| other.name == namespace.name;
            self.index.namespaces.set(hash_of(&namespace.name), matches, entry);
            // Most namespaces are added before their services.
            if has_services && is_known {
                self.new_namespaces.insert(namespace.name.clone());
                self.add_inline_services();
            }
            self.changed();
        }
        self.forget(&namespace);
    }

    /// Adds the inline services of new namespaces, once for a list.
    pub(super) fn add_inline_services(&mut self) {
        if !self.new_namespaces.is_empty() && self.listing & bit(Kind::Namespace) == 0 {
            let new = mem::take(&mut self.new_namespaces);
            let is_new = |namespace: &Namespace| new.contains(&namespace.name);
            ServiceSet::ALL.iter().for_each(|which| which.of(&self.index).show(is_new));
        }
    }
}
