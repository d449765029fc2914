//! Finds the links to other networks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::net::Ipv6Addr;

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder, new_connection};

use crate::NodeError;

/// The names of these links, sorted. Outside hosts arrive over them; links of pods are not among
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uplinks {
    /// Those without pods.
    pub alone: Vec<String>,
    /// Bridges, which may have pods as well: Azure CNI's azure0, OVN's br-ex.
    pub shared: Vec<String>,
}

impl Uplinks {
    /// Finds them: links of a default route in the main table, network hardware (from Linux 5.14
    /// on, which names the device), and bonds and VLANs of it. Blocks.
    ///
    /// # Errors
    /// If the kernel does not list its links or routes.
    pub fn now() -> Result<Self, NodeError> {
        let looks = || -> io::Result<Self> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (connection, handle, _) = new_connection()?;
                let connection = tokio::spawn(connection);
                let found = look(&handle).await;
                connection.abort();
                found.map_err(io::Error::other)
            })
        };
        looks().map_err(NodeError::Routes)
    }

    fn of(links: &BTreeMap<u32, Link>, leads_out: &BTreeSet<u32>) -> Self {
        let mut uplinks = Self::default();
        for (index, link) in links {
            let has_uplink =
                || links.values().any(|port| port.master == Some(*index) && is_outward(links, port));
            if link.is_bridge(links) {
                if leads_out.contains(index) || (link.kind == Some(InfoKind::Bridge) && has_uplink()) {
                    uplinks.shared.push(link.name.clone());
                }
            } else if leads_out.contains(index) || (link.master.is_none() && is_outward(links, link)) {
                uplinks.alone.push(link.name.clone());
            }
        }
        uplinks.alone.sort_unstable();
        uplinks.shared.sort_unstable();
        uplinks
    }
}

/// The relevant attributes of a link.
#[derive(Debug, Default)]
struct Link {
    name: String,
    kind: Option<InfoKind>,
    /// Whether it has a device on a bus.
    is_hardware: bool,
    /// The bridge or bond that it is a port of.
    master: Option<u32>,
    /// The link that it is a VLAN of.
    below: Option<u32>,
}

impl Link {
    fn is_bridge(&self, links: &BTreeMap<u32, Self>) -> bool {
        match &self.kind {
            Some(InfoKind::Bridge) => true,
            Some(InfoKind::Other(kind)) => kind == "openvswitch",
            Some(InfoKind::Vlan) => self.link_below(links).is_some_and(|below| below.is_bridge(links)),
            _ => false,
        }
    }

    /// The link that it is a VLAN of; the lowest one for nested VLANs.
    fn link_below<'l>(&self, links: &'l BTreeMap<u32, Self>) -> Option<&'l Self> {
        let mut below = links.get(&self.below?)?;
        for _ in 0..DEEPEST {
            match below.below.and_then(|index| links.get(&index)) {
                Some(next) if below.kind == Some(InfoKind::Vlan) => below = next,
                _ => break,
            }
        }
        (below.kind != Some(InfoKind::Vlan)).then_some(below)
    }
}

/// Whether the link leads to other hosts whatever its routes are.
fn is_outward(links: &BTreeMap<u32, Link>, link: &Link) -> bool {
    match &link.kind {
        Some(InfoKind::Bond) => true,
        Some(InfoKind::Other(kind)) => kind == "team",
        Some(InfoKind::Vlan) => link.link_below(links).is_some_and(|below| is_outward(links, below)),
        _ => link.is_hardware,
    }
}

async fn look(handle: &Handle) -> Result<Uplinks, rtnetlink::Error> {
    let mut links = BTreeMap::new();
    let mut listed = handle.link().get().execute();
    while let Some(message) = listed.try_next().await? {
        links.insert(message.header.index, link(message));
    }
    let mut leads_out = BTreeSet::new();
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for family in [v4, v6] {
        let mut listed = Box::pin(handle.route().get(family).execute());
        while let Some(route) = listed.try_next().await? {
            leads_out.extend(links_of_default(&route));
        }
    }
    Ok(Uplinks::of(&links, &leads_out))
}

fn link(message: LinkMessage) -> Link {
    let mut link = Link::default();
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::ParentDevName(_) => link.is_hardware = true,
            LinkAttribute::Controller(index) => link.master = Some(index),
            LinkAttribute::Link(index) => link.below = Some(index),
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos.into_iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    link
}

/// The links of a default route of the main table; a CNI may have tables of its own with default
/// routes to its pods.
fn links_of_default(route: &RouteMessage) -> Vec<u32> {
    let RouteHeader { destination_prefix_length, kind, table, .. } = route.header;
    if destination_prefix_length != 0 || kind != RouteType::Unicast || table != RouteHeader::RT_TABLE_MAIN {
        return Vec::new();
    }
    let links = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Oif(index) => vec![*index],
        RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
        _ => Vec::new(),
    };
    route.attributes.iter().flat_map(links).collect()
}

/// Maximum nesting of VLANs.
const DEEPEST: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Bridges count as shared.
    #[test]
    fn uplinks_by_hardware_and_default_route() {
        let other = |kind: &str| Some(InfoKind::Other(kind.to_owned()));
        let link = |name: &str, kind| Link { name: name.to_owned(), kind, ..Link::default() };
        let hardware = |name| Link { is_hardware: true, ..link(name, None) };
        let port = |link, master| Link { master: Some(master), ..link };
        let vlan = |name, below| Link { below: Some(below), ..link(name, Some(InfoKind::Vlan)) };
        let veth = |name, peer| Link { below: Some(peer), ..link(name, Some(InfoKind::Veth)) };
        for (what, links, leads_out, alone, shared) in [
            (
                "pods' links",
                vec![link("lo", None), veth("v1", 2), link("cni0", Some(InfoKind::Bridge))],
                &[][..],
                &[][..],
                &[][..],
            ),
            ("a default route", vec![veth("eth0", 7), veth("v1", 7)], &[1], &["eth0"], &[]),
            (
                "two cards, one default route",
                vec![hardware("eth0"), hardware("eth1")],
                &[1],
                &["eth0", "eth1"],
                &[],
            ),
            (
                "azure0",
                vec![port(hardware("eth0"), 2), link("azure0", Some(InfoKind::Bridge))],
                &[2],
                &[],
                &["azure0"],
            ),
            (
                "a bridge without a default route",
                vec![port(hardware("eth0"), 2), link("br0", Some(InfoKind::Bridge))],
                &[],
                &[],
                &["br0"],
            ),
            (
                "OVN",
                vec![
                    port(hardware("eth0"), 2),
                    link("ovs-system", other("openvswitch")),
                    link("br-ex", other("openvswitch")),
                ],
                &[3],
                &[],
                &["br-ex"],
            ),
            (
                "a bond with a VLAN",
                vec![
                    port(hardware("eth0"), 2),
                    link("bond0", Some(InfoKind::Bond)),
                    vlan("bond0.7", 2),
                    vlan("bond0.7.8", 3),
                ],
                &[3],
                &["bond0", "bond0.7", "bond0.7.8"],
                &[],
            ),
            (
                "a VLAN of a bridge, and one that has itself below",
                vec![link("br0", Some(InfoKind::Bridge)), vlan("br0.7", 1), vlan("loop", 3)],
                &[2],
                &[],
                &["br0.7"],
            ),
        ] {
            let links = (1..).zip(links).collect();
            let expected = Uplinks {
                alone: alone.iter().map(|name| (*name).to_owned()).collect(),
                shared: shared.iter().map(|name| (*name).to_owned()).collect(),
            };
            assert_eq!(Uplinks::of(&links, &leads_out.iter().copied().collect()), expected, "{what}");
        }
    }
}
