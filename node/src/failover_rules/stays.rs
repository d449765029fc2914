//! Builds the failover table, which stays when the server ends.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_netfilter::nftables::InetHookNumber::{LocalIn, LocalOut, PostRouting, PreRouting};
use netlink_packet_netfilter::nftables::SetFlags;

use super::{Clients, Listener, RAW, SetOf, TABLE, transports};
use crate::nft::{
    Batch, Chain, Contents, End, Family, Set, Statement, TRANSPORTS, accept, address_in, address_is,
    destination_is_ours, dns, family_is, from_link, from_this_machine, has_socket, is_reply, jump,
    masquerade, not_translated, notrack, octets, set_address, set_zone, source_in, source_is_behind,
    source_is_behind_its_link, untracked, zone_is,
};

/// The current conntrack zone of each listener's address, as a number below [`TURNS`] among the
/// zones of that listener.
pub(super) type Turns = BTreeMap<IpAddr, u16>;

/// Returns the batch that writes the complete table; `by_socket` if the kernel can match sockets.
pub(super) fn stays((listeners, clients): (&[Listener], &Clients), by_socket: bool, turns: &Turns) -> Batch {
    let mut batch = Batch::default();
    batch.renew_table(TABLE);
    transports(&mut batch, TABLE);
    for family in Family::BOTH {
        let ours = listeners.iter().map(|listener| listener.address).filter(|ip| Family::of(*ip) == family);
        let ours = ours.map(octets).collect();
        let set = |name, flags, elements| Set { name, key: family.key(), flags, elements };
        batch.add_set(TABLE, &set(SetOf::Listeners.name(family), SetFlags::empty(), ours));
        batch.add_set(TABLE, &set(SetOf::Handover.name(family), SetFlags::Timeout, Vec::new()));
    }
    for chain in &CHAINS {
        batch.add_chain(TABLE, chain);
    }
    let mut rule = |chain, statements: Vec<Vec<_>>| batch.add_rule(TABLE, chain, statements);
    // The host's own queries are handled in `output`.
    rule("prerouting", vec![untracked(), accept()]);
    rule("prerouting", vec![from_this_machine(), accept()]);
    for family in Family::BOTH {
        let planned = address_in(End::Destination, family, SetOf::Handover.name(family));
        let mut asked = vec![planned, dns(End::Destination), destination_is_ours()];
        asked.extend(by_socket.then(has_socket));
        rule("prerouting", [&asked[..], &[notrack(), accept()]].concat());
    }
    for family in Family::BOTH {
        let ours = address_in(End::Destination, family, SetOf::Listeners.name(family));
        rule("prerouting", vec![ours, dns(End::Destination), jump(CLIENTS)]);
    }
    rule("output", vec![untracked(), accept()]);
    for family in Family::BOTH {
        // Our replies never create a conntrack entry, with or without a lease: the entry of a late
        // reply would have the wrong direction.
        let ours = address_in(End::Source, family, SetOf::Listeners.name(family));
        rule("output", vec![ours, dns(End::Source), notrack(), accept()]);
    }
    for family in Family::BOTH {
        let planned = address_in(End::Destination, family, SetOf::Handover.name(family));
        rule("output", vec![planned, dns(End::Destination), destination_is_ours(), notrack(), accept()]);
    }
    rule("output", vec![dns(End::Destination), jump(FAILOVER)]);
    for listener in listeners.iter().filter(|listener| listener.fails_closed) {
        // Untracked, a service address is not translated: the query arrives at a closed port of
        // this host.
        rule(FAILOVER, vec![address_is(End::Destination, listener.address), notrack(), accept()]);
        rule(CLIENTS, vec![address_is(End::Destination, listener.address), jump(FAILOVER)]);
    }
    // Other clients' queries keep their destination, a closed port of this host.
    for client in failed_over(clients) {
        rule(CLIENTS, client);
    }
    let fail_over = listeners.iter().filter(|listener| !listener.fails_closed);
    for (listener, zone) in with_zones(fail_over) {
        let family = Family::of(listener.address);
        // Each listener has its own conntrack zones, so no flow matches entries of another
        // listener, or entries older than these rules.
        let turn = turns.get(&listener.address).copied().unwrap_or_default();
        let mut away = vec![address_is(End::Destination, listener.address), set_zone(zone + turn)];
        let is_of_listener = zone_is(zone, !(TURNS - 1));
        if let Some(fallback) = &listener.fallback {
            away.push(set_address(End::Destination, fallback.target));
            let back = set_address(End::Source, listener.address);
            rule("replies", vec![family_is(family), is_of_listener.clone(), back]);
        }
        away.push(accept());
        rule(FAILOVER, away);
        // The host's own query has the listener's address as its source.
        let ours = address_in(End::Source, family, SetOf::Listeners.name(family));
        rule("nat_postrouting", vec![is_of_listener.clone(), ours, masquerade()]);
        if listener.fallback.as_ref().is_some_and(|fallback| fallback.masquerade) {
            rule("nat_postrouting", vec![is_of_listener, not_translated(), masquerade()]);
        }
    }
    for chain in ["postrouting", "input"] {
        rule(chain, vec![is_reply(), dns(End::Source), jump("replies")]);
    }
    batch
}

/// Returns the statements of the rules that redirect the queries of these clients.
fn failed_over(clients: &Clients) -> Vec<Vec<Vec<Statement>>> {
    // Cilium routes to all pods of the node over its own link, but packets from the pods arrive
    // over other links.
    let sources = [source_is_behind_its_link(), source_is_behind(CILIUM_LINK)];
    let picked = |client: &[Vec<Statement>]| {
        let rule = |source: &Vec<Statement>| [client, &[source.clone(), jump(FAILOVER)]].concat();
        sources.iter().map(rule).collect::<Vec<_>>()
    };
    match clients {
        Clients::All => vec![vec![jump(FAILOVER)]],
        Clients::In(networks) => networks.iter().flat_map(|network| picked(&[source_in(*network)])).collect(),
        Clients::NotFrom(links) => {
            let refused = links.iter().map(|link| vec![from_link(link), accept()]);
            refused.chain(picked(&[])).collect()
        }
    }
}

/// Returns the current zones from the existing rules.
pub(super) fn zones_of(there: &Contents) -> Turns {
    there.loaded(FAILOVER).into_iter().map(|(address, zone)| (address, zone % TURNS)).collect()
}

/// Returns each listener with the first of its [`TURNS`] conntrack zones, which depends on the
/// address alone unless two addresses hash to the same number.
fn with_zones<'l>(listeners: impl Iterator<Item = &'l Listener>) -> Vec<(&'l Listener, u16)> {
    let mut taken: Vec<(&Listener, u16)> = Vec::new();
    for listener in listeners {
        let hash = octets(listener.address)
            .iter()
            .fold(0u16, |hash, octet| hash.rotate_left(5).wrapping_mul(31).wrapping_add(u16::from(*octet)));
        let free = |zone: &u16| taken.iter().all(|(_, other)| other != zone);
        let zone = |n| FIRST_ZONE + (hash % LISTENERS + n) % LISTENERS * TURNS;
        let zone = (0..LISTENERS).map(zone).find(free).unwrap_or(FIRST_ZONE);
        taken.push((listener, zone));
    }
    taken
}

pub(super) const CHAINS: [Chain; 8] = [
    Chain { name: CLIENTS, hook: None },
    Chain { name: FAILOVER, hook: None },
    Chain { name: "replies", hook: None },
    Chain { name: "prerouting", hook: Some(("filter", PreRouting, RAW)) },
    // Of type `route`: after a change of the destination the packet is routed again.
    Chain { name: "output", hook: Some(("route", LocalOut, RAW)) },
    Chain { name: "nat_postrouting", hook: Some(("nat", PostRouting, SRCNAT - 1)) },
    Chain { name: "postrouting", hook: Some(("filter", PostRouting, LAST)) },
    Chain { name: "input", hook: Some(("filter", LocalIn, LAST)) },
];

/// The chain for queries that no server receives; it redirects the queries of clients that fail
/// over.
pub(super) const CLIENTS: &str = "clients";
/// The link over which Cilium routes to this node's pods, unless Cilium has a route for each pod.
pub const CILIUM_LINK: &str = "cilium_host";
/// The chain that redirects queries.
pub(super) const FAILOVER: &str = "failover";
/// The table's sets that do not change after it is written.
pub(super) const SETS: [&str; 3] = [TRANSPORTS, "listeners4", "listeners6"];
/// The first of our conntrack zones, a multiple of [`TURNS`], and the number of listeners that have
/// zones. The kernel has 65,535 zones.
const FIRST_ZONE: u16 = 21_504;
const LISTENERS: u16 = 512;
/// Number of zones that a listener's flows use in turn, a power of two: a redirected connection
/// leaves a conntrack entry for two minutes, and queries may return to the server every two
/// seconds.
pub(super) const TURNS: u16 = 64;
const SRCNAT: i32 = 100;
/// Priority after all address translation.
const LAST: i32 = 300;
