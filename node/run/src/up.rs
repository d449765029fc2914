//! `localdns node up`: adds the links, addresses and rules of a server that does not run.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;

use crate::host_resolver::HostResolver;
use node::{AddressPolicy, EnsuredAddress, Listener, NftError, Rules, WIRE_SERVER};
use tokio::runtime::Runtime;

use super::failover::FailoverScope;
use super::{
    NodeSettings, RuleSet, foreign_addresses, iptables, is_link_local, keep_existing_fallbacks, listeners,
    no_address, peers,
};
use crate::upstream_discovery;
use configuration::Configuration;

/// The result of `node up`.
pub struct UpReport {
    /// Text for the operator.
    pub output: String,
    /// False if an address's fallback may change once the network's name servers are known.
    pub is_whole: bool,
}

/// Adds links, addresses and the failover table; sends host lookups to localdns only if a server
/// answers. `no_list` is the reason, if the Corefile needs the network's name servers and none is
/// known.
///
/// # Errors
/// An error of the kernel; new addresses are then removed again.
pub fn up(
    configuration: &Configuration,
    settings: &NodeSettings,
    no_list: Option<&str>,
) -> Result<UpReport, String> {
    let (mut listeners, mut notes) = listeners(configuration, settings);
    if settings.rules.has_leases() {
        let led = Rules::open().and_then(|mut rules| rules.led());
        keep_existing_fallbacks(
            (&mut listeners, &mut notes),
            &led.unwrap_or_default(),
            configuration,
            settings,
        );
    }
    match settings.rules {
        _ if !listeners.is_empty() => {}
        // With `-rules none` a server may serve other addresses only.
        RuleSet::None => notes.push(no_address()),
        _ => return Err(text(no_address())),
    }
    // Checked before addresses are added: without rules, clients of the addresses would reach no
    // server.
    let there = || Rules::open()?.are_there();
    if let (RuleSet::Nft, Err(error @ NftError::NotSupported { .. })) = (settings.rules, there()) {
        return Err(text(error));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(text)?;
    let mut added =
        NewAddresses { link: node::link_index(settings.link.as_str()).is_none(), addresses: Vec::new() };
    let mut put = || {
        let output = addresses(&listeners, settings, &runtime, &mut added)?;
        let rules = match settings.rules {
            RuleSet::Nft => rules(&listeners, settings, no_list)?,
            RuleSet::Iptables(set) => whole(iptables::up(set, &listeners).map_err(text)?),
            RuleSet::None => whole(String::new()),
        };
        Ok(UpReport { output: output + &rules.output, ..rules })
    };
    let put: Result<UpReport, String> = put();
    let UpReport { mut output, is_whole } =
        put.map_err(|error| added.take_back(error, settings, &runtime))?;
    if settings.host_resolver != HostResolver::None {
        output += &host_resolver(&listeners, settings);
    }
    notes.extend(
        foreign_addresses::diagnoses(&listeners, settings).into_iter().map(|(_, diagnosis)| diagnosis),
    );
    for note in notes {
        output += &format!("{note}\n");
    }
    Ok(UpReport { output, is_whole })
}

fn whole(output: String) -> UpReport {
    UpReport { output, is_whole: true }
}

fn addresses(
    listeners: &[Listener],
    settings: &NodeSettings,
    runtime: &Runtime,
    new: &mut NewAddresses,
) -> Result<String, String> {
    let mut output = String::new();
    for Listener { address, .. } in listeners {
        let added = runtime.block_on(node::ensure_address(*address, AddressPolicy::Named(settings.link)));
        let added = added.map_err(text)?;
        if let EnsuredAddress::AddedTo { .. } = added {
            new.addresses.push(*address);
        }
        if let Some(instead) = added.instead().filter(|_| output.is_empty()) {
            output += &format!("{instead}\n");
        }
        output += &format!("{address} is on {}\n", added.link());
    }
    Ok(output)
}

/// Link and addresses that this command added.
struct NewAddresses {
    /// Whether the link is new.
    link: bool,
    addresses: Vec<IpAddr>,
}

impl NewAddresses {
    /// Removes the added link and addresses; returns the error, and what remains.
    fn take_back(&self, error: String, settings: &NodeSettings, runtime: &Runtime) -> String {
        let link = Some(settings.link.as_str()).filter(|_| self.link);
        match runtime.block_on(node::remove_addresses(&self.addresses, link)) {
            Ok(()) => error,
            Err(left) => format!("{error}; {left}; `localdns node down` tries again"),
        }
    }
}

fn rules(listeners: &[Listener], settings: &NodeSettings, no_list: Option<&str>) -> Result<UpReport, String> {
    let mut output = String::new();
    match node::remove_iptables_rules() {
        Ok(0) => {}
        Ok(rules) => output += &format!("removed {rules} iptables rules\n"),
        Err(error) => output += &format!("iptables rules may remain (see iptables-save): {error}\n"),
    }
    let mut rules = Rules::open().map_err(text)?;
    if let (Some(pid), true) = (rules.holders().map_err(text)?.first(), rules.are_there().map_err(text)?) {
        return Ok(whole(output + &format!("the rules are maintained by the server of process {pid}\n")));
    }
    let failover = FailoverScope::now(&settings.failover_clients);
    rules.put(listeners, &failover.clients).map_err(text)?;
    for Listener { address, fallback, fails_closed } in listeners {
        output += &match fallback {
            _ if *fails_closed => format!("queries to {address} are refused while no server is running\n"),
            Some(fallback) => {
                format!("queries to {address} go to {} while no server is running\n", fallback.target)
            }
            None => format!("queries to {address} have no fallback of localdns while no server is running\n"),
        };
    }
    output.extend(failover.notes().into_iter().map(|note| format!("{note}\n")));
    let no_list = no_list.filter(|_| listeners.iter().any(wants_list));
    if let Some(why) = no_list {
        output += &format!(
            "{why}: {WIRE_SERVER} itself is the fallback, which answers in Azure only; run `localdns node up` again once there are some\n"
        );
    }
    Ok(UpReport { output, is_whole: no_list.is_none() })
}

/// Whether the network's name servers, once known, may change the address's fallback.
fn wants_list(listener: &Listener) -> bool {
    match &listener.fallback {
        Some(fallback) => fallback.target == WIRE_SERVER,
        None => is_link_local(listener.address) && !listener.fails_closed,
    }
}

fn host_resolver(listeners: &[Listener], settings: &NodeSettings) -> String {
    let Some(server) = crate::host_resolver_task::server(listeners) else { return String::new() };
    let not = "host lookups are not sent to this server";
    if let Err(why) = peers::answer(&[server]) {
        // A drop-in of a killed server still sends the host's lookups to localdns.
        return match HostResolver::stands().first() {
            Some(left) => {
                format!("host lookups are sent to this server, by {}, although {why}\n", left.display())
            }
            None => format!("{not}: {why}\n"),
        };
    }
    let upstreams = || upstream_discovery::text_of(&settings.upstreams);
    match settings.host_resolver.put(server, &upstreams, &AtomicBool::new(true)) {
        Ok(Some(path)) => format!("host lookups are sent to {server}, by {}\n", path.display()),
        Ok(None) => String::new(),
        Err(error) => format!("{not}: {error}\n"),
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}
