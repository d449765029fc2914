//! Serves commands from the control socket.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use crate::host_resolver_task::HostResolverState;
use crate::upstream_discovery::{self, ListOrigin};
use configuration::Configuration;
use node::{AddressText, ControlCommand, ControlSocket, Diagnosis, Leases, ListenGuard, NftError, Rules};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::rule_reconcile::are_in_place;
use super::{LeaseCommand, LeaseThread};
use crate::STATUS_FORMAT;
use crate::down::{HANDS_OVER, REFUSED};
use crate::failover::FailoverScope;
use crate::finding;
use crate::lease_state::AddressLease;
use crate::peers::{HANDS_OVER_KEY, PROBE};

const ENOENT: i32 = 2;
/// Maximum of queued commands, in total and for each process; a queued command holds a descriptor.
const WAITING: usize = 16;
const OF_PROCESS: usize = 4;

/// The system's text for ENOENT.
fn no_such_file() -> String {
    io::Error::from_raw_os_error(ENOENT).to_string()
}

/// Accepts commands on a new thread, which ends when the returned guard is dropped.
pub(super) fn hear(sender: mpsc::UnboundedSender<LeaseCommand>) -> io::Result<ListenGuard> {
    let (orders, hearing) = ControlSocket::listen()?;
    let places = CommandSlots::default();
    let take = move |order: ControlCommand| match places.take(order.process) {
        Some(place) => drop(sender.send(LeaseCommand::ControlCommand(order, place))),
        None => order.reject_busy(),
    };
    let thread = std::thread::Builder::new().name("orders".to_owned());
    thread.spawn(move || orders.hear(take))?;
    Ok(hearing)
}

/// Processes with queued commands.
#[derive(Clone, Default)]
struct CommandSlots(Arc<Mutex<Vec<u32>>>);

/// The place of a process's command in the queue; freed on drop.
pub(super) struct CommandSlot {
    process: u32,
    places: CommandSlots,
}

impl CommandSlots {
    /// Takes a slot for this process (0 if unknown); `None` if too many are taken.
    fn take(&self, process: u32) -> Option<CommandSlot> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_process = taken.iter().filter(|one| **one == process).count();
        if taken.len() >= WAITING || (process != 0 && of_process >= OF_PROCESS) {
            return None;
        }
        taken.push(process);
        Some(CommandSlot { process, places: self.clone() })
    }
}

impl Drop for CommandSlot {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = taken.iter().position(|one| *one == self.process) {
            taken.swap_remove(at);
        }
    }
}

/// Checks that a `down` command is from a process that may change the rules. Without nftables there
/// is no proof of that, and the control socket's check of the user (root or this server's own)
/// suffices.
fn check_net_admin() -> Result<(), String> {
    match Rules::open().and_then(|mut rules| rules.is_net_admin_proven()) {
        Ok(true) | Err(NftError::NotSupported { .. }) => Ok(()),
        Ok(false) => Err("the command has not proven that it has CAP_NET_ADMIN".to_owned()),
        Err(error) => Err(format!("it cannot check whether the command has CAP_NET_ADMIN: {error}")),
    }
}

impl LeaseThread {
    /// Executes commands until `until`; returns false if the thread must end.
    pub(super) async fn serve_commands_until(&mut self, until: Instant) -> bool {
        loop {
            match timeout_at(until, self.receiver.recv()).await {
                Ok(Some(LeaseCommand::ControlCommand(order, _place))) => {
                    let hands_over = self.state.is_handing_over();
                    self.execute(order, hands_over).await;
                    // A stream of commands does not delay the next round.
                    if Instant::now() >= until {
                        return true;
                    }
                }
                Ok(Some(LeaseCommand::Stop(ended))) => {
                    self.stop(ended).await;
                    return false;
                }
                Ok(Some(LeaseCommand::Hold(held, at_most))) => return self.hold(held, at_most).await,
                Ok(Some(LeaseCommand::Leave) | None) => return false,
                Ok(Some(LeaseCommand::Resume)) | Err(_) => return true,
            }
        }
    }

    /// Executes a command of the control socket. During a handover `down` is refused, since the
    /// next process would restore everything.
    pub(super) async fn execute(&mut self, order: ControlCommand, hands_over: bool) {
        match order.word.as_str() {
            "down" if hands_over => {
                order.answer(&format!(
                    "{HANDS_OVER}, which would restore everything: run `localdns node down` again\n"
                ));
            }
            "down" => match check_net_admin() {
                Ok(()) => order.answer(&self.let_go().await),
                Err(why) => order.answer(&format!("{REFUSED}: {why}\n")),
            },
            "status" => order.answer(&self.status(hands_over).to_string()),
            other => order.answer(&format!("unknown command {other:?}")),
        }
    }

    /// Returns this server's state, for `node status`.
    fn status(&mut self, hands_over: bool) -> Value {
        let now = Instant::now();
        let in_place = self.rules.as_mut().map(|rules| are_in_place(rules).unwrap_or(false));
        let has_leases = self.settings.rules.has_leases();
        let put = |ip| self.put.iter().flatten().find(|listener| listener.address == ip);
        let fallback = |ip| {
            let listener = put(ip)?;
            listener.fallback.as_ref().filter(|_| has_leases).map(|fallback| fallback.target)
        };
        let address = |(ip, lease): (&IpAddr, &AddressLease)| {
            let mut status = lease.status(*ip, now);
            status["fallback"] = json!(fallback(*ip));
            status["fails_closed"] = json!(put(*ip).is_some_and(|listener| listener.fails_closed));
            status
        };
        let addresses: Vec<_> = self.state.addresses().iter().map(address).collect();
        let list = self.discovery.upstreams().list();
        let (lookups, lookups_error) = match self.host.state() {
            HostResolverState::NotYet => {
                let waits = "not yet: waiting until every address answers and the rules are in place";
                (None, Some(Diagnosis::without_remedy(waits)))
            }
            HostResolverState::Put(path) => (path.as_ref(), None),
            HostResolverState::Failed(why) => (None, Some(why.clone())),
        };
        let running = self.running.upgrade();
        let down = running.as_ref().map(|running| down(&running.configuration.load()));
        let probe = running.as_ref().map(|running| running.shared.probe.to_string());
        let tables = running.map(|running| running.shared.hosts.all());
        let reloads = (self.reload_status)();
        let entries = tables.map(|tables| tables.iter().map(|table| table.entries()).sum::<usize>());
        json!({
            "format": STATUS_FORMAT,
            "pid": std::process::id(),
            "hosts_entries": entries,
            "let_go": self.state.is_let_go(),
            HANDS_OVER_KEY: hands_over,
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
            "failover": self.failover.last().filter(|_| has_leases).map(FailoverScope::json),
            "upstreams": list.iter().map(|server| AddressText(*server).to_string()).collect::<Vec<_>>(),
            "upstreams_down": down,
            "upstreams_asked": reloads.needs_list,
            "upstreams_from": match self.discovery.origin() {
                ListOrigin::Nowhere => None,
                ListOrigin::Leases => Some(Path::new(crate::dhcp_leases::DHCP_LEASES)),
                ListOrigin::File => Some(self.settings.upstreams.as_path()),
                ListOrigin::Kept => Some(Path::new(upstream_discovery::KEPT)),
            },
            "upstreams_error": self.discovery.wrong().filter(|wrong| {
                // A missing list is an error only if the configuration uses it.
                reloads.needs_list || !wrong.ends_with(&no_such_file())
            }),
            "reload_failed": reloads.failure,
            "host_resolver": lookups,
            "host_resolver_error": lookups_error.as_ref().map(finding::to_json),
            "notes": self.noted.iter().map(finding::to_json).collect::<Vec<_>>(),
        })
    }

    /// Releases leases and the host resolver, and stops restoring addresses and rules until a
    /// restart.
    async fn let_go(&mut self) -> String {
        self.state.let_go.store(true, Relaxed);
        let pid = std::process::id();
        let given_up = self.leases.take().map_or(Ok(()), Leases::give_up);
        self.iptables = None;
        let _ = self.host.take_back().await;
        self.state.addresses().values_mut().for_each(|lease| (lease.held, lease.ends) = (false, None));
        if let Some(running) = self.running.upgrade() {
            let note = "node: released by `node down`: addresses and rules are not restored until a restart";
            running.logger.warning(None, note);
        }
        match given_up {
            Ok(()) => format!("process {pid} released its leases, addresses and rules\n"),
            Err(error) => {
                format!("process {pid} released addresses and rules, but not its leases: {error}\n")
            }
        }
    }
}

/// Returns the upstreams that are down.
fn down(configuration: &Configuration) -> BTreeSet<String> {
    let chains = configuration.blocks.iter().filter_map(|block| block.pipeline.forwarding());
    let stanzas = chains.flat_map(|forwarding| forwarding.chain.stanzas());
    stanzas.flat_map(|stanza| stanza.down()).map(|upstream| upstream.address().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits apply to all processes together and to each process.
    #[test]
    fn limits_queued_commands() {
        let places = CommandSlots::default();
        let mut of_one: Vec<_> = std::iter::from_fn(|| places.take(7)).collect();
        assert_eq!(of_one.len(), OF_PROCESS);
        // Processes without a known id share number 0.
        let mut unseen = Vec::new();
        unseen.extend(std::iter::from_fn(|| places.take(0)));
        assert_eq!(unseen.len(), WAITING - OF_PROCESS);
        assert!(places.take(8).is_none());
        drop(of_one.pop());
        assert!(places.take(8).is_some());
    }
}
