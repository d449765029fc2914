//! A bounded ring of log lines between one thread that answers queries and the thread that writes the log.
//!
//! Pushing takes no lock, makes no system call and allocates nothing. A full ring refuses a line and counts it.
//! Lines are stored in atomic words: a header word with the length, then the bytes, eight to a word.

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Default size of a ring in bytes: 1 MiB, some 8,000 lines.
pub const DEFAULT_BYTES: usize = 1 << 20;

/// Makes a ring of `bytes` bytes, rounded up to a power of two, at least 4 KiB; refused lines add to `dropped`.
pub fn ring(bytes: usize, dropped: Arc<AtomicU64>) -> (Producer, Consumer) {
    of_words((bytes.max(4096) / WORD).next_power_of_two(), dropped)
}

/// Makes a ring of this many words, a power of two.
pub fn of_words(words: usize, dropped: Arc<AtomicU64>) -> (Producer, Consumer) {
    let ring = Arc::new(Ring {
        words: (0..words).map(|_| AtomicU64::new(0)).collect(),
        head: Apart(AtomicUsize::new(0)),
        tail: Apart(AtomicUsize::new(0)),
        dropped,
    });
    (Producer { ring: ring.clone(), tail: 0, head_seen: 0 }, Consumer { ring, head: 0 })
}

#[derive(Debug)]
struct Ring {
    /// Their number is a power of two.
    words: Box<[AtomicU64]>,
    /// Words read since the start; written by the consumer only.
    head: Apart<AtomicUsize>,
    /// Words written since the start; written by the producer only.
    tail: Apart<AtomicUsize>,
    dropped: Arc<AtomicU64>,
}

/// Puts a value on cache lines of its own, since different threads write them; 128 bytes, because processors prefetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// The end that lines are pushed into.
#[derive(Debug)]
pub struct Producer {
    ring: Arc<Ring>,
    tail: usize,
    /// The consumer's position when last loaded: it is loaded only when the ring seems full.
    head_seen: usize,
}

impl Producer {
    /// Appends one line, newline included. `false`: the ring is full, and the line is counted as dropped.
    #[inline]
    pub fn push(&mut self, line: &[u8]) -> bool {
        let words = &*self.ring.words;
        let needed = 1 + line.len().div_ceil(WORD);
        if needed > words.len() - self.tail.wrapping_sub(self.head_seen) {
            self.head_seen = self.ring.head.0.load(Ordering::Acquire);
            if needed > words.len() - self.tail.wrapping_sub(self.head_seen) {
                self.ring.dropped.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        let mask = words.len() - 1;
        let (chunks, rest) = line.as_chunks::<WORD>();
        words[self.tail & mask].store(line.len() as u64, Ordering::Relaxed);
        let start = (self.tail + 1) & mask;
        let (first, second) = chunks.split_at(chunks.len().min(words.len() - start));
        store(&words[start..], first);
        store(words, second);
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            words[(start + chunks.len()) & mask].store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(needed);
        self.ring.tail.0.store(self.tail, Ordering::Release);
        true
    }
}

#[inline]
fn store(words: &[AtomicU64], chunks: &[[u8; WORD]]) {
    for (word, chunk) in words.iter().zip(chunks) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
}

/// The end that lines are taken from.
#[derive(Debug)]
pub struct Consumer {
    ring: Arc<Ring>,
    head: usize,
}

impl Consumer {
    /// Moves lines to `batch` until it has at least `enough` bytes or the ring is empty.
    pub fn drain(&mut self, batch: &mut Vec<u8>, enough: usize) {
        let words = &*self.ring.words;
        let mask = words.len() - 1;
        let tail = self.ring.tail.0.load(Ordering::Acquire);
        while self.head != tail && batch.len() < enough {
            let length = words[self.head & mask].load(Ordering::Relaxed) as usize;
            let end = batch.len() + length;
            for at in 0..length.div_ceil(WORD) {
                let word = words[(self.head + 1 + at) & mask].load(Ordering::Relaxed);
                batch.extend_from_slice(&word.to_ne_bytes());
            }
            batch.truncate(end);
            self.head = self.head.wrapping_add(1 + length.div_ceil(WORD));
        }
        self.ring.head.0.store(self.head, Ordering::Release);
    }

    /// Whether the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.ring.tail.0.load(Ordering::Acquire) == self.head
    }

    /// Whether the producer is dropped: no more lines are added.
    pub fn is_abandoned(&self) -> bool {
        let abandoned = Arc::strong_count(&self.ring) == 1;
        // The producer's drop releases the count, and `strong_count` loads it relaxed. With this fence later loads, such as that of
        // the tail in `is_empty`, see the producer's last push. Without it a weakly ordered processor (ARM) may see the new count and
        // the old tail, and the last lines are lost.
        fence(Ordering::Acquire);
        abandoned
    }
}

const WORD: usize = size_of::<u64>();

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn small() -> (Producer, Consumer, Arc<AtomicU64>) {
        let dropped = Arc::new(AtomicU64::new(0));
        let (producer, consumer) = ring(0, dropped.clone());
        (producer, consumer, dropped)
    }

    #[test]
    fn a_full_ring_refuses_and_counts_lines_until_some_are_taken() {
        let (mut producer, mut consumer, dropped) = small();
        let line = [b'x'; 120]; // 16 words
        let room = 4096 / 128;
        for _ in 0..room {
            assert!(producer.push(&line));
        }
        assert!(!producer.push(&line));
        assert!(!producer.push(b""));
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
        let mut batch = Vec::new();
        consumer.drain(&mut batch, 1);
        assert_eq!(batch, line);
        assert!(producer.push(&line));
        assert!(!producer.push(&line));
        batch.clear();
        consumer.drain(&mut batch, usize::MAX);
        assert_eq!(batch.len(), room * line.len());
        assert!(consumer.is_empty());
        consumer.drain(&mut batch, usize::MAX);
        assert_eq!(batch.len(), room * line.len());
    }

    #[test]
    fn a_line_larger_than_the_ring_is_refused() {
        let (mut producer, _consumer, dropped) = small();
        assert!(!producer.push(&[0; 4096]));
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        assert!(producer.push(&[0; 4088]));
    }

    #[test]
    fn lines_of_a_producer_that_is_gone_can_still_be_taken() {
        let (mut producer, mut consumer, _) = small();
        producer.push(b"last words\n");
        assert!(!consumer.is_abandoned());
        drop(producer);
        assert!(consumer.is_abandoned() && !consumer.is_empty());
        let mut batch = Vec::new();
        consumer.drain(&mut batch, usize::MAX);
        assert_eq!(batch, b"last words\n");
    }

    #[test]
    fn what_one_thread_pushes_another_takes_in_order() {
        let (mut producer, mut consumer, dropped) = small();
        const LINES: u64 = 20_000;
        let pushing = std::thread::spawn(move || {
            for number in 0..LINES {
                producer.push(format!("{number}{}\n", "-".repeat((number % 50) as usize)).as_bytes());
            }
        });
        let mut text = Vec::new();
        while !(consumer.is_abandoned() && consumer.is_empty()) {
            consumer.drain(&mut text, usize::MAX);
            std::thread::yield_now();
        }
        pushing.join().unwrap();
        let text = String::from_utf8(text).unwrap();
        let numbers: Vec<u64> =
            text.lines().map(|line| line.trim_end_matches('-').parse().unwrap()).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b));
        assert_eq!(numbers.len() as u64 + dropped.load(Ordering::Relaxed), LINES);
    }

    proptest! {
        #[test]
        fn the_ring_is_a_bounded_queue_of_lines(steps in proptest::collection::vec((any::<bool>(), 0usize..600), 0..400)) {
            let (mut producer, mut consumer, dropped) = small();
            let mut model: VecDeque<Vec<u8>> = VecDeque::new();
            let (mut used, mut refused) = (0, 0);
            for (at, (push, size)) in steps.into_iter().enumerate() {
                if push {
                    let line: Vec<u8> = (0..size).map(|octet| (octet + at) as u8).collect();
                    let words = 1 + size.div_ceil(WORD);
                    let fits = used + words <= 512;
                    prop_assert_eq!(producer.push(&line), fits);
                    if fits {
                        used += words;
                        model.push_back(line);
                    } else {
                        refused += 1;
                    }
                } else {
                    let (mut batch, mut expected) = (Vec::new(), Vec::new());
                    consumer.drain(&mut batch, size);
                    while expected.len() < size {
                        let Some(line) = model.pop_front() else { break };
                        used -= 1 + line.len().div_ceil(WORD);
                        expected.extend_from_slice(&line);
                    }
                    prop_assert_eq!(batch, expected);
                }
            }
            prop_assert_eq!(dropped.load(Ordering::Relaxed), refused);
        }
    }
}
