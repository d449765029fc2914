//! Invariants of a shard.

use std::time::Duration;

use proptest::prelude::*;
use wire::{RType, Rcode};

use super::*;
use crate::testing::{Ask, Record, Section};

const KINDS: [AnswerKind; 2] = [AnswerKind::Success, AnswerKind::Denial];

/// An answer to name `number` with `size` bytes of data; three names share each hash.
fn entry(ask: &Ask, number: u32, partition: u32, size: usize, now: u64) -> Entry {
    let query = ask.query();
    let data = vec![number as u8; size];
    let record = Record(Section::Answer, "host.example.org.", RType(65_400), 60, &data);
    let kind = KINDS[number as usize % 2];
    let life = Duration::from_millis(u64::from(number) * 10);
    let answer = ask.answer(Rcode::NOERROR, 0, &[record]);
    Entry::new(key(&query, number, partition), &answer, now, life, kind, false).expect("it fits")
}

fn key<'q>(query: &'q wire::Query<'_>, number: u32, partition: u32) -> CacheKey<'q> {
    CacheKey {
        partition,
        hash: number / 3,
        name: &query.name,
        rtype: query.rtype.0,
        class: 1,
        bits: 0,
        overrides: &[],
    }
}

/// Every entry is found by its hash, is in the ring of its partition and kind and in no other, and
/// is counted once.
fn check(shard: &Shard, counts: &[Arc<PartitionCounts>]) {
    let (mut entries, mut data) = (0, 0);
    for (partition, part) in shard.parts.iter().enumerate() {
        for kind in KINDS {
            let ring = &part.rings[kind as usize];
            let (mut count, mut bytes, mut at) = (0, 0, ring.hand);
            while at != NONE {
                let slot = &shard.slots[at as usize];
                assert_eq!((slot.entry.partition as usize, slot.entry.kind()), (partition, kind));
                assert_eq!(shard.slots[slot.after as usize].before, at);
                assert_eq!(shard.index.find(slot.entry.hash, |place| place == at), Some(at));
                count += 1;
                bytes += cost(&slot.entry);
                data += allocated(slot.entry.outside());
                at = if slot.after == ring.hand { NONE } else { slot.after };
            }
            assert_eq!(ring.bytes, bytes);
            assert_eq!(counts[partition].entries(kind), count);
            entries += count;
        }
    }
    assert_eq!((shard.slots.len(), shard.data), (entries, data));
    assert!(shard.bytes() <= shard.bound);
}

proptest! {
    #[test]
    fn invariants_hold_over_random_steps(
        steps in proptest::collection::vec((0u8..12, 0u32..2, 0u32..300, 0usize..400), 1..700),
    ) {
        let mut shard = Shard::new(64 << 10);
        let both = [Arc::<PartitionCounts>::default(), Arc::default()];
        for (now, (step, partition, number, size)) in steps.into_iter().enumerate() {
            let now = now as u64;
            let counts = &both[partition as usize];
            let ask = Ask::new(&format!("host-{number}.example.org"), RType(65_400));
            let query = ask.query();
            let key = key(&query, number, partition);
            let found = shard.find(&key).map(|(at, entry)| {
                entry.visit();
                at
            });
            match (step, found) {
                (0..=8, None) => {
                    let entry = entry(&ask, number, partition, size, now);
                    prop_assert!(counts.reserve(entry.kind(), usize::MAX));
                    prop_assert!(shard.insert(counts, entry, now));
                    prop_assert!(shard.find(&key).is_some());
                }
                (0..=8, Some(at)) => {
                    shard.remove(at);
                    prop_assert!(shard.find(&key).is_none());
                }
                (9, _) => {
                    let kind = KINDS[size % 2];
                    if shard.take_place(partition, kind, now) {
                        counts.release(kind);
                    }
                }
                (10, _) => {
                    shard.sweep(now, size);
                }
                _ => {
                    shard.purge(partition, size / 4);
                }
            }
            check(&shard, &both);
            if step >= 10 && shard.slots.len() == 0 {
                prop_assert_eq!(shard.index.bytes() + shard.slots.bytes(), 0, "tidied up");
            }
        }
    }
}

#[test]
fn slot_is_two_cache_lines() {
    assert_eq!((size_of::<Entry>(), size_of::<Slot>()), (112, 128));
}

#[test]
fn allocation_sizes() {
    for (size, taken) in
        [(0, 0), (1, 32), (24, 32), (25, 48), (40, 48), (120, 128), (121, 144), (1000, 1024), (1017, 1152)]
    {
        assert_eq!(allocated(size), taken, "{size}");
    }
}
