//! Shares the CPU time of the threads that serve TCP clients among addresses. Two connections of an
//! address run at a time, for [`MOMENT`] together; then they yield to all other ready tasks:
//! clients of other addresses, upstreams, listeners.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// The turns of the connections of one address.
pub(crate) struct CpuBudget {
    free: Semaphore,
    /// Nanoseconds of work since the last yield.
    spent: AtomicU64,
}

impl Default for CpuBudget {
    fn default() -> Self {
        Self { free: Semaphore::new(AT_ONCE), spent: AtomicU64::new(0) }
    }
}

impl CpuBudget {
    /// Returns a turn, if one is free: its holder may run until the permit is dropped.
    pub(crate) fn try_next(&self) -> Option<SemaphorePermit<'_>> {
        self.free.try_acquire().ok()
    }

    /// Waits for a turn, in FIFO order.
    pub(crate) async fn next(&self) -> Option<SemaphorePermit<'_>> {
        self.free.acquire().await.ok()
    }

    /// Counts the time of a turn. Returns true if the holder must yield, keeping its turn, so that
    /// no other connection of the address runs meanwhile.
    pub(crate) fn spend(&self, work: Duration) -> bool {
        let work = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX);
        let is_over = self.spent.fetch_add(work, Relaxed).saturating_add(work) >= MOMENT.as_nanos() as u64;
        if is_over {
            self.spent.store(0, Relaxed);
        }
        is_over
    }
}

/// How long the connections of an address run before they yield, together and each, not counting
/// the current message: a cached answer takes microseconds, one of 64 KiB that middleware rewrites
/// milliseconds.
pub(crate) const MOMENT: Duration = Duration::from_millis(1);
/// One for each of the threads: a single address may use all of them.
const AT_ONCE: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_others_turn_after_a_moment_of_work_of_all_connections_together() {
        let turns = CpuBudget::default();
        let third = MOMENT / 3 + Duration::from_nanos(1);
        let over = [third, third, third, third, MOMENT, Duration::MAX, third].map(|work| turns.spend(work));
        assert_eq!(over, [false, false, true, false, true, true, false]);
        let both = (turns.try_next(), turns.try_next());
        assert!(both.0.is_some() && both.1.is_some() && turns.try_next().is_none());
        drop(both.0);
        assert!(turns.try_next().is_some());
    }
}
