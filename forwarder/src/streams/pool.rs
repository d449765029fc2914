//! The connections to one upstream, and the choice of one for a query. No I/O: time and events are
//! arguments.
//!
//! ```text
//! submit ---> an idle connection, the one used last ---------> Send
//!        \--> one that answers out of order (RFC 7766, 6.2.1.1) Send
//!        \--> a new one, below the bound --------------------> Open
//!        \--> else it waits for the next that is idle -------> Wait
//! ```
//!
//! A server that answers the queries of a connection one after the other (every one built on
//! miekg/dns) makes a query wait for the answer to the one before it (head-of-line blocking). So
//! each connection has one query, until the upstream has answered a later query first. To find out,
//! a copy of a query is sent behind a slow one on its connection now and then, and a copy of a
//! query that waits at the bound behind another query of its client; the query itself does not
//! depend on the copy.
//!
//! No client gets all connections: each has a quota ([`ClientQuota`]).

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{Request, RequestId};
use client_quota::{ClientId, ClientQuota};

/// Connections to one upstream of one kind, and the queries that wait for one.
#[derive(Debug)]
pub(super) struct Pool {
    lanes: Vec<Lane>,
    waiting: VecDeque<Request>,
    /// A time before which no waiting query expires.
    next_expiry: Option<Instant>,
    /// The clients' quota of connections with a single query.
    holders: ClientQuota,
    next_lane: u64,
    order: ReplyOrder,
    trial_after: Instant,
    /// Until when each connection is used once, as the upstream closes it after a reply.
    single_use_until: Instant,
    /// Connections in a row that the upstream closed after their first reply.
    closes: u32,
    /// The number of connections that the upstream accepted, and until when it is the bound.
    taken: (usize, Instant),
    /// Token bucket of connections to an upstream that closes each, and when it was refilled.
    openings: u32,
    counted_at: Instant,
}

/// One connection.
#[derive(Debug)]
struct Lane {
    id: u64,
    /// Queries that may still be answered, including those given up.
    out: Vec<RequestId>,
    /// The client of the connection's single query.
    holder: Option<ClientId>,
    /// When the first of `out` was sent, or the last one was answered.
    used_at: Instant,
    replies: u64,
    /// Whether the connection gets no more queries.
    retired: bool,
}

/// The order in which the upstream answers the queries of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyOrder {
    /// Unknown: a trial may show it.
    Unknown,
    /// Out of order.
    Any,
    /// In order, as was seen; there is no new trial before this time.
    AsAsked(Instant),
}

/// The connection for a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The connection with this number.
    Send(u64),
    /// A new one, with this number.
    Open(u64),
    /// No connection: the query waits in the pool.
    Wait,
}

/// What a reply shows about the order of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overtaking {
    /// No query preceded the reply's query on its connection.
    Alone,
    /// A query that preceded the reply's query is not answered yet: replies are out of order.
    Overtook,
    /// The reply's query was answered right after the preceding query, though it was sent well
    /// after that one: it was blocked.
    Delayed,
    /// The reply's query was answered after the preceding query, and was not blocked.
    InOrder,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// This side closed an idle connection.
    Unused,
    /// The upstream or the network closed the connection.
    ByPeer,
    /// This side closed the connection, as the upstream sent no DNS, or failed to authenticate.
    Broken,
}

impl Pool {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            lanes: Vec::new(),
            waiting: VecDeque::new(),
            next_expiry: None,
            holders: ClientQuota::new(u32::MAX / 2),
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

    /// Returns the number of connections open or being opened.
    pub(super) fn connections(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the number of queries that wait for a connection.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether connections have more than one query at a time.
    pub(super) fn pipelines(&self) -> bool {
        self.order == ReplyOrder::Any
    }

    /// Chooses a connection for a query of `client`, and counts the query there; on
    /// [`Choice::Wait`] the caller passes it to [`Pool::wait`].
    pub(super) fn choose(&mut self, id: RequestId, client: ClientId, most: usize, now: Instant) -> Choice {
        let most = self.most(most, now);
        let has_room = self.holders.has_room(client, most as u32);
        let pipelines = self.pipelines();
        let idle = self.lanes.iter_mut().filter(|lane| !lane.retired && lane.out.is_empty());
        if let Some(lane) = idle.max_by_key(|lane| lane.used_at).filter(|_| has_room || pipelines) {
            lane.hold(id, (!pipelines).then_some(client), now, &self.holders);
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
        lane.hold(id, (!pipelines).then_some(client), now, &self.holders);
        self.lanes.push(lane);
        Choice::Open(self.next_lane)
    }

    /// Queues a query until a connection is idle; `first`: at the front, as it has waited before.
    pub(super) fn wait(&mut self, request: Request, first: bool) {
        let expiry = expiry(&request);
        self.next_expiry = Some(self.next_expiry.map_or(expiry, |next| next.min(expiry)));
        if first { self.waiting.push_front(request) } else { self.waiting.push_back(request) }
    }

    /// Chooses a connection for a copy of this query, while the order of replies is unknown: one
    /// with a query of the same client, if the query itself waits; else a slow one, now and then.
    pub(super) fn try_order(
        &mut self,
        id: RequestId,
        client: ClientId,
        waits: bool,
        now: Instant,
    ) -> Option<u64> {
        match self.order {
            ReplyOrder::Any => return None,
            ReplyOrder::AsAsked(until) if now < until => return None,
            _ => self.order = ReplyOrder::Unknown,
        }
        let lane = if waits {
            let own =
                |lane: &&mut Lane| !lane.retired && lane.holder == Some(client) && lane.out.len() < PIPELINE;
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

    /// Notes that a query of a connection was answered, or with `None` that it was given up.
    pub(super) fn answered(
        &mut self,
        lane: u64,
        id: RequestId,
        overtaking: Option<Overtaking>,
        now: Instant,
    ) {
        if overtaking.is_some() && !self.waiting.is_empty() {
            // A copy of it was answered: the query itself need not be sent.
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

    /// Counts a waiting query against the quota of another client of its flight; returns false if
    /// the query does not wait, or that client has no quota left.
    pub(super) fn join(&mut self, id: RequestId, client: ClientId, most: usize, now: Instant) -> bool {
        let bound = self.most(most, now) as u32;
        let request = self.waiting.iter_mut().find(|request| request.id == id);
        let Some(request) = request.filter(|_| self.holders.has_room(client, bound)) else { return false };
        request.client = client;
        true
    }

    /// Takes the next waiting query that may be sent now, and chooses its connection.
    pub(super) fn next(&mut self, most: usize, now: Instant) -> Option<(Request, Choice)> {
        let bound = self.most(most, now) as u32;
        let may = |request: &Request| self.pipelines() || self.holders.has_room(request.client, bound);
        let at = self.waiting.iter().position(may)?;
        let request = self.waiting.remove(at)?;
        match self.choose(request.id, request.client, most, now) {
            Choice::Wait => {
                self.wait(request, true);
                None
            }
            choice => Some((request, choice)),
        }
    }

    /// Whether queries wait and no event of a connection will call [`Pool::next`] again.
    pub(super) fn needs_wake(&self) -> bool {
        !self.waiting.is_empty() && self.lanes.iter().all(|lane| lane.out.is_empty())
    }

    /// Removes and returns the queries that have waited too long for an answer within their time.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<Request> {
        if self.next_expiry.is_none_or(|next| next > now) {
            return Vec::new();
        }
        let is_over = |request: &Request| expiry(request) <= now;
        let (over, waiting): (VecDeque<_>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(is_over);
        self.waiting = waiting;
        self.next_expiry = self.waiting.iter().map(expiry).min();
        over.into()
    }

    /// Returns when [`Self::expired`] must be called, or a somewhat earlier time.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.next_expiry.filter(|_| !self.waiting.is_empty())
    }

    /// Removes and returns a waiting query.
    pub(super) fn cancel(&mut self, id: RequestId) -> Option<Request> {
        let at = self.waiting.iter().position(|request| request.id == id)?;
        self.waiting.remove(at)
    }

    /// Returns the connections that have this query.
    pub(super) fn having(&self, id: RequestId) -> impl Iterator<Item = u64> {
        self.lanes.iter().filter(move |lane| lane.out.contains(&id)).map(|lane| lane.id)
    }

    /// Gives a connection no more queries.
    pub(super) fn retire(&mut self, lane: u64) {
        if let Some(lane) = self.lanes.iter_mut().find(|other| other.id == lane) {
            lane.retired = true;
        }
    }

    pub(super) fn is_retired(&self, lane: u64) -> bool {
        self.lanes.iter().find(|other| other.id == lane).is_none_or(|lane| lane.retired)
    }

    /// Notes that a query blocked those behind it.
    pub(super) fn answers_in_order(&mut self, now: Instant) {
        self.order = ReplyOrder::AsAsked(now + AS_ASKED);
    }

    /// Whether more than `most` connections are idle; 0: no bound.
    pub(super) fn has_too_many_idle(&self, most: u32) -> bool {
        let idle = self.lanes.iter().filter(|lane| lane.out.is_empty() && !lane.retired).count();
        most > 0 && idle > most as usize
    }

    /// Removes a connection. Returns whether its unanswered queries are sent again without counting
    /// a failure: if the connection had answered others before (RFC 7766, section 6.2.4), or if the
    /// upstream accepts no connections beyond the remaining ones.
    pub(super) fn closed(&mut self, lane: u64, why: Closed, now: Instant) -> bool {
        let Some(at) = self.lanes.iter().position(|other| other.id == lane) else { return true };
        let mut lane = self.lanes.swap_remove(at);
        if let Some(client) = lane.holder.take() {
            self.holders.release(client);
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

    /// Returns the bound on connections.
    fn most(&self, most: usize, now: Instant) -> usize {
        let (taken, until) = self.taken;
        if now < until { most.min(taken) } else { most }.max(1)
    }

    /// Whether one more connection may be opened. The rate is limited if the upstream closes each
    /// connection, since the port of a closed one is in TIME-WAIT for a minute.
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
    fn hold(&mut self, id: RequestId, client: Option<ClientId>, now: Instant, holders: &ClientQuota) {
        if self.out.is_empty() {
            self.used_at = now;
        }
        self.out.push(id);
        if let (Some(client), None) = (client, self.holder) {
            holders.acquire(client);
            self.holder = Some(client);
        }
    }

    fn release(&mut self, id: RequestId, now: Instant, holders: &ClientQuota) {
        self.out.retain(|other| *other != id);
        if self.out.is_empty() {
            self.used_at = now;
            if let Some(client) = self.holder.take() {
                holders.release(client);
            }
        }
    }
}

/// Returns when a waiting query fails: shortly before its client gives up, so that the failure is
/// counted as a local limit, not against the upstream.
pub(super) fn expiry(request: &Request) -> Instant {
    request.give_up_at.checked_sub(EXPIRY_MARGIN).unwrap_or(request.give_up_at)
}

/// How long before the end of its time a query that waits for a connection fails.
const EXPIRY_MARGIN: Duration = Duration::from_millis(100);
/// Queries on one connection at a time if the upstream answers out of order.
pub(super) const PIPELINE: usize = 128;
/// Queries on one connection at a time while more connections may be opened.
const SPREAD: usize = 16;
/// An unanswered query is slow enough for a trial after this.
const SLOW: Duration = Duration::from_millis(5);
/// Pause between two trials.
const TRIAL_PAUSE: Duration = Duration::from_secs(1);
/// How long there is no new trial of an upstream that answers in order.
const AS_ASKED: Duration = Duration::from_secs(30);
/// Connections in a row, closed within [`CLOSES_SOON`] of their first reply, after which each is
/// used once.
const CLOSES: u32 = 2;
const CLOSES_SOON: Duration = Duration::from_millis(500);
/// How long each connection to an upstream that closes that soon is used once.
const SINGLE_USE: Duration = Duration::from_secs(30);
/// Connections opened to such an upstream: at once, and per second. 200 a second keep 12,000 of
/// 28,000 ports in TIME-WAIT.
const OPENINGS: u32 = 64;
const OPENINGS_PER_SECOND: u32 = 200;
/// How long the number of connections that an upstream accepted is the bound.
const TAKEN_FOR: Duration = Duration::from_secs(10);
