//! Which pages an address has.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::AdminAddress;

/// The plugins that are not ready.
pub type NotReady = dyn Fn() -> Vec<Cow<'static, str>> + Send + Sync;

/// Which pages an address has; every other path is 404.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pages {
    /// `/metrics`.
    pub metrics: bool,
    /// `/health`.
    pub health: bool,
    /// `/ready`.
    pub ready: bool,
    /// The exporter's `/metrics`, where [`Pages::metrics`] is not.
    pub exporter: bool,
}

impl Pages {
    pub(super) fn to_bits(self) -> u8 {
        let bits = [self.metrics, self.health, self.ready, self.exporter];
        bits.into_iter().enumerate().map(|(at, bit)| u8::from(bit) << at).sum()
    }

    pub(super) fn from_bits(bits: u8) -> Self {
        let [metrics, health, ready, exporter] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
        Self { metrics, health, ready, exporter }
    }
}

/// What a configuration wants served; server blocks that name the same address share it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServedPages {
    pub(super) pages: BTreeMap<AdminAddress, Pages>,
}

impl ServedPages {
    /// Serves `/metrics` here, too.
    pub fn metrics(&mut self, at: AdminAddress) {
        self.pages.entry(at).or_default().metrics = true;
    }

    /// Serves the exporter's `/metrics` here, unless that of everything is.
    pub fn exporter(&mut self, at: AdminAddress) {
        self.pages.entry(at).or_default().exporter = true;
    }

    /// Serves `/health` here, too, and asks it every second.
    pub fn health(&mut self, at: AdminAddress) {
        self.pages.entry(at).or_default().health = true;
    }

    /// Serves `/ready` here, too.
    pub fn ready(&mut self, at: AdminAddress) {
        self.pages.entry(at).or_default().ready = true;
    }
}
