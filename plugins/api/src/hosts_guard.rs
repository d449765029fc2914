//! The hosts tables that the queries of one batch have found so far.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use hostsfile::Table;

/// The hosts table that a batch of queries found last, for the others of the batch.
///
/// To fetch a table takes two locked instructions (an `arc-swap` debt taken and paid). Such an instruction is a full memory
/// barrier: it waits until the store buffer is drained, and later loads wait for it, so it costs more than itself.
#[derive(Default)]
pub struct HostsGuard<'h>(Option<(&'h ArcSwap<Table>, Guard<Arc<Table>>)>);

impl<'h> HostsGuard<'h> {
    /// The table that serves there now, or has served since the batch first asked.
    #[inline]
    pub fn table(&mut self, of: &'h ArcSwap<Table>) -> &Table {
        if self.0.as_ref().is_some_and(|(known, _)| !ptr::eq(*known, of)) {
            self.0 = None;
        }
        &self.0.get_or_insert_with(|| (of, of.load())).1
    }
}

impl fmt::Debug for HostsGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostsGuard").finish_non_exhaustive()
    }
}
