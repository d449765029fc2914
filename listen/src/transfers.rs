//! How many transfers run: each holds a zone as it was when it began, for as long as its client takes to read it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The transfers that run, over all connections.
#[derive(Default)]
pub(super) struct Transfers(Mutex<HashMap<IpAddr, usize>>);

/// One transfer's place.
pub(super) struct Slot {
    of: Arc<Transfers>,
    client: IpAddr,
}

impl Transfers {
    /// A place for one more to this client; `None` where there are as many as may be.
    pub(super) fn enter(self: &Arc<Self>, client: IpAddr) -> Option<Slot> {
        let mut running = self.running();
        let (all, own) = (running.values().sum::<usize>(), running.get(&client).copied().unwrap_or_default());
        if all >= MOST || own >= MOST_OF_A_CLIENT {
            return None;
        }
        running.insert(client, own + 1);
        Some(Slot { of: self.clone(), client })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Transfers at a time, and those to one client address.
const MOST: usize = 16;
const MOST_OF_A_CLIENT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_takes_all_places_and_each_comes_back() {
        let transfers = Arc::<Transfers>::default();
        let client = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut slots: Vec<Slot> = Vec::new();
        for last in 0..4 {
            for _ in 0..MOST_OF_A_CLIENT {
                slots.extend(transfers.enter(client(last)));
            }
            assert!(transfers.enter(client(last)).is_none(), "{last}");
        }
        assert_eq!(slots.len(), MOST);
        assert!(transfers.enter(client(9)).is_none());
        slots.remove(5);
        assert!(transfers.enter(client(2)).is_none());
        slots.extend(transfers.enter(client(1)));
        assert_eq!(slots.len(), MOST);
        slots.clear();
        assert!(transfers.running().is_empty());
    }
}
