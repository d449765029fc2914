//! Lists the host's interfaces and their current addresses.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use ipnet::IpNet;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_indextoname, if_nametoindex};

use crate::NodeError;

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name, such as `eth0`.
    pub name: String,
    /// Whether the interface is set up.
    pub up: bool,
    /// Whether this is a loopback interface: all addresses of its IPv4 networks are local.
    pub loopback: bool,
    /// The interface's addresses, in the kernel's order.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Length of the network's prefix, 0 to 32 or 128 bits.
    pub prefix_bits: u8,
    /// Index of the interface for a link-local IPv6 address, else 0.
    pub scope_id: u32,
}

impl Address {
    /// Returns the address with a port, ready to bind.
    pub fn socket_addr(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => SocketAddr::from((ip, port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope_id).into(),
        }
    }

    fn network_contains(&self, ip: IpAddr) -> bool {
        self.ip.is_ipv4()
            && IpNet::new(self.ip, self.prefix_bits.min(32)).is_ok_and(|network| network.contains(&ip))
    }
}

/// Lists all interfaces, in the kernel's order, including interfaces without an address.
///
/// # Errors
/// [`NodeError::Interfaces`] if the kernel does not list them.
pub fn interfaces() -> Result<Vec<Interface>, NodeError> {
    let mut interfaces: Vec<Interface> = Vec::new();
    for entry in getifaddrs().map_err(|errno| NodeError::Interfaces(errno.into()))? {
        // The label of an address appears as `eth0:label`; no interface has a colon in its name.
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        let position = interfaces.iter().position(|known| known.name == name).unwrap_or_else(|| {
            interfaces.push(Interface {
                name: name.to_owned(),
                up: entry.flags.contains(InterfaceFlags::IFF_UP),
                loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                addresses: Vec::new(),
            });
            interfaces.len() - 1
        });
        interfaces[position].addresses.extend(address(&entry));
    }
    Ok(interfaces)
}

/// Returns the addresses of one interface, for a `bind` by name. May be empty.
///
/// # Errors
/// [`NodeError::InterfaceAbsent`] if there is no such interface.
pub fn addresses_of(interface: &str) -> Result<Vec<Address>, NodeError> {
    let found = interfaces()?.into_iter().find(|known| known.name == interface);
    found
        .map(|found| found.addresses)
        .ok_or_else(|| NodeError::InterfaceAbsent { name: interface.to_owned() })
}

/// Completes a link-local IPv6 address without a scope for bind and connect, with the scope of the
/// first interface that has the address. Other addresses, and an address that no interface has, are
/// returned unchanged.
pub fn with_link(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() == 0 && v6.ip().is_unicast_link_local() => {
            let own = interfaces().unwrap_or_default().into_iter().flat_map(|interface| interface.addresses);
            own.into_iter()
                .find(|own| own.ip == address.ip())
                .map_or(address, |own| own.socket_addr(address.port()))
        }
        _ => address,
    }
}

/// Returns the index of the interface of this name.
pub fn link_index(name: &str) -> Option<u32> {
    if_nametoindex(name).ok()
}

/// Returns the name of the interface of this index, if it exists.
pub fn link_name(index: u32) -> Option<String> {
    // The kernel may also return an empty name.
    if_indextoname(index).ok()?.into_string().ok().filter(|name| !name.is_empty())
}

/// Whether `ip` is an address of this host; false if the kernel does not list its interfaces.
pub fn has_address(ip: IpAddr) -> bool {
    interfaces().is_ok_and(|interfaces| is_local(&interfaces, ip))
}

/// Whether `ip` is an address of one of these interfaces.
pub fn is_local(interfaces: &[Interface], ip: IpAddr) -> bool {
    holder_of_address(interfaces, ip).is_some()
}

/// Whether packets to `to` reach one of these listeners; a wildcard address listens on every
/// address of this host.
pub fn leads_to(to: SocketAddr, listeners: &[SocketAddr]) -> bool {
    listeners.iter().any(|own| {
        own.port() == to.port()
            && (own.ip() == to.ip()
                || (own.ip().is_unspecified() && (to.ip().is_unspecified() || has_address(to.ip()))))
    })
}

/// Returns the name of the interface on which `ip` is local.
pub fn link_of(ip: IpAddr) -> Option<String> {
    interfaces().ok().and_then(|all| holder_of_address(&all, ip).map(|found| found.name.clone()))
}

/// Returns the interface on which `ip` is local: the address is on it, or in an IPv4 network of a
/// loopback interface.
pub(crate) fn holder_of_address(interfaces: &[Interface], ip: IpAddr) -> Option<&Interface> {
    interfaces.iter().find(|interface| {
        interface.addresses.iter().any(|own| own.ip == ip || (interface.loopback && own.network_contains(ip)))
    })
}

fn address(entry: &InterfaceAddress) -> Option<Address> {
    let storage = entry.address.as_ref()?;
    let mask = entry.netmask.as_ref();
    if let Some(v4) = storage.as_sockaddr_in() {
        let mask = mask.and_then(|mask| mask.as_sockaddr_in()).map_or(u32::MAX, |mask| mask.ip().into());
        return Some(Address { ip: v4.ip().into(), prefix_bits: mask.leading_ones() as u8, scope_id: 0 });
    }
    let v6 = storage.as_sockaddr_in6()?;
    let mask = mask.and_then(|mask| mask.as_sockaddr_in6()).map_or(u128::MAX, |mask| mask.ip().into());
    let scope_id = if v6.ip().is_unicast_link_local() { v6.scope_id() } else { 0 };
    Some(Address { ip: v6.ip().into(), prefix_bits: mask.leading_ones() as u8, scope_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_loopback_with_its_network() {
        let lo =
            interfaces().expect("listed").into_iter().find(|known| known.name == "lo").expect("lo exists");
        assert!(lo.up && lo.loopback);
        let v4 = lo.addresses.iter().find(|own| own.ip == IpAddr::from([127, 0, 0, 1])).expect("127.0.0.1");
        assert_eq!((v4.prefix_bits, v4.scope_id), (8, 0));
        assert_eq!(addresses_of("lo").expect("lo exists"), lo.addresses);
    }

    #[test]
    fn adds_scope_to_link_local_only() {
        // fe80::5 is unlikely on a host that runs tests.
        for text in ["127.0.0.1:53", "169.254.10.10:53", "[::1]:53", "[fe80::5%1]:53", "[fe80::5]:53"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(with_link(address), address, "{text}");
        }
        for interface in interfaces().expect("listed") {
            for own in interface.addresses.iter().filter(|own| own.scope_id != 0) {
                let found = with_link(SocketAddr::new(own.ip, 53));
                assert_eq!((found.ip(), found.port()), (own.ip, 53));
                assert!(matches!(found, SocketAddr::V6(found) if found.scope_id() != 0), "{found}");
            }
        }
        for name in ["", "no-such-link0", "l\0o", "../../../../etc/hostname"] {
            assert_eq!(link_index(name), None, "{name:?}");
        }
        assert_eq!(link_index("lo"), Some(1));
        assert_eq!((link_name(1).as_deref(), link_name(u32::MAX)), (Some("lo"), None));
    }

    #[test]
    fn error_names_absent_interface() {
        for name in ["nosuchlink0", "", "lo:1", "an interface name beyond what the kernel takes"] {
            let error = addresses_of(name).expect_err("absent");
            assert_eq!(
                error.to_string(),
                format!(
                    "no interface {name:?} on this machine; name one that `ip link` lists, or an IP address"
                )
            );
        }
    }

    /// All addresses of 127.0.0.0/8 are local without being listed.
    #[test]
    fn loopback_network_is_local() {
        let rows = [
            ("127.0.0.1", true),
            ("127.9.8.7", true),
            ("128.0.0.1", false),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
            ("0.0.0.0", false),
            ("::", false),
        ];
        for (ip, ours) in rows {
            assert_eq!(has_address(ip.parse().expect("an address")), ours, "{ip}");
        }
    }

    #[test]
    fn only_loopback_networks_are_local() {
        let own = |text: &str, prefix_bits| Address {
            ip: text.parse().expect("an address"),
            prefix_bits,
            scope_id: 0,
        };
        let interface = |name: &str, loopback, addresses| Interface {
            name: name.to_owned(),
            up: true,
            loopback,
            addresses,
        };
        let all = [
            interface("lo", true, vec![own("10.1.2.3", 32), own("127.0.0.1", 8), own("::1", 64)]),
            interface("eth0", false, vec![own("10.0.0.4", 8), own("0.0.0.0", 0)]),
        ];
        let rows = [
            ("127.255.0.9", Some("lo")),
            ("10.1.2.3", Some("lo")),
            ("10.1.2.4", None),
            ("10.0.0.4", Some("eth0")),
            ("10.0.0.5", None),
            ("::1", Some("lo")),
            ("::2", None),
        ];
        for (ip, name) in rows {
            let found = holder_of_address(&all, ip.parse().expect("an address"));
            assert_eq!(found.map(|found| found.name.as_str()), name, "{ip}");
        }
        assert!(own("10.0.0.4", 0).network_contains("200.0.0.1".parse().expect("an address")));
    }

    #[test]
    fn socket_address_has_the_scope() {
        let rows =
            [("127.0.0.1", 0, "127.0.0.1:53"), ("::1", 0, "[::1]:53"), ("fe80::1", 7, "[fe80::1%7]:53")];
        for (ip, scope_id, text) in rows {
            let address = Address { ip: ip.parse().expect("an address"), prefix_bits: 64, scope_id };
            assert_eq!(address.socket_addr(53).to_string(), text);
        }
    }
}
