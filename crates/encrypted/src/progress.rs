//! What a connection waits for, derived from its requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::client::{Activity, Client};

/// Counts the requests of one connection, and reports its activity to the client.
pub(crate) struct Progress<C> {
    client: Arc<C>,
    counts: Mutex<Counts>,
}

struct Counts {
    /// Requests that are not answered yet.
    unanswered: u32,
    /// Requests, and replies that are not sent yet.
    open: u32,
    /// Whether a request has ended.
    served: bool,
    /// Since when no request is open.
    idle_since: Instant,
}

impl<C: Client> Progress<C> {
    /// Creates the counts of a connection that waits for its first request from now on.
    pub(crate) fn new(client: Arc<C>) -> Arc<Self> {
        let counts = Counts { unanswered: 0, open: 0, served: false, idle_since: clock::now() };
        let progress = Self { client, counts: Mutex::new(counts) };
        progress.changed(&progress.counts());
        Arc::new(progress)
    }

    /// Returns since when no request is open, and whether one was served before; `None` while one
    /// is open.
    pub(crate) fn idle(&self) -> Option<(Instant, bool)> {
        let counts = self.counts();
        (counts.open == 0).then_some((counts.idle_since, counts.served))
    }

    /// Begins a request.
    pub(crate) fn begin(self: &Arc<Self>) -> OpenRequest<C> {
        let mut counts = self.counts();
        counts.unanswered += 1;
        counts.open += 1;
        self.changed(&counts);
        OpenRequest { of: self.clone(), is_answered: false }
    }

    fn changed(&self, counts: &Counts) {
        let (activity, since) = match counts {
            Counts { unanswered: 1.., .. } => (Activity::Answer, clock::now()),
            Counts { open: 1.., .. } => (Activity::Reader, clock::now()),
            Counts { idle_since, .. } => (Activity::Request, *idle_since),
        };
        self.client.set_activity(activity, since);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request, open until its reply is sent or dropped.
pub(crate) struct OpenRequest<C: Client> {
    of: Arc<Progress<C>>,
    is_answered: bool,
}

impl<C: Client> OpenRequest<C> {
    /// Records that the reply is ready: from now on it waits for the client.
    pub(crate) fn answered(&mut self) {
        if !std::mem::replace(&mut self.is_answered, true) {
            let mut counts = self.of.counts();
            counts.unanswered -= 1;
            self.of.changed(&counts);
        }
    }
}

impl<C: Client> Drop for OpenRequest<C> {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        counts.unanswered -= u32::from(!self.is_answered);
        counts.open -= 1;
        if counts.open == 0 {
            (counts.served, counts.idle_since) = (true, clock::now());
        }
        self.of.changed(&counts);
    }
}
