//! `localdns node`: the server with what keeps a node's DNS alive when it dies. Rules send the queries that nobody takes
//! to an upstream; while we answer, a lease keeps them here.
//!
//! ```text
//! run     serve, and renew the lease of each address that answers our probes
//! up      links and rules alone        down   take both away        status   what there is of it
//! ```
//! The rules are crate `node`'s; here is who writes them when, and with which addresses.

mod aks_files;
mod annotate;
mod corefile_requirements;
mod dns_probe;
mod down;
pub mod exporter;
mod failover;
mod finding;
mod foreign_addresses;
mod iptables;
mod lease;
mod lease_state;
mod peers;
mod report;
pub mod self_probe;
mod up;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corefile::Located;
use node::{Fallback, HostResolver, Iptables, LinkName, Listener};
use wire::Name;

pub use annotate::Annotation;
pub use corefile_requirements::{discovery, listed, listed_now, needs_list};
pub use down::{down, stopped};
pub use failover::FailoverClients;
pub use lease::{LeaseManager, Readiness, ReloadStatus, StopMode};
pub use lease_state::LeaseState;
pub use report::NodeStatus;
pub use up::{UpReport, up};

use configuration::{Configuration, EndpointPlan};
use plugin::endpoint::Transport;
use plugin::{SetupError, Spec};
use plugins::bind::BindSpec;
use self_probe::DNS_PORT;

/// How a node's DNS is kept alive: the flags of `localdns node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSettings {
    /// `-rules`.
    pub rules: RuleSet,
    /// `-lease`: how long a hang may last before queries go elsewhere; `None` for as long as the process lives.
    pub lease: Option<Duration>,
    /// `-probe-mark`: the SO_MARK of our own probes.
    pub mark: u32,
    /// `-masquerade`: whether pods' addresses are hidden from upstreams that nobody translates.
    pub masquerade: bool,
    /// `-failover-clients`: the clients that the way out answers while no server does.
    pub failover_clients: FailoverClients,
    /// `-failover-acl closed`: whether an address with `acl` has no way out, and refuses every client while no server answers.
    pub acl_fails_closed: bool,
    /// Whether rules of iptables that an ended server or the script left are ours to take away.
    pub clears_rules: bool,
    /// Who answers for every link-local address of its family while nobody does here, whatever its listener forwards to.
    pub fallback: Option<IpAddr>,
    /// Whether addresses that are missing are added.
    pub adds_addresses: bool,
    /// How often rules of iptables are looked at.
    pub looks_every: Duration,
    /// `-link`: where they are added.
    pub link: LinkName,
    /// `-at-stop`.
    pub at_stop: AtStop,
    /// `-upstreams`: the resolv.conf of the servers that 168.63.129.16 stands for.
    pub upstreams: PathBuf,
    /// `-host-resolver`: who is told that the machine itself asks us.
    pub host_resolver: HostResolver,
    /// `-environment`: AKS's file, which holds the Corefile.
    pub environment: Option<PathBuf>,
}

/// Who changes the firewall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleSet {
    /// We do, in tables of our own.
    Nft,
    /// We do, in the tables of iptables.
    Iptables(Iptables),
    /// Nobody.
    None,
}

impl RuleSet {
    /// What `-rules` may be.
    pub const NAMES: [&str; 4] = ["nft", "iptables", "node-cache", "none"];

    /// As the command line names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Iptables(Iptables::Localdns) => "iptables",
            Self::Iptables(Iptables::NodeCache(_)) => "node-cache",
            Self::None => "none",
        }
    }

    /// The set of this name, with the port of `health`.
    pub fn named(name: &str, health_port: u16) -> Option<Self> {
        let sets = [
            Self::Nft,
            Self::Iptables(Iptables::Localdns),
            Self::Iptables(Iptables::NodeCache(health_port)),
            Self::None,
        ];
        sets.into_iter().find(|set| set.name() == name)
    }

    /// The port of `health` that its rules are about, too.
    pub fn health_port(self) -> Option<u16> {
        match self {
            Self::Iptables(Iptables::NodeCache(port)) => Some(port),
            _ => None,
        }
    }

    /// Whether queries go elsewhere when we die.
    pub fn has_leases(self) -> bool {
        self == Self::Nft
    }
}

/// What a stop leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtStop {
    /// Addresses and rules: whoever has our address in its resolv.conf is answered by the upstream.
    Failover,
    /// Nothing.
    Clean,
}

/// Our addresses, each with its way out; and what is wrong with those that have none.
fn listeners(configuration: &Configuration, settings: &NodeSettings) -> (Vec<Listener>, Vec<String>) {
    let (mut listeners, mut notes) = (Vec::new(), Vec::new());
    for (endpoint, plan) in &configuration.endpoints {
        let (ip, port) = (endpoint.address.ip(), endpoint.address.port());
        if endpoint.transport != Transport::Dns || port != DNS_PORT {
            continue;
        }
        // A link-local address comes of an interface that `bind` names, see [`check`].
        if is_of_one_link(ip) {
            continue;
        }
        if ip.is_unspecified() || ip.is_loopback() {
            notes.push(format!("{ip} cannot have rules; have `bind` name the addresses that clients query"));
            continue;
        }
        let has_acl = plan.served.route.zones().any(|zone| zone.block.directives.contains(&"acl"));
        let fails_closed = has_acl && settings.acl_fails_closed;
        if has_acl && !fails_closed && settings.rules.has_leases() {
            notes.push(format!(
                "{ip} has `acl`, which does not apply while no server is running: clients that it refuses fail over, too; to refuse every client then, set -failover-acl closed"
            ));
        }
        let given = settings.fallback.filter(|target| target.is_ipv4() == ip.is_ipv4());
        let fallback = given.or_else(|| usable(configuration, plan, ip).into_iter().next());
        if fallback.is_none() && is_link_local(ip) && !fails_closed {
            notes.push(match forwards_root(plan).is_some() {
                true => format!(
                    "{ip}{NO_FALLBACK}: its `forward .` has no plain DNS upstream of its family at port {DNS_PORT}, other than link-local (fe80::)"
                ),
                false => format!(
                    "{ip}{NO_FALLBACK}: it has no `forward .`; add one to its block for `.`, or its clients get no answer while no server is running"
                ),
            });
        }
        // A ClusterIP is kube-proxy's: it sends queries that this server does not take to the cluster's DNS.
        let fallback = fallback.filter(|_| is_link_local(ip) && !fails_closed);
        let masquerade = settings.masquerade;
        let fallback = fallback.map(|target| Fallback { target, masquerade });
        listeners.push(Listener { address: ip, fallback, fails_closed });
    }
    (listeners, notes)
}

/// How the note of an address begins, behind it, that no `forward .` gives a way out.
const NO_FALLBACK: &str = " has no fallback";
/// What is wrong where there are no [`listeners`].
const NO_ADDRESS: &str = "no server block listens on port 53 of an address that can have rules; have `bind` name the addresses that clients query";

/// Refuses addresses that no pod can ask. Those that an interface has besides are served, without rules.
///
/// # Errors
/// At the first of `bind` that is of fe80::/10.
pub fn check(spec: &Spec) -> Result<(), Box<Located<SetupError>>> {
    let binds = spec.blocks.iter().filter_map(|block| block.get::<BindSpec>());
    let is_refused = |text: &str| node::address(text, 0).is_some_and(|address| is_of_one_link(address.ip()));
    match binds.flat_map(BindSpec::targets).find(|word| is_refused(&word.text)) {
        None => Ok(()),
        Some(word) => {
            let rule =
                "pods cannot reach an fe80:: address, since they are on other links; use one of fd00::/8";
            Err(Box::new(Located::new(&word.at, SetupError::Order { plugin: "bind", rule })))
        }
    }
}

/// What a listener's `forward .` is, if it has one.
fn forwards_root(plan: &EndpointPlan) -> Option<&Arc<forwarder::Stanza>> {
    let chain = &plan.served.route.zone(&Name::ROOT)?.block.pipeline.forwarding()?.chain;
    chain.stanzas().iter().find(|stanza| stanza.matches(&Name::ROOT))
}

/// Every `forward` of a listener, whatever its zone.
fn stanzas(plan: &EndpointPlan) -> impl Iterator<Item = &Arc<forwarder::Stanza>> {
    let forwarding = plan.served.route.zones().filter_map(|zone| zone.block.pipeline.forwarding());
    forwarding.flat_map(|forwarding| forwarding.chain.stanzas())
}

/// The upstreams of an endpoint's `forward .` that can be its way out: those that are up first, each in their order.
fn usable(configuration: &Configuration, plan: &EndpointPlan, ip: IpAddr) -> Vec<IpAddr> {
    forwards_root(plan).map(|stanza| usable_of(configuration, stanza, ip)).unwrap_or_default()
}

fn usable_of(configuration: &Configuration, stanza: &forwarder::Stanza, ip: IpAddr) -> Vec<IpAddr> {
    let is_ours = |target| configuration.endpoints.keys().any(|ours| ours.address.ip() == target);
    let upstreams = stanza.upstreams();
    let usable = upstreams.iter().filter(|upstream| {
        let address = upstream.address();
        let target = address.ip();
        upstream.tls().is_none()
            && address.port() == DNS_PORT
            && target.is_ipv4() == ip.is_ipv4()
            && !target.is_loopback()
            && !is_of_one_link(target)
            && !is_ours(target)
    });
    let is_up = |upstream: &&Arc<forwarder::Upstream>| {
        !upstream.is_down(forwarder::UpstreamPath::Udp, stanza.spec().max_fails)
    };
    let (up, down): (Vec<_>, Vec<_>) = usable.partition(is_up);
    up.into_iter().chain(down).map(|upstream| upstream.address().ip()).collect()
}

/// Leaves each address the way out that rules lead to which stand already, where any `forward` of its listener names it: who put
/// them there knew which upstreams were up or, as node-cache by -upstreamsvc, that the cluster's DNS answers for every zone.
fn as_led(
    (listeners, notes): (&mut [Listener], &mut Vec<String>),
    led: &[(IpAddr, Option<IpAddr>)],
    configuration: &Configuration,
    settings: &NodeSettings,
) {
    let may_lead = |listener: &&mut Listener| is_link_local(listener.address) && !listener.fails_closed;
    for listener in listeners.iter_mut().filter(may_lead) {
        let ip = listener.address;
        let stands = led.iter().find_map(|(led, target)| target.filter(|_| *led == ip));
        let given = settings.fallback.is_some_and(|target| target.is_ipv4() == ip.is_ipv4());
        let mut endpoints = configuration.endpoints.iter();
        let of_ip = endpoints.find(|(endpoint, _)| {
            endpoint.transport == Transport::Dns && endpoint.address == (ip, DNS_PORT).into()
        });
        if let (Some(target), Some((_, one))) = (stands, of_ip)
            && !given
            && stanzas(one).any(|stanza| usable_of(configuration, stanza, ip).contains(&target))
        {
            listener.fallback = Some(Fallback { target, masquerade: settings.masquerade });
            notes.retain(|note| !note.starts_with(&format!("{ip}{NO_FALLBACK}")));
        }
    }
}

/// Whether no rule can send a query there: a new destination has no link of its own.
pub fn is_of_one_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Whether the cluster's DNS answers at this address of ours while we do not: kube-proxy sends a service's there, and node-cache's
/// way out of link-local ones leads there. What a Corefile forwards to may deny what the cluster has.
fn is_clusters_without_us(ip: IpAddr, fallback: Option<IpAddr>) -> bool {
    !is_link_local(ip) || fallback.is_some_and(|target| target.is_ipv4() == ip.is_ipv4())
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        // A node's private address for this, as fd10::10; those of fe80::/10 cannot be reached from pods.
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_unique_local(),
    }
}

impl NodeSettings {
    /// What `-upstreams` is unless said.
    pub const UPSTREAMS: &str = "/run/systemd/resolve/resolv.conf";
    /// What `-health-port` is unless said.
    pub const HEALTH_PORT: u16 = 8080;
    /// How often rules of iptables are looked at unless said.
    pub const LOOKS_EVERY: Duration = Duration::from_secs(2);
    /// What `-lease` is unless said.
    pub const LEASE: Duration = Duration::from_millis(600);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clusters_dns_is_behind_services_addresses_and_node_caches_way_out() {
        for (ip, fallback, is_clusters) in [
            ("10.96.0.10", None, true),
            ("169.254.10.10", None, false),
            ("169.254.20.10", Some("10.96.0.11"), true),
            ("fd10::10", Some("10.96.0.11"), false),
            ("fd10::10", Some("fd00:96::b"), true),
        ] {
            let parsed = |text: &str| text.parse::<IpAddr>().expect("an address");
            assert_eq!(
                is_clusters_without_us(parsed(ip), fallback.map(parsed)),
                is_clusters,
                "{ip} {fallback:?}"
            );
        }
    }
}
