//! What there is of the rules, leases and addresses, in words and as JSON.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use node::{HostResolver, Listener, NftError, Obstacle, Rules, WayOut};
use serde_json::{Value, json};

use super::answers::answering;
use super::line::Line;
use super::{RuleSet, Settings, as_led, iptables, is_link_local, listeners, owners, servers};
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
    /// Of firewalls that no look from here tells.
    unseen_filters: Vec<String>,
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

    /// As [`Self::of`], where no Corefile is named: of what servers say of themselves; nothing where there is none.
    pub fn unnamed(settings: &Settings) -> Option<Self> {
        let servers = servers::all();
        let note = "there is no ./Corefile, and -conf names none: addresses are those that the server says";
        (!servers.is_empty()).then(|| Self::about(served(&servers), vec![note.to_owned()], servers, settings))
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
        notes.extend(HostResolver::untold().iter().map(|path| {
            let path = path.display();
            format!("this machine may still ask us: {path} is gone, and who read it was not told; `localdns node down` tells it")
        }));
        notes.extend(HostResolver::unkept().map(|error| error.to_string()));
        let (obstacles, unseen_filters) = (Obstacle::all(&listeners), node::unseen_filters(&listeners));
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
        Self {
            set,
            rules,
            holders,
            addresses,
            corefile,
            servers,
            host_resolver,
            obstacles,
            unseen_filters,
            notes,
        }
    }

    /// Whether all is as it should be while a server runs.
    pub fn is_well(&self) -> bool {
        self.rules == Ok(true)
            && (!self.holders.is_empty() || !self.set.has_leases())
            && are_held(&self.servers)
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
            "wrong": self.lines().iter().filter_map(Line::json).collect::<Vec<_>>(),
            "well": self.is_well(),
        })
    }

    /// As a person reads it, with what mends what is wrong.
    pub fn text(&self) -> String {
        self.lines().iter().map(ToString::to_string).collect()
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = vec![self.of_rules(), self.of_leases()];
        lines.extend(self.addresses.iter().map(|address| self.of_address(address)));
        if let Some(error) = self.corefile.as_deref().map(first_line) {
            let mend = "mend what it names; the server serves the one before";
            lines.push(Line::wrong("corefile", error, mend));
        }
        for said in &self.servers {
            match said {
                Ok(said) => lines.extend(server_lines(said)),
                Err(error) => lines.push(Line::error("server", error)),
            }
        }
        for path in &self.host_resolver {
            lines.push(Line::fact("lookups", format!("of this machine come here, by {}", path.display())));
        }
        lines.extend(lookups_gone(&self.servers, &self.host_resolver));
        match &self.obstacles {
            Ok(obstacles) => lines.extend(obstacles.iter().map(|Obstacle { chain, way, mend }| {
                let what = format!("{chain} drops what its rules do not accept, on the way {way}");
                Line::error("firewall", &format!("{what}; if ours is none of them: {mend}"))
            })),
            Err(error) => lines.push(Line::error("firewall", &error.to_string())),
        }
        lines.extend(self.unseen_filters.iter().map(|told| Line::error("firewall", told)));
        lines.extend(self.notes.iter().map(|note| Line::note(note)));
        each_note_once(lines)
    }

    fn of_rules(&self) -> Line {
        match &self.rules {
            Ok(true) if self.set == RuleSet::None => Line::fact("rules", "none, as asked for"),
            Ok(true) => Line::fact("rules", "in place"),
            Ok(false) if !self.set.has_leases() => {
                Line::wrong("rules", "not all", "`node run` puts them there once it answers")
            }
            Ok(false) => {
                let mend = "`localdns node up` puts them there, `node run` does once it answers";
                Line::wrong("rules", "none", mend)
            }
            Err(error) => Line::error("rules", error),
        }
    }

    fn of_leases(&self) -> Line {
        match self.holders.as_slice() {
            [] if !self.set.has_leases() => {
                let what =
                    "none with these rules: when the server dies its clients are dark until it is back";
                Line::wrong("leases", what, "`-rules nft` has them")
            }
            [] if self.rules == Ok(true) => {
                Line::wrong("leases", "nobody has one: queries go the way out", "start the server")
            }
            [] => Line::wrong("leases", "nobody has one", "the rules come first"),
            pids => {
                let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
                Line::fact("leases", format!("process {}", pids.join(", ")))
            }
        }
    }

    fn of_address(&self, address: &Address) -> Line {
        let link = address.link.as_ref().map_or_else(|| "on no link".to_owned(), |link| format!("on {link}"));
        let way_out = match address.way_out {
            Some(way_out) => format!("way out {way_out}"),
            None => "no way out of its own".to_owned(),
        };
        let answers = if address.answers { "answers" } else { "does not answer" };
        let what = format!("{}  {link}, {way_out}, {answers}", address.ip);
        match (&address.link, address.answers) {
            (None, _) => Line::wrong("address", what, "`localdns node up` adds it"),
            (Some(_), false) if self.servers.is_empty() => Line::wrong("address", what, "start the server"),
            // The line of the server says why.
            (Some(_), false) => Line::error("address", &what),
            (Some(_), true) => Line::fact("address", what),
        }
    }
}

/// A server and what is looked at beside it tell of the same, and so do two servers.
fn each_note_once(lines: Vec<Line>) -> Vec<Line> {
    let mut told: Vec<Line> = Vec::new();
    for line in lines {
        if !line.is_note() || !told.contains(&line) {
            told.push(line);
        }
    }
    told
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

/// Whether each address of servers with leases is held by one of them, but for services' that somebody else takes: those keep nobody
/// from being ready, either.
fn are_held(servers: &[Result<Value, String>]) -> bool {
    let said =
        || servers.iter().flatten().filter(|said| said["has_leases"] == true && said["let_go"] != true);
    let addresses = || said().flat_map(|said| said["addresses"].as_array().into_iter().flatten());
    let is_held = |ip: &Value| addresses().any(|one| one["address"] == *ip && one["held"] == true);
    let is_taken = |one: &Value| {
        let is_others =
            one["probe_error"].as_str().is_some_and(|error| error.ends_with(watchdog::SOMEBODY_ELSE));
        is_others
            && one["address"].as_str().and_then(|ip| ip.parse().ok()).is_some_and(|ip| !is_link_local(ip))
    };
    addresses().all(|one| is_held(&one["address"]) || is_taken(one))
}

/// Files by which servers have turned this machine's own lookups, and that somebody else has taken away.
fn lookups_gone(servers: &[Result<Value, String>], stand: &[PathBuf]) -> Vec<Line> {
    let keeping = servers.iter().flatten().filter(|said| said["let_go"] != true);
    let put = keeping.filter_map(|said| said["host_resolver"].as_str());
    let gone = put.filter(|path| stand.iter().all(|stands| stands.as_path() != Path::new(path)));
    let line = |path: &str| {
        let what = format!("of this machine do not come here: {path} is gone");
        Line::wrong("lookups", what, "the server puts it back within 30 s")
    };
    gone.map(line).collect()
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

fn server_lines(said: &Value) -> Vec<Line> {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pid = word(&said["pid"]);
    if said["let_go"] == true {
        let what = format!("process {pid} keeps nothing, since `node down`");
        return vec![Line::wrong("server", what, "restart it")];
    }
    let has_leases = said["has_leases"] != false;
    let leases = match said["lease_ms"].as_u64() {
        _ if !has_leases => "without leases".to_owned(),
        Some(ms) => format!("leases of {ms} ms"),
        None => "leases as long as it lives".to_owned(),
    };
    let mut lines = vec![Line::fact("server", format!("process {pid}, {leases}"))];
    for address in said["addresses"].as_array().into_iter().flatten() {
        let (ip, lost) = (word(&address["address"]), word(&address["lost"]));
        let held = if address["held"] == true { "held" } else { "not held" };
        let (about, before) = match has_leases {
            true => ("lease", format!("{ip}  {held}, lost {lost} times, ")),
            false => ("probe", format!("{ip}  ")),
        };
        lines.push(match (address["probe_error"].as_str(), address["probed_ms_ago"].as_u64()) {
            (Some(error), _) => {
                let mend = match error.ends_with(watchdog::SOMEBODY_ELSE) {
                    true => "see who takes its queries: nft list ruleset",
                    false => "if it goes on, restart the server",
                };
                Line::wrong(about, format!("{before}the last probe failed: {error}"), mend)
            }
            (None, Some(ms)) if has_leases && address["held"] != true => {
                let what = format!("{before}answered a probe {ms} ms ago, and its queries go elsewhere");
                Line::wrong(about, what, "the server's log says what keeps it from its lease")
            }
            (None, Some(ms)) => Line::fact(about, format!("{before}answered a probe {ms} ms ago")),
            (None, None) => Line::fact(about, format!("{before}not probed yet")),
        });
    }
    if let Some(error) = said["reload_failed"]["error"].as_str().map(first_line) {
        let ago = word(&said["reload_failed"]["seconds_ago"]);
        let what = format!("failed {ago} s ago, and the configuration before it serves: {error}");
        lines.push(Line::wrong("reload", what, "mend what it names, and see `localdns check -conf FILE`"));
    }
    let upstreams: Vec<_> = said["upstreams"].as_array().into_iter().flatten().map(word).collect();
    if let Some(from) = said["upstreams_from"].as_str() {
        let asked = if said["upstreams_asked"] == false { UNASKED } else { "" };
        lines.push(Line::fact("upstreams", format!("{} from {from}{asked}", upstreams.join(" "))));
    }
    if let Some(error) = said["upstreams_error"].as_str() {
        let mend = "let the network's manager write its servers there, or name another file with -upstreams";
        lines.push(Line::wrong("upstreams", error, mend));
    }
    let not_turned = said["host_resolver_error"].as_str();
    if let Some(error) = not_turned {
        lines.push(Line::error("lookups", &format!("of this machine do not come here: {error}")));
    }
    let notes = said["notes"].as_array().into_iter().flatten().map(word);
    let notes = notes.filter(|note| not_turned.is_none_or(|error| !note.ends_with(error)));
    lines.extend(notes.map(|note| Line::note(&note)));
    lines
}

const UNASKED: &str = "; this Corefile asks none of them: no `forward` of it names 168.63.129.16";
const NOT_OURS: &str = "a table inet localdns is there, and not the server's, whose note says why";
const CHANGED: &str =
    "not those of this Corefile, or somebody has changed them; `localdns node up` puts them there anew";
const MENDS: &str = "`localdns node up` puts them there anew";
const TAKEN: &str =
    "somebody has changed them this moment; the server puts them back, or its note says why not";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_to_be_held_by_a_server_that_has_leases() {
        let server = |has_leases: bool, address: Value| {
            Ok(json!({ "has_leases": has_leases, "let_go": false, "addresses": [address] }))
        };
        let of = |has_leases, held: bool| server(has_leases, json!({ "address": "192.0.2.1", "held": held }));
        let taken = |ip: &str| {
            let error = format!("{ip}:53 does not answer over UDP{}", watchdog::SOMEBODY_ELSE);
            server(true, json!({ "address": ip, "held": false, "probe_error": error }))
        };
        for (servers, expected) in [
            (vec![], true),
            (vec![of(true, true)], true),
            (vec![of(true, false)], false),
            // One that begins, beside one that serves.
            (vec![of(true, false), of(true, true)], true),
            (vec![of(false, false)], true),
            (vec![taken("10.96.0.20")], true),
            (vec![taken("169.254.10.10")], false),
            (vec![Err("it hangs".to_owned())], true),
        ] {
            assert_eq!(are_held(&servers), expected, "{servers:?}");
        }
    }
}
