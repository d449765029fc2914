//! A shard's slots without gaps: removing one moves the last into its place.

use std::{mem, ops};

use crate::alloc_size::allocated;
use crate::entry::Entry;

/// An entry in two whole cache lines, which processors prefetch together.
#[repr(align(128))]
pub(crate) struct Slot {
    pub(crate) entry: Entry,
    /// Neighbours in the ring.
    pub(crate) before: u32,
    pub(crate) after: u32,
}

/// Slots in chunks of one size: growing copies no slot, and shrinking frees memory.
#[derive(Default)]
pub(crate) struct Slab {
    chunks: Vec<Vec<Slot>>,
    len: usize,
}

impl Slab {
    /// Bytes of heap in use.
    pub(crate) fn bytes(&self) -> usize {
        allocated(self.chunks.capacity() * size_of::<Vec<Slot>>()) + self.chunks.len() * CHUNK_BYTES
    }

    /// Bytes that one more slot would add.
    pub(crate) fn growth(&self) -> usize {
        if !self.is_full() {
            return 0;
        }
        let (now, then) = (self.chunks.capacity(), self.next_chunks());
        CHUNK_BYTES + allocated(then * size_of::<Vec<Slot>>()) - allocated(now * size_of::<Vec<Slot>>())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, slot: Slot) {
        if self.is_full() {
            self.chunks.reserve_exact(self.next_chunks() - self.chunks.len());
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[self.len / CHUNK].push(slot);
        self.len += 1;
    }

    /// Removes a slot and moves the last one into its place. Up to one and a half chunks stay
    /// vacant, so that alternating between insertion and removal does not allocate.
    pub(crate) fn swap_remove(&mut self, at: usize) -> Slot {
        self.len -= 1;
        let last = self.chunks[self.len / CHUNK].swap_remove(self.len % CHUNK);
        let taken = if at == self.len { last } else { mem::replace(&mut self[at], last) };
        if self.len + CHUNK + CHUNK / 2 < self.chunks.len() * CHUNK {
            self.chunks.pop();
        }
        taken
    }

    fn is_full(&self) -> bool {
        self.len == self.chunks.len() * CHUNK
    }

    fn next_chunks(&self) -> usize {
        if self.chunks.len() < self.chunks.capacity() {
            self.chunks.capacity()
        } else {
            self.chunks.len() + 16
        }
    }
}

impl ops::Index<usize> for Slab {
    type Output = Slot;

    #[inline]
    fn index(&self, at: usize) -> &Slot {
        &self.chunks[at / CHUNK][at % CHUNK]
    }
}

impl ops::IndexMut<usize> for Slab {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut Slot {
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }
}

/// Slots of a chunk: with their alignment and the allocator's header they fill 8 KiB.
const CHUNK: usize = 62;
/// An allocator may waste up to a slot's alignment before a chunk.
const CHUNK_BYTES: usize = allocated(CHUNK * size_of::<Slot>() + align_of::<Slot>());
