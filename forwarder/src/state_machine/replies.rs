//! Handles replies: an answer, a reason to send the query again, or information about an upstream.

use std::time::{Duration, Instant};

use wire::{Flags, Rcode};

use super::Forwarder;
use super::flight::{
    ATTEMPTS, Attempt, AttemptKind, AttemptState, EdnsLevel, Flight, FlightState, Spare, Try,
    UpstreamTransport,
};
use super::output::Ended;
use super::timer_wheel::NEVER;
use crate::{DEADLINE, ForwardError, UpstreamPath};

impl<W> Forwarder<W> {
    /// Takes the reply to the `nth` attempt, which is in `self.answer`, and as received in `bytes`.
    pub(super) fn replied(&mut self, now: Instant, slot: u32, nth: usize, bytes: &[u8]) {
        let at = self.machine_time(now);
        let flight = &self.table[slot];
        let attempt = flight.attempts[nth];
        let upstream = &flight.upstreams[usize::from(attempt.upstream)];
        let rtt = Duration::from_micros(u64::from(flight.offset(at).saturating_sub(attempt.sent)));
        upstream.replied(attempt.path(), now, rtt, attempt.kind == AttemptKind::Copy);
        self.budget.earn();
        upstream.metrics().replied(self.answer.rcode, rtt);
        let truncated = self.answer.flags.has(Flags::TC) && attempt.transport == UpstreamTransport::Udp;
        let refuses_edns = self.refuses_edns(&attempt);
        let state = flight.state;
        if state == FlightState::Flying && attempt.kind == AttemptKind::Hedge {
            self.budget.pay_back();
        }
        self.learn(now, slot, &attempt);
        self.mark(slot, attempt.edns);
        self.close(slot, nth);
        match state {
            FlightState::Settled => self.end_if_settled(slot),
            FlightState::Late if truncated || refuses_edns => self.end_if_deaf(slot),
            FlightState::Late => self.land_late(now, slot, attempt.upstream, rtt),
            FlightState::Flying if refuses_edns => self.send_less(now, slot, &attempt),
            FlightState::Flying if truncated => {
                self.keep(slot, bytes, &attempt, rtt, false);
                self.ask_over_tcp(now, slot, attempt.upstream, attempt.edns);
            }
            FlightState::Flying
                if self.lost_dnssec(slot, attempt.edns)
                    && !is_bad(self.answer.rcode)
                    && self.table[slot].has_speaker(now, attempt.upstream) =>
            {
                // Another upstream may have DNSSEC records: handled as if `failover` had named the
                // rcode.
                let flight = &mut self.table[slot];
                flight.failed_over |= 1 << attempt.upstream;
                flight.deadline = flight.deadline.min(flight.offset(at.after(SPARE_PATIENCE)));
                self.keep(slot, bytes, &attempt, rtt, true);
                self.try_next(now, slot);
            }
            FlightState::Flying => self.judge(now, slot, &attempt, rtt, bytes),
        }
        self.rearm(slot);
    }

    /// Takes a malformed reply to the right question. Over UDP it may be cut off: then the query is
    /// sent over TCP, as for a truncated reply.
    pub(super) fn garbled(&mut self, now: Instant, slot: u32, nth: usize) {
        let flight = &self.table[slot];
        let attempt = flight.attempts[nth];
        if flight.state == FlightState::Flying && attempt.transport == UpstreamTransport::Udp {
            let doubtful = attempt.edns != EdnsLevel::Plain
                && !flight.needs_edns()
                && !flight.upstreams[usize::from(attempt.upstream)].edns().takes_lately(now);
            self.close(slot, nth);
            let this = Try { edns: EdnsLevel::Plain, ..Try::new(attempt.upstream) };
            if doubtful {
                self.send(now, slot, this);
                self.table[slot].without_edns |= 1 << attempt.upstream;
            } else {
                self.ask_over_tcp(now, slot, attempt.upstream, attempt.edns);
            }
            self.rearm(slot);
            return;
        }
        if attempt.edns != EdnsLevel::Plain {
            self.table[slot].without_edns |= 1 << attempt.upstream;
        }
        let flight = &self.table[slot];
        let failure = ForwardError::Garbled(flight.upstreams[usize::from(attempt.upstream)].address());
        self.failed(now, slot, nth, failure);
    }

    /// Takes a reply over a connection that repeats another subnet: the query is sent again without
    /// subnet.
    pub(super) fn strayed(&mut self, now: Instant, slot: u32, nth: usize) {
        let flight = &self.table[slot];
        let attempt = flight.attempts[nth];
        let failure = ForwardError::Garbled(flight.upstreams[usize::from(attempt.upstream)].address());
        if flight.state == FlightState::Flying {
            // Frees the attempt's entry for the next one.
            self.close(slot, nth);
            let this = Try { edns: EdnsLevel::Bare, tcp: true, ..Try::new(attempt.upstream) };
            self.send(now, slot, this);
            self.rearm(slot);
        } else {
            self.failed(now, slot, nth, failure);
        }
    }

    /// Decides about a well-formed reply to a flight with waiters.
    fn judge(&mut self, now: Instant, slot: u32, attempt: &Attempt, rtt: Duration, bytes: &[u8]) {
        let (upstream, sent) = (attempt.upstream, attempt.sent);
        let rcode = self.answer.rcode;
        let flight = &mut self.table[slot];
        if flight.stanza().spec().failover.contains(&rcode) {
            flight.failed_over |= 1 << upstream;
            self.keep(slot, bytes, attempt, rtt, true);
            self.try_next(now, slot);
            return;
        }
        if is_bad(rcode) && flight.expects_better(now) {
            self.keep(slot, bytes, attempt, rtt, false);
            return;
        }
        self.settle(now, slot, upstream, rtt, Some(sent));
    }

    /// Uses the reply in `self.answer` as the stanza's result: continues with the next stanza if
    /// this one requires that, else ends the flight with it.
    pub(super) fn settle(&mut self, now: Instant, slot: u32, upstream: u8, rtt: Duration, sent: Option<u32>) {
        if self.hand_over(now, slot) {
            return;
        }
        let flight = &self.table[slot];
        if let Some(sent) = sent {
            // Upstreams that were tried no later than the one that answered, and have not answered,
            // are slower.
            for other in flight.attempts.iter().filter(|other| other.state == AttemptState::Waiting) {
                if other.upstream != upstream && other.sent <= sent {
                    let silent = &flight.upstreams[usize::from(other.upstream)];
                    silent.lost(other.path(), now);
                    if other.edns != EdnsLevel::Plain {
                        silent.edns().doubt(now);
                    }
                }
            }
        }
        self.conclude(slot, Ok((upstream, rtt)));
    }

    /// Starts again with the next stanza, if `next` names the rcode in `self.answer` and another
    /// stanza matches.
    fn hand_over(&mut self, now: Instant, slot: u32) -> bool {
        let flight = &self.table[slot];
        let spec = flight.stanza().spec();
        let nodata = self.answer.rcode == Rcode::NOERROR && self.answer.counts[0] == 0;
        let named = spec.next.contains(&self.answer.rcode) || (spec.next_on_nodata && nodata);
        if !named {
            return false;
        }
        let name = flight.held.0.query().name;
        let Some(next) = flight.chain.matching(usize::from(flight.stanza) + 1, &name) else { return false };
        let stanza = flight.chain.stanzas()[next].clone();
        let upstreams = stanza.upstreams();
        for nth in 0..ATTEMPTS {
            self.drop_attempt(slot, nth);
        }
        let client = self.table[slot].waiters.client;
        // The old stanza's admission is kept until the new one is sure, as `conclude` releases one.
        let admitted = if upstreams.is_empty() {
            Err(stanza.without_upstreams())
        } else {
            stanza.admit(client).ok_or(ForwardError::MaxConcurrent(stanza.spec().max_concurrent))
        };
        match admitted {
            Ok(admitted) => admitted.keep(),
            Err(failure) => {
                self.conclude(slot, Err((failure, None)));
                return true;
            }
        }
        let flight = &mut self.table[slot];
        flight.stanza().release(client);
        flight.stanza = next as u8;
        flight.upstreams = upstreams;
        (flight.cold, flight.failures, flight.hedge_at) = (None, 0, NEVER);
        (flight.failed_over, flight.without_edns, flight.refused_edns) = (0, 0, 0);
        // A spare reply, which is dropped by now, may have shortened the deadline.
        flight.deadline = DEADLINE.as_micros() as u32;
        self.begin(now, slot);
        true
    }

    /// Takes a reply that arrived after all waiters had timed out: it is cached, and answers a
    /// newer flight of the same query.
    fn land_late(&mut self, now: Instant, slot: u32, upstream: u8, rtt: Duration) {
        let flight = &mut self.table[slot];
        flight.upstreams[usize::from(upstream)].metrics().late.add_shared(1);
        if is_bad(self.answer.rcode) {
            self.end_if_deaf(slot);
            return;
        }
        // The reply serves another flight of the same query only if that flight's upstreams include
        // the one that replied.
        let upstream_id = flight.upstreams[usize::from(upstream)].id();
        let again = self.table.find_like(slot).and_then(|other| {
            let theirs =
                self.table[other].upstreams.iter().position(|upstream| upstream.id() == upstream_id)?;
            Some((other, theirs as u8))
        });
        if let Some((other, theirs)) = again {
            self.settle(now, other, theirs, rtt, None);
            self.rearm(other);
            self.remove(slot);
        } else {
            self.output.end(Ended::Late(slot, upstream, rtt));
        }
    }

    fn ask_over_tcp(&mut self, now: Instant, slot: u32, upstream: u8, edns: EdnsLevel) {
        let at = self.machine_time(now);
        let flight = &mut self.table[slot];
        // The upstream did answer (with a truncated reply, for example), so the hedge waits longer:
        // a connection takes more round trips.
        let wait = flight.upstreams[usize::from(upstream)].congestion(UpstreamPath::Stream).hedge_after();
        flight.hedge_at = flight.offset(at.after(wait));
        if flight.spare().is_some() {
            flight.deadline = flight.deadline.min(flight.offset(at.after(SPARE_PATIENCE)));
        }
        let this = Try { tcp: true, edns, ..Try::new(upstream) };
        self.send(now, slot, this);
    }

    /// Keeps a spare reply, in place of an earlier one.
    fn keep(&mut self, slot: u32, bytes: &[u8], attempt: &Attempt, rtt: Duration, failover: bool) {
        let bad = is_bad(self.answer.rcode);
        let (upstream, edns) = (attempt.upstream, attempt.edns);
        self.table[slot].cold().reply =
            Some(Spare { bytes: bytes.into(), upstream, rtt, edns, failover, bad });
    }
}

impl<W> Flight<W> {
    /// Whether an attempt waits at an upstream that may be alive.
    fn expects_better(&self, now: Instant) -> bool {
        self.attempts.iter().any(|attempt| {
            let upstream = &self.upstreams[usize::from(attempt.upstream)];
            attempt.state == AttemptState::Waiting && !upstream.is_suspect(attempt.path(), now)
        })
    }

    /// Excludes an upstream while upstreams are tried in turn because of an rcode, each once.
    pub(super) fn mark_failed_over(&mut self, upstream: u8) {
        if self.spare().is_some_and(|spare| spare.failover) {
            self.failed_over |= 1 << upstream;
        }
    }
}

/// Whether an rcode means that the upstream could not or would not answer, so that a reply of
/// another upstream is preferred.
fn is_bad(rcode: Rcode) -> bool {
    matches!(rcode, Rcode::SERVFAIL | Rcode::REFUSED | Rcode::FORMERR | Rcode::NOTIMP)
}

/// How long TCP has after a truncated reply, and other upstreams after a reply without DNSSEC
/// records. Then the client gets the spare reply: a firewall may drop TCP.
const SPARE_PATIENCE: Duration = Duration::from_secs(1);
