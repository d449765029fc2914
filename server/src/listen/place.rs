//! One TCP connection's place: what its task and the workers that answer its queries share, and the octets it holds.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waits {
    /// For us: its client is owed an answer.
    Busy,
    /// For its client's next query.
    Idle,
    /// For the rest of a message.
    Half,
    /// For its client to read.
    Unread,
}

impl Waits {
    pub(super) const ALL: [Self; 4] = [Self::Busy, Self::Idle, Self::Half, Self::Unread];

    /// As the metrics have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Idle => "idle",
            Self::Half => "half_sent",
            Self::Unread => "unread",
        }
    }
}

/// One connection's place.
pub(super) struct Place {
    pub(super) key: u64,
    /// The client's.
    pub(super) address: IpAddr,
    budget: Arc<Budget>,
    /// Octets that its task holds, as the budget has them; changed under the outbox's lock.
    held: AtomicUsize,
    /// Replies from workers.
    outbox: Mutex<Outbox>,
    in_flight: AtomicU32,
    /// [`Waits`], and since when: milliseconds since the start, times 4.
    waits: AtomicU64,
    /// [`STAYS`], [`ENDS`] or [`CUT`].
    end: AtomicU8,
    /// For its task: a reply, a query less in flight, or the end.
    wake: Notify,
}

#[derive(Default)]
struct Outbox {
    octets: Vec<u8>,
    /// Nobody will write any more.
    closed: bool,
    /// What the task holds is counted as leaving.
    leaving: bool,
}

impl Place {
    /// The place of a connection that waits for its first message from `now` on: milliseconds since the start.
    pub(super) fn new(key: u64, address: IpAddr, now: u64, budget: Arc<Budget>) -> Self {
        let place = Self {
            key,
            address,
            budget,
            held: AtomicUsize::new(0),
            outbox: Mutex::default(),
            in_flight: AtomicU32::new(0),
            waits: AtomicU64::new(0),
            end: AtomicU8::new(STAYS),
            wake: Notify::new(),
        };
        place.set_waits(Waits::Idle, now);
        place
    }

    /// What it waits for from now on, and since when.
    pub(super) fn set_waits(&self, waits: Waits, since: u64) {
        self.waits.store(since << 2 | waits as u64, Relaxed);
    }

    /// What it waits for, and since when.
    pub(super) fn waits(&self) -> (Waits, u64) {
        let waits = self.waits.load(Relaxed);
        (Waits::ALL[(waits & 3) as usize], waits >> 2)
    }

    /// Takes what the workers have for the client. Its octets are those of the task from now on, which counts them.
    pub(super) fn take(&self, into: &mut Vec<u8>) {
        let mut outbox = self.outbox();
        if !outbox.octets.is_empty() {
            let octets = std::mem::take(&mut outbox.octets);
            drop(outbox);
            self.budget.release(octets.capacity());
            into.extend_from_slice(&octets);
        }
    }

    /// Whether there is nothing from workers, now or later.
    pub(super) fn is_owed_nothing(&self) -> bool {
        // In this order: a worker puts the reply in before the query ends.
        self.in_flight() == 0 && self.outbox().octets.is_empty()
    }

    /// Queries that workers have.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.load(Acquire)
    }

    /// Counts the octets that its task holds; false where there is no room for them.
    pub(super) fn hold(&self, octets: usize) -> bool {
        let outbox = self.outbox();
        let before = self.held();
        if outbox.closed || (octets > before && !self.budget.take(octets - before)) {
            return false;
        }
        self.budget.release(before.saturating_sub(octets));
        self.held.store(octets, Relaxed);
        true
    }

    /// Octets that its task holds.
    pub(super) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Whether the budget is nearly used up.
    pub(super) fn is_short(&self) -> bool {
        self.budget.is_short()
    }

    /// Ends the connection: its place, or what it holds, is needed, or there is no room for what it is owed.
    pub(super) fn cut(&self) {
        self.end.store(CUT, Relaxed);
        let mut outbox = self.outbox();
        self.forget(&mut outbox);
        if !outbox.leaving {
            // Its task drops the rest in a moment.
            outbox.leaving = true;
            self.budget.leaving.fetch_add(self.held(), Relaxed);
        }
        drop(outbox);
        self.wake.notify_one();
    }

    /// Ends the connection, which is idle: the server stops.
    pub(super) fn end(&self) {
        self.end.fetch_max(ENDS, Relaxed);
        self.wake.notify_one();
    }

    /// Whether it is to end.
    pub(super) fn ends(&self) -> bool {
        self.end.load(Relaxed) == ENDS
    }

    /// The end, by its task: takes no more replies, and gives back what is held.
    pub(super) fn close(&self) {
        let mut outbox = self.outbox();
        self.forget(&mut outbox);
        let held = self.held.swap(0, Relaxed);
        self.budget.release(held);
        if std::mem::take(&mut outbox.leaving) {
            self.budget.leaving.fetch_sub(held, Relaxed);
        }
    }

    fn forget(&self, outbox: &mut Outbox) {
        outbox.closed = true;
        self.budget.release(std::mem::take(&mut outbox.octets).capacity());
    }

    /// Whether the connection is to end at once.
    pub(super) fn is_cut(&self) -> bool {
        self.end.load(Relaxed) == CUT
    }

    /// Waits for [`Place::cut`], a reply or the end of a query in flight.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    fn push(&self, reply: &[u8], length: u16) {
        let mut outbox = self.outbox();
        if outbox.closed {
            return;
        }
        let before = outbox.octets.capacity();
        outbox.octets.reserve(2 + reply.len());
        if !self.budget.take(outbox.octets.capacity() - before) {
            outbox.octets = Vec::new();
            self.budget.release(before);
            drop(outbox);
            self.cut();
            return;
        }
        outbox.octets.extend_from_slice(&length.to_be_bytes());
        outbox.octets.extend_from_slice(reply);
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way back to a TCP client, and its query's place among those that the connection may have in flight.
pub struct StreamReply {
    /// The connection.
    place: Arc<Place>,
    /// The client.
    pub peer: SocketAddr,
    /// The address it asked.
    pub local: SocketAddr,
}

impl StreamReply {
    /// One more query in flight.
    pub(super) fn new(place: &Arc<Place>, peer: SocketAddr, local: SocketAddr) -> Self {
        place.in_flight.fetch_add(1, AcqRel);
        Self { place: place.clone(), peer, local }
    }

    /// Sends a reply, its length in front. A connection that is gone loses it.
    pub(super) fn send(&self, reply: &[u8]) {
        if let Ok(length) = u16::try_from(reply.len()) {
            self.place.push(reply, length);
        }
    }
}

impl Drop for StreamReply {
    fn drop(&mut self) {
        self.place.in_flight.fetch_sub(1, AcqRel);
        self.place.wake.notify_one();
    }
}

/// The octets that all connections may hold together.
#[derive(Default)]
pub(super) struct Budget {
    held: AtomicUsize,
    /// What of that belongs to connections that end.
    leaving: AtomicUsize,
}

impl Budget {
    /// What is held.
    pub(super) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Whether somebody must give way before others find no room.
    pub(super) fn is_short(&self) -> bool {
        self.held().saturating_sub(self.leaving.load(Relaxed)) > BUDGET_BYTES / 4 * 3
    }

    fn take(&self, octets: usize) -> bool {
        let fits = self.held.fetch_add(octets, Relaxed) + octets <= BUDGET_BYTES;
        if !fits {
            self.release(octets);
        }
        fits
    }

    fn release(&self, octets: usize) {
        self.held.fetch_sub(octets, Relaxed);
    }
}

const STAYS: u8 = 0;
const ENDS: u8 = 1;
const CUT: u8 = 2;
/// Octets that all TCP connections may hold together: of messages that have not come whole, and of replies that nobody has
/// read. AKS gives a node's DNS 128 MiB, of which a full cache takes 64; clients that read need none of it for longer than
/// a moment, since a reply is first given to the kernel.
pub(super) const BUDGET_BYTES: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(budget: &Arc<Budget>) -> Arc<Place> {
        Arc::new(Place::new(1, IpAddr::from([127, 0, 0, 1]), 0, budget.clone()))
    }

    fn reply(place: &Arc<Place>) -> StreamReply {
        let anybody = SocketAddr::from(([127, 0, 0, 1], 1));
        StreamReply::new(place, anybody, anybody)
    }

    #[test]
    fn replies_are_counted_until_they_are_taken_and_the_last_query_says_so() {
        let budget = Arc::<Budget>::default();
        let place = place(&budget);
        let (first, second) = (reply(&place), reply(&place));
        first.send(&[1; 100]);
        drop(first);
        second.send(&[2; 100]);
        assert!(!place.is_owed_nothing());
        drop(second);
        assert_eq!((place.in_flight(), place.is_owed_nothing()), (0, false));
        assert!(budget.held() >= 204);
        let mut octets = Vec::new();
        place.take(&mut octets);
        assert_eq!((octets.len(), budget.held(), place.is_owed_nothing()), (204, 0, true));
        assert_eq!((&octets[..3], &octets[102..105]), (&[0, 100, 1][..], &[0, 100, 2][..]));
    }

    #[test]
    fn a_reply_without_room_ends_its_connection_and_gives_everything_back() {
        let budget = Arc::<Budget>::default();
        let (other, mine) = (place(&budget), place(&budget));
        assert!(other.hold(BUDGET_BYTES - 1_000));
        assert!(budget.is_short() && !other.hold(BUDGET_BYTES + 1));
        assert!(mine.hold(300));
        let way = reply(&mine);
        way.send(&[0; 500]);
        assert!(!mine.is_cut());
        way.send(&[0; 500]);
        assert!(mine.is_cut());
        assert_eq!((budget.held(), mine.held()), (BUDGET_BYTES - 700, 300));
        // Whoever comes too late changes nothing.
        way.send(&[0; 5]);
        assert!(!mine.hold(0));
        mine.close();
        assert_eq!((budget.held(), mine.held()), (BUDGET_BYTES - 1_000, 0));
        assert!(other.hold(0));
        assert_eq!(budget.held(), 0);
    }
}
