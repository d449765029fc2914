//! The TCP connections that are open: how many there may be, what they may hold together, and which one gives way.
//!
//! A connection that its client keeps waiting holds a place and perhaps octets: one that is idle, that has sent half a
//! message, that does not read. When places or octets run out, one of these gives way.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::place::{Budget, Place, Waits};
use crate::observe::counters::Counter;

/// Every open connection of a client.
#[derive(Default)]
pub struct Connections {
    open: Mutex<Open>,
    budget: Arc<Budget>,
    /// Somebody left.
    left: Notify,
    /// The source port of our own next connection, or 0.
    own: AtomicU16,
    evicted: [Counter; Waits::ALL.len()],
    /// New connections closed at once, since no other could give way.
    pub refused: Counter,
}

#[derive(Default)]
struct Open {
    places: HashMap<u64, Arc<Place>>,
    /// How many connections each address has.
    from: HashMap<IpAddr, usize>,
    next: u64,
}

impl Open {
    fn remove(&mut self, key: u64) -> Option<Arc<Place>> {
        let place = self.places.remove(&key)?;
        if let Some(count) = self.from.get_mut(&place.address) {
            *count -= 1;
            if *count == 0 {
                self.from.remove(&place.address);
            }
        }
        Some(place)
    }

    fn insert(&mut self, place: Arc<Place>) {
        *self.from.entry(place.address).or_default() += 1;
        self.places.insert(place.key, place);
    }

    /// Who gives way to a newcomer from this address: of the address with most connections first, the one whose client
    /// has kept us waiting for longest. Where all are owed answers, one of an address that has more than half of all,
    /// unless the newcomer is of the same.
    fn gives_way(&self, newcomer: IpAddr) -> Option<(Waits, u64)> {
        let count = |place: &Place| self.from.get(&place.address).copied().unwrap_or_default();
        let waiting = self.places.values().filter_map(|place| {
            let (waits, since) = place.waits();
            (waits != Waits::Busy).then(|| (count(place), u64::MAX - since, waits, place.key))
        });
        if let Some((.., waits, key)) =
            waiting.max_by_key(|&(count, age, _, key)| (count, age, u64::MAX - key))
        {
            return Some((waits, key));
        }
        let over_half = |place: &&Arc<Place>| place.address != newcomer && count(place) > MAX_CONNECTIONS / 2;
        let place = self.places.values().filter(over_half).min_by_key(|place| place.key)?;
        Some((Waits::Busy, place.key))
    }

    /// Who gives way when octets run out: of the address that holds most of them, the one waiting for longest.
    fn holds_longest(&self) -> Option<(Waits, u64)> {
        let mut held = HashMap::<IpAddr, usize>::new();
        for place in self.places.values() {
            *held.entry(place.address).or_default() += place.held();
        }
        let holders = self.places.values().filter_map(|place| {
            let (waits, since) = place.waits();
            (place.held() > 0)
                .then(|| (held.get(&place.address).copied(), u64::MAX - since, waits, place.key))
        });
        let (.., waits, key) = holders.max_by_key(|&(held, age, _, key)| (held, age, u64::MAX - key))?;
        Some((waits, key))
    }
}

impl Connections {
    /// The next connection from this port is our own probe, which needs no place: whether we serve must not depend on how
    /// many clients there are.
    pub fn expect_own(&self, port: u16) {
        self.own.store(port, Relaxed);
    }

    /// A place for one more connection, if need be that of another; `None` where nobody gives way. It waits for its first
    /// message from `now` on.
    pub(super) fn enter(&self, peer: SocketAddr, now: u64) -> Option<Arc<Place>> {
        let place = |key| Arc::new(Place::new(key, peer.ip(), now, self.budget.clone()));
        if peer.port() != 0 && self.own.compare_exchange(peer.port(), 0, Relaxed, Relaxed).is_ok() {
            return Some(place(OWN));
        }
        let mut open = self.open();
        if open.places.len() >= MAX_CONNECTIONS {
            let victim = open.gives_way(peer.ip());
            if !self.evict(&mut open, victim) {
                self.refused.add_shared(1);
                return None;
            }
        }
        open.next += 1;
        let place = place(open.next);
        open.insert(place.clone());
        Some(place)
    }

    /// Gives a place back.
    pub(super) fn leave(&self, place: &Place) {
        self.open().remove(place.key);
        self.left.notify_waiters();
    }

    /// Closes a connection whose client keeps us waiting: descriptors are short.
    pub(super) fn make_room(&self) {
        let mut open = self.open();
        let nobody = IpAddr::from([0; 4]);
        let victim = open.gives_way(nobody);
        self.evict(&mut open, victim);
    }

    /// Closes connections that hold octets until there is room again for those of others.
    pub(super) fn relieve(&self) {
        while self.budget.is_short() {
            let mut open = self.open();
            let victim = open.holds_longest();
            // What it holds comes back when its task sees the end.
            if !self.evict(&mut open, victim) {
                return;
            }
        }
    }

    /// A connection ends because there is no room for its octets.
    pub(super) fn count_evicted(&self, waits: Waits) {
        self.evicted[waits as usize].add_shared(1);
    }

    /// Connections closed for others, by what they were doing.
    pub fn evicted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Waits::ALL.iter().map(|&waits| (waits.name(), self.evicted[waits as usize].get()))
    }

    /// Octets that connections hold: of messages that have not come whole, and of replies that nobody has read.
    pub fn octets(&self) -> usize {
        self.budget.held()
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
                for place in places.iter().filter(|place| place.waits().0 == Waits::Idle) {
                    place.end();
                }
                // One that answers its last query now is idle a moment later, and tells nobody.
                let _ = tokio::time::timeout(LOOK_AGAIN, left).await;
            }
        };
        let _ = tokio::time::timeout(patience, emptied).await;
    }

    fn evict(&self, open: &mut Open, victim: Option<(Waits, u64)>) -> bool {
        let Some((waits, key)) = victim else { return false };
        let Some(place) = open.remove(key) else { return false };
        place.cut();
        self.count_evicted(waits);
        true
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// TCP connections open at the same time, over all addresses.
const MAX_CONNECTIONS: usize = 1024;
/// The key of a connection that needs no place.
const OWN: u64 = 0;
const LOOK_AGAIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::super::place::BUDGET_BYTES;
    use super::*;

    fn from(last: u8) -> SocketAddr {
        ([127, 0, 0, last], 9).into()
    }

    fn fill(connections: &Connections, mut from: impl FnMut(usize) -> SocketAddr) -> Vec<Arc<Place>> {
        (0..MAX_CONNECTIONS).map(|n| connections.enter(from(n), 5_000 + n as u64).unwrap()).collect()
    }

    fn evicted(connections: &Connections) -> Vec<u64> {
        connections.evicted().map(|(_, count)| count).collect()
    }

    #[test]
    fn the_one_waiting_longest_gives_way_whatever_it_waits_for_and_who_is_owed_an_answer_stays() {
        let connections = Connections::default();
        let all = fill(&connections, |_| from(1));
        all[0].set_waits(Waits::Busy, 5_000);
        all[1].set_waits(Waits::Half, 5_003);
        all[3].set_waits(Waits::Unread, 5_100);
        for expected in [2, 1, 4] {
            assert!(connections.enter(from(1), 9_000).is_some());
            assert!(all[expected].is_cut(), "{expected}");
        }
        assert_eq!(all.iter().filter(|place| place.is_cut()).count(), 3);
        assert_eq!((evicted(&connections), connections.refused.get()), (vec![0, 2, 1, 0], 0));
    }

    #[test]
    fn the_address_with_most_connections_gives_way_first() {
        let connections = Connections::default();
        // The first hundred waited for longer than all others.
        let all = fill(&connections, |n| from(if n < 100 { 2 } else { 1 }));
        for _ in 0..300 {
            assert!(connections.enter(from(3), 9_000).is_some());
        }
        assert!(all[..100].iter().all(|place| !place.is_cut()));
        assert!(all[100..400].iter().all(|place| place.is_cut()));
    }

    #[test]
    fn an_address_that_is_owed_answers_on_more_than_half_of_all_gives_way_to_others_alone() {
        let connections = Connections::default();
        let all = fill(&connections, |n| from(if n <= MAX_CONNECTIONS / 2 { 1 } else { 2 }));
        for place in &all {
            place.set_waits(Waits::Busy, 1);
        }
        assert!(connections.enter(from(1), 9_000).is_none());
        let new = connections.enter(from(3), 9_000).unwrap();
        new.set_waits(Waits::Busy, 9_000);
        assert!(all[0].is_cut());
        assert!(connections.enter(from(3), 9_000).is_none(), "nobody has more than half");
        assert_eq!((evicted(&connections), connections.refused.get()), (vec![1, 0, 0, 0], 2));
        connections.expect_own(7);
        let own = SocketAddr::from(([127, 0, 0, 3], 7));
        assert!(connections.enter(own, 9_000).is_some(), "our own probe needs no place");
        assert!(connections.enter(own, 9_000).is_none(), "once only");
        connections.leave(&new);
        assert!(connections.enter(from(3), 9_000).is_some(), "one has left");
    }

    #[test]
    fn when_octets_run_short_the_address_that_holds_most_gives_them_back() {
        let connections = Connections::default();
        let places: Vec<_> =
            (0..8).map(|n| connections.enter(from(1 + n / 6), 5_000 + u64::from(n)).unwrap()).collect();
        for place in &places {
            place.set_waits(Waits::Unread, 9_000 - place.key);
            assert!(place.hold(BUDGET_BYTES / 8));
        }
        connections.relieve();
        let cut: Vec<usize> = (0..8).filter(|&n| places[n].is_cut()).collect();
        // The last of the first address waited for longest.
        assert_eq!(cut, [4, 5]);
        assert_eq!((connections.octets(), evicted(&connections)), (BUDGET_BYTES, vec![0, 0, 0, 2]));
        for &n in &cut {
            places[n].close();
        }
        assert_eq!(connections.octets(), BUDGET_BYTES / 4 * 3);
    }

    #[tokio::test]
    async fn draining_waits_for_the_busy_alone() {
        let connections = Arc::new(Connections::default());
        let (idle, busy) = (connections.enter(from(1), 1).unwrap(), connections.enter(from(1), 1).unwrap());
        busy.set_waits(Waits::Half, 1);
        let draining = tokio::spawn({
            let connections = connections.clone();
            async move { connections.drain(Duration::from_secs(60)).await }
        });
        idle.woken().await;
        assert!(idle.ends() && !idle.is_cut());
        connections.leave(&idle);
        assert!(!draining.is_finished() && !busy.ends());
        busy.set_waits(Waits::Idle, 2);
        busy.woken().await;
        connections.leave(&busy);
        draining.await.unwrap();
    }
}
