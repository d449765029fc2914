//! The services of an index by name, and what their addresses lead to.

use std::net::IpAddr;
use std::sync::Arc;

use kubernetes_api::objects::Kind;
use wire::hash_of;

use super::service::{Has, Namespace, Service};
use super::{Directory, Index, Listed, ServiceEntry, hash_of_address};

/// Services, or imports.
#[derive(Clone, Copy)]
pub(super) enum Which {
    Services,
    Imports,
}

impl Which {
    pub(super) const ALL: [Self; 2] = [Self::Services, Self::Imports];

    pub(super) fn of(self, index: &Index) -> &Directory {
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

/// Where the services stand that have an address so: whoever writes slices that name it puts none before its owner.
pub(super) fn hash_of_had(has: Has, address: IpAddr) -> u64 {
    hash_of_address(address).rotate_left(ROTATED * has as u32)
}

impl Directory {
    /// Every service, by name, then by namespace.
    pub(super) fn in_order(&self) -> Vec<Listed> {
        let mut services = Vec::new();
        self.by_name.each(|service| {
            if service.object.is_some() {
                services.push(Listed { service: service.clone(), is_known: service.namespace.is_known() });
            }
        });
        services.sort_by(|one, other| in_order_of(one).cmp(&in_order_of(other)));
        services
    }

    /// Makes these all its services, and lets the addresses lead to them that are their own, with those of their endpoints or
    /// without.
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
            addresses.extend(own.map(|(has, address)| (hash_of_had(has, address), *name)));
        }
        drop(names);
        self.by_address.fill(&addresses);
    }

    /// Has entries of the services that lie in these namespaces.
    pub(super) fn show(&self, is_shown: impl Fn(&Namespace) -> bool) {
        self.by_name.each(|service| {
            if is_shown(&service.namespace) {
                self.entries.put(hash_of(service.key()), service.key(), ServiceEntry::of(service));
            }
        });
    }

    /// Has no entries of what lies in these namespaces, by their names.
    pub(super) fn hide(&self, is_gone: impl Fn(&[u8]) -> bool) {
        self.entries.clear(|entry| is_gone(entry.namespace()));
    }

    /// Puts a service in place of the one that was, and lets the addresses lead to it that are its own now, with those of its
    /// endpoints or without. Its bucket alone says which of both is found: an entry goes before it, where it is to change, and comes
    /// after it.
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
        let entry = new.as_deref().and_then(ServiceEntry::of);
        if self.entries.get(hash, name) != entry {
            self.entries.put(hash, name, None);
        }
        self.by_name.set(hash, |service| service.key() == name, new);
        self.entries.put(hash, name, entry);
        let (mut left, mut come) = (before.iter().peekable(), after.iter().peekable());
        // Both are in order, and most are in both.
        loop {
            match (left.peek(), come.peek()) {
                (None, None) => break,
                (Some(one), Some(other)) if one == other => {
                    left.next();
                    come.next();
                }
                (Some((has, address)), other)
                    if other.is_none_or(|other| (has, address) < (&other.0, &other.1)) =>
                {
                    self.by_address.set(hash_of_had(*has, *address), |of| *of == hash, None);
                    left.next();
                }
                // Beside that of another service whose name has the same hash.
                (_, Some((has, address))) => {
                    self.by_address.set(hash_of_had(*has, *address), |_| false, Some(hash));
                    come.next();
                }
                (Some(_), None) => break,
            }
        }
    }
}

fn in_order_of(listed: &Listed) -> Option<(&str, &str)> {
    let key = &listed.service.object.as_ref()?.key;
    Some((&key.name, &key.namespace))
}

/// Bits, so that an address has another hash for each way to have it.
const ROTATED: u32 = 16;
