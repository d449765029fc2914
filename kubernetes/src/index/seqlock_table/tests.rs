//! Cells beside a map of all that was put into them.

use std::collections::HashMap;

use proptest::prelude::*;

use super::seqlock_table::*;

type Numbers = Cells<2>;

/// A number by a name, both of which stand in the words; there are few hashes, so that cells have no room for some.
fn content(name: u8, number: u64) -> Content<2> {
    Content { head: 1 + u32::from(name % 2), words: [u64::from(name), number] }
}

fn find(cells: &Numbers, name: u8) -> Option<u64> {
    let found = cells.find(hash(name), |head| head == content(name, 0).head, is(name));
    found.map(|content| content.words[1])
}

fn is(name: u8) -> impl Fn(&Content<2>) -> bool {
    move |content| content.words[0] == u64::from(name)
}

fn hash(name: u8) -> u64 {
    u64::from(name) * 0x9e37_79b9
}

proptest! {
    /// Nothing is found that is not so, and nothing that was taken away; where others leave a cell free, what was put is found.
    #[test]
    fn what_is_found_is_what_was_put_last(
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
            if number.is_some() && cells.count() < count.min(NEAR) {
                prop_assert_eq!(find(&cells, name), number);
            }
            let mut found = 0;
            for name in 0..24 {
                let seen = find(&cells, name);
                found += usize::from(seen.is_some());
                prop_assert!(seen.is_none() || seen == model.get(&name).copied(), "{} is {:?}", name, seen);
            }
            prop_assert_eq!(found, cells.count(), "nothing stands where nobody looks for it, or twice");
        }
    }
}

/// As splitmix64 has them.
fn random(number: u64) -> u64 {
    let number = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[test]
fn with_10_000_in_16_384_cells_one_in_seventy_finds_no_room() {
    let cells = Numbers::new(16_384);
    for number in 0..10_000_u64 {
        let it = Content { head: 1, words: [number, 0] };
        cells.set(random(number), |content| content.words[0] == number, Some(it));
    }
    let left_out = 10_000 - cells.count();
    assert!((80..220).contains(&left_out), "{left_out}");
}
