//! Composes the narrowest commands that make a chain accept clients' queries, or the replies to
//! them.

use std::fmt::Display;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Way;
use crate::failover_rules::Clients;
use crate::nft::{BaseChain, Family, Place, PlacedRule};

/// Returns the iptables command for a table.
pub(super) fn program(family: Family, table: &str) -> String {
    let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
    if table == "filter" { program.to_owned() } else { format!("{program} -t {}", quoted(table)) }
}

/// How clients are matched.
pub(super) enum Sources<'c> {
    Any,
    Networks(Vec<IpNet>),
    /// Clients on any link of arrival but these.
    NotFrom(&'c [String]),
}

/// Returns how the clients of this family are matched; `None` if there are none.
pub(super) fn sources(clients: &Clients, family: Family) -> Option<Sources<'_>> {
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

pub(super) fn iptables(
    table: &str,
    family: Family,
    place: &Place,
    way: Way,
    addresses: &[IpAddr],
    sources: &Sources<'_>,
) -> Vec<String> {
    let program = program(family, table);
    let matches: Vec<String> = match way {
        Way::ToUs => vec![format!("-d {} -p PROTO --dport 53", listed(addresses, ","))],
        Way::FromUs => vec![format!("-s {} -p PROTO --sport 53", listed(addresses, ","))],
        Way::Out => {
            let one = |ip| format!("-p PROTO -m conntrack --ctorigdst {ip} --ctorigdstport 53");
            addresses.iter().map(one).collect()
        }
    };
    let (peer, link) = if way == Way::FromUs { ("-d", "-o") } else { ("-s", "-i") };
    // A rule can exclude one link; each further link needs a rule of its own before it.
    let (left_out, clients) = match sources {
        Sources::Any => (&[][..], String::new()),
        Sources::Networks(networks) => (&[][..], format!("{peer} {} ", listed(networks, ","))),
        Sources::NotFrom(links) => {
            let (one, others) =
                links.split_first().map_or(("", &[][..]), |(one, others)| (one.as_str(), others));
            (others, format!("! {link} {} ", quoted(one)))
        }
    };
    let mut rules = Vec::new();
    for packets in
        matches.iter().flat_map(|packets| ["udp", "tcp"].map(|proto| packets.replace("PROTO", proto)))
    {
        rules.extend(left_out.iter().map(|name| format!("{link} {} {packets} -j DROP", quoted(name))));
        rules.push(format!("{clients}{packets} -j ACCEPT"));
    }
    let chain = quoted(&place.chain);
    match place.rule {
        None => rules.iter().map(|rule| format!("{program} -A {chain} {rule}")).collect(),
        // Each rule is inserted before the one inserted last, so they are inserted in reverse
        // order.
        Some(PlacedRule { number, .. }) => {
            let insert = |rule| format!("{program} -I {chain} {number} {rule}");
            rules.iter().rev().map(insert).collect()
        }
    }
}

pub(super) fn nft(
    chain: &BaseChain,
    family: Family,
    place: &Place,
    way: Way,
    addresses: &[IpAddr],
    sources: &Sources<'_>,
) -> Vec<String> {
    let ip = if family == Family::V4 { "ip" } else { "ip6" };
    let (peer, link) = if way == Way::FromUs { ("daddr", "oifname") } else { ("saddr", "iifname") };
    let clients = match sources {
        Sources::Any => String::new(),
        Sources::Networks(networks) => format!("{ip} {peer} {{ {} }} ", listed(networks, ", ")),
        Sources::NotFrom(links) => {
            let links = links.iter().map(|link| format!("\"{link}\""));
            format!("{link} != {{ {} }} ", links.collect::<Vec<_>>().join(", "))
        }
    };
    let ours = listed(addresses, ", ");
    let packets = match way {
        Way::ToUs => vec![format!("{ip} daddr {{ {ours} }} meta l4proto {{ tcp, udp }} th dport 53")],
        Way::FromUs => vec![format!("{ip} saddr {{ {ours} }} meta l4proto {{ tcp, udp }} th sport 53")],
        // One protocol in each rule, so that nft can load its own listing.
        Way::Out => Vec::from(["udp", "tcp"].map(|proto| {
            format!("meta l4proto {proto} ct original {ip} daddr {{ {ours} }} ct original proto-dst 53")
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
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}
