//! Answers from a zone in memory, for the plugins that follow zone files.

use std::fmt;
use std::sync::Arc;

use plugin::failure::{Failure, FailureKind};
use plugin::hooks::ReplySize;
use plugin::zone_request::{Next, Push, RecordByRecord, ZoneOutcome};
use plugin::{Lookup, QueryContext};
use wire::{Name, Proto, Query, RType, Reply, ZoneRequest};
use zone::{Answered, Limits, Loop, Place, Zone};

/// Writes the zone's answer to `reply`.
///
/// # Errors
/// [`Loop`]
pub(crate) fn write(
    zone: &Zone,
    size: &ReplySize,
    query: &Query<'_>,
    context: &QueryContext<'_>,
    reply: &mut Reply<'_>,
) -> Result<Answered, Loop> {
    let opt = if query.edns.is_some() { OPT } else { 0 };
    let octets = size.limit(query, context.proto) - opt;
    zone.answer(query, Limits { octets, all_of_any: context.proto == Proto::Tcp }, reply)
}

/// Returns the result of the lookup, once [`write()`] has written the answer.
pub(crate) fn lookup(plugin: &'static str, answered: Result<Answered, Loop>) -> Lookup {
    match answered {
        Ok(Answered::Outside) => Lookup::FollowLast,
        Ok(_) => Lookup::Answer,
        Err(Loop) => Lookup::Fail(Failure::own(plugin, FailureKind::Error, "the name is an alias of itself")),
    }
}

/// Whether the query's name does not exist or has no records itself.
pub(crate) fn is_denied(answered: Answered, reply: &Reply<'_>) -> bool {
    matches!(answered, Answered::NameError | Answered::EmptyNonTerminal) && reply.counts()[0] == 0
}

/// Writes the zone's answer to `reply` and describes it; `file` is the text for the zone's file.
pub(crate) fn explain(
    zone: &Zone,
    file: impl fmt::Display,
    query: &Query<'_>,
    reply: &mut Reply<'_>,
) -> (Result<Answered, Loop>, String) {
    let limits = Limits { octets: usize::from(u16::MAX), all_of_any: true };
    let answered = zone.answer(query, limits, reply);
    let what = match answered {
        Ok(Answered::Records) => format!("{file} has {} records or an alias of the name", query.rtype),
        Ok(Answered::NoData) => {
            format!("NODATA: {file} has the name, but no {} records of it", query.rtype)
        }
        Ok(Answered::EmptyNonTerminal) => format!("NODATA: {file} has only names below the name"),
        Ok(Answered::NameError) => format!("NXDOMAIN: {file} does not have the name"),
        Ok(Answered::Referral) => format!("a referral: {file} delegates the name"),
        Ok(Answered::Outside) => {
            format!("{file} has an alias of a name outside of the zone, which is looked up")
        }
        Err(Loop) => format!("SERVFAIL: {file} has an alias that leads to itself"),
    };
    (answered, what)
}

/// Answers a request for a transfer: all records over TCP, and the SOA record alone over UDP or if
/// the client has the zone's serial or a later one (RFC 1982, section 3.2).
pub(crate) fn transfer(
    zone: Arc<Zone>,
    request: &ZoneRequest<'_>,
    context: &QueryContext<'_>,
) -> ZoneOutcome {
    let is_current = request.serial().is_some_and(|serial| serial.wrapping_sub(zone.serial()) < 1 << 31);
    let soa_alone = context.proto == Proto::Udp || is_current;
    ZoneOutcome::Stream(Box::new(records(zone, soa_alone)))
}

/// The records of a transfer: SOA, all others, and SOA again (RFC 5936, section 2.2).
fn records(zone: Arc<Zone>, soa_alone: bool) -> RecordByRecord<impl FnMut(&mut Push<'_>) -> Next> {
    let (mut begun, mut place) = (false, Some(Place::default()));
    RecordByRecord(move |push: &mut Push<'_>| {
        let (ttl, soa) = zone.soa();
        if !begun && !push(zone.origin(), RType::SOA, ttl, soa) {
            return Next::More;
        }
        begun = true;
        if soa_alone {
            return Next::End;
        }
        if let Some(from) = place {
            place = zone.each_from(from, |owner, rtype, ttl, data| {
                Name::from_wire(owner).is_ok_and(|owner| push(&owner, rtype, ttl, data))
            });
            if place.is_some() {
                return Next::More;
            }
        }
        if push(zone.origin(), RType::SOA, ttl, soa) { Next::End } else { Next::More }
    })
}

/// Bytes of an OPT record without options.
const OPT: usize = 11;
