//! The writer thread of the log: takes and writes lines in bulk, and is the only thread that waits for stdout.

use std::io::{self, Write};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::queue::{LogQueue, lock};
use super::ring::Consumer;

/// The thread's state.
pub(super) struct LogWriter<W> {
    queue: Arc<LogQueue>,
    out: W,
    rings: Vec<Consumer>,
    batch: Vec<u8>,
}

impl<W: Write> LogWriter<W> {
    pub(super) fn new(queue: Arc<LogQueue>, out: W) -> Self {
        Self { queue, out, rings: Vec::new(), batch: Vec::new() }
    }

    /// Writes until every handle and every ring is dropped.
    pub(super) fn run(mut self) {
        loop {
            let wanted = self.queue.flushes_wanted.load(Ordering::SeqCst);
            let (written, complete) = self.pass();
            if !complete {
                continue;
            }
            self.queue.flushed(wanted);
            if self.queue.flushes_wanted.load(Ordering::SeqCst) != wanted {
                continue;
            }
            if written > 0 {
                // Collects lines, so that a busy server wakes this thread a hundred times a second and not for each line.
                thread::park_timeout(GATHER);
                continue;
            }
            if Arc::strong_count(&self.queue) == 1 && self.rings.is_empty() {
                return;
            }
            self.queue.asleep.store(true, Ordering::SeqCst);
            if self.is_idle() {
                thread::park_timeout(NAP);
            }
            self.queue.asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Writes the queue and a batch of each ring. Returns the number of bytes, and whether the rings are empty.
    fn pass(&mut self) -> (usize, bool) {
        self.rings.append(&mut lock(&self.queue.new_rings));
        self.batch.clear();
        mem::swap(&mut self.batch, &mut *self.queue.lines());
        let mut written = self.write_batch();
        let mut complete = true;
        for at in 0..self.rings.len() {
            self.batch.clear();
            self.rings[at].drain(&mut self.batch, BATCH_BYTES);
            complete &= self.batch.len() < BATCH_BYTES;
            written += self.write_batch();
        }
        self.rings.retain(|ring| !(ring.is_abandoned() && ring.is_empty()));
        (written, complete)
    }

    /// Writes the batch. Lines that stdout refuses are counted as dropped. Returns the batch's size.
    fn write_batch(&mut self) -> usize {
        let mut rest = self.batch.as_slice();
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(0) => break,
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another process has set the shared terminal or pipe to non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::park_timeout(GATHER),
                Err(_) => break,
            }
        }
        let lost = rest.iter().filter(|&&byte| byte == b'\n').count();
        self.queue.dropped.fetch_add(lost as u64, Ordering::Relaxed);
        self.batch.len()
    }

    fn is_idle(&self) -> bool {
        self.rings.iter().all(Consumer::is_empty)
            && self.queue.lines().is_empty()
            && lock(&self.queue.new_rings).is_empty()
    }
}

/// Maximum size of a write in bytes: a pipe's default capacity (pipe(7)).
const BATCH_BYTES: usize = 64 * 1024;
/// How long lines are collected before a write.
const GATHER: Duration = Duration::from_millis(10);
/// Maximum sleep of the writer.
const NAP: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::captured_log::{CapturedLog, PATIENCE};
    use crate::logger::{Format, Logger};
    use crate::queue::QUEUE_BYTES;

    /// Blocks until its channel is closed.
    struct Stalled(mpsc::Receiver<()>, CapturedLog);

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Writes a few bytes at a time, and fails now and then.
    struct Halting(u8, CapturedLog);

    impl Write for Halting {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            match self.0 % 3 {
                0 => Err(io::ErrorKind::Interrupted.into()),
                1 if self.0 == 1 => Err(io::ErrorKind::WouldBlock.into()),
                _ => self.1.write(&bytes[..bytes.len().min(5)]),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn stalled_stdout_drops_lines() {
        let (go_on, gate) = mpsc::channel();
        let log = CapturedLog::default();
        let logger = Logger::start(Format::Text, Stalled(gate, log.clone())).unwrap();
        let mut ring = logger.ring(4096);
        for _ in 0..10_000 {
            logger.info(None, &"x".repeat(90)); // 98 bytes
            ring.write(|line| line.extend_from_slice(&[b'\n'; 1]));
        }
        let dropped = logger.dropped_lines();
        // Each source holds its bound, and at most as much again that the writer has already taken.
        let (queue, ring_lines) = ((QUEUE_BYTES / 98) as u64, 4096 / 16);
        assert!(20_000 - dropped >= queue + ring_lines, "{dropped}");
        assert!(20_000 - dropped <= 2 * (queue + ring_lines), "{dropped}");
        assert!(!logger.flush(Duration::from_millis(1)));
        drop(go_on);
        assert!(logger.flush(PATIENCE));
        let text = log.read(&logger);
        assert_eq!(text.lines().count() as u64, 20_000 - dropped);
        assert_eq!(logger.dropped_lines(), dropped);
    }

    #[test]
    fn closed_stdout_drops_lines() {
        let logger = Logger::start(Format::Text, Closed).unwrap();
        let mut ring = logger.ring(4096);
        for _ in 0..10 {
            logger.info(None, "x");
            ring.write(|line| line.push(b'\n'));
            assert!(logger.flush(PATIENCE));
        }
        assert_eq!(logger.dropped_lines(), 20);
    }

    #[test]
    fn partial_and_interrupted_writes() {
        let log = CapturedLog::default();
        let logger = Logger::start(Format::Text, Halting(0, log.clone())).unwrap();
        logger.info(None, "a line of some length");
        assert_eq!(log.read(&logger), "[INFO] a line of some length\n");
        assert_eq!(logger.dropped_lines(), 0);
    }

    #[test]
    fn rings_of_ended_threads_are_written() {
        let (logger, log) = CapturedLog::logger(Format::Text);
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let mut ring = logger.ring(1 << 20);
                thread::spawn(move || {
                    for line in 0..1_000 {
                        ring.write(|out| writeln!(out, "{thread} {line}").unwrap());
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let text = log.read(&logger);
        for thread in 0..4 {
            let prefix = format!("{thread} ");
            let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
            assert!(lines.map(|line| line.parse::<usize>().unwrap()).eq(0..1_000));
        }
        assert_eq!(logger.dropped_lines(), 0);
    }

    #[test]
    fn lines_wake_the_writer() {
        struct Lines(mpsc::Sender<Vec<u8>>);
        impl Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (sender, lines) = mpsc::channel();
        let logger = Logger::start(Format::Text, Lines(sender)).unwrap();
        let mut ring = logger.ring(4096);
        for _ in 0..3 {
            ring.write(|line| line.extend_from_slice(b"ring\n"));
            assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), b"ring\n");
            logger.info(None, "queue");
            assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), b"[INFO] queue\n");
        }
        drop((ring, logger));
        // The writer ends and drops its output.
        assert_eq!(lines.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
