//! A bounded resource that many clients share: a dynamic-threshold quota for each client. Any
//! thread may acquire and release; no lock, no I/O.
//!
//! The rule is that of network switches with ports that share one buffer memory (Choudhury and
//! Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998): a client acquires
//! one more unit only while it holds fewer than `SHARE` times the number of free units. Any number
//! of greedy clients leaves some units free, so a new client need not wait and no unit has to be
//! revoked. As more clients arrive, fewer units are free, and a client that holds many acquires no
//! more until the others hold as many.

use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::quality::RandomState;

/// Counts the units that each client holds, and bounds them.
#[derive(Debug)]
pub struct ClientQuota {
    /// Maximum number of units that one client may hold; 0: no limit.
    limit: u32,
    in_use: AtomicU32,
    /// Two rows of counters of held units (a count-min sketch); `None` without a limit.
    counts: Option<Box<[[AtomicU32; COUNTERS]; 2]>>,
}

impl ClientQuota {
    /// Makes a quota of `limit` units for one client, and a quarter more for all clients together;
    /// 0: no limit.
    pub fn new(limit: u32) -> Self {
        let row = || [const { AtomicU32::new(0) }; COUNTERS];
        Self { limit, in_use: AtomicU32::new(0), counts: (limit > 0).then(|| Box::new([row(), row()])) }
    }

    /// Returns the maximum number of units of all clients together; 0: no limit.
    pub fn capacity(&self) -> u32 {
        self.limit.saturating_add(self.limit / SHARE)
    }

    /// Returns the number of units that all clients hold.
    pub fn in_use(&self) -> u32 {
        self.in_use.load(Relaxed)
    }

    /// Acquires a unit for a client; returns false if the client may hold no more. Release the unit
    /// for the same client.
    pub fn acquire(&self, client: ClientId) -> bool {
        self.acquire_many(client, 1)
    }

    /// Acquires `count` units, as if one after the other; if one of them is refused, acquires none
    /// and returns false.
    pub fn acquire_many(&self, client: ClientId, count: u32) -> bool {
        let in_use = self.in_use.fetch_add(count, Relaxed);
        let Some(counts) = self.counts(client) else { return true };
        let [one, other] = counts.map(|counter| counter.fetch_add(count, Relaxed));
        // Checks the rule for the last unit, when the units before it are already in use.
        let before = count.saturating_sub(1);
        let held = one.min(other).saturating_add(before);
        let free = self.capacity().saturating_sub(in_use).saturating_sub(before);
        let fits = count == 0 || (held < self.limit && held < free.saturating_mul(SHARE));
        if !fits {
            self.release_many(client, count);
        }
        fits
    }

    /// Releases a unit.
    pub fn release(&self, client: ClientId) {
        self.release_many(client, 1);
    }

    /// Releases `count` units.
    pub fn release_many(&self, client: ClientId, count: u32) {
        self.in_use.fetch_sub(count, Relaxed);
        for counter in self.counts(client).into_iter().flatten() {
            counter.fetch_sub(count, Relaxed);
        }
    }

    /// Whether a client may hold one more unit by the same rule if the capacity is `capacity`
    /// instead of the quota's own, which is larger: for a bound that changes.
    pub fn has_room(&self, client: ClientId, capacity: u32) -> bool {
        self.held(client) < capacity.saturating_sub(self.in_use()).saturating_mul(SHARE)
    }

    /// Whether a client holds at least half of its limit.
    pub fn holds_half(&self, client: ClientId) -> bool {
        self.counts.is_some() && self.held(client) >= self.limit / 2
    }

    /// Returns the number of units that a client holds, or a somewhat larger one: see [`ClientId`].
    fn held(&self, client: ClientId) -> u32 {
        self.counts(client).map_or(0, |[one, other]| one.load(Relaxed).min(other.load(Relaxed)))
    }

    fn counts(&self, client: ClientId) -> Option<[&AtomicU32; 2]> {
        let [one, other] = &**self.counts.as_ref()?;
        Some([&one[usize::from(client.0[0])], &other[usize::from(client.0[1])]])
    }
}

/// The identity of a client in a quota: the index of a counter in each of two rows (a count-min
/// sketch). The lower counter is the estimate of the client's units. Two clients share both
/// counters with a probability of 1 in 262,144; the seed is random, so no client can choose an
/// address that collides with another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId([u16; 2]);

impl ClientId {
    /// Returns the identity of the client with this [`client_number`].
    pub fn of(number: u128) -> Self {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        let hash = SEED.hash_one(number);
        Self([(hash >> 55) as u16, (hash >> 46) as u16 & (COUNTERS as u16 - 1)])
    }
}

/// Returns a client's address as a number; an IPv4 address and its IPv4-mapped IPv6 address have
/// the same one.
pub fn client_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// A client may hold this many times the number of free units. The capacity exceeds one client's
/// limit by the limit divided by this number.
const SHARE: u32 = 4;
/// Counters of a row; two rows take 4 KiB.
const COUNTERS: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `asks` units a client acquires.
    fn gets(quota: &ClientQuota, client: u128, asks: usize) -> usize {
        (0..asks).filter(|_| quota.acquire(ClientId::of(client))).count()
    }

    #[test]
    fn one_client_gets_its_limit() {
        for limit in (1..200).chain([1_000, 1_003, 4_096, 8_192]) {
            let quota = ClientQuota::new(limit);
            assert_eq!(gets(&quota, 1, 2 * limit as usize), limit as usize);
            assert_eq!(quota.in_use(), limit);
        }
        assert_eq!(gets(&ClientQuota::new(0), 1, 10_000), 10_000, "no limit");
    }

    /// Greedy clients never exceed the capacity, and leave units for a new one.
    #[test]
    fn greedy_clients_leave_room() {
        for greedy in 1..=8 {
            let quota = ClientQuota::new(1_000);
            for round in 0..2_000 {
                for client in 0..greedy {
                    quota.acquire(ClientId::of(client));
                }
                assert!(quota.in_use() <= quota.capacity(), "round {round}");
            }
            let left = quota.capacity() - quota.in_use();
            assert!(left as u128 >= 1_250 / (4 * greedy + 1) - greedy, "{greedy} leave {left}");
            assert_eq!(gets(&quota, 100, 10), 10, "beside {greedy}");
        }
    }

    #[test]
    fn many_equal_one_by_one() {
        for (limit, others) in [(1_000, 0), (1_000, 900), (1_003, 1_000), (8, 1), (1, 0)] {
            for count in 0..=limit + 1 {
                let [at_once, in_turn] = [(); 2].map(|()| ClientQuota::new(limit));
                for quota in [&at_once, &in_turn] {
                    gets(quota, 2, others);
                }
                let fits = at_once.acquire_many(ClientId::of(1), count);
                let one_by_one = gets(&in_turn, 1, count as usize) == count as usize;
                assert_eq!(fits, one_by_one, "{limit} {others} {count}");
                let expected = others as u32 + if fits { count } else { 0 };
                assert_eq!(at_once.in_use(), expected, "{limit} {others} {count}");
            }
        }
    }

    #[test]
    fn released_units_go_to_clients_with_few() {
        let quota = ClientQuota::new(100);
        assert_eq!((gets(&quota, 1, 200), gets(&quota, 2, 200)), (100, 20));
        for _ in 0..15 {
            quota.release(ClientId::of(1));
            assert!(!quota.acquire(ClientId::of(1)), "it has many, and few are free");
        }
        assert_eq!(gets(&quota, 3, 20), 16);
        for (client, count) in [(1, 85), (2, 20), (3, 16)] {
            (0..count).for_each(|_| quota.release(ClientId::of(client)));
        }
        assert_eq!((quota.in_use(), gets(&quota, 1, 200)), (0, 100));
    }
}
