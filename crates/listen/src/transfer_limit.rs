//! Bounds the number and time of transfers: each holds a snapshot of a zone.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The running transfers of all connections, by client address.
#[derive(Default)]
pub(super) struct TransferLimit(Mutex<HashMap<IpAddr, usize>>);

/// A running transfer.
pub(super) struct Slot {
    of: Arc<TransferLimit>,
    client: IpAddr,
    /// When the transfer must end.
    until: Instant,
}

impl TransferLimit {
    /// Begins one more transfer to this client; `None` at the maximum of all or of this client.
    pub(super) fn enter(self: &Arc<Self>, client: IpAddr, now: Instant) -> Option<Slot> {
        let mut running = self.running();
        let (all, own) = (running.values().sum::<usize>(), running.get(&client).copied().unwrap_or_default());
        if all >= MOST || own >= MOST_OF_A_CLIENT {
            return None;
        }
        running.insert(client, own + 1);
        #[cfg(test)]
        let now = crate::failpoint::began_earlier(client, now);
        Some(Slot { of: self.clone(), client, until: now + LONGEST })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Returns the time left; zero ends the transfer.
    pub(super) fn left(&self, now: Instant) -> Duration {
        self.until.saturating_duration_since(now)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut running = self.of.running();
        match running.get_mut(&self.client) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(running.remove(&self.client)),
        }
    }
}

/// Concurrent transfers, in all and to one client address.
const MOST: usize = 16;
const MOST_OF_A_CLIENT: usize = 4;
/// How long one transfer may take: 20 MB at 35 kB/s. The `timeouts` are per message, so a client
/// that reads slowly would otherwise hold a slot, and an old snapshot, for hours.
const LONGEST: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    /// No client takes all slots, and each slot is returned.
    #[test]
    fn transfer_slots_are_returned() {
        let (transfers, now) = (Arc::<TransferLimit>::default(), clock::now());
        let client = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut slots: Vec<Slot> = Vec::new();
        for last in 0..4 {
            for _ in 0..MOST_OF_A_CLIENT {
                slots.extend(transfers.enter(client(last), now));
            }
            assert!(transfers.enter(client(last), now).is_none(), "{last}");
        }
        assert_eq!(slots.len(), MOST);
        assert!(transfers.enter(client(9), now).is_none());
        slots.remove(5);
        assert!(transfers.enter(client(2), now).is_none());
        slots.extend(transfers.enter(client(1), now));
        assert_eq!(slots.len(), MOST);
        slots.clear();
        assert!(transfers.running().is_empty());
    }

    #[test]
    fn no_place_is_held_for_ever() {
        let (transfers, now) = (Arc::<TransferLimit>::default(), clock::now());
        let slot = transfers.enter(IpAddr::from([192, 0, 2, 1]), now).unwrap();
        for (passed, left) in [(0, 600), (599, 1), (600, 0), (10_000, 0)] {
            assert_eq!(slot.left(now + Duration::from_secs(passed)), Duration::from_secs(left), "{passed}");
        }
    }
}
