//! The open TCP connections: their number, the bytes that they hold together, and the choice of the
//! connection that is evicted for another.
//!
//! A connection that waits for its client (idle, half a message sent, or not reading) occupies a
//! slot and maybe bytes. When slots or bytes run out, one such connection is evicted.

mod of_listener;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::connection_state::{Activity, BUDGET_BYTES, Budget, ConnectionState, OWN, OfAddress};
use super::transfer_limit::TransferLimit;
use metrics::counters::Counter;
use plugin::endpoint::{Endpoint, Transport};

/// All open connections of clients.
#[derive(Default)]
pub struct Connections {
    open: Mutex<Open>,
    budget: Arc<Budget>,
    /// Notified when a connection closes.
    left: Notify,
    /// The source ports from which probes of our own will connect.
    own: Mutex<BTreeSet<u16>>,
    evicted: [Counter; Activity::ALL.len()],
    /// The running transfers.
    pub(super) transfers: Arc<TransferLimit>,
    /// New connections closed at once, as no other could be evicted.
    pub refused: Counter,
}

/// Announces a connection of our own. Once this value is dropped, a connection from its port is
/// treated like any other.
#[derive(Debug)]
pub struct Expected<'c> {
    own: &'c Mutex<BTreeSet<u16>>,
    port: u16,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        locked(self.own).remove(&self.port);
    }
}

#[derive(Default)]
struct Open {
    all: HashMap<u64, Registered>,
    from: HashMap<IpAddr, Group>,
    /// Addresses by how many connections they have.
    by_number: BTreeSet<(usize, IpAddr)>,
    /// The number of connections of each listener.
    of_listener: HashMap<Endpoint, usize>,
    next: u64,
}

struct Registered {
    shared: Arc<ConnectionState>,
    listener: Endpoint,
    /// The time of the connection's entry in the group's `waiting`.
    since: u64,
}

/// The connections of one address.
#[derive(Default)]
struct Group {
    /// The connections' keys, with the time since when each waits. If a connection was served
    /// since, its entry is outdated, and is corrected when it is read: so a change of state takes
    /// no lock.
    waiting: BTreeSet<(u64, u64)>,
    shared: Arc<OfAddress>,
}

impl Open {
    fn remove(&mut self, key: u64) -> Option<Arc<ConnectionState>> {
        let Registered { shared, since, listener } = self.all.remove(&key)?;
        if let Some(count) = self.of_listener.get_mut(&listener) {
            *count -= 1;
            if *count == 0 {
                self.of_listener.remove(&listener);
            }
        }
        let group = self.from.get_mut(&shared.address)?;
        self.by_number.remove(&(group.waiting.len(), shared.address));
        group.waiting.remove(&(since, key));
        match group.waiting.len() {
            0 => drop(self.from.remove(&shared.address)),
            left => drop(self.by_number.insert((left, shared.address))),
        }
        Some(shared)
    }

    fn insert(
        &mut self,
        listener: Endpoint,
        peer: IpAddr,
        now: u64,
        budget: &Arc<Budget>,
    ) -> Arc<ConnectionState> {
        self.next += 1;
        let key = self.next;
        let group = self.from.entry(peer).or_default();
        self.by_number.remove(&(group.waiting.len(), peer));
        group.waiting.insert((now, key));
        self.by_number.insert((group.waiting.len(), peer));
        let shared = Arc::new(ConnectionState::new(key, peer, now, budget.clone(), group.shared.clone()));
        self.all.insert(key, Registered { shared: shared.clone(), listener, since: now });
        *self.of_listener.entry(listener).or_default() += 1;
        shared
    }

    /// Chooses the connection to evict for a new one from this address. Addresses are tried by
    /// falling number of connections; the first one with connections that wait for their clients
    /// loses the one that has waited longest. If all connections await answers, an address with
    /// more than half of all loses its oldest. A new connection from such an address can replace
    /// only a waiting connection of its own address.
    fn gives_way(&mut self, newcomer: IpAddr) -> Option<(Activity, u64)> {
        let (most, greedy) = *self.by_number.last()?;
        let over_half = most > MAX_CONNECTIONS / 2;
        for (_, address) in self.by_number.iter().rev() {
            let is_kept_waiting = |shared: &ConnectionState| shared.state().0 != Activity::Busy;
            let victim = longest_waiting(self.from.get_mut(address)?, &mut self.all, is_kept_waiting);
            if victim.is_some() || (over_half && greedy == newcomer) {
                return victim;
            }
        }
        let oldest = || self.from.get(&greedy)?.waiting.iter().map(|&(_, key)| key).min();
        over_half.then(oldest)?.map(|key| (Activity::Busy, key))
    }

    /// Chooses the connection to evict when bytes run out: of the address that holds most, the
    /// connection that has waited longest.
    fn holds_longest(&mut self) -> Option<(Activity, u64)> {
        let held = |(&address, group): (&IpAddr, &Group)| (group.shared.held.load(Relaxed), address);
        let mut holders: Vec<_> = self.from.iter().map(held).filter(|&(held, _)| held > 0).collect();
        holders.sort_unstable_by(|a, b| b.cmp(a));
        holders.into_iter().find_map(|(_, address)| {
            let group = self.from.get_mut(&address)?;
            longest_waiting(group, &mut self.all, |shared| shared.held() > 0)
        })
    }
}

/// Returns the connection of one address that has waited longest of those that satisfy `meant`.
fn longest_waiting(
    group: &mut Group,
    all: &mut HashMap<u64, Registered>,
    meant: impl Fn(&ConnectionState) -> bool,
) -> Option<(Activity, u64)> {
    let mut behind = (0, 0);
    loop {
        let at = *group.waiting.range(behind..).next()?;
        let entry = all.get_mut(&at.1)?;
        let (state, since) = entry.shared.state();
        if state != Activity::Busy && since > at.0 {
            group.waiting.remove(&at);
            group.waiting.insert((since, at.1));
            entry.since = since;
        } else if meant(&entry.shared) {
            return Some((state, at.1));
        } else {
            behind = (at.0, at.1 + 1);
        }
    }
}

impl Connections {
    /// Announces that the next connection from this port is our own probe, which needs no slot: the
    /// probe must succeed however many clients there are.
    pub fn expect_own(&self, port: u16) -> Expected<'_> {
        locked(&self.own).insert(port);
        Expected { own: &self.own, port }
    }

    /// Registers one more connection of a listener, which may have `most`; evicts another if need
    /// be. `None` if none can be evicted. The new connection waits for its first message from `now`
    /// on.
    pub(crate) fn enter(
        &self,
        listener: Endpoint,
        most: usize,
        peer: SocketAddr,
        now: u64,
    ) -> Option<Arc<ConnectionState>> {
        // The probes use TCP, whose ports are others than those of QUIC.
        if listener.transport != Transport::Quic && locked(&self.own).remove(&peer.port()) {
            return Some(Arc::new(ConnectionState::new(
                OWN,
                peer.ip(),
                now,
                self.budget.clone(),
                Arc::default(),
            )));
        }
        let mut open = self.open();
        let is_listener_full = open.of_listener(listener) >= most;
        if is_listener_full || open.all.len() >= MAX_CONNECTIONS {
            let victim = match is_listener_full && most < MAX_CONNECTIONS {
                true => open.gives_way_of(listener, peer.ip()),
                false => open.gives_way(peer.ip()),
            };
            if !self.evict(&mut open, victim) {
                self.refused.add_shared(1);
                return None;
            }
        }
        Some(open.insert(listener, peer.ip(), now, &self.budget))
    }

    /// Removes a closed connection.
    pub(crate) fn leave(&self, shared: &ConnectionState) {
        self.open().remove(shared.key);
        self.left.notify_waiters();
    }

    /// Evicts a connection that waits for its client, as descriptors are short.
    pub(crate) fn make_room(&self) {
        let mut open = self.open();
        let no_client = IpAddr::from([0; 4]);
        let victim = open.gives_way(no_client);
        self.evict(&mut open, victim);
    }

    /// Evicts connections that hold bytes until the budget has room again.
    pub(crate) fn relieve(&self) {
        // The memory of a connection that was cut is freed by its task, and counted as leaving
        // until then.
        while self.budget.is_short() {
            let mut open = self.open();
            let victim = open.holds_longest();
            if !self.evict(&mut open, victim) {
                return;
            }
        }
    }

    /// Finds room for bytes of this connection, which `fits` reserves below a limit for all. If
    /// there is none, connections of the address that holds most are evicted. If this connection
    /// has that address, this connection is evicted, and the result is false. Bytes that evicted
    /// connections hold until their tasks end cause no refusal.
    pub(crate) fn find_room(&self, shared: &ConnectionState, mut fits: impl FnMut(usize) -> bool) -> bool {
        if fits(BUDGET_BYTES) {
            return true;
        }
        while !shared.is_cut() {
            let mut open = self.open();
            let victim = open.holds_longest();
            let is_own = victim.is_none_or(|(_, key)| match open.all.get(&key) {
                Some(entry) => entry.shared.address == shared.address,
                None => true,
            });
            if is_own {
                let own = (shared.state().0, shared.key);
                if !self.evict(&mut open, Some(own)) {
                    shared.cut();
                }
                return false;
            }
            self.evict(&mut open, victim);
            if fits(2 * BUDGET_BYTES) {
                return true;
            }
        }
        false
    }

    /// The number of evicted connections, by their state.
    pub fn evicted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Activity::ALL.iter().map(|&state| (state.name(), self.evicted[state as usize].get()))
    }

    /// Returns the bytes that connections hold: of incomplete messages, and of replies that clients
    /// have not read.
    pub fn octets(&self) -> usize {
        self.budget.held()
    }

    /// Closes idle connections, so that clients see the end before they send the next query.
    /// Returns the number of all connections.
    pub fn end_idle(&self) -> usize {
        let all: Vec<_> = self.open().all.values().map(|entry| entry.shared.clone()).collect();
        all.iter().filter(|shared| shared.state().0 == Activity::Idle).for_each(|shared| shared.end());
        all.len()
    }

    /// Closes idle connections and waits for the others, for `patience` at most.
    pub async fn drain(&self, patience: Duration) {
        let emptied = async {
            loop {
                let left = self.left.notified();
                tokio::pin!(left);
                // Registered before the count: a connection that closes in between still wakes this
                // task.
                left.as_mut().enable();
                if self.end_idle() == 0 {
                    return;
                }
                // A connection that becomes idle after its last reply does not wake this task, so
                // it polls.
                let _ = tokio::time::timeout(LOOK_AGAIN, left).await;
            }
        };
        let _ = tokio::time::timeout(patience, emptied).await;
    }

    fn evict(&self, open: &mut Open, victim: Option<(Activity, u64)>) -> bool {
        let Some((state, key)) = victim else { return false };
        let Some(shared) = open.remove(key) else { return false };
        shared.cut();
        self.evicted[state as usize].add_shared(1);
        true
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        locked(&self.open)
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// TCP connections open at the same time, over all addresses and listeners.
pub(crate) const MAX_CONNECTIONS: usize = 1024;
const LOOK_AGAIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> SocketAddr {
        ([127, 0, 0, last], 9).into()
    }

    /// Registers a connection of the one listener.
    fn enter(connections: &Connections, peer: SocketAddr, now: u64) -> Option<Arc<ConnectionState>> {
        let at = SocketAddr::from(([127, 0, 0, 1], 53));
        connections.enter(Endpoint::dns(at), MAX_CONNECTIONS, peer, now)
    }

    fn fill(
        connections: &Connections,
        mut from: impl FnMut(usize) -> SocketAddr,
    ) -> Vec<Arc<ConnectionState>> {
        (0..MAX_CONNECTIONS).map(|n| enter(connections, from(n), 5_000 + n as u64).unwrap()).collect()
    }

    fn evicted(connections: &Connections) -> Vec<u64> {
        connections.evicted().map(|(_, count)| count).collect()
    }

    /// The connection that has waited longest for its client is evicted; one with an unanswered
    /// query stays.
    #[test]
    fn longest_waiting_connection_is_evicted() {
        let connections = Connections::default();
        let all = fill(&connections, |_| from(1));
        all[0].set_state(Activity::Busy, 5_000);
        all[1].set_state(Activity::HalfSent, 5_003);
        all[3].set_state(Activity::Unread, 5_100);
        for expected in [2, 1, 4] {
            assert!(enter(&connections, from(1), 9_000).is_some());
            assert!(all[expected].is_cut(), "{expected}");
        }
        assert_eq!(all.iter().filter(|shared| shared.is_cut()).count(), 3);
        assert_eq!((evicted(&connections), connections.refused.get()), (vec![0, 2, 1, 0], 0));
    }

    #[test]
    fn the_address_with_most_connections_gives_way_first() {
        let connections = Connections::default();
        // The first hundred have waited longest.
        let all = fill(&connections, |n| from(if n < 100 { 2 } else { 1 }));
        for _ in 0..300 {
            assert!(enter(&connections, from(3), 9_000).is_some());
        }
        assert!(all[..100].iter().all(|shared| !shared.is_cut()));
        assert!(all[100..400].iter().all(|shared| shared.is_cut()));
    }

    #[test]
    fn an_address_that_is_owed_answers_on_more_than_half_of_all_gives_way_to_others_alone() {
        let connections = Connections::default();
        let all = fill(&connections, |n| from(if n <= MAX_CONNECTIONS / 2 + 1 { 1 } else { 2 }));
        for shared in &all {
            shared.set_state(Activity::Busy, 1);
        }
        assert!(enter(&connections, from(1), 9_000).is_none());
        let new = enter(&connections, from(3), 9_000).unwrap();
        assert!(all[0].is_cut());
        // The evicted client reconnects at once, before the new one has sent anything.
        assert!(enter(&connections, from(1), 9_000).is_none());
        assert!(!new.is_cut());
        new.set_state(Activity::Busy, 9_000);
        enter(&connections, from(3), 9_000).unwrap().set_state(Activity::Busy, 9_000);
        assert!(enter(&connections, from(3), 9_000).is_none(), "no client has more than half");
        assert_eq!((evicted(&connections), connections.refused.get()), (vec![2, 0, 0, 0], 3));
        let own = |port| SocketAddr::from(([127, 0, 0, 3], port));
        let (_first, second, _third) =
            (connections.expect_own(7), connections.expect_own(8), connections.expect_own(9));
        drop(second);
        for (port, needs_no_place) in [(9, true), (7, true), (8, false), (7, false)] {
            assert_eq!(enter(&connections, own(port), 9_000).is_some(), needs_no_place, "{port}");
        }
        connections.leave(&new);
        assert!(enter(&connections, from(3), 9_000).is_some(), "one has left");
    }

    #[test]
    fn when_octets_run_short_the_address_that_holds_most_gives_them_back() {
        let connections = Connections::default();
        let all: Vec<_> =
            (0..8).map(|n| enter(&connections, from(1 + n / 6), 5_000 + u64::from(n)).unwrap()).collect();
        for shared in &all {
            shared.set_state(Activity::Unread, 9_000 - shared.key);
            assert!(shared.hold(BUDGET_BYTES / 8, BUDGET_BYTES));
        }
        connections.relieve();
        let cut: Vec<usize> = (0..8).filter(|&n| all[n].is_cut()).collect();
        // The last of the first address waited for longest.
        assert_eq!(cut, [4, 5]);
        assert_eq!((connections.octets(), evicted(&connections)), (BUDGET_BYTES, vec![0, 0, 0, 2]));
        for &n in &cut {
            all[n].close();
        }
        assert_eq!(connections.octets(), BUDGET_BYTES / 4 * 3);
    }

    #[test]
    fn one_that_was_served_since_waits_behind_those_that_were_not() {
        let connections = Connections::default();
        let all = fill(&connections, |_| from(1));
        for shared in &all[..MAX_CONNECTIONS - 1] {
            shared.set_state(Activity::Idle, 20_000 - shared.key);
        }
        // The last was not served; the others were served in reverse order.
        for expected in (1..4).map(|n| MAX_CONNECTIONS - n) {
            let new = enter(&connections, from(1), 30_000).unwrap();
            assert!(all[expected].is_cut(), "{expected}");
            new.set_state(Activity::Busy, 30_000);
        }
        assert_eq!(all.iter().filter(|shared| shared.is_cut()).count(), 3);
        for shared in &all {
            connections.leave(shared);
        }
        let open = connections.open();
        assert_eq!((open.all.len(), open.from[&from(1).ip()].waiting.len(), open.by_number.len()), (3, 3, 1));
    }

    #[tokio::test]
    async fn draining_waits_for_the_busy_alone() {
        let connections = Arc::new(Connections::default());
        let (idle, busy) =
            (enter(&connections, from(1), 1).unwrap(), enter(&connections, from(1), 1).unwrap());
        busy.set_state(Activity::HalfSent, 1);
        let draining = tokio::spawn({
            let connections = connections.clone();
            async move { connections.drain(Duration::from_secs(60)).await }
        });
        idle.woken().await;
        assert!(idle.ends() && !idle.is_cut());
        connections.leave(&idle);
        assert!(!draining.is_finished() && !busy.ends());
        busy.set_state(Activity::Idle, 2);
        busy.woken().await;
        connections.leave(&busy);
        draining.await.unwrap();
    }
}
