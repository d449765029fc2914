//! Namespaces, and the services that lie in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use kubernetes_api::objects::Kind;
use wire::hash_of;

use super::super::directory::Which;
use super::super::service::Namespace;
use super::{Writer, bit};

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

    pub(super) fn set_namespace(&mut self, name: &str, is_known: bool) {
        let name = name.to_ascii_lowercase();
        let (namespace, services) = self.namespace(name.as_bytes());
        let (namespace, has_services) = (namespace.clone(), *services > 0);
        if namespace.is_known() != is_known {
            // Most come before their services, and go after them. There are entries of what is found alone: before one that goes is
            // unknown, and when one that comes is known.
            if has_services && !is_known {
                Which::ALL.iter().for_each(|which| which.of(&self.index).hide(&namespace));
            }
            namespace.is_known.store(is_known, Relaxed);
            let entry = is_known.then(|| namespace.clone());
            let is_it = |other: &Arc<Namespace>| other.name == namespace.name;
            self.index.namespaces.set(hash_of(&namespace.name), is_it, entry);
            self.has_new_namespaces |= has_services && is_known;
            self.show_namespaces();
            self.changed();
        }
        self.forget(&namespace);
    }

    /// Makes the entries that are missing for want of their namespaces: once for all of a list.
    pub(super) fn show_namespaces(&mut self) {
        if self.has_new_namespaces && self.listing & bit(Kind::Namespace) == 0 {
            self.has_new_namespaces = false;
            Which::ALL.iter().for_each(|which| which.of(&self.index).show());
        }
    }
}
