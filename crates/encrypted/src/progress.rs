//! What a connection waits for, derived from its requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::client::{Activity, Client};

/// Counts the requests of one connection, and reports its activity to the client.
pub(crate) struct Progress<C> {
    client: Arc<C>,
    counts: Mutex<Counts>,
}

struct Counts {
    /// The number of the next entry of `incomplete` and `unsent`.
    next: u64,
    /// Requests that are not received whole yet, with their begin, oldest first.
    incomplete: BTreeMap<u64, Instant>,
    /// Requests that are received and not answered yet.
    unanswered: u32,
    /// Replies that are not sent yet, with the time of the answer, oldest first.
    unsent: BTreeMap<u64, Instant>,
    /// Whether a request has ended.
    served: bool,
    /// Since when no request is open.
    idle_since: Instant,
}

impl Counts {
    fn is_idle(&self) -> bool {
        self.unanswered == 0 && self.incomplete.is_empty() && self.unsent.is_empty()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl<C: Client> Progress<C> {
    /// Creates the counts of a connection that waits for its first request from now on.
    pub(crate) fn new(client: Arc<C>) -> Arc<Self> {
        let counts = Counts {
            next: 0,
            incomplete: BTreeMap::new(),
            unanswered: 0,
            unsent: BTreeMap::new(),
            served: false,
            idle_since: clock::now(),
        };
        let progress = Self { client, counts: Mutex::new(counts) };
        progress.changed(&progress.counts());
        Arc::new(progress)
    }

    /// Returns since when no request is open, and whether one was served before; `None` while one
    /// is open.
    pub(crate) fn idle(&self) -> Option<(Instant, bool)> {
        let counts = self.counts();
        counts.is_idle().then_some((counts.idle_since, counts.served))
    }

    /// Returns since when the oldest reply waits to be sent; `None` if none does.
    pub(crate) fn unsent_since(&self) -> Option<Instant> {
        oldest(&self.counts().unsent)
    }

    /// Begins a request, whose message is not received yet.
    pub(crate) fn begin(self: &Arc<Self>) -> OpenRequest<C> {
        let mut counts = self.counts();
        let number = counts.number();
        counts.incomplete.insert(number, clock::now());
        self.changed(&counts);
        OpenRequest { of: self.clone(), step: Step::Incomplete(number) }
    }

    fn changed(&self, counts: &Counts) {
        let (activity, since) = if counts.unanswered > 0 {
            (Activity::Answer, clock::now())
        } else if let Some(since) = oldest(&counts.incomplete) {
            (Activity::Message, since)
        } else if let Some(since) = oldest(&counts.unsent) {
            (Activity::Reader, since)
        } else {
            (Activity::Request, counts.idle_since)
        };
        self.client.set_activity(activity, since);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn oldest(requests: &BTreeMap<u64, Instant>) -> Option<Instant> {
    requests.first_key_value().map(|(_, since)| *since)
}

/// A request, open until its reply is sent or dropped.
pub(crate) struct OpenRequest<C: Client> {
    of: Arc<Progress<C>>,
    step: Step,
}

/// What a request waits for, with its number in the counts.
#[derive(Clone, Copy)]
enum Step {
    /// The rest of its message.
    Incomplete(u64),
    /// The answer.
    Unanswered,
    /// The client's reading of the reply.
    Unsent(u64),
}

impl<C: Client> OpenRequest<C> {
    /// Records that the message is received: from now on it waits for the server.
    pub(crate) fn received(&mut self) {
        let mut counts = self.of.counts();
        leave(&mut counts, self.step);
        counts.unanswered += 1;
        self.step = Step::Unanswered;
        self.of.changed(&counts);
    }

    /// Records that the reply is ready: from now on it waits for the client.
    pub(crate) fn answered(&mut self) {
        let mut counts = self.of.counts();
        leave(&mut counts, self.step);
        let number = counts.number();
        counts.unsent.insert(number, clock::now());
        self.step = Step::Unsent(number);
        self.of.changed(&counts);
    }
}

/// Removes a request from the counts of its step.
fn leave(counts: &mut Counts, step: Step) {
    match step {
        Step::Incomplete(number) => drop(counts.incomplete.remove(&number)),
        Step::Unanswered => counts.unanswered -= 1,
        Step::Unsent(number) => drop(counts.unsent.remove(&number)),
    }
}

impl<C: Client> Drop for OpenRequest<C> {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        leave(&mut counts, self.step);
        if counts.is_idle() {
            (counts.served, counts.idle_since) = (true, clock::now());
        }
        self.of.changed(&counts);
    }
}
