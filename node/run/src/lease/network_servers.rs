//! Follows the name servers of the node's network.

use std::sync::{Arc, PoisonError, Weak};

use crate::upstream_discovery::{self, ListChange, ListOrigin};
use configuration::Configuration;
use listen::ServerState;

use super::LeaseThread;
use crate::aks_files;

impl LeaseThread {
    /// Updates the upstreams to the current name servers of the node's network; writes the files
    /// for other programs if the servers or the configuration changed.
    pub(super) fn follow(&mut self, running: &ServerState, configuration: &Arc<Configuration>) {
        let own = |ip| {
            configuration.endpoints.keys().any(|own| own.address.ip() == ip)
                || upstream_discovery::is_on_our_link(ip)
        };
        let first = self.written.is_none();
        let logger = &running.logger;
        match self.discovery.look(clock::now(), &own) {
            ListChange::Changed => {
                logger.info(
                    None,
                    &format!("node: {}", upstream_discovery::describe(self.discovery.upstreams())),
                );
            }
            ListChange::Wrong(wrong) if self.discovery.origin() != ListOrigin::Nowhere => {
                logger.warning(
                    None,
                    &format!(
                        "node: {wrong}: unchanged, {}",
                        upstream_discovery::describe(self.discovery.upstreams())
                    ),
                );
            }
            ListChange::Wrong(_) => {}
            ListChange::Nothing if first && self.discovery.origin() == ListOrigin::Kept => {
                let wrong = self.discovery.wrong().unwrap_or_default();
                logger.warning(
                    None,
                    &format!(
                        "node: {wrong}: {}, from {}",
                        upstream_discovery::describe(self.discovery.upstreams()),
                        upstream_discovery::KEPT
                    ),
                );
            }
            ListChange::Nothing => {}
        }
        let changes = self.discovery.upstreams().changes();
        // The weak pointer keeps the allocation, so an equal address means the same configuration.
        let is_written = |(of, at): &(Weak<Configuration>, u64)| {
            std::ptr::eq(of.as_ptr(), Arc::as_ptr(configuration)) && *at == changes
        };
        if !self.written.as_ref().is_some_and(is_written) {
            self.written = Some((Arc::downgrade(configuration), changes));
            let (read, list) = (self.read.clone(), self.discovery.upstreams().list());
            let failed = self.failed_to_write.clone();
            tokio::task::spawn_blocking(move || {
                let result = aks_files::write(&*read, &list);
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = result;
            });
        }
    }
}
