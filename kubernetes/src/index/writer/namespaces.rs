//! Namespaces, and the services that lie in them.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Release};

use kubernetes_api::objects::{Kind, ObjectKey};
use wire::hash_of;

use super::super::service::Namespace;
use super::super::service_index::Which;
use super::{HashSet, Writer, bit};

impl Writer {
    /// The namespace of a service that did or did not lie there, and will or will not.
    pub(super) fn lie_in(&mut self, name: &[u8], before: bool, after: bool) -> Arc<Namespace> {
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

    /// Forgets a namespace that the API does not have and nothing lies in.
    fn forget(&mut self, namespace: &Namespace) {
        if !namespace.is_known()
            && self.namespaces.get(&*namespace.name).is_some_and(|(_, services)| *services == 0)
        {
            self.namespaces.remove(&*namespace.name);
        }
    }

    /// Tells of namespaces that the API does not have any more. There are entries of what is found alone: before that they go, in one
    /// look for all of them.
    pub(super) fn lose_namespaces(&mut self, gone: &[Arc<ObjectKey>]) {
        let names = gone.iter().map(|key| key.name.to_ascii_lowercase().into_bytes());
        let has_services =
            |name: &Vec<u8>| self.namespaces.get(name).is_some_and(|(_, services)| *services > 0);
        let hidden: HashSet<Vec<u8>> = names.filter(has_services).collect();
        // Most go after their services.
        if !hidden.is_empty() {
            let is_hidden = |namespace: &[u8]| hidden.contains(namespace);
            Which::ALL.iter().for_each(|which| which.of(&self.index).hide(is_hidden));
        }
        gone.iter().for_each(|key| self.tell_namespace(&key.name, false));
    }

    /// Says whether there is a namespace.
    pub(super) fn tell_namespace(&mut self, name: &str, is_known: bool) {
        let name = name.to_ascii_lowercase();
        let (namespace, services) = self.namespace(name.as_bytes());
        let (namespace, has_services) = (namespace.clone(), *services > 0);
        if namespace.is_known() != is_known {
            namespace.is_known.store(is_known, Release);
            let entry = is_known.then(|| namespace.clone());
            let is_it = |other: &Arc<Namespace>| other.name == namespace.name;
            self.index.namespaces.set(hash_of(&namespace.name), is_it, entry);
            // Most come before their services.
            if has_services && is_known {
                self.new_namespaces.insert(namespace.name.clone());
                self.show_namespaces();
            }
            self.changed();
        }
        self.forget(&namespace);
    }

    /// Makes the entries that are missing for want of their namespaces: once for all of a list.
    pub(super) fn show_namespaces(&mut self) {
        if !self.new_namespaces.is_empty() && self.listing & bit(Kind::Namespace) == 0 {
            let new = mem::take(&mut self.new_namespaces);
            let is_new = |namespace: &Namespace| new.contains(&namespace.name);
            Which::ALL.iter().for_each(|which| which.of(&self.index).show(is_new));
        }
    }
}
