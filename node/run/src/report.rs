//! The result of `node status` as text and JSON: the state of rules, leases and addresses.

mod peers;
mod rules;

use std::net::IpAddr;
use std::path::PathBuf;

use crate::host_resolver::HostResolver;
use node::{Diagnosis, Fallback, FirewallConflict, Listener, NftError, Rules};
use serde_json::{Value, json};

use super::dns_probe::answering;
use super::failover::FailoverScope;
use super::finding::{self, Finding};
use super::peers::{self as peers_status, PeerStatus, Reported};
use super::{
    NodeSettings, RuleSet, foreign_addresses, iptables, keep_existing_fallbacks, listeners, no_address,
};
use configuration::Configuration;
use peers::{are_held, removed_host_resolvers, server_lines};
use rules::{no_iptables_rules_left, rules_of};

/// The result of `localdns node status`.
#[derive(Debug)]
pub struct NodeStatus {
    set: RuleSet,
    /// Whether the rules exist.
    rules: Result<bool, Diagnosis>,
    holders: Vec<u32>,
    addresses: Vec<Address>,
    /// The Corefile's error; `addresses` are then from the server's status.
    corefile: Option<String>,
    /// The clients that fail over, from the server's status or, without a server, from the flags.
    failover: Option<FailoverScope>,
    /// The status of each server in this network namespace, or an error.
    servers: Vec<Reported>,
    /// Files that send the host's lookups to localdns.
    host_resolver: Vec<PathBuf>,
    obstacles: Result<Vec<FirewallConflict>, NftError>,
    /// Notes about packet filters that cannot be read.
    unseen_filters: Vec<Diagnosis>,
    notes: Vec<Diagnosis>,
}

#[derive(Debug)]
struct Address {
    ip: IpAddr,
    link: Option<String>,
    fallback: Option<IpAddr>,
    fails_closed: bool,
    /// Whether a DNS server answers a query from this node to the address.
    answers: bool,
}

impl NodeStatus {
    /// Reads the host's state.
    pub fn of(configuration: &Configuration, settings: &NodeSettings) -> Self {
        let servers = peers_status::all();
        let reports = &servers.reports;
        let settings = &with_server_flags(settings, reports);
        let is_served = reports.iter().flatten().all(|status| status["reload_failed"].is_null());
        let (listeners, notes) = match served(reports) {
            // After a failed reload the previous configuration serves.
            served if !is_served && !served.is_empty() => (served, Vec::new()),
            _ => {
                let (mut listeners, mut notes) = listeners(configuration, settings);
                let led = Rules::open().and_then(|mut rules| rules.led());
                keep_existing_fallbacks(
                    (&mut listeners, &mut notes),
                    &led.unwrap_or_default(),
                    configuration,
                    settings,
                );
                (listeners, notes)
            }
        };
        Self::about(listeners, notes, servers, settings)
    }

    /// Reads the host's state for a Corefile with an error; the server may still serve the previous
    /// Corefile.
    ///
    /// # Errors
    /// The Corefile's error, if no server reports its addresses.
    pub fn without(corefile: String, settings: &NodeSettings) -> Result<Self, String> {
        let servers = peers_status::all();
        let listeners = served(&servers.reports);
        if listeners.is_empty() {
            return Err(corefile);
        }
        let report = Self::about(listeners, Vec::new(), servers, settings);
        Ok(Self { corefile: Some(corefile), ..report })
    }

    /// Reads the host's state without a Corefile, from the servers' status; `None` if there is no
    /// server.
    pub fn unnamed(settings: &NodeSettings) -> Option<Self> {
        let servers = peers_status::all();
        let note = "there is no ./Corefile and no -conf: addresses are those of the running server";
        let listeners = served(&servers.reports);
        (!servers.reports.is_empty())
            .then(|| Self::about(listeners, vec![Diagnosis::without_remedy(note)], servers, settings))
    }

    fn about(
        listeners: Vec<Listener>,
        mut notes: Vec<Diagnosis>,
        servers: PeerStatus,
        settings: &NodeSettings,
    ) -> Self {
        let PeerStatus { reports: mut servers, notes: of_others } = servers;
        notes.extend(of_others);
        let kept = set_of(&servers).unwrap_or(settings.rules);
        if kept != settings.rules {
            let problem = format!("the running server has other rules: -rules {}", kept.name());
            notes.push(Diagnosis::without_remedy(problem));
        }
        // With the default of `-rules`, the server's rule set is checked.
        let set = if settings.rules == RuleSet::Nft { kept } else { settings.rules };
        let scope = keepers(&servers).find_map(|status| FailoverScope::of_json(&status["failover"]));
        let failover = scope.unwrap_or_else(|| FailoverScope::now(&settings.failover_clients));
        if servers.is_empty() {
            notes.extend(failover.notes().into_iter().filter(|_| set.has_leases()));
            notes.extend(
                foreign_addresses::diagnoses(&listeners, settings)
                    .into_iter()
                    .map(|(_, diagnosis)| diagnosis),
            );
        }
        notes.extend(HostResolver::not_reloaded().iter().map(|path| {
            let path = path.display();
            let problem = format!(
                "host lookups may still be sent to this server: {path} is gone, but its reader was not reloaded"
            );
            Diagnosis::new(problem, "run `localdns node down`")
        }));
        notes.extend(HostResolver::lost_original().as_ref().map(Diagnosis::from));
        let (obstacles, unseen_filters) =
            (FirewallConflict::all(&listeners, &failover.clients), node::unseen_filters(&listeners));
        let mut tables = Rules::open();
        let holders =
            tables.as_mut().map_or_else(|_| Vec::new(), |rules| rules.holders().unwrap_or_default());
        let rules = match set {
            RuleSet::Nft => match &mut tables {
                Ok(tables) => rules_of(tables, &servers, (&listeners, &failover.clients)),
                Err(error) => Err(Diagnosis::from(&*error)),
            },
            RuleSet::Iptables(set) => {
                iptables::are_there(set, &listeners).map_err(|error| Diagnosis::from(&error))
            }
            RuleSet::None => no_iptables_rules_left(&servers, &mut notes),
        };
        let asked = listeners.iter().map(|one| (one.address, peers_status::probes(&servers, one.address)));
        let answering = answering(&asked.collect::<Vec<_>>());
        let addresses = listeners
            .into_iter()
            .map(|listener| Address {
                ip: listener.address,
                link: node::link_of(listener.address),
                fallback: listener.fallback.filter(|_| set.has_leases()).map(|fallback| fallback.target),
                fails_closed: listener.fails_closed,
                answers: answering.contains(&listener.address),
            })
            .collect();
        for status in servers.iter_mut().flatten().filter_map(Value::as_object_mut) {
            status.remove(peers_status::PROBE);
        }
        let failover = set.has_leases().then_some(failover);
        let (host_resolver, corefile) = (HostResolver::stands(), None);
        Self {
            set,
            rules,
            holders,
            addresses,
            corefile,
            failover,
            servers,
            host_resolver,
            obstacles,
            unseen_filters,
            notes,
        }
    }

    /// Whether rules, leases, servers and addresses have no problem.
    pub fn is_well(&self) -> bool {
        self.rules == Ok(true)
            && (!self.holders.is_empty() || !self.set.has_leases())
            && are_held(&self.servers)
            && self.servers.iter().all(Result::is_ok)
            && (!self.addresses.is_empty() || self.set == RuleSet::None)
            && self.addresses.iter().all(|address| address.link.is_some() && address.answers)
    }

    /// Returns the status as one JSON object.
    pub fn json(&self) -> Value {
        let addresses: Vec<_> = self
            .addresses
            .iter()
            .map(|address| {
                json!({
                    "address": address.ip,
                    "link": address.link,
                    "fallback": address.fallback,
                    "answers": address.answers,
                })
            })
            .collect();
        json!({
            "format": STATUS_FORMAT,
            "rules": self.rules.as_ref().ok(),
            "rules_error": self.rules.as_ref().err().map(ToString::to_string),
            "lease_holders": self.holders,
            "addresses": addresses,
            "failover": self.failover.as_ref().map(FailoverScope::json),
            "servers": self.servers.iter().map(|status| match status {
                Ok(status) => status.clone(),
                Err(error) => json!({ "error": error.to_string() }),
            }).collect::<Vec<_>>(),
            "corefile_error": self.corefile,
            "host_resolver": self.host_resolver,
            "obstacles": self.obstacles.iter().flatten().map(|one| {
                json!({ "chain": one.chain, "way": one.way, "certain": one.is_certain, "remedy": one.remedy })
            }).collect::<Vec<_>>(),
            "notes": self.notes.iter().map(finding::to_json).collect::<Vec<_>>(),
            "problems": self.lines().iter().filter_map(Finding::json).collect::<Vec<_>>(),
            "well": self.is_well(),
        })
    }

    /// Returns the status as text, with remedies.
    pub fn text(&self) -> String {
        self.lines().iter().map(ToString::to_string).collect()
    }

    fn lines(&self) -> Vec<Finding> {
        let mut lines = vec![self.of_rules(), self.of_leases()];
        lines.extend(self.addresses.iter().map(|address| self.of_address(address)));
        if self.addresses.is_empty() {
            lines.push(match self.set {
                RuleSet::None => Finding::note(&no_address()),
                _ => Finding::diagnosis("address", &no_address()),
            });
        }
        lines
            .extend(self.failover.iter().map(|one| Finding::fact("failover", format!("for {}", one.text()))));
        if let Some(error) = self.corefile.as_deref().map(first_line) {
            let remedy = "fix it; the server serves the previous one";
            lines.push(Finding::problem("corefile", error, remedy));
        }
        for status in &self.servers {
            match status {
                Ok(status) => lines.extend(server_lines(status)),
                Err(error) => lines.push(Finding::diagnosis("server", error)),
            }
        }
        for path in &self.host_resolver {
            lines.push(Finding::fact(
                "lookups",
                format!("of this host are sent to this server, by {}", path.display()),
            ));
        }
        lines.extend(removed_host_resolvers(&self.servers, &self.host_resolver));
        match &self.obstacles {
            Ok(obstacles) => lines.extend(obstacles.iter().map(of_obstacle)),
            Err(error) => lines.push(Finding::diagnosis("firewall", &error.into())),
        }
        lines.extend(self.unseen_filters.iter().map(|one| Finding::diagnosis("firewall", one)));
        lines.extend(self.notes.iter().map(Finding::note));
        each_note_once(lines)
    }

    fn of_rules(&self) -> Finding {
        match &self.rules {
            Ok(true) if self.set == RuleSet::None => Finding::fact("rules", "none, as configured"),
            Ok(true) => Finding::fact("rules", "in place"),
            Ok(false) if !self.set.has_leases() => {
                Finding::problem("rules", "incomplete", "`node run` adds them once it answers")
            }
            Ok(false) => {
                let remedy = "run `localdns node up`, or start `node run`, which adds them once it answers";
                Finding::problem("rules", "none", remedy)
            }
            Err(error) => Finding::diagnosis("rules", error),
        }
    }

    fn of_leases(&self) -> Finding {
        match self.holders.as_slice() {
            [] if !self.set.has_leases() => {
                let what =
                    "none with these rules: clients get no answer from the server's death until its restart";
                Finding::problem("leases", what, "set -rules nft")
            }
            [] if self.rules == Ok(true) => {
                Finding::problem("leases", "none held: queries go to the fallback", "start the server")
            }
            [] => Finding::problem("leases", "none held", "add the rules first"),
            pids => {
                let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
                Finding::fact("leases", format!("held by process {}", pids.join(", ")))
            }
        }
    }

    fn of_address(&self, address: &Address) -> Finding {
        let link = address.link.as_ref().map_or_else(|| "on no link".to_owned(), |link| format!("on {link}"));
        // Other rule sets have no fallback.
        let fallback = match address.fallback {
            _ if !self.set.has_leases() => String::new(),
            _ if address.fails_closed => ", fails closed".to_owned(),
            Some(fallback) => format!(", fallback {fallback}"),
            None => ", no fallback".to_owned(),
        };
        let answers = if address.answers { "answers" } else { "does not answer" };
        let what = format!("{}  {link}{fallback}, {answers}", address.ip);
        match (&address.link, address.answers) {
            (None, _) => Finding::problem("address", what, "run `localdns node up`"),
            (Some(_), false) if self.servers.is_empty() => {
                Finding::problem("address", what, "start the server")
            }
            // The line of the server's lease or probe has the remedy.
            (Some(_), false) => Finding::diagnosis("address", &Diagnosis::without_remedy(what)),
            (Some(_), true) => Finding::fact("address", what),
        }
    }
}

fn of_obstacle(conflict: &FirewallConflict) -> Finding {
    let FirewallConflict { chain, way, packets, rule, is_certain, remedy } = conflict;
    if !is_certain {
        let rule = rule.as_deref().unwrap_or_default();
        let what = format!(
            "{chain} may drop {packets} on the path {way}, by {rule}: this depends on conditions that cannot be checked from here"
        );
        return Finding::problem("firewall", what, &format!("check: {remedy}"));
    }
    let by_rule = match rule {
        Some(rule) => format!(", by {rule}, after which an appended one has no effect"),
        None => String::new(),
    };
    let what = format!("{chain} drops packets that its rules do not accept{by_rule}, on the path {way}");
    Finding::problem("firewall", what, &format!("unless a rule accepts these {packets}, run: {remedy}"))
}

/// The format of the JSON of `node status -json`, of /status and of servers' reports to `node
/// status`. Raised when a key is removed or changes its meaning, but not when a key is added.
pub const STATUS_FORMAT: u32 = 1;

/// Removes duplicate notes: a server and this command, or two servers, may report the same problem.
fn each_note_once(lines: Vec<Finding>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for line in lines {
        if !line.is_note() || !findings.contains(&line) {
            findings.push(line);
        }
    }
    findings
}

/// Returns the settings, with the `-failover-acl` of the server that maintains the rules.
fn with_server_flags(settings: &NodeSettings, servers: &[Reported]) -> NodeSettings {
    let fails_closed = keepers(servers).find_map(|status| status["acl_fails_closed"].as_bool());
    NodeSettings { acl_fails_closed: fails_closed.unwrap_or(settings.acl_fails_closed), ..settings.clone() }
}

/// Returns the rule set in the servers' status, since this command may have other flags.
fn set_of(servers: &[Reported]) -> Option<RuleSet> {
    keepers(servers).find_map(|status| {
        let health_port = status["health_port"].as_u64().and_then(|port| u16::try_from(port).ok());
        RuleSet::named(status["rules"].as_str()?, health_port.unwrap_or(NodeSettings::HEALTH_PORT))
    })
}

/// Returns the status of servers that maintain rules.
fn keepers(servers: &[Reported]) -> impl Iterator<Item = &Value> {
    servers.iter().flatten().filter(|status| status["let_go"] != true)
}

/// Returns the first line of a Corefile's error, without the source lines that follow.
fn first_line(error: &str) -> &str {
    error.lines().next().unwrap_or_default()
}

/// Returns the addresses in the servers' status.
fn served(servers: &[Reported]) -> Vec<Listener> {
    let ip = |value: &Value| value.as_str()?.parse().ok();
    let listener = |status: &Value| {
        let fallback = ip(&status["fallback"]).map(|target| Fallback { target, masquerade: true });
        let fails_closed = status["fails_closed"] == true;
        Some(Listener { address: ip(&status["address"])?, fallback, fails_closed })
    };
    let addresses = servers.iter().flatten().filter_map(|status| status["addresses"].as_array());
    let mut listeners: Vec<Listener> = Vec::new();
    for one in addresses.flatten().filter_map(listener) {
        if listeners.iter().all(|other| other.address != one.address) {
            listeners.push(one);
        }
    }
    listeners
}
