//! The subqueries of an evaluation.

use wire::{Class, Name, Query, RType};

use plugin::middleware::SubqueryResult;

/// Identity of a subquery.
#[derive(PartialEq, Eq)]
pub(super) struct SubqueryKey {
    entry: EntryPoint,
    name: Name,
    rtype: RType,
    class: Class,
    overrides: Box<[u8]>,
}

impl SubqueryKey {
    pub(super) fn new(entry: EntryPoint, query: &Query<'_>) -> Self {
        let Query { name, rtype, class, overrides, .. } = *query;
        Self { entry, name, rtype, class, overrides: overrides.octets().into() }
    }
}

/// Where a subquery starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryPoint {
    /// At the route, as a client's query.
    Top,
    /// At middleware of a block: block id and index.
    Step(u64, usize),
}

/// State of a subquery.
pub(super) enum SubqueryState {
    /// Being evaluated: an equal subquery within it would be a loop.
    InProgress,
    /// An upstream must be queried.
    NeedsUpstream,
    Done(SubqueryResult),
}
