//! Requests about a whole zone (AXFR, IXFR, NOTIFY, UPDATE): answered by a source of its block, or
//! refused.

use wire::{Class, Flags, Opcode, Proto, Query, RType, Rcode, Refusal, Reply, ZoneRequest};

use super::{
    FollowCnames, Outcome, Served, ServedEndpoint, SubqueryAnswer, TransferStream, evaluate, finish, no_zone,
    refuse,
};
use crate::inbound::{Inbound, Stop};
use plugin::failure::Failure;
use plugin::zone_request::{StreamMessage, ZoneOutcome};
use plugin::{HostsGuard, QueryContext};

/// Passes a request through route, middleware and sources.
#[cold]
#[inline(never)]
pub(super) fn serve<'h>(
    endpoint: &'h ServedEndpoint,
    request: &ZoneRequest<'_>,
    context: &QueryContext<'_>,
    tables: &mut HostsGuard<'h>,
    out: &mut Vec<u8>,
    outcome: &mut Outcome,
) -> Served<'h> {
    let query = &request.query;
    let zone = match endpoint.route.find(query, context) {
        Ok(zone) => zone,
        Err(_) if is_update(query) => {
            *outcome = no_update(query, out);
            return Served::Reply;
        }
        Err(failure) => {
            *outcome = no_zone(query, failure, context.proto, out);
            return Served::Reply;
        }
    };
    let mut inbound = Inbound::new(zone, query, 0, 0);
    let stop = inbound.run(context);
    // Middleware that changes the question, or issues subqueries first (autopath), would pass on a
    // question that the client did not send.
    let passes = match stop {
        Stop::Sources => !inbound.effective.has_other_question(),
        Stop::Needs(_) => false,
        Stop::Answer(_) | Stop::Fail(_) | Stop::Silence | Stop::Wait(_) => {
            // If the answer needs subqueries the middleware runs again. This failure stands for the
            // sources' answer, so that nothing is forwarded.
            let found = vec![SubqueryAnswer::new(zone, query, Err(Failure::NotTaken), FollowCnames::No)];
            return evaluate(endpoint, inbound, stop, context, tables, found, out, outcome);
        }
    };
    // RFC 5936, section 4.2: "AXFR sessions over UDP transport are not defined."; over QUIC none is
    // served.
    let is_lost = query.rtype == RType::AXFR && context.proto != Proto::Tcp && request.is_transfer();
    let mut reply = Reply::start(out, query);
    let taken = if passes && !is_lost && query.class == Class::IN {
        zone.block.pipeline.of_zone(request, context, &mut reply)
    } else {
        ZoneOutcome::Pass
    };
    let failure = match taken {
        ZoneOutcome::Answer => None,
        ZoneOutcome::Stream(messages) if context.proto == Proto::Tcp => {
            return Served::Stream(Box::new(TransferStream::new(zone, query, messages)));
        }
        ZoneOutcome::Stream(mut messages) => {
            messages.next(&mut StreamMessage::new(&mut reply, &query.name, 0, 1));
            (reply.counts()[0] == 0).then(|| refuse(&mut reply, Failure::CutOff(0)))
        }
        ZoneOutcome::Fail(failure) => Some(refuse(&mut reply, failure)),
        ZoneOutcome::Pass if is_update(query) => {
            *outcome = Outcome { zone: Some(zone.index as u32), ..no_update(query, out) };
            return Served::Reply;
        }
        ZoneOutcome::Pass => Some(refuse(&mut reply, Failure::NotTaken)),
    };
    finish(zone, query, &mut reply, context.proto, failure, outcome);
    Served::Reply
}

fn is_update(query: &Query<'_>) -> bool {
    query.flags.opcode() == Opcode::UPDATE
}

/// Writes NOTIMP, without a question like every NOTIMP reply.
fn no_update(query: &Query<'_>, out: &mut Vec<u8>) -> Outcome {
    let Query { id, flags, rtype, edns, size, .. } = *query;
    let opt = edns.map(|edns| edns.dnssec_ok);
    Refusal { id, flags, rcode: Rcode::NOTIMP, question: None, opt }.write(out);
    Outcome {
        counted: true,
        rtype,
        dnssec_ok: query.dnssec_ok(),
        rcode: Rcode::NOTIMP,
        flags: Flags(out.get(2..4).map_or(0, |flags| u16::from_be_bytes([flags[0], flags[1]]))),
        request_size: size as u16,
        response_size: out.len() as u16,
        failure: Some(Box::new(Failure::NoUpdate)),
        ..Outcome::OPEN
    }
}
