//! The whole cache: its shards, its partitions and its bound.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use wire::Name;

use crate::export::ExportWriter;
use crate::shards::{AT_ONCE, Shards};
use crate::{CacheSpec, Partition};

/// A block's part of the cache.
#[derive(Clone)]
pub struct BlockCache {
    /// Where its answers are.
    pub partition: Arc<Partition>,
    /// How long they live; without zones where every name that can come is within one of them.
    pub spec: CacheSpec,
    /// The zones that the directive names.
    pub zones: Box<[Name]>,
}

impl BlockCache {
    /// The cache, if it keeps answers to `name`.
    #[inline]
    pub fn covering(&self, name: &Name) -> Option<&Self> {
        self.spec.covers(name).then_some(self)
    }
}

/// All server blocks' answers; a handle, cheap to clone.
#[derive(Clone)]
pub struct Cache {
    shards: Arc<Shards>,
    holders: Arc<Mutex<Vec<Holder>>>,
}

struct Holder {
    identity: Box<str>,
    partition: Weak<Partition>,
}

impl Cache {
    /// The default bound: 64 MiB.
    pub const DEFAULT_BYTES: usize = 64 << 20;
    /// The smallest bound: 1 MiB.
    pub const MIN_BYTES: usize = 1 << 20;
    /// The greatest bound: 4 GiB.
    pub const MAX_BYTES: usize = 4 << 30;

    /// An empty cache of at most `bytes` bytes of heap, brought between [`Cache::MIN_BYTES`] and [`Cache::MAX_BYTES`].
    ///
    /// `start` is the process's first reading of its clock; a time before it counts as it.
    pub fn new(bytes: usize, start: Instant) -> Self {
        let shards = Shards::new(bytes.clamp(Self::MIN_BYTES, Self::MAX_BYTES), start);
        Self { shards: Arc::new(shards), holders: Arc::default() }
    }

    /// The partition of the server block that `identity` (its zones and addresses) names: the same answers as before
    /// while anybody holds it, so that a reload keeps them. Once all holders are gone its answers go too.
    pub fn partition(&self, identity: &str) -> Arc<Partition> {
        // A panic that was caught elsewhere must not make the cache useless.
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        for holder in holders.iter().filter(|holder| *holder.identity == *identity) {
            if let Some(partition) = holder.partition.upgrade() {
                return partition;
            }
        }
        let number = self.shards.number(identity);
        let partition = Arc::new(Partition::new(Arc::clone(&self.shards), number));
        holders.retain(|holder| holder.partition.strong_count() > 0);
        holders.push(Holder { identity: identity.into(), partition: Arc::downgrade(&partition) });
        partition
    }

    /// Copies answers for another process's cache, those first that were used of late: `most_bytes` at the most. It reads
    /// them with [`crate::Dump::read`].
    pub fn dump(&self, now: Instant, most_bytes: usize) -> Vec<u8> {
        let now = self.shards.milliseconds(now);
        let mut writer = {
            let identities = self.shards.identities();
            ExportWriter::new(identities.iter().map(|identity| identity.as_deref().unwrap_or("")), most_bytes)
        };
        for used in [true, false] {
            for at in 0..self.shards.count() {
                let mut from = 0;
                // A few entries for each time the lock is held: queries wait for it meanwhile.
                while let Some(next) = self.shards.lock(at).copy(from, AT_ONCE, used, now, &mut writer) {
                    from = next;
                }
            }
        }
        writer.finish()
    }

    /// Bytes of heap in use, the allocator's rounding included; never over the bound but for the moment in which one of
    /// the shards' tables grows or shrinks.
    pub fn bytes(&self) -> usize {
        (0..self.shards.count()).map(|at| self.shards.lock(at).bytes()).sum()
    }

    /// Frees what nobody can be served any more among the next `budget` entries, and returns how many that were.
    ///
    /// Meant for a timer; nothing breaks without it, for dead entries also go when touched and first when room is needed.
    pub fn sweep(&self, now: Instant, budget: usize) -> usize {
        let now = self.shards.milliseconds(now);
        let mut left = budget;
        let mut freed = 0;
        for _ in 0..self.shards.count() {
            let at = self.shards.next_shard();
            loop {
                if left == 0 {
                    return freed;
                }
                let swept = self.shards.lock(at).sweep(now, left.min(AT_ONCE));
                left -= swept.looked_at;
                freed += swept.freed;
                if swept.done {
                    break;
                }
            }
            self.shards.went_past(at);
        }
        freed
    }
}
