//! Other programs' rules that may drop our traffic: base chains that drop what none of their rules
//! accepts, also in chains that they jump to, and the narrowest rules that accept clients' queries.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_netfilter::nftables::InetHookNumber;

use crate::Diagnosis;
use crate::failover_rules::{Clients, Listener, TABLE};
use crate::nft::{BaseChain, ChainWalk, Family, NftError, Outcome, Place, PlacedRule, Query, Socket};

/// A chain that drops, or may drop, what none of its rules accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirewallConflict {
    /// The base chain, in the form of `nft list chain`.
    pub chain: String,
    /// The affected path: clients to this server, or to the fallback.
    pub way: &'static str,
    /// The rule that drops, such as `its last rule`: an appended rule has no effect. `None` if its
    /// policy does.
    pub rule: Option<String>,
    /// Whether it drops these queries unless a rule accepts them; else that depends on conditions
    /// that cannot be checked.
    pub is_certain: bool,
    /// Commands that make it accept these queries and nothing else, which add rules after those that
    /// decide first; or, if it is not certain, the command that lists the rule.
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
            if let Some(way) = Way::through(&chain) {
                let (drops, may_drop) = drops(&mut socket, &chain, way, listeners, clients)?;
                all.extend(certain(&chain, way, &drops, clients));
                all.extend(may_drop.map(|place| uncertain(&chain, way, &place)));
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

impl Way {
    /// `None` if no queries pass the chain.
    fn through(chain: &BaseChain) -> Option<Self> {
        match chain.hook {
            _ if chain.table == TABLE => None,
            InetHookNumber::LocalIn => Some(Self::ToUs),
            InetHookNumber::Forward => Some(Self::Out),
            _ => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::ToUs => "to this server",
            Self::Out => "to the fallback",
        }
    }
}

/// The places at which a chain drops queries, with their destinations.
type Drops = BTreeMap<Place, BTreeSet<IpAddr>>;

/// Where a chain drops clients' queries, and the first rule that may do so.
fn drops(
    socket: &mut Socket,
    chain: &BaseChain,
    way: Way,
    listeners: &[Listener],
    clients: &Clients,
) -> Result<(Drops, Option<Place>), NftError> {
    let not_from = match clients {
        Clients::NotFrom(links) => links.as_slice(),
        _ => &[],
    };
    let (mut drops, mut may_drop) = (Drops::new(), None);
    let mut walk = ChainWalk::of(socket, chain);
    for family in families(chain) {
        if sources(clients, *family).is_none() {
            continue;
        }
        let destinations = destinations(listeners, *family, way);
        // On the way out, another program may have replaced the destination.
        let passing: Vec<_> = match way {
            Way::ToUs => destinations.iter().map(|ip| (Some(*ip), vec![*ip])).collect(),
            Way::Out if destinations.is_empty() => Vec::new(),
            Way::Out => vec![(None, destinations)],
        };
        let ct_state = if way == Way::ToUs { IP_CT_UNTRACKED } else { IP_CT_NEW };
        for (destination, all) in passing {
            for transport in [TCP, UDP] {
                let query = Query { family: *family, transport, destination, ct_state, not_from };
                let (outcome, perhaps) = walk.outcome(&chain.name, &query)?;
                may_drop = may_drop.or(perhaps);
                match outcome {
                    Outcome::Passed(place) if chain.drops => drops.entry(place).or_default().extend(&all),
                    Outcome::Dropped(place) => drops.entry(place).or_default().extend(&all),
                    Outcome::Passed(_) | Outcome::Accepted => {}
                }
            }
        }
    }
    Ok((drops, may_drop))
}

fn families(chain: &BaseChain) -> &'static [Family] {
    match chain.family {
        "ip" => &[Family::V4],
        "ip6" => &[Family::V6],
        _ => &Family::BOTH,
    }
}

/// Whether iptables manages the chain: it cannot read rules that `nft` adds there.
fn is_of_iptables(BaseChain { family, table, name, .. }: &BaseChain) -> bool {
    matches!((*family, table.as_str(), name.as_str()), ("ip" | "ip6", "filter", "INPUT" | "FORWARD"))
}

fn certain(chain: &BaseChain, way: Way, drops: &Drops, clients: &Clients) -> Option<FirewallConflict> {
    let mut commands = Vec::new();
    for (place, destinations) in drops {
        for family in families(chain) {
            let of_family = destinations.iter().copied().filter(|ip| Family::of(*ip) == *family);
            let destinations: Vec<_> = of_family.collect();
            let Some(sources) = sources(clients, *family).filter(|_| !destinations.is_empty()) else {
                continue;
            };
            commands.extend(match is_of_iptables(chain) {
                true => iptables(*family, place, way, &destinations, &sources),
                false => nft(chain, *family, place, way, &destinations, &sources),
            });
        }
    }
    (!commands.is_empty()).then(|| FirewallConflict {
        chain: named(chain),
        way: way.text(),
        rule: drops.keys().find_map(|place| rule_of(chain, place)),
        is_certain: true,
        remedy: commands.join(" && "),
    })
}

fn uncertain(chain: &BaseChain, way: Way, place: &Place) -> FirewallConflict {
    let BaseChain { family, table, .. } = chain;
    let remedy = match (is_of_iptables(chain), *family) {
        (true, "ip") => format!("iptables -S {}", quoted(&place.chain)),
        (true, _) => format!("ip6tables -S {}", quoted(&place.chain)),
        (false, _) => format!("nft list chain {family} {} {}", quoted(table), quoted(&place.chain)),
    };
    let rule = rule_of(chain, place).or_else(|| Some(format!("chain {}", place.chain)));
    FirewallConflict { chain: named(chain), way: way.text(), rule, is_certain: false, remedy }
}

fn named(BaseChain { family, table, name, .. }: &BaseChain) -> String {
    format!("{family} {table} {name}")
}

/// `None` if the place is the end of the base chain, which its policy follows.
fn rule_of(base: &BaseChain, place: &Place) -> Option<String> {
    let is_base = place.chain == base.name;
    match place.rule {
        None if is_base => None,
        None => Some(format!("the end of chain {}", place.chain)),
        Some(rule) if is_base && rule.is_last => Some("its last rule".to_owned()),
        Some(rule) if is_base => Some(format!("its rule {}", rule.number)),
        Some(rule) => Some(format!("rule {} of chain {}", rule.number, place.chain)),
    }
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
    place: &Place,
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
    let chain = quoted(&place.chain);
    match place.rule {
        None => rules.iter().map(|rule| format!("{program} -A {chain} {rule}")).collect(),
        // Each is inserted before the one inserted last.
        Some(PlacedRule { number, .. }) => {
            let insert = |rule| format!("{program} -I {chain} {number} {rule}");
            rules.iter().rev().map(insert).collect()
        }
    }
}

fn nft(
    chain: &BaseChain,
    family: Family,
    place: &Place,
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
    let (BaseChain { family, table, .. }, name) = (chain, &place.chain);
    let (how, place) = match place.rule {
        None => ("add", String::new()),
        Some(rule) => ("insert", format!(" handle {}", rule.handle)),
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

const TCP: u8 = 6;
const UDP: u8 = 17;
// As `nft` prints them: `untracked`, `new`.
const IP_CT_NEW: u32 = 1 << 3;
const IP_CT_UNTRACKED: u32 = 1 << 6;

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
        let last = Some(PlacedRule { number: 7, handle: 42, is_last: true });
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
                None,
                links(&["eth0", "a;b"]),
                &[
                    "iptables -A FORWARD -i 'a;b' -p udp -m conntrack --ctorigdst 10.96.0.10 --ctorigdstport 53 -j DROP",
                    "iptables -A FORWARD ! -i eth0 -p udp -m conntrack --ctorigdst 10.96.0.10 --ctorigdstport 53 -j ACCEPT",
                ],
            ),
            (
                chain("ip6", "filter", "FORWARD", forward),
                last,
                Clients::In(networks(&["10.1.0.0/16", "fd01::5/64"])),
                &[
                    "ip6tables -I FORWARD 7 -s fd01::/64 -p tcp -m conntrack --ctorigdst fd03::2 --ctorigdstport 53 -j ACCEPT",
                    "ip6tables -I FORWARD 7 -s fd01::/64 -p udp -m conntrack --ctorigdst fd03::2 --ctorigdstport 53 -j ACCEPT",
                ],
            ),
            (
                chain("inet", "fw", "through", forward),
                last,
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
            let way = Way::through(&chain).expect("queries pass it");
            let place = Place { chain: chain.name.clone(), rule: last };
            let all = families(&chain).iter().flat_map(|family| destinations(&listeners, *family, way));
            let drops = Drops::from([(place, all.collect())]);
            let obstacle = certain(&chain, way, &drops, &clients).expect("it drops");
            assert!(obstacle.remedy.starts_with(&commands.join(" && ")), "{}", obstacle.remedy);
            assert_eq!(obstacle.rule.as_deref(), last.map(|_| "its last rule"));
        }
        // There are no such IPv6 clients.
        let chain = chain("ip6", "filter", "INPUT", input);
        let place = Place { chain: chain.name.clone(), rule: None };
        let drops = Drops::from([(place, [ip("fd10::11")].into())]);
        assert_eq!(certain(&chain, Way::ToUs, &drops, &Clients::In(networks(&["10.1.0.0/16"]))), None);
    }
}
