//! A shard's slots, without gaps: the last one moves to where one is taken out.

use std::{mem, ops};

use crate::alloc_size::allocated;
use crate::entry::Entry;

/// Two whole cache lines, which processors fetch together.
#[repr(align(128))]
pub(crate) struct Slot {
    pub(crate) entry: Entry,
    /// Neighbours in the ring.
    pub(crate) before: u32,
    pub(crate) after: u32,
}

/// Slots in pieces of one size: no slot is copied when there are more, and memory goes back when there are fewer.
#[derive(Default)]
pub(crate) struct Slab {
    pieces: Vec<Vec<Slot>>,
    len: usize,
}

impl Slab {
    /// Bytes of heap in use.
    pub(crate) fn bytes(&self) -> usize {
        allocated(self.pieces.capacity() * size_of::<Vec<Slot>>()) + self.pieces.len() * PIECE_BYTES
    }

    /// How many bytes one more slot would make it grow by.
    pub(crate) fn growth(&self) -> usize {
        if !self.is_full() {
            return 0;
        }
        let (now, then) = (self.pieces.capacity(), self.next_pieces());
        PIECE_BYTES + allocated(then * size_of::<Vec<Slot>>()) - allocated(now * size_of::<Vec<Slot>>())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, slot: Slot) {
        if self.is_full() {
            self.pieces.reserve_exact(self.next_pieces() - self.pieces.len());
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        self.pieces[self.len / PIECE].push(slot);
        self.len += 1;
    }

    /// Takes one out and puts the last one in its place. Up to a piece and a half stay vacant, so that one slot to and
    /// fro does not allocate each time.
    pub(crate) fn swap_remove(&mut self, at: usize) -> Slot {
        self.len -= 1;
        let last = self.pieces[self.len / PIECE].swap_remove(self.len % PIECE);
        let taken = if at == self.len { last } else { mem::replace(&mut self[at], last) };
        if self.len + PIECE + PIECE / 2 < self.pieces.len() * PIECE {
            self.pieces.pop();
        }
        taken
    }

    fn is_full(&self) -> bool {
        self.len == self.pieces.len() * PIECE
    }

    fn next_pieces(&self) -> usize {
        if self.pieces.len() < self.pieces.capacity() {
            self.pieces.capacity()
        } else {
            self.pieces.len() + 16
        }
    }
}

impl ops::Index<usize> for Slab {
    type Output = Slot;

    #[inline]
    fn index(&self, at: usize) -> &Slot {
        &self.pieces[at / PIECE][at % PIECE]
    }
}

impl ops::IndexMut<usize> for Slab {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut Slot {
        &mut self.pieces[at / PIECE][at % PIECE]
    }
}

/// Slots to a piece: with their alignment and the allocator's header they fill 8 KiB.
const PIECE: usize = 62;
/// An allocator may lose up to a slot's alignment before it.
const PIECE_BYTES: usize = allocated(PIECE * size_of::<Slot>() + align_of::<Slot>());
