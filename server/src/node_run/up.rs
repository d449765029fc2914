//! `localdns node up`: what a server that runs would put there, as far as it can be there without one.

use std::fmt::Display;
use std::sync::atomic::AtomicBool;

use node::{HostResolver, Listener, NftError, Ours, Rules};

use super::answers::answers;
use super::{RuleSet, Settings, discovery, host, iptables, listeners};
use configuration::Configuration;

/// Puts links, addresses and the table that stays there; the machine's own lookups come here only where a server answers.
///
/// # Errors
/// What the kernel refuses.
pub fn up(configuration: &Configuration, settings: &Settings) -> Result<String, String> {
    let (listeners, notes) = listeners(configuration, settings);
    // An address without rules would keep its clients from everybody.
    let there = || Rules::open()?.are_there();
    if let (RuleSet::Nft, Err(error @ NftError::NotSupported { .. })) = (settings.rules, there()) {
        return Err(text(error));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(text)?;
    let mut told = String::new();
    for Listener { address, .. } in &listeners {
        let added =
            runtime.block_on(node::ensure_address(*address, Ours::Named(settings.link))).map_err(text)?;
        told += &format!("{address} is on {}\n", added.link());
    }
    told += &match settings.rules {
        RuleSet::Nft => rules(&listeners)?,
        RuleSet::Iptables(set) => iptables::up(set, &listeners).map_err(text)?,
        RuleSet::None => String::new(),
    };
    if settings.host_resolver != HostResolver::None {
        told += &host_resolver(&listeners, settings);
    }
    for note in notes {
        told += &format!("{note}\n");
    }
    Ok(told)
}

fn rules(listeners: &[Listener]) -> Result<String, String> {
    let mut told = String::new();
    match node::remove_iptables_rules() {
        Ok(0) => {}
        Ok(rules) => told += &format!("{rules} rules in the tables of iptables are gone\n"),
        Err(error) => told += &format!("rules of iptables may be left (iptables-save): {error}\n"),
    }
    let mut rules = Rules::open().map_err(text)?;
    if let (Some(pid), true) = (rules.holders().map_err(text)?.first(), rules.are_there().map_err(text)?) {
        return Ok(told + &format!("the rules are those of the server of process {pid}, which keeps them\n"));
    }
    rules.put(listeners).map_err(text)?;
    for Listener { address, way_out } in listeners {
        told += &match way_out {
            Some(way_out) => format!("{address} goes to {} while nobody answers here\n", way_out.target),
            None => format!("{address} goes where others send it while nobody answers here\n"),
        };
    }
    Ok(told)
}

fn host_resolver(listeners: &[Listener], settings: &Settings) -> String {
    let Some(server) = host::server(listeners) else { return String::new() };
    let not = "this machine's own lookups do not come here";
    let holders = Rules::open().and_then(|mut rules| rules.holders()).unwrap_or_default();
    if holders.is_empty() && node::Running::all().is_empty() {
        return format!("{not}: no server runs\n");
    }
    if let Some(silent) = listeners.iter().find(|listener| !answers(listener.address)) {
        return format!("{not}: {} does not answer\n", silent.address);
    }
    let upstreams = || discovery::text_of(&settings.upstreams);
    match settings.host_resolver.put(server, &upstreams, &AtomicBool::new(true)) {
        Ok(Some(path)) => format!("this machine's own lookups come to {server}, by {}\n", path.display()),
        Ok(None) => String::new(),
        Err(error) => format!("{not}: {error}\n"),
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}
