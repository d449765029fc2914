//! The connections of one listening socket: what each is about, and which one gives way to a newcomer.
//!
//! Who is owed an answer keeps its slot while another waits for its client: an idle connection costs its client nothing,
//! and a page of /metrics may take a second. Who has just been answered and asks again keeps it no more than that.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// One connection's slot, given up with its last reference. Its task alone says what it is about.
#[derive(Debug)]
pub(super) struct Slot {
    /// The client's.
    address: IpAddr,
    /// When it was taken.
    taken: Instant,
    /// [`Waits`], and since when: microseconds since it was taken, times 4.
    waits: AtomicU64,
    /// When the last answer was ready: microseconds since it was taken, and 1; 0 before.
    answered: AtomicU64,
    /// Whether an answer is being made.
    answering: AtomicBool,
    /// Whether that is for a request that came soon after the answer before.
    again: AtomicBool,
    cut: Notify,
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// For the client to send a request.
    Idle,
    /// For us.
    Busy,
    /// For the client to read.
    Unread,
}

impl Slot {
    pub(super) fn new(address: IpAddr, now: Instant) -> Self {
        Self {
            address,
            taken: now,
            waits: AtomicU64::new(Waits::Idle as u64),
            answered: AtomicU64::new(0),
            answering: AtomicBool::new(false),
            again: AtomicBool::new(false),
            cut: Notify::new(),
        }
    }

    /// A request has come whole. It is to be answered after so long, for the sake of others.
    pub(super) fn begin(&self, now: Instant) -> Duration {
        self.answering.store(true, Relaxed);
        self.set(Waits::Busy, now);
        let since = self.since_answer(now);
        self.again.store(since.is_some_and(|since| since < GRACE), Relaxed);
        since.map_or(Duration::ZERO, |since| PACE.saturating_sub(since))
    }

    /// Its answer is ready to be written.
    pub(super) fn answer(&self, now: Instant) {
        self.answering.store(false, Relaxed);
        self.answered.store(self.micros(now) + 1, Relaxed);
    }

    /// The client took some of what is written, or none.
    pub(super) fn wrote(&self, some: bool, now: Instant) {
        let waits = if some { Waits::Busy } else { Waits::Unread };
        if self.waits().0 != waits {
            self.set(waits, now);
        }
    }

    /// All that was to be written is.
    pub(super) fn flushed(&self, now: Instant) {
        if !self.answering.load(Relaxed) && self.waits().0 != Waits::Idle {
            self.set(Waits::Idle, now);
        }
    }

    /// Whether the client does not take what is written.
    pub(super) fn is_unread(&self) -> bool {
        self.waits().0 == Waits::Unread
    }

    /// Ends the connection.
    pub(super) fn cut(&self) {
        self.cut.notify_one();
    }

    /// Waits for [`Self::cut`].
    pub(super) async fn was_cut(&self) {
        self.cut.notified().await;
    }

    fn set(&self, waits: Waits, now: Instant) {
        self.waits.store(self.micros(now) << 2 | waits as u64, Relaxed);
    }

    /// What it waits for, and since when.
    fn waits(&self) -> (Waits, Instant) {
        let all = [Waits::Idle, Waits::Busy, Waits::Unread];
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

    /// How far from giving way it is, and in which order with its like.
    fn claim(&self, now: Instant) -> (Claim, Reverse<Instant>, Instant) {
        let (waits, since) = self.waits();
        let [longest, newest] = [(Reverse(since), now), (Reverse(now), since)];
        let waited = now.saturating_duration_since(since);
        let (claim, (longest, newest)) = match waits {
            Waits::Busy if self.again.load(Relaxed) => (Claim::Again, longest),
            Waits::Busy => (Claim::Owed, newest),
            _ if waited >= GRACE => (Claim::Waiting, longest),
            _ => (Claim::New, longest),
        };
        (claim, longest, newest)
    }
}

/// What a connection has to say for keeping its slot; the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// It has waited for its client for a while.
    Waiting,
    /// It had an answer, and asked again soon after.
    Again,
    /// It has waited for a request of its client for a short time only.
    New,
    /// It is owed an answer.
    Owed,
}

/// The slots of one listening socket.
#[derive(Debug, Default)]
pub(super) struct Slots {
    taken: Vec<Weak<Slot>>,
}

impl Slots {
    /// A slot for one more client, if need be that of another.
    pub(super) fn take(&mut self, address: IpAddr, now: Instant) -> Arc<Slot> {
        self.taken.retain(|slot| slot.strong_count() > 0);
        if self.taken.len() >= CONNECTIONS {
            self.evict(Claim::Owed, now);
        }
        let slot = Arc::new(Slot::new(address, now));
        self.taken.push(Arc::downgrade(&slot));
        slot
    }

    /// Ends a connection that waits for its client: descriptors are short.
    pub(super) fn make_room(&mut self, now: Instant) {
        self.evict(Claim::Waiting, now);
    }

    /// Ends one whose claim is no more than this: of the address with most connections first, then by its claim. Of those
    /// that are owed an answer the newest goes, of others the one that has been so for longest.
    fn evict(&mut self, most: Claim, now: Instant) {
        let slots: Vec<Arc<Slot>> = self.taken.iter().filter_map(Weak::upgrade).collect();
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

/// How many connections a listening socket serves at once.
pub(super) const CONNECTIONS: usize = 128;
/// What a client has for its request to come, and what makes it one that asks again and again.
const GRACE: Duration = Duration::from_secs(1);
/// From one answer to the next on the same connection: what one sends ahead is answered in turns with others.
const PACE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    /// Each a millisecond after the other.
    fn fill(slots: &mut Slots, start: Instant, from: impl Fn(usize) -> IpAddr) -> Vec<Arc<Slot>> {
        (0..CONNECTIONS).map(|n| slots.take(from(n), start + ms(n as u64))).collect()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Which of these were cut, each told once.
    fn cut(all: &[Arc<Slot>]) -> Vec<usize> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut told = |slot: &Slot| std::pin::pin!(slot.was_cut()).as_mut().poll(&mut context).is_ready();
        (0..all.len()).filter(|&n| told(&all[n])).collect()
    }

    #[test]
    fn claims_are_heard_in_order_and_the_newest_of_those_owed_an_answer_goes() {
        let (mut slots, start) = (Slots::default(), clock::now());
        let all = fill(&mut slots, start, |_| ip(1));
        let later = start + ms(10_000);
        // Two are owed an answer, one of which had one long ago; one asks again; one does not read; one has just asked.
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
        // The newcomers began last. Who was answered in an instant is gone by then.
        for expected in [3, 4, 5] {
            new.push(slots.take(ip(1), later + ms(2)));
            new.last().unwrap().begin(later + ms(2 + expected));
            assert_eq!((cut(&all).len(), cut(&new)), (0, vec![expected as usize]));
        }
    }

    #[test]
    fn the_address_with_most_connections_gives_way_whatever_the_others_do() {
        let (mut slots, start) = (Slots::default(), clock::now());
        let all = fill(&mut slots, start, |n| ip(if n < 60 { 1 } else { 2 }));
        for slot in &all[60..] {
            slot.begin(start + ms(500));
        }
        let mut new = vec![slots.take(ip(3), start + ms(9_000))];
        assert_eq!(cut(&all), [127]);
        new.extend((0..7).map(|_| slots.take(ip(3), start + ms(9_000))));
        assert_eq!(cut(&all), (120..127).collect::<Vec<_>>());
        // As many of one as of the other: who is owed an answer stays.
        new.push(slots.take(ip(3), start + ms(9_000)));
        assert_eq!(cut(&all), [0]);
    }

    #[test]
    fn who_left_takes_no_seat_and_short_descriptors_end_no_answer() {
        let (mut slots, start) = (Slots::default(), clock::now());
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
    fn what_is_sent_ahead_is_answered_in_its_turn() {
        let start = clock::now();
        let slot = Slot::new(ip(1), start);
        assert_eq!(slot.begin(start), Duration::ZERO);
        slot.answer(start + ms(3));
        assert_eq!(slot.begin(start + ms(4)), PACE - ms(1));
        assert_eq!(slot.begin(start + ms(13)), Duration::ZERO);
    }
}
