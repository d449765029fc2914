//! Other programs' rules that may drop our traffic: base chains that drop what none of their rules
//! accepts, and the narrowest rules that accept clients' queries.

use std::fmt::Display;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_netfilter::nftables::InetHookNumber;

use crate::Diagnosis;
use crate::failover_rules::{Clients, Listener, TABLE};
use crate::nft::{BaseChain, Family, LastRule, NftError, Socket};

/// A chain that drops, by its policy or its last rule, what its other rules do not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirewallConflict {
    /// In the form of `nft list chain`.
    pub chain: String,
    /// The affected path: clients to this server, or to the fallback.
    pub way: &'static str,
    /// Whether its last rule drops or rejects everything: an appended rule has no effect.
    pub ends_in_drop: bool,
    /// Commands that make it accept these queries and nothing else. They add rules after the
    /// chain's own, which still decide first.
    pub remedy: String,
}

impl FirewallConflict {
    /// Conflicts on the paths of these clients to these listeners and to the fallbacks. Tables of
    /// iptables-legacy are not visible: [`unseen_filters`].
    ///
    /// # Errors
    /// If the kernel does not list its chains.
    pub fn all(listeners: &[Listener], clients: &Clients) -> Result<Vec<Self>, NftError> {
        let mut socket = Socket::open()?;
        let mut all = Vec::new();
        for chain in socket.base_chains()? {
            if matches!(chain.hook, InetHookNumber::LocalIn | InetHookNumber::Forward) {
                all.extend(of(&chain, socket.last_rule(&chain)?, listeners, clients));
            }
        }
        Ok(all)
    }
}

/// Notes about tables of iptables-legacy, which no netlink socket lists: that one exists which may
/// drop this traffic, and the command to list it.
pub fn unseen_filters(listeners: &[Listener]) -> Vec<Diagnosis> {
    let families = [
        ("/proc/net/ip_tables_names", "iptables-legacy", true),
        ("/proc/net/ip6_tables_names", "ip6tables-legacy", false),
    ];
    let concerned = families
        .into_iter()
        .filter(|(_, _, is_ipv4)| listeners.iter().any(|listener| listener.address.is_ipv4() == *is_ipv4));
    // If the file is not readable, or the module was never loaded, there is nothing to report.
    let tables = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    concerned.filter_map(|(file, program, _)| unseen_filter(&tables(file), program)).collect()
}

fn unseen_filter(tables: &str, program: &str) -> Option<Diagnosis> {
    tables.lines().any(|table| table == "filter").then(|| {
        let problem =
            format!("{program} has a filter table, which cannot be read from here and may drop queries");
        Diagnosis::new(problem, format!("check: {program} -S"))
    })
}

/// The queries that pass a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Those of clients to this server.
    ToUs,
    /// Those that are redirected to a fallback, matched by conntrack's original destination, since
    /// kube-proxy has replaced a ClusterIP by a pod's address here.
    Out,
}

fn of(
    chain: &BaseChain,
    last: Option<LastRule>,
    listeners: &[Listener],
    clients: &Clients,
) -> Option<FirewallConflict> {
    let BaseChain { family, table, name, .. } = chain;
    let last = last.filter(|last| last.drops_all);
    if (!chain.drops && last.is_none()) || table == TABLE {
        return None;
    }
    let way = match chain.hook {
        InetHookNumber::LocalIn => Way::ToUs,
        InetHookNumber::Forward => Way::Out,
        _ => return None,
    };
    let families: &[Family] = match *family {
        "ip" => &[Family::V4],
        "ip6" => &[Family::V6],
        _ => &Family::BOTH,
    };
    let mut commands = Vec::new();
    for one in families {
        let destinations = destinations(listeners, *one, way);
        let Some(sources) = sources(clients, *one).filter(|_| !destinations.is_empty()) else { continue };
        commands.extend(match (*family, table.as_str(), name.as_str()) {
            // iptables cannot read rules that `nft` adds there.
            ("ip" | "ip6", "filter", "INPUT" | "FORWARD") => {
                iptables(*one, name, last, way, &destinations, &sources)
            }
            _ => nft(chain, *one, last, way, &destinations, &sources),
        });
    }
    (!commands.is_empty()).then(|| FirewallConflict {
        chain: format!("{family} {table} {name}"),
        way: if way == Way::ToUs { "to this server" } else { "to the fallback" },
        ends_in_drop: last.is_some(),
        remedy: commands.join(" && "),
    })
}

/// Destinations of queries on this path: our addresses, or the fallbacks and, since kube-proxy
/// translates those, service addresses.
fn destinations(listeners: &[Listener], family: Family, way: Way) -> Vec<IpAddr> {
    let of_family = listeners.iter().filter(|listener| Family::of(listener.address) == family);
    let destination = |listener: &Listener| match (way, &listener.fallback) {
        (Way::ToUs, _) | (Way::Out, None) => listener.address,
        (Way::Out, Some(fallback)) => fallback.target,
    };
    let is_on_way = |listener: &&Listener| way == Way::ToUs || !listener.fails_closed;
    let lead_out = of_family.clone().any(|listener| listener.fallback.is_some());
    let mut all: Vec<_> = of_family.filter(is_on_way).map(destination).collect();
    all.retain(|_| way == Way::ToUs || lead_out);
    all.sort_unstable();
    all.dedup();
    all
}

/// How clients are matched.
enum Sources<'c> {
    Any,
    Networks(Vec<IpNet>),
    /// By their link of arrival, all but these.
    NotFrom(&'c [String]),
}

/// `None` if there are no clients of this family.
fn sources(clients: &Clients, family: Family) -> Option<Sources<'_>> {
    match clients {
        Clients::All => Some(Sources::Any),
        Clients::NotFrom(links) if links.is_empty() => Some(Sources::Any),
        Clients::NotFrom(links) => Some(Sources::NotFrom(links)),
        Clients::In(networks) => {
            let of_family = networks.iter().filter(|network| Family::of(network.addr()) == family);
            // nft refuses overlapping networks.
            let networks = IpNet::aggregate(&of_family.map(IpNet::trunc).collect());
            (!networks.is_empty()).then_some(Sources::Networks(networks))
        }
    }
}

fn iptables(
    family: Family,
    chain: &str,
    last: Option<LastRule>,
    way: Way,
    destinations: &[IpAddr],
    sources: &Sources<'_>,
) -> Vec<String> {
    let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
    let matches: Vec<String> = match way {
        Way::ToUs => vec![format!("-d {} -p PROTO --dport 53", listed(destinations, ","))],
        Way::Out => {
            let one = |ip| format!("-p PROTO -m conntrack --ctorigdst {ip} --ctorigdstport 53");
            destinations.iter().map(one).collect()
        }
    };
    // A rule can exclude one link; each further one needs a rule before it.
    let (left_out, clients) = match sources {
        Sources::Any => (&[][..], String::new()),
        Sources::Networks(networks) => (&[][..], format!("-s {} ", listed(networks, ","))),
        Sources::NotFrom(links) => {
            let (one, others) =
                links.split_first().map_or(("", &[][..]), |(one, others)| (one.as_str(), others));
            (others, format!("! -i {} ", quoted(one)))
        }
    };
    let mut rules = Vec::new();
    for packets in
        matches.iter().flat_map(|packets| ["udp", "tcp"].map(|proto| packets.replace("PROTO", proto)))
    {
        rules.extend(left_out.iter().map(|link| format!("-i {} {packets} -j DROP", quoted(link))));
        rules.push(format!("{clients}{packets} -j ACCEPT"));
    }
    match last {
        None => rules.iter().map(|rule| format!("{program} -A {chain} {rule}")).collect(),
        // Each is inserted before the one inserted last.
        Some(last) => {
            let insert = |rule| format!("{program} -I {chain} {} {rule}", last.number);
            rules.iter().rev().map(insert).collect()
        }
    }
}

fn nft(
    chain: &BaseChain,
    family: Family,
    last: Option<LastRule>,
    way: Way,
    destinations: &[IpAddr],
    sources: &Sources<'_>,
) -> Vec<String> {
    let ip = if family == Family::V4 { "ip" } else { "ip6" };
    let clients = match sources {
        Sources::Any => String::new(),
        Sources::Networks(networks) => format!("{ip} saddr {{ {} }} ", listed(networks, ", ")),
        Sources::NotFrom(links) => {
            let links = links.iter().map(|link| format!("\"{link}\""));
            format!("iifname != {{ {} }} ", links.collect::<Vec<_>>().join(", "))
        }
    };
    let to = listed(destinations, ", ");
    let packets = match way {
        Way::ToUs => vec![format!("{ip} daddr {{ {to} }} meta l4proto {{ tcp, udp }} th dport 53")],
        // One protocol in each rule, so that nft can load its own listing.
        Way::Out => Vec::from(["udp", "tcp"].map(|proto| {
            format!("meta l4proto {proto} ct original {ip} daddr {{ {to} }} ct original proto-dst 53")
        })),
    };
    let BaseChain { family, table, name, .. } = chain;
    let (how, place) = match last {
        None => ("add", String::new()),
        Some(last) => ("insert", format!(" handle {}", last.handle)),
    };
    let command =
        |packets| quoted(&format!("{how} rule {family} {table} {name}{place} {clients}{packets} accept"));
    packets.into_iter().map(|packets: String| format!("nft {}", command(packets))).collect()
}

fn listed<T: Display>(all: &[T], between: &str) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

/// Quotes one word for a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover_rules::Fallback;

    #[test]
    fn commands_match_clients_and_no_others() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let listener = |address, target: Option<&str>| Listener {
            address: ip(address),
            fallback: target.map(|target| Fallback { target: ip(target), masquerade: true }),
            fails_closed: false,
        };
        let listeners = [
            listener("169.254.10.10", Some("10.96.0.10")),
            listener("10.96.0.20", None),
            listener("fd10::11", Some("fd03::2")),
            Listener { fails_closed: true, ..listener("169.254.10.12", None) },
        ];
        let chain = |family, table: &str, name: &str, hook| BaseChain {
            family,
            table: table.to_owned(),
            name: name.to_owned(),
            hook,
            drops: true,
        };
        let networks = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a network")).collect();
        let links = |names: &[&str]| Clients::NotFrom(names.iter().map(|name| (*name).to_owned()).collect());
        let last = |drops_all| Some(LastRule { number: 7, handle: 42, drops_all });
        let (input, forward) = (InetHookNumber::LocalIn, InetHookNumber::Forward);
        for (chain, last, clients, commands) in [
            (
                chain("ip", "filter", "INPUT", input),
                None,
                links(&["eth0"]),
                &[
                    "iptables -A INPUT ! -i eth0 -d 10.96.0.20,169.254.10.10,169.254.10.12 -p udp --dport 53 -j ACCEPT",
                ][..],
            ),
            (
                chain("ip", "filter", "FORWARD", forward),
                last(false),
                links(&["eth0", "a;b"]),
                &[
                    "iptables -A FORWARD -i 'a;b' -p udp -m conntrack --ctorigdst 10.96.0.10 --ctorigdstport 53 -j DROP",
                    "iptables -A FORWARD ! -i eth0 -p udp -m conntrack --ctorigdst 10.96.0.10 --ctorigdstport 53 -j ACCEPT",
                ],
            ),
            (
                chain("ip6", "filter", "FORWARD", forward),
                last(true),
                Clients::In(networks(&["10.1.0.0/16", "fd01::5/64"])),
                &[
                    "ip6tables -I FORWARD 7 -s fd01::/64 -p tcp -m conntrack --ctorigdst fd03::2 --ctorigdstport 53 -j ACCEPT",
                    "ip6tables -I FORWARD 7 -s fd01::/64 -p udp -m conntrack --ctorigdst fd03::2 --ctorigdstport 53 -j ACCEPT",
                ],
            ),
            (
                chain("inet", "fw", "through", forward),
                last(true),
                Clients::In(networks(&["10.0.0.0/8", "10.1.0.0/16"])),
                &[
                    "nft 'insert rule inet fw through handle 42 ip saddr { 10.0.0.0/8 } meta l4proto udp ct original ip daddr \
                   { 10.96.0.10, 10.96.0.20 } ct original proto-dst 53 accept'",
                ],
            ),
            (
                chain("ip6", "fw", "in", input),
                None,
                Clients::All,
                &[
                    "nft 'add rule ip6 fw in ip6 daddr { fd10::11 } meta l4proto { tcp, udp } th dport 53 accept'",
                ],
            ),
        ] {
            let obstacle = of(&chain, last, &listeners, &clients).expect("it drops");
            assert!(obstacle.remedy.starts_with(&commands.join(" && ")), "{}", obstacle.remedy);
            assert_eq!(obstacle.ends_in_drop, last.is_some_and(|last| last.drops_all));
        }
        // There are no such IPv6 clients.
        let chain = chain("ip6", "filter", "INPUT", input);
        assert_eq!(of(&chain, None, &listeners, &Clients::In(networks(&["10.1.0.0/16"]))), None);
    }
}
