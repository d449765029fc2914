//! Octets that wait for somebody: all clients share a bound, and none takes what others need.

use std::sync::Arc;

use forwarder::{Fair, Who};

/// So many octets of a client's, given back when they are dropped.
#[derive(Debug)]
pub struct MemoryPermit {
    of_all: Arc<Fair>,
    who: Who,
    octets: u32,
}

impl MemoryPermit {
    /// Takes them; `None` where there is no room for so many of this client's.
    pub fn take(of_all: &Arc<Fair>, who: Who, octets: usize) -> Option<Self> {
        let octets = u32::try_from(octets).ok()?;
        of_all.take_some(who, octets).then(|| Self { of_all: of_all.clone(), who, octets })
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.of_all.give_back_some(self.who, self.octets);
    }
}

/// Room for what all evaluations that wait hold, in octets.
pub fn room() -> Arc<Fair> {
    Arc::new(Fair::new(MOST_OF_ONE))
}

/// Octets that all evaluations which wait may hold together, and those of one client.
pub const MAX_SUSPENDED_BYTES: usize = 8 << 20;
pub(crate) const MOST_OF_ONE: u32 = MAX_SUSPENDED_BYTES as u32 / 5 * 4;
