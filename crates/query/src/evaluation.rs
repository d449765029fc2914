//! One query's answer, put together from what it needs: the way in through the steps, what stands below them, what that
//! leads to, and the way back.
//!
//! ```text
//! evaluate(query, found) -> told | silence | what must be asked first
//! ```
//! Nothing is resumed in the middle. Where upstreams must be asked, all that are known to be needed are asked at once, and
//! the client's query waits; when the last of them has answered, what each said is kept as an [`InnerAnswer`], and the query
//! is evaluated again from the start. A lookup that another answer needs (a `CNAME` of a template, a wish of a step) takes
//! the whole way of a query, but nobody counts or logs it; why one failed is told by `errors`.

mod found;
mod outer;

use std::sync::Arc;
use std::time::Duration;

use forwarder::{Who, client_number};
use metrics::counters::PerThread;
use wire::{Class, Flags, Message, Name, OPTION_CLIENT_SUBNET, Packed, Query, RType, Rcode, Reply, Section};

use crate::ServedZone;
use crate::route::Route;
use plugin::failure::Failure;
use plugin::step::{Inward, Outward, Sought, Wish, Wishes, question};
use plugin::{Lookup, QueryContext, Tables};

pub use crate::held::MOST_HELD;
pub use found::{FollowCnames, InnerAnswer};
pub use outer::{InnerLookups, Outer, Spent, UpstreamQuery};

/// How an evaluation ends.
pub enum End {
    /// The client is told this; the failure, if there is one, is what was found below the steps.
    Told(Box<Message>, Option<Failure>),
    /// The client is told nothing.
    Silence,
}

/// The evaluation of one client's query.
pub struct Evaluation<'h, 'a> {
    route: &'h Arc<Route>,
    context: &'a QueryContext<'a>,
    tables: &'a mut Tables<'h>,
    query: &'a Query<'a>,
    /// What is known already.
    found: Vec<Arc<InnerAnswer>>,
    /// What it has taken so far.
    spent: Spent,
    /// How many more wishes are looked at.
    left: usize,
    /// Octets of the largest reply that the client may get.
    room: usize,
    /// How many more octets of names are compared with patterns.
    comparable: usize,
    /// What counts one when this ends.
    counts: Vec<Arc<PerThread>>,
    /// Whether what is looked up now is a target, to which a CNAME or a wish led, and neither the client's own question nor a
    /// candidate for it ([`Wishes::candidate`]).
    at_target: bool,
    /// The wishes so far, each once.
    wishes: Vec<(Key, Known)>,
    /// The step that may wish now: its zone, and its place among the steps of the zone's block.
    at: Option<(&'h Arc<ServedZone>, usize)>,
    /// How long an upstream may take; zero asks none.
    pub patience: Duration,
    /// Cached answers on the way that are to be fetched again.
    refreshes: Vec<UpstreamQuery<'h>>,
    /// What must be asked first.
    missing: Vec<UpstreamQuery<'h>>,
}

/// Upstreams must be asked first: see [`Evaluation::wait`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing;

/// What a wish is found again by.
#[derive(PartialEq, Eq)]
struct Key {
    entry: EntryPoint,
    name: Name,
    rtype: RType,
    class: Class,
    added: Box<[u8]>,
}

/// Where a wish begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryPoint {
    /// As a client's query does: with the route.
    Top,
    /// At a step of a block, by the block's number.
    Step(u64, usize),
}

/// What is known of a wish.
enum Known {
    /// It is looked at now: whoever wishes for it again leads round in circles.
    Open,
    /// Upstreams must be asked for it.
    Missing,
    Came(Wish),
}

impl<'h, 'a> Evaluation<'h, 'a> {
    /// That of a query whose lookups came to `found` so far, for which so much was `spent` before.
    pub fn new(
        route: &'h Arc<Route>,
        context: &'a QueryContext<'a>,
        tables: &'a mut Tables<'h>,
        query: &'a Query<'a>,
        found: Vec<Arc<InnerAnswer>>,
        spent: Spent,
    ) -> Self {
        Self {
            route,
            context,
            tables,
            query,
            found,
            spent,
            left: MOST_WISHES,
            room: 0,
            comparable: 0,
            counts: Vec::new(),
            at_target: false,
            wishes: Vec::new(),
            at: None,
            patience: forwarder::DEADLINE,
            refreshes: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// What the client is told.
    ///
    /// # Errors
    /// Upstreams must be asked first.
    pub fn run(&mut self, zone: &'h Arc<ServedZone>) -> Result<End, Missing> {
        let Query { name, rtype, class, .. } = *self.query;
        let own = Key { entry: EntryPoint::Top, name, rtype, class, added: Box::default() };
        self.wishes.push((own, Known::Open));
        self.room = zone.block.envelope.size.limit(self.query, self.context.proto);
        self.comparable = MOST_COMPARED * self.room;
        let end = self.evaluate(zone, self.query, 0)?;
        self.counts.drain(..).for_each(|counter| counter.add(self.context.writer));
        Ok(end)
    }

    /// What must be asked, and what the client's query is kept with until all of it has come.
    ///
    /// # Errors
    /// Where what waits for this client holds too much already.
    pub fn wait(self, zone: &Arc<ServedZone>) -> Result<Box<InnerLookups<'h>>, Failure> {
        let who = Who::of(client_number(self.context.client().ip()));
        let outer = Outer::new(who, self.query, zone, self.route, self.found, self.spent)?;
        Ok(Box::new(InnerLookups { asked: self.missing, refreshes: self.refreshes, outer: Some(outer) }))
    }

    /// Cached answers on the way that are to be fetched again, if there are any.
    pub fn refreshes(&mut self) -> Option<Box<InnerLookups<'h>>> {
        let refreshes = std::mem::take(&mut self.refreshes);
        let lookups = InnerLookups { asked: Vec::new(), refreshes, outer: None };
        (!lookups.refreshes.is_empty()).then(|| Box::new(lookups))
    }

    /// Goes through the steps of a block from the nth on, down to its sources and back.
    fn evaluate(
        &mut self,
        zone: &'h Arc<ServedZone>,
        query: &Query<'_>,
        from: usize,
    ) -> Result<End, Missing> {
        let steps = zone.block.pipeline.steps();
        let mut sought = Sought::new(query, &zone.server, false);
        sought.is_target = self.at_target;
        let mut backs = Vec::new();
        let mut ended = None;
        for (index, step) in steps.iter().enumerate().skip(from) {
            let mut inward = step.inward(&mut sought, self.context);
            while let Inward::Needs(needs) = inward {
                self.at = Some((zone, index));
                inward = needs.go_on(&mut sought, self.context, self).ok_or(Missing)?;
            }
            match inward {
                Inward::Pass | Inward::Needs(_) => {}
                Inward::Back(back) => backs.push((index, back)),
                Inward::Answer(message) => {
                    ended = Some((message, None));
                    break;
                }
                Inward::Fail(failure) => {
                    ended = Some((Box::new(failed(query, &failure)), Some(failure)));
                    break;
                }
                Inward::Silence => return Ok(End::Silence),
            }
        }
        let is_from_below = ended.is_none();
        let (mut message, failure) = match ended {
            Some(ended) => ended,
            None => self.below(zone, &sought.query())?,
        };
        let told_below = (is_from_below && failure.is_none()).then_some(message.rcode);
        // What was sought without RD, or with it, is told to a client that may have asked otherwise.
        message.flags = message.flags & !Flags::RD | self.query.flags.0 & Flags::RD;
        // An answer to another question, or its denial, authenticates nothing of the one that was asked.
        if sought.is_another_question() {
            message.clear_ad();
        }
        for (index, back) in backs.iter().rev() {
            if failure.is_some() && !back.sees_failures() {
                continue;
            }
            self.at = Some((zone, *index));
            if back.back(&sought, self.context, &mut message, self) == Outward::Waits
                && !self.missing.is_empty()
            {
                return Err(Missing);
            }
        }
        if told_below != Some(Rcode::NOERROR) {
            tell_from_referral(&mut message, zone.block.pipeline.forwards());
        }
        Ok(End::Told(message, failure))
    }

    /// What the block tells below its steps, with the CNAMEs that a template made followed.
    fn below(
        &mut self,
        zone: &'h Arc<ServedZone>,
        query: &Query<'_>,
    ) -> Result<(Box<Message>, Option<Failure>), Missing> {
        let known = self.found.iter().find(|found| found.is_of(zone, query)).cloned();
        let found = match known {
            Some(found) => found,
            None => {
                let found = self.look_up(zone, query)?;
                self.found.push(found.clone());
                found
            }
        };
        let told = found.told.as_ref().map_err(Clone::clone);
        let (mut message, failure) = match told.and_then(|packed| self.take_apart(packed)) {
            Ok(message) if found.follow == FollowCnames::No => (message, None),
            Ok(message) => self.follow(query, &message, found.follow)?,
            Err(failure) => (failed(query, &failure), Some(failure)),
        };
        if query.added.has_subnet() {
            // The subnet was added here, and is not returned to a client that did not send it (RFC 7871, section 7.2.1).
            message.options.remove(OPTION_CLIENT_SUBNET);
        }
        Ok((Box::new(message), failure))
    }

    fn take_apart(&mut self, packed: &Packed) -> Result<Message, Failure> {
        // Of all sections together: with all of an upstream's 64 KiB a datagram would cost us a thousand times what it costs
        // its client.
        let most = (self.room / SHORTEST_RECORD) as u16;
        self.spend(packed.records(most))?;
        // It was packed from a reply of our own, whose records can be read.
        packed.message(most).map_err(|_| Failure::Panic)
    }

    /// Counts records that are about to be taken apart or copied.
    fn spend(&mut self, records: usize) -> Result<(), Failure> {
        let spent = self.spent.records + records;
        if spent > MOST_RECORDS {
            return Err(Failure::TooManyRecords(MOST_RECORDS));
        }
        self.spent.records = spent;
        Ok(())
    }

    fn look_up(&mut self, zone: &'h Arc<ServedZone>, query: &Query<'_>) -> Result<Arc<InnerAnswer>, Missing> {
        if self.missing.iter().any(|asked| asked.is_for(zone, query)) {
            return Err(Missing);
        }
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, query);
        let counters = zone.counters(self.context.writer);
        let mut follow = FollowCnames::No;
        match zone.block.pipeline.answer_now(self.context, self.tables, query, &mut reply, counters) {
            Lookup::Answer => {}
            Lookup::Follow => follow = FollowCnames::Yes,
            Lookup::FollowOrFail => follow = FollowCnames::OrFail,
            Lookup::Refresh if self.refreshes.len() < MOST_ASKED => {
                self.refreshes.push(UpstreamQuery::for_next(query, zone, !self.at_target));
            }
            // A later query refreshes it.
            Lookup::Refresh => {}
            Lookup::Ask(_) if self.patience.is_zero() => {
                let failure = Failure::Forward(forwarder::NoAnswer::Patience);
                return Ok(InnerAnswer::new(zone, query, Err(failure), FollowCnames::No));
            }
            Lookup::Ask(_) if self.at_target && self.spent.asked == MOST_ASKED => {
                return Ok(InnerAnswer::new(
                    zone,
                    query,
                    Err(Failure::TooManyNames(MOST_ASKED)),
                    FollowCnames::No,
                ));
            }
            Lookup::Ask(patience) => {
                // With the whole deadline left it is the forwarder that ends it, and its failure names the upstream.
                let left = Some(self.patience).filter(|&left| left < forwarder::DEADLINE);
                let patience = patience.into_iter().chain(left).min();
                self.spent.asked += usize::from(self.at_target);
                self.missing.push(UpstreamQuery::new(query, zone, patience, !self.at_target));
                return Err(Missing);
            }
            Lookup::Pass => return Ok(self.failed(zone, query, zone.block.pipeline.nobody())),
            Lookup::Fail(failure) => return Ok(self.failed(zone, query, failure)),
        }
        Ok(InnerAnswer::of_reply(zone, query, &reply, follow))
    }

    fn failed(&self, zone: &ServedZone, query: &Query<'_>, failure: Failure) -> Arc<InnerAnswer> {
        if self.at_target {
            zone.block.envelope.tell_failure(&failure, query, self.context.now);
        }
        InnerAnswer::new(zone, query, Err(failure), FollowCnames::No)
    }

    /// Puts behind each CNAME of the answer section what the server answers for its target. A target that has no answer
    /// adds nothing but the reason, and the CNAME stands alone, as in CoreDNS; or it is why there is no answer at all, where it
    /// is one of ours.
    fn follow(
        &mut self,
        query: &Query<'_>,
        made: &Message,
        follow: FollowCnames,
    ) -> Result<(Message, Option<Failure>), Missing> {
        let Message { rcode, flags, options, .. } = *made;
        let records = Vec::with_capacity(made.records.len() + 2);
        let mut whole = Message { rcode, flags, records, options };
        let (mut missing, mut why) = (false, None);
        for rr in &made.records {
            whole.records.push(rr.clone());
            if rr.section != Section::Answer || rr.rtype != RType::CNAME {
                continue;
            }
            let Some(target) = rr.target() else { continue };
            // The loop goes on, so that all missing targets are looked up at the same time.
            let Some(wish) = self.wish(&target, query.rtype, Class::IN) else {
                missing = true;
                continue;
            };
            // A name that no server block serves is the client's to look up.
            if matches!(wish, Wish::Failed(Failure::NoZone)) {
                continue;
            }
            wish.tell_why(&mut whole.options);
            match wish {
                Wish::Answer(answer) => {
                    if !matches!(answer.rcode, Rcode::NOERROR | Rcode::NXDOMAIN) {
                        why = Some(Failure::Target(answer.rcode));
                    }
                    whole.flags |= answer.flags & Flags::TC;
                    whole
                        .records
                        .extend(answer.records.into_iter().filter(|rr| rr.section == Section::Answer));
                }
                Wish::Failed(failure) => why = Some(failure),
            }
        }
        match why.filter(|_| follow == FollowCnames::OrFail) {
            _ if missing => Err(Missing),
            Some(failure) => {
                let mut told = failed(query, &failure);
                told.options.extend_ede(&whole.options);
                Ok((told, Some(failure)))
            }
            None => Ok((whole, None)),
        }
    }

    /// What a wish comes to, `None` where upstreams must be asked first; `from` is where in a block it begins, else it is
    /// routed, and another name than the one sought.
    fn come_to(&mut self, from: Option<(&'h Arc<ServedZone>, usize)>, query: &Query<'_>) -> Option<Wish> {
        let is_target = from.is_none();
        let entry = from.map_or(EntryPoint::Top, |(zone, step)| EntryPoint::Step(zone.block.id, step));
        let Query { name, rtype, class, .. } = *query;
        let key = Key { entry, name, rtype, class, added: query.added.octets().into() };
        if let Some((_, known)) = self.wishes.iter().find(|(other, _)| *other == key) {
            return match known {
                Known::Open => Some(Wish::Failed(Failure::Circle)),
                Known::Missing => None,
                Known::Came(wish) => Some(wish.clone()),
            };
        }
        let above = self.at_target;
        let Some(left) = self.left.checked_sub(usize::from(above || is_target)) else {
            return Some(Wish::Failed(Failure::TooManyNames(MOST_WISHES)));
        };
        self.left = left;
        let (place, at) = (self.wishes.len(), self.at);
        self.wishes.push((key, Known::Open));
        self.at_target |= is_target;
        let end = match from.map_or_else(|| self.route.find(query).map(|zone| (zone, 0)), Ok) {
            Ok((zone, step)) => self.evaluate(zone, query, step),
            Err(failure) => Ok(End::Told(Box::default(), Some(failure))),
        };
        self.at_target = above;
        self.at = at;
        let wish = match end {
            // It is kept as well, for who wishes for it again.
            Ok(End::Told(message, None)) => Some(match self.spend(message.records.len()) {
                Ok(()) => Wish::Answer(message),
                Err(failure) => Wish::Failed(failure),
            }),
            Ok(End::Told(_, Some(failure))) => Some(Wish::Failed(failure)),
            Ok(End::Silence) => Some(Wish::Failed(Failure::Dropped)),
            Err(Missing) => None,
        };
        self.wishes[place].1 = wish.clone().map_or(Known::Missing, Known::Came);
        wish
    }
}

impl Wishes for Evaluation<'_, '_> {
    fn wish(&mut self, name: &Name, rtype: RType, class: Class) -> Option<Wish> {
        let question = question(name, rtype, class);
        self.come_to(None, &Query { question: &question, name: *name, rtype, class, ..*self.query })
    }

    fn candidate(&mut self, sought: &Sought<'_>, name: &Name) -> Option<Wish> {
        let (zone, step) = self.at?;
        let question = question(name, sought.rtype(), sought.class());
        let query = Query { question: &question, name: *name, ..sought.query() };
        self.come_to(Some((zone, step + 1)), &query)
    }

    fn may_compare(&mut self, octets: usize) -> bool {
        // Once some were too many none are left, however short the next name is: the answer ends there.
        self.comparable = self.comparable.saturating_sub(octets);
        self.comparable > 0
    }

    fn count_when_told(&mut self, counter: &Arc<PerThread>) {
        self.counts.push(counter.clone());
    }
}

/// Sets RA, or AA where the block does not forward, in a NODATA of our own without either.
///
/// glibc and Go take NOERROR with neither flag, without answer and additional records, for a lame
/// server's referral: they ask their next server, which may answer what `acl filter` keeps back, or
/// report a temporary failure.
fn tell_from_referral(message: &mut Message, forwards: bool) {
    let has_records = message.records.iter().any(|rr| rr.section != Section::Authority);
    if message.rcode == Rcode::NOERROR && !has_records && message.flags & (Flags::AA | Flags::RA) == 0 {
        message.flags |= if forwards { Flags::RA } else { Flags::AA };
    }
}

/// What a client is told of a failure.
fn failed(query: &Query<'_>, failure: &Failure) -> Message {
    let mut message = Message::empty(query, failure.rcode());
    if let Some(ede) = failure.ede() {
        message.options.push_ede(ede);
    }
    message
}

/// Writes what a client is told.
pub fn write(message: &Message, query: &Query<'_>, reply: &mut Reply<'_>) {
    if message.write(query, reply).is_err() {
        // A record that cannot be read: no source and no step makes one.
        reply.clear();
        reply.rcode = Rcode::SERVFAIL;
    }
}

/// Octets of a name, a type, a class, a TTL and a length.
const SHORTEST_RECORD: usize = 11;
/// Octets of names that are compared with patterns in one evaluation, for each octet that the reply may have. All names that it
/// has room for, written out, are compared with sixteen patterns; what is compressed may come to twenty times as much.
const MOST_COMPARED: usize = 16;
/// Wishes and CNAMEs for which upstreams are asked, for one client's query, wherever they stand; and as many stale answers
/// that are fetched again for those who ask next.
const MOST_ASKED: usize = 8;
/// Wishes and CNAMEs that are looked at for one client's query; what memory knows of them costs no more than this.
const MOST_WISHES: usize = 32;
/// Records that are taken apart or copied for one client's query, each time that it is evaluated: four messages of 64 KiB,
/// whose records take 11 octets or more, have no more. An answer that leads to another one is read twice, once to see where it
/// leads to; one of nine that lead from each to the next, ten times, and that many records would take a worker a tenth of
/// a second.
const MOST_RECORDS: usize = 4 * (65_535 / SHORTEST_RECORD);
