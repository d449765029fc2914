//! Serves one packet: from the decision of [`wire::accept`] to the reply, for every transport.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use wire::{Class, Ede, Flags, Name, Owner, Proto, Query, RType, Rcode, Reply, Section, Verdict};

use crate::ServedZone;
use crate::evaluate::{
    self, Evaluated, Evaluation, FollowCnames, NeedsUpstream, PendingLookups, SubqueryAnswer, UpstreamQuery,
    Usage,
};
use crate::inbound::{Inbound, Stop};
use crate::route::Route;
use logging::{LineRing, LogEntry};
use metrics::counters::{Counted, ThreadCounters, ZoneSet};
use plugin::failure::Failure;
use plugin::hooks::ReplySize;
use plugin::{HostsGuard, Lookup, QueryContext};

/// The zones of one endpoint.
pub struct ServedEndpoint {
    /// The zones; suspended queries keep this `Arc`.
    pub route: Arc<Route>,
    /// Counters for queries of no zone; `None` if no block has `prometheus`.
    pub dropped: Option<ZoneSet>,
    /// The name of the watchdog's queries.
    pub probe: Name,
}

impl ServedEndpoint {
    /// Returns the counters of thread `writer` for queries of no zone.
    #[inline]
    pub fn dropped_counters(&self, writer: usize) -> ThreadCounters<'_> {
        ThreadCounters::new(self.dropped.as_deref(), writer)
    }
}

mod transfer_stream;
mod zone_request;

pub use transfer_stream::{BrokenTransfer, TransferStream};

/// Result of serving a packet. If there is a reply, the outcome that was passed to [`serve`]
/// describes it.
#[allow(clippy::large_enum_variant, reason = "only a miss is large, and a box would cost it an allocation")]
pub enum Served<'h> {
    /// The packet is no client's query: there is no reply, and its connection is closed.
    Nothing,
    /// No reply.
    Silence,
    /// The reply is in the buffer.
    Reply,
    /// An upstream must be queried: for this client, or, if the buffer has its reply, to refresh
    /// the cache.
    Ask {
        /// Whether the buffer has the reply.
        replied: bool,
        /// The query for upstreams.
        asked: UpstreamQuery<'h>,
    },
    /// Upstreams must be queried for an evaluation: for this client, or, if the buffer has its
    /// reply, to refresh the cache.
    Follow {
        /// Whether the buffer has the reply.
        replied: bool,
        /// The queries for upstreams.
        lookups: Box<PendingLookups<'h>>,
    },
    /// A transfer over a stream. Nothing is written or counted yet.
    Stream(Box<TransferStream>),
}

/// Outcome of a query, for metrics and logs after the reply is sent.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Index in the configuration of the zone that served the query; `None` for no zone.
    pub zone: Option<u32>,
    /// Whether metrics count the query; not for BADVERS, FORMERR and NOTIMP, which reach no server
    /// block.
    pub counted: bool,
    /// The queried type.
    pub rtype: RType,
    /// Whether the client set DO.
    pub dnssec_ok: bool,
    /// The rcode sent.
    pub rcode: Rcode,
    /// The flags sent.
    pub flags: Flags,
    /// Records in the answer section.
    pub answers: u16,
    /// Whether the authority section has an SOA; only set if the block observes all queries.
    pub soa: bool,
    /// Bytes of the query; no transport carries more.
    pub request_size: u16,
    /// Bytes of the reply.
    pub response_size: u16,
    /// Why the query failed.
    pub failure: Option<Box<Failure>>,
}

impl Outcome {
    /// Whether both outcomes are counted alike, apart from sizes.
    #[inline]
    pub fn is_like(&self, other: &Self) -> bool {
        self.zone == other.zone
            && self.rtype == other.rtype
            && self.rcode == other.rcode
            && self.counted == other.counted
            && self.dnssec_ok == other.dnssec_ok
            && self.failure.is_some() == other.failure.is_some()
    }

    /// An outcome that is not counted.
    pub const OPEN: Self = Self {
        zone: None,
        counted: false,
        rtype: RType(0),
        dnssec_ok: false,
        rcode: Rcode::NOERROR,
        flags: Flags(0),
        answers: 0,
        soa: false,
        request_size: 0,
        response_size: 0,
        failure: None,
    };
}

/// Serves a packet: if the answer is in memory, writes the reply to `out` and its outcome to
/// `outcome`.
#[inline]
pub fn serve<'h>(
    endpoint: &'h ServedEndpoint,
    gate: &Verdict<'_>,
    context: &QueryContext<'_>,
    tables: &mut HostsGuard<'h>,
    out: &mut Vec<u8>,
    outcome: &mut Outcome,
) -> Served<'h> {
    let query = match gate {
        Verdict::Pass(query) => query,
        Verdict::Zone(request) => {
            return zone_request::serve(endpoint, request, context, tables, out, outcome);
        }
        Verdict::Drop => return Served::Nothing,
        Verdict::Refuse(refusal) => {
            refusal.write(out);
            *outcome = Outcome {
                rcode: refusal.rcode,
                flags: refusal.flags,
                response_size: out.len() as u16,
                ..Outcome::OPEN
            };
            return Served::Reply;
        }
    };
    if query.class == Class::CH && query.name == endpoint.probe {
        own_probe(query, context.writer, out);
        *outcome = Outcome::OPEN;
        return Served::Reply;
    }
    let zone = match endpoint.route.find(query, context) {
        Ok(zone) => zone,
        Err(failure) => {
            *outcome = no_zone(query, failure, context.proto, out);
            return Served::Reply;
        }
    };
    if !zone.block.pipeline.steps().is_empty()
        && let Some(served) = through_steps(endpoint, zone, query, context, tables, out, outcome)
    {
        return served;
    }
    let mut reply = Reply::start(out, query);
    let pipeline = &zone.block.pipeline;
    let (failure, refreshes) =
        match pipeline.answer_now(context, tables, query, &mut reply, zone.counters(context.writer)) {
            Lookup::Answer => (None, false),
            Lookup::Refresh => (None, true),
            Lookup::Ask(patience) => {
                return Served::Ask {
                    replied: false,
                    asked: UpstreamQuery::new(query, zone, patience, true),
                };
            }
            follow @ (Lookup::Follow | Lookup::FollowOrFail | Lookup::FollowLast) => {
                let follow = match follow {
                    Lookup::FollowLast => FollowCnames::Last,
                    Lookup::FollowOrFail => FollowCnames::OrFail,
                    _ => FollowCnames::Yes,
                };
                let found = vec![SubqueryAnswer::of_reply(zone, query, &reply, follow)];
                let inbound = Inbound::passed(zone, query);
                return evaluate(endpoint, inbound, Stop::Sources, context, tables, found, out, outcome);
            }
            Lookup::Delay(delay) => {
                let answer = SubqueryAnswer::delayed(zone, query, &reply, delay.failure);
                let inbound = Inbound::passed(zone, query);
                let (stop, wait) = (Stop::Wait(delay.duration), vec![answer]);
                return evaluate(endpoint, inbound, stop, context, tables, wait, out, outcome);
            }
            Lookup::Pass => (Some(refuse(&mut reply, pipeline.unanswered())), false),
            // Each arm takes its value, so that the answers that pass here need no drop.
            Lookup::Fail(failure) => match failure {
                Failure::Dropped => return Served::Silence,
                failure => (Some(refuse(&mut reply, failure)), false),
            },
        };
    finish(zone, query, &mut reply, context.proto, failure, outcome);
    if refreshes {
        return Served::Ask { replied: true, asked: UpstreamQuery::for_next(query, zone, true) };
    }
    Served::Reply
}

#[cold]
fn refuse(reply: &mut Reply<'_>, failure: Failure) -> Failure {
    fail(reply, &failure);
    failure
}

/// Runs the middleware of the block; `None` if none of it acts on this query.
#[cold]
#[inline(never)]
fn through_steps<'h>(
    endpoint: &'h ServedEndpoint,
    zone: &'h Arc<ServedZone>,
    query: &Query<'_>,
    context: &QueryContext<'_>,
    tables: &mut HostsGuard<'h>,
    out: &mut Vec<u8>,
    outcome: &mut Outcome,
) -> Option<Served<'h>> {
    let mut inbound = Inbound::new(zone, query, 0, 0);
    let stop = inbound.run(context);
    if inbound.is_unchanged(&stop) {
        return None;
    }
    Some(evaluate(endpoint, inbound, stop, context, tables, Vec::new(), out, outcome))
}

/// Evaluates a query as far as memory has its answers.
///
/// Out of line: few queries need this function, and its stack frame would burden all others.
#[cold]
#[inline(never)]
#[allow(clippy::too_many_arguments, reason = "what `serve` was given, and what was found already")]
fn evaluate<'h, 'q>(
    endpoint: &'h ServedEndpoint,
    inbound: Inbound<'h, 'q>,
    stop: Stop<'h>,
    context: &'q QueryContext<'q>,
    tables: &'q mut HostsGuard<'h>,
    found: Vec<Arc<SubqueryAnswer>>,
    out: &mut Vec<u8>,
    outcome: &mut Outcome,
) -> Served<'h> {
    let (zone, query) = (inbound.zone, inbound.effective.client_query());
    let mut evaluation = Evaluation::new(&endpoint.route, context, tables, query, found, Usage::default());
    match evaluation.run_from(inbound, stop) {
        Ok(Evaluated::Answer(message, failure)) => {
            let mut reply = Reply::start(out, query);
            evaluate::write(&message, query, &mut reply);
            finish(zone, query, &mut reply, context.proto, failure, outcome);
            match evaluation.refreshes() {
                Some(lookups) => Served::Follow { replied: true, lookups },
                None => Served::Reply,
            }
        }
        Ok(Evaluated::Drop) => Served::Silence,
        Err(NeedsUpstream) => match evaluation.wait(zone) {
            Ok(lookups) => Served::Follow { replied: false, lookups },
            Err(failure) => {
                let mut reply = Reply::start(out, query);
                fail(&mut reply, &failure);
                finish(zone, query, &mut reply, context.proto, Some(failure), outcome);
                Served::Reply
            }
        },
    }
}

/// Replaces the content of a reply with rcode and Extended DNS Error of a failure.
pub fn fail(reply: &mut Reply<'_>, failure: &Failure) {
    reply.clear();
    reply.rcode = failure.rcode();
    if let Some(ede) = failure.ede() {
        reply.options.push_ede(ede);
    }
}

/// Completes a reply and writes the outcome of its query.
///
/// Writes the outcome in place: a copy would use wide loads right after narrower stores, which
/// stall (store forwarding).
#[inline(always)]
pub fn finish(
    zone: &ServedZone,
    query: &Query<'_>,
    reply: &mut Reply<'_>,
    proto: Proto,
    failure: Option<Failure>,
    outcome: &mut Outcome,
) {
    let (rcode, answers) = (reply.rcode, reply.counts()[0]);
    // Without an OPT there is no room for the upper bits of an rcode (RFC 6891, section 6.1.3).
    if query.edns.is_none() && rcode.0 > 15 {
        reply.rcode = Rcode::SERVFAIL;
    }
    let soa = zone.block.envelope.observes_queries()
        && answers == 0
        && reply.records().any(|record| record.rtype == RType::SOA);
    let (flags, response_size) = zone.finish(query, reply, proto);
    *outcome = Outcome {
        zone: Some(zone.index as u32),
        counted: true,
        rtype: query.rtype,
        dnssec_ok: query.dnssec_ok(),
        rcode,
        flags,
        answers,
        soa,
        request_size: query.size as u16,
        response_size: response_size as u16,
        failure: failure.map(Box::new),
    };
}

/// Answers the watchdog's probe, uncounted: the thread's number is the last two bytes of a TXT
/// record.
#[cold]
fn own_probe(query: &Query<'_>, writer: usize, out: &mut Vec<u8>) {
    let mut reply = Reply::start(out, query);
    let [high, low] = (writer as u16).to_be_bytes();
    reply.push(Section::Answer, Owner::Question, RType::TXT, Class::CH, 0, &[2, high, low]);
    finish_outside(query, &mut reply, Proto::Udp);
}

#[cold]
fn no_zone(query: &Query<'_>, failure: Failure, proto: Proto, out: &mut Vec<u8>) -> Outcome {
    let mut reply = Reply::start(out, query);
    reply.rcode = failure.rcode();
    reply.options.push_ede(failure.ede().unwrap_or(Ede::NOT_AUTHORITATIVE));
    let rcode = reply.rcode;
    let (flags, response_size) = finish_outside(query, &mut reply, proto);
    Outcome {
        counted: true,
        rtype: query.rtype,
        dnssec_ok: query.dnssec_ok(),
        rcode,
        flags,
        request_size: query.size as u16,
        response_size: response_size as u16,
        ..Outcome::OPEN
    }
}

/// Writes a reply without records that is not counted: after a panic, or for lack of memory.
pub fn error_reply(query: &Query<'_>, failure: &Failure, out: &mut Vec<u8>) {
    let mut reply = Reply::start(out, query);
    fail(&mut reply, failure);
    finish_outside(query, &mut reply, Proto::Udp);
}

/// Completes a reply of no server block.
fn finish_outside(query: &Query<'_>, reply: &mut Reply<'_>, proto: Proto) -> (Flags, usize) {
    reply.finish(query, ReplySize::default().limit(query, proto))
}

/// Counts queries of one zone that differ in sizes alone; `nanos` is the time since their receipt.
/// Called after the replies are sent.
#[inline]
pub fn count(counters: ThreadCounters<'_>, alike: &[Outcome], proto: Proto, ipv6: bool, nanos: u64) {
    let Some(first) = alike.first() else { return };
    let counted = Counted {
        proto,
        ipv6,
        rtype: first.rtype,
        dnssec_ok: first.dnssec_ok,
        rcode: first.rcode,
        failed: first.failure.is_some(),
        nanos,
    };
    counters.count(
        &counted,
        alike.iter().map(|outcome| [outcome.request_size.into(), outcome.response_size.into()]),
    );
}

/// Whether a query with this outcome may be logged or observed.
#[inline]
pub fn is_logged(zone: &ServedZone, outcome: &Outcome) -> bool {
    zone.block.envelope.observes_queries() || outcome.failure.is_some()
}

/// Reports outcome and failure of a query to the hooks of its block.
pub fn log(zone: &ServedZone, outcome: &Outcome, seen: &Observed, query: &Query<'_>, lines: &mut LineRing) {
    if let Some(failure) = &outcome.failure {
        zone.block.envelope.query_failed(failure, query, seen.now);
    }
    if zone.block.envelope.observes_queries() {
        zone.block.envelope.query_ended(&entry(zone, query, outcome, seen), lines);
    }
}

fn entry<'s>(zone: &ServedZone, query: &'s Query<'_>, outcome: &Outcome, seen: &Observed) -> LogEntry<'s> {
    let name: &Name = &query.name;
    LogEntry {
        client: seen.client,
        local: seen.local,
        proto: seen.proto,
        id: query.id,
        opcode: query.flags.opcode(),
        name,
        rtype: query.rtype,
        class: query.class,
        size: query.size,
        dnssec_ok: query.dnssec_ok(),
        bufsize: zone.block.envelope.size.displayed(query.udp_limit()) as u16,
        rcode: outcome.rcode,
        flags: outcome.flags,
        rsize: outcome.response_size.into(),
        nanos: seen.nanos,
        answers: outcome.answers,
        soa: outcome.soa,
        upstream: seen.upstream,
    }
}

/// Data of a query for hooks, besides its outcome.
#[derive(Debug, Clone, Copy)]
pub struct Observed {
    /// The client.
    pub client: SocketAddr,
    /// The address that the client sent the query to, if known.
    pub local: Option<SocketAddr>,
    /// The client's transport.
    pub proto: Proto,
    /// Nanoseconds from receipt to reply.
    pub nanos: u64,
    /// The time now.
    pub now: Instant,
    /// The upstream that answered, if one did.
    pub upstream: Option<SocketAddr>,
}
