//! The EDNS options of a query to an upstream, the fallback to fewer of them, and for which clients
//! the reply is valid.
//!
//! A query is sent with the client's subnet and the options that middleware added, then with our
//! own OPT alone, then with none: each refusal is one step (RFC 6891, section 6.2.2 and section 7).
//! Only a refusal of our own OPT proves anything about an upstream: a client or the Corefile may
//! have chosen bad options.

use std::time::Instant;

use wire::{HEADER, Rcode, UpstreamOverrides, write_upstream_query};

use super::Forwarder;
use super::flight::{
    ADDED, Attempt, AttemptState, BARE, DNSSEC_OK, EdnsLevel, Flight, SUBNET, Try, UpstreamTransport,
};
use crate::Upstream;

impl<W> Flight<W> {
    pub(super) fn dnssec_ok(&self) -> bool {
        self.bits & DNSSEC_OK != 0
    }

    pub(super) fn has_subnet(&self) -> bool {
        self.bits & SUBNET != 0
    }

    /// Whether there are options beyond our own OPT.
    fn has_options(&self) -> bool {
        self.bits & (SUBNET | ADDED) != 0
    }

    /// Whether the answer may differ without OPT: then a missing reply alone is no reason to send
    /// none.
    pub(super) fn needs_edns(&self) -> bool {
        self.bits & (DNSSEC_OK | ADDED) != 0
    }

    /// Returns the EDNS level for a query to this upstream: `asked`, or a lower one if the upstream
    /// accepts no more.
    pub(super) fn edns_level(&self, now: Instant, upstream: u8, asked: EdnsLevel) -> EdnsLevel {
        let edns = self.upstream(upstream).edns();
        let refused = self.bits & ADDED == 0 || self.refused_edns >> upstream & 1 == 1;
        let without_edns = self.without_edns >> upstream & 1 == 1 && refused && !edns.takes_lately(now);
        if asked == EdnsLevel::Plain || without_edns || edns.asks_plain(now, self.needs_edns()) {
            EdnsLevel::Plain
        } else if self.bits & BARE != 0 {
            EdnsLevel::Bare
        } else {
            asked
        }
    }

    /// Appends the query to `message`, with 0 for its id.
    pub(super) fn write(&self, edns: EdnsLevel, message: &mut Vec<u8>) {
        let mut query = self.held.0.query();
        if let (true, Some(opt)) = (edns != EdnsLevel::Whole, &mut query.edns) {
            opt.client_subnet = None;
        }
        if edns != EdnsLevel::Whole {
            query.overrides = UpstreamOverrides::NONE;
        }
        let start = message.len();
        write_upstream_query(message, 0, &query);
        if edns == EdnsLevel::Plain {
            // Only the OPT follows the question.
            message.truncate(start + HEADER + query.question.len());
            message[start + HEADER - 2..start + HEADER].fill(0);
        }
    }

    /// Returns the upstream for a copy while no other one may be tried, the copy's EDNS level, and
    /// whether this level is lower than before, as the upstream may not answer because of our OPT,
    /// or did not repeat the subnet. Otherwise it must be the only upstream with attempts. `None`
    /// over a connection, as TCP retransmits by itself.
    pub(super) fn again(&self, now: Instant) -> Option<(u8, EdnsLevel, bool)> {
        let is_open = |attempt: &&Attempt| {
            attempt.state == AttemptState::Waiting && attempt.transport == UpstreamTransport::Udp
        };
        let mut waiting = self.attempts.iter().filter(is_open);
        let doubtful = |attempt: &&Attempt| {
            let plain = |other: &Attempt| {
                other.state == AttemptState::Waiting
                    && other.upstream == attempt.upstream
                    && other.edns == EdnsLevel::Plain
            };
            !self.needs_edns()
                && attempt.edns != EdnsLevel::Plain
                && !self.upstream(attempt.upstream).edns().takes_lately(now)
                && !self.attempts.iter().any(plain)
        };
        if let Some(attempt) = waiting.clone().find(doubtful) {
            return Some((attempt.upstream, EdnsLevel::Plain, true));
        }
        let first = *waiting.next()?;
        let mut levels = waiting.clone().map(|other| other.edns);
        let strayed = self.bits & BARE != 0
            && first.edns == EdnsLevel::Whole
            && levels.all(|edns| edns == EdnsLevel::Whole);
        waiting.all(|other| other.upstream == first.upstream).then_some((first.upstream, first.edns, strayed))
    }

    /// Whether an upstream other than `but` that may support EDNS can still answer, for a query
    /// with DO.
    pub(super) fn has_speaker(&self, now: Instant, but: u8) -> bool {
        (0..self.order.len() as u8).any(|at| {
            let upstream = self.upstream(at);
            at != but
                && (self.failed_over | self.without_edns) >> at & 1 == 0
                && !self.is_down(at)
                && !self.is_suspect(at, now)
                && !upstream.edns().lacks_dnssec(now)
        })
    }

    /// Whether a query with an OPT was sent to the same upstream no later than `attempt`, and not
    /// answered so far.
    fn failed_with_opt(&self, attempt: &Attempt) -> bool {
        self.without_edns >> attempt.upstream & 1 == 1
            || self.attempts.iter().any(|other| {
                other.state != AttemptState::Free
                    && other.upstream == attempt.upstream
                    && other.edns != EdnsLevel::Plain
                    && other.sent <= attempt.sent
            })
    }

    fn upstream(&self, at: u8) -> &Upstream {
        &self.upstreams[usize::from(at)]
    }
}

impl<W> Forwarder<W> {
    /// Whether the reply in `self.answer` refuses the query's EDNS.
    pub(super) fn refuses_edns(&self, attempt: &Attempt) -> bool {
        attempt.edns != EdnsLevel::Plain && finds_fault(self.answer.rcode)
    }

    /// Sends a query with refused EDNS again, at a lower level.
    pub(super) fn send_less(&mut self, now: Instant, slot: u32, attempt: &Attempt) {
        let flight = &mut self.table[slot];
        let edns = if attempt.edns == EdnsLevel::Whole && flight.has_options() {
            EdnsLevel::Bare
        } else {
            flight.without_edns |= 1 << attempt.upstream;
            // RFC 6891, section 7: a server without EDNS answers FORMERR, without an OPT.
            let refused = self.answer.rcode == Rcode::FORMERR && !self.answer.opt;
            flight.refused_edns |= u16::from(refused) << attempt.upstream;
            EdnsLevel::Plain
        };
        let tcp = attempt.transport != UpstreamTransport::Udp;
        self.send(now, slot, Try { edns, tcp, ..Try::new(attempt.upstream) });
    }

    /// Updates the upstream's EDNS state by the reply in `self.answer`.
    pub(super) fn learn(&mut self, now: Instant, slot: u32, attempt: &Attempt) {
        let flight = &self.table[slot];
        let edns = flight.upstream(attempt.upstream).edns();
        if finds_fault(self.answer.rcode) {
            return;
        }
        let answers = matches!(self.answer.rcode, Rcode::NOERROR | Rcode::NXDOMAIN);
        if attempt.edns != EdnsLevel::Plain {
            edns.took(now, flight.dnssec_ok() && answers, self.answer.opt);
        } else if answers && flight.failed_with_opt(attempt) {
            edns.refused(now, flight.refused_edns >> attempt.upstream & 1 == 1);
        }
    }

    /// Whether the query has DO and this reply cannot have DNSSEC records.
    pub(super) fn lost_dnssec(&self, slot: u32, edns: EdnsLevel) -> bool {
        self.table[slot].dnssec_ok() && (edns == EdnsLevel::Plain || !self.answer.opt)
    }

    /// Whether the reply in `self.answer` repeats the client's subnet, if it has any. Other replies
    /// are dropped, as they may be forged: an attacker that makes clients send queries with many
    /// subnets needs to guess only one id of many (RFC 7871, section 11.2). The query's copies are
    /// sent without subnet.
    pub(super) fn repeats_subnet(&mut self, slot: u32, nth: usize) -> bool {
        let flight = &mut self.table[slot];
        let sent = flight.attempts[nth].edns == EdnsLevel::Whole;
        let repeats = match (self.answer.subnet, flight.held.0.client_subnet()) {
            (Some(subnet), Some(asked)) if sent => subnet.repeats(asked),
            _ => true,
        };
        if !repeats {
            flight.bits |= BARE;
        }
        repeats
    }

    /// Sets in `self.answer` whether the answer is valid for this flight's waiters only, and
    /// removes a subnet that does not repeat the query's.
    pub(super) fn mark(&mut self, slot: u32, edns: EdnsLevel) {
        let flight = &self.table[slot];
        let sent = edns == EdnsLevel::Whole && flight.has_subnet();
        // If the subnet was derived here from the client's address, the cache stores the answer
        // under that subnet, for its clients only.
        let own = flight.held.0.forwards_client_subnet();
        // RFC 7871, section 7.3.1: an answer with a scope is valid for that part of the network. By
        // section 7.3 an answer without the option counts as one with scope 0; then a forger need
        // not repeat the subnet (section 11.2), so here only an answer that repeats it is valid for
        // all clients.
        let for_all = match self.answer.subnet {
            Some(subnet) if own || !sent => subnet.scope() == 0 && (sent || !flight.has_subnet()),
            Some(_) => true,
            None => !own,
        };
        // An answer to a query sent without the client's DO bit lacks signatures: it is not shared
        // with other queries with DO.
        self.answer.subnet_specific = !for_all || (flight.dnssec_ok() && edns == EdnsLevel::Plain);
        if !sent {
            self.answer.subnet = None;
        }
    }
}

/// Whether an rcode may refer to the query's EDNS.
fn finds_fault(rcode: Rcode) -> bool {
    matches!(rcode, Rcode::FORMERR | Rcode::NOTIMP | Rcode::BADVERS)
}
