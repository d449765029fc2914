//! The bound of one listener's connections, below the bound of all.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::connection_state::Activity;
use super::Open;
use plugin::endpoint::Endpoint;

impl Open {
    /// Returns the number of connections of a listener.
    pub(super) fn of_listener(&self, listener: Endpoint) -> usize {
        self.of_listener.get(&listener).copied().unwrap_or_default()
    }

    /// Chooses the connection of a listener to evict for a new one from this address, as
    /// [`Open::gives_way`] does for all listeners: one that waits for its client, of the address
    /// with most; if all await answers, the oldest of an address with more than half.
    ///
    /// Reads every connection, so that no order by listener needs to be kept up to date.
    pub(super) fn gives_way_of(&self, listener: Endpoint, newcomer: IpAddr) -> Option<(Activity, u64)> {
        let mut addresses: BTreeMap<IpAddr, OfAddress> = BTreeMap::new();
        for (&key, entry) in self.all.iter().filter(|(_, entry)| entry.listener == listener) {
            let (state, since) = entry.shared.state();
            let waits = (state != Activity::Busy).then_some((since, key, state));
            let new = OfAddress { count: 0, longest: None, oldest: key };
            let of_address = addresses.entry(entry.shared.address).or_insert(new);
            of_address.count += 1;
            of_address.oldest = key.min(of_address.oldest);
            if let Some(found) = waits
                && of_address.longest.is_none_or(|longest| (found.0, found.1) < (longest.0, longest.1))
            {
                of_address.longest = Some(found);
            }
        }
        let mut addresses: Vec<(IpAddr, OfAddress)> = addresses.into_iter().collect();
        addresses.sort_unstable_by_key(|(address, of_address)| (Reverse(of_address.count), *address));
        let (address, most) = addresses.first()?;
        let over_half = most.count > (self.of_listener(listener) / 2).max(1);
        let is_own = over_half && *address == newcomer;
        let victim = match is_own {
            // A client that has more than half replaces connections of its own alone.
            true => most.longest,
            false => addresses.iter().find_map(|(_, of_address)| of_address.longest),
        };
        match victim {
            Some((_, key, state)) => Some((state, key)),
            None => (over_half && !is_own).then_some((Activity::Busy, most.oldest)),
        }
    }
}

/// The connections of one address to a listener.
struct OfAddress {
    count: usize,
    /// The one that waits longest for its client: since when, its key, and for what.
    longest: Option<(u64, u64, Activity)>,
    /// The key of the oldest.
    oldest: u64,
}
