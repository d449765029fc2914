//! Answers that go over to another process.

use std::time::Duration;

use proptest::prelude::*;
use wire::{RType, Rcode};

use crate::testing::{Ask, Block};
use crate::{AnswerKind, Cache, CacheResult, CacheSpec, Dump, ServeStale};

const HIT: CacheResult = CacheResult::Hit { kind: AnswerKind::Success };
const ALL: usize = 1 << 20;

fn name(n: usize) -> Ask {
    Ask::new(&format!("n{n}.example.org"), RType::A)
}

/// A block with answers of 60 s, of which the first ten were asked for again; half a minute later.
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

/// The block of another process, `since` seconds after the dump.
fn next(dump: &[u8], spec: CacheSpec, since: f64) -> (Block, usize) {
    let block = Block::new(spec);
    let dump = Dump::read(dump).expect("it reads");
    let taken = block.partition.warm(&block.spec, &dump, Duration::from_secs_f64(since), block.now);
    (block, taken)
}

#[test]
fn answers_go_on_where_they_were() {
    let block = served(CacheSpec::default(), 100);
    let dump = block.cache.dump(block.now, ALL);
    let (next, taken) = next(&dump, CacheSpec::default(), 5.0);
    assert_eq!((taken, next.partition.entries(AnswerKind::Success)), (100, 100));
    for n in 0..100 {
        let seen = next.lookup(&name(n));
        assert_eq!((seen.lookup, seen.ttls), (HIT, vec![25, 265]), "{n}");
    }
    assert_eq!(next.lookup(&name(100)).lookup, CacheResult::Miss);
    assert_eq!(next.lookup(&Ask::new("n1.example.org", RType::AAAA)).lookup, CacheResult::Miss);
}

#[test]
fn what_has_ended_is_stale_as_it_would_have_been_or_gone() {
    let stale = || CacheSpec {
        stale: Some(ServeStale { window: Duration::from_secs(100), ..ServeStale::default() }),
        ..CacheSpec::default()
    };
    let dump = {
        let block = served(stale(), 20);
        block.cache.dump(block.now, ALL)
    };
    for (since, taken, kind) in
        [(29.0, 20, "fresh"), (31.0, 20, "stale"), (131.0, 0, "gone"), (1e9, 0, "gone")]
    {
        let (next, found) = next(&dump, stale(), since);
        assert_eq!(found, taken, "{since}");
        let seen = next.lookup(&name(1)).lookup;
        match kind {
            "fresh" => assert_eq!(seen, HIT),
            "stale" => assert_eq!(seen, CacheResult::Stale { kind: AnswerKind::Success, refresh: true }),
            _ => assert_eq!(seen, CacheResult::Miss),
        }
    }
    // Where nothing stale is served, nothing stale is taken.
    assert_eq!(next(&dump, CacheSpec::default(), 31.0).1, 0);
}

#[test]
fn the_used_ones_go_first_and_the_bound_holds() {
    let block = served(CacheSpec::default(), 1000);
    let dump = block.cache.dump(block.now, 4000);
    assert!(dump.len() <= 4000);
    let (next, taken) = next(&dump, CacheSpec::default(), 0.0);
    assert!((10..100).contains(&taken), "{taken}");
    for n in 0..10 {
        assert_eq!(next.lookup(&name(n)).lookup, HIT, "{n}");
    }
    assert!(Dump::read(&block.cache.dump(block.now, 0)).is_some());
}

#[test]
fn what_another_block_knows_or_this_one_knows_better_stays_out() {
    let block = served(CacheSpec::default(), 10);
    let dump = block.cache.dump(block.now, ALL);
    let read = Dump::read(&dump).expect("it reads");
    let cache = Cache::new(Cache::MIN_BYTES, block.now);
    let other = cache.partition("other.");
    assert_eq!(other.warm(&CacheSpec::default(), &read, Duration::ZERO, block.now), 0);
    let fresh = Block::new(CacheSpec::default());
    fresh.store(&name(1), &mut name(1).nxdomain(60, 60));
    assert_eq!(fresh.partition.warm(&fresh.spec, &read, Duration::ZERO, fresh.now), 9);
    assert_eq!(fresh.lookup(&name(1)).rcode, Rcode::NXDOMAIN);
}

proptest! {
    #[test]
    fn no_octets_make_it_panic_or_hold_more_than_its_bound(
        cut in 0usize..6000,
        changes in prop::collection::vec((0usize..6000, any::<u8>()), 0..20),
    ) {
        let block = served(CacheSpec::default(), 50);
        let mut dump = block.cache.dump(block.now, ALL);
        for (at, octet) in changes {
            if let Some(place) = dump.get_mut(at) {
                *place = octet;
            }
        }
        dump.truncate(cut);
        let Some(read) = Dump::read(&dump) else { return Ok(()) };
        let next = Block::new(CacheSpec::default());
        next.partition.warm(&next.spec, &read, Duration::ZERO, next.now);
        for n in 0..50 {
            next.lookup(&name(n));
        }
        prop_assert!(next.cache.bytes() <= Cache::MIN_BYTES);
    }
}
