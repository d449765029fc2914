//! Services while the first lists come: gathered, and shown when a list ends.
//!
//! Put into the index one by one, each would replace its bucket and those of its addresses, and most would do so twice: for their
//! object, and for their slices.

use std::sync::Arc;

use kubernetes_api::objects::Kind;

use super::service::Service;
use super::{Directory, HashMap, bit};

/// The services that the API has told of so far.
#[derive(Default)]
pub(super) struct FirstServices {
    by_name: HashMap<Arc<[u8]>, Arc<Service>>,
    /// Kinds whose lists have told of some that the index does not show yet.
    ahead: u8,
}

impl FirstServices {
    pub(super) fn get(&self, name: &[u8]) -> Option<Arc<Service>> {
        self.by_name.get(name).cloned()
    }

    /// Puts a service in place of the one that was; `ahead` names the kind whose list tells of it, at the end of which it is shown.
    pub(super) fn set(&mut self, name: Arc<[u8]>, service: Option<Arc<Service>>, ahead: Option<Kind>) {
        match service {
            Some(service) => _ = self.by_name.insert(name, service),
            None => _ = self.by_name.remove(&name),
        }
        self.ahead |= ahead.map_or(0, bit);
    }

    /// Shows all of them where this list has told of any; whether it has.
    pub(super) fn show(&mut self, directory: &Directory, list: Kind) -> bool {
        let is_ahead = self.ahead & bit(list) != 0;
        if is_ahead {
            directory.fill(self.by_name.values(), false);
            self.ahead &= !bit(list);
        }
        is_ahead
    }

    /// Shows all of them, the addresses of their endpoints as well: no other list is waited for.
    pub(super) fn show_whole(self, directory: &Directory) {
        directory.fill(self.by_name.values(), true);
    }
}

#[cfg(test)]
mod tests;
