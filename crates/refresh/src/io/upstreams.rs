//! The servers for refreshed names: never this server, which would return its own answers.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::WrittenServer;

/// The server's addresses and upstreams.
#[derive(Debug, Clone, Default)]
pub struct Upstreams {
    /// Its listen addresses, which are never queried.
    pub ours: Vec<SocketAddr>,
    /// The plain-DNS upstreams of its first block that forwards the root zone.
    pub forwarded: Vec<SocketAddr>,
}

/// The servers to ask, in order: `via`, else those of /etc/localdns/upstream-dns, else the upstreams of the first server
/// block that forwards the root zone, without those over TLS. Our own addresses are left out; a source without other servers is
/// skipped. Blocks while a file is read.
pub(super) fn servers<S: Clone + Into<WrittenServer>>(
    via: &[S],
    upstreams: &Upstreams,
) -> Vec<WrittenServer> {
    let usable = |server: &WrittenServer| {
        !node::leads_to(server.address, &upstreams.ours) && !is_node_local(server.address.ip())
    };
    if !via.is_empty() {
        return via.iter().cloned().map(Into::into).filter(usable).collect();
    }
    let first = |servers: Vec<SocketAddr>| {
        let servers: Vec<_> = servers.into_iter().map(WrittenServer::from).filter(usable).collect();
        (!servers.is_empty()).then_some(servers)
    };
    let text = files::read_with_timeout(Path::new(LIST), MAX_LIST).unwrap_or_default();
    first(listed(&String::from_utf8_lossy(&text)))
        .or_else(|| first(upstreams.forwarded.clone()))
        .unwrap_or_default()
}

/// The system's resolvers, without this server.
pub(super) fn system(upstreams: &Upstreams) -> Vec<WrittenServer> {
    let text = files::read_with_timeout(Path::new("/etc/resolv.conf"), MAX_LIST).unwrap_or_default();
    let servers = node::name_servers(&String::from_utf8_lossy(&text));
    if servers.is_empty() { Vec::new() } else { self::servers(&servers, upstreams) }
}

/// Parses a list of addresses separated by blanks; other words are skipped.
fn listed(text: &str) -> Vec<SocketAddr> {
    let mut servers = Vec::new();
    for word in text.split_whitespace() {
        if let Some(server) = node::socket_address(word, 53)
            && !servers.contains(&server)
        {
            servers.push(server);
        }
    }
    servers.truncate(stub_resolver::MAX_SERVERS);
    servers
}

/// Whether this node has the link-local address: a server there is localdns, or forwards to it,
/// even if it is not running now.
fn is_node_local(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    link_local && node::has_address(ip)
}

/// The file of the DHCP lease's servers, separated by blanks, which the node's set-up writes.
const LIST: &str = "/etc/localdns/upstream-dns";
/// Maximum size of the list in bytes; it has some hundred.
const MAX_LIST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_parsing() {
        for (text, servers) in [
            ("", &[][..]),
            ("10.0.0.1 10.0.0.2\n", &["10.0.0.1:53", "10.0.0.2:53"]),
            (
                "10.0.0.1 10.0.0.1 nonsense 10.0.0.256 ::1 10.0.0.3:54",
                &["10.0.0.1:53", "[::1]:53", "10.0.0.3:54"],
            ),
        ] {
            assert_eq!(listed(text).iter().map(ToString::to_string).collect::<Vec<_>>(), servers, "{text:?}");
        }
        assert_eq!(
            listed(&(1..99).map(|n| format!("10.0.0.{n} ")).collect::<String>()).len(),
            stub_resolver::MAX_SERVERS
        );
    }

    #[test]
    fn own_addresses_are_left_out() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let asked = |ours: &str, via: &[&str]| {
            let upstreams =
                Upstreams { ours: vec![at(ours)], forwarded: vec![at("192.0.2.9:53"), at("127.0.0.1:53")] };
            let via: Vec<_> = via.iter().map(|text| at(text)).collect();
            servers(&via, &upstreams).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let via = ["127.0.0.1:53", "192.0.2.7:53", "127.0.0.2:53", "127.0.0.2:54"];
        assert_eq!(asked("127.0.0.1:53", &via), ["192.0.2.7:53", "127.0.0.2:53", "127.0.0.2:54"]);
        assert_eq!(asked("127.0.0.1:53", &["127.0.0.1:53"]), [""; 0], "what is written is meant");
        assert_eq!(asked("0.0.0.0:53", &["127.0.0.1:53"]), [""; 0], "a wildcard is every address");
        assert_eq!(asked("127.0.0.1:53", &[]), ["192.0.2.9:53"]);
    }
}
