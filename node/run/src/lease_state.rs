//! The leases' state, for /metrics, `node status` and the code that restores addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{Families, names};
use node::Diagnosis;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::RuleSet;
use node_cache::{SetupErrorKind, TemplateRenderer};

/// The leases' state, shared by the lease thread and its readers.
#[derive(Debug)]
pub struct LeaseState {
    addresses: Mutex<BTreeMap<IpAddr, AddressLease>>,
    rules: RuleSet,
    /// How often missing rules were restored.
    pub(super) put_back: AtomicU64,
    /// Counts errors for node-cache's metrics.
    filler: Option<Arc<TemplateRenderer>>,
    /// Whether the lease table outlives the process, as on kernels without table owners.
    pub(super) outlives_us: AtomicBool,
    /// Counter of address repairs, after which an address may be on another link.
    looks: AtomicU64,
    /// Whether `node down` has released everything, so that nothing is restored.
    pub(super) let_go: AtomicBool,
    /// Whether a handover is in progress.
    hands_over: AtomicBool,
}

/// The lease of one address.
#[derive(Debug, Clone, Default)]
pub(super) struct AddressLease {
    /// Whether the lease is held, as last logged.
    pub(super) held: bool,
    /// How often the lease ended while the server was running.
    pub(super) lost: u64,
    /// The latest time at which the lease ends without renewal; `None` once a loss is counted.
    pub(super) ends: Option<Instant>,
    /// When the address was last probed, and why it did not answer then.
    pub(super) probed: Option<Instant>,
    pub(super) silent: Option<String>,
}

impl LeaseState {
    pub(super) fn new(filler: Option<Arc<TemplateRenderer>>, rules: RuleSet) -> Self {
        Self {
            addresses: Mutex::default(),
            rules,
            put_back: AtomicU64::new(0),
            filler,
            outlives_us: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            let_go: AtomicBool::new(false),
            hands_over: AtomicBool::new(false),
        }
    }

    /// Sets whether a handover is in progress.
    pub fn hands_over(&self, is: bool) {
        self.hands_over.store(is, Relaxed);
    }

    pub(super) fn is_handing_over(&self) -> bool {
        self.hands_over.load(Relaxed)
    }

    pub(super) fn addresses(&self) -> MutexGuard<'_, BTreeMap<IpAddr, AddressLease>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether links, addresses and rules must not be restored.
    pub fn is_let_go(&self) -> bool {
        self.let_go.load(Relaxed)
    }

    /// Whether only a closed socket shows this process's death, so that no other process may hold
    /// the socket open.
    pub fn is_seen_by_sockets(&self) -> bool {
        self.outlives_us.load(Relaxed)
    }

    /// Returns problems of node-cache's ConfigMap and of the Corefile that node-cache writes.
    pub(super) fn template_problems(&self) -> impl Iterator<Item = Diagnosis> {
        self.filler.iter().flat_map(|filler| filler.problems())
    }

    /// Counts a repair of addresses, after which one may be on another link.
    pub fn addresses_looked_at(&self) {
        self.looks.fetch_add(1, Relaxed);
    }

    pub(super) fn looks(&self) -> u64 {
        self.looks.load(Relaxed)
    }

    /// Counts an address that was removed and cannot be restored.
    pub fn count_interface(&self) {
        if let Some(filler) = &self.filler {
            filler.errors.count(SetupErrorKind::InterfaceAdd);
        }
    }

    /// Counts an error of writing rules.
    pub(super) fn count_rules(&self, error: &str) {
        if let Some(filler) = &self.filler {
            filler.errors.count_rules(error);
        }
    }

    /// Whether this server has the metrics of AKS's exporter; as node-cache it has others.
    pub fn is_exported(&self) -> bool {
        self.filler.is_none()
    }

    /// Returns the state as JSON for /status; `servers` are the name servers of the node's network.
    pub fn status(&self, servers: &[String]) -> Value {
        let now = Instant::now();
        let addresses: Vec<_> = self.addresses().iter().map(|(ip, lease)| lease.status(*ip, now)).collect();
        json!({
            "rules": self.rules.name(),
            "has_leases": self.rules.has_leases(),
            "rules_put_back": self.put_back.load(Relaxed),
            "let_go": self.is_let_go(),
            "addresses": addresses,
            "network_servers": servers,
        })
    }

    /// Adds the metrics of the leases and rules.
    pub fn collect(&self, into: &mut Families) {
        // A rule set without leases has no samples: a sample of 0 would look like a lost lease.
        for (ip, lease) in self.addresses().iter().filter(|_| self.rules.has_leases()) {
            let ip = ip.to_string();
            let labels = [("address", ip.as_str())];
            into.gauge(names::LEASE_HELD, &labels, f64::from(u8::from(lease.held)));
            into.counter(names::LEASES_LOST, &labels, lease.lost as f64);
        }
        if let Some(filler) = &self.filler {
            filler.errors.collect(into);
        }
        into.counter(names::RULES_PUT_BACK, &[], self.put_back.load(Relaxed) as f64);
    }
}

impl AddressLease {
    /// Returns the lease's state as JSON for `node status`.
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

#[cfg(test)]
mod tests {
    use metrics::Form;
    use node::Iptables;

    use super::*;

    #[test]
    fn lease_metrics_only_with_leases() {
        for (rules, expected) in [
            (RuleSet::Nft, true),
            (RuleSet::Iptables(Iptables::Localdns), false),
            (RuleSet::Iptables(Iptables::NodeCache(8080)), false),
            (RuleSet::None, false),
        ] {
            let leased = LeaseState::new(None, rules);
            leased.addresses().insert([169, 254, 10, 10].into(), AddressLease::default());
            let mut families = Families::default();
            leased.collect(&mut families);
            let page = String::from_utf8(Form::Text.encode(&families.into_messages())).expect("text");
            let held = "localdns_lease_held{address=\"169.254.10.10\"} 0\n";
            assert_eq!(page.contains(held), expected, "{rules:?}\n{page}");
            assert_eq!(page.contains("localdns_leases_lost_total{"), expected, "{rules:?}\n{page}");
            assert!(page.contains("localdns_rules_put_back_total 0\n"), "{page}");
        }
    }
}
