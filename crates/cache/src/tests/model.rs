//! Property test: the cache against a map with deadlines.

use std::collections::HashMap;

use proptest::prelude::*;
use wire::{RType, Rcode};

use crate::testing::{Ask, Block};
use crate::{AnswerKind, CacheResult, CacheSpec, ServeStale, StaleMode, StoreResult};

#[derive(Clone, Copy, Debug)]
enum Step {
    Address { name: u8, ttl: u32 },
    Denial { name: u8, ttl: u32 },
    Failure { name: u8 },
    Lookup { name: u8 },
    ServeStale { name: u8 },
    Wait { milliseconds: u32 },
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0u8..6;
    prop_oneof![
        (name.clone(), 0u32..40).prop_map(|(name, ttl)| Step::Address { name, ttl }),
        (name.clone(), 0u32..40).prop_map(|(name, ttl)| Step::Denial { name, ttl }),
        name.clone().prop_map(|name| Step::Failure { name }),
        name.clone().prop_map(|name| Step::Lookup { name }),
        name.prop_map(|name| Step::ServeStale { name }),
        (0u32..25_000).prop_map(|milliseconds| Step::Wait { milliseconds }),
        Just(Step::Sweep),
    ]
}

/// The model's entry for a name; times in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Known {
    rcode: Rcode,
    ttl: u32,
    stored: u64,
    /// The window of serve_stale; 0 for a failure.
    window: u64,
}

impl Known {
    fn fresh(&self, now: u64) -> bool {
        now < self.stored + u64::from(self.ttl) * 1000
    }

    fn usable(&self, now: u64) -> bool {
        now < self.stored + u64::from(self.ttl) * 1000 + self.window
    }

    fn kind(&self) -> AnswerKind {
        if self.rcode == Rcode::NOERROR { AnswerKind::Success } else { AnswerKind::Denial }
    }
}

fn ask(name: u8) -> Ask {
    Ask::new(&format!("n{name}.example.org"), RType::A)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn cache_equals_its_model(
        stale in proptest::option::of((0u32..60, any::<bool>())),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let window = stale.map_or(0, |(seconds, _)| u64::from(seconds) * 1000);
        let stale = stale.map(|(seconds, verify)| ServeStale {
            window: std::time::Duration::from_secs(seconds.into()),
            mode: if verify { StaleMode::Verify { timeout: None } } else { StaleMode::Immediate },
            ..ServeStale::default()
        });
        let mut block = Block::new(CacheSpec { stale, ..CacheSpec::default() });
        let mut known: HashMap<u8, Known> = HashMap::new();
        let mut now = 0u64;
        for step in steps {
            match step {
                Step::Address { name, ttl } => {
                    let stored = block.store(&ask(name), &mut ask(name).addresses(&[ttl]));
                    prop_assert_eq!(stored, StoreResult::Kept(AnswerKind::Success));
                    known.insert(name, Known { rcode: Rcode::NOERROR, ttl: ttl.max(5), stored: now, window });
                }
                Step::Denial { name, ttl } => {
                    let stored = block.store(&ask(name), &mut ask(name).nxdomain(ttl, 3600));
                    prop_assert_eq!(stored, StoreResult::Kept(AnswerKind::Denial));
                    known.insert(name, Known { rcode: Rcode::NXDOMAIN, ttl: ttl.max(5), stored: now, window });
                }
                Step::Failure { name } => {
                    let good = known.get(&name).is_some_and(|k| k.rcode != Rcode::SERVFAIL && k.usable(now));
                    let stored = block.store(&ask(name), &mut ask(name).servfail());
                    prop_assert_eq!(stored, if good { StoreResult::EarlierIsBetter } else { StoreResult::Kept(AnswerKind::Denial) });
                    if !good {
                        known.insert(name, Known { rcode: Rcode::SERVFAIL, ttl: 5, stored: now, window: 0 });
                    }
                }
                Step::Lookup { name } => {
                    let seen = block.lookup(&ask(name));
                    match known.get(&name).filter(|k| k.usable(now)) {
                        None => prop_assert_eq!(seen.lookup, CacheResult::Miss),
                        Some(k) if k.fresh(now) => {
                            prop_assert_eq!(seen.lookup, CacheResult::Hit { kind: k.kind() });
                            prop_assert_eq!(seen.rcode, k.rcode);
                            let left = k.ttl - ((now - k.stored) / 1000) as u32;
                            prop_assert!(left > 0);
                            prop_assert!(seen.ttls.iter().all(|&ttl| ttl == left), "{:?} {}", seen.ttls, left);
                        }
                        Some(k) => match seen.lookup {
                            CacheResult::Stale { kind, .. } => {
                                prop_assert_eq!(kind, k.kind());
                                prop_assert_eq!(seen.rcode, k.rcode);
                                prop_assert!(matches!(seen.ttls[..], [0 | 30]));
                            }
                            CacheResult::Verify { .. } => prop_assert!(seen.ttls.is_empty()),
                            other => prop_assert!(false, "{other:?}"),
                        },
                    }
                }
                Step::ServeStale { name } => {
                    let served = block.serve_stale(&ask(name));
                    // A stored failure is no answer.
                    let k = known.get(&name).filter(|k| k.usable(now) && k.rcode != Rcode::SERVFAIL);
                    prop_assert_eq!(served.map(|seen| seen.rcode), k.map(|k| k.rcode));
                }
                Step::Wait { milliseconds } => {
                    now += u64::from(milliseconds);
                    block.now += std::time::Duration::from_millis(milliseconds.into());
                }
                Step::Sweep => {
                    block.cache.sweep(block.now, usize::MAX);
                    known.retain(|_, k| k.usable(now));
                    for kind in AnswerKind::ALL {
                        let expected = known.values().filter(|k| k.kind() == kind).count();
                        prop_assert_eq!(block.partition.entries(kind), expected);
                    }
                }
            }
        }
    }
}
