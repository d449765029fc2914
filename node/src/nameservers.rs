//! The name servers of the node's network: selects the usable entries of a list, and holds the
//! current list. Parses text, not files.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use crate::resolv_conf::{MAX_NAME_SERVERS, name_servers};
use crate::{address, link_name};

/// The current list of servers that a Corefile names as [`WIRE_SERVER`]; replaced as a whole while
/// queries are answered.
#[derive(Debug)]
pub struct Upstreams {
    list: RwLock<Arc<[SocketAddr]>>,
    changes: AtomicU64,
}

impl Upstreams {
    /// Creates the list with these servers.
    pub fn new(list: &[SocketAddr]) -> Self {
        Self { list: RwLock::new(list.into()), changes: AtomicU64::new(0) }
    }

    /// Returns the current servers, all at port 53.
    pub fn list(&self) -> Arc<[SocketAddr]> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the list; returns false if it is unchanged.
    pub fn set(&self, list: &[SocketAddr]) -> bool {
        let mut held = self.list.write().unwrap_or_else(PoisonError::into_inner);
        if **held == *list {
            return false;
        }
        *held = list.into();
        self.changes.fetch_add(1, Relaxed);
        true
    }

    /// Returns the number of changes.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }
}

/// The entries of a resolv.conf or of a space-separated list, split into usable servers, in order
/// and without duplicates, and others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usable {
    /// The usable entries.
    pub servers: Vec<SocketAddr>,
    /// The other entries: this server, a stub on the loopback interface, addresses that no server
    /// can have.
    pub left_out: Vec<IpAddr>,
}

impl Usable {
    /// Reads a resolv.conf; `is_ours` matches this server's addresses.
    pub fn of_resolv_conf(text: &str, is_ours: &dyn Fn(IpAddr) -> bool) -> Self {
        Self::of(name_servers(text), is_ours)
    }

    /// Reads a list as [`ListText`] writes it.
    pub fn of_list(text: &str, is_ours: &dyn Fn(IpAddr) -> bool) -> Self {
        let servers = text.split_ascii_whitespace().filter_map(|word| address(word, 53));
        let servers: Vec<_> = servers.take(MAX_NAME_SERVERS).collect();
        Self::of(servers, is_ours)
    }

    /// Appends the servers of `others` that are not in this list, up to [`MAX_NAME_SERVERS`].
    pub fn and(mut self, others: Self) -> Self {
        for server in others.servers {
            if !self.servers.contains(&server) && self.servers.len() < MAX_NAME_SERVERS {
                self.servers.push(server);
            }
        }
        self.left_out.extend(others.left_out);
        self
    }

    fn of(servers: Vec<SocketAddr>, is_ours: &dyn Fn(IpAddr) -> bool) -> Self {
        let mut usable = Self::default();
        for mut server in servers {
            let ip = server.ip().to_canonical();
            // An IPv4-mapped IPv6 address is queried over IPv4.
            if ip != server.ip() {
                server = SocketAddr::new(ip, server.port());
            }
            match can_be_asked(server) && !is_ours(ip) {
                true if usable.servers.contains(&server) => {}
                true => usable.servers.push(server),
                false => usable.left_out.push(ip),
            }
        }
        usable
    }
}

fn can_be_asked(server: SocketAddr) -> bool {
    let ip = server.ip();
    // Without a scope, a link-local address is ambiguous: each link may have another host with it.
    if let SocketAddr::V6(v6) = server
        && v6.ip().is_unicast_link_local()
        && v6.scope_id() == 0
    {
        return false;
    }
    let is_no_host = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
    !is_no_host && ip != Ipv4Addr::BROADCAST && !PRODUCTION.contains(&ip)
}

/// A list as AKS's script writes it: addresses separated by spaces, a link-local IPv6 address with
/// its link's name.
#[derive(Debug)]
pub struct ListText<'l>(pub &'l [SocketAddr]);

impl fmt::Display for ListText<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, server) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(out, "{space}{}", AddressText(*server))?;
        }
        Ok(())
    }
}

/// An address without its port, as [`address()`] parses it.
#[derive(Debug, Clone, Copy)]
pub struct AddressText(pub SocketAddr);

impl fmt::Display for AddressText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0.ip())?;
        match self.0 {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => match link_name(v6.scope_id()) {
                Some(link) => write!(out, "%{link}"),
                None => write!(out, "%{}", v6.scope_id()),
            },
            _ => Ok(()),
        }
    }
}

/// Azure's own resolver (its "wire server"): in a Corefile it stands for the name servers of the
/// node's network.
pub const WIRE_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16));
/// The addresses of AKS LocalDNS: as upstreams they would be this server.
const PRODUCTION: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(169, 254, 10, 10)), IpAddr::V4(Ipv4Addr::new(169, 254, 10, 11))];

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(ip: IpAddr) -> bool {
        ip == IpAddr::from([10, 96, 0, 20])
    }

    #[test]
    fn unusable_servers_are_left_out() {
        for (text, servers, left_out) in [
            ("", "", &[][..]),
            ("nameserver 10.0.0.4\nnameserver fd00::4\nnameserver 10.0.0.4\n", "10.0.0.4 fd00::4", &[]),
            ("nameserver 169.254.10.10\nnameserver 10.0.0.1\n", "10.0.0.1", &["169.254.10.10"]),
            (
                "nameserver 127.0.0.53\nnameserver 10.96.0.20\nnameserver ::1\nnameserver 0.0.0.0\nnameserver ff02::fb\n",
                "",
                &["127.0.0.53", "10.96.0.20", "::1", "0.0.0.0", "ff02::fb"],
            ),
            (
                "nameserver ::ffff:127.0.0.53\nnameserver 169.254.169.253\n",
                "169.254.169.253",
                &["127.0.0.53"],
            ),
            ("nameserver 168.63.129.16\n", "168.63.129.16", &[]),
            ("nameserver ::ffff:10.0.0.4\nnameserver 10.0.0.4\n", "10.0.0.4", &[]),
            ("nameserver fe80::4%lo\nnameserver fe80::4%1\n", "fe80::4%lo", &[]),
            ("nameserver fe80::4%99\nnameserver fe80::4\n", "fe80::4%99", &["fe80::4"]),
        ] {
            let usable = Usable::of_resolv_conf(text, &ours);
            assert_eq!(ListText(&usable.servers).to_string(), servers, "{text:?}");
            let out: Vec<_> = usable.left_out.iter().map(ToString::to_string).collect();
            assert_eq!(out, left_out, "{text:?}");
        }
    }

    /// Invalid and unusable words of the text are left out.
    #[test]
    fn list_round_trip() {
        let list = Usable::of_list("10.0.0.4 fd00::4\n", &ours).servers;
        assert_eq!(ListText(&list).to_string(), "10.0.0.4 fd00::4");
        assert_eq!(Usable::of_list(&ListText(&list).to_string(), &ours).servers, list);
        let linked = Usable::of_list("fe80::4%lo fe80::5%99 fe80::6 10.0.0.4", &ours).servers;
        assert_eq!(ListText(&linked).to_string(), "fe80::4%lo fe80::5%99 10.0.0.4");
        assert_eq!(Usable::of_list(&ListText(&linked).to_string(), &ours).servers, linked);
        assert_eq!(Usable::of_list("so 10.0.0 \"\" 169.254.10.11", &ours).servers, []);
        let long: String = (0..100).map(|at| format!("192.0.2.{at} ")).collect();
        assert_eq!(Usable::of_list(&long, &ours).servers.len(), MAX_NAME_SERVERS);
    }

    /// Merged lists have no duplicates and stay within the limit.
    #[test]
    fn merged_lists_have_no_duplicates() {
        let list = |text: &str| Usable::of_list(text, &ours);
        let both = list("10.0.0.4 127.0.0.1 10.0.0.5").and(list("10.0.0.5 10.0.0.6 169.254.10.10"));
        assert_eq!(ListText(&both.servers).to_string(), "10.0.0.4 10.0.0.5 10.0.0.6");
        assert_eq!(both.left_out.len(), 2);
        let long = |net: u8| (0..10).map(|at| format!("192.0.{net}.{at} ")).collect::<String>();
        assert_eq!(list(&long(1)).and(list(&long(2))).servers.len(), MAX_NAME_SERVERS);
    }

    #[test]
    fn only_another_list_is_a_change() {
        let list = |text| Usable::of_list(text, &ours).servers;
        let upstreams = Upstreams::new(&list("10.0.0.4"));
        assert!(!upstreams.set(&list("10.0.0.4")));
        assert!(upstreams.set(&list("10.0.0.5 10.0.0.4")));
        assert_eq!((upstreams.changes(), upstreams.list().len()), (1, 2));
    }
}
