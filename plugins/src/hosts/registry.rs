//! Registry of hosts tables: looked up by directive, counted, and checked when due.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use arc_swap::ArcSwap;
use hostsfile::Table;
use refresh::{Environment, RefreshPlan, RefreshedFile, RefreshedFiles};

use super::{HostsSpec, HostsTable};
use crate::followed::Tables;
use logging::Logger;
use metrics::{Families, Metric};
use plugin::Spec;
use plugin::reload_state::Persistent;

/// Returns the plans of refreshed names, from the Corefile's properties and the environment.
pub fn plans(spec: &Spec, environment: &Environment) -> Vec<RefreshPlan> {
    let hosts: Vec<_> = spec.specs().map(|hosts: &HostsSpec| (&hosts.file, &hosts.refresh)).collect();
    refresh::plan(&hosts, environment)
}

/// All hosts tables, by directive.
#[derive(Default)]
pub struct HostsRegistry {
    tables: Tables<HostsTable>,
    /// The files with refreshed names.
    pub kept: Arc<RefreshedFiles>,
}

impl HostsRegistry {
    /// Returns the table of a directive: the existing one, or a new one. Its file is read at the next
    /// check.
    pub fn table(&self, spec: &HostsSpec) -> Arc<HostsTable> {
        let table = self.tables.get(|table| table.spec == *spec, || self.new_table(spec));
        // CoreDNS reads every hosts file again when it reloads the Corefile.
        let mut state = table.state();
        (state.again, state.next_look) = (true, None);
        drop(state);
        table
    }

    /// Makes a table with the entries of the Corefile.
    fn new_table(&self, spec: &HostsSpec) -> HostsTable {
        let mut table = HostsTable {
            spec: spec.clone(),
            current: ArcSwap::from_pointee(Table::empty()),
            inline_entries: 0,
            modified_ms: AtomicU64::new(0),
            made: clock::now(),
            built_ns: AtomicU64::new(0),
            state: Mutex::default(),
            kept: self.kept.clone(),
        };
        let (inline, _) = table.build(&[]);
        table.inline_entries = inline.entries();
        table.current.store(Arc::new(inline));
        table
    }

    /// Makes every table of this file serve its current refreshed names.
    pub fn serve(&self, kept: &RefreshedFile) {
        for table in self.all() {
            if table.spec().file.as_path() == kept.file().as_path() {
                table.serve(kept);
            }
        }
    }

    /// Returns every table in use.
    pub fn all(&self) -> Vec<Arc<HostsTable>> {
        self.tables.held()
    }
}

impl Persistent for HostsRegistry {
    fn collect(&self, into: &mut Families) {
        for table in self.all() {
            let file = table.spec().file.display().to_string();
            let labels = [("hostsfile", file.as_str())];
            into.gauge(ENTRIES, &labels, table.entries() as f64);
            let modified = table.modified_ms();
            if modified > 0 {
                into.gauge(RELOAD_TIMESTAMP, &[], modified as f64 / 1000.0);
            }
            let age = clock::now().saturating_duration_since(table.built());
            into.gauge(TABLE_AGE, &labels, age.as_secs_f64());
        }
    }

    fn look(&self, now: Instant, logger: &Logger) -> Option<Instant> {
        self.all().iter().filter_map(|table| table.glance(now, logger)).min()
    }
}

/// Gauge {hostsfile}.
const ENTRIES: Metric =
    Metric { name: "coredns_hosts_entries", help: "The combined number of entries in hosts and Corefile." };
/// Gauge.
const RELOAD_TIMESTAMP: Metric = Metric {
    name: "coredns_hosts_reload_timestamp_seconds",
    help: "The timestamp of the last reload of hosts file.",
};
/// Gauge {hostsfile}.
const TABLE_AGE: Metric =
    Metric { name: "localdns_hosts_table_age_seconds", help: "Time since the hosts table was last built." };
