//! The answer to one lookup below the middleware of a block.

use std::sync::{Arc, OnceLock};

use client_quota::{ClientId, ClientQuota};
use wire::{Class, Flags, Message, Name, Packed, Query, RType, Rcode, Reply, Rr, Section};

use crate::ServedZone;
use crate::memory_quota::MemoryPermit;
use plugin::failure::Failure;
use plugin::middleware::SubqueryResult;

/// The answer to one lookup below the middleware of a block, from memory or from upstreams.
pub struct SubqueryAnswer {
    block: u64,
    name: Name,
    rtype: RType,
    class: Class,
    recursion_desired: bool,
    overrides: Box<[u8]>,
    /// The answer.
    pub result: Result<Packed, Failure>,
    /// How the answer's CNAMEs are treated.
    pub(super) follow: FollowCnames,
    /// The answer's memory, accounted to the first suspended query that keeps it.
    held: OnceLock<MemoryPermit>,
}

/// How the CNAMEs of an answer section are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowCnames {
    /// Left alone.
    No,
    /// Followed by the server's answer for their targets, if there is one.
    Yes,
    /// As `Yes`, but the query fails if a target has no answer.
    OrFail,
    /// The last one is followed, and the rcode and denial of its target become those of the answer (RFC
    /// 6604, section 3).
    Last,
}

/// Sets RA, or AA if the block does not forward, in a NODATA of the server's own that has neither.
///
/// glibc and Go take NOERROR with neither flag and without answer and additional records for a lame
/// referral: they query their next server, which may answer what `acl filter` withholds, or report
/// a temporary failure.
pub(super) fn mark_no_referral(message: &mut Message, forwards: bool) {
    let has_records = message.records.iter().any(|rr| rr.section != Section::Authority);
    if message.rcode == Rcode::NOERROR && !has_records && message.flags & (Flags::AA | Flags::RA) == 0 {
        message.flags |= if forwards { Flags::RA } else { Flags::AA };
    }
}

/// Whether the record is a CNAME of an answer section.
pub(super) fn is_alias(rr: &Rr) -> bool {
    rr.section == Section::Answer && rr.rtype == RType::CNAME
}

/// Gives an answer the rcode of the target of its last CNAME (RFC 6604, section 3), and returns the
/// authority section of the target if it is a denial (RFC 2308, section 2). As in CoreDNS the answer stays
/// NOERROR if the target is refused: the client resolves it.
pub(super) fn take_rcode(whole: &mut Message, target: &SubqueryResult) -> Vec<Rr> {
    let answer = match target {
        SubqueryResult::Answer(answer) => answer,
        SubqueryResult::Failed(failure) => {
            if failure.rcode() == Rcode::SERVFAIL {
                whole.rcode = Rcode::SERVFAIL;
            }
            return Vec::new();
        }
    };
    if matches!(answer.rcode, Rcode::NXDOMAIN | Rcode::SERVFAIL) {
        whole.rcode = answer.rcode;
    }
    let authority: Vec<_> = answer.section(Section::Authority).cloned().collect();
    if authority.iter().any(|rr| rr.rtype == RType::SOA) { authority } else { Vec::new() }
}

impl SubqueryAnswer {
    /// Creates the answer whose reply waits: the reply, or the failure in its place.
    pub fn delayed(
        zone: &ServedZone,
        query: &Query<'_>,
        reply: &Reply<'_>,
        failure: Option<Failure>,
    ) -> Arc<Self> {
        match failure {
            Some(failure) => Self::new(zone, query, Err(failure), FollowCnames::No),
            None => Self::of_reply(zone, query, reply, FollowCnames::No),
        }
    }

    /// Creates the answer of a block to `query`.
    pub fn new(
        zone: &ServedZone,
        query: &Query<'_>,
        result: Result<Packed, Failure>,
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
            result,
            follow,
            held: OnceLock::new(),
        })
    }

    /// Creates the answer in `reply`, which was started for `query`.
    pub fn of_reply(
        zone: &ServedZone,
        query: &Query<'_>,
        reply: &Reply<'_>,
        follow: FollowCnames,
    ) -> Arc<Self> {
        Self::new(zone, query, Ok(Packed::new(query, reply)), follow)
    }

    /// Returns a failure of the same lookup, for lack of memory.
    pub(super) fn lost(&self) -> Arc<Self> {
        Arc::new(Self {
            result: Err(Failure::Overload),
            overrides: self.overrides.clone(),
            follow: FollowCnames::No,
            held: OnceLock::new(),
            ..*self
        })
    }

    /// Accounts the answer's memory to this client, once however many queries keep it. False if the
    /// client's suspended queries hold too much.
    pub(super) fn hold(&self, of_all: &Arc<ClientQuota>, client: ClientId) -> bool {
        if self.held.get().is_some() {
            return true;
        }
        let held = MemoryPermit::take(of_all, client, self.octets());
        held.is_some_and(|held| {
            // If another worker was first, this permit is released.
            let _ = self.held.set(held);
            true
        })
    }

    fn octets(&self) -> usize {
        size_of::<Self>() + self.overrides.len() + self.result.as_ref().map_or(0, Packed::octets)
    }

    /// Returns the identity of the lookup that this value answers.
    pub(super) fn key(&self) -> LookupKey<'_> {
        let Self { block, ref name, rtype, class, recursion_desired, ref overrides, .. } = *self;
        LookupKey { block, name, rtype, class, recursion_desired, overrides }
    }
}

/// Identity of a lookup below the middleware of a block. Within one evaluation, lookups with equal
/// keys have equal answers.
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
