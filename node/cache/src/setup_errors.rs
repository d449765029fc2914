//! Counts errors during setup, by node-cache's kinds.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::{Families, names};

/// The counters, one for each kind of error, indexed by [`SetupErrorKind`].
#[derive(Debug, Default)]
pub struct SetupErrors([AtomicU64; 5]);

/// A kind of setup error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetupErrorKind {
    /// Rules of iptables or nftables cannot be added.
    Rules,
    /// Another program holds the lock of iptables.
    Lock,
    /// An address cannot be added.
    InterfaceAdd,
    /// kube-dns's ConfigMap or the template is invalid or cannot be read.
    ConfigMap = 4,
}

impl SetupErrors {
    /// Counts one error.
    pub fn count(&self, error: SetupErrorKind) {
        self.0[error as usize].fetch_add(1, Relaxed);
    }

    /// Counts an error of writing rules, by its text.
    pub fn count_rules(&self, error: &str) {
        self.count(if error.contains("xtables lock") { SetupErrorKind::Lock } else { SetupErrorKind::Rules });
    }

    /// Adds the metrics of every kind, including kinds without errors.
    pub fn collect(&self, into: &mut Families) {
        for (kind, count) in KINDS.into_iter().zip(&self.0) {
            into.counter(names::NODECACHE_SETUP_ERRORS, &[("errortype", kind)], count.load(Relaxed) as f64);
        }
    }
}

/// The kinds' labels, in the order of [`SetupErrorKind`]. `interface_check` is always 0: here
/// checks of addresses have no error of their own.
const KINDS: [&str; 5] = ["iptables", "iptables_lock", "interface_add", "interface_check", "configmap"];
