//! A fair queue of clients' queries with all subqueries answered. One reply of an upstream may make
//! thousands ready, each to be resumed through its block's middleware: a worker resumes some at a
//! time, round robin over clients.

use std::collections::{HashMap, VecDeque};

/// A queue for each client, served round robin.
pub(crate) struct FairQueue<Q> {
    of: HashMap<u128, VecDeque<Q>>,
    /// Clients with queries, in the order in which they are served.
    turns: VecDeque<u128>,
    count: usize,
}

impl<Q> FairQueue<Q> {
    /// Creates an empty queue.
    pub(crate) fn new() -> Self {
        Self { of: HashMap::new(), turns: VecDeque::new(), count: 0 }
    }

    /// Adds a query of the client with this number.
    ///
    /// # Errors
    /// The query, if this client has [`MOST_OF_ONE`], one while memory is `short`, or any while the
    /// queue is full.
    pub(crate) fn push(&mut self, number: u128, query: Q, short: bool) -> Result<(), Q> {
        let most = if short { 1 } else { MOST_OF_ONE };
        let of_one = self.of.get(&number).map_or(0, VecDeque::len);
        if of_one >= most || (of_one > 0 && self.count >= MOST_OF_ALL) {
            return Err(query);
        }
        if of_one == 0 {
            self.turns.push_back(number);
        }
        self.of.entry(number).or_default().push_back(query);
        self.count += 1;
        Ok(())
    }

    /// Takes the oldest query of the next client.
    pub(crate) fn pop(&mut self) -> Option<Q> {
        let number = self.turns.pop_front()?;
        let queue = self.of.get_mut(&number)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.of.remove(&number);
        } else {
            self.turns.push_back(number);
        }
        self.count -= 1;
        next
    }

    /// Whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

/// The most queries of one client, some 1.3 KiB each.
const MOST_OF_ONE: usize = 4_096;
/// The most queries of all clients together; a client without any may add one beyond this.
const MOST_OF_ALL: usize = 5_120;

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue with texts as queries.
    type Words = FairQueue<&'static str>;

    #[test]
    fn clients_take_turns_and_each_is_served_in_its_order() {
        let mut ready = Words::new();
        let queries = [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (3, "c1"), (3, "c2")];
        for (number, query) in queries {
            assert!(ready.push(number, query, false).is_ok());
        }
        let order: Vec<&str> = std::iter::from_fn(|| ready.pop()).collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "c2", "a3"]);
        assert!(ready.is_empty());
    }

    /// One client has a limited number of entries, and a client without entries has room.
    #[test]
    fn quota_leaves_room_for_new_client() {
        let mut ready = Words::new();
        let all = |ready: &mut Words, number| {
            (0..10_000).take_while(|_| ready.push(number, "", false).is_ok()).count()
        };
        assert_eq!(all(&mut ready, 1), MOST_OF_ONE);
        assert_eq!(all(&mut ready, 2), MOST_OF_ALL - MOST_OF_ONE);
        assert_eq!((all(&mut ready, 3), all(&mut ready, 4)), (1, 1));
        // While memory is short a client has one.
        let mut ready = Words::new();
        let [first, second, other] = [1, 1, 2].map(|number| ready.push(number, "", true).is_ok());
        assert_eq!([first, second, other], [true, false, true]);
        assert_eq!(std::iter::from_fn(|| ready.pop()).count(), 2);
    }
}
