//! One block and one name: fill, count down, expire, replace, prefetch.

use std::time::Duration;

use hickory_proto::op::Message;
use wire::{Flags, Name, RType, Rcode, Section};

use crate::testing::{Ask, Block, a};
use crate::{AnswerKind, CacheResult, CacheSpec, Prefetch, StoreLimits, StoreResult};

const SUCCESS: CacheResult = CacheResult::Hit { kind: AnswerKind::Success };
const DENIAL: CacheResult = CacheResult::Hit { kind: AnswerKind::Denial };
const FETCH: CacheResult = CacheResult::Prefetch { kind: AnswerKind::Success };

fn www() -> Ask {
    Ask::new("www.example.org", RType::A)
}

#[test]
fn ttls_count_down_per_record() {
    let mut block = Block::new(CacheSpec::default());
    assert_eq!(block.lookup(&www()).lookup, CacheResult::Miss);
    assert_eq!(block.store(&www(), &mut www().addresses(&[10, 300])), StoreResult::Kept(AnswerKind::Success));
    for (wait, ttls) in
        [(0.0, [10, 300]), (0.9, [10, 300]), (0.1, [9, 299]), (8.0, [1, 291]), (0.999, [1, 291])]
    {
        block.wait(wait);
        let seen = block.lookup(&www());
        assert_eq!((seen.lookup, seen.ttls), (SUCCESS, ttls.to_vec()));
    }
    assert_eq!(block.partition.entries(AnswerKind::Success), 1);
    block.wait(0.001);
    assert_eq!(block.lookup(&www()).lookup, CacheResult::Miss);
    assert_eq!(block.partition.entries(AnswerKind::Success), 0, "freed when touched");
}

#[test]
fn ttl_stops_at_0() {
    let mut block = Block::new(CacheSpec {
        success: StoreLimits { min_ttl: 0, ..CacheSpec::default().success },
        ..CacheSpec::default()
    });
    let mut answer = www().addresses(&[30, 60]);
    block.store(&www(), &mut answer);
    block.now -= Duration::from_secs(5);
    assert_eq!(block.lookup(&www()).ttls, [30, 60], "a clock read before the store");
    block.wait(34.5);
    assert_eq!(block.lookup(&www()).ttls, [1, 31]);
}

#[test]
fn keepttl() {
    let mut block = Block::new(CacheSpec { keep_ttl: true, ..CacheSpec::default() });
    block.store(&www(), &mut www().addresses(&[10, 300]));
    block.wait(9.0);
    assert_eq!(block.lookup(&www()).ttls, [10, 300]);
    block.wait(1.0);
    assert_eq!(block.lookup(&www()).lookup, CacheResult::Miss);
}

#[test]
fn hit_keeps_the_clients_case() {
    let block = Block::new(CacheSpec::default());
    let data = b"\x00\x05\x03web\x07example\x03org\0";
    let mx = crate::testing::Record(Section::Answer, "www.example.org.", RType::MX, 60, data);
    let glue = crate::testing::Record(Section::Additional, "web.example.org.", RType::A, 60, &[192, 0, 2, 7]);
    let ask = Ask::new("www.example.org", RType::MX);
    block.store(&ask, &mut ask.answer(Rcode::NOERROR, Flags::RA | Flags::AA, &[mx, glue]));
    let seen = block.lookup(&Ask::new("wWw.eXample.ORG", RType::MX));
    let message = Message::from_vec(&seen.bytes).unwrap();
    assert!(seen.bytes[12..].starts_with(b"\x03wWw\x07eXample\x03ORG\0"));
    assert!(message.authoritative && message.recursion_available && message.recursion_desired);
    assert_eq!(message.answers[0].to_string().to_lowercase(), "www.example.org. 60 in mx 5 web.example.org.");
    assert_eq!(message.additionals[0].name.to_string().to_lowercase(), "web.example.org.");
}

#[test]
fn answers_of_every_length() {
    for size in (0..200).chain([1000, 60_000]) {
        let mut block = Block::new(CacheSpec::default());
        let data: Vec<u8> = (0..size).map(|at| at as u8).collect();
        let text = crate::testing::Record(Section::Answer, "www.example.org.", RType(65_400), 60, &data);
        let ask = Ask::new("www.example.org", RType(65_400));
        let mut answer = ask.answer(Rcode::NOERROR, Flags::RA, &[text]);
        answer.ede = b"\0\x0f\0\x02\0\x11".to_vec();
        let body = answer.body.clone();
        assert_eq!(block.store(&ask, &mut answer), StoreResult::Kept(AnswerKind::Success));
        let seen = block.lookup(&ask);
        let rest = &seen.bytes[12 + ask.query().question.len()..];
        assert!(rest.starts_with(&body), "{size}");
        assert_eq!((seen.ttls, seen.ede), (vec![60], vec![17]), "{size}");
        block.wait(20.0);
        assert_eq!(block.lookup(&ask).ttls, [40], "{size}");
    }
}

#[test]
fn ad_only_with_do_or_ad() {
    for (sent, flags, dnssec_ok, seen) in [
        (Flags::AD, Flags::RD, false, 0),
        (Flags::AD, Flags::RD | Flags::AD, false, Flags::AD),
        (Flags::AD, Flags::RD, true, Flags::AD),
        (0, Flags::RD | Flags::AD, true, 0),
        (Flags::AA | Flags::RA, Flags::RD, false, Flags::AA | Flags::RA),
    ] {
        let block = Block::new(CacheSpec::default());
        let ask = Ask::with("www.example.org", RType::A, flags, dnssec_ok);
        block.store(&ask, &mut ask.answer(Rcode::NOERROR, sent, &[a("www.example.org.", 60)]));
        assert_eq!(block.lookup(&ask).flags, Flags(seen), "{sent:x} {flags:x} {dnssec_ok}");
    }
}

#[test]
fn key_includes_do_and_cd() {
    let block = Block::new(CacheSpec::default());
    block.store(&www(), &mut www().addresses(&[60]));
    let other = block.cache.partition("example.org.");
    for (ask, found) in [
        (Ask::new("WWW.Example.Org", RType::A), true),
        (Ask::with("www.example.org", RType::A, Flags::RD | Flags::AD, false), true),
        (Ask::with("www.example.org", RType::A, 0, false), true),
        (Ask::new("www.example.org", RType::AAAA), false),
        (Ask::of_class("www.example.org", RType::A, wire::Class::CH, Flags::RD, false), false),
        (Ask::new("ww.example.org", RType::A), false),
        (Ask::with("www.example.org", RType::A, Flags::RD, true), false),
        (Ask::with("www.example.org", RType::A, Flags::RD | Flags::CD, false), false),
    ] {
        assert_eq!(block.lookup(&ask).lookup != CacheResult::Miss, found);
        let elsewhere = ask.see(|query, reply| other.lookup(&block.spec, query, block.now, reply));
        assert_eq!(elsewhere.lookup, CacheResult::Miss, "another block's");
    }
}

#[test]
fn denial_has_soa_and_ede() {
    let mut block = Block::new(CacheSpec::default());
    let mut answer = www().nxdomain(3600, 60);
    answer.ede = b"\0\x0f\0\x02\0\x11".to_vec();
    assert_eq!(block.store(&www(), &mut answer), StoreResult::Kept(AnswerKind::Denial));
    block.wait(10.0);
    let seen = block.lookup(&www());
    assert_eq!((seen.lookup, seen.rcode), (DENIAL, Rcode::NXDOMAIN));
    assert_eq!((seen.ttls, seen.ede), (vec![50], vec![17]));
    block.wait(50.0);
    assert_eq!(block.lookup(&www()).lookup, CacheResult::Miss);
}

#[test]
fn failures_replace_no_answer() {
    type Step = fn(&Ask) -> wire::Answer;
    let address: Step = |ask| ask.addresses(&[60]);
    let denial: Step = |ask| ask.nxdomain(60, 60);
    let bare_denial: Step = |ask| ask.answer(Rcode::NXDOMAIN, 0, &[]);
    let failure: Step = Ask::servfail;
    let refused: Step = |ask| ask.answer(Rcode::REFUSED, 0, &[]);
    let truncated: Step = |ask| ask.answer(Rcode::NOERROR, Flags::TC, &[]);
    for (what, first, second, stored, found) in [
        ("denial, address", denial, address, StoreResult::Kept(AnswerKind::Success), SUCCESS),
        ("address, denial", address, denial, StoreResult::Kept(AnswerKind::Denial), DENIAL),
        ("address, denial that cannot be kept", address, bare_denial, StoreResult::Passed, CacheResult::Miss),
        ("address, failure", address, failure, StoreResult::EarlierIsBetter, SUCCESS),
        ("denial, failure", denial, failure, StoreResult::EarlierIsBetter, DENIAL),
        ("address, refused", address, refused, StoreResult::EarlierIsBetter, SUCCESS),
        ("address, truncated", address, truncated, StoreResult::Passed, SUCCESS),
        ("failure, address", failure, address, StoreResult::Kept(AnswerKind::Success), SUCCESS),
        ("failure, refused", failure, refused, StoreResult::Passed, DENIAL),
        ("failure, failure", failure, failure, StoreResult::Kept(AnswerKind::Denial), DENIAL),
    ] {
        let block = Block::new(CacheSpec::default());
        block.store(&www(), &mut first(&www()));
        assert_eq!(block.store(&www(), &mut second(&www())), stored, "{what}");
        assert_eq!(block.lookup(&www()).lookup, found, "{what}");
        let entries = AnswerKind::ALL.map(|kind| block.partition.entries(kind));
        assert_eq!(entries.iter().sum::<usize>(), usize::from(found != CacheResult::Miss), "{what}");
    }
}

#[test]
fn servfail_is_cached_for_5_s() {
    let mut block = Block::new(CacheSpec::default());
    assert_eq!(block.store(&www(), &mut www().servfail()), StoreResult::Kept(AnswerKind::Denial));
    block.wait(4.9);
    let seen = block.lookup(&www());
    assert_eq!((seen.lookup, seen.rcode), (DENIAL, Rcode::SERVFAIL));
    block.wait(0.1);
    assert_eq!(block.lookup(&www()).lookup, CacheResult::Miss);
}

/// Without serve_stale a failure replaces an expired answer.
#[test]
fn failure_replaces_an_expired_answer() {
    let mut block = Block::new(CacheSpec::default());
    block.store(&www(), &mut www().addresses(&[5]));
    block.wait(5.0);
    assert_eq!(block.store(&www(), &mut www().servfail()), StoreResult::Kept(AnswerKind::Denial));
    assert_eq!(block.partition.entries(AnswerKind::Success), 0);
    assert_eq!(block.lookup(&www()).rcode, Rcode::SERVFAIL);
    assert!(block.serve_stale(&www()).is_none(), "a kept failure is no answer");
}

#[test]
fn zones_hide_stored_answers() {
    let mut block = Block::new(CacheSpec::default());
    block.store(&www(), &mut www().addresses(&[60]));
    let zone = |text| vec![Name::from_text(text).unwrap()];
    for (spec, found) in [
        (CacheSpec { zones: zone("example.org."), ..CacheSpec::default() }, SUCCESS),
        (CacheSpec { zones: zone("example.com."), ..CacheSpec::default() }, CacheResult::Miss),
        (CacheSpec { disabled_success: zone("."), ..CacheSpec::default() }, CacheResult::Miss),
        (CacheSpec { disabled_success: zone("example.com."), ..CacheSpec::default() }, SUCCESS),
        (CacheSpec { disabled_denial: zone("."), ..CacheSpec::default() }, SUCCESS),
    ] {
        block.spec = spec;
        assert_eq!(block.lookup(&www()).lookup, found, "{:?}", block.spec);
    }
}

#[test]
fn prefetch_by_one_caller() {
    let prefetch = Prefetch { amount: 3, duration: Duration::from_secs(60), percentage: 20 };
    let mut block = Block::new(CacheSpec { prefetch: Some(prefetch), ..CacheSpec::default() });
    block.store(&www(), &mut www().addresses(&[100]));
    assert_eq!(block.lookup(&www()).lookup, SUCCESS);
    block.wait(50.0);
    assert_eq!(block.lookup(&www()).lookup, SUCCESS);
    block.wait(29.9);
    assert_eq!(block.lookup(&www()).lookup, SUCCESS, "popular, but 20.1 s are left");
    block.wait(0.1);
    assert_eq!(block.lookup(&www()).lookup, FETCH);
    assert_eq!(block.lookup(&www()).lookup, SUCCESS, "claimed");
    block.wait(5.0);
    assert_eq!(block.lookup(&www()).lookup, FETCH, "the first caller never reported a result");
    block.failed(&www());
    block.wait(0.9);
    assert_eq!(block.lookup(&www()).lookup, SUCCESS, "it failed a moment ago");
    block.wait(0.1);
    assert_eq!(block.lookup(&www()).lookup, FETCH);
    block.store(&www(), &mut www().addresses(&[100]));
    block.wait(80.0);
    assert_eq!(block.lookup(&www()).lookup, SUCCESS, "a pause of over 60 s");
    block.lookup(&www());
    assert_eq!(block.lookup(&www()).lookup, FETCH);
}

#[test]
fn prefetch_in_the_last_second() {
    let prefetch = Prefetch { amount: 1, ..Prefetch::default() };
    let mut block = Block::new(CacheSpec { prefetch: Some(prefetch), ..CacheSpec::default() });
    block.store(&www(), &mut www().addresses(&[5]));
    block.wait(3.9);
    assert_eq!(block.lookup(&www()).lookup, SUCCESS);
    block.wait(0.1);
    let without_rd = Ask::with("www.example.org", RType::A, 0, false);
    assert_eq!(block.lookup(&without_rd).lookup, SUCCESS, "its answer could not be kept");
    assert_eq!(block.lookup(&www()).lookup, FETCH);
}

#[test]
fn popularity_survives_a_refresh() {
    let prefetch = Prefetch { amount: 5, ..Prefetch::default() };
    let mut block = Block::new(CacheSpec { prefetch: Some(prefetch), ..CacheSpec::default() });
    block.store(&www(), &mut www().addresses(&[10]));
    for _ in 0..4 {
        assert_eq!(block.lookup(&www()).lookup, SUCCESS);
    }
    block.store(&www(), &mut www().addresses(&[10]));
    block.wait(9.5);
    assert_eq!(block.lookup(&www()).lookup, FETCH);
}
