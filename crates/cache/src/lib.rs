//! The answer cache: success, denial, serve_stale, prefetch.
//!
//! ```text
//! query -> lookup -> Hit | Stale | Prefetch (written into the reply) | Verify | Miss
//! upstream's answer -> store -> Kept | Passed | EarlierIsBetter
//! ```
//!
//! One [`Cache`] holds the answers of all server blocks within one limit in bytes. Each block has a
//! [`Partition`] of it and a [`CacheSpec`], together a [`BlockCache`]. No I/O, no threads, no
//! clock: the time is an argument. No upstreams, Corefiles or metrics: results are returned and the
//! caller counts them.
//!
//! Memory: an answer of one A record to a name of 21 octets takes about 155 bytes of heap,
//! including tables and the allocator's rounding. An entry is two adjacent cache lines; the hash
//! table that finds it is apart, so that a lookup touches no other entry. An answer of more than 62
//! bytes, its name included, has an allocation of its own besides.

mod alloc_size;
mod block_cache;
mod cache;
mod cacheability;
mod entry;
mod export;
mod hash_index;
mod inline_bytes;
mod partition;
mod shard;
mod shards;
mod slab;
mod spec;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use block_cache::BlockCache;
pub use cache::Cache;
pub use export::Export;
pub use partition::{CacheResult, Partition, StoreResult};
pub use spec::{
    AnswerKind, CacheSpec, DEFAULT_CAPACITY, Prefetch, STALE_TTL, ServeStale, StaleMode, StoreLimits,
    VERIFY_WAIT,
};
