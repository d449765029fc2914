//! Workers read entries while the writer changes them: they see whole entries, of the name that
//! they look up.

use loom::sync::Arc;
use loom::thread;
use models::explore;
use models::seqlock::Entries;

const FIRST: u32 = 1;
const SECOND: u32 = 2;

/// Returns entries with a single cell, so that a new entry takes the place of the old one.
fn filled() -> Arc<Entries> {
    let entries = Arc::new(Entries::new(1));
    entries.set(FIRST, Some(10));
    entries
}

#[test]
fn entry_changes_are_atomic() {
    explore(|| {
        let entries = filled();
        let changing = {
            let entries = entries.clone();
            thread::spawn(move || {
                entries.set(FIRST, Some(11));
                entries.set(FIRST, Some(12));
            })
        };
        let seen = [entries.find(FIRST), entries.find(FIRST)];
        let seen: Vec<_> = seen.into_iter().flatten().collect();
        assert!(seen.iter().all(|seen| [[10; 2], [11; 2], [12; 2]].contains(seen)), "{seen:?}");
        assert!(seen.is_sorted(), "{seen:?}");
        changing.join().unwrap();
        assert_eq!(entries.find(FIRST), Some([12; 2]));
    });
}

#[test]
fn replaced_entry_is_not_confused() {
    explore(|| {
        let entries = filled();
        let changing = {
            let entries = entries.clone();
            thread::spawn(move || {
                entries.set(FIRST, None);
                entries.set(SECOND, Some(20));
            })
        };
        let first = entries.find(FIRST);
        assert!([None, Some([10; 2])].contains(&first), "{first:?}");
        let second = entries.find(SECOND);
        assert!([None, Some([20; 2])].contains(&second), "{second:?}");
        assert!(second.is_none() || entries.find(FIRST).is_none(), "it is gone, and found");
        changing.join().unwrap();
        assert_eq!([FIRST, SECOND].map(|name| entries.find(name)), [None, Some([20; 2])]);
    });
}
