//! The log writer reads whole lines in order from a ring, and every lost line is counted.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use models::explore;
use models::ring::{Consumer, of_words};

/// Each line takes one word for its length and one or two for its text; some pairs do not fit
/// together.
const LINES: [&[u8]; 3] = [b"one\n", b"number two\n", b"three\n"];

/// The numbers of the lines in `text`.
fn numbers(text: &[u8]) -> Vec<usize> {
    let lines = text.split_inclusive(|octet| *octet == b'\n');
    let number = |line: &[u8]| LINES.iter().position(|one| *one == line);
    lines.map(|line| number(line).unwrap_or_else(|| panic!("{line:?} is no line"))).collect()
}

fn start() -> (thread::JoinHandle<Vec<usize>>, Consumer, Arc<AtomicU64>) {
    let dropped = Arc::new(AtomicU64::new(0));
    let (mut producer, consumer) = of_words(4, dropped.clone());
    let kept = move || (0..LINES.len()).filter(|&line| producer.push(LINES[line])).collect();
    (thread::spawn(kept), consumer, dropped)
}

#[test]
fn lines_are_read_or_counted() {
    explore(|| {
        let (pushing, mut consumer, dropped) = start();
        let mut text = Vec::new();
        consumer.drain(&mut text, usize::MAX);
        consumer.drain(&mut text, 1);
        let kept = pushing.join().unwrap();
        consumer.drain(&mut text, usize::MAX);
        assert_eq!(numbers(&text), kept);
        assert_eq!(kept.len() as u64 + dropped.load(Ordering::Relaxed), LINES.len() as u64);
        assert!(consumer.is_empty());
    });
}

#[test]
fn no_line_after_abandoned_and_empty() {
    explore(|| {
        let (pushing, mut consumer, _dropped) = start();
        let mut text = Vec::new();
        // In the order of the log writer: drains, checks both conditions, and drops the ring if
        // both hold.
        consumer.drain(&mut text, usize::MAX);
        let over = consumer.is_abandoned() && consumer.is_empty();
        let before = text.len();
        let kept = pushing.join().unwrap();
        consumer.drain(&mut text, usize::MAX);
        assert!(!over || text.len() == before, "a line arrived after the end");
        assert_eq!(numbers(&text), kept);
        assert!(consumer.is_abandoned() && consumer.is_empty());
    });
}
