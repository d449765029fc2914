//! All partitions of the cache: shards, identities and the limit in bytes.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use crate::Partition;
use crate::export::ExportWriter;
use crate::shards::{AT_ONCE, Shards};

/// The answers of all server blocks; a handle, cheap to clone.
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
    /// Default limit: 64 MiB.
    pub const DEFAULT_BYTES: usize = 64 << 20;
    /// Smallest limit: 1 MiB.
    pub const MIN_BYTES: usize = 1 << 20;
    /// Largest limit: 4 GiB.
    pub const MAX_BYTES: usize = 4 << 30;

    /// Creates an empty cache of at most `bytes` bytes of heap, clamped to
    /// [`Cache::MIN_BYTES`]`..=`[`Cache::MAX_BYTES`].
    ///
    /// `start` is the process's first reading of the clock; earlier times count as `start`.
    pub fn new(bytes: usize, start: Instant) -> Self {
        let shards = Shards::new(bytes.clamp(Self::MIN_BYTES, Self::MAX_BYTES), start);
        Self { shards: Arc::new(shards), holders: Arc::default() }
    }

    /// Returns the partition of the server block with this identity (its zones and addresses): the
    /// same one while any `Arc` of it exists, so a reload keeps its answers. They are freed with
    /// the last `Arc`.
    pub fn partition(&self, identity: &str) -> Arc<Partition> {
        // A panic elsewhere must not disable the cache.
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

    /// Copies answers for another process, recently used ones first, at most `most_bytes`. That
    /// process reads them with [`crate::Export::read`].
    pub fn export(&self, now: Instant, most_bytes: usize) -> Vec<u8> {
        let now = self.shards.milliseconds(now);
        let mut writer = {
            let identities = self.shards.identities();
            ExportWriter::new(identities.iter().map(|identity| identity.as_deref().unwrap_or("")), most_bytes)
        };
        for used in [true, false] {
            for at in 0..self.shards.count() {
                let mut from = 0;
                // A few entries per lock, as queries wait for the lock.
                while let Some(next) = self.shards.lock(at).copy(from, AT_ONCE, used, now, &mut writer) {
                    from = next;
                }
            }
        }
        writer.finish()
    }

    /// Returns the bytes of heap in use, including the allocator's rounding. They exceed the limit
    /// only while the table of a shard grows or shrinks.
    pub fn bytes(&self) -> usize {
        (0..self.shards.count()).map(|at| self.shards.lock(at).bytes()).sum()
    }

    /// Frees dead entries among the next `budget` entries; returns how many.
    ///
    /// Called by a timer. Optional: dead entries are also removed when they are looked up, and
    /// first when room is needed.
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
