//! Finds base chains of other programs that may drop our traffic, by policy or by a rule, also in
//! chains that they jump to, and the narrowest rules that accept clients' queries and the replies
//! to them.

mod remedy;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_packet_netfilter::nftables::InetHookNumber;

use crate::Diagnosis;
use crate::failover_rules::{Clients, Listener, TABLE};
use crate::nft::{BaseChain, ChainWalk, Family, NftError, Outcome, Place, Query, Socket};
use remedy::{iptables, nft, program, quoted, sources};

/// A base chain that drops, or may drop, clients' queries or our replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirewallConflict {
    /// The base chain, in the form of `nft list chain`.
    pub chain: String,
    /// The affected path: clients to this server, or to the fallback, or this server's replies.
    pub way: &'static str,
    /// What the chain drops: `queries` or `replies`.
    pub packets: &'static str,
    /// The rule that drops, such as `its last rule`, after which an appended rule has no effect.
    /// `None` if the chain's policy drops.
    pub rule: Option<String>,
    /// Whether the chain is known to drop these queries; `false`: it depends on conditions that
    /// cannot be checked.
    pub is_certain: bool,
    /// Commands that make the chain accept these queries and nothing else, by rules just before the
    /// place that drops them; or, if the drop is not certain, the command that lists the rule.
    pub remedy: String,
}

impl FirewallConflict {
    /// Returns the conflicts on the paths of these clients to these listeners and to the fallbacks.
    /// Tables of iptables-legacy are not visible: see [`unseen_filters`].
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

/// Returns a note for each filter table of iptables-legacy, which may drop this traffic and which
/// no netlink socket lists, with the command to list it.
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

/// The packets that pass a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Queries of clients to this server.
    ToUs,
    /// This server's replies. Conntrack does not track replies, so `established` does not match
    /// them.
    FromUs,
    /// Queries that are redirected to a fallback, matched by conntrack's original destination,
    /// since kube-proxy has replaced a ClusterIP by a pod's address here.
    Out,
}

impl Way {
    /// Returns the packets that pass the chain; `None` if none do. Untracked packets pass no chain
    /// of type nat.
    fn through(chain: &BaseChain) -> Option<Self> {
        match chain.hook {
            _ if chain.table == TABLE || chain.is_nat => None,
            InetHookNumber::PreRouting | InetHookNumber::LocalIn => Some(Self::ToUs),
            InetHookNumber::LocalOut | InetHookNumber::PostRouting => Some(Self::FromUs),
            InetHookNumber::Forward => Some(Self::Out),
            _ => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::ToUs => "to this server",
            Self::FromUs => "from this server",
            Self::Out => "to the fallback",
        }
    }

    fn packets(self) -> &'static str {
        if self == Self::FromUs { "replies" } else { "queries" }
    }
}

/// The places at which a chain drops packets, with the addresses that the dropped queries have as
/// destination, or the dropped replies as source.
type Drops = BTreeMap<Place, BTreeSet<IpAddr>>;

/// Returns where a chain drops clients' queries, and the first rule that may drop them.
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
        // DNAT of another program may have replaced the destination of a query to the fallback.
        let passing: Vec<_> = match way {
            Way::ToUs | Way::FromUs => destinations.iter().map(|ip| (Some(*ip), vec![*ip])).collect(),
            Way::Out if destinations.is_empty() => Vec::new(),
            Way::Out => vec![(None, destinations)],
        };
        let ct_state = if way == Way::Out { IP_CT_NEW } else { IP_CT_UNTRACKED };
        let is_reply = way == Way::FromUs;
        for (server, all) in passing {
            for transport in [TCP, UDP] {
                let query = Query { family: *family, transport, server, is_reply, ct_state, not_from };
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

/// Whether iptables manages the chain; iptables cannot read rules that `nft` adds there.
fn is_of_iptables(BaseChain { family, table, name, .. }: &BaseChain) -> bool {
    matches!(*family, "ip" | "ip6")
        && matches!(table.as_str(), "filter" | "mangle" | "raw" | "security")
        && matches!(name.as_str(), "PREROUTING" | "INPUT" | "FORWARD" | "OUTPUT" | "POSTROUTING")
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
                true => iptables(&chain.table, *family, place, way, &destinations, &sources),
                false => nft(chain, *family, place, way, &destinations, &sources),
            });
        }
    }
    (!commands.is_empty()).then(|| FirewallConflict {
        chain: named(chain),
        way: way.text(),
        packets: way.packets(),
        rule: drops.keys().find_map(|place| rule_of(chain, place)),
        is_certain: true,
        remedy: commands.join(" && "),
    })
}

fn uncertain(chain: &BaseChain, way: Way, place: &Place) -> FirewallConflict {
    let BaseChain { family, table, .. } = chain;
    let remedy = match (is_of_iptables(chain), *family) {
        (true, "ip") => format!("{} -S {}", program(Family::V4, table), quoted(&place.chain)),
        (true, _) => format!("{} -S {}", program(Family::V6, table), quoted(&place.chain)),
        (false, _) => format!("nft list chain {family} {} {}", quoted(table), quoted(&place.chain)),
    };
    let rule = rule_of(chain, place).or_else(|| Some(format!("chain {}", place.chain)));
    let (way, packets) = (way.text(), way.packets());
    FirewallConflict { chain: named(chain), way, packets, rule, is_certain: false, remedy }
}

fn named(BaseChain { family, table, name, .. }: &BaseChain) -> String {
    format!("{family} {table} {name}")
}

/// Describes the rule of a place; `None` if the place is the end of the base chain, where its
/// policy applies.
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

/// Returns the destinations of queries on this path: our addresses, or the fallbacks and the
/// service addresses, which kube-proxy translates.
fn destinations(listeners: &[Listener], family: Family, way: Way) -> Vec<IpAddr> {
    let of_family = listeners.iter().filter(|listener| Family::of(listener.address) == family);
    let destination = |listener: &Listener| match (way, &listener.fallback) {
        (Way::ToUs | Way::FromUs, _) | (Way::Out, None) => listener.address,
        (Way::Out, Some(fallback)) => fallback.target,
    };
    let is_on_way = |listener: &&Listener| way != Way::Out || !listener.fails_closed;
    let lead_out = of_family.clone().any(|listener| listener.fallback.is_some());
    let mut all: Vec<_> = of_family.filter(is_on_way).map(destination).collect();
    all.retain(|_| way != Way::Out || lead_out);
    all.sort_unstable();
    all.dedup();
    all
}

const TCP: u8 = 6;
const UDP: u8 = 17;
// The conntrack states that `nft` prints as `new` and `untracked`.
const IP_CT_NEW: u32 = 1 << 3;
const IP_CT_UNTRACKED: u32 = 1 << 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover_rules::Fallback;
    use crate::nft::PlacedRule;

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
            is_nat: false,
            drops: true,
        };
        let networks = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a network")).collect();
        let links = |names: &[&str]| Clients::NotFrom(names.iter().map(|name| (*name).to_owned()).collect());
        let last = Some(PlacedRule { number: 7, handle: 42, is_last: true });
        let (input, forward) = (InetHookNumber::LocalIn, InetHookNumber::Forward);
        let (output, postrouting) = (InetHookNumber::LocalOut, InetHookNumber::PostRouting);
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
                chain("ip", "filter", "OUTPUT", output),
                None,
                links(&["eth0"]),
                &[
                    "iptables -A OUTPUT ! -o eth0 -s 10.96.0.20,169.254.10.10,169.254.10.12 -p udp --sport 53 -j ACCEPT",
                ],
            ),
            (
                chain("ip6", "mangle", "POSTROUTING", postrouting),
                None,
                Clients::In(networks(&["fd01::5/64"])),
                &["ip6tables -t mangle -A POSTROUTING -d fd01::/64 -s fd10::11 -p udp --sport 53 -j ACCEPT"],
            ),
            (
                chain("ip6", "fw", "out", output),
                None,
                links(&["eth0"]),
                &[
                    "nft 'add rule ip6 fw out oifname != { \"eth0\" } ip6 saddr { fd10::11 } meta l4proto { tcp, udp } th sport 53 accept'",
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
        // `Clients::In` has no IPv6 network, so no IPv6 rule is needed.
        let chain = chain("ip6", "filter", "INPUT", input);
        let place = Place { chain: chain.name.clone(), rule: None };
        let drops = Drops::from([(place, [ip("fd10::11")].into())]);
        assert_eq!(certain(&chain, Way::ToUs, &drops, &Clients::In(networks(&["10.1.0.0/16"]))), None);
    }
}
