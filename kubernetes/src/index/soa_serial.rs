//! SOA serial of a cluster's zones, and the listing that zone transfers share.
//!
//! The serial is the time of the last change in seconds since 1970, and identifies one listing: a
//! change within the second of a transfer gets the next serial, visible from the next second on.
//! There is at most one new serial a second, and it never exceeds the clock, however often a
//! changing zone is transferred.
//!
//! A listing keeps old versions of services alive until its slowest transfer ends. There are at
//! most [`MAX_LISTINGS`] at a time: while all are in use, a new transfer shares the newest. The
//! older ones get no new readers and end within the time limit of a transfer; with two, no new
//! transfer gets a listing older than that limit.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kubernetes_api::objects::SinceEpoch;

use super::Service;

/// Reads the wall clock.
pub type WallClock = fn() -> SinceEpoch;

/// Current serial and shared listings.
pub(super) struct SoaSerial {
    /// Wall clock.
    now: WallClock,
    /// Serial of the latest change; not yet visible if the last listing is of the current second.
    newest: AtomicU32,
    /// Second and serial of the last listing; [`NONE_LISTED`] before the first.
    listed: AtomicU64,
    /// Locked during changes and while services are listed; never for answering a query.
    listings: Mutex<Listings>,
}

#[derive(Default)]
struct Listings {
    /// The last listing, until an event of another second.
    last: Option<Arc<Listing>>,
    /// Listings in use, the newest last.
    open: Vec<Weak<Listing>>,
}

/// All services at one serial, by name, then by namespace.
pub(crate) struct Listing {
    second: u32,
    pub(crate) serial: u32,
    pub(crate) services: Vec<Listed>,
    pub(crate) imports: Vec<Listed>,
}

/// A service in a listing.
pub(crate) struct Listed {
    pub(crate) service: Arc<Service>,
    /// Whether its namespace existed.
    pub(crate) is_known: bool,
}

impl SoaSerial {
    pub(super) fn new(now: WallClock) -> Self {
        Self {
            now,
            newest: AtomicU32::new(0),
            listed: AtomicU64::new(NONE_LISTED),
            listings: Mutex::default(),
        }
    }

    /// Returns the serial for SOA records.
    pub(super) fn shown(&self) -> u32 {
        let newest = self.newest.load(Acquire);
        match self.listed() {
            Some((second, serial)) if serial != newest && second == self.second() => serial,
            _ => newest,
        }
    }

    /// Locks out listing while the writer makes changes.
    pub(super) fn changing(&self) -> MutexGuard<'_, impl Sized + use<>> {
        let mut listings = self.lock();
        listings.forget(self.second());
        listings
    }

    /// Records a change.
    pub(super) fn changed(&self) {
        let now = self.second();
        // A secondary that transferred the zone in this second, or before the clock was set back,
        // must see a new serial.
        let ahead = self.listed().filter(|(_, serial)| serial.wrapping_sub(now) <= u32::MAX / 2);
        self.newest.store(ahead.map_or(now, |(_, serial)| serial.wrapping_add(1)), Release);
    }

    /// Returns the listing of an earlier transfer if it is of this second or of the current serial,
    /// or if the maximum is in use; else a new one of the services and imports that `list` returns.
    pub(super) fn listing(&self, list: impl FnOnce() -> [Vec<Listed>; 2]) -> Arc<Listing> {
        let mut listings = self.lock();
        let (second, serial) = (self.second(), self.newest.load(Acquire));
        listings.forget(second);
        let Listings { last, open } = &mut *listings;
        open.retain(|listing| listing.strong_count() > 0);
        let is_full = open.len() >= MAX_LISTINGS;
        let newest = open.last().and_then(Weak::upgrade);
        let is_shared =
            |listing: &Arc<Listing>| listing.second == second || listing.serial == serial || is_full;
        if let Some(listing) = newest.filter(is_shared) {
            return listing;
        }
        self.listed.store(u64::from(second) << 32 | u64::from(serial), Release);
        let [services, imports] = list();
        let listing = Arc::new(Listing { second, serial, services, imports });
        open.push(Arc::downgrade(&listing));
        last.insert(listing).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Listings> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listed(&self) -> Option<(u32, u32)> {
        let listed = self.listed.load(Acquire);
        (listed != NONE_LISTED).then_some(((listed >> 32) as u32, listed as u32))
    }

    /// Returns seconds since 1970, which fit until 2106; serials wrap around (RFC 1982).
    fn second(&self) -> u32 {
        (self.now)().0.as_secs() as u32
    }
}

impl Listings {
    /// Drops the last listing if `second` is not the listing's second.
    fn forget(&mut self, second: u32) {
        if self.last.as_ref().is_some_and(|listing| listing.second != second) {
            self.last = None;
        }
    }
}

/// Maximum number of listings in use.
const MAX_LISTINGS: usize = 2;
/// `listed` before the first listing.
const NONE_LISTED: u64 = u64::MAX;
