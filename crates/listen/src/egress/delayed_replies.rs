//! Replies that leave after a delay, as `erratic` has them: each is a suspended query that is resumed
//! when its time has come.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Egress;
use crate::subquery_join::SubqueryHandle;
use crate::waiter::{Client, Miss, Waiter};

/// The replies of a worker that wait, by the time at which they leave and in the order of arrival.
#[derive(Default)]
pub(super) struct DelayedReplies {
    waiting: BTreeMap<(Instant, u64), (SubqueryHandle<Client>, Instant)>,
    /// The number of the next reply.
    next: u64,
}

impl Egress {
    /// Keeps a query until its delay has passed. Beyond [`MOST`] replies it resumes at once.
    pub(super) fn delay(&mut self, miss: Miss, now: Instant) {
        let Miss { waiter: Waiter { client, started, .. }, patience, .. } = miss;
        let Client::Subquery(handle) = client else { return };
        match patience.and_then(|delay| now.checked_add(delay)) {
            Some(at) if at > now && self.delayed.waiting.len() < MOST => {
                self.delayed.next += 1;
                self.delayed.waiting.insert((at, self.delayed.next), (handle, started));
            }
            _ => self.delay_over(handle, started, now),
        }
    }

    /// Returns when the next delayed reply leaves.
    pub(crate) fn next_delayed(&self) -> Option<Instant> {
        self.delayed.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Makes the queries whose delay has passed ready to be resumed.
    pub(crate) fn end_delays(&mut self, now: Instant) {
        while self.next_delayed().is_some_and(|at| at <= now) {
            let Some((_, (handle, started))) = self.delayed.waiting.pop_first() else { return };
            self.delay_over(handle, started, now);
        }
    }

    fn delay_over(&mut self, handle: SubqueryHandle<Client>, started: Instant, now: Instant) {
        if let Some(inner) = handle.complete_wait() {
            self.make_ready(inner, started, now);
        }
    }
}

/// Most replies of a worker that wait.
const MOST: usize = 4096;
