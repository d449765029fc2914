//! The connections to one upstream, and which of them gets a query. No I/O: time and events go in, choices come out.
//!
//! ```text
//! submit ---> an idle connection, the one used last ---------> Send
//!        \--> one that answers out of order (RFC 7766, 6.2.1.1) Send
//!        \--> a new one, below the bound --------------------> Open
//!        \--> else it waits for the next that is idle -------> Wait
//! ```
//!
//! A server that answers the queries of a connection one after the other (every one built on
//! miekg/dns) makes a query wait for the answer to the one before it. So each connection has one
//! query, until the upstream has shown that a later query may be answered first. To see that, a copy
//! of a query follows a slow one on its connection now and then, and one of each that waits at the
//! bound another of its client; the query itself does not depend on it.
//!
//! No client takes all connections: they are shared out as places are ([`Fair`]).

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{Request, RequestId};
use crate::{Fair, Who};

/// Connections to one upstream of one kind, and the queries that wait for one.
#[derive(Debug)]
pub(super) struct Pool {
    lanes: Vec<Lane>,
    waiting: VecDeque<Request>,
    /// Who holds how many connections with a single query.
    holders: Fair,
    next_lane: u64,
    order: ReplyOrder,
    trial_after: Instant,
    /// The upstream closes after each reply, until then.
    single_use_until: Instant,
    /// Connections in a row that it closed after their first reply.
    closes: u32,
    /// It took no more connections than these, until then.
    taken: (usize, Instant),
    /// Connections that may be opened to an upstream that closes each, and when that was counted.
    openings: u32,
    counted_at: Instant,
}

/// One connection, as it is chosen by.
#[derive(Debug)]
struct Lane {
    id: u64,
    /// Queries whose replies may still come, those of clients that were given up included.
    out: Vec<RequestId>,
    /// The client whose single query it has.
    holder: Option<Who>,
    /// When the first of `out` was sent, or the last was answered.
    used_at: Instant,
    replies: u64,
    /// Gets no more queries.
    retired: bool,
}

/// In which order the upstream answers the queries of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyOrder {
    /// Not known: a trial may show it.
    Unknown,
    /// Each when it is ready.
    Any,
    /// One after the other, as was seen; not tried again before then.
    AsAsked(Instant),
}

/// Where a query goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// To this connection.
    Send(u64),
    /// To a new one, with this number.
    Open(u64),
    /// It waits in the pool.
    Wait,
}

/// What a reply says of the order of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overtaking {
    /// No query was before it on its connection.
    Alone,
    /// A query that was sent before it is not answered yet.
    Overtook,
    /// It was answered at once after the one before it, though it was sent well after that: it was held up.
    Delayed,
    /// It followed the one before it, and did not wait.
    InOrder,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// By us.
    Unused,
    /// By the upstream, or the network.
    ByPeer,
    /// By us, as what the upstream said is no DNS, or not from it.
    Broken,
}

impl Pool {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            lanes: Vec::new(),
            waiting: VecDeque::new(),
            holders: Fair::new(u32::MAX / 2),
            next_lane: 0,
            order: ReplyOrder::Unknown,
            trial_after: now,
            single_use_until: now,
            closes: 0,
            taken: (usize::MAX, now),
            openings: OPENINGS,
            counted_at: now,
        }
    }

    /// Connections that are open or being opened.
    pub(super) fn connections(&self) -> usize {
        self.lanes.len()
    }

    /// Queries that wait for a connection.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether more than one query is sent over a connection at a time.
    pub(super) fn pipelines(&self) -> bool {
        self.order == ReplyOrder::Any
    }

    /// Chooses for a query of `who`, and counts it there; [`Pool::wait`] takes it if it is to wait.
    pub(super) fn choose(&mut self, id: RequestId, who: Who, most: usize, now: Instant) -> Choice {
        let most = self.most(most, now);
        let has_room = self.holders.has_room(who, most as u32);
        let pipelines = self.pipelines();
        let idle = self.lanes.iter_mut().filter(|lane| !lane.retired && lane.out.is_empty());
        if let Some(lane) = idle.max_by_key(|lane| lane.used_at).filter(|_| has_room || pipelines) {
            lane.hold(id, (!pipelines).then_some(who), now, &self.holders);
            return Choice::Send(lane.id);
        }
        let live = self.lanes.iter().filter(|lane| !lane.retired).count();
        let may_open = live < most && self.lanes.len() < 2 * most && (has_room || pipelines);
        if pipelines {
            let least = self.lanes.iter_mut().filter(|lane| !lane.retired).min_by_key(|lane| lane.out.len());
            let fits = |lane: &&mut Lane| lane.out.len() < if may_open { SPREAD } else { PIPELINE };
            if let Some(lane) = least.filter(fits) {
                lane.hold(id, None, now, &self.holders);
                return Choice::Send(lane.id);
            }
        }
        if !may_open || !self.may_open_now(now) {
            return Choice::Wait;
        }
        self.next_lane += 1;
        let mut lane = Lane {
            id: self.next_lane,
            out: Vec::new(),
            holder: None,
            used_at: now,
            replies: 0,
            retired: false,
        };
        lane.hold(id, (!pipelines).then_some(who), now, &self.holders);
        self.lanes.push(lane);
        Choice::Open(self.next_lane)
    }

    /// Keeps a query until a connection is idle; `first` where it has waited before.
    pub(super) fn wait(&mut self, request: Request, first: bool) {
        if first { self.waiting.push_front(request) } else { self.waiting.push_back(request) }
    }

    /// The connection that a copy of this query is to follow another on, while it is not known in which order they are
    /// answered: one of the same client, where the query itself waits; else a slow one, now and then.
    pub(super) fn try_order(&mut self, id: RequestId, who: Who, waits: bool, now: Instant) -> Option<u64> {
        match self.order {
            ReplyOrder::Any => return None,
            ReplyOrder::AsAsked(until) if now < until => return None,
            _ => self.order = ReplyOrder::Unknown,
        }
        let lane = if waits {
            let own =
                |lane: &&mut Lane| !lane.retired && lane.holder == Some(who) && lane.out.len() < PIPELINE;
            self.lanes.iter_mut().filter(own).min_by_key(|lane| lane.out.len())?
        } else {
            let busy = |lane: &&mut Lane| {
                let is_slow = lane.out.len() == 1 && now >= lane.used_at + SLOW;
                !lane.retired && lane.replies > 0 && is_slow && lane.out[0] != id
            };
            let lane = self.lanes.iter_mut().filter(busy).min_by_key(|lane| lane.used_at)?;
            if now < self.trial_after {
                return None;
            }
            self.trial_after = now + TRIAL_PAUSE;
            lane
        };
        lane.out.push(id);
        Some(lane.id)
    }

    /// A query of a connection was answered; `None`: it was given up and is forgotten.
    pub(super) fn answered(
        &mut self,
        lane: u64,
        id: RequestId,
        overtaking: Option<Overtaking>,
        now: Instant,
    ) {
        if overtaking.is_some() && !self.waiting.is_empty() {
            // A copy of it is answered: it need not wait for a connection of its own.
            self.waiting.retain(|request| request.id != id);
        }
        match overtaking {
            Some(Overtaking::Overtook) => self.order = ReplyOrder::Any,
            Some(Overtaking::Delayed) => self.order = ReplyOrder::AsAsked(now + AS_ASKED),
            _ => {}
        }
        let single_use = now < self.single_use_until;
        let Some(lane) = self.lanes.iter_mut().find(|other| other.id == lane) else { return };
        lane.release(id, now, &self.holders);
        if overtaking.is_some() {
            lane.replies += 1;
        }
        if lane.replies > 1 {
            self.closes = 0;
        }
        lane.retired |= single_use && lane.out.is_empty();
    }

    /// The next that waits and may be sent now, and where to.
    pub(super) fn next(&mut self, most: usize, now: Instant) -> Option<(Request, Choice)> {
        let bound = self.most(most, now) as u32;
        let may = |request: &Request| self.pipelines() || self.holders.has_room(request.who, bound);
        let at = self.waiting.iter().position(may)?;
        let request = self.waiting.remove(at)?;
        match self.choose(request.id, request.who, most, now) {
            Choice::Wait => {
                self.wait(request, true);
                None
            }
            choice => Some((request, choice)),
        }
    }

    /// Whether nothing will happen to it that has its waiting queries looked at again.
    pub(super) fn needs_wake(&self) -> bool {
        !self.waiting.is_empty() && self.lanes.iter().all(|lane| lane.out.is_empty())
    }

    /// Those that have waited for as long as their clients do.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<Request> {
        let is_over = |request: &Request| request.give_up_at <= now;
        if !self.waiting.iter().any(is_over) {
            return Vec::new();
        }
        let (over, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(is_over);
        self.waiting = waiting;
        let over: VecDeque<Request> = over;
        over.into()
    }

    /// Takes a query back that waits.
    pub(super) fn cancel(&mut self, id: RequestId) -> Option<Request> {
        let at = self.waiting.iter().position(|request| request.id == id)?;
        self.waiting.remove(at)
    }

    /// The connections that have this query.
    pub(super) fn having(&self, id: RequestId) -> impl Iterator<Item = u64> {
        self.lanes.iter().filter(move |lane| lane.out.contains(&id)).map(|lane| lane.id)
    }

    /// A connection gets no more queries.
    pub(super) fn retire(&mut self, lane: u64) {
        if let Some(lane) = self.lanes.iter_mut().find(|other| other.id == lane) {
            lane.retired = true;
        }
    }

    pub(super) fn is_retired(&self, lane: u64) -> bool {
        self.lanes.iter().find(|other| other.id == lane).is_none_or(|lane| lane.retired)
    }

    /// A query kept those behind it waiting.
    pub(super) fn answers_in_order(&mut self, now: Instant) {
        self.order = ReplyOrder::AsAsked(now + AS_ASKED);
    }

    /// Whether more are idle than `most`, where that is a bound.
    pub(super) fn has_too_many_idle(&self, most: u32) -> bool {
        let idle = self.lanes.iter().filter(|lane| lane.out.is_empty() && !lane.retired).count();
        most > 0 && idle > most as usize
    }

    /// A connection is no more. Whether its unanswered queries are asked again without a failure: where it had answered
    /// others before (RFC 7766, section 6.2.4), or the upstream takes no more connections than the others.
    pub(super) fn closed(&mut self, lane: u64, why: Closed, now: Instant) -> bool {
        let Some(at) = self.lanes.iter().position(|other| other.id == lane) else { return true };
        let mut lane = self.lanes.swap_remove(at);
        if let Some(who) = lane.holder.take() {
            self.holders.give_back(who);
        }
        match why {
            Closed::Unused => return true,
            Closed::Broken => return false,
            Closed::ByPeer => {}
        }
        if lane.replies > 0 {
            if lane.replies == 1 && now < lane.used_at + CLOSES_SOON {
                self.closes += 1;
                if self.closes >= CLOSES {
                    self.single_use_until = now + SINGLE_USE;
                }
            }
            return true;
        }
        let others = self.lanes.iter().filter(|other| !other.retired && other.replies > 0).count();
        if others > 0 {
            self.taken = (others, now + TAKEN_FOR);
        }
        others > 0
    }

    /// How many connections may be used.
    fn most(&self, most: usize, now: Instant) -> usize {
        let (taken, until) = self.taken;
        if now < until { most.min(taken) } else { most }.max(1)
    }

    /// Whether one more may be opened, where the upstream closes each: ports of a closed one are in use for a minute.
    fn may_open_now(&mut self, now: Instant) -> bool {
        let earned = (now - self.counted_at).as_micros() * u128::from(OPENINGS_PER_SECOND) / 1_000_000;
        if earned > 0 {
            self.openings =
                u32::try_from(earned).unwrap_or(OPENINGS).saturating_add(self.openings).min(OPENINGS);
            self.counted_at = now;
        }
        if now >= self.single_use_until {
            return true;
        }
        let may = self.openings > 0;
        self.openings = self.openings.saturating_sub(1);
        may
    }
}

impl Lane {
    fn hold(&mut self, id: RequestId, who: Option<Who>, now: Instant, holders: &Fair) {
        if self.out.is_empty() {
            self.used_at = now;
        }
        self.out.push(id);
        if let (Some(who), None) = (who, self.holder) {
            holders.take(who);
            self.holder = Some(who);
        }
    }

    fn release(&mut self, id: RequestId, now: Instant, holders: &Fair) {
        self.out.retain(|other| *other != id);
        if self.out.is_empty() {
            self.used_at = now;
            if let Some(who) = self.holder.take() {
                holders.give_back(who);
            }
        }
    }
}

/// Queries on one connection at a time, where the upstream answers out of order.
pub(super) const PIPELINE: usize = 128;
/// The same while more connections may be opened.
const SPREAD: usize = 16;
/// When an unanswered query is slow enough to try whether another overtakes it.
const SLOW: Duration = Duration::from_millis(5);
/// Between two trials.
const TRIAL_PAUSE: Duration = Duration::from_secs(1);
/// How long an upstream that answers in order is not tried again.
const AS_ASKED: Duration = Duration::from_secs(30);
/// Connections in a row, closed so soon after their first reply, that show that an upstream closes each.
const CLOSES: u32 = 2;
const CLOSES_SOON: Duration = Duration::from_millis(500);
/// How long such an upstream's connections are used once.
const SINGLE_USE: Duration = Duration::from_secs(30);
/// Connections opened to it: at once, and a second. 200 a second keep 12,000 ports in TIME-WAIT, of 28,000.
const OPENINGS: u32 = 64;
const OPENINGS_PER_SECOND: u32 = 200;
/// How long no more connections are opened to an upstream that refused one.
const TAKEN_FOR: Duration = Duration::from_secs(10);
