//! Memory of suspended queries: one limit for all clients, with a fair share for each.

use std::sync::Arc;

use client_quota::{ClientId, ClientQuota};

/// Bytes accounted to a client, released on drop.
#[derive(Debug)]
pub struct MemoryPermit {
    of_all: Arc<ClientQuota>,
    client: ClientId,
    octets: u32,
}

impl MemoryPermit {
    /// Accounts for these bytes; `None` if the client would hold too much.
    pub fn take(of_all: &Arc<ClientQuota>, client: ClientId, octets: usize) -> Option<Self> {
        let octets = u32::try_from(octets).ok()?;
        of_all.acquire_many(client, octets).then(|| Self { of_all: of_all.clone(), client, octets })
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.of_all.release_many(self.client, self.octets);
    }
}

/// Creates the quota for all suspended queries, in bytes.
pub fn room() -> Arc<ClientQuota> {
    Arc::new(ClientQuota::new(MAX_BYTES_PER_CLIENT))
}

/// Bytes that all suspended queries may hold together, and (below) those of one client.
pub const MAX_SUSPENDED_BYTES: usize = 8 << 20;
pub(crate) const MAX_BYTES_PER_CLIENT: u32 = MAX_SUSPENDED_BYTES as u32 / 5 * 4;
