//! Who has how much in flight, so that a full table sheds the newest work of whoever has most.
//!
//! A client is known while something of it is in flight, so the room is bounded by the flights'. Entering, leaving and
//! finding a client's newest flight cost the same however many there are; who has most is looked for only when something
//! must be shed, over one array of numbers.

use hashbrown::HashMap;

/// The flights of each client, newest first: lists through a table of links by slot.
#[derive(Debug)]
pub(super) struct Askers {
    /// Places in the two below.
    clients: HashMap<u128, u32, foldhash::quality::RandomState>,
    counts: Vec<u32>,
    lists: Vec<List>,
    free: Vec<u32>,
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct List {
    asker: u128,
    newest: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
    /// [`NONE`]: not in any list.
    client: u32,
}

impl Askers {
    pub(super) fn new() -> Self {
        Self {
            clients: HashMap::default(),
            counts: Vec::new(),
            lists: Vec::new(),
            free: Vec::new(),
            links: Vec::new(),
        }
    }

    /// The flight in `slot` is this client's, and its newest.
    pub(super) fn enter(&mut self, slot: u32, asker: u128) {
        self.leave(slot);
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, UNLINKED);
        }
        let client = match self.clients.get(&asker) {
            Some(&client) => client,
            None => self.add(asker),
        };
        let older = std::mem::replace(&mut self.lists[client as usize].newest, slot);
        if let Some(older) = self.links.get_mut(older as usize) {
            older.newer = slot;
        }
        self.links[slot as usize] = Link { newer: NONE, older, client };
        self.counts[client as usize] += 1;
    }

    /// The flight in `slot` is over.
    pub(super) fn leave(&mut self, slot: u32) {
        let Some(link) = self.links.get_mut(slot as usize).filter(|link| link.client != NONE) else { return };
        let Link { newer, older, client } = std::mem::replace(link, UNLINKED);
        match self.links.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.lists[client as usize].newest = older,
        }
        if let Some(older) = self.links.get_mut(older as usize) {
            older.newer = newer;
        }
        self.counts[client as usize] -= 1;
        if self.counts[client as usize] == 0 {
            self.clients.remove(&self.lists[client as usize].asker);
            self.free.push(client);
        }
    }

    /// The newest flight of whoever has most, if that is somebody else with at least two more than `asker`: what is shed
    /// then is not asked for again by the next of nearly as many.
    pub(super) fn newest_of_most(&self, asker: u128) -> Option<u32> {
        let ours = self.clients.get(&asker).map_or(0, |&client| self.counts[client as usize]);
        let most = self.counts.iter().copied().max().filter(|&most| most >= ours + 2)?;
        let whose = self.counts.iter().position(|&count| count == most)?;
        Some(self.lists[whose].newest)
    }

    fn add(&mut self, asker: u128) -> u32 {
        let list = List { asker, newest: NONE };
        let client = match self.free.pop() {
            Some(client) => {
                self.lists[client as usize] = list;
                client
            }
            None => {
                self.lists.push(list);
                self.counts.push(0);
                (self.lists.len() - 1) as u32
            }
        };
        self.clients.insert(asker, client);
        client
    }
}

const NONE: u32 = u32::MAX;
const UNLINKED: Link = Link { newer: NONE, older: NONE, client: NONE };

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_gives_way_is_the_newest_of_whoever_has_two_more() {
        let mut askers = Askers::new();
        for (slot, client) in [(0, 1), (1, 1), (2, 1), (3, 2)] {
            askers.enter(slot, client);
        }
        assert_eq!(askers.newest_of_most(2), Some(2));
        assert_eq!(askers.newest_of_most(3), Some(2));
        assert_eq!(askers.newest_of_most(1), None, "its own");
        askers.leave(2);
        assert_eq!(askers.newest_of_most(2), None, "one more is not enough");
        assert_eq!(askers.newest_of_most(3), Some(1));
    }

    proptest! {
        #[test]
        fn lists_agree_with_a_model(steps in proptest::collection::vec((any::<bool>(), 0u32..30, 0u128..5), 1..300)) {
            let (mut askers, mut model) = (Askers::new(), Vec::<(u32, u128)>::new());
            for (enter, slot, client) in steps {
                model.retain(|&(known, _)| known != slot);
                if enter {
                    askers.enter(slot, client);
                    model.push((slot, client));
                } else {
                    askers.leave(slot);
                }
                for client in 0..5 {
                    let of: Vec<u32> =
                        model.iter().filter(|&&(_, whose)| whose == client).map(|&(slot, _)| slot).collect();
                    let known = askers.clients.get(&client).map(|&at| at as usize);
                    let count = known.map_or(0, |at| askers.counts[at] as usize);
                    let newest = known.map(|at| askers.lists[at].newest);
                    prop_assert_eq!((count, newest), (of.len(), of.last().copied()));
                }
                prop_assert!(askers.lists.len() <= 5 && askers.clients.len() <= 5);
            }
        }
    }
}
