//! What one lookup below the steps came to.

use std::sync::{Arc, OnceLock};

use forwarder::{Fair, Who};
use wire::{Class, Flags, Name, Packed, Query, RType, Reply};

use crate::ServedZone;
use crate::memory_quota::MemoryPermit;
use plugin::failure::Failure;

/// What one lookup below the steps came to.
pub struct SubqueryAnswer {
    block: u64,
    name: Name,
    rtype: RType,
    class: Class,
    recursion_desired: bool,
    overrides: Box<[u8]>,
    /// What upstreams, or memory, said of it.
    pub told: Result<Packed, Failure>,
    /// What becomes of its CNAMEs.
    pub(super) follow: FollowCnames,
    /// Its octets among those of all queries that wait, from the first one on that keeps it.
    held: OnceLock<MemoryPermit>,
}

/// What becomes of the CNAMEs of an answer section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowCnames {
    /// They stand as they are.
    No,
    /// What is answered for their targets comes behind them, if anything is.
    Yes,
    /// As `Yes`, but where a target has no answer the query fails.
    OrFail,
}

impl SubqueryAnswer {
    /// Keeps what a block tells below its steps.
    pub fn new(
        zone: &ServedZone,
        query: &Query<'_>,
        told: Result<Packed, Failure>,
        follow: FollowCnames,
    ) -> Arc<Self> {
        let LookupKey { block, name, rtype, class, recursion_desired, overrides } =
            LookupKey::new(zone, query);
        Arc::new(Self {
            block,
            name: *name,
            rtype,
            class,
            recursion_desired,
            overrides: overrides.into(),
            told,
            follow,
            held: OnceLock::new(),
        })
    }

    /// Keeps what `reply` says, which was started for `query`.
    pub fn of_reply(
        zone: &ServedZone,
        query: &Query<'_>,
        reply: &Reply<'_>,
        follow: FollowCnames,
    ) -> Arc<Self> {
        Self::new(zone, query, Ok(Packed::new(query, reply)), follow)
    }

    /// The same lookup, of which unanswered had room to keep what it came to.
    pub(super) fn lost(&self) -> Arc<Self> {
        Arc::new(Self {
            told: Err(Failure::Overload),
            overrides: self.overrides.clone(),
            follow: FollowCnames::No,
            held: OnceLock::new(),
            ..*self
        })
    }

    /// Counts its octets, once however many queries keep it, as those of the client whose query keeps it first; false where
    /// what waits for this one holds too much already.
    pub(super) fn hold(&self, of_all: &Arc<Fair>, who: Who) -> bool {
        if self.held.get().is_some() {
            return true;
        }
        let held = MemoryPermit::take(of_all, who, self.octets());
        held.is_some_and(|held| {
            // Where another worker was first, this one's count is given back.
            let _ = self.held.set(held);
            true
        })
    }

    fn octets(&self) -> usize {
        size_of::<Self>() + self.overrides.len() + self.told.as_ref().map_or(0, Packed::octets)
    }

    /// The lookup that this answers.
    pub(super) fn key(&self) -> LookupKey<'_> {
        let Self { block, ref name, rtype, class, recursion_desired, ref overrides, .. } = *self;
        LookupKey { block, name, rtype, class, recursion_desired, overrides }
    }
}

/// Identity of a lookup below the steps of a block. Within one evaluation, lookups with equal keys have the same answer.
#[derive(PartialEq, Eq)]
pub(super) struct LookupKey<'q> {
    block: u64,
    name: &'q Name,
    rtype: RType,
    class: Class,
    recursion_desired: bool,
    overrides: &'q [u8],
}

impl<'q> LookupKey<'q> {
    pub(super) fn new(zone: &ServedZone, query: &'q Query<'_>) -> Self {
        Self {
            block: zone.block.id,
            name: &query.name,
            rtype: query.rtype,
            class: query.class,
            recursion_desired: query.flags.has(Flags::RD),
            overrides: query.overrides.octets(),
        }
    }
}
