//! The part of the cache behind one lock: a slab of entries, a hash index, a ring for each
//! partition and kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::AnswerKind;
use crate::alloc_size::allocated;
use crate::entry::{CacheKey, Entry, Freshness};
use crate::export::ExportWriter;
use crate::hash_index::HashIndex;
use crate::slab::{Slab, Slot};

/// Counters of a partition over all shards.
#[derive(Default)]
pub(crate) struct PartitionCounts {
    /// Entries of each kind, including those about to be inserted.
    entries: [AtomicUsize; 2],
    evictions: [AtomicU64; 2],
    /// Milliseconds after expiry in which answers may be served: the block's setting, updated at
    /// each store.
    window: AtomicU64,
}

impl PartitionCounts {
    pub(crate) fn entries(&self, kind: AnswerKind) -> usize {
        self.entries[kind as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn evictions(&self, kind: AnswerKind) -> u64 {
        self.evictions[kind as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn set_window(&self, window: u64) {
        if self.window.load(Ordering::Relaxed) != window {
            self.window.store(window, Ordering::Relaxed);
        }
    }

    /// Reserves an entry unless `capacity` are reserved.
    pub(crate) fn reserve(&self, kind: AnswerKind, capacity: usize) -> bool {
        let entries = &self.entries[kind as usize];
        let more = |taken| (taken < capacity).then_some(taken + 1);
        entries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Frees a reserved entry.
    pub(crate) fn release(&self, kind: AnswerKind) {
        self.entries[kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The entries behind one lock, limited in bytes.
pub(crate) struct Shard {
    bound: usize,
    index: HashIndex,
    slots: Slab,
    /// Bytes of the entries' own allocations.
    data: usize,
    /// By partition number.
    parts: Vec<PartitionPart>,
    /// The slot at which the next sweep continues.
    cursor: usize,
}

/// One partition's entries in this shard.
#[derive(Default)]
struct PartitionPart {
    counts: Option<Arc<PartitionCounts>>,
    rings: [Ring; 2],
}

/// A ring of entries of one kind, for second-chance (clock) eviction; new entries are inserted
/// behind the hand.
struct Ring {
    hand: u32,
    bytes: usize,
}

impl Default for Ring {
    fn default() -> Self {
        Self { hand: NONE, bytes: 0 }
    }
}

impl Shard {
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            bound,
            index: HashIndex::default(),
            slots: Slab::default(),
            data: 0,
            parts: Vec::new(),
            cursor: 0,
        }
    }

    /// Bytes of heap in use.
    pub(crate) fn bytes(&self) -> usize {
        let parts = allocated(self.parts.capacity() * size_of::<PartitionPart>());
        self.data + self.index.bytes() + self.slots.bytes() + parts
    }

    /// Returns slot and entry of a key.
    #[inline]
    pub(crate) fn find(&mut self, key: &CacheKey<'_>) -> Option<(usize, &mut Entry)> {
        let at = self.index.find(key.hash, |at| self.slots[at as usize].entry.is(key))? as usize;
        Some((at, &mut self.slots[at].entry))
    }

    /// Inserts an entry that was reserved. If the entry does not fit, releases the reservation and
    /// returns false.
    ///
    /// The entry's key must be absent.
    pub(crate) fn insert(&mut self, counts: &Arc<PartitionCounts>, entry: Entry, now: u64) -> bool {
        let kind = entry.kind();
        let partition = entry.partition as usize;
        if self.parts.len() <= partition {
            self.parts.reserve_exact(partition + 1 - self.parts.len());
            self.parts.resize_with(partition + 1, PartitionPart::default);
        }
        if !self.make_room(allocated(entry.outside()), now) {
            counts.release(kind);
            return false;
        }
        let part = &mut self.parts[partition];
        if !part.counts.as_ref().is_some_and(|known| Arc::ptr_eq(known, counts)) {
            part.counts = Some(Arc::clone(counts));
        }
        part.rings[kind as usize].bytes += cost(&entry);
        self.data += allocated(entry.outside());
        let at = self.slots.len() as u32;
        self.index.insert(entry.hash, at);
        self.slots.push(Slot { entry, before: at, after: at });
        self.enter_ring(at, partition, kind);
        true
    }

    /// Removes an entry and its reservation.
    pub(crate) fn remove(&mut self, at: usize) -> Entry {
        let entry = self.take(at);
        if let Some(counts) = self.parts.get(entry.partition as usize).and_then(|part| part.counts.as_ref()) {
            counts.release(entry.kind());
        }
        entry
    }

    /// Evicts an entry of the partition and kind; its reservation passes to the caller.
    pub(crate) fn take_place(&mut self, partition: u32, kind: AnswerKind, now: u64) -> bool {
        let Some(at) = self.choose(partition as usize, kind, now) else { return false };
        self.count_eviction(at, now);
        self.take(at);
        true
    }

    /// Removes up to `budget` entries of a partition; returns how many.
    pub(crate) fn purge(&mut self, partition: u32, budget: usize) -> usize {
        let mut removed = 0;
        while removed < budget {
            let Some(part) = self.parts.get_mut(partition as usize) else { break };
            let Some(ring) = part.rings.iter().find(|ring| ring.hand != NONE) else {
                part.counts = None;
                break;
            };
            let at = ring.hand as usize;
            self.remove(at);
            removed += 1;
        }
        self.give_back();
        removed
    }

    /// Frees dead entries in up to `budget` slots, from where the last sweep ended.
    pub(crate) fn sweep(&mut self, now: u64, budget: usize) -> SweepResult {
        let mut at = self.cursor.min(self.slots.len());
        let (mut looked_at, mut freed) = (0, 0);
        while looked_at < budget && at < self.slots.len() {
            looked_at += 1;
            if self.is_dead(at, now) {
                // The last entry has moved to this slot (`swap_remove`), which is examined again.
                self.remove(at);
                freed += 1;
            } else {
                at += 1;
            }
        }
        let done = at == self.slots.len();
        self.cursor = if done { 0 } else { at };
        self.give_back();
        SweepResult { looked_at, freed, done }
    }

    /// Exports the entries in `count` slots, beginning with slot `from`, with a visited bit equal
    /// to `used`. Returns the next slot, if there are more.
    pub(crate) fn copy(
        &self,
        from: usize,
        count: usize,
        used: bool,
        now: u64,
        to: &mut ExportWriter,
    ) -> Option<usize> {
        let end = from.saturating_add(count).min(self.slots.len());
        for at in from..end {
            let entry = &self.slots[at].entry;
            if entry.is_used() == used && !self.is_dead(at, now) && !to.push(entry, now) {
                return None;
            }
        }
        (end < self.slots.len()).then_some(end)
    }

    /// Frees the tables of an empty shard. Not done on each removal, because the next answer would
    /// allocate them again.
    fn give_back(&mut self) {
        if self.slots.len() == 0 {
            self.index = HashIndex::default();
            self.slots = Slab::default();
        }
    }

    /// Evicts until one more entry with `need` bytes of data fits; false if that is impossible.
    fn make_room(&mut self, need: usize, now: u64) -> bool {
        while self.bytes() + need + self.index.growth() + self.slots.growth() > self.bound {
            let used = |part: &PartitionPart| part.rings[0].bytes + part.rings[1].bytes;
            let largest = (0..self.parts.len()).max_by_key(|&at| used(&self.parts[at]));
            let Some(partition) = largest.filter(|&at| used(&self.parts[at]) > 0) else { return false };
            let [success, denial] = &self.parts[partition].rings;
            let kind = if success.bytes >= denial.bytes { AnswerKind::Success } else { AnswerKind::Denial };
            let Some(at) = self.choose(partition, kind, now) else { return false };
            self.count_eviction(at, now);
            self.remove(at);
        }
        true
    }

    /// Chooses by second chance: the first entry from the hand on that is dead or was not visited
    /// since the hand passed.
    fn choose(&mut self, partition: usize, kind: AnswerKind, now: u64) -> Option<usize> {
        let mut at = self.parts.get(partition)?.rings[kind as usize].hand;
        if at == NONE {
            return None;
        }
        for _ in 0..MAX_CHANCES {
            if self.is_dead(at as usize, now) || !self.slots[at as usize].entry.take_visit() {
                break;
            }
            at = self.slots[at as usize].after;
        }
        self.parts[partition].rings[kind as usize].hand = at;
        Some(at as usize)
    }

    fn is_dead(&self, at: usize, now: u64) -> bool {
        let entry = &self.slots[at].entry;
        let counts = self.parts.get(entry.partition as usize).and_then(|part| part.counts.as_ref());
        let window = counts.map_or(0, |counts| counts.window.load(Ordering::Relaxed));
        entry.state(now, window) == Freshness::Dead
    }

    /// Counts an eviction, unless the entry was too old even for serve_stale.
    fn count_eviction(&self, at: usize, now: u64) {
        let entry = &self.slots[at].entry;
        let counts = self.parts.get(entry.partition as usize).and_then(|part| part.counts.as_ref());
        if let Some(counts) = counts
            && !self.is_dead(at, now)
        {
            counts.evictions[entry.kind() as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take(&mut self, at: usize) -> Entry {
        self.leave_ring(at);
        let Slot { entry, .. } = self.slots.swap_remove(at);
        self.index.remove(entry.hash, at as u32);
        if at < self.slots.len() {
            self.follow(at);
        }
        self.data -= allocated(entry.outside());
        entry
    }

    /// Updates index, ring and hand after the last slot moved to `at`.
    fn follow(&mut self, at: usize) {
        let (from, to) = (self.slots.len() as u32, at as u32);
        let Slot { entry, before, after } = &self.slots[at];
        let (before, after) = (*before, *after);
        self.index.moved(entry.hash, from, to);
        let hand = &mut self.parts[entry.partition as usize].rings[entry.kind() as usize].hand;
        if *hand == from {
            *hand = to;
        }
        // Alone in its ring, it is its own neighbour.
        let own = |at: u32| if at == from { to } else { at } as usize;
        self.slots[own(before)].after = to;
        self.slots[own(after)].before = to;
    }

    fn enter_ring(&mut self, at: u32, partition: usize, kind: AnswerKind) {
        let hand = self.parts[partition].rings[kind as usize].hand;
        let (before, after) = if hand == NONE {
            self.parts[partition].rings[kind as usize].hand = at;
            (at, at)
        } else {
            (self.slots[hand as usize].before, hand)
        };
        self.slots[at as usize].before = before;
        self.slots[at as usize].after = after;
        self.slots[before as usize].after = at;
        self.slots[after as usize].before = at;
    }

    fn leave_ring(&mut self, at: usize) {
        let Slot { entry, before, after, .. } = &self.slots[at];
        let (before, after) = (*before, *after);
        let ring = &mut self.parts[entry.partition as usize].rings[entry.kind() as usize];
        ring.bytes -= cost(entry);
        if ring.hand as usize == at {
            ring.hand = if after as usize == at { NONE } else { after };
        }
        self.slots[before as usize].after = after;
        self.slots[after as usize].before = before;
    }
}

/// Result of a sweep of one shard: entries examined and freed.
pub(crate) struct SweepResult {
    pub(crate) looked_at: usize,
    pub(crate) freed: usize,
    pub(crate) done: bool,
}

/// Returns the bytes that an entry takes in its shard, for comparing partitions.
fn cost(entry: &Entry) -> usize {
    size_of::<Slot>() + allocated(entry.outside())
}

const NONE: u32 = u32::MAX;

/// Visited entries that the hand passes before it evicts one anyway: limits the time that the lock
/// is held.
const MAX_CHANCES: usize = 64;

#[cfg(test)]
mod tests;
