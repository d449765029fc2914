//! Determines which clients fail over while no server runs, from `-failover-clients` and the host's
//! links.

use std::time::Duration;

use crate::uplinks::Uplinks;
use ipnet::IpNet;
use node::{Clients, Diagnosis, Rules};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use super::NodeSettings;

/// The value of `-failover-clients`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailoverClients {
    /// Clients on all links but uplinks, over which hosts outside the node arrive.
    Local,
    /// Clients in these networks.
    In(Vec<IpNet>),
    /// Every client.
    All,
}

impl FailoverClients {
    /// Parses `CIDR,...`, `all`, or the empty string.
    pub fn from_text(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::Local),
            "all" => Some(Self::All),
            networks => {
                let network = |text: &str| text.trim().parse().ok();
                networks.split(',').map(network).collect::<Option<_>>().map(Self::In)
            }
        }
    }
}

/// The set of clients that fail over, resolved from [`FailoverClients`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FailoverScope {
    pub(super) clients: Clients,
    /// Uplinks that are bridges. Their clients fail over, since pods may be on a bridge.
    shared: Vec<String>,
    /// The error if the uplinks could not be read.
    unknown: Option<String>,
}

impl FailoverScope {
    /// Determines the set, from the host's links if it depends on them. Uplinks in the existing
    /// rules stay uplinks. Blocks.
    pub(super) fn now(asked: &FailoverClients) -> Self {
        let refused = || Rules::open().and_then(|mut rules| rules.refused_links()).unwrap_or_default();
        let kept = if *asked == FailoverClients::Local { refused() } else { Vec::new() };
        Self::of(asked, &kept)
    }

    /// Determines the set as [`Self::now`] does; a link that `kept` names is an uplink as long as
    /// it exists.
    fn of(asked: &FailoverClients, kept: &[String]) -> Self {
        let known = |clients| Self { clients, shared: Vec::new(), unknown: None };
        match asked {
            FailoverClients::All => known(Clients::All),
            FailoverClients::In(networks) => known(Clients::In(networks.clone())),
            FailoverClients::Local => match Uplinks::now(kept) {
                Ok(Uplinks { alone, shared }) => Self { shared, ..known(Clients::NotFrom(alone)) },
                Err(error) => {
                    Self { unknown: Some(error.to_string()), ..known(Clients::NotFrom(Vec::new())) }
                }
            },
        }
    }

    /// Returns the names of all uplinks.
    fn uplinks(&self) -> Vec<String> {
        match &self.clients {
            Clients::NotFrom(alone) => alone.iter().chain(&self.shared).cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns notes for the operator.
    pub(super) fn notes(&self) -> Vec<Diagnosis> {
        let shared = self.shared.iter().map(|link| {
            Diagnosis::new(
                format!(
                    "{link} is an uplink and a bridge: pods may be on it as well as outside hosts, so outside hosts fail over, too, while no server is running"
                ),
                "name the pods' networks with -failover-clients CIDR,..., or accept it with -failover-clients all",
            )
        });
        let unknown = self.unknown.iter().map(|error| {
            Diagnosis::without_remedy(format!(
                "outside hosts fail over, too, while no server is running, since the uplinks are not known: {error}"
            ))
        });
        shared.chain(unknown).collect()
    }

    /// Returns the set as JSON for `node status`, which reads it with [`of_json`](Self::of_json).
    pub(super) fn json(&self) -> Value {
        let (kind, networks, refused) = match &self.clients {
            Clients::All => ("all", &[][..], &[][..]),
            Clients::In(networks) => ("networks", networks.as_slice(), &[][..]),
            Clients::NotFrom(links) => ("local", &[][..], links.as_slice()),
        };
        json!({
            "clients": kind,
            "networks": networks.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "refused_links": refused,
            "shared_links": self.shared,
        })
    }

    /// Reads the set from a server's status.
    pub(super) fn of_json(status: &Value) -> Option<Self> {
        let texts = |name: &str| -> Vec<String> {
            let texts = status[name].as_array().into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        };
        let clients = match status["clients"].as_str()? {
            "all" => Clients::All,
            "local" => Clients::NotFrom(texts("refused_links")),
            _ => Clients::In(texts("networks").iter().filter_map(|text| text.parse().ok()).collect()),
        };
        Some(Self { clients, shared: texts("shared_links"), unknown: None })
    }

    /// Returns the set as text.
    pub(super) fn text(&self) -> String {
        const BACK: &str = "if their source address is routed back over the same link";
        match &self.clients {
            Clients::All => "this host and every client".to_owned(),
            Clients::In(networks) => {
                let networks: Vec<_> = networks.iter().map(ToString::to_string).collect();
                format!("this host and clients in {}, {BACK}", networks.join(", "))
            }
            Clients::NotFrom(links) if links.is_empty() => {
                format!("this host and clients on every link, {BACK}")
            }
            Clients::NotFrom(links) => {
                format!("this host and clients on every link except {}, {BACK}", links.join(", "))
            }
        }
    }
}

/// Keeps a [`FailoverScope`] up to date.
pub(super) struct ScopeWatcher {
    asked: FailoverClients,
    last: Option<FailoverScope>,
    looking: Option<JoinHandle<(FailoverScope, Duration)>>,
    again: Instant,
}

impl ScopeWatcher {
    pub(super) fn new(settings: &NodeSettings) -> Self {
        // Without leases there is no failover, so the links need not be read.
        let asked = match settings.rules.has_leases() {
            true => settings.failover_clients.clone(),
            false => FailoverClients::All,
        };
        Self { asked, last: None, looking: None, again: Instant::now() }
    }

    /// Returns the last set that was read, and starts a read in the background if one is due. Waits
    /// only for the first read.
    pub(super) async fn now(&mut self) -> FailoverScope {
        if self.looking.is_none() && (self.last.is_none() || self.again <= Instant::now()) {
            let asked = self.asked.clone();
            let kept = self.last.as_ref().map(FailoverScope::uplinks);
            self.looking = Some(spawn_blocking(move || {
                let began = Instant::now();
                let found = match kept {
                    Some(kept) => FailoverScope::of(&asked, &kept),
                    None => FailoverScope::now(&asked),
                };
                (found, began.elapsed())
            }));
        }
        if let Some(looking) = self.looking.take_if(|looking| self.last.is_none() || looking.is_finished())
            && let Ok((found, took)) = looking.await
        {
            // A read may take long: a router's table may have a million routes.
            self.again = Instant::now() + LOOK_EVERY.max(took * IDLE);
            // The last known set stays if the kernel returns an error.
            match &mut self.last {
                Some(last) if found.unknown.is_some() => last.unknown = found.unknown,
                last => *last = Some(found),
            }
        }
        self.last.clone().unwrap_or_else(|| FailoverScope {
            clients: Clients::NotFrom(Vec::new()),
            shared: Vec::new(),
            unknown: Some("reading them panicked".to_owned()),
        })
    }

    /// Returns the last set that was read; `None` before the first read.
    pub(super) fn last(&self) -> Option<&FailoverScope> {
        self.last.as_ref()
    }
}

/// Minimum interval of reads of links and routes.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Minimum ratio of the pause after a read to its duration.
const IDLE: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_networks_or_all() {
        let network = |text: &str| text.parse::<IpNet>().expect("a network");
        for (text, expected) in [
            ("", Some(FailoverClients::Local)),
            ("all", Some(FailoverClients::All)),
            ("10.1.0.0/16", Some(FailoverClients::In(vec![network("10.1.0.0/16")]))),
            (
                "10.1.0.0/16, fd01::/64",
                Some(FailoverClients::In(vec![network("10.1.0.0/16"), network("fd01::/64")])),
            ),
            ("10.1.0.0", None),
            ("10.1.0.0/33", None),
            ("10.1.0.0/16,", None),
            ("everyone", None),
        ] {
            assert_eq!(FailoverClients::from_text(text), expected, "{text:?}");
        }
    }

    #[test]
    fn status_names_the_clients() {
        let of = |clients| {
            let failover = FailoverScope { clients, shared: vec!["br0".to_owned()], unknown: None };
            assert_eq!(FailoverScope::of_json(&failover.json()).as_ref(), Some(&failover));
            failover.text()
        };
        let links = |names: &[&str]| Clients::NotFrom(names.iter().map(|name| (*name).to_owned()).collect());
        let networks = ["10.1.0.0/16", "fd01::/64"].map(|text| text.parse().expect("a network"));
        for (clients, begins) in [
            (Clients::All, "this host and every client"),
            (Clients::In(networks.into()), "this host and clients in 10.1.0.0/16, fd01::/64, if"),
            (links(&[]), "this host and clients on every link, if"),
            (links(&["eth0", "eth1"]), "this host and clients on every link except eth0, eth1, if"),
        ] {
            let text = of(clients);
            assert!(text.starts_with(begins), "{text}");
        }
    }
}
