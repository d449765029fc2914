//! The state of one TCP connection, shared by its task and the workers that answer its queries, and
//! the bytes that the connection holds.

use std::net::IpAddr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, SemaphorePermit};

use super::cpu_budget::CpuBudget;

/// The event that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Activity {
    /// For this server: the client awaits an answer.
    Busy,
    /// For the client's next query.
    Idle,
    /// For the rest of a message.
    HalfSent,
    /// For the client to read.
    Unread,
}

impl Activity {
    pub(crate) const ALL: [Self; 4] = [Self::Busy, Self::Idle, Self::HalfSent, Self::Unread];

    /// Returns the label of the metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Idle => "idle",
            Self::HalfSent => "half_sent",
            Self::Unread => "unread",
        }
    }
}

/// The shared state of one connection.
pub(crate) struct ConnectionState {
    pub(crate) key: u64,
    /// The client's address.
    pub(crate) address: IpAddr,
    budget: Arc<Budget>,
    of_address: Arc<OfAddress>,
    /// Bytes that the connection's task holds, and bytes of the outbox, as counted in the budget;
    /// changed under the outbox's lock.
    of_task: AtomicUsize,
    of_outbox: AtomicUsize,
    /// Replies from workers.
    outbox: Mutex<Outbox>,
    in_flight: AtomicU32,
    /// The [`Activity`] in the two lowest bits; above, since when it holds, in milliseconds since
    /// the start.
    state: AtomicU64,
    /// [`STAYS`], [`ENDS`] or [`CUT`].
    end: AtomicU8,
    /// Wakes the connection's task: for a reply, the end of a query in flight, or of the
    /// connection.
    wake: Notify,
}

/// What the connections of one address share.
#[derive(Default)]
pub(crate) struct OfAddress {
    /// Bytes that the address's connections hold, including connections that are ending.
    pub(crate) held: AtomicUsize,
    pub(crate) turns: CpuBudget,
}

#[derive(Default)]
struct Outbox {
    octets: Vec<u8>,
    /// The connection's task has ended: replies are dropped.
    closed: bool,
    /// The connection ends: the bytes that its task holds are counted as leaving.
    leaving: bool,
}

impl ConnectionState {
    /// Creates the state of a connection that waits for its first message from `now` on, in
    /// milliseconds since the start.
    pub(crate) fn new(
        key: u64,
        address: IpAddr,
        now: u64,
        budget: Arc<Budget>,
        of_address: Arc<OfAddress>,
    ) -> Self {
        let state = Self {
            key,
            address,
            budget,
            of_address,
            of_task: AtomicUsize::new(0),
            of_outbox: AtomicUsize::new(0),
            outbox: Mutex::default(),
            in_flight: AtomicU32::new(0),
            state: AtomicU64::new(0),
            end: AtomicU8::new(STAYS),
            wake: Notify::new(),
        };
        state.set_state(Activity::Idle, now);
        state
    }

    /// Whether the connection is one of our own probes.
    pub(crate) fn is_own(&self) -> bool {
        self.key == OWN
    }

    /// Sets the state, and since when it holds.
    pub(crate) fn set_state(&self, state: Activity, since: u64) {
        self.state.store(since << 2 | state as u64, Relaxed);
    }

    /// Returns the state, and since when it holds.
    pub(crate) fn state(&self) -> (Activity, u64) {
        let state = self.state.load(Relaxed);
        (Activity::ALL[(state & 3) as usize], state >> 2)
    }

    /// Appends the workers' replies to `into`; from here on the task counts their bytes.
    pub(crate) fn take(&self, into: &mut Vec<u8>) {
        let mut outbox = self.outbox();
        if !outbox.octets.is_empty() {
            let octets = std::mem::take(&mut outbox.octets);
            self.release(self.of_outbox.swap(0, Relaxed));
            drop(outbox);
            into.extend_from_slice(&octets);
        }
    }

    /// Whether no reply of a worker waits or is outstanding.
    pub(crate) fn is_owed_nothing(&self) -> bool {
        // The order matters: a worker puts the reply into the outbox before it ends the query.
        self.in_flight() == 0 && self.outbox().octets.is_empty()
    }

    /// Counts one more query in flight.
    pub(crate) fn send_query(&self) {
        self.in_flight.fetch_add(1, AcqRel);
    }

    /// Counts one less query in flight.
    pub(crate) fn end_query(&self) {
        self.in_flight.fetch_sub(1, AcqRel);
        self.wake.notify_one();
    }

    /// Returns the number of queries in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Acquire)
    }

    /// Counts the bytes that its task holds; false if all connections would hold more than `limit`.
    pub(crate) fn hold(&self, octets: usize, limit: usize) -> bool {
        let outbox = self.outbox();
        let before = self.of_task.load(Relaxed);
        if outbox.closed || (octets > before && !self.reserve(octets - before, limit)) {
            return false;
        }
        self.release(before.saturating_sub(octets));
        self.of_task.store(octets, Relaxed);
        drop(outbox);
        true
    }

    /// Returns the bytes that the connection's task holds.
    pub(crate) fn held_by_task(&self) -> usize {
        self.of_task.load(Relaxed)
    }

    /// Returns the bytes that the connection holds.
    pub(crate) fn held(&self) -> usize {
        self.held_by_task() + self.of_outbox.load(Relaxed)
    }

    /// Whether the budget is nearly used up.
    pub(crate) fn is_short(&self) -> bool {
        self.budget.is_short()
    }

    /// Aborts the connection and discards unsent replies, because its slot or memory is needed, or
    /// its replies do not fit.
    pub(crate) fn cut(&self) {
        self.end.store(CUT, Relaxed);
        let mut outbox = self.outbox();
        self.forget(&mut outbox);
        if !outbox.leaving {
            // The connection's task, woken below, frees the rest.
            outbox.leaving = true;
            self.budget.leaving.fetch_add(self.held_by_task(), Relaxed);
        }
        drop(outbox);
        self.wake.notify_one();
    }

    /// Ends the connection once its queries are answered, as the server stops or its listener is
    /// removed.
    pub(crate) fn end(&self) {
        self.end.fetch_max(ENDS, Relaxed);
        self.wake.notify_one();
    }

    /// Whether the connection must end.
    pub(crate) fn ends(&self) -> bool {
        self.end.load(Relaxed) == ENDS
    }

    /// Closes the connection, called by its task: later replies are dropped, and all bytes
    /// released.
    pub(crate) fn close(&self) {
        let mut outbox = self.outbox();
        self.forget(&mut outbox);
        let held = self.of_task.swap(0, Relaxed);
        self.release(held);
        if std::mem::take(&mut outbox.leaving) {
            self.budget.leaving.fetch_sub(held, Relaxed);
        }
    }

    fn forget(&self, outbox: &mut Outbox) {
        outbox.closed = true;
        outbox.octets = Vec::new();
        self.release(self.of_outbox.swap(0, Relaxed));
    }

    /// Whether the connection was aborted by [`ConnectionState::cut`].
    pub(crate) fn is_cut(&self) -> bool {
        self.end.load(Relaxed) == CUT
    }

    /// Waits for [`ConnectionState::cut`], a reply or the end of a query in flight.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Waits for a turn of the address's connections, for a connection of several tasks, which its
    /// end aborts.
    pub(crate) async fn next_turn(&self) -> Option<SemaphorePermit<'_>> {
        let turns = &self.of_address.turns;
        match turns.try_next() {
            Some(turn) => Some(turn),
            None => turns.next().await,
        }
    }

    /// Waits for a turn of the address's connections; `None` once the connection is cut.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let turns = &self.of_address.turns;
        if let Some(turn) = turns.try_next() {
            return Some(turn);
        }
        let next = turns.next();
        tokio::pin!(next);
        while !self.is_cut() {
            // A reply that wakes the connection here is sent in its turn.
            tokio::select! {
                turn = &mut next => return turn,
                () = self.woken() => {}
            }
        }
        None
    }

    /// Counts the time of the connection's turn; true if it must yield.
    pub(crate) fn spend(&self, work: Duration) -> bool {
        self.of_address.turns.spend(work)
    }

    /// Puts a reply with its length prefix into the outbox; false if all connections would hold
    /// more than `limit`. A closed connection drops it.
    pub(crate) fn push(&self, reply: &[u8], length: u16, limit: usize) -> bool {
        let mut outbox = self.outbox();
        if outbox.closed {
            return true;
        }
        let before = outbox.octets.capacity();
        outbox.octets.reserve(2 + reply.len());
        let more = outbox.octets.capacity() - before;
        if !self.reserve(more, limit) {
            // Shrinks to the capacity that is counted: the bytes just reserved are not.
            let kept = outbox.octets.len();
            outbox.octets.shrink_to(before.max(kept));
            return false;
        }
        self.of_outbox.fetch_add(more, Relaxed);
        outbox.octets.extend_from_slice(&length.to_be_bytes());
        outbox.octets.extend_from_slice(reply);
        true
    }

    fn reserve(&self, octets: usize, limit: usize) -> bool {
        let fits = self.budget.take(octets, limit);
        if fits {
            self.of_address.held.fetch_add(octets, Relaxed);
        }
        fits
    }

    fn release(&self, octets: usize) {
        self.budget.release(octets);
        self.of_address.held.fetch_sub(octets, Relaxed);
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes that all connections hold.
#[derive(Default)]
pub(crate) struct Budget {
    held: AtomicUsize,
    /// The bytes of connections that are ending.
    leaving: AtomicUsize,
}

impl Budget {
    /// Returns the bytes held.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Whether a connection must be evicted, before others are refused.
    pub(crate) fn is_short(&self) -> bool {
        self.held().saturating_sub(self.leaving.load(Relaxed)) > BUDGET_BYTES / 4 * 3
    }

    fn take(&self, octets: usize, limit: usize) -> bool {
        let fits = self.held.fetch_add(octets, Relaxed) + octets <= limit;
        if !fits {
            self.release(octets);
        }
        fits
    }

    fn release(&self, octets: usize) {
        self.held.fetch_sub(octets, Relaxed);
    }
}

/// The key of a connection that needs no slot.
pub(crate) const OWN: u64 = 0;
const STAYS: u8 = 0;
const ENDS: u8 = 1;
const CUT: u8 = 2;
/// Bytes that all TCP connections may hold together: of incomplete messages, and of replies that
/// clients have not read. AKS gives a node's DNS 128 MiB, of which a full cache takes 64; clients
/// that read hold none of it for long, as a reply is first written to the kernel.
pub(crate) const BUDGET_BYTES: usize = 8 << 20;
