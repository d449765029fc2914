//! What commands beside this server tell it, and ask of it.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use configuration::Configuration;
use node::discovery::{self, ListOrigin};
use node::{AddressText, Hearing, Leases, Order, Orders, Rules};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use super::kept::are_in_place;
use super::{LeaseThread, Told};
use crate::node_run::down::{HANDS_OVER, REFUSED};
use crate::node_run::failover::Failover;
use crate::node_run::host::State;
use crate::node_run::leased::Lease;
use crate::node_run::servers::PROBE;
use crate::reloads::Reader;

const ENOENT: i32 = 2;
/// How many commands wait for an answer; each has a descriptor, and one is answered in a round.
const WAITING: usize = 16;

/// How it is said that a file is not there.
fn no_such_file() -> String {
    io::Error::from_raw_os_error(ENOENT).to_string()
}

/// Hears commands on a thread that ends with what is returned, or with the last of who would obey.
pub(super) fn hear(tell: mpsc::UnboundedSender<Told>) -> io::Result<Hearing> {
    let orders = Orders::listen()?;
    let hearing = orders.hearing()?;
    let thread = std::thread::Builder::new().name("orders".to_owned());
    let free = Arc::new(Semaphore::new(WAITING));
    let hears = move || {
        while let Ok(order) = orders.next() {
            let Ok(waits) = free.clone().try_acquire_owned() else {
                order.put_off();
                continue;
            };
            if tell.send(Told::Order(order, waits)).is_err() {
                break;
            }
        }
    };
    thread.spawn(hears)?;
    Ok(hearing)
}

impl LeaseThread {
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
        let has_leases = self.settings.rules.has_leases();
        let put = |ip| self.put.iter().flatten().find(|listener| listener.address == ip);
        let way_out = |ip| {
            let listener = put(ip)?;
            listener.way_out.as_ref().filter(|_| has_leases).map(|way_out| way_out.target)
        };
        let address = |(ip, lease): (&IpAddr, &Lease)| {
            let mut said = lease.status(*ip, now);
            said["way_out"] = json!(way_out(*ip));
            said["fails_closed"] = json!(put(*ip).is_some_and(|listener| listener.fails_closed));
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
        let down = running.as_ref().map(|running| down(&running.configuration.load()));
        let probe = running.as_ref().map(|running| running.shared.probe.to_string());
        let tables = running.map(|running| running.shared.hosts.all());
        let entries = tables.map(|tables| tables.iter().map(|table| table.entries()).sum::<usize>());
        json!({
            "pid": std::process::id(),
            "hosts_entries": entries,
            "let_go": self.state.is_let_go(),
            "has_leases": has_leases,
            "rules": self.settings.rules.name(),
            "others_rules": !self.settings.clears_rules,
            "health_port": self.settings.rules.health_port(),
            PROBE: probe,
            "rules_put": self.put.is_some(),
            "rules_in_place": in_place,
            "lease_ms": self.settings.lease.map(|lease| lease.as_millis()),
            "seen_by_owner": self.leases.as_ref().map(|leases| leases.seen().by_owner),
            "seen_by_socket": self.leases.as_ref().map(|leases| leases.seen().by_socket),
            "addresses": addresses,
            "acl_fails_closed": self.settings.acl_fails_closed,
            "failover": self.failover.last().filter(|_| has_leases).map(Failover::json),
            "upstreams": list.iter().map(|server| AddressText(*server).to_string()).collect::<Vec<_>>(),
            "upstreams_down": down,
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
            "reload_failed": self.reloads.failure(clock::now(), Reader::Anyone),
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

/// Upstreams that are down.
fn down(configuration: &Configuration) -> BTreeSet<String> {
    let chains = configuration.blocks.iter().filter_map(|block| block.pipeline.forwarding());
    let stanzas = chains.flat_map(|forwarding| forwarding.chain.stanzas());
    stanzas.flat_map(|stanza| stanza.down()).map(|upstream| upstream.address().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn no_more_commands_wait_than_may() {
        let (tell, mut told) = mpsc::unbounded_channel();
        let hearing = hear(tell).expect("they are heard");
        let all = node::Running::all();
        let server = all.into_iter().find(|server| server.pid == std::process::id()).expect("it is found");
        let ask = |_| {
            let server = server.clone();
            thread::spawn(move || server.tell("status", PATIENCE))
        };
        let asks: Vec<_> = (0..3 * WAITING).map(ask).collect();
        // Those that are put off end while nobody is answered.
        let (mut kept, mut refused) = (Vec::new(), 0);
        while refused < 2 * WAITING {
            thread::sleep(Duration::from_millis(1));
            refused = asks.iter().filter(|ask| ask.is_finished()).count();
        }
        while let Ok(Told::Order(order, waits)) = told.try_recv() {
            order.answer("well");
            kept.push(waits);
        }
        assert_eq!((kept.len(), refused), (WAITING, 2 * WAITING));
        let answers: Vec<_> = asks.into_iter().map(|ask| ask.join().expect("no panic")).collect();
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), WAITING);
        let later = ask(0);
        assert!(later.join().expect("no panic").is_err(), "they are still at work");
        drop(kept);
        let later = ask(0);
        match told.blocking_recv() {
            Some(Told::Order(order, _)) => order.answer("well"),
            _ => panic!("a command comes"),
        }
        assert_eq!(later.join().expect("no panic").expect("there is room"), "well");
        drop(hearing);
    }
}
