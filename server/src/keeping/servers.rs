//! Whom to ask for names that are kept: never ourselves, or we would hear what we said.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use wire::Name;

use crate::house::House;
use crate::plugin::forward::{is_ours, read_list, read_resolv_conf};

/// The servers to ask, in order: `via`, else those of /etc/localdns/upstream-dns, else the upstreams of the first server
/// block that forwards the root zone. TLS upstreams and our own addresses are left out; a source that has nobody else
/// gives way to the next. Blocks while a file is read.
pub(super) fn servers(via: &[SocketAddr], house: Option<&House>) -> Vec<SocketAddr> {
    let ours: Vec<SocketAddr> =
        house.iter().flat_map(|house| house.listeners.keys()).map(|endpoint| endpoint.address).collect();
    let usable = |server: &SocketAddr| !is_ours(*server, &ours) && !is_node_local(server.ip());
    let first = |servers: Vec<SocketAddr>| {
        let servers: Vec<_> = servers.into_iter().filter(usable).collect();
        (!servers.is_empty()).then_some(servers)
    };
    if !via.is_empty() {
        return first(via.to_vec()).unwrap_or_default();
    }
    let text = read_list(Path::new(LIST)).unwrap_or_default();
    first(listed(&String::from_utf8_lossy(&text)))
        .or_else(|| house.and_then(|house| first(forwarded(house))))
        .unwrap_or_default()
}

/// The system's own resolvers, without ourselves.
pub(super) fn system(house: Option<&House>) -> Vec<SocketAddr> {
    let servers = read_resolv_conf(Path::new("/etc/resolv.conf")).unwrap_or_default();
    if servers.is_empty() { Vec::new() } else { self::servers(&servers, house) }
}

/// The addresses of a list between blanks; what is no address is passed over.
fn listed(text: &str) -> Vec<SocketAddr> {
    let mut servers = Vec::new();
    for word in text.split_whitespace() {
        let server = word.parse().or_else(|_| word.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53)));
        if let Ok(server) = server
            && !servers.contains(&server)
        {
            servers.push(server);
        }
    }
    servers.truncate(refresh::MAX_SERVERS);
    servers
}

fn forwarded(house: &House) -> Vec<SocketAddr> {
    let root = house.zones.iter().filter(|zone| zone.zone == Name::ROOT);
    let Some(dial) = root.filter_map(|zone| zone.block.pipeline.dial()).next() else { return Vec::new() };
    let groups = dial.chain.groups().iter().filter(|group| group.matches(&Name::ROOT));
    let upstreams = groups.flat_map(|group| group.upstreams().to_vec());
    upstreams.filter(|upstream| upstream.tls().is_none()).map(|upstream| upstream.address()).collect()
}

/// A link-local address that this node has: a server there is ours, or leads to us, even if it is not running now.
fn is_node_local(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    link_local && node::has_address(ip)
}

/// What the node's own set-up found in the lease, space-joined.
const LIST: &str = "/etc/localdns/upstream-dns";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::tests::Scene;

    fn asked(corefile: &str, via: &[&str]) -> Vec<String> {
        let scene = Scene::new(corefile);
        let via: Vec<_> = via.iter().map(|text| text.parse().unwrap()).collect();
        servers(&via, Some(&scene.house)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_list_may_hold_anything() {
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
            refresh::MAX_SERVERS
        );
    }

    #[test]
    fn the_first_root_block_says_whom_and_it_is_never_us() {
        let corefile = "a. {\nbind 127.0.0.1\nforward . 192.0.2.9\n}\n\
                        . {\nbind 127.0.0.1\nforward . 192.0.2.1 tls://192.0.2.2 192.0.2.3:54\n}\n\
                        . {\nbind 127.0.0.2\nforward . 192.0.2.8\n}\n";
        assert_eq!(asked(corefile, &[]), ["192.0.2.1:53", "192.0.2.3:54"]);
        let via = ["127.0.0.1:53", "192.0.2.7:53", "127.0.0.2:53", "127.0.0.2:54"];
        assert_eq!(asked(corefile, &via), ["192.0.2.7:53", "127.0.0.2:54"]);
        assert_eq!(asked(corefile, &["127.0.0.1:53"]), [""; 0], "what is written is meant");
        assert_eq!(asked("a. {\nbind 127.0.0.1\nforward . 192.0.2.9\n}\n", &[]), [""; 0]);
        assert_eq!(
            asked(". {\nforward . 192.0.2.9\n}\n", &["127.0.0.1:53"]),
            [""; 0],
            "a wildcard is every address"
        );
    }
}
