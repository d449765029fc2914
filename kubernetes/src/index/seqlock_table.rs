//! A hash table of seqlock-protected slots of one cache line each, contiguous in memory. It is a
//! cache: an entry that is not found here may exist in another table.

#[cfg(test)]
use std::sync::atomic::AtomicUsize;

use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicU64, fence};

/// Slots by hash. Many threads read the table; one thread writes it.
pub(crate) struct SeqlockTable<const WORDS: usize> {
    slots: Box<[Slot<WORDS>]>,
    /// Number of writes.
    #[cfg(test)]
    stores: AtomicUsize,
}

/// A cache line, with seven words.
#[repr(align(64))]
struct Slot<const WORDS: usize> {
    /// Upper half: sequence number, which grows by two with each write and is odd during it. Lower
    /// half: head of the content.
    head: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Content of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotContent<const WORDS: usize> {
    /// Not 0, which marks an empty slot.
    pub(crate) head: u32,
    pub(crate) words: [u64; WORDS],
}

impl<const WORDS: usize> SeqlockTable<WORDS> {
    /// Creates `count` empty slots, a power of two.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            slots: (0..count).map(|_| Slot::new()).collect(),
            #[cfg(test)]
            stores: AtomicUsize::new(0),
        }
    }

    /// Returns the content at a hash for which `may` accepts the head and `is` the content. Slots
    /// that are being written are skipped without waiting.
    #[inline]
    pub(crate) fn find(
        &self,
        hash: u64,
        may: impl Fn(u32) -> bool,
        is: impl Fn(&SlotContent<WORDS>) -> bool,
    ) -> Option<SlotContent<WORDS>> {
        // A slot that was never written ends the probe: an entry would have been put there.
        let written = self.probe(hash).take_while(|slot| slot.head.load(Relaxed) != 0);
        let mut contents = written.filter_map(|slot| slot.read(&may));
        contents.find(|content| is(content))
    }

    /// Replaces the content for which `is` holds. Without a free slot, no such content remains.
    pub(crate) fn set(
        &self,
        hash: u64,
        is: impl Fn(&SlotContent<WORDS>) -> bool,
        content: Option<SlotContent<WORDS>>,
    ) {
        let known = |slot: &&Slot<WORDS>| slot.read(|head| head != 0).is_some_and(|content| is(&content));
        let free = |slot: &&Slot<WORDS>| content.is_some() && slot.read(|head| head != 0).is_none();
        let Some(slot) = self.probe(hash).find(known).or_else(|| self.probe(hash).find(free)) else { return };
        let content = content.unwrap_or(SlotContent { head: 0, words: [0; WORDS] });
        if slot.read(|_| true) != Some(content) {
            self.write(slot, content);
        }
    }

    /// Clears all slots for which `is` holds.
    pub(crate) fn clear_where(&self, is: impl Fn(&SlotContent<WORDS>) -> bool) {
        for slot in &self.slots {
            if slot.read(|head| head != 0).is_some_and(|content| is(&content)) {
                self.write(slot, SlotContent { head: 0, words: [0; WORDS] });
            }
        }
    }

    fn write(&self, slot: &Slot<WORDS>, content: SlotContent<WORDS>) {
        slot.write(content);
        #[cfg(test)]
        self.stores.fetch_add(1, Relaxed);
    }

    /// Returns the slots where a hash can be (linear probing).
    #[inline]
    fn probe(&self, hash: u64) -> impl Iterator<Item = &Slot<WORDS>> {
        // The length is a power of two: the mask is the remainder, and all indices are in bounds.
        let last = self.slots.len() - 1;
        (0..PROBE_LENGTH).map(move |further| &self.slots[(hash as usize).wrapping_add(further) & last])
    }
}

#[cfg(test)]
impl<const WORDS: usize> SeqlockTable<WORDS> {
    /// Size of a slot.
    pub(super) const SLOT_BYTES: usize = size_of::<Slot<WORDS>>();

    /// Returns the number of writes.
    pub(super) fn stores(&self) -> usize {
        self.stores.load(Relaxed)
    }

    /// Returns the number of occupied slots.
    pub(super) fn count(&self) -> usize {
        self.slots.iter().filter(|slot| slot.read(|head| head != 0).is_some()).count()
    }
}

impl<const WORDS: usize> Slot<WORDS> {
    fn new() -> Self {
        Self { head: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Returns a consistent content; `None` if `may` refuses the head, and during a write.
    #[inline]
    fn read(&self, may: impl Fn(u32) -> bool) -> Option<SlotContent<WORDS>> {
        // Acquire: the words read below must not be older than this head.
        let head = self.head.load(Acquire);
        if head & WRITING != 0 || !may(head as u32) {
            return None;
        }
        let words = std::array::from_fn(|word| self.words[word].load(Relaxed));
        // If a word of a later write was read, the head of that write is visible now.
        fence(Acquire);
        (self.head.load(Relaxed) == head).then_some(SlotContent { head: head as u32, words })
    }

    fn write(&self, content: SlotContent<WORDS>) {
        let sequence = self.head.load(Relaxed) & !u64::from(u32::MAX);
        self.head.store(sequence.wrapping_add(WRITING), Relaxed);
        // The odd sequence number is visible before any of the words.
        fence(Release);
        self.words.iter().zip(content.words).for_each(|(word, new)| word.store(new, Relaxed));
        self.head.store(sequence.wrapping_add(2 * WRITING) | u64::from(content.head), Release);
    }
}

/// Bit of the sequence number that marks a write in progress.
const WRITING: u64 = 1 << 32;
/// Slots that are probed: with 10,000 entries in 16,384 slots, one in seventy finds no slot, until
/// its next update.
pub(super) const PROBE_LENGTH: usize = 8;
