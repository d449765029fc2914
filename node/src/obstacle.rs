//! Others' rules that may stand in the way: base chains that drop what none of their rules accepts.

use std::net::IpAddr;

use netlink_packet_netfilter::nftables::InetHookNumber;

use crate::nft::{BaseChain, NftError, Socket};
use crate::rules::{Listener, TABLE};

/// A chain that drops by policy what its rules do not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// As `nft list chain` takes it.
    pub chain: String,
    /// Whose way it is on: clients' to us, or to the way out.
    pub way: &'static str,
    /// What has it accept them.
    pub mend: String,
}

impl Obstacle {
    /// Those on the ways to these listeners, and out. Tables of iptables-legacy are not seen: [`unseen_filters`].
    ///
    /// # Errors
    /// Where the kernel does not list its chains.
    pub fn all(listeners: &[Listener]) -> Result<Vec<Self>, NftError> {
        let chains = Socket::open()?.base_chains()?;
        Ok(chains.iter().filter(|chain| chain.drops).filter_map(|chain| of(chain, listeners)).collect())
    }
}

/// What is to be known of tables of iptables-legacy, which no netlink socket lists: that there is one that may drop what goes to
/// these listeners or out, and behind a semicolon the command that looks.
pub fn unseen_filters(listeners: &[Listener]) -> Vec<String> {
    let families = [
        ("/proc/net/ip_tables_names", "iptables-legacy", true),
        ("/proc/net/ip6_tables_names", "ip6tables-legacy", false),
    ];
    let concerned = families
        .into_iter()
        .filter(|(_, _, is_ipv4)| listeners.iter().any(|listener| listener.address.is_ipv4() == *is_ipv4));
    // Where nobody may read it, or nothing of the kind was ever loaded, there is nothing to tell.
    let tables = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    concerned.filter_map(|(file, program, _)| unseen_filter(&tables(file), program)).collect()
}

fn unseen_filter(tables: &str, program: &str) -> Option<String> {
    tables.lines().any(|table| table == "filter").then(|| {
        format!(
            "{program} has a filter table, and whether that drops what comes to us or goes out is not seen from here; \
             look: {program} -S"
        )
    })
}

fn of(chain: &BaseChain, listeners: &[Listener]) -> Option<Obstacle> {
    let BaseChain { family, table, name, .. } = chain;
    let in_family = |ip: IpAddr| match *family {
        "ip" => ip.is_ipv4(),
        "ip6" => ip.is_ipv6(),
        _ => table != TABLE,
    };
    let mut concerned = listeners.iter().filter(|listener| in_family(listener.address));
    let way = match chain.hook {
        InetHookNumber::LocalIn if concerned.next().is_some() => "to us",
        InetHookNumber::Forward if concerned.any(|listener| listener.way_out.is_some()) => "out",
        _ => return None,
    };
    // By port alone: behind a ClusterIP is a pod's address. What comes back is known to conntrack, and mostly accepted.
    let mend = match (*family, table.as_str(), name.as_str()) {
        // What `nft` writes there iptables cannot read.
        ("ip" | "ip6", "filter", "INPUT" | "FORWARD") => {
            let program = if *family == "ip" { "iptables" } else { "ip6tables" };
            let rule = |transport| format!("{program} -I {name} -p {transport} --dport 53 -j ACCEPT");
            format!("{} && {}", rule("udp"), rule("tcp"))
        }
        _ => format!(
            "nft insert rule {family} {table} {name} meta l4proto '{{ tcp, udp }}' th dport 53 accept"
        ),
    };
    Some(Obstacle { chain: format!("{family} {table} {name}"), way, mend })
}
