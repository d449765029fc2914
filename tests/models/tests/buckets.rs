//! Workers read a cluster's index while its writer changes it: each sees every entry before or
//! after the change, and never waits.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use models::explore;
use models::index::Index;

/// Three names of one bucket.
const FIRST: usize = 0;
const SECOND: usize = 1;
const THIRD: usize = 2;

fn filled() -> Arc<Index> {
    let index = Arc::new(Index::new(1));
    index.fill(&[(FIRST, 10), (SECOND, 20)]);
    index
}

#[test]
fn bucket_changes_are_atomic() {
    explore(|| {
        let index = filled();
        let changing = {
            let index = index.clone();
            thread::spawn(move || {
                index.set(FIRST, Some(11), || {});
                index.set(THIRD, Some(30), || {});
                index.set(FIRST, None, || {});
            })
        };
        let reading = {
            let index = index.clone();
            thread::spawn(move || {
                let seen = [index.find(FIRST), index.find(FIRST)];
                let order = [Some(10), Some(11), None];
                let [first, then] = seen.map(|one| order.iter().position(|known| *known == one).unwrap());
                assert!(first <= then, "{seen:?}");
            })
        };
        let third = [index.find(THIRD), index.find(THIRD)];
        assert!([[None, None], [None, Some(30)], [Some(30), Some(30)]].contains(&third), "{third:?}");
        // An unchanged entry is visible throughout.
        assert_eq!(index.find(SECOND), Some(20));
        changing.join().unwrap();
        reading.join().unwrap();
        assert_eq!([FIRST, SECOND, THIRD].map(|name| index.find(name)), [None, Some(20), Some(30)]);
    });
}

#[test]
fn readers_do_not_wait() {
    explore(|| {
        let index = filled();
        let is_read = Arc::new(AtomicBool::new(false));
        let changing = {
            let (index, is_read) = (index.clone(), is_read.clone());
            thread::spawn(move || {
                // With a lock shared by both, this would block forever, and loom would fail.
                index.set(FIRST, Some(11), || {
                    while !is_read.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                });
            })
        };
        assert_eq!([FIRST, SECOND, THIRD].map(|name| index.find(name)), [Some(10), Some(20), None]);
        is_read.store(true, Ordering::Release);
        changing.join().unwrap();
        assert_eq!(index.find(FIRST), Some(11));
    });
}

#[test]
fn miss_in_complete_list_is_final() {
    explore(|| {
        // Each name has a bucket of its own.
        let index = Arc::new(Index::new(4));
        let listing = {
            let index = index.clone();
            thread::spawn(move || {
                index.set(FIRST, Some(10), || {});
                index.set(SECOND, Some(20), || {});
                index.list_is_whole();
            })
        };
        // In the order of a real answer: completeness is read before the lookup.
        let is_known = index.is_known();
        let found = [FIRST, SECOND].map(|name| index.find(name));
        assert!(!is_known || found == [Some(10), Some(20)], "{found:?}");
        listing.join().unwrap();
        assert!(index.is_known());
    });
}
