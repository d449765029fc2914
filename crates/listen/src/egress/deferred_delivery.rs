//! Deferred delivery: waiters that joined a flight are answered some at a time, so that other
//! clients do not wait for thousands of replies.

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;

use forwarder::{Forwarder, RemainingWaiters, Waiters};
use wire::{Answer, OwnedQuery, Query};

use super::subqueries::{A_MOMENT, FlightOutcome, SubqueryAnswers};
use super::{Egress, Waiter};
use plugin::failure::Failure;

/// The waiters of one flight that are not answered yet. Until then they stay in the forwarder, and
/// count against its limits.
struct DeferredDelivery {
    rest: RemainingWaiters<Waiter>,
    /// The query as stored for all waiters.
    query: OwnedQuery,
    result: Result<Answer, Failure>,
    earlier_is_better: bool,
    subquery_answers: SubqueryAnswers,
    upstream: Option<SocketAddr>,
}

impl DeferredDelivery {
    /// Returns the bytes of the answer, and of the replies made from it so far.
    fn octets(&self) -> usize {
        let of = |answer: &Answer| answer.body.len() + 2 * answer.ttls.len() + answer.ede.len();
        self.result.as_ref().map_or(0, of) * (1 + self.subquery_answers.len())
    }
}

/// The deferred waiters of all flights.
pub(super) struct DeferredDeliveries {
    /// Served round robin.
    all: VecDeque<DeferredDelivery>,
    /// Bytes of the answers in `all`.
    octets: usize,
}

impl DeferredDeliveries {
    /// Creates an empty list.
    pub(super) fn new() -> Self {
        Self { all: VecDeque::new(), octets: 0 }
    }

    /// Adds a delivery; beyond the limit its answer is replaced by a failure.
    fn push(&mut self, mut delivery: DeferredDelivery) {
        if self.octets + delivery.octets() > MOST_OCTETS {
            (delivery.result, delivery.earlier_is_better) = (Err(Failure::Overload), true);
            delivery.subquery_answers.clear();
        }
        self.octets += delivery.octets();
        self.all.push_back(delivery);
    }

    fn pop(&mut self) -> Option<DeferredDelivery> {
        let delivery = self.all.pop_front()?;
        self.octets -= delivery.octets();
        Some(delivery)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl Egress {
    /// Answers the waiters that joined a flight, until this turn has taken [`A_MOMENT`]; the others
    /// are deferred with the flight's outcome.
    #[cold]
    pub(super) fn answer_joined(
        &mut self,
        mut waiters: Waiters<'_, Waiter>,
        query: &Query<'_>,
        result: Result<&mut Answer, Failure>,
        earlier_is_better: bool,
        subquery_answers: SubqueryAnswers,
    ) {
        let mut outcome = FlightOutcome { result: result.as_deref(), earlier_is_better, subquery_answers };
        while clock::now().saturating_duration_since(self.now) < A_MOMENT {
            let Some(waiter) = waiters.next() else { return };
            self.answer_waiter(waiter, query, &mut outcome, self.now);
        }
        let FlightOutcome { subquery_answers, .. } = outcome;
        if waiters.is_empty() {
            return;
        }
        self.deferred.push(DeferredDelivery {
            rest: waiters.later(),
            query: query.owned(),
            result: result.map(mem::take),
            earlier_is_better,
            subquery_answers,
            upstream: self.upstream,
        });
    }

    /// Answers some waiters of the next flight.
    pub(super) fn answer_some(&mut self, forwarder: &mut Forwarder<Waiter>) {
        let Some(mut delivery) = self.deferred.pop() else { return };
        // A panic affects only the waiter that was being answered.
        self.running.clone().guarded(|| self.answer_next(&mut delivery, forwarder));
        self.upstream = None;
        if !delivery.rest.is_empty() {
            self.deferred.push(delivery);
        }
    }

    fn answer_next(&mut self, delivery: &mut DeferredDelivery, forwarder: &mut Forwarder<Waiter>) {
        self.upstream = delivery.upstream;
        let query = delivery.query.query();
        let subquery_answers = mem::take(&mut delivery.subquery_answers);
        let mut outcome = FlightOutcome {
            result: delivery.result.as_ref(),
            earlier_is_better: delivery.earlier_is_better,
            subquery_answers,
        };
        for _ in 0..AT_ONCE {
            let Some(waiter) = forwarder.next_waiter(&mut delivery.rest) else { break };
            self.answer_waiter(waiter, &query, &mut outcome, self.now);
        }
        delivery.subquery_answers = outcome.subquery_answers;
    }
}

/// Waiters of one flight that are answered in each turn of the flight.
const AT_ONCE: usize = 16;
/// The most bytes of the answers of all flights.
const MOST_OCTETS: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{RType, Rcode, Verdict, accept};

    /// Queries that wait for more answers than fit are answered with a failure.
    #[test]
    fn too_many_waiting_answers_fail() {
        let packet = scene::packet("large.example", RType::A, None);
        let Verdict::Pass(query) = accept(&packet) else { panic!("refused") };
        let delivery = || DeferredDelivery {
            rest: RemainingWaiters::none(),
            query: query.owned(),
            result: Ok(Answer { body: vec![0; 60_000], ..Answer::default() }),
            earlier_is_better: false,
            subquery_answers: SubqueryAnswers::new(),
            upstream: None,
        };
        let mut deferred = DeferredDeliveries::new();
        (0..40).for_each(|_| deferred.push(delivery()));
        assert_eq!(deferred.octets, 34 * 60_000);
        let rcode = |delivery: DeferredDelivery| {
            delivery.result.map_or_else(|failure| failure.rcode(), |answer| answer.rcode)
        };
        let result: Vec<_> = std::iter::from_fn(|| deferred.pop()).map(rcode).collect();
        assert_eq!(result, [[Rcode::NOERROR; 34].as_slice(), &[Rcode::SERVFAIL; 6]].concat());
        assert_eq!((deferred.octets, deferred.is_empty()), (0, true));
    }
}
