//! The outstanding queries of one socket, by message id. No clock, no I/O.

/// The state of one socket's queries by message id: outstanding, answered or lost.
///
/// Ids are assigned in order, so that an id is reused as late as possible; until then a duplicate
/// reply is recognised.
#[derive(Debug)]
pub struct Outstanding<Q> {
    slots: Box<[Slot<Q>]>,
    next: usize,
    waiting: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot<Q> {
    state: State,
    query: Q,
    at_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unused,
    Waiting,
    Answered,
    Lost,
}

/// The query that a reply's id belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled<Q> {
    /// The first reply to this query, which was due at this time.
    First(Q, u64),
    /// The query was answered before.
    Duplicate,
    /// The query was given up before.
    Late,
    /// No query had this id.
    Stray,
}

impl<Q: Copy + Default> Outstanding<Q> {
    /// Creates the state of at most `ids` queries at once, from 2 to 65,536. With more ids,
    /// duplicates are recognised for longer; fewer ids stay in the processor's cache.
    pub fn new(ids: usize) -> Self {
        let slot = Slot { state: State::Unused, query: Q::default(), at_ns: 0 };
        Self { slots: vec![slot; ids.clamp(2, 1 << 16)].into(), next: 0, waiting: 0 }
    }

    /// Adds a query that was due at `at_ns` and returns its id; `None` if all ids are in use.
    #[inline]
    pub fn begin(&mut self, query: Q, at_ns: u64) -> Option<u16> {
        if self.waiting == self.slots.len() {
            return None;
        }
        while self.slots[self.next].state == State::Waiting {
            self.advance();
        }
        let id = self.next;
        self.slots[id] = Slot { state: State::Waiting, query, at_ns };
        self.waiting += 1;
        self.advance();
        Some(id as u16)
    }

    /// Removes a query that could not be sent and returns its due time; `None` if it is not
    /// outstanding.
    pub fn cancel(&mut self, id: u16) -> Option<u64> {
        let slot = self.slots.get_mut(usize::from(id)).filter(|slot| slot.state == State::Waiting)?;
        slot.state = State::Unused;
        self.waiting -= 1;
        Some(slot.at_ns)
    }

    /// Records a reply and returns its query.
    #[inline]
    pub fn settle(&mut self, id: u16) -> Settled<Q> {
        let Some(slot) = self.slots.get_mut(usize::from(id)) else { return Settled::Stray };
        match slot.state {
            State::Waiting => {
                slot.state = State::Answered;
                self.waiting -= 1;
                Settled::First(slot.query, slot.at_ns)
            }
            State::Answered => Settled::Duplicate,
            State::Lost => Settled::Late,
            State::Unused => Settled::Stray,
        }
    }

    /// Marks every query due before `before_ns` as lost, and calls `lost` with the due time of
    /// each. Scans all ids, so it must not run for every reply.
    pub fn expire(&mut self, before_ns: u64, mut lost: impl FnMut(u64)) {
        if self.waiting == 0 {
            return;
        }
        for slot in &mut self.slots {
            if slot.state == State::Waiting && slot.at_ns < before_ns {
                slot.state = State::Lost;
                self.waiting -= 1;
                lost(slot.at_ns);
            }
        }
    }

    /// Returns the number of outstanding queries.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    fn advance(&mut self) {
        self.next = if self.next + 1 == self.slots.len() { 0 } else { self.next + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn each_reply_is_counted_for_what_it_is() {
        let mut queries = Outstanding::new(4);
        let ids: Vec<_> = (0..4).map(|query| queries.begin(query, 100 + u64::from(query))).collect();
        assert_eq!(ids, [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(queries.begin(4u32, 104), None);
        assert_eq!(queries.settle(1), Settled::First(1, 101));
        assert_eq!(queries.settle(1), Settled::Duplicate);
        let mut lost = Vec::new();
        queries.expire(102, |at| lost.push(at));
        assert_eq!((lost, queries.waiting()), (vec![100], 2));
        assert_eq!(queries.settle(0), Settled::Late);
        assert_eq!(queries.cancel(2), Some(102));
        assert_eq!(queries.cancel(2), None);
        assert_eq!(queries.settle(2), Settled::Stray);
        assert_eq!(queries.settle(9), Settled::Stray);
        // Id 3 is still in use and is skipped.
        let ids: Vec<_> = (5..9).map(|query| queries.begin(query, 200)).collect();
        assert_eq!(ids, [Some(0), Some(1), Some(2), None]);
        assert_eq!(queries.settle(3), Settled::First(3, 103));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map(steps in proptest::collection::vec((0u8..4, 0u16..10), 0..300)) {
            let mut queries = Outstanding::new(8);
            let mut model: HashMap<u16, u32> = HashMap::new();
            for (count, (step, id)) in (0u32..).zip(steps) {
                match step {
                    0 | 1 => match queries.begin(count, u64::from(count)) {
                        Some(id) => prop_assert!(model.insert(id, count).is_none(), "id {} given twice", id),
                        None => prop_assert_eq!(model.len(), 8),
                    },
                    2 => {
                        let first = Settled::First(model.get(&id).copied().unwrap_or(0), model.get(&id).copied().unwrap_or(0).into());
                        let settled = queries.settle(id);
                        prop_assert_eq!(settled == first, model.remove(&id).is_some());
                    }
                    _ => {
                        let before = count.saturating_sub(5);
                        let mut lost = 0;
                        queries.expire(u64::from(before), |_| lost += 1);
                        let held = model.len();
                        model.retain(|_, at| *at >= before);
                        prop_assert_eq!(lost, held - model.len());
                    }
                }
                prop_assert_eq!(queries.waiting(), model.len());
            }
        }
    }
}
