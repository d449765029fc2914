//! What is known of the leases: for /metrics, `node status`, and whoever would put addresses back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use observe::{Families, names};
use serde_json::{Value, json};
use tokio::time::Instant;

/// What is known of the leases.
#[derive(Debug, Default)]
pub struct Leased {
    addresses: Mutex<BTreeMap<IpAddr, Lease>>,
    /// Times that the rules were gone, and put back.
    pub(super) put_back: AtomicU64,
    /// Whether `node down` has taken all away, and nothing is put back.
    pub(super) let_go: AtomicBool,
}

/// One address.
#[derive(Debug, Clone, Default)]
pub(super) struct Lease {
    /// Whether queries come to us.
    pub(super) held: bool,
    /// How often it ended while we lived.
    pub(super) lost: u64,
    /// When it ends, if nobody renews it.
    pub(super) ends: Option<Instant>,
    /// When it was probed last, and why it did not answer then.
    pub(super) probed: Option<Instant>,
    pub(super) silent: Option<String>,
}

impl Leased {
    pub(super) fn addresses(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Lease>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether links, addresses and rules are no longer ours to put back.
    pub(crate) fn is_let_go(&self) -> bool {
        self.let_go.load(Relaxed)
    }

    /// What /metrics tells of them.
    pub(crate) fn collect(&self, into: &mut Families) {
        for (ip, lease) in self.addresses().iter() {
            let ip = ip.to_string();
            let labels = [("address", ip.as_str())];
            into.gauge(names::LEASE_HELD, &labels, f64::from(u8::from(lease.held)));
            into.counter(names::LEASES_LOST, &labels, lease.lost as f64);
        }
        into.counter(names::RULES_PUT_BACK, &[], self.put_back.load(Relaxed) as f64);
    }
}

impl Lease {
    /// For `node status`.
    pub(super) fn status(&self, ip: IpAddr, now: Instant) -> Value {
        let ago = |then: Instant| now.saturating_duration_since(then).as_millis();
        json!({
            "address": ip,
            "held": self.held,
            "lost": self.lost,
            "probed_ms_ago": self.probed.map(ago),
            "probe_error": self.silent,
        })
    }
}
