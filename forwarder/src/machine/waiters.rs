//! Who waits for which query: a list per flight, the first inline, the others in one slab.

use super::flight::NEVER;

/// The waiters of one flight. When their patience ends is counted from the flight's start.
#[derive(Debug)]
pub(super) struct WaiterList<W> {
    first: Option<(W, u32)>,
    head: u32,
    tail: u32,
}

impl<W> WaiterList<W> {
    pub(super) fn new(waiter: W, until: u32) -> Self {
        Self { first: Some((waiter, until)), head: NONE, tail: NONE }
    }

    fn take(&mut self) -> Self {
        std::mem::replace(self, Self { first: None, head: NONE, tail: NONE })
    }
}

/// The waiters beyond the first of every flight.
#[derive(Debug)]
pub(super) struct WaiterSlab<W> {
    nodes: Vec<Node<W>>,
    free: u32,
    taken: usize,
    limit: usize,
}

#[derive(Debug)]
struct Node<W> {
    waiter: Option<W>,
    until: u32,
    next: u32,
}

impl<W> WaiterSlab<W> {
    pub(super) fn new(limit: usize) -> Self {
        Self { nodes: Vec::new(), free: NONE, taken: 0, limit: limit.min(NONE as usize) }
    }

    /// Appends a waiter; gives it back when the slab is full.
    pub(super) fn push(&mut self, list: &mut WaiterList<W>, waiter: W, until: u32) -> Result<(), W> {
        if list.first.is_none() && list.head == NONE {
            list.first = Some((waiter, until));
            return Ok(());
        }
        if self.taken >= self.limit {
            return Err(waiter);
        }
        let node = Node { waiter: Some(waiter), until, next: NONE };
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
        self.taken += 1;
        Ok(())
    }

    /// Everybody who waits, taken off the list.
    pub(super) fn take_all(&mut self, list: &mut WaiterList<W>) -> Waiters<'_, W> {
        Waiters { list: list.take(), slab: self }
    }

    /// Those whose patience is over, taken off the list, and when the next one's will be.
    pub(super) fn take_impatient(&mut self, list: &mut WaiterList<W>, now: u32) -> (Waiters<'_, W>, u32) {
        let mut over = WaiterList { first: None, head: NONE, tail: NONE };
        let mut next_over = NEVER;
        if let Some((_, until)) = &list.first {
            if *until <= now {
                over.first = list.first.take();
            } else {
                next_over = *until;
            }
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
            // Unlink here, append there.
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
        (Waiters { list: over, slab: self }, next_over)
    }

    fn release(&mut self, at: u32) -> Option<(W, u32)> {
        let node = self.nodes.get_mut(at as usize)?;
        let next = std::mem::replace(&mut node.next, self.free);
        let waiter = node.waiter.take();
        self.free = at;
        self.taken -= 1;
        waiter.map(|waiter| (waiter, next))
    }
}

/// Waiters handed back, in the order they came; those not taken are dropped.
pub struct Waiters<'a, W> {
    list: WaiterList<W>,
    slab: &'a mut WaiterSlab<W>,
}

impl<W> Waiters<'_, W> {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.first.is_none() && self.list.head == NONE
    }
}

impl<W> Iterator for Waiters<'_, W> {
    type Item = W;

    fn next(&mut self) -> Option<W> {
        if let Some((waiter, _)) = self.list.first.take() {
            return Some(waiter);
        }
        let (waiter, next) = self.slab.release(self.list.head)?;
        self.list.head = next;
        Some(waiter)
    }
}

impl<W> Drop for Waiters<'_, W> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// The end of a list.
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_come_back_in_order_and_their_room_is_used_again() {
        let mut slab = WaiterSlab::new(8);
        for round in 0..3 {
            let mut list = WaiterList::new(round, NEVER);
            for waiter in 1..9 {
                slab.push(&mut list, round + waiter, NEVER).unwrap();
            }
            assert_eq!(slab.push(&mut list, 99, NEVER), Err(99));
            assert_eq!(slab.take_all(&mut list).collect::<Vec<_>>(), (round..round + 9).collect::<Vec<_>>());
            assert_eq!((slab.nodes.len(), slab.taken), (8, 0));
        }
    }

    #[test]
    fn only_the_impatient_leave() {
        let mut slab = WaiterSlab::new(8);
        let mut list = WaiterList::new(0, 10);
        for (waiter, until) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            slab.push(&mut list, waiter, until).unwrap();
        }
        let (over, next) = slab.take_impatient(&mut list, 10);
        assert_eq!((over.collect::<Vec<_>>(), next), (vec![0, 2, 4], 20));
        slab.push(&mut list, 5, 40).unwrap();
        let (over, next) = slab.take_impatient(&mut list, 30);
        assert_eq!((over.collect::<Vec<_>>(), next), (vec![1, 3], 40));
        drop(slab.take_all(&mut list));
        assert_eq!(slab.taken, 0);
    }
}
