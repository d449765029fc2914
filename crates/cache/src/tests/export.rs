//! Export to another process and import there.

use std::time::Duration;

use proptest::prelude::*;
use wire::{RType, Rcode};

use crate::testing::{Ask, Block};
use crate::{AnswerKind, Cache, CacheResult, CacheSpec, Export, ServeStale};

const HIT: CacheResult = CacheResult::Hit { kind: AnswerKind::Success };
const ALL: usize = 1 << 20;

fn name(n: usize) -> Ask {
    Ask::new(&format!("n{n}.example.org"), RType::A)
}

/// A block with `count` answers of 60 s, the first ten of which were used; half a minute later.
fn served(spec: CacheSpec, count: usize) -> Block {
    let mut block = Block::new(spec);
    for n in 0..count {
        block.store(&name(n), &mut name(n).addresses(&[60, 300]));
    }
    for n in 0..10 {
        assert_eq!(block.lookup(&name(n)).lookup, HIT);
    }
    block.wait(30.0);
    block
}

/// The block of another process, `since` seconds after the export.
fn next(export: &[u8], spec: CacheSpec, since: f64) -> (Block, usize) {
    let block = Block::new(spec);
    let export = Export::read(export).expect("it reads");
    let taken = block.partition.import(&block.spec, &export, Duration::from_secs_f64(since), block.now);
    (block, taken)
}

#[test]
fn imported_ttls_continue() {
    let block = served(CacheSpec::default(), 100);
    let export = block.cache.export(block.now, ALL);
    let (next, taken) = next(&export, CacheSpec::default(), 5.0);
    assert_eq!((taken, next.partition.entries(AnswerKind::Success)), (100, 100));
    for n in 0..100 {
        let seen = next.lookup(&name(n));
        assert_eq!((seen.lookup, seen.ttls), (HIT, vec![25, 265]), "{n}");
    }
    assert_eq!(next.lookup(&name(100)).lookup, CacheResult::Miss);
    assert_eq!(next.lookup(&Ask::new("n1.example.org", RType::AAAA)).lookup, CacheResult::Miss);
}

#[test]
fn imported_answers_expire() {
    let stale = || CacheSpec {
        stale: Some(ServeStale { window: Duration::from_secs(100), ..ServeStale::default() }),
        ..CacheSpec::default()
    };
    let export = {
        let block = served(stale(), 20);
        block.cache.export(block.now, ALL)
    };
    for (since, taken, kind) in
        [(29.0, 20, "fresh"), (31.0, 20, "stale"), (131.0, 0, "gone"), (1e9, 0, "gone")]
    {
        let (next, found) = next(&export, stale(), since);
        assert_eq!(found, taken, "{since}");
        let seen = next.lookup(&name(1)).lookup;
        match kind {
            "fresh" => assert_eq!(seen, HIT),
            "stale" => assert_eq!(seen, CacheResult::Stale { kind: AnswerKind::Success, refresh: true }),
            _ => assert_eq!(seen, CacheResult::Miss),
        }
    }
    // Without serve_stale, no expired answer is imported.
    assert_eq!(next(&export, CacheSpec::default(), 31.0).1, 0);
}

#[test]
fn used_answers_are_exported_first() {
    let block = served(CacheSpec::default(), 1000);
    let export = block.cache.export(block.now, 4000);
    assert!(export.len() <= 4000);
    let (next, taken) = next(&export, CacheSpec::default(), 0.0);
    assert!((10..100).contains(&taken), "{taken}");
    for n in 0..10 {
        assert_eq!(next.lookup(&name(n)).lookup, HIT, "{n}");
    }
    assert!(Export::read(&block.cache.export(block.now, 0)).is_some());
}

#[test]
fn import_skips_other_blocks_and_known_keys() {
    let block = served(CacheSpec::default(), 10);
    let export = block.cache.export(block.now, ALL);
    let read = Export::read(&export).expect("it reads");
    let cache = Cache::new(Cache::MIN_BYTES, block.now);
    let other = cache.partition("other.");
    assert_eq!(other.import(&CacheSpec::default(), &read, Duration::ZERO, block.now), 0);
    let fresh = Block::new(CacheSpec::default());
    fresh.store(&name(1), &mut name(1).nxdomain(60, 60));
    assert_eq!(fresh.partition.import(&fresh.spec, &read, Duration::ZERO, fresh.now), 9);
    assert_eq!(fresh.lookup(&name(1)).rcode, Rcode::NXDOMAIN);
}

proptest! {
    #[test]
    fn import_of_any_bytes_is_safe(
        cut in 0usize..6000,
        changes in prop::collection::vec((0usize..6000, any::<u8>()), 0..20),
    ) {
        let block = served(CacheSpec::default(), 50);
        let mut export = block.cache.export(block.now, ALL);
        for (at, octet) in changes {
            if let Some(place) = export.get_mut(at) {
                *place = octet;
            }
        }
        export.truncate(cut);
        let Some(read) = Export::read(&export) else { return Ok(()) };
        let next = Block::new(CacheSpec::default());
        next.partition.import(&next.spec, &read, Duration::ZERO, next.now);
        for n in 0..50 {
            next.lookup(&name(n));
        }
        prop_assert!(next.cache.bytes() <= Cache::MIN_BYTES);
    }
}
