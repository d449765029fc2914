//! Equal misses of two workers: each is answered once, no worker takes another's claim, and no
//! claim is left.
//!
//! The steps of a worker's outputs (`crates/listen/src/egress.rs`) are repeated here; registry and
//! mailboxes are the real ones.

use std::collections::VecDeque;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use models::explore;
use models::flights::FlightRegistry;
use models::mailbox::WakeQueue;

/// The key of the only query.
const KEY: u64 = 7;
/// A worker without a query.
const NO_WORKER: usize = 9;

struct World {
    flights: FlightRegistry,
    inboxes: [WakeQueue<()>; 2],
    answered: AtomicUsize,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            flights: FlightRegistry::new(),
            inboxes: [(), ()].map(|()| WakeQueue::new().expect("no kernel is asked")),
            answered: AtomicUsize::new(0),
        })
    }

    /// Claims the flight for this worker: true if the claim succeeds; otherwise sends the task to
    /// the flight's owner.
    fn ask(&self, worker: usize) -> bool {
        match self.flights.claim(KEY, worker) {
            Some(other) => {
                self.inboxes[other].post(());
                false
            }
            None => true,
        }
    }

    /// Ends the flight and answers all its waiters.
    fn finish(&self, worker: usize, waiters: usize) {
        self.flights.release(KEY, worker);
        self.answered.fetch_add(waiters, Ordering::Relaxed);
    }

    /// `Worker::read_letters`: tasks in the mailbox make one flight, which is unclaimed.
    fn read_letters(&self, worker: usize) {
        let mut tasks = VecDeque::new();
        if self.inboxes[worker].waker().is_readable() {
            self.inboxes[worker].take(&mut tasks, usize::MAX);
        }
        if !tasks.is_empty() {
            self.finish(worker, tasks.len());
        }
    }

    /// After all threads: reads the tasks left in the mailboxes, as their wakers demand.
    fn end(&self, asked: usize) {
        self.read_letters(0);
        self.read_letters(1);
        assert_eq!(self.answered.load(Ordering::Relaxed), asked, "answers");
        assert_eq!(self.flights.claim(KEY, NO_WORKER), None, "a claim is left");
    }
}

#[test]
fn equal_misses_are_answered_once() {
    explore(|| {
        let world = World::new();
        let workers = [0, 1].map(|worker| {
            let world = world.clone();
            thread::spawn(move || {
                if world.ask(worker) {
                    world.finish(worker, 1);
                }
                world.read_letters(worker);
            })
        });
        for worker in workers {
            worker.join().unwrap();
        }
        world.end(2);
    });
}

#[test]
fn late_task_takes_no_claim() {
    explore(|| {
        let world = World::new();
        // The first worker has the query in flight, and a task of the second worker waits there.
        assert!(world.ask(0) && !world.ask(1));
        let first = thread::spawn({
            let world = world.clone();
            move || {
                world.finish(0, 1);
                world.read_letters(0);
            }
        });
        // Meanwhile the second worker receives the query again.
        if world.ask(1) {
            assert_eq!(world.flights.claim(KEY, NO_WORKER), Some(1), "the claim is gone");
            world.finish(1, 1);
        }
        first.join().unwrap();
        world.end(3);
    });
}

#[test]
fn restarted_worker_leaves_no_claim() {
    explore(|| {
        let world = World::new();
        assert!(world.ask(0));
        let lost = thread::spawn({
            let world = world.clone();
            // The worker's own query is lost with its loop; its tasks are not.
            move || {
                world.flights.release_all(0);
                world.read_letters(0);
            }
        });
        if world.ask(1) {
            world.finish(1, 1);
        }
        lost.join().unwrap();
        // The restarted worker has nothing in flight, whatever tasks it did not read.
        assert!(world.ask(1), "a claim of lost flights is left");
        world.finish(1, 1);
        world.end(2);
    });
}
