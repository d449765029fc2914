//! Collects services during the initial lists, and publishes them when a list ends.
//!
//! If services were published one by one, each would replace its bucket and the buckets of its
//! addresses, mostly twice: for its object and for its slices.

use std::sync::Arc;

use kubernetes_api::objects::Kind;

use super::service::Service;
use super::{HashMap, ServiceIndex, bit};

/// The services received so far.
#[derive(Default)]
pub(super) struct InitialSync {
    by_name: HashMap<Arc<[u8]>, Arc<Service>>,
    /// Kinds with unpublished services in their lists.
    ahead: u8,
}

impl InitialSync {
    pub(super) fn get(&self, name: &[u8]) -> Option<Arc<Service>> {
        self.by_name.get(name).cloned()
    }

    /// Replaces a service. `ahead` is the kind with the list that contains it; the service is
    /// published at the end of that list.
    pub(super) fn set(&mut self, name: Arc<[u8]>, service: Option<Arc<Service>>, ahead: Option<Kind>) {
        match service {
            Some(service) => _ = self.by_name.insert(name, service),
            None => _ = self.by_name.remove(&name),
        }
        self.ahead |= ahead.map_or(0, bit);
    }

    /// Publishes all services if this list contained any; returns whether it contained any.
    pub(super) fn publish(&mut self, directory: &ServiceIndex, list: Kind) -> bool {
        let is_ahead = self.ahead & bit(list) != 0;
        if is_ahead {
            directory.fill(self.by_name.values(), false);
            self.ahead &= !bit(list);
        }
        is_ahead
    }

    /// Publishes all services, with the addresses of their endpoints: all lists have completed.
    pub(super) fn publish_complete(self, directory: &ServiceIndex) {
        directory.fill(self.by_name.values(), true);
    }
}

#[cfg(test)]
mod tests;
