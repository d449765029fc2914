//! Expired answers: RFC 8767 and `serve_stale`.

use std::time::Duration;

use wire::{Flags, RType, Rcode};

use crate::testing::{Ask, Block, a, cname, ns};
use crate::{AnswerKind, CacheResult, CacheSpec, ServeStale, StaleMode, StoreResult};

const HIT: CacheResult = CacheResult::Hit { kind: AnswerKind::Success };
const WAIT: Duration = Duration::from_millis(1800);
const ASK_FIRST: CacheResult = CacheResult::Verify { wait: WAIT };

fn stale(refresh: bool) -> CacheResult {
    CacheResult::Stale { kind: AnswerKind::Success, refresh }
}

fn www() -> Ask {
    Ask::new("www.example.org", RType::A)
}

/// A block with an answer that expired 1 s ago.
fn expired(stale: ServeStale) -> Block {
    let mut block = Block::new(CacheSpec { stale: Some(stale), ..CacheSpec::default() });
    block.store(&www(), &mut www().addresses(&[10, 300]));
    block.wait(11.0);
    block
}

fn verify(timeout: Option<Duration>) -> ServeStale {
    ServeStale { mode: StaleMode::Verify { timeout }, ..ServeStale::default() }
}

/// Only one caller refreshes the expired answer.
#[test]
fn immediate_has_ttl_0() {
    let mut block = expired(ServeStale::default());
    let seen = block.lookup(&www());
    assert_eq!((seen.lookup, seen.ttls, seen.ede), (stale(true), vec![0, 0], vec![3]));
    for _ in 0..3 {
        assert_eq!(block.lookup(&www()).lookup, stale(false));
    }
    assert_eq!(block.store(&www(), &mut www().addresses(&[60])), StoreResult::Kept(AnswerKind::Success));
    let seen = block.lookup(&www());
    assert_eq!((seen.lookup, seen.ttls, seen.ede), (HIT, vec![60], vec![]));
    block.wait(60.0);
    assert_eq!(block.lookup(&www()).lookup, stale(true));
}

#[test]
fn refresh_backoff_doubles() {
    let mut block = expired(ServeStale::default());
    for pause in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0] {
        assert_eq!(block.lookup(&www()).lookup, stale(true), "before a pause of {pause} s");
        block.failed(&www());
        let seen = block.lookup(&www());
        assert_eq!((seen.lookup, seen.ttls), (stale(false), vec![30, 30]), "RFC 8767, section 4");
        block.wait(pause - 0.1);
        assert_eq!(block.lookup(&www()).lookup, stale(false), "within a pause of {pause} s");
        block.wait(0.1);
    }
    block.store(&www(), &mut www().addresses(&[10]));
    block.wait(10.0);
    let seen = block.lookup(&www());
    assert_eq!((seen.lookup, seen.ttls), (stale(true), vec![0]), "the upstream answers again");
}

#[test]
fn failure_recheck_and_response_ttl() {
    for (ttl, recheck, early, late) in [
        (Some(7), Some(Duration::from_secs(20)), stale(false), stale(true)),
        (Some(7), Some(Duration::ZERO), stale(true), stale(true)),
        (Some(7), Some(Duration::from_secs(3600)), stale(false), stale(false)),
    ] {
        let mut block = expired(ServeStale { ttl, recheck, ..ServeStale::default() });
        assert_eq!(block.lookup(&www()).ttls, [7, 7]);
        block.failed(&www());
        let seen = block.lookup(&www());
        assert_eq!((seen.lookup, seen.ttls), (early, vec![7, 7]));
        block.failed(&www());
        block.wait(20.0);
        assert_eq!(block.lookup(&www()).lookup, late);
    }
}

#[test]
fn stale_window_ends() {
    let mut block = expired(ServeStale { window: Duration::from_secs(100), ..ServeStale::default() });
    block.wait(98.9);
    assert_eq!(block.lookup(&www()).lookup, stale(true));
    block.wait(0.1);
    assert!(block.serve_stale(&www()).is_none());
    assert_eq!(block.lookup(&www()).lookup, CacheResult::Miss);
    assert_eq!(block.partition.entries(AnswerKind::Success), 0);
}

#[test]
fn verify_falls_back_to_stale() {
    for (timeout, wait) in [(None, WAIT), (Some(Duration::from_millis(100)), Duration::from_millis(100))] {
        let mut block = expired(verify(timeout));
        for _ in 0..3 {
            assert_eq!(
                block.lookup(&www()).lookup,
                CacheResult::Verify { wait },
                "all wait for the same answer"
            );
        }
        for _ in 0..3 {
            let seen = block.serve_stale(&www()).unwrap();
            assert_eq!((seen.ttls, seen.ede), (vec![30, 30], vec![3]));
        }
        assert_eq!(
            block.lookup(&www()).lookup,
            stale(false),
            "three clients failed at once, which is one failure"
        );
        block.wait(1.0);
        assert_eq!(block.lookup(&www()).lookup, CacheResult::Verify { wait }, "one tries");
        assert_eq!(block.lookup(&www()).lookup, stale(false), "the others do not wait");
        assert_eq!(block.store(&www(), &mut www().addresses(&[60])), StoreResult::Kept(AnswerKind::Success));
        assert_eq!(block.lookup(&www()).lookup, HIT);
    }
}

#[test]
fn failure_keeps_the_expired_answer() {
    for rcode in [Rcode::SERVFAIL, Rcode::REFUSED, Rcode::NOTIMP, Rcode::FORMERR] {
        let block = expired(verify(None));
        assert_eq!(block.lookup(&www()).lookup, ASK_FIRST);
        assert_eq!(
            block.store(&www(), &mut www().answer(rcode, 0, &[])),
            StoreResult::EarlierIsBetter,
            "{rcode}"
        );
        assert_eq!(block.serve_stale(&www()).unwrap().ttls, [30, 30], "{rcode}");
        assert_eq!(block.lookup(&www()).lookup, stale(false), "{rcode}");
    }
}

#[test]
fn address_replaces_an_expired_denial() {
    let mut block = Block::new(CacheSpec { stale: Some(verify(None)), ..CacheSpec::default() });
    block.store(&www(), &mut www().nxdomain(10, 10));
    block.wait(20.0);
    assert_eq!(block.lookup(&www()).lookup, ASK_FIRST);
    let seen = block.serve_stale(&www()).unwrap();
    assert_eq!((seen.rcode, seen.ede, seen.ttls), (Rcode::NXDOMAIN, vec![19], vec![30]));
    assert_eq!(block.store(&www(), &mut www().addresses(&[60])), StoreResult::Kept(AnswerKind::Success));
    block.wait(61.0);
    assert_eq!(block.serve_stale(&www()).unwrap().rcode, Rcode::NOERROR);
    assert_eq!(block.partition.entries(AnswerKind::Denial), 0);
}

/// A denial replaces the expired address even if the denial cannot be stored.
#[test]
fn denial_replaces_an_expired_address() {
    let block = expired(verify(None));
    assert_eq!(block.store(&www(), &mut www().answer(Rcode::NXDOMAIN, 0, &[])), StoreResult::Passed);
    assert!(block.serve_stale(&www()).is_none());
    assert_eq!(block.lookup(&www()).lookup, CacheResult::Miss);
}

/// With `prefer_positive` addresses stay until the window ends.
#[test]
fn prefer_positive_keeps_addresses() {
    for mode in [StaleMode::Immediate, StaleMode::Verify { timeout: None }] {
        let mut block = expired(ServeStale { mode, prefer_positive: true, ..ServeStale::default() });
        let alias = cname("www.example.org.", 60);
        for (what, mut other) in [
            ("denial", www().nxdomain(60, 60)),
            ("denial without SOA", www().answer(Rcode::NXDOMAIN, 0, &[])),
            ("failure", www().servfail()),
            ("nothing", www().answer(Rcode::NOERROR, 0, &[])),
            ("referral", www().answer(Rcode::NOERROR, 0, &[ns(60)])),
            ("alias to nowhere", www().answer(Rcode::NOERROR, 0, &[alias])),
            ("truncated", www().answer(Rcode::NOERROR, Flags::TC, &[a("www.example.org.", 60)])),
        ] {
            assert_eq!(block.store(&www(), &mut other), StoreResult::EarlierIsBetter, "{what}");
        }
        assert_eq!(block.serve_stale(&www()).unwrap().rcode, Rcode::NOERROR);
        assert_eq!(block.lookup(&www()).lookup, stale(false));
        assert_eq!(block.store(&www(), &mut www().addresses(&[20])), StoreResult::Kept(AnswerKind::Success));
        assert_eq!(block.lookup(&www()).ttls, [20]);
        block.wait(3620.0);
        assert_eq!(block.store(&www(), &mut www().nxdomain(60, 60)), StoreResult::Kept(AnswerKind::Denial));
        assert_eq!(block.store(&www(), &mut www().addresses(&[20])), StoreResult::Kept(AnswerKind::Success));
    }
}

/// Without the policy the upstream's last answer is passed on, and the earlier one stays for later
/// clients.
#[test]
fn referral_passes_without_prefer_positive() {
    let block = expired(verify(None));
    for records in [[ns(60)], [cname("www.example.org.", 60)]] {
        assert_eq!(block.store(&www(), &mut www().answer(Rcode::NOERROR, 0, &records)), StoreResult::Passed);
        assert_eq!(block.lookup(&www()).lookup, ASK_FIRST);
    }
}

#[test]
fn failure_is_never_stale() {
    let mut block = Block::new(CacheSpec { stale: Some(ServeStale::default()), ..CacheSpec::default() });
    block.store(&www(), &mut www().servfail());
    block.wait(5.0);
    assert!(block.serve_stale(&www()).is_none());
    assert_eq!(block.lookup(&www()).lookup, CacheResult::Miss);
}

#[test]
fn no_stale_without_rd() {
    let block = expired(ServeStale::default());
    let ask = Ask::with("www.example.org", RType::A, 0, false);
    assert_eq!(block.lookup(&ask).lookup, CacheResult::Miss);
    assert!(block.serve_stale(&ask).is_none());
    assert_eq!(block.lookup(&www()).lookup, stale(true), "and spoils nothing");
}

#[test]
fn serve_stale_returns_fresh_answers() {
    let block = Block::new(CacheSpec::default());
    assert!(block.serve_stale(&www()).is_none());
    block.store(&www(), &mut www().answer(Rcode::NOERROR, Flags::RA, &[a("www.example.org.", 60)]));
    let seen = block.serve_stale(&www()).unwrap();
    assert_eq!((seen.ttls, seen.ede, seen.flags), (vec![60], vec![], Flags(Flags::RA)));
}
