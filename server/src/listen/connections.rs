//! The TCP connections that are open: how many there may be, and which one gives way to the next.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

use crate::observe::counters::Counter;

/// Every open connection of a client.
#[derive(Default)]
pub struct Connections {
    open: Mutex<Open>,
    /// Somebody left.
    left: Notify,
    /// The source port of our own next connection, or 0.
    own: AtomicU16,
    /// Idle connections closed to make room for others.
    pub evicted: Counter,
    /// New connections closed at once, since no other was idle.
    pub refused: Counter,
}

#[derive(Default)]
struct Open {
    places: HashMap<u64, Arc<Place>>,
    next: u64,
}

/// One connection's place.
pub(super) struct Place {
    key: u64,
    /// Free places for queries in flight. The reader holds one of [`IN_FLIGHT`] while it waits.
    pub(super) in_flight: Arc<Semaphore>,
    /// Since when the client has sent nothing: milliseconds since the start, and 1; 0 while a message comes in.
    silent_since: AtomicU64,
    cut: Notify,
}

impl Place {
    fn new(key: u64, now: u64) -> Arc<Self> {
        Arc::new(Self {
            key,
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            silent_since: AtomicU64::new(now + 1),
            cut: Notify::new(),
        })
    }

    /// The client's next message is waited for, from `now` on: milliseconds since the start.
    pub(super) fn waits(&self, now: u64) {
        self.silent_since.store(now + 1, Relaxed);
    }

    /// A message has begun.
    pub(super) fn reads(&self) {
        self.silent_since.store(0, Relaxed);
    }

    /// Another connection needs the place.
    pub(super) async fn cut(&self) {
        self.cut.notified().await;
    }

    /// Since when neither side owes the other anything.
    fn idle_since(&self) -> Option<u64> {
        let since = self.silent_since.load(Relaxed);
        (since > 0 && self.in_flight.available_permits() + 1 >= IN_FLIGHT).then_some(since)
    }
}

impl Connections {
    /// The next connection from this port is our own probe, which needs no place: whether we serve must not depend on how
    /// many clients there are.
    pub fn expect_own(&self, port: u16) {
        self.own.store(port, Relaxed);
    }

    /// A place for one more connection, from this port, if need be that of the one idle for longest; `None` where nobody
    /// is idle. It waits for its first message from `now` on.
    pub(super) fn enter(&self, port: u16, now: u64) -> Option<Arc<Place>> {
        if port != 0 && self.own.compare_exchange(port, 0, Relaxed, Relaxed).is_ok() {
            return Some(Place::new(OWN, now));
        }
        let mut open = self.open();
        if open.places.len() >= MAX_CONNECTIONS && !self.evict(&mut open) {
            self.refused.add_shared(1);
            return None;
        }
        open.next += 1;
        let place = Place::new(open.next, now);
        open.places.insert(place.key, place.clone());
        Some(place)
    }

    /// Gives a place back.
    pub(super) fn leave(&self, place: &Place) {
        self.open().places.remove(&place.key);
        self.left.notify_waiters();
    }

    /// Closes the connection that is idle for longest: descriptors are short.
    pub(super) fn make_room(&self) {
        self.evict(&mut self.open());
    }

    /// Closes idle connections and waits for the others, so long at most.
    pub async fn drain(&self, patience: Duration) {
        let emptied = async {
            loop {
                let left = self.left.notified();
                tokio::pin!(left);
                // From here on nobody leaves unseen.
                left.as_mut().enable();
                let places: Vec<_> = self.open().places.values().cloned().collect();
                if places.is_empty() {
                    return;
                }
                for place in places.iter().filter(|place| place.idle_since().is_some()) {
                    place.cut.notify_one();
                }
                // One that answers its last query now is idle a moment later, and tells nobody.
                let _ = tokio::time::timeout(LOOK_AGAIN, left).await;
            }
        };
        let _ = tokio::time::timeout(patience, emptied).await;
    }

    fn evict(&self, open: &mut Open) -> bool {
        let idle = open.places.values().filter_map(|place| Some((place.idle_since()?, place.key))).min();
        let Some(place) = idle.and_then(|(_, key)| open.places.remove(&key)) else { return false };
        place.cut.notify_one();
        self.evicted.add_shared(1);
        true
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// TCP connections open at the same time, over all addresses.
const MAX_CONNECTIONS: usize = 1024;
/// Queries that one connection may have in flight; more wait unread.
pub(super) const IN_FLIGHT: usize = 64;
/// The key of a connection that needs no place.
const OWN: u64 = 0;
const LOOK_AGAIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(connections: &Connections, since: u64) -> Arc<Place> {
        let place = connections.enter(9, since).unwrap();
        // As the reader does: it holds a place for the query that it waits for.
        place.in_flight.clone().try_acquire_owned().unwrap().forget();
        place
    }

    #[tokio::test]
    async fn the_longest_idle_gives_way_and_the_busy_stay() {
        let connections = Connections::default();
        let all: Vec<_> = (0..MAX_CONNECTIONS as u64).map(|n| waiting(&connections, 5_000 - n)).collect();
        // The last two are idle for longest, but one reads a message and one owes an answer.
        all[MAX_CONNECTIONS - 1].reads();
        let owed = all[MAX_CONNECTIONS - 2].in_flight.try_acquire().unwrap();
        let new = connections.enter(9, 9_000).unwrap();
        all[MAX_CONNECTIONS - 3].cut().await;
        assert_eq!((connections.evicted.get(), connections.refused.get()), (1, 0));
        drop(owed);
        let newer = connections.enter(9, 9_000).unwrap();
        all[MAX_CONNECTIONS - 2].cut().await;
        for place in all.iter().chain([&new, &newer]) {
            place.reads();
        }
        assert!(connections.enter(9, 9_000).is_none(), "everybody is busy");
        assert_eq!((connections.evicted.get(), connections.refused.get()), (2, 1));
        connections.expect_own(7);
        let own = connections.enter(7, 9_000).unwrap();
        assert!(connections.enter(7, 9_000).is_none(), "once only");
        connections.leave(&own);
        connections.leave(&new);
        assert!(connections.enter(9, 9_000).is_some(), "one has left");
    }

    #[tokio::test]
    async fn draining_waits_for_the_busy_alone() {
        let connections = Arc::new(Connections::default());
        let (idle, busy) = (waiting(&connections, 1), waiting(&connections, 1));
        busy.reads();
        let draining = tokio::spawn({
            let connections = connections.clone();
            async move { connections.drain(Duration::from_secs(60)).await }
        });
        idle.cut().await;
        connections.leave(&idle);
        assert!(!draining.is_finished());
        busy.waits(2);
        busy.cut().await;
        connections.leave(&busy);
        draining.await.unwrap();
    }
}
