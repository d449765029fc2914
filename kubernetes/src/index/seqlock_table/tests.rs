//! Compares the table with a map.

use std::collections::HashMap;

use proptest::prelude::*;

use super::seqlock_table::*;

type Numbers = SeqlockTable<2>;

/// Name and number as a content; few hashes, so that some find no slot.
fn content(name: u8, number: u64) -> SlotContent<2> {
    SlotContent { head: 1 + u32::from(name % 2), words: [u64::from(name), number] }
}

fn find(cells: &Numbers, name: u8) -> Option<u64> {
    let found = cells.find(hash(name), |head| head == content(name, 0).head, is(name));
    found.map(|content| content.words[1])
}

fn is(name: u8) -> impl Fn(&SlotContent<2>) -> bool {
    move |content| content.words[0] == u64::from(name)
}

fn hash(name: u8) -> u64 {
    u64::from(name) * 0x9e37_79b9
}

proptest! {
    /// No wrong or removed content is found; with a free slot, the last content is.
    #[test]
    fn finds_the_last_value(
        count in prop::sample::select(vec![1_usize, 2, 8, 64]),
        steps in prop::collection::vec((0_u8..24, prop::option::of(0_u64..4)), 1..200),
    ) {
        let cells = Numbers::new(count);
        let mut model = HashMap::new();
        for (name, number) in steps {
            cells.set(hash(name), is(name), number.map(|number| content(name, number)));
            match number {
                Some(number) => _ = model.insert(name, number),
                None => _ = model.remove(&name),
            }
            if number.is_some() && cells.count() < count.min(PROBE_LENGTH) {
                prop_assert_eq!(find(&cells, name), number);
            }
            let mut found = 0;
            for name in 0..24 {
                let seen = find(&cells, name);
                found += usize::from(seen.is_some());
                prop_assert!(seen.is_none() || seen == model.get(&name).copied(), "{} is {:?}", name, seen);
            }
            prop_assert_eq!(found, cells.count(), "no content is out of reach or duplicate");
        }
    }
}

/// splitmix64.
fn random(number: u64) -> u64 {
    let number = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[test]
fn load_factor_of_10_000_services() {
    let cells = Numbers::new(16_384);
    for number in 0..10_000_u64 {
        let it = SlotContent { head: 1, words: [number, 0] };
        cells.set(random(number), |content| content.words[0] == number, Some(it));
    }
    let left_out = 10_000 - cells.count();
    assert!((80..220).contains(&left_out), "{left_out}");
}
