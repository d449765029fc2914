//! The pages of each address.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::AdminAddress;

/// Returns the names of the plugins that are not ready.
pub type NotReady = dyn Fn() -> Vec<Cow<'static, str>> + Send + Sync;

/// The pages of an address; other paths are 404.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pages {
    /// `/metrics`.
    pub metrics: bool,
    /// `/health`.
    pub health: bool,
    /// `/ready`.
    pub ready: bool,
    /// The exporter's `/metrics`, unless [`Pages::metrics`] is set.
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

/// The addresses and pages of a configuration; server blocks with the same address share it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServedPages {
    pub(super) pages: BTreeMap<AdminAddress, Pages>,
}

impl ServedPages {
    /// Adds `/metrics` to an address.
    pub fn metrics(&mut self, at: AdminAddress) {
        self.pages.entry(at).or_default().metrics = true;
    }

    /// Adds the exporter's `/metrics` to an address, unless it has that of the server.
    pub fn exporter(&mut self, at: AdminAddress) {
        self.pages.entry(at).or_default().exporter = true;
    }

    /// Adds `/health` to an address, and probes it every second.
    pub fn health(&mut self, at: AdminAddress) {
        self.pages.entry(at).or_default().health = true;
    }

    /// Adds `/ready` to an address.
    pub fn ready(&mut self, at: AdminAddress) {
        self.pages.entry(at).or_default().ready = true;
    }
}
