//! The connections of one listening socket: the state of each, and which one is evicted for a new connection.
//!
//! Connections that wait for their client are evicted before those that wait for an answer: losing an idle connection costs a
//! client nothing, and a page of /metrics may take a second. A client that sends another request
//! right after an answer has no such priority.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The slot of one connection, freed with its last reference. Only the connection's task updates its state.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    /// The client's address.
    address: IpAddr,
    /// When the connection was accepted.
    taken: Instant,
    /// [`WaitsFor`], and since when: microseconds since `taken`, times 4.
    waits: AtomicU64,
    /// When the last answer was ready: microseconds since `taken`, plus 1; 0 before the first.
    answered: AtomicU64,
    /// Whether an answer is being rendered.
    answering: AtomicBool,
    /// Whether the current request arrived within [`GRACE`] after the previous answer.
    again: AtomicBool,
    cut: Notify,
}

/// The event that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitsFor {
    /// The client's next request.
    Idle,
    /// Our answer.
    Busy,
    /// The client's reading.
    Unread,
}

impl ConnectionSlot {
    pub(super) fn new(address: IpAddr, now: Instant) -> Self {
        Self {
            address,
            taken: now,
            waits: AtomicU64::new(WaitsFor::Idle as u64),
            answered: AtomicU64::new(0),
            answering: AtomicBool::new(false),
            again: AtomicBool::new(false),
            cut: Notify::new(),
        }
    }

    /// Records that a request was received whole. Returns how long to delay its answer, so that other connections get their turn.
    pub(super) fn begin(&self, now: Instant) -> Duration {
        self.answering.store(true, Relaxed);
        self.set(WaitsFor::Busy, now);
        let since = self.since_answer(now);
        self.again.store(since.is_some_and(|since| since < GRACE), Relaxed);
        since.map_or(Duration::ZERO, |since| PACE.saturating_sub(since))
    }

    /// Records that the answer is ready to be written.
    pub(super) fn answer(&self, now: Instant) {
        self.answering.store(false, Relaxed);
        self.answered.store(self.micros(now) + 1, Relaxed);
    }

    /// Records whether a write made progress.
    pub(super) fn wrote(&self, some: bool, now: Instant) {
        let waits = if some { WaitsFor::Busy } else { WaitsFor::Unread };
        if self.waits().0 != waits {
            self.set(waits, now);
        }
    }

    /// Records that all output is written.
    pub(super) fn flushed(&self, now: Instant) {
        if !self.answering.load(Relaxed) && self.waits().0 != WaitsFor::Idle {
            self.set(WaitsFor::Idle, now);
        }
    }

    /// Whether a write is stalled.
    pub(super) fn is_unread(&self) -> bool {
        self.waits().0 == WaitsFor::Unread
    }

    /// Ends the connection.
    pub(super) fn cut(&self) {
        self.cut.notify_one();
    }

    /// Waits until [`Self::cut`] is called.
    pub(super) async fn was_cut(&self) {
        self.cut.notified().await;
    }

    fn set(&self, waits: WaitsFor, now: Instant) {
        self.waits.store(self.micros(now) << 2 | waits as u64, Relaxed);
    }

    /// The event that the connection waits for, and since when.
    fn waits(&self) -> (WaitsFor, Instant) {
        let all = [WaitsFor::Idle, WaitsFor::Busy, WaitsFor::Unread];
        let waits = self.waits.load(Relaxed);
        (all[(waits & 3).min(2) as usize], self.taken + Duration::from_micros(waits >> 2))
    }

    fn since_answer(&self, now: Instant) -> Option<Duration> {
        let answered = self.answered.load(Relaxed).checked_sub(1)?;
        Some(Duration::from_micros(self.micros(now).saturating_sub(answered)))
    }

    fn micros(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.taken).as_micros() as u64
    }

    /// The eviction class, and the order within it: the smallest is evicted first.
    fn claim(&self, now: Instant) -> (EvictionClass, Reverse<Instant>, Instant) {
        let (waits, since) = self.waits();
        let [longest, newest] = [(Reverse(since), now), (Reverse(now), since)];
        let waited = now.saturating_duration_since(since);
        let (claim, (longest, newest)) = match waits {
            WaitsFor::Busy if self.again.load(Relaxed) => (EvictionClass::Again, longest),
            WaitsFor::Busy => (EvictionClass::Owed, newest),
            _ if waited >= GRACE => (EvictionClass::Waiting, longest),
            _ => (EvictionClass::New, longest),
        };
        (claim, longest, newest)
    }
}

/// Eviction classes; connections of the first are evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionClass {
    /// Has waited for its client for at least [`GRACE`].
    Waiting,
    /// Sent another request within [`GRACE`] after an answer.
    Again,
    /// Has waited for its client for less than [`GRACE`].
    New,
    /// Waits for this server's answer.
    Owed,
}

/// The connections of one listening socket.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    taken: Vec<Weak<ConnectionSlot>>,
}

impl ConnectionTable {
    /// Adds a connection, and evicts another if the table is full.
    pub(super) fn take(&mut self, address: IpAddr, now: Instant) -> Arc<ConnectionSlot> {
        self.taken.retain(|slot| slot.strong_count() > 0);
        if self.taken.len() >= CONNECTIONS {
            self.evict(EvictionClass::Owed, now);
        }
        let slot = Arc::new(ConnectionSlot::new(address, now));
        self.taken.push(Arc::downgrade(&slot));
        slot
    }

    /// Evicts a connection of [`EvictionClass::Waiting`], if any, to free a file descriptor.
    pub(super) fn make_room(&mut self, now: Instant) {
        self.evict(EvictionClass::Waiting, now);
    }

    /// Evicts a connection of class `most` or below: from the address with the most connections,
    /// then of the lowest class, then the one that has waited longest (in [`EvictionClass::Owed`]:
    /// the newest).
    fn evict(&mut self, most: EvictionClass, now: Instant) {
        let slots: Vec<Arc<ConnectionSlot>> = self.taken.iter().filter_map(Weak::upgrade).collect();
        let mut from = HashMap::<IpAddr, usize>::new();
        for slot in &slots {
            *from.entry(slot.address).or_default() += 1;
        }
        let those = slots.iter().map(|slot| (slot, slot.claim(now))).filter(|(_, claim)| claim.0 <= most);
        let victim = those.max_by_key(|(slot, (claim, longest, newest))| {
            (from.get(&slot.address).copied(), Reverse(*claim), *longest, *newest)
        });
        if let Some((slot, _)) = victim {
            slot.cut();
            self.taken.retain(|taken| !std::ptr::eq(taken.as_ptr(), Arc::as_ptr(slot)));
        }
    }
}

/// Maximum number of connections of a listening socket.
pub(super) const CONNECTIONS: usize = 128;
/// How long a client may take for its request before it can be evicted first; a request within this time after an answer has low
/// priority.
const GRACE: Duration = Duration::from_secs(1);
/// Minimum time between two answers on a connection, so that pipelined requests do not delay other connections.
const PACE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    /// Fills the table with connections a millisecond apart.
    fn fill(
        slots: &mut ConnectionTable,
        start: Instant,
        from: impl Fn(usize) -> IpAddr,
    ) -> Vec<Arc<ConnectionSlot>> {
        (0..CONNECTIONS).map(|n| slots.take(from(n), start + ms(n as u64))).collect()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The connections that were cut since the last call.
    fn cut(all: &[Arc<ConnectionSlot>]) -> Vec<usize> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut was_cut =
            |slot: &ConnectionSlot| std::pin::pin!(slot.was_cut()).as_mut().poll(&mut context).is_ready();
        (0..all.len()).filter(|&n| was_cut(&all[n])).collect()
    }

    #[test]
    fn eviction_by_class() {
        let (mut slots, start) = (ConnectionTable::default(), clock::now());
        let all = fill(&mut slots, start, |_| ip(1));
        let later = start + ms(10_000);
        // Two wait for an answer, one of them long after an earlier one; one sent another request;
        // one does not read; one has just sent a request.
        all[0].begin(start + ms(9_000));
        all[1].answer(start + ms(2_000));
        all[1].begin(start + ms(9_500));
        all[2].answer(start + ms(8_200));
        all[2].begin(start + ms(8_200));
        all[3].wrote(false, start + ms(8_000));
        all[4].begin(start + ms(9_900));
        all[4].answer(start + ms(9_900));
        all[4].flushed(start + ms(9_900));
        for slot in &all[6..] {
            slot.begin(start);
        }
        let mut new = Vec::new();
        for expected in [5, 3, 2, 4] {
            new.push(slots.take(ip(1), later));
            assert_eq!(cut(&all), [expected]);
            new.last().unwrap().begin(later + ms(1));
        }
        // The new connections began last, and evict each other.
        for expected in [3, 4, 5] {
            new.push(slots.take(ip(1), later + ms(2)));
            new.last().unwrap().begin(later + ms(2 + expected));
            assert_eq!((cut(&all).len(), cut(&new)), (0, vec![expected as usize]));
        }
    }

    #[test]
    fn eviction_by_address() {
        let (mut slots, start) = (ConnectionTable::default(), clock::now());
        let all = fill(&mut slots, start, |n| ip(if n < 60 { 1 } else { 2 }));
        for slot in &all[60..] {
            slot.begin(start + ms(500));
        }
        let mut new = vec![slots.take(ip(3), start + ms(9_000))];
        assert_eq!(cut(&all), [127]);
        new.extend((0..7).map(|_| slots.take(ip(3), start + ms(9_000))));
        assert_eq!(cut(&all), (120..127).collect::<Vec<_>>());
        // Equal numbers: a connection that waits for an answer stays.
        new.push(slots.take(ip(3), start + ms(9_000)));
        assert_eq!(cut(&all), [0]);
    }

    #[test]
    fn closed_connections_and_short_descriptors() {
        let (mut slots, start) = (ConnectionTable::default(), clock::now());
        let mut all = fill(&mut slots, start, |_| ip(1));
        all.pop();
        all.push(slots.take(ip(2), start));
        assert_eq!(cut(&all).len(), 0);
        for slot in &all[1..] {
            slot.begin(start + ms(500));
        }
        for expected in [&[0][..], &[]] {
            slots.make_room(start + ms(5_000));
            assert_eq!(cut(&all), expected);
        }
    }

    #[test]
    fn pipelined_requests_are_delayed() {
        let start = clock::now();
        let slot = ConnectionSlot::new(ip(1), start);
        assert_eq!(slot.begin(start), Duration::ZERO);
        slot.answer(start + ms(3));
        assert_eq!(slot.begin(start + ms(4)), PACE - ms(1));
        assert_eq!(slot.begin(start + ms(13)), Duration::ZERO);
    }
}
