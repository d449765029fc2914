//! Deferred delivery: waiters that joined a flight are answered some at a time, so that other
//! clients do not wait for thousands of replies.

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;

use forwarder::{Forwarder, RemainingWaiters, Waiters};
use wire::{Answer, OwnedQuery, Query};

use super::subqueries::{A_MOMENT, Came, ToldAlready};
use super::{Outputs, Waiter};
use plugin::failure::Failure;

/// The waiters of one flight that are not answered yet. They stay in the forwarder, and count
/// against its limits, until then.
struct Crowd {
    rest: RemainingWaiters<Waiter>,
    /// The query as stored for all.
    query: OwnedQuery,
    told: Result<Answer, Failure>,
    earlier_is_better: bool,
    told_already: ToldAlready,
    upstream: Option<SocketAddr>,
}

impl Crowd {
    /// Bytes of the answer, and of the replies made of it so far.
    fn octets(&self) -> usize {
        let of = |answer: &Answer| answer.body.len() + 2 * answer.ttls.len() + answer.ede.len();
        self.told.as_ref().map_or(0, of) * (1 + self.told_already.len())
    }
}

/// The deferred waiters of all flights.
pub(super) struct Crowds {
    /// Served round robin.
    all: VecDeque<Crowd>,
    /// Bytes of their answers.
    octets: usize,
}

impl Crowds {
    /// None.
    pub(super) fn new() -> Self {
        Self { all: VecDeque::new(), octets: 0 }
    }

    /// Adds a crowd; with a failure in place of its answer if that exceeds the limit.
    fn push(&mut self, mut crowd: Crowd) {
        if self.octets + crowd.octets() > MOST_OCTETS {
            (crowd.told, crowd.earlier_is_better) = (Err(Failure::Overload), true);
            crowd.told_already.clear();
        }
        self.octets += crowd.octets();
        self.all.push_back(crowd);
    }

    fn pop(&mut self) -> Option<Crowd> {
        let crowd = self.all.pop_front()?;
        self.octets -= crowd.octets();
        Some(crowd)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl Outputs {
    /// Answers the waiters that joined a flight, until this turn has taken [`A_MOMENT`]; the others
    /// are deferred with the flight's outcome.
    #[cold]
    pub(super) fn tell_crowd(
        &mut self,
        mut waiters: Waiters<'_, Waiter>,
        query: &Query<'_>,
        told: Result<&mut Answer, Failure>,
        earlier_is_better: bool,
        told_already: ToldAlready,
    ) {
        let mut came = Came { told: told.as_deref(), earlier_is_better, told_already };
        while clock::now().saturating_duration_since(self.now) < A_MOMENT {
            let Some(waiter) = waiters.next() else { return };
            self.tell_one(waiter, query, &mut came, self.now);
        }
        let Came { told_already, .. } = came;
        if waiters.is_empty() {
            return;
        }
        self.crowds.push(Crowd {
            rest: waiters.later(),
            query: query.owned(),
            told: told.map(mem::take),
            earlier_is_better,
            told_already,
            upstream: self.upstream,
        });
    }

    /// Answers some waiters of one crowd.
    pub(super) fn tell_some(&mut self, forwarder: &mut Forwarder<Waiter>) {
        let Some(mut crowd) = self.crowds.pop() else { return };
        // A panic costs the waiter concerned.
        self.running.clone().guarded(|| self.tell_next(&mut crowd, forwarder));
        self.upstream = None;
        if !crowd.rest.is_empty() {
            self.crowds.push(crowd);
        }
    }

    fn tell_next(&mut self, crowd: &mut Crowd, forwarder: &mut Forwarder<Waiter>) {
        self.upstream = crowd.upstream;
        let query = crowd.query.query();
        let told_already = mem::take(&mut crowd.told_already);
        let mut came =
            Came { told: crowd.told.as_ref(), earlier_is_better: crowd.earlier_is_better, told_already };
        for _ in 0..AT_ONCE {
            let Some(waiter) = forwarder.next_waiter(&mut crowd.rest) else { break };
            self.tell_one(waiter, &query, &mut came, self.now);
        }
        crowd.told_already = came.told_already;
    }
}

/// Waiters of one crowd that are answered in its turn.
const AT_ONCE: usize = 16;
/// Bytes of the answers of all crowds.
const MOST_OCTETS: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{RType, Rcode, Verdict, accept};

    #[test]
    fn who_waits_for_more_answers_than_there_is_room_for_is_told_so() {
        let packet = scene::packet("large.example", RType::A, None);
        let Verdict::Pass(query) = accept(&packet) else { panic!("refused") };
        let crowd = || Crowd {
            rest: RemainingWaiters::none(),
            query: query.owned(),
            told: Ok(Answer { body: vec![0; 60_000], ..Answer::default() }),
            earlier_is_better: false,
            told_already: ToldAlready::new(),
            upstream: None,
        };
        let mut crowds = Crowds::new();
        (0..40).for_each(|_| crowds.push(crowd()));
        assert_eq!(crowds.octets, 34 * 60_000);
        let rcode = |crowd: Crowd| crowd.told.map_or_else(|failure| failure.rcode(), |answer| answer.rcode);
        let told: Vec<_> = std::iter::from_fn(|| crowds.pop()).map(rcode).collect();
        assert_eq!(told, [[Rcode::NOERROR; 34].as_slice(), &[Rcode::SERVFAIL; 6]].concat());
        assert_eq!((crowds.octets, crowds.is_empty()), (0, true));
    }
}
