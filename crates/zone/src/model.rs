//! The tree beside a model that compares names one by one.

use std::collections::BTreeSet;

use proptest::prelude::*;
use wire::{Name, RType};

use crate::key::Key;
use crate::tests::{ask, name, zone};
use crate::{Answered, NO_CUT, Zone};

/// Labels of a name below example.org, from the left, and whether it is a delegation.
pub(crate) type Owner = (Vec<&'static str>, bool);

pub(crate) fn owners() -> impl Strategy<Value = Vec<Owner>> {
    let labels = prop::collection::vec(prop::sample::select(vec!["a", "b", "*", "B\\000", "c"]), 1..5);
    prop::collection::vec((labels, prop::bool::weighted(0.15)), 0..24)
}

pub(crate) fn full(labels: &[&str]) -> Name {
    name(&[labels, &["example", "org"]].concat().join("."))
}

/// RFC 1034, section 4.3.2, and RFC 4592 by comparing all names.
fn model(owners: &[Owner], asked: &Name) -> Answered {
    let apex = name("example.org");
    let named =
        |cut: bool| owners.iter().filter(move |(_, is_cut)| *is_cut == cut).map(|(labels, _)| full(labels));
    if named(true).any(|cut| asked.is_within(&cut)) {
        return Answered::Referral;
    }
    let all: BTreeSet<Name> = owners.iter().map(|(labels, _)| full(labels)).chain([apex]).collect();
    let has_records = |name: &Name| all.contains(name);
    let exists = |name: &Name| all.iter().any(|other| other.is_within(name));
    let of = |found: &Name| match (*found == apex, has_records(found)) {
        (true, _) => Answered::NoData,
        (_, true) => Answered::Records,
        _ => Answered::EmptyNonTerminal,
    };
    if exists(asked) {
        return of(asked);
    }
    let parents = asked.suffixes().skip(1).map(|suffix| Name::from_wire(suffix).unwrap());
    let encloser = parents.into_iter().find(|parent| exists(parent)).unwrap();
    let wildcard = Name::from_wire(&[b"\x01*", encloser.as_wire()].concat()).unwrap();
    match (has_records(&wildcard), exists(&wildcard)) {
        (true, _) => Answered::Records,
        (false, true) => Answered::NoData,
        (false, false) => Answered::NameError,
    }
}

/// The zone's file.
pub(crate) fn text(owners: &[Owner]) -> String {
    let mut text = "$TTL 5\n@ SOA b. c. 1 1 1 1 1\n@ NS b.\n".to_owned();
    for (labels, is_cut) in owners {
        text += &format!("{} {}\n", labels.join("."), if *is_cut { "NS b." } else { "A 192.0.2.1" });
    }
    text
}

fn built(owners: &[Owner]) -> Zone {
    zone(&text(owners))
}

proptest! {
    #[test]
    fn names_are_found_as_by_the_model(owners in owners(), asked in owners()) {
        // A delegation at a wildcard has no meaning (RFC 4592, section 4.2).
        let owners: Vec<_> =
            owners.into_iter().filter(|(labels, is_cut)| !is_cut || !labels.contains(&"*")).collect();
        let zone = built(&owners);
        for (labels, _) in owners.iter().chain(&asked) {
            for start in 0..=labels.len() {
                let asked = full(&labels[start..]);
                let (answered, _) = ask(&zone, &asked.to_string(), RType::A, false);
                prop_assert_eq!(answered, Ok(model(&owners, &asked)), "{}", asked);
            }
        }
    }

    #[test]
    fn nodes_are_in_canonical_order(owners in owners()) {
        let zone = built(&owners);
        let canonical = |name: &Name| {
            let mut labels: Vec<_> = name.labels().map(<[u8]>::to_vec).collect();
            labels.reverse();
            labels
        };
        let mut names = Vec::new();
        for index in 0..zone.nodes.len() {
            let mut owner = crate::answer::Owner::new();
            owner.set_to(&zone, index);
            let owner = Name::from_wire(owner.as_wire()).unwrap();
            let key = Key::new(owner.as_wire(), zone.origin.as_wire()).unwrap();
            prop_assert_eq!(key.as_bytes(), zone.key(index));
            let parent = zone.nodes[index].parent as usize;
            prop_assert!(parent < index || index == 0);
            let cut = zone.nodes[index].cut;
            prop_assert!(cut == NO_CUT || cut as usize <= index);
            names.push(canonical(&owner));
        }
        prop_assert!(names.is_sorted());
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[@a-c.*$ ()\";\\\\\\n0-9INSOATXGE{},-]{0,200}") {
        let _ = crate::tests::read(&format!("@ 5 SOA b. c. 1 1 1 1 1\n{text}\n"));
    }
}

/// `cargo test --release -p zone -- --ignored --nocapture million`
#[test]
#[ignore = "a measurement"]
fn million_records() {
    let mut text = "$TTL 5\n@ SOA b. c. 1 1 1 1 1\n@ NS b.\n".to_owned();
    for number in 0_u32..1_000_000 {
        let [_, a, b, c] = number.wrapping_mul(2_654_435_761).to_be_bytes();
        text += &format!("host-{number:07} A 10.{a}.{b}.{c}\n");
    }
    let zone = zone(&text);
    println!("{} records, {} bytes of text, {} bytes in memory", zone.count(), text.len(), zone.bytes());
}
