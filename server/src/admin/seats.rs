//! The connections of one listening socket: what each is about, and which one gives way to a newcomer.
//!
//! Who is owed an answer keeps its seat while another waits for its client: an idle connection costs its client nothing,
//! and a page of /metrics may take a second.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use tokio::sync::Notify;

/// One connection's seat, given up with its last reference. Its task alone says what it is about.
#[derive(Debug)]
pub(super) struct Seat {
    /// The client's.
    address: IpAddr,
    /// What all seats of the listening socket count by.
    turns: Arc<AtomicU64>,
    /// [`Waits`], and since which turn: times 4.
    waits: AtomicU64,
    /// Whether an answer is being made.
    answering: AtomicBool,
    /// Whether the client had an answer.
    answered: AtomicBool,
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

impl Seat {
    fn new(address: IpAddr, turns: Arc<AtomicU64>) -> Arc<Self> {
        let seat = Self {
            address,
            turns,
            waits: AtomicU64::new(0),
            answering: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            cut: Notify::new(),
        };
        seat.set(Waits::Idle);
        Arc::new(seat)
    }

    /// A request has come whole.
    pub(super) fn begin(&self) {
        self.answering.store(true, Relaxed);
        self.set(Waits::Busy);
    }

    /// Its answer is ready to be written.
    pub(super) fn answer(&self) {
        self.answering.store(false, Relaxed);
        self.answered.store(true, Relaxed);
    }

    /// The client took some of what is written, or none.
    pub(super) fn wrote(&self, some: bool) {
        let waits = if some { Waits::Busy } else { Waits::Unread };
        if self.waits().0 != waits {
            self.set(waits);
        }
    }

    /// All that was to be written is.
    pub(super) fn flushed(&self) {
        if !self.answering.load(Relaxed) && self.waits().0 != Waits::Idle {
            self.set(Waits::Idle);
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

    fn set(&self, waits: Waits) {
        let turn = self.turns.fetch_add(1, Relaxed);
        self.waits.store(turn << 2 | waits as u64, Relaxed);
    }

    fn waits(&self) -> (Waits, u64) {
        let all = [Waits::Idle, Waits::Busy, Waits::Unread];
        let waits = self.waits.load(Relaxed);
        (all[(waits & 3).min(2) as usize], waits >> 2)
    }
}

/// The seats of one listening socket.
#[derive(Debug, Default)]
pub(super) struct Seats {
    taken: Vec<Weak<Seat>>,
    turns: Arc<AtomicU64>,
}

impl Seats {
    /// A seat for one more client, if need be that of another; `None` where nobody gives way.
    pub(super) fn take(&mut self, address: IpAddr) -> Option<Arc<Seat>> {
        self.taken.retain(|seat| seat.strong_count() > 0);
        if self.taken.len() >= CONNECTIONS && !self.evict(Some(address)) {
            return None;
        }
        let seat = Seat::new(address, self.turns.clone());
        self.taken.push(Arc::downgrade(&seat));
        Some(seat)
    }

    /// Ends a connection that waits for its client: descriptors are short.
    pub(super) fn make_room(&mut self) {
        self.evict(None);
    }

    fn evict(&mut self, newcomer: Option<IpAddr>) -> bool {
        let seats: Vec<Arc<Seat>> = self.taken.iter().filter_map(Weak::upgrade).collect();
        let Some(seat) = gives_way(&seats, newcomer) else { return false };
        seat.cut();
        self.taken.retain(|taken| !std::ptr::eq(taken.as_ptr(), Arc::as_ptr(seat)));
        true
    }
}

/// Who gives way, of the address with most connections first and of these whoever waits for longest: one that waits for
/// its client; else, to a newcomer, one that had an answer before, else one of an address that has more than half of all,
/// unless the newcomer is of the same.
fn gives_way(seats: &[Arc<Seat>], newcomer: Option<IpAddr>) -> Option<&Arc<Seat>> {
    let mut from = HashMap::<IpAddr, usize>::new();
    for seat in seats {
        *from.entry(seat.address).or_default() += 1;
    }
    let count = |seat: &Seat| from.get(&seat.address).copied().unwrap_or_default();
    let first = |may: &dyn Fn(&Seat) -> bool| {
        let those = seats.iter().filter(|seat| may(seat));
        those.max_by_key(|seat| (count(seat), u64::MAX - seat.waits().1))
    };
    let waiting = first(&|seat| seat.waits().0 != Waits::Busy);
    let Some(newcomer) = newcomer else { return waiting };
    waiting
        .or_else(|| first(&|seat| seat.answered.load(Relaxed)))
        .or_else(|| first(&|seat| seat.address != newcomer && count(seat) > CONNECTIONS / 2))
}

/// How many connections a listening socket serves at once.
pub(super) const CONNECTIONS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    fn fill(seats: &mut Seats, from: impl Fn(usize) -> IpAddr) -> Vec<Arc<Seat>> {
        (0..CONNECTIONS).map(|n| seats.take(from(n)).unwrap()).collect()
    }

    /// Which of these were cut, each told once.
    fn cut(all: &[Arc<Seat>]) -> Vec<usize> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut told = |seat: &Seat| std::pin::pin!(seat.was_cut()).as_mut().poll(&mut context).is_ready();
        (0..all.len()).filter(|&n| told(&all[n])).collect()
    }

    #[test]
    fn who_waits_for_its_client_for_longest_gives_way_and_who_is_owed_an_answer_stays() {
        let mut seats = Seats::default();
        let all = fill(&mut seats, |_| ip(1));
        all[0].begin();
        all[2].begin();
        all[2].answer();
        all[2].wrote(false);
        all[3].begin();
        all[3].answer();
        all[3].flushed();
        let mut new = vec![seats.take(ip(1)).unwrap()];
        assert_eq!(cut(&all), [1]);
        new.extend((4..CONNECTIONS).map(|_| seats.take(ip(1)).unwrap()));
        assert_eq!(cut(&all), (4..CONNECTIONS).collect::<Vec<_>>());
        for expected in [2, 3] {
            new.push(seats.take(ip(1)).unwrap());
            assert_eq!(cut(&all), [expected], "in the order in which they began to wait");
        }
        new.push(seats.take(ip(1)).unwrap());
        assert_eq!((cut(&all).len(), cut(&new)), (0, vec![0]));
    }

    #[test]
    fn the_address_with_most_connections_gives_way_first() {
        let mut seats = Seats::default();
        // The first have waited for longest.
        let all = fill(&mut seats, |n| ip(if n < 60 { 1 } else { 2 }));
        let _new = seats.take(ip(3));
        assert_eq!(cut(&all), [60]);
    }

    #[test]
    fn where_all_are_owed_an_answer_one_that_had_one_gives_way_or_one_of_an_address_with_more_than_half() {
        let mut seats = Seats::default();
        let all = fill(&mut seats, |n| ip(if n <= CONNECTIONS / 2 { 1 } else { 2 }));
        for seat in &all {
            seat.begin();
        }
        assert!(seats.take(ip(1)).is_none(), "as many as there are of its own address");
        let new = seats.take(ip(3)).unwrap();
        new.begin();
        assert_eq!(cut(&all), [0]);
        assert!(seats.take(ip(3)).is_none(), "nobody has more than half");
        all[9].answer();
        all[9].begin();
        assert!(seats.take(ip(1)).is_some());
        assert_eq!(cut(&all), [9]);
    }

    #[test]
    fn who_left_takes_no_seat_and_short_descriptors_end_no_answer() {
        let mut seats = Seats::default();
        let mut all = fill(&mut seats, |_| ip(1));
        all.truncate(CONNECTIONS - 1);
        all.push(seats.take(ip(2)).unwrap());
        assert_eq!(cut(&all).len(), 0);
        for seat in &all[1..] {
            seat.begin();
        }
        seats.make_room();
        assert_eq!(cut(&all), [0]);
        seats.make_room();
        assert_eq!(cut(&all).len(), 0);
    }
}
