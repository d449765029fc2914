//! A flight's attempts: the first, the next one, time-outs, and the flight's end.

use std::time::{Duration, Instant};

use client_quota::ClientId;
use rand::Rng;

use super::flight::{
    ATTEMPTS, Attempt, AttemptKind, AttemptState, EdnsLevel, FlightState, Pick, Try, UpstreamTransport,
    silent,
};
use super::output::{Ended, StreamRequest};
use super::timer_wheel::{MachineTime, NEVER};
use super::udp_sockets::AttemptId;
use super::{ExchangeId, Forwarder, LATE, SWEEP};
use crate::{ForwardError, StreamKind};

impl<W> Forwarder<W> {
    /// Sends the query to the first upstream of the flight's stanza, and now and then to a suspect
    /// one as well.
    pub(super) fn begin(&mut self, now: Instant, slot: u32) {
        let flight = &self.table[slot];
        let stanza = flight.stanza();
        let mut order = stanza.spec().policy.order(flight.upstreams.len(), &stanza.turns, &mut self.rng);
        if flight.dnssec_ok() {
            order.put_back(|at| flight.upstreams[usize::from(at)].edns().lacks_dnssec(now));
        }
        // Upstreams that lately left queries unanswered are last for a short time; health checks
        // decide whether one is down.
        order.put_back(|at| flight.is_suspect(at, now));
        let flight = &mut self.table[slot];
        flight.order = order;
        flight.cursor = 0;
        self.try_next(now, slot);
        self.try_suspect(now, slot);
    }

    /// Tries the next upstream, if one may be tried; ends the flight if it waits for no reply any
    /// more.
    pub(super) fn try_next(&mut self, now: Instant, slot: u32) {
        let flight = &mut self.table[slot];
        let (failfast, spare) = (flight.stanza().spec().failfast, flight.spare());
        let (has_spare, goes_on) = (spare.is_some(), spare.is_none_or(|spare| spare.failover));
        let allowed = flight.stanza().attempts_allowed(flight.upstreams.len()).min(FAILURES_MAX);
        let mut may = u32::from(flight.failures) < allowed && flight.attempt_to_use().is_some() && goes_on;
        let next = match flight.pick() {
            _ if !may => None,
            Pick::None => None,
            Pick::Upstream { upstream, cursor } => {
                flight.cursor = cursor;
                Some(upstream)
            }
            Pick::Full { upstream } => {
                let address = flight.upstreams[usize::from(upstream)].address();
                flight.cold().failure = Some(ForwardError::Congested(address));
                may = false;
                None
            }
            // There is a spare reply to use, so no upstream that is down is tried.
            Pick::AllDown if has_spare => None,
            Pick::AllDown => {
                if !std::mem::replace(&mut flight.cold().down, true) {
                    flight.stanza().metrics().healthcheck_broken.add_shared(1);
                }
                if failfast && flight.cold().failure.is_none() {
                    flight.cold().failure = Some(ForwardError::NoHealthy);
                }
                may = !failfast;
                // As CoreDNS: health checking itself may be broken, so try any upstream.
                let (first, count) =
                    (self.rng.random_range(0..flight.upstreams.len()), flight.upstreams.len());
                let anyone = (first..first + count).map(|at| (at % count) as u8);
                let mut anyone = anyone.filter(|&at| may && flight.unsent() >> at & 1 == 0);
                let fresh = anyone.clone().find(|&at| flight.sent_to(at).is_none());
                fresh.or_else(|| anyone.next())
            }
        };
        let Some(upstream) = next else {
            if may && !has_spare && self.pause(now, slot) {
                return;
            }
            let flight = &self.table[slot];
            // An upstream that timed out may still answer before the deadline. With a spare reply
            // only attempts that have not timed out are waited for.
            let hopes = if has_spare { flight.waiting() > 0 } else { flight.is_listening() };
            if !hopes {
                self.give_up(now, slot);
            }
            return;
        };
        if !self.may_copy(now, slot, upstream) {
            return;
        }
        self.send(now, slot, Try::new(upstream));
        let at = self.machine_time(now);
        let flight = &mut self.table[slot];
        let wait = flight.congestion(upstream).hedge_after();
        flight.hedge_at = flight.offset(at.after(wait));
    }

    /// Begins an attempt at one upstream.
    pub(super) fn send(&mut self, now: Instant, slot: u32, this: Try) {
        let at = self.machine_time(now);
        // A query uses one connection of an upstream at a time.
        for nth in 0..ATTEMPTS {
            let attempt = &self.table[slot].attempts[nth];
            if attempt.upstream == this.upstream && attempt.transport != UpstreamTransport::Udp {
                self.drop_attempt(slot, nth);
            }
        }
        let Some(nth) = self.table[slot].attempt_to_use() else { return };
        self.drop_attempt(slot, nth);
        let generation = self.table.generation(slot);
        let flight = &mut self.table[slot];
        let upstream = &flight.upstreams[usize::from(this.upstream)];
        let tcp = this.tcp || flight.asks_over_tcp();
        let transport = match (upstream.tls(), tcp) {
            (Some(_), _) => UpstreamTransport::Stream(StreamKind::Tls),
            (None, true) => UpstreamTransport::Stream(StreamKind::Tcp),
            (None, false) => UpstreamTransport::Udp,
        };
        let edns = flight.edns_level(now, this.upstream, this.edns);
        flight.serial = flight.serial.wrapping_add(1);
        let kind = match flight.sent_to(this.upstream) {
            Some(_) => AttemptKind::Copy,
            None if this.hedge => AttemptKind::Hedge,
            None => AttemptKind::First,
        };
        let mut attempt = Attempt {
            sent: flight.offset(at),
            upstream: this.upstream,
            serial: flight.serial,
            transport,
            state: AttemptState::Waiting,
            edns,
            kind,
            ..Attempt::FREE
        };
        let owner = AttemptId { slot, generation, serial: flight.serial };
        if transport == UpstreamTransport::Udp {
            attempt.socket = self.sockets.choose(at, upstream, &mut self.rng);
            attempt.id = self.sockets.register(attempt.socket, owner, &mut self.rng);
            self.sweep_at = self.sweep_at.min(at.after(SWEEP));
            self.output.datagrams.push_back(owner);
        } else {
            self.output.streams.push_back(StreamRequest::Exchange(owner));
        }
        if this.hedge {
            upstream.metrics().hedges.add_shared(1);
        }
        upstream.congestion(attempt.path()).sent(flight.waiters.client);
        flight.attempts[nth] = attempt;
    }

    /// Performs the due actions of a flight.
    pub(super) fn due(&mut self, now: Instant, slot: u32) {
        let at = self.machine_time(now);
        let flight = &self.table[slot];
        let offset = flight.offset(at);
        if flight.state == FlightState::Flying
            && flight.patience_at <= offset
            && self.release_impatient(slot, offset)
        {
            // The other actions follow once these waiters have been handed out.
            return;
        }
        let failed = self.count_silence(now, slot);
        let flight = &self.table[slot];
        match flight.state {
            FlightState::Flying => {
                if flight.deadline <= offset {
                    self.give_up(now, slot);
                } else if failed {
                    self.try_next(now, slot);
                } else if flight.hedge_at <= offset {
                    self.hedge(now, slot);
                }
            }
            FlightState::Settled => self.end_if_settled(slot),
            FlightState::Late if MachineTime(flight.started.0).after(LATE) <= at => self.remove(slot),
            FlightState::Late => {}
        }
        self.rearm(slot);
    }

    /// Counts attempts without reply for `read_timeout` as failed; returns whether there were any
    /// while the flight has waiters.
    fn count_silence(&mut self, now: Instant, slot: u32) -> bool {
        let at = self.machine_time(now);
        let flight = &mut self.table[slot];
        let offset = flight.offset(at);
        let timeout = flight.stanza().spec().read_timeout.as_micros() as u32;
        let mut failed = false;
        for nth in 0..ATTEMPTS {
            let attempt = flight.attempts[nth];
            if attempt.state != AttemptState::Waiting || offset < attempt.sent.saturating_add(timeout) {
                continue;
            }
            flight.attempts[nth].state = AttemptState::Counted;
            // A copy times out with the attempt that it repeats: both are one failure.
            for copy in &mut flight.attempts {
                if copy.state == AttemptState::Waiting
                    && copy.kind == AttemptKind::Copy
                    && copy.upstream == attempt.upstream
                {
                    copy.state = AttemptState::Counted;
                }
            }
            let (spec, upstream) = (flight.stanza().spec(), &flight.upstreams[usize::from(attempt.upstream)]);
            // An upstream that has answered other queries since is busy, or slow with this name.
            let sent_at =
                upstream.micros(self.epoch + flight.machine_time(attempt.sent).since(MachineTime(0)));
            if !upstream.congestion(attempt.path()).replied_since(sent_at) {
                upstream.failed(attempt.path(), spec.max_fails, &spec.health);
            }
            if attempt.edns != EdnsLevel::Plain {
                upstream.edns().doubt(now);
                flight.without_edns |= 1 << attempt.upstream;
            }
            let failure = silent(&attempt, upstream.address(), &self.sockets);
            if flight.state == FlightState::Flying {
                flight.failures = flight.failures.saturating_add(1);
                flight.mark_failed_over(attempt.upstream);
                flight.cold().failure = Some(failure);
                failed = true;
            }
        }
        failed
    }

    /// Notes that an attempt failed.
    pub(super) fn failed(&mut self, now: Instant, slot: u32, nth: usize, failure: ForwardError) {
        let flight = &mut self.table[slot];
        let attempt = flight.attempts[nth];
        let counted = attempt.state == AttemptState::Counted;
        let (spec, upstream) = (flight.stanza().spec(), &flight.upstreams[usize::from(attempt.upstream)]);
        if !counted && failure.blames_upstream() {
            upstream.failed(attempt.path(), spec.max_fails, &spec.health);
        }
        self.close(slot, nth);
        let flight = &mut self.table[slot];
        match flight.state {
            FlightState::Flying => {
                if !counted {
                    flight.mark_failed_over(attempt.upstream);
                    let cold = flight.cold();
                    (cold.failure, cold.failed) = (Some(failure), Some((attempt.serial, attempt.upstream)));
                    self.count_failure(slot, attempt.upstream);
                    self.try_next(now, slot);
                } else if !failure.blames_upstream() {
                    // The query was never sent, so the upstream was not silent.
                    flight.cold().failure = Some(failure);
                }
            }
            FlightState::Settled => self.end_if_settled(slot),
            FlightState::Late => self.end_if_deaf(slot),
        }
        self.rearm(slot);
    }

    /// Ends the flight without a further attempt: with the spare reply, if there is one, else with
    /// the last failure.
    pub(super) fn give_up(&mut self, now: Instant, slot: u32) {
        let flight = &mut self.table[slot];
        let cold = flight.cold.take().map(|cold| *cold).unwrap_or_default();
        if let Some(spare) = cold.reply
            && self.answer.read(&spare.bytes, flight.held.0.question()).is_ok()
        {
            self.mark(slot, spare.edns);
            self.settle(now, slot, spare.upstream, spare.rtt, None);
            return;
        }
        let last = flight
            .attempts
            .iter()
            .filter(|attempt| attempt.state != AttemptState::Free)
            .max_by_key(|a| a.sent);
        let failure = cold.failure.or_else(|| {
            let upstream = flight.upstreams[usize::from(last?.upstream)].address();
            Some(silent(last?, upstream, &self.sockets))
        });
        // The upstream of the attempt sent last, in use or failed: of all serials the one with the
        // least distance to `flight.serial`, as serials wrap.
        let open = flight.attempts.iter().filter(|attempt| attempt.state != AttemptState::Free);
        let tried = open.map(|attempt| (attempt.serial, attempt.upstream)).chain(cold.failed);
        let upstream = tried.min_by_key(|(serial, _)| flight.serial.wrapping_sub(*serial)).map(|(_, at)| at);
        self.conclude(slot, Err((failure.unwrap_or(ForwardError::NoHealthy), upstream)));
    }

    /// Ends a flight with the answer in `self.answer` (upstream and round-trip time), or with an
    /// error (and its upstream). The next poll hands out its waiters, and the one after that calls
    /// [`Self::concluded`].
    pub(super) fn conclude(
        &mut self,
        slot: u32,
        outcome: Result<(u8, Duration), (ForwardError, Option<u8>)>,
    ) {
        self.table.seal(slot);
        let flight = &mut self.table[slot];
        flight.stanza().release(flight.waiters.client);
        self.places.release(flight.waiters.client);
        self.flying -= 1;
        flight.state = if outcome.is_ok() { FlightState::Settled } else { FlightState::Late };
        self.output.end(Ended::Flight(slot, outcome));
    }

    /// Lets a flight linger after its waiters were handed out, or frees its slot.
    pub(super) fn concluded(&mut self, now: Instant, slot: u32) {
        let generation = self.table.generation(slot);
        let flight = &mut self.table[slot];
        flight.patience_at = NEVER;
        flight.cold = None;
        if flight.state == FlightState::Settled {
            for nth in 0..ATTEMPTS {
                if self.table[slot].attempts[nth].state == AttemptState::Counted {
                    self.drop_attempt(slot, nth);
                }
            }
            self.end_if_settled(slot);
        } else if self.table[slot].started.after(LATE) <= self.machine_time(now) {
            self.remove(slot);
        } else {
            self.end_if_deaf(slot);
        }
        if self.table.holds(slot, generation) {
            self.linger(slot, generation);
            self.rearm(slot);
        }
    }

    /// Ends the wait of waiters with expired patience; the flight continues. Returns false if there
    /// are none.
    fn release_impatient(&mut self, slot: u32, offset: u32) -> bool {
        let flight = &mut self.table[slot];
        let (waiters, next) = self.waiters.take_impatient(&mut flight.waiters, offset);
        flight.patience_at = next;
        let are_any = !waiters.is_empty();
        if are_any {
            self.output.end(Ended::Impatient(slot, waiters));
        }
        are_any
    }

    fn linger(&mut self, slot: u32, generation: u32) {
        while self.lingering.front().is_some_and(|&(slot, generation)| !self.table.holds(slot, generation)) {
            self.lingering.pop_front();
        }
        if self.lingering.len() >= 2 * self.linger_limit {
            let table = &self.table;
            self.lingering.retain(|&(slot, generation)| table.holds(slot, generation));
        }
        self.lingering.push_back((slot, generation));
    }

    /// Removes the flight that has lingered longest; false if none lingers.
    pub(super) fn evict(&mut self) -> bool {
        while let Some((slot, generation)) = self.lingering.pop_front() {
            if self.table.holds(slot, generation) {
                self.remove(slot);
                return true;
            }
        }
        false
    }

    pub(super) fn end_if_settled(&mut self, slot: u32) {
        if self.table[slot].waiting() == 0 {
            self.remove(slot);
        }
    }

    pub(super) fn end_if_deaf(&mut self, slot: u32) {
        if !self.table[slot].is_listening() {
            self.remove(slot);
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        for nth in 0..ATTEMPTS {
            self.drop_attempt(slot, nth);
        }
        self.timers.disarm(slot);
        let flight = &self.table[slot];
        if flight.has_subnet() {
            self.subnets.leave(&flight.held.0.query(), &self.hasher);
        }
        self.table.remove(slot);
    }

    /// Frees an attempt that was answered or has failed.
    pub(super) fn close(&mut self, slot: u32, nth: usize) {
        let flight = &mut self.table[slot];
        let attempt = std::mem::replace(&mut flight.attempts[nth], Attempt::FREE);
        if attempt.state == AttemptState::Free {
            return;
        }
        let upstream = &flight.upstreams[usize::from(attempt.upstream)];
        upstream.congestion(attempt.path()).ended(flight.waiters.client);
        if attempt.transport == UpstreamTransport::Udp {
            self.sockets.release(attempt.socket, attempt.id);
        }
    }

    /// Frees an attempt when its reply would change nothing any more.
    pub(super) fn drop_attempt(&mut self, slot: u32, nth: usize) {
        let generation = self.table.generation(slot);
        let flight = &self.table[slot];
        let attempt = flight.attempts[nth];
        if let (UpstreamTransport::Stream(kind), true) =
            (attempt.transport, attempt.state != AttemptState::Free)
        {
            let id = ExchangeId::new(slot, generation, attempt.serial);
            let upstream = flight.upstreams[usize::from(attempt.upstream)].clone();
            self.output.streams.push_back(StreamRequest::Cancel(upstream, kind, id));
        }
        self.close(slot, nth);
    }

    /// Counts an exchange, which waits for a connection, against the quota of a client that joined
    /// the flight.
    pub(super) fn join_exchange(&mut self, slot: u32, client: ClientId) {
        let generation = self.table.generation(slot);
        let flight = &mut self.table[slot];
        if flight.state != FlightState::Flying {
            return;
        }
        let mut streams = flight.attempts.iter().rev().filter(|attempt| attempt.state != AttemptState::Free);
        // A flight has at most one exchange per upstream, and in most cases only one in total.
        let stream = streams.find_map(|attempt| match attempt.transport {
            UpstreamTransport::Stream(kind) => Some((attempt.upstream, kind, attempt.serial)),
            UpstreamTransport::Udp => None,
        });
        let Some((upstream, kind, serial)) = stream else { return };
        let cold = flight.cold();
        if cold.joins == MAX_JOINS {
            return;
        }
        cold.joins += 1;
        cold.joined = Some(client);
        let id = ExchangeId::new(slot, generation, serial);
        let upstream = flight.upstreams[usize::from(upstream)].clone();
        let limits = flight.stanza().spec().connections;
        self.output.streams.push_back(StreamRequest::Join { upstream, kind, limits, id, client });
    }

    /// Arms the flight's timer for its next action, if the flight still exists.
    pub(super) fn rearm(&mut self, slot: u32) {
        let Some(flight) = self.table.get(slot) else { return };
        if self.output.is_ended(slot) {
            return;
        }
        let timeout = flight.stanza().spec().read_timeout.as_micros() as u32;
        let silence = flight
            .attempts
            .iter()
            .filter(|attempt| attempt.state == AttemptState::Waiting)
            .map(|attempt| attempt.sent.saturating_add(timeout))
            .min()
            .unwrap_or(NEVER);
        let offset = match flight.state {
            FlightState::Flying => silence.min(flight.deadline).min(flight.hedge_at).min(flight.patience_at),
            FlightState::Settled => silence,
            FlightState::Late => silence.min(LATE.as_micros() as u32),
        };
        let at = flight.machine_time(offset);
        self.timers.arm(slot, at);
    }
}

/// A flight's waiting exchange is counted against the quotas of at most this many joining clients,
/// one after the other.
const MAX_JOINS: u8 = 8;
/// Attempts that may fail in one query whatever the stanza sets: a refusal takes microseconds, and
/// the deadline alone would allow a hundred thousand.
const FAILURES_MAX: u32 = 32;
