//! Sends a query again before an attempt has failed: to another upstream (a hedge), to the same
//! upstream (a copy), or to one that may not answer (a trial).

use std::time::{Duration, Instant};

use super::Forwarder;
use super::flight::{Attempt, AttemptState, EdnsLevel, FlightState, Pick, Try};
use super::timer_wheel::{MachineTime, NEVER};
use crate::UpstreamPath;

impl<W> Forwarder<W> {
    /// Sends a query again: called when an upstream has not answered for long enough to try the
    /// next one too, or the same again; or to retry what could not be sent.
    pub(super) fn hedge(&mut self, now: Instant, slot: u32) {
        let at = self.machine_time(now);
        let flight = &mut self.table[slot];
        flight.hedge_at = NEVER;
        let unsent = flight.cold.as_mut().is_some_and(|cold| std::mem::take(&mut cold.unsent) != 0);
        let (waiting, free) = (flight.waiting(), flight.attempt_to_use().is_some());
        if waiting == 0 && (unsent || flight.is_listening()) {
            return self.try_next(now, slot);
        }
        if waiting == 0 || !free || flight.spare().is_some_and(|spare| !spare.failover && spare.bad) {
            return;
        }
        let known_silent = |attempt: &Attempt| {
            let upstream = &flight.upstreams[usize::from(attempt.upstream)];
            upstream.is_suspect(attempt.path(), now) || flight.is_down(attempt.upstream)
        };
        match flight.pick() {
            Pick::Upstream { upstream, cursor } => {
                // A hedge away from an upstream that is known not to answer an OPT is not limited
                // by the budget: its query was sent before that was known.
                let held = |at: &Attempt| {
                    let edns = flight.upstreams[usize::from(at.upstream)].edns();
                    at.edns != EdnsLevel::Plain && edns.is_held(now)
                };
                let mut asked =
                    flight.attempts.iter().filter(|attempt| attempt.state == AttemptState::Waiting);
                let moves = asked.all(|at| known_silent(at) || held(at)) && !flight.is_suspect(upstream, now);
                if !moves && !self.budget.take() {
                    flight.hedge_at = flight.offset(at.after(COPY_DENIED));
                    return;
                }
                let wait = flight.congestion(upstream).hedge_after();
                flight.cursor = cursor;
                self.send(now, slot, Try { hedge: true, ..Try::new(upstream) });
                let flight = &mut self.table[slot];
                flight.hedge_at = flight.offset(at.after(wait));
            }
            // There is no other upstream.
            Pick::Full { .. } | Pick::AllDown | Pick::None => {
                let Some((upstream, edns, is_less)) = flight.again(now) else { return };
                let to = &flight.upstreams[usize::from(upstream)];
                // Once the upstream is known not to answer an OPT, other queries that were sent
                // with an OPT are repeated without it, and take no token.
                let may = match is_less {
                    true => to.edns().is_held(now) || flight.congestion(upstream).take_copy(),
                    false => self.may_copy(now, slot, upstream),
                };
                if !may {
                    let flight = &mut self.table[slot];
                    flight.hedge_at = flight.hedge_at.min(flight.offset(at.after(COPY_DENIED)));
                    return;
                }
                self.send(now, slot, Try { hedge: true, edns, ..Try::new(upstream) });
                let flight = &mut self.table[slot];
                flight.hedge_at = flight.offset(at.after(COPY_DENIED));
            }
        }
    }

    /// Whether a query may be sent to an upstream: always if it has no attempt there; otherwise if
    /// its last datagram is probably lost, and copies are left or the upstream has no other query.
    /// If it may not, sets when to check again.
    ///
    /// An upstream that has answered nothing for `read_timeout` since is sent one more copy, as it
    /// may have recovered. That copy takes no token, and is the only kind over a connection.
    pub(super) fn may_copy(&mut self, now: Instant, slot: u32, to: u8) -> bool {
        let at = self.machine_time(now);
        let flight = &self.table[slot];
        let Some((sent, copies)) = flight.sent_to(to) else { return true };
        let upstream = &flight.upstreams[usize::from(to)];
        let congestion = flight.congestion(to);
        let sent_at = upstream.micros(self.epoch + flight.machine_time(sent).since(MachineTime(0)));
        let is_silent = !flight.is_asking(to) && !congestion.replied_since(sent_at);
        let wait = congestion.lost_at(sent_at, copies).saturating_sub(upstream.micros(now));
        // A copy at an upstream that has nothing else to do delays no other query.
        let is_alone = congestion.outstanding().0 <= copies + 1;
        let over_udp = flight.path(to) == UpstreamPath::Udp;
        if wait == 0 && (is_silent || (over_udp && (is_alone || congestion.take_copy()))) {
            return true;
        }
        let again = if wait == 0 { COPY_DENIED } else { Duration::from_micros(wait) };
        let flight = &mut self.table[slot];
        flight.hedge_at = flight.offset(at.after(again));
        false
    }

    /// Sends a suspect a copy of a query now and then (a trial): its reply ends the suspicion, and
    /// the client does not wait for it.
    pub(super) fn try_suspect(&mut self, now: Instant, slot: u32) {
        // The first attempt may have failed at once, which may have ended the flight.
        let Some(flight) = self.table.get(slot).filter(|flight| flight.state == FlightState::Flying) else {
            return;
        };
        for turn in 1..flight.order.len() {
            let candidate = flight.order.at(turn);
            let upstream = &flight.upstreams[usize::from(candidate)];
            if flight.is_suspect(candidate, now) && !flight.is_down(candidate) && !flight.is_asking(candidate)
            {
                let (outstanding, _) = upstream.outstanding(flight.path(candidate));
                if outstanding < TRIALS && upstream.take_trial(flight.path(candidate), now) {
                    self.send(now, slot, Try { hedge: true, ..Try::new(candidate) });
                }
                return;
            }
        }
    }
}

/// A suspect gets a trial while it has fewer outstanding queries than this: as many trials as fit
/// into `read_timeout`.
const TRIALS: u32 = 8;
/// Delay after which a copy or hedge that may not be sent is considered again.
const COPY_DENIED: Duration = Duration::from_millis(50);
