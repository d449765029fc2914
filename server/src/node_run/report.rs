//! What there is of the rules, leases and addresses, in words and as JSON.

use std::net::IpAddr;
use std::path::PathBuf;

use node::{HostResolver, Listener, NftError, Obstacle, Rules, WayOut};
use serde_json::{Value, json};

use super::answers::answering;
use super::{RuleSet, Settings, as_led, iptables, listeners, owners, servers};
use crate::watchdog;
use configuration::Configuration;

/// `localdns node status`.
#[derive(Debug)]
pub struct Report {
    set: RuleSet,
    /// Whether they are there.
    rules: Result<bool, String>,
    holders: Vec<u32>,
    addresses: Vec<Address>,
    /// What is wrong with the Corefile, whose addresses are then those that the server says.
    corefile: Option<String>,
    /// What each server of this network says of itself, or why it says nothing.
    servers: Vec<Result<Value, String>>,
    /// Files by which this machine's own lookups are turned.
    host_resolver: Vec<PathBuf>,
    obstacles: Result<Vec<Obstacle>, NftError>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct Address {
    ip: IpAddr,
    link: Option<String>,
    way_out: Option<IpAddr>,
    /// Whether a DNS server answers there, as a client of this node sees it.
    answers: bool,
}

impl Report {
    /// Looks at the machine.
    pub fn of(configuration: &Configuration, settings: &Settings) -> Self {
        let servers = servers::all();
        let is_served = servers.iter().flatten().all(|said| said["reload_failed"].is_null());
        let (listeners, notes) = match served(&servers) {
            // The configuration before this one serves.
            served if !is_served && !served.is_empty() => (served, Vec::new()),
            _ => {
                let (mut listeners, notes) = listeners(configuration, settings);
                let led = Rules::open().and_then(|mut rules| rules.led());
                as_led(&mut listeners, &led.unwrap_or_default(), configuration, settings);
                (listeners, notes)
            }
        };
        Self::about(listeners, notes, servers, settings)
    }

    /// As [`Self::of`], of a Corefile that cannot be used: the one before it may be served all the same.
    ///
    /// # Errors
    /// What is wrong with it, where no server says which addresses are its own.
    pub fn without(corefile: String, settings: &Settings) -> Result<Self, String> {
        let servers = servers::all();
        let listeners = served(&servers);
        if listeners.is_empty() {
            return Err(corefile);
        }
        let report = Self::about(listeners, Vec::new(), servers, settings);
        Ok(Self { corefile: Some(corefile), ..report })
    }

    fn about(
        listeners: Vec<Listener>,
        mut notes: Vec<String>,
        mut servers: Vec<Result<Value, String>>,
        settings: &Settings,
    ) -> Self {
        let kept = set_of(&servers).unwrap_or(settings.rules);
        if kept != settings.rules {
            notes.push(format!("the server keeps other rules than were asked about: -rules {}", kept.name()));
        }
        // Without the flag those are meant that are kept.
        let set = if settings.rules == RuleSet::Nft { kept } else { settings.rules };
        if servers.is_empty() {
            notes.extend(owners::told(&listeners, settings).into_iter().map(|(_, told)| told));
        }
        let obstacles = Obstacle::all(&listeners);
        let mut tables = Rules::open();
        let holders =
            tables.as_mut().map_or_else(|_| Vec::new(), |rules| rules.holders().unwrap_or_default());
        let rules = match set {
            RuleSet::Nft => match &mut tables {
                Ok(tables) => rules_of(tables, &servers, &listeners),
                Err(error) => Err(error.to_string()),
            },
            RuleSet::Iptables(set) => iptables::are_there(set, &listeners).map_err(|error| error.to_string()),
            RuleSet::None => Ok(true),
        };
        let asked = listeners.iter().map(|one| (one.address, servers::probes(&servers, one.address)));
        let answering = answering(&asked.collect::<Vec<_>>());
        let addresses = listeners
            .into_iter()
            .map(|listener| Address {
                ip: listener.address,
                link: node::link_of(listener.address),
                way_out: listener.way_out.map(|way_out| way_out.target),
                answers: answering.contains(&listener.address),
            })
            .collect();
        for said in servers.iter_mut().flatten().filter_map(Value::as_object_mut) {
            said.remove(servers::PROBE);
        }
        let (host_resolver, corefile) = (HostResolver::stands(), None);
        Self { set, rules, holders, addresses, corefile, servers, host_resolver, obstacles, notes }
    }

    /// Whether all is as it should be while a server runs.
    pub fn is_well(&self) -> bool {
        self.rules == Ok(true)
            && (!self.holders.is_empty() || !self.set.has_leases())
            && self.servers.iter().all(Result::is_ok)
            && self.addresses.iter().all(|address| address.link.is_some() && address.answers)
    }

    /// One object.
    pub fn json(&self) -> Value {
        let addresses: Vec<_> = self
            .addresses
            .iter()
            .map(|address| {
                json!({
                    "address": address.ip,
                    "link": address.link,
                    "way_out": address.way_out,
                    "answers": address.answers,
                })
            })
            .collect();
        json!({
            "rules": self.rules.as_ref().ok(),
            "rules_error": self.rules.as_ref().err(),
            "lease_holders": self.holders,
            "addresses": addresses,
            "servers": self.servers.iter().map(|said| match said {
                Ok(said) => said.clone(),
                Err(error) => json!({ "error": error }),
            }).collect::<Vec<_>>(),
            "corefile_error": self.corefile,
            "host_resolver": self.host_resolver,
            "obstacles": self.obstacles.iter().flatten().map(|one| {
                json!({ "chain": one.chain, "way": one.way, "mend": one.mend })
            }).collect::<Vec<_>>(),
            "notes": self.notes,
            "well": self.is_well(),
        })
    }

    /// As a person reads it, with what mends what is wrong.
    pub fn text(&self) -> String {
        let mut text = match &self.rules {
            Ok(true) if self.set == RuleSet::None => "rules     none, as asked for\n".to_owned(),
            Ok(false) if !self.set.has_leases() => {
                "rules     not all; `node run` puts them there once it answers\n".to_owned()
            }
            Ok(true) => "rules     in place\n".to_owned(),
            Ok(false) => {
                "rules     none; `localdns node up` puts them there, `node run` does once it answers\n"
                    .to_owned()
            }
            Err(error) => format!("rules     {error}\n"),
        };
        text += &match self.holders.as_slice() {
            [] if !self.set.has_leases() => {
                "leases    none with these rules: when the server dies its clients are dark until it is back; `-rules nft` has them\n"
                    .to_owned()
            }
            [] if self.rules == Ok(true) => {
                "leases    nobody has one: queries go the way out; start the server\n".to_owned()
            }
            [] => "leases    nobody has one\n".to_owned(),
            pids => {
                let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
                format!("leases    process {}\n", pids.join(", "))
            }
        };
        for address in &self.addresses {
            let link = match &address.link {
                Some(link) => format!("on {link}"),
                None => "on no link; `localdns node up` adds it".to_owned(),
            };
            let way_out = match address.way_out {
                Some(way_out) => format!("way out {way_out}"),
                None => "no way out of its own".to_owned(),
            };
            let answers = if address.answers { "answers" } else { "does not answer" };
            text += &format!("address   {}  {link}, {way_out}, {answers}\n", address.ip);
        }
        if let Some(error) = self.corefile.as_deref().map(first_line) {
            text += &format!("corefile  {error}; the server serves the one before\n");
        }
        let mut noted = Vec::new();
        text += &self.servers_text(&mut noted);
        for path in &self.host_resolver {
            text += &format!("lookups   of this machine come here, by {}\n", path.display());
        }
        match &self.obstacles {
            Ok(obstacles) => {
                for Obstacle { chain, way, mend } in obstacles {
                    text += &format!(
                        "firewall  {chain} drops what its rules do not accept, on the way {way}; if ours is none of them: {mend}\n"
                    );
                }
            }
            Err(error) => text += &format!("firewall  {error}\n"),
        }
        for note in &self.notes {
            text += &note_text(note, &mut noted);
        }
        text
    }

    fn servers_text(&self, noted: &mut Vec<String>) -> String {
        let mut text = String::new();
        for said in &self.servers {
            match said {
                Ok(said) => text += &server_text(said, noted),
                Err(error) => text += &format!("server    {error}\n"),
            }
        }
        text
    }
}

/// A note, unless it stands there: a server and what is looked at beside it tell of the same, and so do two servers.
fn note_text(note: &str, noted: &mut Vec<String>) -> String {
    if noted.iter().any(|before| before == note) {
        return String::new();
    }
    noted.push(note.to_owned());
    format!("note      {note}\n")
}

/// Whose rules those are that servers keep, as they say themselves: flags may stand with them alone.
fn set_of(servers: &[Result<Value, String>]) -> Option<RuleSet> {
    keepers(servers).find_map(|said| {
        let health_port = said["health_port"].as_u64().and_then(|port| u16::try_from(port).ok());
        RuleSet::named(said["rules"].as_str()?, health_port.unwrap_or(Settings::HEALTH_PORT))
    })
}

/// What those say that keep rules.
fn keepers(servers: &[Result<Value, String>]) -> impl Iterator<Item = &Value> {
    servers.iter().flatten().filter(|said| said["let_go"] != true)
}

/// An error of a Corefile shows the line that it is about behind this.
fn first_line(error: &str) -> &str {
    error.lines().next().unwrap_or_default()
}

/// The addresses that servers say are their own.
fn served(servers: &[Result<Value, String>]) -> Vec<Listener> {
    let ip = |value: &Value| value.as_str()?.parse().ok();
    let listener = |said: &Value| {
        let way_out = ip(&said["way_out"]).map(|target| WayOut { target, masquerade: true });
        Some(Listener { address: ip(&said["address"])?, way_out })
    };
    let addresses = servers.iter().flatten().filter_map(|said| said["addresses"].as_array());
    let mut listeners: Vec<Listener> = Vec::new();
    for one in addresses.flatten().filter_map(listener) {
        if listeners.iter().all(|other| other.address != one.address) {
            listeners.push(one);
        }
    }
    listeners
}

/// Whether the table that stays is there, and all that belongs in it.
fn rules_of(
    tables: &mut Rules,
    servers: &[Result<Value, String>],
    listeners: &[Listener],
) -> Result<bool, String> {
    let text = |error: NftError| error.to_string();
    if !tables.are_there().map_err(text)? {
        return Ok(false);
    }
    let mut keepers = keepers(servers).peekable();
    if keepers.peek().is_none() {
        return match tables.are_those_of(listeners).map_err(text)? {
            true => Ok(true),
            false => Err(differences(&tables.led().map_err(text)?, listeners)),
        };
    }
    // The servers that run know which rules they put; the Corefile may have changed since.
    for said in keepers {
        // A server that is still starting has put no rules yet: the ones there are its predecessor's.
        if said["rules_put"] == false {
            return Err(NOT_OURS.to_owned());
        }
        if said["rules_in_place"] == false {
            return Err(TAKEN.to_owned());
        }
    }
    Ok(true)
}

/// In what the rules that stand are not those of this Corefile, and what mends it.
fn differences(led: &[(IpAddr, Option<IpAddr>)], listeners: &[Listener]) -> String {
    let of_corefile = listeners.iter().filter_map(|listener| {
        let ip = listener.address;
        let wanted = listener.way_out.as_ref().map(|way_out| way_out.target);
        let Some((_, target)) = led.iter().find(|(led, _)| *led == ip) else {
            return Some(format!("{ip} of this Corefile is not in them"));
        };
        let named =
            |target: Option<IpAddr>| target.map_or_else(|| "nowhere".to_owned(), |target| target.to_string());
        let (leads, wanted) = (named(*target), named(wanted));
        (leads != wanted).then(|| format!("they lead queries for {ip} to {leads}, this Corefile to {wanted}"))
    });
    let is_in = |ip: &IpAddr| listeners.iter().any(|listener| listener.address == *ip);
    let others = led.iter().filter(|(ip, _)| !is_in(ip));
    let others = others.map(|(ip, _)| format!("{ip} is in them, and not in this Corefile"));
    let all: Vec<_> = of_corefile.chain(others).collect();
    match all.is_empty() {
        true => CHANGED.to_owned(),
        false => format!("{}; {MENDS}", all.join(", ")),
    }
}

fn server_text(said: &Value, noted: &mut Vec<String>) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pid = word(&said["pid"]);
    if said["let_go"] == true {
        return format!("server    process {pid} keeps nothing, since `node down`; restart it\n");
    }
    let has_leases = said["has_leases"] != false;
    let mut text = match said["lease_ms"].as_u64() {
        _ if !has_leases => format!("server    process {pid}, without leases\n"),
        Some(ms) => format!("server    process {pid}, leases of {ms} ms\n"),
        None => format!("server    process {pid}, leases as long as it lives\n"),
    };
    for address in said["addresses"].as_array().into_iter().flatten() {
        let (ip, lost) = (word(&address["address"]), word(&address["lost"]));
        let held = if address["held"] == true { "held" } else { "not held" };
        let probe = match (address["probe_error"].as_str(), address["probed_ms_ago"].as_u64()) {
            (Some(error), _) if error.ends_with(watchdog::SOMEBODY_ELSE) => {
                format!("the last probe failed: {error}; see who takes its queries: nft list ruleset")
            }
            (Some(error), _) => format!("the last probe failed: {error}; if it goes on, restart the server"),
            (None, Some(ms)) => format!("answered a probe {ms} ms ago"),
            (None, None) => "not probed yet".to_owned(),
        };
        text += &match has_leases {
            true => format!("lease     {ip}  {held}, lost {lost} times, {probe}\n"),
            false => format!("probe     {ip}  {probe}\n"),
        };
    }
    if let Some(error) = said["reload_failed"]["error"].as_str().map(first_line) {
        let ago = word(&said["reload_failed"]["seconds_ago"]);
        text += &format!(
            "reload    failed {ago} s ago, and the configuration before it serves: {error}; mend what it names, and see `localdns check -conf FILE`\n"
        );
    }
    let upstreams: Vec<_> = said["upstreams"].as_array().into_iter().flatten().map(word).collect();
    if let Some(from) = said["upstreams_from"].as_str() {
        text += &format!("upstreams {} from {from}\n", upstreams.join(" "));
    }
    if let Some(error) = said["upstreams_error"].as_str() {
        text += &format!("upstreams {error}\n");
    }
    let not_turned = said["host_resolver_error"].as_str();
    if let Some(error) = not_turned {
        text += &format!("lookups   of this machine do not come here: {error}\n");
    }
    let notes = said["notes"].as_array().into_iter().flatten().map(word);
    for note in notes.filter(|note| not_turned.is_none_or(|error| !note.ends_with(error))) {
        text += &note_text(&note, noted);
    }
    text
}

const NOT_OURS: &str = "a table inet localdns is there, and not the server's, whose note says why";
const CHANGED: &str =
    "not those of this Corefile, or somebody has changed them; `localdns node up` puts them there anew";
const MENDS: &str = "`localdns node up` puts them there anew";
const TAKEN: &str =
    "somebody has changed them this moment; the server puts them back, or its note says why not";
