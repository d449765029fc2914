//! A table whose entries are one line of the processor's cache each, side by side in memory: what nearly all ask for is read here. It
//! has some of what there is: what is not found here may be elsewhere.

#[cfg(test)]
use std::sync::atomic::AtomicUsize;

use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicU64, fence};

/// Cells by hash. Read by many threads at once, changed by one.
pub(crate) struct Cells<const WORDS: usize> {
    cells: Box<[Cell<WORDS>]>,
    /// How often one was written.
    #[cfg(test)]
    stores: AtomicUsize,
}

/// With seven words, a line of the cache.
#[repr(align(64))]
struct Cell<const WORDS: usize> {
    /// A number that grows by two with each writing, in its upper half, odd meanwhile; below that, the head of what it has.
    head: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// What a cell has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content<const WORDS: usize> {
    /// Any number but 0, which says that there is nothing.
    pub(crate) head: u32,
    pub(crate) words: [u64; WORDS],
}

impl<const WORDS: usize> Cells<WORDS> {
    /// Empty ones; `count` is a power of two.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            cells: (0..count).map(|_| Cell::new()).collect(),
            #[cfg(test)]
            stores: AtomicUsize::new(0),
        }
    }

    /// What is at this hash, whose head `may` be, and that `is` is true of. What is written just now is not waited for, and not found.
    #[inline]
    pub(crate) fn find(
        &self,
        hash: u64,
        may: impl Fn(u32) -> bool,
        is: impl Fn(&Content<WORDS>) -> bool,
    ) -> Option<Content<WORDS>> {
        // Nothing lies behind a cell that was never written: it would have been put there.
        let written = self.near(hash).take_while(|cell| cell.head.load(Relaxed) != 0);
        let mut contents = written.filter_map(|cell| cell.read(&may));
        contents.find(|content| is(content))
    }

    /// Puts this in place of what `is` is true of, if there is room; else nothing that `is` is true of is left.
    pub(crate) fn set(
        &self,
        hash: u64,
        is: impl Fn(&Content<WORDS>) -> bool,
        content: Option<Content<WORDS>>,
    ) {
        let known = |cell: &&Cell<WORDS>| cell.read(|head| head != 0).is_some_and(|content| is(&content));
        let free = |cell: &&Cell<WORDS>| content.is_some() && cell.read(|head| head != 0).is_none();
        let Some(cell) = self.near(hash).find(known).or_else(|| self.near(hash).find(free)) else { return };
        let content = content.unwrap_or(Content { head: 0, words: [0; WORDS] });
        if cell.read(|_| true) != Some(content) {
            self.write(cell, content);
        }
    }

    /// Takes away what `is` is true of.
    pub(crate) fn clear_where(&self, is: impl Fn(&Content<WORDS>) -> bool) {
        for cell in &self.cells {
            if cell.read(|head| head != 0).is_some_and(|content| is(&content)) {
                self.write(cell, Content { head: 0, words: [0; WORDS] });
            }
        }
    }

    fn write(&self, cell: &Cell<WORDS>, content: Content<WORDS>) {
        cell.write(content);
        #[cfg(test)]
        self.stores.fetch_add(1, Relaxed);
    }

    /// Where something of this hash can be.
    #[inline]
    fn near(&self, hash: u64) -> impl Iterator<Item = &Cell<WORDS>> {
        // The length is a power of two: the mask is the remainder, and no index is beyond it.
        let last = self.cells.len() - 1;
        (0..NEAR).map(move |further| &self.cells[(hash as usize).wrapping_add(further) & last])
    }
}

#[cfg(test)]
impl<const WORDS: usize> Cells<WORDS> {
    /// Octets of a cell.
    pub(super) const OCTETS: usize = size_of::<Cell<WORDS>>();

    /// How often a cell was written.
    pub(super) fn stores(&self) -> usize {
        self.stores.load(Relaxed)
    }

    /// How many cells have something.
    pub(super) fn count(&self) -> usize {
        self.cells.iter().filter(|cell| cell.read(|head| head != 0).is_some()).count()
    }
}

impl<const WORDS: usize> Cell<WORDS> {
    fn new() -> Self {
        Self { head: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// What it has, whole; `None` where its head may not be, and while it is written.
    #[inline]
    fn read(&self, may: impl Fn(u32) -> bool) -> Option<Content<WORDS>> {
        // With `Acquire`, for what was written before this head was is not to be older than it.
        let head = self.head.load(Acquire);
        if head & WRITING != 0 || !may(head as u32) {
            return None;
        }
        let words = std::array::from_fn(|word| self.words[word].load(Relaxed));
        // Whoever read a word of a later writing sees its head now.
        fence(Acquire);
        (self.head.load(Relaxed) == head).then_some(Content { head: head as u32, words })
    }

    fn write(&self, content: Content<WORDS>) {
        let times = self.head.load(Relaxed) & !u64::from(u32::MAX);
        self.head.store(times.wrapping_add(WRITING), Relaxed);
        // Before any of the words.
        fence(Release);
        self.words.iter().zip(content.words).for_each(|(word, new)| word.store(new, Relaxed));
        self.head.store(times.wrapping_add(2 * WRITING) | u64::from(content.head), Release);
    }
}

/// The bit of a head that says that its cell is written.
const WRITING: u64 = 1 << 32;
/// So many cells are looked at: with 10,000 in 16,384 cells, one in seventy finds no room where they come in no order, and room is
/// looked for again when it is put again.
pub(super) const NEAR: usize = 8;
