//! Services by name and by address.

use std::net::IpAddr;
use std::sync::Arc;

use kubernetes_api::objects::Kind;
use wire::hash_of;

use super::service::{AddressRole, Namespace, Service};
use super::{Index, InlineService, Listed, ServiceIndex, hash_of_address};

/// Services, or imports.
#[derive(Clone, Copy)]
pub(super) enum ServiceSet {
    Services,
    Imports,
}

impl ServiceSet {
    pub(super) const ALL: [Self; 2] = [Self::Services, Self::Imports];

    pub(super) fn of(self, index: &Index) -> &ServiceIndex {
        match self {
            Self::Services => &index.services,
            Self::Imports => &index.imports,
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Services => Kind::Service,
            Self::Imports => Kind::ServiceImport,
        }
    }
}

/// Returns the hash of an address and role. Roles have separate hashes, so that slices with the
/// address of a service do not precede its owner.
pub(super) fn hash_of_role(has: AddressRole, address: IpAddr) -> u64 {
    hash_of_address(address).rotate_left(ROLE_ROTATION * has as u32)
}

impl ServiceIndex {
    /// Returns all services by name, then by namespace.
    pub(super) fn sorted(&self) -> Vec<Listed> {
        let mut services = Vec::new();
        self.by_name.each(|service| {
            if service.object.is_some() {
                services.push(Listed { service: service.clone(), is_known: service.namespace.is_known() });
            }
        });
        services.sort_by(|one, other| sort_key(one).cmp(&sort_key(other)));
        services
    }

    /// Replaces all services, and indexes their addresses, with or without those of their
    /// endpoints.
    pub(super) fn fill<'s>(&self, services: impl Iterator<Item = &'s Arc<Service>>, endpoints: bool) {
        let named = |service: &Arc<Service>| (hash_of(service.key()), service.clone());
        let names: Vec<_> = services.map(named).collect();
        self.entries.clear(|_| true);
        self.by_name.fill(&names);
        self.show(|_| true);
        let count =
            |(_, service): &(_, Arc<Service>)| 1 + if endpoints { service.endpoint_count() } else { 0 };
        let mut addresses = Vec::with_capacity(names.iter().map(count).sum());
        for (name, service) in &names {
            let own = service.addresses(endpoints).into_iter();
            addresses.extend(own.map(|(has, address)| (hash_of_role(has, address), *name)));
        }
        drop(names);
        self.by_address.fill(&addresses);
    }

    /// Adds inline services of these namespaces.
    pub(super) fn show(&self, is_shown: impl Fn(&Namespace) -> bool) {
        self.by_name.each(|service| {
            if is_shown(&service.namespace) {
                self.entries.put(hash_of(service.key()), service.key(), InlineService::of(service));
            }
        });
    }

    /// Removes the inline services of namespaces, given by name.
    pub(super) fn hide(&self, is_gone: impl Fn(&[u8]) -> bool) {
        self.entries.clear(|entry| is_gone(entry.namespace()));
    }

    /// Replaces a service, and updates the index of its addresses, with or without those of its
    /// endpoints. Its bucket decides which version is found: a changed inline service is removed
    /// before the bucket changes, and added after it.
    pub(super) fn replace(
        &self,
        name: &[u8],
        old: Option<&Service>,
        new: Option<Arc<Service>>,
        endpoints: bool,
    ) {
        let addresses = |service: &Service| service.addresses(endpoints);
        let before = old.map(addresses).unwrap_or_default();
        let after = new.as_deref().map(addresses).unwrap_or_default();
        let hash = hash_of(name);
        let entry = new.as_deref().and_then(InlineService::of);
        if self.entries.get(hash, name) != entry {
            self.entries.put(hash, name, None);
        }
        self.by_name.set(hash, |service| service.key() == name, new);
        self.entries.put(hash, name, entry);
        let (mut removed, mut added) = (before.iter().peekable(), after.iter().peekable());
        // Both are sorted, and most addresses are in both.
        loop {
            match (removed.peek(), added.peek()) {
                (None, None) => break,
                (Some(one), Some(other)) if one == other => {
                    removed.next();
                    added.next();
                }
                (Some((has, address)), other)
                    if other.is_none_or(|other| (has, address) < (&other.0, &other.1)) =>
                {
                    self.by_address.set(hash_of_role(*has, *address), |of| *of == hash, None);
                    removed.next();
                }
                // Another service with the same hash of its name may have an equal entry.
                (_, Some((has, address))) => {
                    self.by_address.set(hash_of_role(*has, *address), |_| false, Some(hash));
                    added.next();
                }
                (Some(_), None) => break,
            }
        }
    }
}

fn sort_key(listed: &Listed) -> Option<(&str, &str)> {
    let key = &listed.service.object.as_ref()?.key;
    Some((&key.name, &key.namespace))
}

/// Rotation by role, in bits.
const ROLE_ROTATION: u32 = 16;
