//! The services of an index by name, and what their addresses lead to.

use std::sync::Arc;

use wire::hash_of;

use super::service::Service;
use super::{Directory, Listed, ServiceEntry, hash_of_address};

impl Directory {
    /// Every service, by name, then by namespace.
    pub(super) fn in_order(&self) -> Vec<Listed> {
        let mut services = Vec::new();
        self.by_name.each(|ServiceEntry { service, .. }| {
            if service.object.is_some() {
                services.push(Listed { service: service.clone(), is_known: service.namespace.is_known() });
            }
        });
        let key = |service: &Service| service.object.as_ref().map(|object| object.key.clone());
        services.sort_by_cached_key(|listed| key(&listed.service).map(|key| (key.name, key.namespace)));
        services
    }

    /// Lets every address lead to what has it.
    pub(super) fn lead_back(&self) {
        let mut count = 0;
        self.by_name.each(|entry| count += entry.service.by_address().count() + 1);
        let mut all = Vec::with_capacity(count);
        self.by_name.each(|ServiceEntry { service, .. }| {
            let name = hash_of(service.key());
            all.extend(service.addresses(true).into_iter().map(|address| (hash_of_address(address), name)));
        });
        self.by_address.fill(all);
    }

    /// Puts a service in place of the one that was, and lets the addresses lead to it that are its own now, with those of its
    /// endpoints or without.
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
        self.by_name.set(hash, |entry| entry.key() == name, new.map(ServiceEntry::new));
        let (mut left, mut come) = (before.iter().peekable(), after.iter().peekable());
        // Both are in order, and most are in both.
        loop {
            match (left.peek(), come.peek()) {
                (None, None) => break,
                (Some(one), Some(other)) if one == other => {
                    left.next();
                    come.next();
                }
                (Some(one), other) if other.is_none_or(|other| one < other) => {
                    self.by_address.set(hash_of_address(**one), |of| *of == hash, None);
                    left.next();
                }
                // Beside that of another service whose name has the same hash.
                (_, Some(other)) => {
                    self.by_address.set(hash_of_address(**other), |_| false, Some(hash));
                    come.next();
                }
                (Some(_), None) => break,
            }
        }
    }
}
