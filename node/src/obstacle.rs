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
    /// Those on the ways to these listeners, and out. Tables of iptables-legacy are not seen.
    ///
    /// # Errors
    /// Where the kernel does not list its chains.
    pub fn all(listeners: &[Listener]) -> Result<Vec<Self>, NftError> {
        let chains = Socket::open()?.base_chains()?;
        Ok(chains.iter().filter(|chain| chain.drops).filter_map(|chain| of(chain, listeners)).collect())
    }
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
