//! CNAMEs that a template made, followed through the server: the inner lookups of one client's query.
//!
//! An inner lookup takes the same way as a query, route and pipeline, on the same listen address, but nobody counts or
//! logs it; why one failed is told by `errors`. Each is done once and kept as a [`Found`]; the reply is put together from
//! these. Where one needs an upstream the client's query waits, and is put together anew, from the start, when the answer is
//! there: nothing has to be resumed in the middle.

use std::sync::Arc;
use std::time::Duration;

use wire::{
    Class, Flags, HeldQuery, Malformed, Merge, Name, OptionBytes, Query, RType, Rcode, Record, Records,
    Reply, Section,
};

use crate::house::ServedZone;
use crate::pipeline::Now;
use crate::plugin::Moment;
use crate::route::Route;
use crate::serve::Asked;

/// A client's query that waits for an inner lookup.
pub struct Outer {
    /// The query.
    pub query: HeldQuery,
    /// The zone that answers it.
    pub zone: Arc<ServedZone>,
    /// The zones of the address that it came to.
    pub route: Arc<Route>,
    /// What the template said.
    pub made: Arc<Found>,
    /// What its inner lookups came to so far.
    pub found: Vec<Arc<Found>>,
}

/// A reply as it was found, before anything in it is followed.
pub struct Found {
    name: Name,
    /// Header, question, records.
    octets: Vec<u8>,
    counts: [u16; 3],
    rcode: Rcode,
    flags: u16,
    options: OptionBytes,
    /// Whether its CNAMEs are to be followed.
    follow: bool,
}

impl Found {
    /// Keeps what `reply` says about `name`.
    pub fn new(name: Name, reply: &Reply<'_>, follow: bool) -> Arc<Self> {
        let octets = reply.octets().to_vec();
        let (counts, rcode, flags, options) = (reply.counts(), reply.rcode, reply.flags, reply.options);
        Arc::new(Self { name, octets, counts, rcode, flags, options, follow })
    }

    fn records(&self) -> impl Iterator<Item = Record> {
        let end = Name::read_plain(&self.octets, wire::HEADER).map_or(self.octets.len(), |(_, end)| end + 4);
        Records::new(&self.octets, end, self.counts).map_while(Result::ok)
    }
}

/// The records of a reply with everything that was followed.
pub struct Whole<'m> {
    made: &'m Found,
    body: Vec<u8>,
    counts: [u16; 3],
    truncated: bool,
}

impl Whole<'_> {
    /// Puts everything into a reply to the client's query.
    pub fn write(&self, reply: &mut Reply<'_>) {
        reply.clear();
        (reply.rcode, reply.flags, reply.options) = (self.made.rcode, self.made.flags, self.made.options);
        if self.truncated {
            reply.flags |= Flags::TC;
        }
        reply.push_ready(&self.body, self.counts);
    }
}

/// The inner lookups of one query.
pub struct Follow<'h, 'a> {
    route: &'h Arc<Route>,
    moment: &'a Moment<'a>,
    /// What is known already.
    pub found: Vec<Arc<Found>>,
    /// How many more CNAMEs are followed.
    left: usize,
    /// How long an upstream may take; zero asks none.
    pub patience: Duration,
    /// A cached answer on the way that is to be fetched again.
    pub refresh: Option<Box<Asked<'h>>>,
    truncated: bool,
}

/// Why a reply is not put together.
enum Stop<'h> {
    /// An upstream must be asked first.
    Ask(Box<Asked<'h>>),
    /// No message has room for it.
    Full,
}

impl From<Malformed> for Stop<'_> {
    fn from(_: Malformed) -> Self {
        Self::Full
    }
}

impl<'h, 'a> Follow<'h, 'a> {
    /// Those of a query whose inner lookups came to `found` so far.
    pub fn new(route: &'h Arc<Route>, moment: &'a Moment<'a>, found: Vec<Arc<Found>>) -> Self {
        let patience = forwarder::DEADLINE;
        Self { route, moment, found, left: MOST, patience, refresh: None, truncated: false }
    }

    /// Puts behind each CNAME of the answer section of `made` what the server answers for its target. A target that has
    /// no answer adds nothing: the CNAME stands alone, as in CoreDNS.
    ///
    /// # Errors
    /// An upstream must be asked first.
    #[cold]
    pub fn complete<'m>(&mut self, query: &Query<'_>, made: &'m Found) -> Result<Whole<'m>, Box<Asked<'h>>> {
        let mut body = Vec::new();
        let stop = match Merge::new(query.question, &mut body) {
            Ok(mut merge) => {
                match made.records().try_for_each(|record| self.push(query, &mut merge, made, &record)) {
                    Ok(()) => {
                        let (counts, truncated) = (merge.counts(), self.truncated);
                        return Ok(Whole { made, body, counts, truncated });
                    }
                    Err(stop) => stop,
                }
            }
            Err(error) => error.into(),
        };
        match stop {
            Stop::Ask(asked) => Err(asked),
            // What the template said is told without what follows from it.
            Stop::Full => {
                let start = wire::HEADER + query.question.len();
                let body = made.octets.get(start..).unwrap_or_default().to_vec();
                Ok(Whole { made, body, counts: made.counts, truncated: true })
            }
        }
    }

    fn push(
        &mut self,
        query: &Query<'_>,
        merge: &mut Merge<'_>,
        of: &Found,
        record: &Record,
    ) -> Result<(), Stop<'h>> {
        merge.push(record.section, &of.octets, record)?;
        let is_cname = record.section == Section::Answer && record.rtype == RType::CNAME;
        if !of.follow || !is_cname || self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        let (target, _) = Name::read(&of.octets, record.data.start).map_err(Malformed::from)?;
        let found = match self.found.iter().find(|found| found.name == target) {
            Some(found) => found.clone(),
            None => match self.lookup(query, target).map_err(Stop::Ask)? {
                Some(found) => {
                    self.found.push(found.clone());
                    found
                }
                None => return Ok(()),
            },
        };
        self.truncated |= found.flags & Flags::TC != 0;
        let mut answers = found.records().filter(|record| record.section == Section::Answer);
        answers.try_for_each(|record| self.push(query, merge, &found, &record))
    }

    /// What the server answers for `target` and the type that the client asked for.
    fn lookup(&mut self, outer: &Query<'_>, target: Name) -> Result<Option<Arc<Found>>, Box<Asked<'h>>> {
        let mut question = target.as_wire().to_vec();
        question.extend_from_slice(&outer.rtype.0.to_be_bytes());
        question.extend_from_slice(&Class::IN.0.to_be_bytes());
        let query = Query { question: &question, name: target, class: Class::IN, ..*outer };
        let Ok(zone) = self.route.find(&query) else { return Ok(None) };
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, &query);
        let mut follow = false;
        match zone.block.pipeline.answer_now(self.moment, &query, &mut reply, zone.tally(self.moment.writer))
        {
            Now::Answered => {}
            Now::Follow => follow = true,
            // One is enough: the next client's query finds the others as old.
            Now::Refresh => {
                self.refresh.get_or_insert_with(|| Asked::new(&query, zone, None));
            }
            Now::Ask(_) if self.patience.is_zero() => return Ok(None),
            Now::Ask(patience) => {
                let patience = patience.map_or(self.patience, |patience| patience.min(self.patience));
                return Err(Asked::new(&query, zone, Some(patience)));
            }
            Now::Failed(failure) => {
                crate::serve::tell(zone, &failure, &query, self.moment.now);
                reply.clear();
            }
        }
        Ok(Some(Found::new(target, &reply, follow)))
    }
}

/// CNAMEs that are followed for one client's query, wherever they stand.
const MOST: usize = 8;
