//! Checks the failover table against the servers' status or, without a server, against the
//! Corefile.

use std::net::IpAddr;

use node::{Clients, Diagnosis, Listener, NftError, Rules};

use super::keepers;
use super::peers::of_server;
use crate::peers::{self as peers_status, Reported};

/// Whether the failover table exists and is complete.
pub(super) fn rules_of(
    tables: &mut Rules,
    servers: &[Reported],
    (listeners, clients): (&[Listener], &Clients),
) -> Result<bool, Diagnosis> {
    let text = |error: NftError| Diagnosis::from(&error);
    if !tables.are_there().map_err(text)? {
        return Ok(false);
    }
    let mut keepers = keepers(servers).peekable();
    if keepers.peek().is_none() {
        return match tables.are_those_of(listeners, clients).map_err(text)? {
            true => Ok(true),
            false => Err(differences(&tables.led().map_err(text)?, listeners)),
        };
    }
    // The status of running servers is used: the Corefile may have changed since they wrote the
    // rules.
    for status in keepers {
        // A starting server has written no rules yet: the existing ones are its predecessor's.
        if status["rules_put"] == false {
            return Err(Diagnosis::without_remedy(NOT_OURS));
        }
        if status["rules_in_place"] == false {
            return Err(Diagnosis::new(TAKEN, "the server restores them, or its note says why not"));
        }
    }
    // If two servers have different addresses, the table has the addresses of the last writer.
    let led = tables.led().map_err(text)?;
    let is_led = |ip: &IpAddr| led.iter().any(|(led, _)| led == ip);
    let mut unled: Vec<IpAddr> = leased(servers).filter(|ip| !is_led(ip)).collect();
    if !unled.is_empty() {
        // A reload after the servers reported their status may have removed an address.
        let again = peers_status::all().reports;
        unled.retain(|ip| leased(&again).any(|leased| leased == *ip));
    }
    match unled.first() {
        None => Ok(true),
        Some(ip) => Err(Diagnosis::new(
            format!(
                "{ip} of a server is not in them: another server has replaced them, and clients of {ip} get no answer once its server dies"
            ),
            "run servers with different addresses in network namespaces of their own",
        )),
    }
}

/// Returns the addresses of servers with leases.
fn leased(servers: &[Reported]) -> impl Iterator<Item = IpAddr> {
    let with_leases = keepers(servers).filter(|status| status["has_leases"] == true);
    with_leases.flat_map(of_server).filter_map(|one| one["address"].as_str()?.parse().ok())
}

/// Whether no iptables rule of localdns or AKS's script is left, if the servers' status requires
/// that; `Ok(true)` if it does not.
pub(super) fn no_iptables_rules_left(
    servers: &[Reported],
    notes: &mut Vec<Diagnosis>,
) -> Result<bool, Diagnosis> {
    if keepers(servers).any(|status| status["others_rules"] == true || status["rules"] != "none") {
        return Ok(true);
    }
    match node::iptables_rules() {
        Ok(0) => Ok(true),
        Ok(rules) => Err(Diagnosis::new(
            format!("{rules} iptables rules remain, but none should"),
            "start the server or run `localdns node down` to remove them",
        )),
        Err(error) => {
            notes.push(Diagnosis::from(&error).context("iptables rules may remain (see iptables-save)"));
            Ok(true)
        }
    }
}

/// Returns the differences between the existing rules and this Corefile, and the remedy.
fn differences(led: &[(IpAddr, Option<IpAddr>)], listeners: &[Listener]) -> Diagnosis {
    let of_corefile = listeners.iter().filter_map(|listener| {
        let ip = listener.address;
        let wanted = listener.fallback.as_ref().map(|fallback| fallback.target);
        let Some((_, target)) = led.iter().find(|(led, _)| *led == ip) else {
            return Some(format!("{ip} of this Corefile is not in them"));
        };
        let named =
            |target: Option<IpAddr>| target.map_or_else(|| "none".to_owned(), |target| target.to_string());
        let (leads, wanted) = (named(*target), named(wanted));
        (leads != wanted).then(|| format!("{ip} has fallback {leads}, in this Corefile {wanted}"))
    });
    let is_in = |ip: &IpAddr| listeners.iter().any(|listener| listener.address == *ip);
    let others = led.iter().filter(|(ip, _)| !is_in(ip));
    let others = others.map(|(ip, _)| format!("{ip} is in them, and not in this Corefile"));
    let all: Vec<_> = of_corefile.chain(others).collect();
    let problem = if all.is_empty() { CHANGED.to_owned() } else { all.join(", ") };
    Diagnosis::new(problem, "run `localdns node up` to replace them")
}

const NOT_OURS: &str = "the table inet localdns is not the server's; its note says why";
const CHANGED: &str = "not those of this Corefile, or changed by another process";
const TAKEN: &str = "changed by another process";
