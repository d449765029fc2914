//! One query's answer, put together from what it needs: the way in through the steps, what stands below them, what that
//! leads to, and the way back.
//!
//! ```text
//! evaluate(query, found) -> told | silence | what must be asked first
//! ```
//! Nothing is resumed in the middle. Where an upstream must be asked the client's query waits; when the answer is there it
//! is kept as a [`Found`], and the query is evaluated again from the start. A lookup that another answer needs (a `CNAME`
//! of a template, a wish of a step) takes the whole way of a query, but nobody counts or logs it; why one failed is told by
//! `errors`.

use std::sync::Arc;
use std::time::Duration;

use wire::{
    Class, Flags, HeldQuery, Message, Name, OPTION_CLIENT_SUBNET, Packed, Query, RType, Rcode, Reply, Section,
};

use crate::failure::Failure;
use crate::held::Held;
use crate::house::ServedZone;
use crate::pipeline::Now;
use crate::plugin::Moment;
use crate::plugin::step::{Inward, Sought, Told, Wish, Wishes};
use crate::route::Route;
use crate::serve::Asked;

/// A client's query that waits for an upstream.
pub struct Outer {
    /// The query.
    pub query: HeldQuery,
    /// The zone that answers it.
    pub zone: Arc<ServedZone>,
    /// The zones of the address that it came to.
    pub route: Arc<Route>,
    /// What its lookups came to so far.
    pub found: Vec<Arc<Found>>,
    /// Whether its own answer is waited for, and not one that this needs.
    pub own: bool,
    /// The client's EDNS options, as it sent them.
    pub options: Box<[u8]>,
    /// The octets of what was found.
    _held: Held,
}

/// What one lookup below the steps came to.
pub struct Found {
    block: u64,
    name: Name,
    rtype: RType,
    class: Class,
    recursion_desired: bool,
    added: Box<[u8]>,
    told: Result<Packed, Failure>,
    /// Whether its CNAMEs are to be followed.
    follow: bool,
}

impl Found {
    /// Keeps what a block tells below its steps.
    pub fn new(
        zone: &ServedZone,
        query: &Query<'_>,
        told: Result<Packed, Failure>,
        follow: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            block: zone.block.id,
            name: query.name,
            rtype: query.rtype,
            class: query.class,
            recursion_desired: query.flags.has(Flags::RD),
            added: query.added.octets().into(),
            told,
            follow,
        })
    }

    /// Keeps what `reply` says, which was started for `query`.
    pub fn of_reply(zone: &ServedZone, query: &Query<'_>, reply: &Reply<'_>, follow: bool) -> Arc<Self> {
        Self::new(zone, query, Ok(Packed::new(query, reply)), follow)
    }

    fn octets(&self) -> usize {
        size_of::<Self>() + self.added.len() + self.told.as_ref().map_or(0, Packed::octets)
    }

    fn is_of(&self, zone: &ServedZone, query: &Query<'_>) -> bool {
        self.block == zone.block.id
            && self.name == query.name
            && (self.rtype, self.class) == (query.rtype, query.class)
            && self.recursion_desired == query.flags.has(Flags::RD)
            && *self.added == *query.added.octets()
    }
}

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
    moment: &'a Moment<'a>,
    query: &'a Query<'a>,
    /// What is known already.
    pub found: Vec<Arc<Found>>,
    /// How many more CNAMEs and wishes are followed.
    left: usize,
    /// How many evaluations of other names this one stands in.
    depth: usize,
    /// How long an upstream may take; zero asks none.
    pub patience: Duration,
    /// A cached answer on the way that is to be fetched again.
    pub refresh: Option<Box<Asked<'h>>>,
    /// What must be asked first.
    missing: Option<Box<Asked<'h>>>,
}

impl<'h, 'a> Evaluation<'h, 'a> {
    /// That of a query whose lookups came to `found` so far.
    pub fn new(
        route: &'h Arc<Route>,
        moment: &'a Moment<'a>,
        query: &'a Query<'a>,
        found: Vec<Arc<Found>>,
    ) -> Self {
        let patience = forwarder::DEADLINE;
        Self { route, moment, query, found, left: MOST, depth: 0, patience, refresh: None, missing: None }
    }

    /// What the client is told.
    ///
    /// # Errors
    /// An upstream must be asked first.
    pub fn run(&mut self, zone: &'h Arc<ServedZone>) -> Result<End, Box<Asked<'h>>> {
        self.left = MOST;
        self.evaluate(zone, self.query)
    }

    /// What a client that waits is kept with, until an upstream has answered.
    ///
    /// # Errors
    /// Where those that wait hold too much already.
    pub fn wait(self, zone: &Arc<ServedZone>, mut asked: Box<Asked<'h>>) -> Result<Box<Asked<'h>>, Failure> {
        let (query, route) = (self.query.hold(), self.route.clone());
        let own = asked.depth == 0;
        let options: Box<[u8]> = self.query.edns.map_or(&[][..], |edns| edns.options).into();
        let octets = self.found.iter().map(|found| found.octets()).sum::<usize>() + options.len();
        let _held = Held::take(&zone.block.held, octets, MOST_HELD).ok_or(Failure::Overload)?;
        asked.outer = Some(Box::new(Outer {
            query,
            zone: zone.clone(),
            route,
            found: self.found,
            own,
            options,
            _held,
        }));
        Ok(asked)
    }

    fn evaluate(&mut self, zone: &'h Arc<ServedZone>, query: &Query<'_>) -> Result<End, Box<Asked<'h>>> {
        let steps = zone.block.pipeline.steps();
        let mut sought = Sought::new(query, &zone.server, false);
        let mut backs = Vec::new();
        let mut ended = None;
        for step in steps {
            match step.inward(&mut sought, self.moment) {
                Inward::Pass => {}
                Inward::Back(back) => backs.push(back),
                Inward::Answer(mut message) => {
                    message.flags |= query.flags.0 & Flags::RD;
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
        let (mut message, failure) = match ended {
            Some(ended) => ended,
            None => self.below(zone, &sought.query())?,
        };
        for back in backs.iter().rev() {
            if failure.is_some() && !back.sees_failures() {
                continue;
            }
            if back.back(&sought, self.moment, &mut message, self) == Told::Waits
                && let Some(asked) = self.missing.take()
            {
                return Err(asked);
            }
        }
        Ok(End::Told(message, failure))
    }

    /// What the block tells below its steps, with the CNAMEs that a template made followed.
    fn below(
        &mut self,
        zone: &'h Arc<ServedZone>,
        query: &Query<'_>,
    ) -> Result<(Box<Message>, Option<Failure>), Box<Asked<'h>>> {
        let known = self.found.iter().find(|found| found.is_of(zone, query)).cloned();
        let found = match known {
            Some(found) => found,
            None => {
                let found = self.look_up(zone, query)?;
                self.found.push(found.clone());
                found
            }
        };
        // Whoever wrote it wrote records that can be read.
        let told = found.told.as_ref().map_err(Clone::clone);
        let told = told.and_then(|packed| packed.message().map_err(|_| Failure::Panic));
        let (mut message, failure) = match told {
            Ok(message) if found.follow => (self.follow(query, &message)?, None),
            Ok(message) => (message, None),
            Err(failure) => (failed(query, &failure), Some(failure)),
        };
        if query.added.has_subnet() {
            // It is none that the client sent (RFC 7871, section 7.2.1).
            message.options.remove(OPTION_CLIENT_SUBNET);
        }
        Ok((Box::new(message), failure))
    }

    fn look_up(
        &mut self,
        zone: &'h Arc<ServedZone>,
        query: &Query<'_>,
    ) -> Result<Arc<Found>, Box<Asked<'h>>> {
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, query);
        let tally = zone.tally(self.moment.writer);
        let mut follow = false;
        match zone.block.pipeline.answer_now(self.moment, query, &mut reply, tally) {
            Now::Answered => {}
            Now::Follow => follow = true,
            // One is enough: the next client's query finds the others as old.
            Now::Refresh => {
                self.refresh.get_or_insert_with(|| {
                    let asked = *Asked::new(query, zone, None, self.depth);
                    // What is kept is for all: asked for one subnet it would not be.
                    Box::new(Asked { query: asked.query.for_all(), ..asked })
                });
            }
            Now::Ask(_) if self.patience.is_zero() => {
                let failure = Failure::Forward(forwarder::Failure::Patience);
                return Ok(Found::new(zone, query, Err(failure), false));
            }
            Now::Ask(patience) => {
                // Whoever has all the time is told by the upstreams why it was not enough.
                let left = Some(self.patience).filter(|&left| left < forwarder::DEADLINE);
                let patience = patience.into_iter().chain(left).min();
                return Err(Asked::new(query, zone, patience, self.depth));
            }
            Now::Failed(failure) => {
                if self.depth > 0 {
                    crate::serve::tell(zone, &failure, query, self.moment.now);
                }
                return Ok(Found::new(zone, query, Err(failure), false));
            }
        }
        Ok(Found::of_reply(zone, query, &reply, follow))
    }

    /// Puts behind each CNAME of the answer section what the server answers for its target. A target that has no answer
    /// adds nothing: the CNAME stands alone, as in CoreDNS.
    fn follow(&mut self, query: &Query<'_>, made: &Message) -> Result<Message, Box<Asked<'h>>> {
        let mut whole = Message { records: Vec::with_capacity(made.records.len() + 2), ..made.clone() };
        for rr in &made.records {
            whole.records.push(rr.clone());
            if rr.section != Section::Answer || rr.rtype != RType::CNAME {
                continue;
            }
            let Some(target) = rr.target() else { continue };
            match self.wish_for(&target, query.rtype, Class::IN)? {
                Wish::Answer(answer) => {
                    whole.flags |= answer.flags & Flags::TC;
                    whole.records.extend(answer.section(Section::Answer).cloned());
                }
                Wish::Failed(_) => {}
            }
        }
        Ok(whole)
    }

    fn wish_for(&mut self, name: &Name, rtype: RType, class: Class) -> Result<Wish, Box<Asked<'h>>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(Wish::Failed(Failure::TooManyNames(MOST)));
        };
        self.left = left;
        let question = question(name, rtype, class);
        let query = Query { question: &question, name: *name, rtype, class, ..*self.query };
        let zone = match self.route.find(&query) {
            Ok(zone) => zone,
            Err(failure) => return Ok(Wish::Failed(failure)),
        };
        self.depth += 1;
        let end = self.evaluate(zone, &query);
        self.depth -= 1;
        Ok(match end? {
            End::Told(message, None) => Wish::Answer(message),
            End::Told(_, Some(failure)) => Wish::Failed(failure),
            End::Silence => Wish::Failed(Failure::Dropped),
        })
    }
}

impl Wishes for Evaluation<'_, '_> {
    fn wish(&mut self, name: &Name, rtype: RType, class: Class) -> Option<Wish> {
        match self.wish_for(name, rtype, class) {
            Ok(wish) => Some(wish),
            Err(asked) => {
                self.missing.get_or_insert(asked);
                None
            }
        }
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

/// A question as it is sent.
pub(crate) fn question(name: &Name, rtype: RType, class: Class) -> Vec<u8> {
    let mut question = name.as_wire().to_vec();
    question.extend_from_slice(&rtype.0.to_be_bytes());
    question.extend_from_slice(&class.0.to_be_bytes());
    question
}

/// Writes what a client is told.
pub(crate) fn write(message: &Message, query: &Query<'_>, reply: &mut Reply<'_>) {
    if message.write(query, reply).is_err() {
        // A record that cannot be read again: nobody here writes one.
        reply.clear();
        reply.rcode = Rcode::SERVFAIL;
    }
}

/// Octets that all evaluations which wait may hold together.
const MOST_HELD: usize = 8 << 20;
/// CNAMEs and wishes that are followed for one client's query, wherever they stand.
const MOST: usize = 8;

#[cfg(test)]
mod tests;
