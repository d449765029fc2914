//! The hosts table of a batch of queries, loaded once.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use hostsfile::Table;

/// The hosts table that a batch of queries loaded last, for the other queries of the batch.
///
/// Loading a table takes two atomic instructions (`arc-swap` takes and pays a debt). Each is a full
/// memory barrier: it drains the store buffer and delays later loads.
#[derive(Default)]
pub struct HostsGuard<'h>(Option<(&'h ArcSwap<Table>, Guard<Arc<Table>>)>);

impl<'h> HostsGuard<'h> {
    /// Returns the table that this batch has loaded from `of`; otherwise loads the current table.
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
