//! A bounded resource that many clients share: a dynamic-threshold quota for each client. Any
//! thread may acquire and release; no lock, no I/O.
//!
//! The rule is that of switches with shared memory for their ports (Choudhury and Hahne, "Dynamic
//! queue length thresholds for shared-memory packet switches", 1998): a client acquires one more
//! unit only while it holds fewer than `SHARE` times as many as are free. One greedy client
//! leaves some units free, and so do two, so a new client need not wait and no unit has to be
//! revoked. As more clients arrive fewer units are free, and a client with many gets no more until
//! the others have as many.

use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::quality::RandomState;

/// Counts the units that each client holds, and bounds them.
#[derive(Debug)]
pub struct ClientQuota {
    /// The most that one client may hold; 0: no limit.
    limit: u32,
    in_use: AtomicU32,
    /// Two rows of counters; absent without a limit.
    counts: Option<Box<[[AtomicU32; COUNTERS]; 2]>>,
}

impl ClientQuota {
    /// `limit` units for one client, and a quarter more for all clients together; 0: no limit.
    pub fn new(limit: u32) -> Self {
        let row = || [const { AtomicU32::new(0) }; COUNTERS];
        Self { limit, in_use: AtomicU32::new(0), counts: (limit > 0).then(|| Box::new([row(), row()])) }
    }

    /// The units of all clients together; 0: no limit.
    pub fn capacity(&self) -> u32 {
        self.limit.saturating_add(self.limit / SHARE)
    }

    /// How many units are held.
    pub fn in_use(&self) -> u32 {
        self.in_use.load(Relaxed)
    }

    /// Acquires a unit for a client; false where it may have no more. It is released for the same
    /// client.
    pub fn acquire(&self, client: ClientId) -> bool {
        self.acquire_many(client, 1)
    }

    /// Acquires `count` units, as if one after the other; false, with none acquired, where one of
    /// them is refused.
    pub fn acquire_many(&self, client: ClientId, count: u32) -> bool {
        let in_use = self.in_use.fetch_add(count, Relaxed);
        let Some(counts) = self.counts(client) else { return true };
        let [one, other] = counts.map(|counter| counter.fetch_add(count, Relaxed));
        // The rule holds for the last of them: the ones before it are in use by then.
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

    /// Whether a client may have one more where the capacity is `capacity`, less than that of the
    /// quota: the same rule, for a bound that changes.
    pub fn has_room(&self, client: ClientId, capacity: u32) -> bool {
        self.held(client) < capacity.saturating_sub(self.in_use()).saturating_mul(SHARE)
    }

    /// Whether a client holds half of its limit, or more.
    pub fn holds_half(&self, client: ClientId) -> bool {
        self.counts.is_some() && self.held(client) >= self.limit / 2
    }

    /// How many units a client holds, or somewhat more: see [`ClientId`].
    fn held(&self, client: ClientId) -> u32 {
        self.counts(client).map_or(0, |[one, other]| one.load(Relaxed).min(other.load(Relaxed)))
    }

    fn counts(&self, client: ClientId) -> Option<[&AtomicU32; 2]> {
        let [one, other] = &**self.counts.as_ref()?;
        Some([&one[usize::from(client.0[0])], &other[usize::from(client.0[1])]])
    }
}

/// A client as quotas count it: a counter in each of two rows, of which the lower is the better
/// estimate (a count-min sketch). A greedy client shares both counters with one client in 262,144;
/// the seed is random, so which one cannot be known outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId([u16; 2]);

impl ClientId {
    /// The client with this number, as of [`client_number`].
    pub fn of(number: u128) -> Self {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        let hash = SEED.hash_one(number);
        Self([(hash >> 55) as u16, (hash >> 46) as u16 & (COUNTERS as u16 - 1)])
    }
}

/// A client's address as a number: an IPv4 address has the same one when it is written as IPv6.
pub fn client_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// A client may hold this many times as many units as are free. The capacity exceeds the limit of
/// one client by one part in as many.
const SHARE: u32 = 4;
/// Counters of a row; two rows take 4 KiB.
const COUNTERS: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    /// How many units a client gets of as many as it asks for.
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
