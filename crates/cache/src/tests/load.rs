//! Limits, partitions, eviction and threads.

use std::thread;

use proptest::prelude::*;
use wire::{RType, Rcode, Section};

use crate::testing::{Ask, Block, Record, start};
use crate::{AnswerKind, Cache, CacheResult, CacheSpec, ServeStale, StoreLimits, StoreResult};

fn ask(number: u32) -> Ask {
    Ask::new(&format!("host-{number}.example.org"), RType::A)
}

fn capacity(success: usize, denial: usize) -> CacheSpec {
    let default = CacheSpec::default();
    CacheSpec {
        success: StoreLimits { capacity: success, ..default.success },
        denial: StoreLimits { capacity: denial, ..default.denial },
        ..default
    }
}

#[test]
fn capacity_is_exact_per_kind() {
    for bytes in [Cache::MIN_BYTES, 64 << 20] {
        let block = Block::sized(capacity(100, 7), bytes);
        for number in 0..1000 {
            assert_eq!(
                block.store(&ask(number), &mut ask(number).addresses(&[60])),
                StoreResult::Kept(AnswerKind::Success)
            );
            let other = ask(number + 10_000);
            assert_eq!(
                block.store(&other, &mut other.nxdomain(60, 60)),
                StoreResult::Kept(AnswerKind::Denial)
            );
            assert_ne!(block.lookup(&ask(number)).lookup, CacheResult::Miss, "the newest is there");
        }
        let counts =
            AnswerKind::ALL.map(|kind| (block.partition.entries(kind), block.partition.evictions(kind)));
        assert_eq!(counts, [(100, 900), (7, 993)]);
        let found =
            (0..1000).filter(|&number| block.lookup(&ask(number)).lookup != CacheResult::Miss).count();
        assert_eq!(found, 100);
    }
}

#[test]
fn capacity_1_and_0() {
    let block = Block::sized(capacity(1, 0), 64 << 20);
    for number in 0..100 {
        assert_eq!(
            block.store(&ask(number), &mut ask(number).addresses(&[60])),
            StoreResult::Kept(AnswerKind::Success)
        );
        assert_eq!(block.store(&ask(200), &mut ask(200).nxdomain(60, 60)), StoreResult::Passed);
        assert_ne!(block.lookup(&ask(number)).lookup, CacheResult::Miss);
        assert_eq!(AnswerKind::ALL.map(|kind| block.partition.entries(kind)), [1, 0]);
    }
}

#[test]
fn stores_shrink_to_a_smaller_capacity() {
    let mut block = Block::sized(capacity(1000, 1000), 64 << 20);
    for number in 0..1000 {
        block.store(&ask(number), &mut ask(number).addresses(&[60]));
    }
    block.spec = capacity(10, 10);
    for number in 2000..2400 {
        assert_eq!(
            block.store(&ask(number), &mut ask(number).addresses(&[60])),
            StoreResult::Kept(AnswerKind::Success)
        );
    }
    assert_eq!(block.partition.entries(AnswerKind::Success), 10);
}

#[test]
fn used_entries_survive_eviction() {
    let block = Block::sized(capacity(1000, 0), Cache::MIN_BYTES);
    for number in 0..500 {
        block.store(&ask(number), &mut ask(number).addresses(&[60]));
    }
    for number in 500..20_000 {
        block.store(&ask(number), &mut ask(number).addresses(&[60]));
        block.lookup(&ask(number % 500));
    }
    let kept = (0..500).filter(|&number| block.lookup(&ask(number)).lookup != CacheResult::Miss).count();
    assert!(kept > 490, "{kept} of 500 used names are left");
}

/// Evicted dead entries are not counted as evictions.
#[test]
fn dead_entries_are_evicted_first() {
    let mut block = Block::new(capacity(100, 0));
    for number in 0..100 {
        block.store(&ask(number), &mut ask(number).addresses(&[if number % 2 == 0 { 5 } else { 600 }]));
        block.lookup(&ask(number));
    }
    block.wait(10.0);
    for number in 100..150 {
        block.store(&ask(number), &mut ask(number).addresses(&[600]));
    }
    assert_eq!(block.partition.evictions(AnswerKind::Success), 0);
    let left = (0..150).filter(|&number| block.lookup(&ask(number)).lookup != CacheResult::Miss).count();
    assert_eq!(left, 100);
}

#[test]
fn sweep_keeps_its_budget() {
    let mut block =
        Block::sized(CacheSpec { stale: Some(ServeStale::default()), ..CacheSpec::default() }, 4 << 20);
    for number in 0..2000 {
        block.store(&ask(number), &mut ask(number).addresses(&[5 + number % 2 * 7200]));
    }
    block.wait(100.0);
    assert_eq!(block.cache.sweep(block.now, usize::MAX), 0, "still served stale");
    block.wait(3600.0);
    let used = block.cache.bytes();
    let mut freed = 0;
    let mut rounds = 0;
    while freed < 1000 {
        let more = block.cache.sweep(block.now, 100);
        assert!(more <= 100);
        freed += more;
        rounds += 1;
        assert!(rounds < 60, "{freed} freed");
    }
    assert_eq!(block.partition.entries(AnswerKind::Success), 1000);
    assert!(block.cache.bytes() < used);
    assert_eq!(block.cache.sweep(block.now, 0), 0);
}

#[test]
fn partition_lives_while_referenced() {
    let block = Block::sized(CacheSpec::default(), 4 << 20);
    let empty = block.cache.bytes();
    let first = block.cache.partition("example.org. 127.0.0.1");
    let find = |partition: &crate::Partition| {
        let seen = ask(1).see(|query, reply| partition.lookup(&block.spec, query, block.now, reply));
        seen.lookup != CacheResult::Miss
    };
    for number in 0..1000 {
        first.store(&block.spec, &ask(number).query(), &mut ask(number).addresses(&[60]), block.now);
    }
    let again = block.cache.partition("example.org. 127.0.0.1");
    assert!(find(&again));
    drop(first);
    assert!(find(&again));
    assert!(block.cache.bytes() - empty > 100_000);
    drop(again);
    assert!(block.cache.bytes() - empty < 1000, "{} of {empty}", block.cache.bytes());
    let next = block.cache.partition("example.org. 127.0.0.1");
    assert!(!find(&next));
    assert_eq!(next.entries(AnswerKind::Success), 0);
    let other = block.cache.partition("example.com.");
    other.store(&block.spec, &ask(1).query(), &mut ask(1).addresses(&[60]), block.now);
    assert!(find(&other) && !find(&next));
}

#[test]
fn alternating_store_and_expiry_keeps_memory() {
    for others in 0..200 {
        let mut block = Block::new(CacheSpec::default());
        for number in 1..=others {
            block.store(&ask(number), &mut ask(number).addresses(&[3600]));
        }
        block.store(&ask(0), &mut ask(0).addresses(&[5]));
        let bytes = block.cache.bytes();
        for _ in 0..2 {
            block.wait(5.0);
            assert_eq!(block.lookup(&ask(0)).lookup, CacheResult::Miss);
            assert_eq!(block.cache.bytes(), bytes, "{others} others");
            block.store(&ask(0), &mut ask(0).addresses(&[5]));
            assert_eq!(block.cache.bytes(), bytes, "{others} others");
        }
    }
}

#[test]
fn eviction_from_the_largest_partition() {
    let block = Block::new(capacity(usize::MAX, usize::MAX));
    let small = block.cache.partition("small");
    for number in 0..200 {
        small.store(&block.spec, &ask(number).query(), &mut ask(number).addresses(&[60]), block.now);
    }
    for number in 0..50_000 {
        block.store(&ask(number), &mut ask(number).addresses(&[60]));
    }
    assert!(block.cache.bytes() <= Cache::MIN_BYTES);
    assert_eq!((small.entries(AnswerKind::Success), small.evictions(AnswerKind::Success)), (200, 0));
    assert!(
        block.partition.entries(AnswerKind::Success) > 5000,
        "{}",
        block.partition.entries(AnswerKind::Success)
    );
}

#[test]
fn largest_answer_fits_smallest_cache() {
    let block = Block::new(capacity(usize::MAX, usize::MAX));
    for number in 0..20_000 {
        block.store(&ask(number), &mut ask(number).addresses(&[60]));
    }
    let data = vec![0; 64_000];
    for number in 0..100 {
        let text = Record(Section::Answer, "big.example.org.", RType(65_400), 60, &data);
        let ask = Ask::new(&format!("big{number}.example.org"), RType(65_400));
        assert_eq!(
            block.store(&ask, &mut ask.answer(Rcode::NOERROR, 0, &[text])),
            StoreResult::Kept(AnswerKind::Success)
        );
        assert_eq!(block.lookup(&ask).ttls, [60]);
        assert!(block.cache.bytes() <= Cache::MIN_BYTES);
    }
}

#[test]
fn small_answer_takes_160_bytes() {
    let block = Block::sized(capacity(usize::MAX, usize::MAX), 64 << 20);
    let empty = block.cache.bytes();
    for number in 0..100_000 {
        let ask = Ask::new(&format!("h{number:06}.example.org"), RType::A);
        block.store(&ask, &mut ask.addresses(&[60]));
    }
    let each = (block.cache.bytes() - empty) / 100_000;
    // Including 21 bytes of name and 16 of record.
    assert!(each <= 160, "{each}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn random_load_keeps_the_limits(
        limits in (0usize..200, 0usize..50),
        steps in proptest::collection::vec((0u32..400, 0usize..9000, 0u8..4, 0u8..3), 200..600),
    ) {
        let mut block = Block::new(capacity(limits.0, limits.1));
        let others: Vec<_> = (0..3).map(|number| block.cache.partition(&format!("{number}"))).collect();
        let data = vec![7; 9000];
        for (number, size, kind, partition) in steps {
            let ask = Ask::new(&format!("host-{number}.example.org"), RType(65_400));
            let text = Record(Section::Answer, "host.example.org.", RType(65_400), number % 90, &data[..size]);
            let mut answer = match kind {
                0 => ask.nxdomain(60, 60),
                1 => ask.servfail(),
                _ => ask.answer(Rcode::NOERROR, 0, &[text]),
            };
            let partition = &others[usize::from(partition)];
            let stored = partition.store(&block.spec, &ask.query(), &mut answer, block.now);
            let kept = matches!(stored, StoreResult::Kept(_));
            let seen = ask.see(|query, reply| partition.lookup(&block.spec, query, block.now, reply));
            prop_assert!(!kept || seen.lookup != CacheResult::Miss, "kept, so it is there");
            prop_assert!(partition.entries(AnswerKind::Success) <= limits.0);
            prop_assert!(partition.entries(AnswerKind::Denial) <= limits.1);
            prop_assert!(block.cache.bytes() <= Cache::MIN_BYTES);
            block.wait(0.1);
        }
        block.wait(10_000.0);
        block.cache.sweep(block.now, usize::MAX);
        for partition in &others {
            prop_assert_eq!(AnswerKind::ALL.map(|kind| partition.entries(kind)), [0, 0]);
        }
    }
}

#[test]
fn threads_keep_the_limits() {
    let cache = Cache::new(4 << 20, start());
    let spec = capacity(500, 50);
    let now = start();
    let partition = cache.partition(".");
    thread::scope(|scope| {
        for worker in 0..4u32 {
            let (cache, spec, partition) = (&cache, &spec, &partition);
            scope.spawn(move || {
                for step in 0..4000u32 {
                    let number = step.wrapping_mul(2_654_435_761).wrapping_add(worker * 7) % 2000;
                    let ask = ask(number);
                    match step % 4 {
                        0 => drop(partition.store(spec, &ask.query(), &mut ask.addresses(&[60]), now)),
                        1 => drop(partition.store(spec, &ask.query(), &mut ask.nxdomain(60, 60), now)),
                        _ => {
                            let seen = ask.see(|query, reply| partition.lookup(spec, query, now, reply));
                            assert!(seen.lookup == CacheResult::Miss || seen.ttls == [60], "{seen:?}");
                        }
                    }
                    assert!(partition.entries(AnswerKind::Success) <= 500);
                    assert!(partition.entries(AnswerKind::Denial) <= 50);
                    if step % 500 == 0 {
                        assert!(cache.bytes() <= 4 << 20);
                        cache.sweep(now, 100);
                        drop(cache.partition("of a moment"));
                    }
                }
            });
        }
    });
    let counted = AnswerKind::ALL.map(|kind| partition.entries(kind)).iter().sum::<usize>();
    let found = (0..2000)
        .filter(|&number| {
            let seen = ask(number).see(|query, reply| partition.lookup(&spec, query, now, reply));
            seen.lookup != CacheResult::Miss
        })
        .count();
    assert_eq!(found, counted);
}
