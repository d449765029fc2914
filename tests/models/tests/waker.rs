//! No wake-up is missed, and what was queued before one is visible after it.

use std::collections::VecDeque;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use models::mailbox::WakeQueue;
use models::{Waker, explore};

#[test]
fn drain_sees_earlier_queued_items() {
    explore(|| {
        let waker = Arc::new(Waker::new().unwrap());
        // The simplest queue: only the waker orders it.
        let pieces: Arc<[AtomicUsize; 3]> = Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
        let callers = [vec![0, 1], vec![2]].map(|mine| {
            let (waker, pieces) = (waker.clone(), pieces.clone());
            thread::spawn(move || {
                for piece in mine {
                    pieces[piece].store(1, Ordering::Relaxed);
                    waker.wake();
                }
            })
        });
        let mut seen = [0; 3];
        let mut turn = || {
            let woken = waker.is_readable();
            if woken {
                waker.drain();
                seen = std::array::from_fn(|piece| pieces[piece].load(Ordering::Relaxed));
            }
            (woken, seen)
        };
        turn();
        turn();
        for caller in callers {
            caller.join().unwrap();
        }
        // At most one wake-up is left, and it covers everything.
        turn();
        assert_eq!(turn(), (false, [1; 3]));
    });
}

#[test]
fn tasks_are_read_once_in_order() {
    explore(|| {
        let inbox = Arc::new(WakeQueue::new().unwrap());
        let writers = [vec![10, 11], vec![20]].map(|tasks| {
            let inbox = inbox.clone();
            thread::spawn(move || tasks.into_iter().for_each(|task| inbox.post(task)))
        });
        let mut taken = VecDeque::new();
        let mut turn = || {
            let woken = inbox.waker().is_readable();
            if woken {
                // Takes one task at a time: a remaining task must have a wake-up of its own.
                inbox.take(&mut taken, 1);
            }
            woken
        };
        turn();
        turn();
        for writer in writers {
            writer.join().unwrap();
        }
        // At most one wake-up for each task, and one without a task.
        assert!((0..4).any(|_| !turn()), "wake-ups without tasks");
        let of = |writer: i32| taken.iter().copied().filter(move |task| task / 10 == writer);
        assert!(of(1).eq([10, 11]) && of(2).eq([20]), "{taken:?}");
    });
}
