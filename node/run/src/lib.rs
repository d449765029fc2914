//! `localdns node`: a DNS server with failover: when it dies, an upstream answers its clients.
//! nftables rules redirect a query to that upstream if no local socket can receive it. While the
//! server answers its own probes, it renews a lease that keeps queries local.
//!
//! ```text
//! run     serve, and renew the lease of each address that answers probes
//! up      add links and rules only     down   remove both     status   show both, and problems
//! ```
//! Crate `node` writes the rules; this crate decides when to write them, and for which addresses.

mod aks_files;
mod annotate;
mod corefile_requirements;
mod dhcp_leases;
mod dns_probe;
mod down;
pub mod exporter;
mod failover;
mod finding;
mod foreign_addresses;
mod host_resolver;
mod host_resolver_task;
mod iptables;
mod lease;
mod lease_state;
mod networkd;
mod peers;
mod report;
pub mod self_probe;
mod up;
mod uplinks;
pub mod upstream_discovery;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corefile::Located;
use node::{Diagnosis, Fallback, Iptables, LinkName, Listener};
use wire::Name;

pub use annotate::Annotation;
pub use corefile_requirements::{discovery, listed, listed_now, needs_list};
pub use down::{down, stopped};
pub use failover::FailoverClients;
pub use host_resolver::HostResolver;
pub use lease::{LeaseManager, Readiness, ReloadStatus, StopMode};
pub use lease_state::LeaseState;
pub use report::{NodeStatus, STATUS_FORMAT};
pub use up::{UpReport, up};

use configuration::{Configuration, EndpointPlan};
use plugin::endpoint::Transport;
use plugin::{SetupError, Spec};
use plugins::bind::BindSpec;
use self_probe::DNS_PORT;

/// The flags of `localdns node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSettings {
    /// `-rules`: the kind of firewall rules.
    pub rules: RuleSet,
    /// `-lease`: how long a hang may last before queries fail over; `None`: queries fail over only
    /// when the process ends.
    pub lease: Option<Duration>,
    /// `-probe-mark`: the SO_MARK of the server's own probes.
    pub mark: u32,
    /// `-masquerade`: whether pods' queries that fail over get a masqueraded source address, unless
    /// another program translates their destination again.
    pub masquerade: bool,
    /// `-failover-clients`: the clients that fail over while no server runs.
    pub failover_clients: FailoverClients,
    /// `-failover-acl closed`: whether an address with the `acl` plugin has no fallback, so that
    /// all queries to it are refused while no server runs.
    pub acl_fails_closed: bool,
    /// Whether iptables rules that an ended server or AKS's script left are removed.
    pub clears_rules: bool,
    /// The fallback of every link-local listen address of its family, whatever the listener
    /// forwards to.
    pub fallback: Option<IpAddr>,
    /// Whether missing addresses are added.
    pub adds_addresses: bool,
    /// The interval at which iptables rules are checked.
    pub looks_every: Duration,
    /// `-link`: the interface that addresses are added to.
    pub link: LinkName,
    /// `-at-stop`: what a stop leaves behind.
    pub at_stop: AtStop,
    /// `-upstreams`: the resolv.conf that lists the servers for which 168.63.129.16 stands.
    pub upstreams: PathBuf,
    /// `-host-resolver`: the mechanism that sends the host's own lookups to this server.
    pub host_resolver: HostResolver,
    /// `-environment`: AKS's file, which holds the Corefile.
    pub environment: Option<PathBuf>,
}

/// The kind of firewall rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleSet {
    /// nftables, in tables of localdns.
    Nft,
    /// Rules in the tables of iptables.
    Iptables(Iptables),
    /// No rules.
    None,
}

impl RuleSet {
    /// The values of `-rules`.
    pub const NAMES: [&str; 4] = ["nft", "iptables", "node-cache", "none"];

    /// Returns the value of `-rules` for this set.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Iptables(Iptables::Localdns) => "iptables",
            Self::Iptables(Iptables::NodeCache(_)) => "node-cache",
            Self::None => "none",
        }
    }

    /// Returns the rule set of this name; `health_port` is the port of the `health` plugin.
    pub fn named(name: &str, health_port: u16) -> Option<Self> {
        let sets = [
            Self::Nft,
            Self::Iptables(Iptables::Localdns),
            Self::Iptables(Iptables::NodeCache(health_port)),
            Self::None,
        ];
        sets.into_iter().find(|set| set.name() == name)
    }

    /// Returns the port of the `health` plugin, if the rules cover it.
    pub fn health_port(self) -> Option<u16> {
        match self {
            Self::Iptables(Iptables::NodeCache(port)) => Some(port),
            _ => None,
        }
    }

    /// Whether queries fail over when the server dies.
    pub fn has_leases(self) -> bool {
        self == Self::Nft
    }
}

/// What a stop leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtStop {
    /// Addresses and rules stay: the fallback answers clients that have the address in their
    /// resolv.conf.
    Failover,
    /// Nothing stays.
    Clean,
}

/// Returns the listen addresses with their fallbacks, and notes about addresses without rules or a
/// fallback.
fn listeners(configuration: &Configuration, settings: &NodeSettings) -> (Vec<Listener>, Vec<Diagnosis>) {
    let (mut listeners, mut notes) = (Vec::new(), Vec::new());
    for (endpoint, plan) in &configuration.endpoints {
        let (ip, port) = (endpoint.address.ip(), endpoint.address.port());
        if endpoint.transport != Transport::Dns || port != DNS_PORT {
            continue;
        }
        // An address of fe80::/10 is from an interface that `bind` names (see [`check`]): no rules.
        if is_of_one_link(ip) {
            continue;
        }
        if ip.is_unspecified() || ip.is_loopback() {
            notes.push(Diagnosis::new(
                format!("{ip} cannot have rules"),
                "have `bind` name the addresses that clients query",
            ));
            continue;
        }
        let has_acl = plan.served.route.zones().any(|zone| zone.block.directives.contains(&"acl"));
        let fails_closed = has_acl && settings.acl_fails_closed;
        if has_acl && !fails_closed && settings.rules.has_leases() {
            notes.push(Diagnosis::new(
                format!(
                    "{ip} has `acl`, which does not apply while no server is running: clients that it refuses fail over, too"
                ),
                "to refuse every client then, set -failover-acl closed",
            ));
        }
        let given = settings.fallback.filter(|target| target.is_ipv4() == ip.is_ipv4());
        let fallback = given.or_else(|| usable(configuration, plan, ip).into_iter().next());
        if fallback.is_none() && is_link_local(ip) && !fails_closed {
            notes.push(match forwards_root(plan).is_some() {
                true => Diagnosis::without_remedy(format!(
                    "{ip}{NO_FALLBACK}: its `forward .` has no plain DNS upstream of its family at port {DNS_PORT}, other than link-local (fe80::)"
                )),
                false => Diagnosis::new(
                    format!("{ip}{NO_FALLBACK}: it has no `forward .`"),
                    "add one to its block for `.`, or its clients get no answer while no server is running",
                ),
            });
        }
        // kube-proxy owns a ClusterIP, and sends queries that this server does not take to the
        // cluster's DNS.
        let fallback = fallback.filter(|_| is_link_local(ip) && !fails_closed);
        let masquerade = settings.masquerade;
        let fallback = fallback.map(|target| Fallback { target, masquerade });
        listeners.push(Listener { address: ip, fallback, fails_closed });
    }
    (listeners, notes)
}

/// The text behind the address in a note about a missing fallback.
const NO_FALLBACK: &str = " has no fallback";

/// Returns the problem to report if there are no [`listeners`].
fn no_address() -> Diagnosis {
    Diagnosis::new(
        "no server block listens on port 53 of an address that can have rules",
        "have `bind` name the addresses that clients query",
    )
}

/// Refuses addresses of fe80::/10 in `bind`, which no pod can reach. Such addresses of an interface
/// that `bind` names are served, without rules.
///
/// # Errors
/// At the first fe80::/10 address of a `bind`.
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

/// Returns the stanza of a listener's `forward .`, if it has one.
fn forwards_root(plan: &EndpointPlan) -> Option<&Arc<forwarder::Stanza>> {
    let chain = &plan.served.route.zone(&Name::ROOT)?.block.pipeline.forwarding()?.chain;
    chain.stanzas().iter().find(|stanza| stanza.matches(&Name::ROOT))
}

/// Returns the stanzas of every `forward` of a listener, for any zone.
fn stanzas(plan: &EndpointPlan) -> impl Iterator<Item = &Arc<forwarder::Stanza>> {
    let forwarding = plan.served.route.zones().filter_map(|zone| zone.block.pipeline.forwarding());
    forwarding.flat_map(|forwarding| forwarding.chain.stanzas())
}

/// Returns the upstreams of an endpoint's `forward .` that can be its fallback: first the ones that
/// are up, then the ones that are down, each in the Corefile's order.
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

/// Keeps an address's fallback in the existing rules if a `forward` of its listener names it. The
/// server that wrote the rules knew which upstreams were up or, as node-cache with -upstreamsvc,
/// that the cluster's DNS answers for every zone.
fn keep_existing_fallbacks(
    (listeners, notes): (&mut [Listener], &mut Vec<Diagnosis>),
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
            notes.retain(|note| !note.problem.starts_with(&format!("{ip}{NO_FALLBACK}")));
        }
    }
}

/// Whether the address is in fe80::/10. No rule can redirect a query to such an address, since a
/// translated destination names no link.
pub fn is_of_one_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Whether the cluster's DNS answers at this address while no localdns does: kube-proxy redirects a
/// service address to the cluster's DNS, which is also node-cache's `fallback` of link-local
/// addresses. Other fallbacks are upstreams, which may deny names of the cluster.
fn is_clusters_without_us(ip: IpAddr, fallback: Option<IpAddr>) -> bool {
    !is_link_local(ip) || fallback.is_some_and(|target| target.is_ipv4() == ip.is_ipv4())
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        // fd10::10 is an example of a unique local address; pods cannot reach addresses of
        // fe80::/10.
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_unique_local(),
    }
}

impl NodeSettings {
    /// Default of `-upstreams`.
    pub const UPSTREAMS: &str = "/run/systemd/resolve/resolv.conf";
    /// Default of `-health-port`.
    pub const HEALTH_PORT: u16 = 8080;
    /// Default interval at which iptables rules are checked.
    pub const LOOKS_EVERY: Duration = Duration::from_secs(2);
    /// Default of `-lease`.
    pub const LEASE: Duration = Duration::from_millis(600);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cluster's DNS is behind service addresses, and is node-cache's fallback.
    #[test]
    fn cluster_dns_answers_in_our_place() {
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
