//! Finds the uplinks: the links to networks outside the node and its pods.

mod networks;
mod nexthops;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder, new_connection};

use node::{CILIUM_LINK, NodeError};

/// The names of the uplinks, sorted. Outside hosts arrive over uplinks; links of pods are not
/// uplinks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Uplinks {
    /// Uplinks without pods.
    pub(crate) alone: Vec<String>,
    /// Bridges, which may have pods as well: Azure CNI's azure0, OVN's br-ex.
    pub(crate) shared: Vec<String>,
}

impl Uplinks {
    /// Finds the uplinks: links of a default route of any routing table, or of routes that together
    /// amount to one; network hardware (from Linux 5.14 on, which names the device), bonds, VLANs
    /// of either, and VRFs with one of these; and links named in `kept`. Blocks.
    ///
    /// # Errors
    /// If the kernel does not list its links, routes or nexthops.
    pub(crate) fn now(kept: &[String]) -> Result<Self, NodeError> {
        let looks = || -> io::Result<Self> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (links, routes) = runtime.block_on(async {
                let (connection, handle, _) = new_connection()?;
                let connection = tokio::spawn(connection);
                let found = look(&handle).await;
                connection.abort();
                found.map_err(io::Error::other)
            })?;
            let mut leads_out = routes.lead_out()?;
            let is_kept = |(_, link): &(&u32, &Link)| kept.contains(&link.name);
            leads_out.extend(links.iter().filter(is_kept).map(|(index, _)| *index));
            Ok(Self::of(&links, &leads_out))
        };
        looks().map_err(NodeError::Routes)
    }

    fn of(links: &BTreeMap<u32, Link>, leads_out: &BTreeSet<u32>) -> Self {
        let mut uplinks = Self::default();
        let is_kind = |link: &Link, kind| link.kind == Some(kind);
        for (index, link) in links {
            let mut ports = links.iter().filter(|(_, port)| port.master == Some(*index));
            // Packets of a port arrive on its bridge or bond; packets of a VRF's port on both.
            let is_port =
                link.master.is_some_and(|of| links.get(&of).is_none_or(|of| !is_kind(of, InfoKind::Vrf)));
            if link.is_bridge(links) {
                let has_uplink =
                    is_kind(link, InfoKind::Bridge) && ports.any(|(_, port)| is_outward(links, port));
                if leads_out.contains(index) || has_uplink {
                    uplinks.shared.push(link.name.clone());
                }
            } else if leads_out.contains(index)
                || (!is_port && is_outward(links, link))
                || (is_kind(link, InfoKind::Vrf)
                    && ports.any(|(port, link)| leads_out.contains(port) || is_outward(links, link)))
            {
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
    /// Whether the link is a device on a bus, such as PCI.
    is_hardware: bool,
    /// The index of the bridge, bond or VRF of which the link is a port.
    master: Option<u32>,
    /// The index of the link below: for a VLAN, its parent.
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

    /// Returns the parent of a VLAN; for nested VLANs, the lowest one.
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

/// The networks that are routed over each link, and through each nexthop object.
#[derive(Debug, Default)]
struct Routes {
    of_links: BTreeMap<u32, Vec<IpNet>>,
    of_nexthops: BTreeMap<u32, Vec<IpNet>>,
}

impl Routes {
    /// Adds a route of any table. `internal` is a link that leads to pods.
    fn add(&mut self, route: &RouteMessage, internal: Option<u32>) {
        if route.header.kind != RouteType::Unicast {
            return;
        }
        let Some(network) = network(route).filter(networks::counts) else { return };
        let is_main = route.header.table == RouteHeader::RT_TABLE_MAIN;
        let mut over = |link| {
            // Cilium's own table has a default route to its pods.
            if is_main || Some(link) != internal {
                self.of_links.entry(link).or_default().push(network);
            }
        };
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => over(*index),
                RouteAttribute::MultiPath(hops) => hops.iter().for_each(|hop| over(hop.interface_index)),
                RouteAttribute::NhId(id) => self.of_nexthops.entry(*id).or_default().push(network),
                _ => {}
            }
        }
    }

    /// Returns the links that lead to other networks. Blocks.
    fn lead_out(mut self) -> io::Result<BTreeSet<u32>> {
        if !self.of_nexthops.is_empty() {
            // With net.ipv4.nexthop_compat_mode=0, the route itself names no link.
            let links = nexthops::all()?;
            for (id, networks) in &self.of_nexthops {
                for link in links.get(id).into_iter().flatten() {
                    self.of_links.entry(*link).or_default().extend(networks);
                }
            }
        }
        let leads_out = self.of_links.iter().filter(|(_, networks)| networks::lead_out(networks));
        Ok(leads_out.map(|(link, _)| *link).collect())
    }
}

/// Returns the destination of a route.
fn network(route: &RouteMessage) -> Option<IpNet> {
    let address = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        RouteAttribute::Destination(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    });
    let any = match route.header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    IpNet::new(address.unwrap_or(any), route.header.destination_prefix_length).ok()
}

async fn look(handle: &Handle) -> Result<(BTreeMap<u32, Link>, Routes), rtnetlink::Error> {
    let mut links = BTreeMap::new();
    let mut listed = handle.link().get().execute();
    while let Some(message) = listed.try_next().await? {
        links.insert(message.header.index, link(message));
    }
    let internal = links.iter().find_map(|(index, link)| (link.name == CILIUM_LINK).then_some(*index));
    let mut routes = Routes::default();
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for family in [v4, v6] {
        let mut listed = Box::pin(handle.route().get(family).execute());
        while let Some(route) = listed.try_next().await? {
            routes.add(&route, internal);
        }
    }
    Ok((links, routes))
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

/// Maximum nesting of VLANs.
const DEEPEST: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Uplinks that are bridges are in `shared`.
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
                "a VRF of an uplink, one of hardware, and one of pods",
                vec![
                    link("vrf1", Some(InfoKind::Vrf)),
                    link("vrf2", Some(InfoKind::Vrf)),
                    link("vrf3", Some(InfoKind::Vrf)),
                    port(veth("up", 9), 1),
                    port(hardware("eth0"), 2),
                    port(veth("v1", 9), 3),
                ],
                &[4],
                &["eth0", "up", "vrf1", "vrf2"],
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
