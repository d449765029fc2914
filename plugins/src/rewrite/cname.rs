//! `rewrite cname`: replaces the target of an alias, with the answer for the new target.

use wire::{Flags, Message, Name, RType, Rr, Section};

use super::name_match::{Pattern, Replacement};
use plugin::middleware::{EffectiveQuery, HookResult, Subqueries, SubqueryResult};

/// Maps matching CNAME targets to others.
#[derive(Debug, Clone)]
pub(super) struct Cname {
    pub(super) pattern: Pattern,
    pub(super) to: Replacement,
}

impl Cname {
    /// Replaces the target of the first alias that matches, and all records after it by the answer
    /// for the new target: a denial's SOA is that of the zone where the new chain ends (RFC 2308,
    /// section 2.1). As in CoreDNS, a target that the rule leaves unchanged is looked up through
    /// the block as well, since an upstream may answer with the alias alone. In one answer only one
    /// target is replaced.
    /// once.
    pub(super) fn apply(
        &self,
        effective: &EffectiveQuery<'_>,
        response: &mut Message,
        subqueries: &mut dyn Subqueries,
    ) -> HookResult {
        let is_alias = |rr: &Rr| rr.section == Section::Answer && rr.rtype == RType::CNAME;
        let mut aliases =
            response.records.iter().enumerate().filter(|(_, rr)| is_alias(rr)).take(MOST_ALIASES);
        let found = aliases.find_map(|(at, rr)| {
            let target = rr.target()?;
            let to = self.pattern.replace(&target.to_string(), &self.to)?;
            Name::from_text(&to).ok().map(|to| (at, target, to))
        });
        let Some((at, target, to)) = found else { return HookResult::Done };
        let Some(result) = subqueries.resolve(&to, effective.rtype(), effective.class()) else {
            return HookResult::Waiting;
        };
        response.clear_ad();
        if to != target {
            response.records[at].data = to.as_wire().into();
        }
        response.records.truncate(at + 1);
        response.records.retain(|rr| rr.rtype == RType::CNAME);
        result.extend_ede(&mut response.options);
        match result {
            SubqueryResult::Answer(answer) => {
                // The rcode is that of the end of the chain (RFC 6604, section 3).
                response.rcode = answer.rcode;
                response.flags = (response.flags & !Flags::TC) | (answer.flags & Flags::TC);
                // The answer to a query for CNAME is the alias itself: the SOA that denies a CNAME
                // at the alias's target is omitted.
                let is_answer = |rr: &Rr| rr.section == Section::Answer || effective.rtype() != RType::CNAME;
                response.records.extend(answer.records.into_iter().filter(is_answer));
            }
            SubqueryResult::Failed(failure) => response.rcode = failure.rcode(),
        }
        HookResult::Done
    }
}

/// Maximum number of aliases to compare in an answer, several times the usual length of a chain. 64
/// KiB have room for 4,000, and each comparison takes some microseconds.
const MOST_ALIASES: usize = 64;
