//! The flights of one worker: a slab of bounded size, and a hash index of those that can be joined.

use std::ops::{Index, IndexMut};

use hashbrown::HashTable;

use super::ForwardQuery;
use super::flight::Flight;

/// The table of flights.
#[derive(Debug)]
pub(super) struct FlightTable<W> {
    slots: Vec<Slot<W>>,
    free: Vec<u32>,
    joinable: HashTable<u32>,
    limit: usize,
    /// The generation of a slot that was never used.
    first_generation: u32,
}

#[derive(Debug)]
pub(super) struct Slot<W> {
    generation: u32,
    flight: Option<Flight<W>>,
}

impl<W> FlightTable<W> {
    pub(super) fn new(limit: usize, first_generation: u32) -> Self {
        // Exchange ids have 24 bits for the slot.
        let limit = limit.clamp(1, 1 << 24);
        // Reserved at once: pages are committed as flights use them, and the slab is never moved.
        Self {
            slots: Vec::with_capacity(limit),
            free: Vec::new(),
            joinable: HashTable::new(),
            limit,
            first_generation,
        }
    }

    /// Whether no slot is free.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.limit
    }

    /// Returns the number of flights.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Inserts a flight, which can be joined from now on. The table must not be full.
    pub(super) fn insert(&mut self, flight: Flight<W>) -> u32 {
        let hash = flight.hash;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize].flight = Some(flight);
                slot
            }
            None => {
                self.slots.push(Slot { generation: self.first_generation, flight: Some(flight) });
                (self.slots.len() - 1) as u32
            }
        };
        let slots = &self.slots;
        self.joinable.insert_unique(hash, slot, |&slot| hash_of(slots, slot));
        slot
    }

    /// Returns the joinable flight with the same query.
    pub(super) fn find(&self, hash: u64, ask: &ForwardQuery<'_>, bits: u8) -> Option<u32> {
        let same = |&slot: &u32| {
            self.get(slot).is_some_and(|flight| flight.hash == hash && flight.is_for(ask, bits))
        };
        self.joinable.find(hash, same).copied()
    }

    /// Returns the joinable flight with the same query as the one in `slot`, which is not joinable
    /// any more.
    pub(super) fn find_like(&self, slot: u32) -> Option<u32> {
        let this = self.get(slot)?;
        let same = |&other: &u32| other != slot && self.get(other).is_some_and(|other| other.is_like(this));
        self.joinable.find(this.hash, same).copied()
    }

    /// Makes a flight unjoinable: a later query begins a new one.
    pub(super) fn seal(&mut self, slot: u32) {
        let hash = self[slot].hash;
        if let Ok(entry) = self.joinable.find_entry(hash, |&other| other == slot) {
            entry.remove();
        }
    }

    /// Frees a slot.
    pub(super) fn remove(&mut self, slot: u32) {
        self.seal(slot);
        let place = &mut self.slots[slot as usize];
        place.flight = None;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(slot);
    }

    pub(super) fn generation(&self, slot: u32) -> u32 {
        self.slots[slot as usize].generation
    }

    /// Whether `slot` still has the flight of `generation`.
    pub(super) fn holds(&self, slot: u32, generation: u32) -> bool {
        self.slots
            .get(slot as usize)
            .is_some_and(|place| place.generation == generation && place.flight.is_some())
    }

    /// Returns the first slot in use, from this one on.
    pub(super) fn next_taken(&self, from: u32) -> Option<u32> {
        (from..self.slots.len() as u32).find(|&slot| self.get(slot).is_some())
    }

    /// Returns the slots in use.
    pub(super) fn taken(&self) -> Vec<u32> {
        (0..self.slots.len() as u32).filter(|&slot| self.get(slot).is_some()).collect()
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Flight<W>> {
        self.slots.get(slot as usize)?.flight.as_ref()
    }
}

impl<W> Index<u32> for FlightTable<W> {
    type Output = Flight<W>;

    fn index(&self, slot: u32) -> &Flight<W> {
        self.slots[slot as usize].flight.as_ref().expect("the slot was checked by its caller")
    }
}

impl<W> IndexMut<u32> for FlightTable<W> {
    fn index_mut(&mut self, slot: u32) -> &mut Flight<W> {
        self.slots[slot as usize].flight.as_mut().expect("the slot was checked by its caller")
    }
}

fn hash_of<W>(slots: &[Slot<W>], slot: u32) -> u64 {
    slots[slot as usize].flight.as_ref().map_or(0, |flight| flight.hash)
}
