//! The serial of a cluster's zones, and the list that everyone shares who is sent one in the same second.
//!
//! A serial is when something changed last, in seconds since 1970. It stands for one list: what changes in the second of a
//! transfer has the next serial, from the next second on. So there is one new serial a second at most, and however often a
//! zone is transferred while it changes, no serial runs ahead of the clock.
//!
//! A list keeps every service as it was, however often it is replaced meanwhile, for as long as its slowest reader takes. So there
//! are [`MOST_LISTINGS`] that differ: whoever comes while all are read shares the newest of them. The others have no new readers
//! then, and come to their end in the time that a transfer has; with two, none is older than that when somebody new is sent it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kubernetes_api::objects::SinceEpoch;

use super::Service;

/// Reads the wall clock.
pub type Now = fn() -> SinceEpoch;

/// Which serial the zones have.
pub(super) struct Serials {
    /// The time as other machines have it.
    now: Now,
    /// That of what is known, which is not told yet where `listed` is of this second.
    newest: AtomicU32,
    /// The second in which the zones were listed last, and the serial at which; [`NONE_LISTED`] before the first time.
    listed: AtomicU64,
    /// Held while something changes, and while all is listed; by nobody who answers a query.
    listings: Mutex<Listings>,
}

#[derive(Default)]
struct Listings {
    /// The last one, until something comes in another second.
    last: Option<Arc<Listing>>,
    /// Those that somebody has, the newest last.
    open: Vec<Weak<Listing>>,
}

/// Every service that there was at one serial, by name, then by namespace.
pub(crate) struct Listing {
    second: u32,
    pub(crate) serial: u32,
    pub(crate) services: Vec<Listed>,
    pub(crate) imports: Vec<Listed>,
}

/// A service as it was listed.
pub(crate) struct Listed {
    pub(crate) service: Arc<Service>,
    /// Whether its namespace was known.
    pub(crate) is_known: bool,
}

impl Serials {
    pub(super) fn new(now: Now) -> Self {
        Self {
            now,
            newest: AtomicU32::new(0),
            listed: AtomicU64::new(NONE_LISTED),
            listings: Mutex::default(),
        }
    }

    /// What SOA records say now.
    pub(super) fn shown(&self) -> u32 {
        let newest = self.newest.load(Acquire);
        match self.listed() {
            Some((second, serial)) if serial != newest && second == self.second() => serial,
            _ => newest,
        }
    }

    /// To be held by the one writer while something changes: nothing is listed meanwhile.
    pub(super) fn changing(&self) -> MutexGuard<'_, impl Sized + use<>> {
        let mut listings = self.lock();
        listings.forget(self.second());
        listings
    }

    /// Something has changed.
    pub(super) fn changed(&self) {
        let now = self.second();
        // Who was sent a zone in this second, or before the clock was set back, is to see that it has changed since.
        let ahead = self.listed().filter(|(_, serial)| serial.wrapping_sub(now) <= u32::MAX / 2);
        self.newest.store(ahead.map_or(now, |(_, serial)| serial.wrapping_add(1)), Release);
    }

    /// The list of this second: that of an earlier transfer, or else what `list` finds of services and imports; or the newest that
    /// is read, where nothing changed since, or no more may be.
    pub(super) fn listing(&self, list: impl FnOnce() -> [Vec<Listed>; 2]) -> Arc<Listing> {
        let mut listings = self.lock();
        let (second, serial) = (self.second(), self.newest.load(Acquire));
        listings.forget(second);
        let Listings { last, open } = &mut *listings;
        open.retain(|listing| listing.strong_count() > 0);
        let is_full = open.len() >= MOST_LISTINGS;
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

    /// Seconds since 1970 fit until 2106; serials wrap around (RFC 1982).
    fn second(&self) -> u32 {
        (self.now)().0.as_secs() as u32
    }
}

impl Listings {
    /// Forgets the last one in another second than its own, for whoever has none yet.
    fn forget(&mut self, second: u32) {
        if self.last.as_ref().is_some_and(|listing| listing.second != second) {
            self.last = None;
        }
    }
}

/// That are read at once and differ.
const MOST_LISTINGS: usize = 2;
/// No second, and no serial.
const NONE_LISTED: u64 = u64::MAX;
