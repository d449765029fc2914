//! One packet's way from the gate to its reply, the same for every transport.

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
use observe::counters::{Counted, ThreadCounters, ZoneSet};
use observe::{LineRing, LogEntry};
use plugin::envelope::ReplySize;
use plugin::failure::Failure;
use plugin::{Lookup, QueryContext, Tables};

/// The zones of one endpoint.
pub struct ServedEndpoint {
    /// Which zone answers; a query that must wait for an inner lookup keeps it.
    pub route: Arc<Route>,
    /// What is counted of queries that no zone answers; only where some block has `prometheus`.
    pub dropped: Option<ZoneSet>,
    /// The name by which this process asks itself whether it serves.
    pub probe: Name,
}

impl ServedEndpoint {
    /// Where thread `writer` counts queries that no zone answers.
    #[inline]
    pub fn dropped_counters(&self, writer: usize) -> ThreadCounters<'_> {
        ThreadCounters::new(self.dropped.as_deref(), writer)
    }
}

mod transfer_stream;
mod zone_request;

pub use transfer_stream::{BrokenTransfer, TransferStream};

/// What becomes of a packet. Where there is a reply, the outcome that [`serve`] was given tells how the query ended.
#[allow(clippy::large_enum_variant, reason = "only a miss is large, and a box would cost it an allocation")]
pub enum Served<'h> {
    /// Nothing that a client would send: it is told nothing, and a connection that brings it is ended.
    Nothing,
    /// A client that is told nothing.
    Silence,
    /// The reply is in the buffer.
    Reply,
    /// An upstream must be asked: for the client, or, where the reply is in the buffer, for the next one.
    Ask {
        /// Whether there is a reply.
        replied: bool,
        /// What to ask.
        asked: UpstreamQuery<'h>,
    },
    /// Upstreams must be asked for what the answer needs: for the client, or, where there is a reply in the buffer, for the
    /// next one.
    Follow {
        /// Whether there is a reply.
        replied: bool,
        /// What to ask.
        lookups: Box<PendingLookups<'h>>,
    },
    /// A transfer, of which nothing is written and nothing counted yet: message after message. Over streams only.
    Stream(Box<TransferStream>),
}

/// How a query ended, for those who observe it after the reply is sent.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Which zone answered, by its index in the configuration; `None` where no zone did.
    pub zone: Option<u32>,
    /// Whether metrics count it: BADVERS, FORMERR and NOTIMP never reach a server block.
    pub counted: bool,
    /// The type asked for.
    pub rtype: RType,
    /// Whether the client set DO.
    pub dnssec_ok: bool,
    /// The rcode sent.
    pub rcode: Rcode,
    /// The flags sent.
    pub flags: Flags,
    /// How many records the answer section has.
    pub answers: u16,
    /// Whether the authority section has an SOA; looked at only where somebody is told of every query.
    pub soa: bool,
    /// Octets of the query; no transport carries more than these have room for.
    pub request_size: u16,
    /// Octets of the reply.
    pub response_size: u16,
    /// Why there was no answer.
    pub failure: Option<Box<Failure>>,
}

impl Outcome {
    /// Whether it is counted as the other one is, sizes aside.
    #[inline]
    pub fn is_like(&self, other: &Self) -> bool {
        self.zone == other.zone
            && self.rtype == other.rtype
            && self.rcode == other.rcode
            && self.counted == other.counted
            && self.dnssec_ok == other.dnssec_ok
            && self.failure.is_some() == other.failure.is_some()
    }

    /// A query that has not ended, and is not counted.
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

/// Takes a packet through gate, route and pipeline, and writes its reply to `out`, and how it ended to `outcome`, if memory
/// has an answer.
#[inline]
pub fn serve<'h>(
    endpoint: &'h ServedEndpoint,
    gate: &Verdict<'_>,
    context: &QueryContext<'_>,
    tables: &mut Tables<'h>,
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
    let zone = match endpoint.route.find(query) {
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
            follow @ (Lookup::Follow | Lookup::FollowOrFail) => {
                let follow =
                    if matches!(follow, Lookup::Follow) { FollowCnames::Yes } else { FollowCnames::OrFail };
                let found = vec![SubqueryAnswer::of_reply(zone, query, &reply, follow)];
                let inbound = Inbound::passed(zone, query);
                return evaluate(endpoint, inbound, Stop::Sources, context, tables, found, out, outcome);
            }
            Lookup::Pass => (Some(refuse(&mut reply, pipeline.unanswered())), false),
            Lookup::Fail(failure) => (Some(refuse(&mut reply, failure)), false),
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

/// Runs the steps of the block; `None` where none of them acts on this query.
#[cold]
#[inline(never)]
fn through_steps<'h>(
    endpoint: &'h ServedEndpoint,
    zone: &'h Arc<ServedZone>,
    query: &Query<'_>,
    context: &QueryContext<'_>,
    tables: &mut Tables<'h>,
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

/// Puts an answer together from what it needs, as far as memory has it.
///
/// Out of line: few queries come here, and all others would carry its frame.
#[cold]
#[inline(never)]
#[allow(clippy::too_many_arguments, reason = "what `serve` was given, and what was found already")]
fn evaluate<'h, 'q>(
    endpoint: &'h ServedEndpoint,
    inbound: Inbound<'h, 'q>,
    stop: Stop<'h>,
    context: &'q QueryContext<'q>,
    tables: &'q mut Tables<'h>,
    found: Vec<Arc<SubqueryAnswer>>,
    out: &mut Vec<u8>,
    outcome: &mut Outcome,
) -> Served<'h> {
    let (zone, query) = (inbound.zone, inbound.sought.asked());
    let mut evaluation = Evaluation::new(&endpoint.route, context, tables, query, found, Usage::default());
    match evaluation.run_from(inbound, stop) {
        Ok(Evaluated::Told(message, failure)) => {
            let mut reply = Reply::start(out, query);
            evaluate::write(&message, query, &mut reply);
            finish(zone, query, &mut reply, context.proto, failure, outcome);
            match evaluation.refreshes() {
                Some(lookups) => Served::Follow { replied: true, lookups },
                None => Served::Reply,
            }
        }
        Ok(Evaluated::Silence) => Served::Silence,
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

/// Empties a reply and says in it why there is no answer.
pub fn fail(reply: &mut Reply<'_>, failure: &Failure) {
    reply.clear();
    reply.rcode = failure.rcode();
    if let Some(ede) = failure.ede() {
        reply.options.push_ede(ede);
    }
}

/// Completes a reply and writes to `outcome` how the query ended.
///
/// The outcome is written where its reader finds it. Returned by value it would be copied in wider words than it was just
/// stored in, and such a load cannot be served from the store buffer (store forwarding): it waits until the stores retire.
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
    let soa = zone.block.envelope.hears_ends()
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

/// Answers the watchdog, uncounted: which thread this is, as the last two octets of a TXT record.
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

/// A reply without records, of which nothing is counted: what a client gets whose query met a bug of ours, or found no room.
pub fn error_reply(query: &Query<'_>, failure: &Failure, out: &mut Vec<u8>) {
    let mut reply = Reply::start(out, query);
    fail(&mut reply, failure);
    finish_outside(query, &mut reply, Proto::Udp);
}

/// Completes a reply that no server block sends.
fn finish_outside(query: &Query<'_>, reply: &mut Reply<'_>, proto: Proto) -> (Flags, usize) {
    reply.finish(query, ReplySize::default().limit(query, proto))
}

/// Counts how queries of one zone ended, which are alike but in their sizes, `nanos` after their receipt. Their replies are
/// sent by then.
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

/// Whether a log or an observer may want a query with this outcome.
#[inline]
pub fn is_logged(zone: &ServedZone, outcome: &Outcome) -> bool {
    zone.block.envelope.hears_ends() || outcome.failure.is_some()
}

/// Tells those of its block that want to know it how a query ended, and why it failed.
pub fn log(zone: &ServedZone, outcome: &Outcome, seen: &Observed, query: &Query<'_>, lines: &mut LineRing) {
    if let Some(failure) = &outcome.failure {
        zone.block.envelope.tell_failure(failure, query, seen.now);
    }
    if zone.block.envelope.hears_ends() {
        zone.block.envelope.tell_end(&entry(zone, query, outcome, seen), lines);
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
        bufsize: zone.block.envelope.size.told(query.udp_limit()) as u16,
        rcode: outcome.rcode,
        flags: outcome.flags,
        rsize: outcome.response_size.into(),
        nanos: seen.nanos,
        answers: outcome.answers,
        soa: outcome.soa,
        upstream: seen.upstream,
    }
}

/// What observers know of a query besides its outcome.
#[derive(Debug, Clone, Copy)]
pub struct Observed {
    /// The client.
    pub client: SocketAddr,
    /// The address asked, where known.
    pub local: Option<SocketAddr>,
    /// The client's transport.
    pub proto: Proto,
    /// From receipt to reply.
    pub nanos: u64,
    /// The time now.
    pub now: Instant,
    /// The upstream that was asked for the answer, if one was.
    pub upstream: Option<SocketAddr>,
}
