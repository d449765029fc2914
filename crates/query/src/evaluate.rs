//! Evaluates a query that middleware or a CNAME of a template acts on.
//!
//! ```text
//! evaluate(query, answers) -> answer | drop | queries for upstreams
//! ```
//! An evaluation is never resumed midway. If upstreams must be queried, all subqueries known to be
//! needed are sent at once and the client's query is suspended. When the last one is answered, the
//! query is evaluated again from the start, with the answers as [`SubqueryAnswer`]s. A subquery
//! (the target of a template's CNAME, or one that middleware issues) passes all the steps of a
//! query, but is not counted or logged; only `errors` reports its failures.

mod subquery;
mod subquery_answer;
mod suspended_query;

use std::sync::Arc;
use std::time::Duration;

use client_quota::{ClientId, client_number};
use metrics::counters::PerThread;
use wire::{Class, Flags, Message, Name, OPTION_CLIENT_SUBNET, Packed, Query, RType, Rcode, Reply, Section};

use crate::ServedZone;
use crate::inbound::{Inbound, Stop};
use crate::route::Route;
use plugin::failure::Failure;
use plugin::middleware::{EffectiveQuery, HookResult, Subqueries, SubqueryResult, question};
use plugin::{HostsGuard, Lookup, QueryContext};

pub use crate::memory_quota::MAX_SUSPENDED_BYTES;
use subquery::{EntryPoint, SubqueryKey, SubqueryState};
pub use subquery_answer::{FollowCnames, SubqueryAnswer};
use subquery_answer::{LookupKey, mark_no_referral};
pub use suspended_query::{PendingLookups, SuspendedQuery, UpstreamQuery, Usage};

/// Result of an evaluation.
pub enum Evaluated {
    /// The answer for the client, and the failure below the middleware, if there was one.
    Answer(Box<Message>, Option<Failure>),
    /// No reply.
    Drop,
}

/// The evaluation of one client's query.
pub struct Evaluation<'h, 'a> {
    route: &'h Arc<Route>,
    context: &'a QueryContext<'a>,
    tables: &'a mut HostsGuard<'h>,
    query: &'a Query<'a>,
    /// The answers of upstreams so far.
    answers: Vec<Arc<SubqueryAnswer>>,
    /// Resources that earlier evaluations used.
    spent: Usage,
    /// Subqueries that may still be evaluated.
    left: usize,
    /// Largest reply to the client in bytes.
    room: usize,
    /// Bytes of names that may still be compared with patterns.
    comparable: usize,
    /// Counters to increment once the query is answered.
    counts: Vec<Arc<PerThread>>,
    /// Whether the current lookup is the target of a CNAME or a routed subquery, rather than the
    /// client's question or a candidate for it ([`Subqueries::resolve_below`]).
    at_target: bool,
    /// The subqueries so far, each once.
    subqueries: Vec<(SubqueryKey, SubqueryState)>,
    /// The middleware that may issue subqueries now: zone and index.
    at: Option<(&'h Arc<ServedZone>, usize)>,
    /// How long an upstream may take; zero: no upstream is queried.
    pub patience: Duration,
    /// Stale answers to refresh.
    refreshes: Vec<UpstreamQuery<'h>>,
    /// Queries for upstreams.
    missing: Vec<UpstreamQuery<'h>>,
}

/// The error when upstreams must be queried first: see [`Evaluation::wait`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeedsUpstream;

impl<'h, 'a> Evaluation<'h, 'a> {
    /// Creates an evaluation with the `answers` so far and the resources `spent` before.
    pub fn new(
        route: &'h Arc<Route>,
        context: &'a QueryContext<'a>,
        tables: &'a mut HostsGuard<'h>,
        query: &'a Query<'a>,
        answers: Vec<Arc<SubqueryAnswer>>,
        spent: Usage,
    ) -> Self {
        Self {
            route,
            context,
            tables,
            query,
            answers,
            spent,
            left: MAX_SUBQUERIES,
            room: 0,
            comparable: 0,
            counts: Vec::new(),
            at_target: false,
            subqueries: Vec::new(),
            at: None,
            patience: forwarder::DEADLINE,
            refreshes: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Evaluates the query, and returns the answer for the client.
    ///
    /// # Errors
    /// Upstreams must be queried first.
    pub fn run(&mut self, zone: &'h Arc<ServedZone>) -> Result<Evaluated, NeedsUpstream> {
        let mut inbound = Inbound::new(zone, self.query, 0, self.spent.counted_steps);
        let stop = inbound.run(self.context);
        self.run_from(inbound, stop)
    }

    /// The same for a query that has passed the middleware of its block.
    pub(crate) fn run_from(
        &mut self,
        mut inbound: Inbound<'h, 'a>,
        stop: Stop<'h>,
    ) -> Result<Evaluated, NeedsUpstream> {
        self.subqueries.push((SubqueryKey::new(EntryPoint::Top, self.query), SubqueryState::InProgress));
        self.room = inbound.zone.block.envelope.size.limit(self.query, self.context.proto);
        self.comparable = MAX_COMPARED * self.room;
        let end = self.evaluate(&mut inbound, stop);
        self.spent.counted_steps = inbound.counted;
        let end = end?;
        self.counts.drain(..).for_each(|counter| counter.add(self.context.writer));
        Ok(end)
    }

    /// Returns the queries for upstreams, and the client's query, suspended.
    ///
    /// # Errors
    /// If this client's suspended queries hold too much memory.
    pub fn wait(self, zone: &Arc<ServedZone>) -> Result<Box<PendingLookups<'h>>, Failure> {
        let client = ClientId::of(client_number(self.context.client().ip()));
        let suspended = SuspendedQuery::new(client, self.query, zone, self.route, self.answers, self.spent)?;
        Ok(Box::new(PendingLookups {
            asked: self.missing,
            refreshes: self.refreshes,
            suspended: Some(suspended),
        }))
    }

    /// Returns the stale answers to refresh, if there are any.
    pub fn refreshes(&mut self) -> Option<Box<PendingLookups<'h>>> {
        let refreshes = std::mem::take(&mut self.refreshes);
        let lookups = PendingLookups { asked: Vec::new(), refreshes, suspended: None };
        (!lookups.refreshes.is_empty()).then(|| Box::new(lookups))
    }

    /// Continues at the point where the query stops on its way in, and passes the answer back
    /// through the middleware.
    fn evaluate(
        &mut self,
        inbound: &mut Inbound<'h, '_>,
        mut stop: Stop<'h>,
    ) -> Result<Evaluated, NeedsUpstream> {
        let zone = inbound.zone;
        let mut rcode_below = None;
        let (mut message, mut failure) = loop {
            match stop {
                Stop::Needs(needs) => {
                    self.at = Some((zone, inbound.next));
                    let inward =
                        needs.resume(&mut inbound.effective, self.context, self).ok_or(NeedsUpstream)?;
                    stop = inbound.resume(inward, self.context);
                }
                Stop::Sources => {
                    let (message, failure) = self.below(zone, &inbound.effective.query())?;
                    if matches!(failure, Some(Failure::Dropped)) {
                        return Ok(Evaluated::Drop);
                    }
                    rcode_below = failure.is_none().then_some(message.rcode);
                    break (message, failure);
                }
                Stop::Answer(message) => break (message, None),
                Stop::Fail(failure) => {
                    break (Box::new(failed(inbound.effective.client_query(), &failure)), Some(failure));
                }
                Stop::Silence => return Ok(Evaluated::Drop),
                Stop::Wait(delay) => {
                    self.missing.push(UpstreamQuery::timer(&inbound.effective.query(), zone, delay));
                    return Err(NeedsUpstream);
                }
            }
        };
        let Inbound { effective, backs, .. } = inbound;
        // The reply has the client's RD, whether or not the effective query had it.
        message.flags = message.flags & !Flags::RD | self.query.flags.0 & Flags::RD;
        // An answer to another question, or its denial, does not authenticate the client's.
        if effective.has_other_question() {
            message.clear_ad();
        }
        for (index, back) in backs.iter().rev() {
            if failure.is_some() && !back.sees_failures() {
                continue;
            }
            self.at = Some((zone, *index));
            match back.on_response(effective, self.context, &mut message, self) {
                HookResult::Waiting if !self.missing.is_empty() => return Err(NeedsUpstream),
                HookResult::Failed(why) if failure.is_none() => {
                    *message = failed(effective.client_query(), &why);
                    failure = Some(why);
                }
                HookResult::Done | HookResult::Waiting | HookResult::Failed(_) => {}
            }
        }
        if rcode_below != Some(Rcode::NOERROR) {
            mark_no_referral(&mut message, zone.block.pipeline.forwards());
        }
        Ok(Evaluated::Answer(message, failure))
    }

    /// Returns the answer of the block's sources, with the targets of a template's CNAMEs appended.
    fn below(
        &mut self,
        zone: &'h Arc<ServedZone>,
        query: &Query<'_>,
    ) -> Result<(Box<Message>, Option<Failure>), NeedsUpstream> {
        let key = LookupKey::new(zone, query);
        let known = self.answers.iter().find(|answer| answer.key() == key).cloned();
        let answer = match known {
            Some(answer) => answer,
            None if self.missing.iter().any(|asked| asked.is_for(&key)) => return Err(NeedsUpstream),
            None => {
                let answer = self.look_up(zone, query)?;
                self.answers.push(answer.clone());
                answer
            }
        };
        let packed = answer.result.as_ref().map_err(Clone::clone);
        let (mut message, failure) = match packed.and_then(|packed| self.decode(packed)) {
            Ok(message) if answer.follow == FollowCnames::No => (message, None),
            Ok(message) => self.follow(query, &message, answer.follow)?,
            Err(failure) => (failed(query, &failure), Some(failure)),
        };
        if query.overrides.has_subnet() {
            // The server added the subnet, so a client that did not send it does not get it (RFC
            // 7871, section 7.2.1).
            message.options.remove(OPTION_CLIENT_SUBNET);
        }
        Ok((Box::new(message), failure))
    }

    fn decode(&mut self, packed: &Packed) -> Result<Message, Failure> {
        // A limit for all sections together: decoding an upstream's 64 KiB for a datagram would
        // cost the server a thousand times what it costs the client.
        let most = (self.room / SHORTEST_RECORD) as u16;
        self.spend(packed.records(most))?;
        // Packed from a reply that this server wrote: its records are readable.
        packed.message(most).map_err(|_| Failure::Panic)
    }

    /// Accounts for records that are about to be decoded or copied.
    fn spend(&mut self, records: usize) -> Result<(), Failure> {
        let spent = self.spent.records + records;
        if spent > MAX_RECORDS {
            return Err(Failure::TooManyRecords(MAX_RECORDS));
        }
        self.spent.records = spent;
        Ok(())
    }

    fn look_up(
        &mut self,
        zone: &'h Arc<ServedZone>,
        query: &Query<'_>,
    ) -> Result<Arc<SubqueryAnswer>, NeedsUpstream> {
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, query);
        let counters = zone.counters(self.context.writer);
        let mut follow = FollowCnames::No;
        match zone.block.pipeline.answer_now(self.context, self.tables, query, &mut reply, counters) {
            Lookup::Answer => {}
            Lookup::Follow => follow = FollowCnames::Yes,
            Lookup::FollowOrFail => follow = FollowCnames::OrFail,
            Lookup::FollowLast => follow = FollowCnames::Last,
            Lookup::Refresh if self.refreshes.len() < MAX_ASKED => {
                self.refreshes.push(UpstreamQuery::for_next(query, zone, !self.at_target));
            }
            // A later query refreshes the answer.
            Lookup::Refresh => {}
            Lookup::Ask(_) if self.patience.is_zero() => {
                let failure = Failure::Forward(forwarder::ForwardError::Patience);
                return Ok(SubqueryAnswer::new(zone, query, Err(failure), FollowCnames::No));
            }
            Lookup::Ask(_) if self.at_target && self.spent.asked == MAX_ASKED => {
                return Ok(SubqueryAnswer::new(
                    zone,
                    query,
                    Err(Failure::TooManyNames(MAX_ASKED)),
                    FollowCnames::No,
                ));
            }
            Lookup::Ask(patience) => {
                // With the whole deadline left, the forwarder enforces it, and its failure names
                // the upstream.
                let left = Some(self.patience).filter(|&left| left < forwarder::DEADLINE);
                let patience = patience.into_iter().chain(left).min();
                self.spent.asked += usize::from(self.at_target);
                self.missing.push(UpstreamQuery::new(query, zone, patience, !self.at_target));
                return Err(NeedsUpstream);
            }
            Lookup::Delay(delay) => {
                self.answers.push(SubqueryAnswer::delayed(zone, query, &reply, delay.failure));
                self.missing.push(UpstreamQuery::timer(query, zone, delay.duration));
                return Err(NeedsUpstream);
            }
            Lookup::Pass => return Ok(self.failed(zone, query, zone.block.pipeline.unanswered())),
            Lookup::Fail(failure) => return Ok(self.failed(zone, query, failure)),
        }
        Ok(SubqueryAnswer::of_reply(zone, query, &reply, follow))
    }

    fn failed(&self, zone: &ServedZone, query: &Query<'_>, failure: Failure) -> Arc<SubqueryAnswer> {
        if self.at_target {
            zone.block.envelope.query_failed(&failure, query, self.context.now);
        }
        SubqueryAnswer::new(zone, query, Err(failure), FollowCnames::No)
    }

    /// Appends to each CNAME of the answer section the server's answer for its target. If a target
    /// has no answer, only the reason is added and the CNAME stands alone, as in CoreDNS; with
    /// [`FollowCnames::OrFail`] the query fails.
    fn follow(
        &mut self,
        query: &Query<'_>,
        made: &Message,
        follow: FollowCnames,
    ) -> Result<(Message, Option<Failure>), NeedsUpstream> {
        let Message { rcode, flags, options, .. } = *made;
        let records = Vec::with_capacity(made.records.len() + 2);
        let mut whole = Message { rcode, flags, records, options };
        let (mut missing, mut why, mut denial) = (false, None, Vec::new());
        let last = made.records.iter().rposition(subquery_answer::is_alias);
        for (index, rr) in made.records.iter().enumerate() {
            whole.records.push(rr.clone());
            if !subquery_answer::is_alias(rr) || follow == FollowCnames::Last && last != Some(index) {
                continue;
            }
            let Some(target) = rr.target() else { continue };
            // The loop continues, so that all targets are looked up at the same time.
            let Some(result) = self.resolve(&target, query.rtype, Class::IN) else {
                missing = true;
                continue;
            };
            // No server block serves this name: the client resolves it.
            if matches!(result, SubqueryResult::Failed(Failure::NoZone)) {
                continue;
            }
            result.extend_ede(&mut whole.options);
            if follow == FollowCnames::Last {
                denial = subquery_answer::take_rcode(&mut whole, &result);
            }
            match result {
                SubqueryResult::Answer(answer) => {
                    if !matches!(answer.rcode, Rcode::NOERROR | Rcode::NXDOMAIN) {
                        why = Some(Failure::Target(answer.rcode));
                    }
                    whole.flags |= answer.flags & Flags::TC;
                    whole
                        .records
                        .extend(answer.records.into_iter().filter(|rr| rr.section == Section::Answer));
                }
                SubqueryResult::Failed(failure) => why = Some(failure),
            }
        }
        if !denial.is_empty() {
            whole.records.retain(|rr| rr.section != Section::Authority);
            whole.records.append(&mut denial);
        }
        match why.filter(|_| follow == FollowCnames::OrFail) {
            _ if missing => Err(NeedsUpstream),
            Some(failure) => {
                let mut answer = failed(query, &failure);
                answer.options.extend_ede(&whole.options);
                Ok((answer, Some(failure)))
            }
            None => Ok((whole, None)),
        }
    }

    /// Returns the result of a subquery; `None` if upstreams must be queried first. `from` is the
    /// middleware below which the subquery starts; without it the subquery is routed, and is a
    /// target.
    fn subquery(
        &mut self,
        from: Option<(&'h Arc<ServedZone>, usize)>,
        query: &Query<'_>,
    ) -> Option<SubqueryResult> {
        let is_target = from.is_none();
        let entry = from.map_or(EntryPoint::Top, |(zone, step)| EntryPoint::Step(zone.block.id, step));
        let key = SubqueryKey::new(entry, query);
        if let Some((_, known)) = self.subqueries.iter().find(|(other, _)| *other == key) {
            return match known {
                SubqueryState::InProgress => Some(SubqueryResult::Failed(Failure::Circle)),
                SubqueryState::NeedsUpstream => None,
                SubqueryState::Done(done) => Some(done.clone()),
            };
        }
        let above = self.at_target;
        let Some(left) = self.left.checked_sub(usize::from(above || is_target)) else {
            return Some(SubqueryResult::Failed(Failure::TooManyNames(MAX_SUBQUERIES)));
        };
        self.left = left;
        let (place, at) = (self.subqueries.len(), self.at);
        self.subqueries.push((key, SubqueryState::InProgress));
        self.at_target |= is_target;
        let end = match from.map_or_else(|| self.route.find(query, self.context).map(|zone| (zone, 0)), Ok) {
            Ok((zone, step)) => {
                let mut inbound = Inbound::new(zone, query, step, usize::MAX);
                inbound.effective.is_target = self.at_target;
                let stop = inbound.run(self.context);
                self.evaluate(&mut inbound, stop)
            }
            Err(failure) => Ok(Evaluated::Answer(Box::default(), Some(failure))),
        };
        self.at_target = above;
        self.at = at;
        let result = match end {
            // A copy is kept for a repetition.
            Ok(Evaluated::Answer(message, None)) => Some(match self.spend(message.records.len()) {
                Ok(()) => SubqueryResult::Answer(message),
                Err(failure) => SubqueryResult::Failed(failure),
            }),
            Ok(Evaluated::Answer(_, Some(failure))) => Some(SubqueryResult::Failed(failure)),
            Ok(Evaluated::Drop) => Some(SubqueryResult::Failed(Failure::Dropped)),
            Err(NeedsUpstream) => None,
        };
        self.subqueries[place].1 = result.clone().map_or(SubqueryState::NeedsUpstream, SubqueryState::Done);
        result
    }
}

impl Subqueries for Evaluation<'_, '_> {
    fn resolve(&mut self, name: &Name, rtype: RType, class: Class) -> Option<SubqueryResult> {
        let question = question(name, rtype, class);
        self.subquery(None, &Query { question: &question, name: *name, rtype, class, ..*self.query })
    }

    fn resolve_below(&mut self, effective: &EffectiveQuery<'_>, name: &Name) -> Option<SubqueryResult> {
        let (zone, step) = self.at?;
        let question = question(name, effective.rtype(), effective.class());
        let query = Query { question: &question, name: *name, ..effective.query() };
        self.subquery(Some((zone, step + 1)), &query)
    }

    fn may_compare(&mut self, octets: usize) -> bool {
        // Once the limit is exceeded no bytes are left, however short the next name: the answer
        // ends there.
        self.comparable = self.comparable.saturating_sub(octets);
        self.comparable > 0
    }

    fn count_when_answered(&mut self, counter: &Arc<PerThread>) {
        self.counts.push(counter.clone());
    }
}

/// Returns the reply to the client for a failure.
fn failed(query: &Query<'_>, failure: &Failure) -> Message {
    let mut message = Message::empty(query, failure.rcode());
    if let Some(ede) = failure.ede() {
        message.options.push_ede(ede);
    }
    message
}

/// Encodes the answer for the client.
pub fn write(message: &Message, query: &Query<'_>, reply: &mut Reply<'_>) {
    if message.write(query, reply).is_err() {
        // The record is unreadable; no source or middleware makes such a record.
        reply.clear();
        reply.rcode = Rcode::SERVFAIL;
    }
}

/// Bytes of a root name, type, class, TTL and length.
const SHORTEST_RECORD: usize = 11;
/// Bytes of names compared with patterns in one evaluation, per byte of the largest reply: all
/// names that fit uncompressed, with sixteen patterns each. Compressed, up to twenty times as many
/// names fit.
const MAX_COMPARED: usize = 16;
/// Maximum number of subqueries and CNAMEs sent to upstreams for one client's query; also the limit
/// of stale answers that it refreshes.
const MAX_ASKED: usize = 8;
/// Subqueries and CNAMEs that are evaluated for one client's query; limits the cost of answers from
/// memory.
const MAX_SUBQUERIES: usize = 32;
/// Records decoded or copied for one client's query over all its evaluations: four messages of 64
/// KiB have no more. An answer that needs a subquery is decoded twice, the first of a chain of nine
/// ten times; that many records would take a worker a tenth of a second.
const MAX_RECORDS: usize = 4 * (65_535 / SHORTEST_RECORD);
