//! Denials of signed zones with NSEC3, by rows and by a verifier of proofs.

use std::collections::BTreeSet;

use data_encoding::BASE32HEX_NOPAD;
use proptest::prelude::*;
use wire::{Message, Name, RType, Rcode};

use super::{Hash, Parameters, hash_of, owner_label};
use crate::model::{Owner, full, owners, text};
use crate::tests::{ask, name, read, zone};
use crate::{Answered, Place};

fn parameters(iterations: u16, salt: &[u8]) -> Parameters {
    Parameters { iterations, salt: salt.into() }
}

/// The hashes that RFC 5155, appendix A, gives for its example.
#[test]
fn hashes_of_the_rfc() {
    let parameters = parameters(12, b"\xaa\xbb\xcc\xdd");
    for (text, hash) in [
        ("example", "0p9mhaveqvm6t7vbl5lop2u3t2rp3tom"),
        ("a.example", "35mthgpgcu1qg68fab165klnsnk3dpvl"),
        ("ai.example", "gjeqe526plbf1g8mklp59enfd789njgi"),
        ("ns1.example", "2t7b4g4vsa5smi47k61mv5bv1a22bojr"),
        ("*.w.example", "r53bq7cc2uvmubfu5ocmm6pers9tk9en"),
        ("x.y.w.example", "2vptu5timamqttgl4luu9kg21e0aor3s"),
    ] {
        let found = parameters.hash(name(text).as_wire());
        assert_eq!(&owner_label(&found)[1..], hash.as_bytes(), "{text}");
        let owner = name(&format!("{}.Example", hash.to_uppercase()));
        assert_eq!(hash_of(owner.as_wire(), name("example").as_wire()), Some(found), "{text}");
        assert_eq!(hash_of(owner.as_wire(), name("org").as_wire()), None);
    }
    let short = name("2t7b4g4vsa5smi47k61mv5bv1a22boj.example");
    assert_eq!(hash_of(short.as_wire(), name("example").as_wire()), None);
}

/// One additional iteration and a salt of one byte.
fn hash(of: &Name) -> Hash {
    let lower: Vec<u8> = of.as_wire().to_ascii_lowercase();
    parameters(1, &[0xab]).hash(&lower)
}

/// An NSEC3PARAM record, and the NSEC3 records of these names with an RRSIG record each.
fn chain(names: &BTreeSet<Name>, flags: u8) -> String {
    let hashes: BTreeSet<Hash> = names.iter().map(hash).collect();
    let shown: Vec<_> = hashes.iter().map(|hash| BASE32HEX_NOPAD.encode(hash)).collect();
    let mut text = "@ NSEC3PARAM 1 0 1 AB\n".to_owned();
    for (own, next) in shown.iter().zip(shown.iter().cycle().skip(1)) {
        text += &format!("{own} NSEC3 1 {flags} 1 AB {next} A\n");
        text += &format!("{own} RRSIG NSEC3 8 3 5 20300101000000 20200101000000 1 @ AAAA\n");
    }
    text
}

const PLAIN: &str = "$TTL 5\n@ SOA ns h 1 2 3 4 300\n@ NS ns\nns A 192.0.2.1\nb.ent A 192.0.2.2\n\
                     sub NS ns.other.\n*.w A 192.0.2.3\nalias CNAME x.w\n";

/// Whether a record proves `=NAME`, its hash is the record's owner, or `<NAME`, the record covers it.
fn proves(own: &Hash, next: &[u8], what: &str) -> bool {
    let of = hash(&name(what.trim_start_matches(['=', '<'])));
    match what.starts_with('=') {
        true => *own == of,
        false if &own[..] < next => *own < of && &of[..] < next,
        false => *own < of || &of[..] < next,
    }
}

/// Owner and next hash of the NSEC3 records of a reply.
fn records(message: &Message) -> Vec<(Hash, Vec<u8>)> {
    let records = message.records.iter().filter(|rr| rr.rtype == RType::NSEC3);
    records.map(|rr| (owner_hash(&rr.name()), rr.data[7..27].to_vec())).collect()
}

fn owner_hash(owner: &Name) -> Hash {
    hash_of(owner.as_wire(), name("example.org").as_wire()).unwrap()
}

/// RFC 5155, section 7.2: the records of each proof, and no more.
#[test]
fn denials_by_rows() {
    let names: BTreeSet<_> = ["", "ns.", "ent.", "b.ent.", "sub.", "w.", "*.w.", "alias."]
        .map(|prefix| name(&format!("{prefix}example.org")))
        .into();
    let zone = zone(&(PLAIN.to_owned() + &chain(&names, 0)));
    let rows: &[(&str, RType, Answered, &[&str])] = &[
        ("ns", RType::A, Answered::Records, &[]),
        ("ns", RType::TXT, Answered::NoData, &["=ns."]),
        ("ent", RType::A, Answered::EmptyNonTerminal, &["=ent."]),
        ("nx", RType::A, Answered::NameError, &["=", "<nx.", "<*."]),
        ("a.nx", RType::A, Answered::NameError, &["=", "<nx.", "<*."]),
        ("q.ent", RType::A, Answered::NameError, &["=ent.", "<q.ent.", "<*.ent."]),
        ("q.w", RType::A, Answered::Records, &["<q.w."]),
        ("r.q.w", RType::A, Answered::Records, &["<q.w."]),
        ("q.w", RType::TXT, Answered::NoData, &["=w.", "<q.w.", "=*.w."]),
        ("alias", RType::A, Answered::Records, &["<x.w."]),
        ("sub", RType::A, Answered::Referral, &["=sub."]),
        ("x.sub", RType::A, Answered::Referral, &["=sub."]),
        ("sub", RType::DS, Answered::NoData, &["=sub."]),
    ];
    for &(owner, rtype, answered, expected) in rows {
        let (found, message) = ask(&zone, &format!("{owner}.example.org"), rtype, true);
        assert_eq!(found, Ok(answered), "{owner} {rtype}");
        let expected: Vec<_> = expected.iter().map(|what| format!("{what}example.org")).collect();
        let records = records(&message);
        for what in &expected {
            assert!(records.iter().any(|(own, next)| proves(own, next, what)), "{owner} {rtype}: {what}");
        }
        let is_used = |(own, next): &(Hash, Vec<u8>)| expected.iter().any(|what| proves(own, next, what));
        assert!(records.iter().all(is_used), "{owner} {rtype}: a record more");
        let signatures = message.records.iter().filter(|rr| rr.rtype == RType::RRSIG).count();
        assert_eq!(signatures, records.len(), "{owner} {rtype}");
        let (_, plain) = ask(&zone, &format!("{owner}.example.org"), rtype, false);
        assert!(self::records(&plain).is_empty(), "{owner} {rtype}");
    }
    // Section 7.2.8: the owner of an NSEC3 record is no name of the zone.
    let owner = String::from_utf8_lossy(&owner_label(&hash(&name("ns.example.org")))[1..]).into_owned();
    let (_, message) = ask(&zone, &format!("{owner}.example.org"), RType::NSEC3, true);
    assert_eq!(message.rcode, Rcode::NXDOMAIN);
    let (_, message) = ask(&zone, "example.org", RType::NSEC3PARAM, true);
    assert!(message.records.iter().any(|rr| rr.rtype == RType::NSEC3PARAM));
}

/// The names of a zone for its chain: owners and names above them, without those below delegations,
/// and with opt-out without delegations and names that only lead to them (RFC 5155, section 7.1).
fn hashed_names(owners: &[Owner], opt_out: bool) -> BTreeSet<Name> {
    let apex = name("example.org");
    let is_cut = |found: &Name| owners.iter().any(|(labels, cut)| *cut && full(labels) == *found);
    let mut all = BTreeSet::from([apex]);
    for (labels, _) in owners {
        let owner = full(labels);
        let above = owner.suffixes().map(|suffix| Name::from_wire(suffix).unwrap());
        let above: Vec<_> = above.filter(|found| found.is_within(&apex)).collect();
        let is_below_cut = above[1..].iter().any(is_cut);
        if !(is_below_cut || opt_out && is_cut(&owner)) {
            all.extend(above);
        }
    }
    all
}

proptest! {
    /// Every denial has the proofs of RFC 5155, section 8, with which a resolver verifies it.
    #[test]
    fn denials_are_proven(owners in owners(), asked in owners(), opt_out in any::<bool>()) {
        let owners: Vec<_> =
            owners.into_iter().filter(|(labels, cut)| !cut || !labels.contains(&"*")).collect();
        let hashed = hashed_names(&owners, opt_out);
        let zone = zone(&(text(&owners) + &chain(&hashed, u8::from(opt_out))));
        for (labels, _) in owners.iter().chain(&asked) {
            let asked = full(labels);
            let (answered, message) = ask(&zone, &asked.to_string(), RType::TXT, true);
            let records = records(&message);
            let is_proven = |what: String| records.iter().any(|(own, next)| proves(own, next, &what));
            let suffixes: Vec<_> =
                asked.suffixes().map(|suffix| Name::from_wire(suffix).unwrap()).collect();
            // The closest encloser and the next name towards the one that was asked for.
            let encloser = suffixes.windows(2).find(|pair| is_proven(format!("={}", pair[1])));
            let encloser = encloser.map(|pair| (is_proven(format!("<{}", pair[0])), pair[1]));
            let wildcard = |sign: char| match encloser {
                Some((true, encloser)) => is_proven(format!("{sign}*.{encloser}")),
                _ => false,
            };
            let is_opted_out = opt_out && matches!(encloser, Some((true, _)));
            let proven = match answered.unwrap() {
                // A name above delegations without records in the chain hides the wildcard above it.
                Answered::NameError => wildcard('<') || wildcard('=') && is_opted_out,
                Answered::NoData | Answered::EmptyNonTerminal => {
                    is_proven(format!("={asked}")) || wildcard('=') || is_opted_out
                }
                Answered::Referral => suffixes.iter().any(|cut| is_proven(format!("={cut}"))) || is_opted_out,
                Answered::Records | Answered::Outside => true,
            };
            prop_assert!(proven && records.len() <= 3, "{} {:?} {:?}", asked, answered, records);
        }
    }
}

/// A transfer has the records of the chain and of one that is not used yet; the zone counts them.
#[test]
fn transferred_with_other_chains() {
    let names = BTreeSet::from([name("example.org"), name("ns.example.org")]);
    let old = "@ NSEC3PARAM 1 1 0 -\n1T7B4G4VSA5SMI47K61MV5BV1A22BOJR NSEC3 1 0 0 - 1T7B4G4VSA5SMI47K61MV5BV1A22BOJR A\n";
    let text = "$TTL 5\n@ SOA ns h 1 2 3 4 300\n@ NS ns\nns A 192.0.2.1\n".to_owned() + old;
    let zone = zone(&(text.clone() + &chain(&names, 0)));
    let mut found = Vec::new();
    let mut place = Some(Place::default());
    // One record at a time.
    while let Some(from) = place {
        let mut is_first = true;
        place = zone.each_from(from, |owner, rtype, _, _| {
            let is_taken = std::mem::take(&mut is_first);
            found.extend(is_taken.then(|| (Name::from_wire(owner).unwrap().to_string().len(), rtype)));
            is_taken
        });
    }
    let of_hash = |rtype| found.iter().filter(|one| **one == (45, rtype)).count();
    assert_eq!((of_hash(RType::NSEC3), of_hash(RType::RRSIG)), (3, 2));
    assert_eq!(found.len() + 1, zone.count());
    let (_, message) = ask(&zone, "nx.example.org", RType::A, true);
    assert!(records(&message).iter().all(|(own, _)| names.iter().any(|name| hash(name) == *own)));
    // Flags in NSEC3PARAM: the chain is not complete.
    let loaded = read(&text).unwrap();
    assert!(loaded.warnings[0].why.starts_with("NSEC3 records deny no names"), "{:?}", loaded.warnings);
    assert!(records(&ask(&loaded.zone, "nx.example.org", RType::A, true).1).is_empty());
}
