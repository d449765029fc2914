//! Whose turn it is on the threads that serve TCP clients. The connections of one address have two at a time, and work for a moment
//! together; before they go on whoever else is ready has had one: clients of other addresses, upstreams, the listeners.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// The turns of one address's connections.
pub(crate) struct Turns {
    free: Semaphore,
    /// Nanoseconds of work since others had a turn.
    spent: AtomicU64,
}

impl Default for Turns {
    fn default() -> Self {
        Self { free: Semaphore::new(AT_ONCE), spent: AtomicU64::new(0) }
    }
}

impl Turns {
    /// A turn, if one is free: its holder may work until it is dropped.
    pub(crate) fn try_next(&self) -> Option<SemaphorePermit<'_>> {
        self.free.try_acquire().ok()
    }

    /// Waits for one, behind those that wait already.
    pub(crate) async fn next(&self) -> Option<SemaphorePermit<'_>> {
        self.free.acquire().await.ok()
    }

    /// Counts what a turn took. True where it is others' turn: who holds this one lets them go first and keeps it meanwhile,
    /// so that no other connection of the address works either.
    pub(crate) fn spend(&self, work: Duration) -> bool {
        let work = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX);
        let is_over = self.spent.fetch_add(work, Relaxed).saturating_add(work) >= MOMENT.as_nanos() as u64;
        if is_over {
            self.spent.store(0, Relaxed);
        }
        is_over
    }
}

/// How long the connections of an address work before it is others' turn, and each of them at the most, but for the message that
/// it is at: a cached answer takes microseconds, and one of 64 KiB where steps act milliseconds.
pub(crate) const MOMENT: Duration = Duration::from_millis(1);
/// One for each of the threads: an address that is alone has all of them.
const AT_ONCE: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_others_turn_after_a_moment_of_work_of_all_connections_together() {
        let turns = Turns::default();
        let third = MOMENT / 3 + Duration::from_nanos(1);
        let over = [third, third, third, third, MOMENT, Duration::MAX, third].map(|work| turns.spend(work));
        assert_eq!(over, [false, false, true, false, true, true, false]);
        let both = (turns.try_next(), turns.try_next());
        assert!(both.0.is_some() && both.1.is_some() && turns.try_next().is_none());
        drop(both.0);
        assert!(turns.try_next().is_some());
    }
}
