//! The waiters of flights: a linked list per flight, the first inline, the others in one slab.

use super::timer_wheel::NEVER;
use client_quota::{ClientId, ClientQuota};

/// The waiters of one flight. Times are microseconds since the flight's start.
#[derive(Debug)]
pub(super) struct WaiterList<W> {
    first: Option<W>,
    first_until: u32,
    head: u32,
    tail: u32,
    /// The client of the flight's first query, for its quota. Stored here because it fits into the
    /// padding.
    pub(super) client: ClientId,
}

impl<W> WaiterList<W> {
    pub(super) fn new(waiter: W, until: u32, client: ClientId) -> Self {
        Self { first: Some(waiter), first_until: until, ..Self::empty(client) }
    }

    fn empty(client: ClientId) -> Self {
        Self { first: None, first_until: NEVER, head: NONE, tail: NONE, client }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.head == NONE
    }

    fn take(&mut self) -> Self {
        let empty = Self::empty(self.client);
        std::mem::replace(self, empty)
    }
}

/// All waiters but the first of each flight.
#[derive(Debug)]
pub(super) struct WaiterSlab<W> {
    nodes: Vec<Node<W>>,
    free: u32,
    places: ClientQuota,
}

#[derive(Debug)]
pub(super) struct Node<W> {
    waiter: Option<W>,
    until: u32,
    next: u32,
    client: ClientId,
}

impl<W> WaiterSlab<W> {
    /// Creates a slab for `most` waiters of one client, and a quarter more of all clients together.
    pub(super) fn new(most: usize) -> Self {
        Self { nodes: Vec::new(), free: NONE, places: ClientQuota::new(most.clamp(1, WAITERS_MAX) as u32) }
    }

    /// Appends a waiter, and returns its node, or the waiter if its client's quota is exhausted.
    pub(super) fn push(
        &mut self,
        list: &mut WaiterList<W>,
        waiter: W,
        until: u32,
        client: ClientId,
    ) -> Result<u32, W> {
        if list.is_empty() {
            (list.first, list.first_until) = (Some(waiter), until);
            return Ok(NONE);
        }
        if !self.places.acquire(client) {
            return Err(waiter);
        }
        let node = Node { waiter: Some(waiter), until, next: NONE, client };
        let at = match self.nodes.get_mut(self.free as usize) {
            Some(vacant) => {
                let at = self.free;
                self.free = vacant.next;
                *vacant = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        match self.nodes.get_mut(list.tail as usize) {
            Some(last) => last.next = at,
            None => list.head = at,
        }
        list.tail = at;
        Ok(at)
    }

    /// Returns the waiter of a node that [`Self::push`] returned.
    pub(super) fn waiter<'a>(&'a mut self, list: &'a mut WaiterList<W>, node: u32) -> Option<&'a mut W> {
        match self.nodes.get_mut(node as usize) {
            Some(node) => node.waiter.as_mut(),
            None => list.first.as_mut(),
        }
    }

    /// Takes all waiters off the list.
    pub(super) fn take_all(&mut self, list: &mut WaiterList<W>) -> Waiters<'_, W> {
        self.hand_out(list.take())
    }

    /// Returns an iterator that takes the waiters of a list.
    pub(super) fn hand_out(&mut self, list: WaiterList<W>) -> Waiters<'_, W> {
        Waiters { list, slab: self }
    }

    /// Removes and returns the waiters with expired patience, and when the next one's expires.
    pub(super) fn take_impatient(&mut self, list: &mut WaiterList<W>, now: u32) -> (WaiterList<W>, u32) {
        let mut over = WaiterList::empty(list.client);
        let mut next_over = NEVER;
        if list.first_until <= now {
            over.first = list.first.take();
        } else if list.first.is_some() {
            next_over = list.first_until;
        }
        let (mut at, mut kept_tail) = (list.head, NONE);
        while let Some(node) = self.nodes.get_mut(at as usize) {
            let (this, next, until) = (at, node.next, node.until);
            at = next;
            if until > now {
                next_over = next_over.min(until);
                kept_tail = this;
                continue;
            }
            // Moves the waiter from the flight's list to the list of expired waiters.
            node.next = NONE;
            match self.nodes.get_mut(kept_tail as usize) {
                Some(kept) => kept.next = next,
                None => list.head = next,
            }
            match self.nodes.get_mut(over.tail as usize) {
                Some(last) => last.next = this,
                None => over.head = this,
            }
            over.tail = this;
        }
        list.tail = kept_tail;
        (over, next_over)
    }

    /// Takes the next waiter of a list.
    pub(super) fn next(&mut self, list: &mut WaiterList<W>) -> Option<W> {
        if let Some(waiter) = list.first.take() {
            return Some(waiter);
        }
        let released = self.release(list.head);
        list.head = released.as_ref().map_or(NONE, |(_, next)| *next);
        if list.head == NONE {
            self.shrink();
        }
        released.map(|(waiter, _)| waiter)
    }

    fn release(&mut self, at: u32) -> Option<(W, u32)> {
        let node = self.nodes.get_mut(at as usize)?;
        let next = std::mem::replace(&mut node.next, self.free);
        let waiter = node.waiter.take();
        self.free = at;
        self.places.release(node.client);
        waiter.map(|waiter| (waiter, next))
    }

    /// Frees the memory of many waiters, once the last one has left.
    fn shrink(&mut self) {
        if self.places.in_use() == 0 && self.nodes.len() > KEPT {
            (self.nodes, self.free) = (Vec::new(), NONE);
        }
    }
}

/// Waiters that are handed out, in order of arrival; those not taken are dropped.
pub struct Waiters<'a, W> {
    list: WaiterList<W>,
    slab: &'a mut WaiterSlab<W>,
}

impl<W> Waiters<'_, W> {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Leaves the waiters not taken in the slab, for [`crate::Forwarder::next_waiter`].
    pub fn later(mut self) -> RemainingWaiters<W> {
        RemainingWaiters(self.list.take())
    }
}

/// Waiters of a flight that has ended, to be answered later. If it is dropped before the last one
/// is taken the others stay in the forwarder for good.
#[derive(Debug)]
pub struct RemainingWaiters<W>(pub(super) WaiterList<W>);

impl<W> RemainingWaiters<W> {
    /// Returns an empty list.
    pub fn none() -> Self {
        Self(WaiterList::empty(ClientId::of(0)))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<W> Iterator for Waiters<'_, W> {
    type Item = W;

    fn next(&mut self) -> Option<W> {
        self.slab.next(&mut self.list)
    }
}

impl<W> Drop for Waiters<'_, W> {
    fn drop(&mut self) {
        self.by_ref().for_each(drop);
    }
}

/// The end of a list.
const NONE: u32 = u32::MAX;
/// The most waiters of one client; with a quarter more still below [`NONE`].
const WAITERS_MAX: usize = 1 << 30;
/// The number of nodes up to which memory is kept while there are no waiters.
const KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> ClientId {
        ClientId::of(1)
    }

    /// Waiters are returned in order, and their slots are reused.
    #[test]
    fn waiters_in_order_slots_reused() {
        let mut slab = WaiterSlab::new(8);
        for round in 0..3 {
            let mut list = WaiterList::new(round, NEVER, client());
            for waiter in 1..9 {
                slab.push(&mut list, round + waiter, NEVER, client()).unwrap();
            }
            assert_eq!(slab.push(&mut list, 99, NEVER, client()), Err(99));
            assert_eq!(slab.take_all(&mut list).collect::<Vec<_>>(), (round..round + 9).collect::<Vec<_>>());
            assert_eq!((slab.nodes.len(), slab.places.in_use()), (8, 0));
        }
    }

    /// A waiter that is answered later keeps its slot until then.
    #[test]
    fn deferred_waiter_keeps_its_slot() {
        let mut slab = WaiterSlab::new(8);
        let mut list = WaiterList::new(0, NEVER, client());
        for waiter in 1..9 {
            slab.push(&mut list, waiter, NEVER, client()).unwrap();
        }
        let mut waiters = slab.take_all(&mut list);
        assert_eq!((waiters.next(), waiters.next()), (Some(0), Some(1)));
        let mut rest = waiters.later();
        assert!(list.is_empty() && !rest.is_empty());
        // Others are added and taken meanwhile.
        let mut other = WaiterList::new(20, NEVER, client());
        slab.push(&mut other, 21, NEVER, client()).unwrap();
        assert_eq!(slab.push(&mut other, 22, NEVER, client()), Err(22));
        assert_eq!(slab.take_all(&mut other).collect::<Vec<_>>(), [20, 21]);
        for (waiter, taken) in (2..9).zip((0..7).rev()) {
            assert_eq!((slab.next(&mut rest.0), slab.places.in_use()), (Some(waiter), taken));
        }
        assert!(rest.is_empty());
        assert_eq!(slab.next(&mut rest.0), None);
    }

    #[test]
    fn only_the_impatient_leave() {
        let mut slab = WaiterSlab::new(8);
        let mut list = WaiterList::new(0, 10, client());
        for (waiter, until) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            slab.push(&mut list, waiter, until, client()).unwrap();
        }
        let (over, next) = slab.take_impatient(&mut list, 10);
        assert_eq!((slab.hand_out(over).collect::<Vec<_>>(), next), (vec![0, 2, 4], 20));
        slab.push(&mut list, 5, 40, client()).unwrap();
        let (over, next) = slab.take_impatient(&mut list, 30);
        assert_eq!((slab.hand_out(over).collect::<Vec<_>>(), next), (vec![1, 3], 40));
        drop(slab.take_all(&mut list));
        assert_eq!(slab.places.in_use(), 0);
    }

    /// The memory of many waiters is released when the last of them has left.
    #[test]
    fn memory_is_released_after_last_waiter() {
        let mut slab = WaiterSlab::new(10_000);
        let (mut crowd, mut other) =
            (WaiterList::new(0, NEVER, client()), WaiterList::new(0, NEVER, client()));
        slab.push(&mut other, 1, NEVER, client()).unwrap();
        for waiter in 1..5_000 {
            slab.push(&mut crowd, waiter, NEVER, client()).unwrap();
        }
        assert_eq!(slab.take_all(&mut crowd).count(), 5_000);
        assert!(slab.nodes.capacity() >= 5_000, "one waits yet");
        // `Waiters` is dropped before its second waiter is taken.
        assert_eq!(slab.take_all(&mut other).next(), Some(0));
        assert_eq!(slab.nodes.capacity(), 0);
        let mut next = WaiterList::new(0, NEVER, client());
        slab.push(&mut next, 1, NEVER, client()).unwrap();
        assert_eq!(slab.take_all(&mut next).collect::<Vec<_>>(), [0, 1]);
    }
}
