//! What commands beside this server tell it, and ask of it.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use node::{AddressText, Leases, Order, Rules};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Worker;
use super::kept::are_in_place;
use crate::node_run::discovery::{self, ListOrigin};
use crate::node_run::down::{HANDS_OVER, REFUSED};
use crate::node_run::host::State;
use crate::node_run::leased::Lease;
use crate::node_run::servers::PROBE;

const ENOENT: i32 = 2;

/// How it is said that a file is not there.
fn no_such_file() -> String {
    std::io::Error::from_raw_os_error(ENOENT).to_string()
}

impl Worker {
    pub(super) async fn obey(&mut self, order: Order) {
        match order.word.as_str() {
            // What it took away the next process would put back.
            "down" if self.state.is_handing_over() => {
                order.answer(&format!("{HANDS_OVER}, which would put all back: say it again\n"));
            }
            // Without nftables, or without the right to read its tables, an order from root is enough.
            "down" if Rules::open().and_then(|mut rules| rules.is_warrant_shown()).unwrap_or(true) => {
                order.answer(&self.let_go().await);
            }
            "down" => order.answer(&format!("{REFUSED}: who tells it to let go has no CAP_NET_ADMIN\n")),
            "status" => order.answer(&self.status().to_string()),
            other => order.answer(&format!("unknown order {other:?}")),
        }
    }

    /// What this server knows of itself, for `node status`.
    fn status(&mut self) -> Value {
        let now = Instant::now();
        let in_place = self.rules.as_mut().map(|rules| are_in_place(rules).unwrap_or(false));
        let way_out = |ip| {
            let listener = self.put.iter().flatten().find(|listener| listener.address == ip)?;
            listener.way_out.as_ref().map(|way_out| way_out.target)
        };
        let address = |(ip, lease): (&IpAddr, &Lease)| {
            let mut said = lease.status(*ip, now);
            said["way_out"] = json!(way_out(*ip));
            said
        };
        let addresses: Vec<_> = self.state.addresses().iter().map(address).collect();
        let list = self.discovery.upstreams().list();
        let (lookups, lookups_error) = match self.host.state() {
            State::NotYet => {
                (None, Some("not yet: it waits until every address answers and the rules are in place"))
            }
            State::Put(path) => (path.as_ref(), None),
            State::Failed(why) => (None, Some(why.as_str())),
        };
        let running = self.running.upgrade();
        let probe = running.as_ref().map(|running| running.shared.probe.to_string());
        let tables = running.map(|running| running.shared.hosts.all());
        let entries = tables.map(|tables| tables.iter().map(|table| table.entries()).sum::<usize>());
        json!({
            "pid": std::process::id(),
            "hosts_entries": entries,
            "let_go": self.state.is_let_go(),
            "has_leases": self.settings.rules.has_leases(),
            "rules": self.settings.rules.name(),
            "health_port": self.settings.rules.health_port(),
            PROBE: probe,
            "rules_put": self.put.is_some(),
            "rules_in_place": in_place,
            "lease_ms": self.settings.lease.map(|lease| lease.as_millis()),
            "seen_by_owner": self.leases.as_ref().map(|leases| leases.seen().by_owner),
            "seen_by_socket": self.leases.as_ref().map(|leases| leases.seen().by_socket),
            "addresses": addresses,
            "upstreams": list.iter().map(|server| AddressText(*server).to_string()).collect::<Vec<_>>(),
            "upstreams_asked": self.reloads.needs_list(),
            "upstreams_from": match self.discovery.origin() {
                ListOrigin::Nowhere => None,
                ListOrigin::Leases => Some(Path::new(node::DHCP_LEASES)),
                ListOrigin::File => Some(self.settings.upstreams.as_path()),
                ListOrigin::Kept => Some(Path::new(discovery::KEPT)),
            },
            "upstreams_error": self.discovery.wrong().filter(|wrong| {
                // A list that is missing is an error only where the configuration asks the node's servers.
                self.reloads.needs_list() || !wrong.ends_with(&no_such_file())
            }),
            "reload_failed": self.reloads.failure(clock::now()),
            "host_resolver": lookups,
            "host_resolver_error": lookups_error,
            "notes": self.noted,
        })
    }

    /// Keeps nothing any more, until the next start.
    async fn let_go(&mut self) -> String {
        self.state.let_go.store(true, Relaxed);
        let pid = std::process::id();
        let given_up = self.leases.take().map_or(Ok(()), Leases::give_up);
        self.iptables = None;
        let _ = self.host.take_back().await;
        self.state.addresses().values_mut().for_each(|lease| (lease.held, lease.ends) = (false, None));
        if let Some(running) = self.running.upgrade() {
            let note =
                "node: `node down` was asked for: addresses and rules are not kept any more, until a restart";
            running.logger.warning(None, note);
        }
        match given_up {
            Ok(()) => format!("the server of process {pid} keeps nothing any more\n"),
            Err(error) => {
                format!("the server of process {pid} keeps nothing any more, but has its leases: {error}\n")
            }
        }
    }
}
