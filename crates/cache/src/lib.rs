//! The answer cache: success, denial, stale, prefetch.
//!
//! ```text
//! query -> lookup -> Hit | Stale | Prefetch (written into the reply) | Verify | Miss
//! upstream's answer -> store -> kept | passed on | an older one is better
//! ```
//!
//! One [`Cache`] holds the answers of all server blocks under one bound in bytes; a block has a [`Partition`] of it and
//! a [`CacheSpec`], which is handed in with each call: a [`BlockCache`]. Nothing here does I/O, starts a thread or reads a clock: the time is
//! an argument. It knows nothing of upstreams, Corefiles or metrics; it says what it did and the caller counts.
//!
//! Memory: an answer of one A record to a name of 21 octets takes about 155 bytes of heap, tables and rounding included.
//! It stands in two cache lines that processors fetch together, and the table that finds it touches no other answer; of
//! an answer of more than 62 octets, its name included, those octets are an allocation of their own besides.

mod alloc_size;
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

pub use cache::{BlockCache, Cache};
pub use export::Dump;
pub use partition::{CacheResult, Partition, StoreResult};
pub use spec::{
    AnswerKind, CacheSpec, DEFAULT_CAPACITY, Prefetch, STALE_TTL, ServeStale, StaleMode, StoreLimits,
    VERIFY_WAIT,
};
