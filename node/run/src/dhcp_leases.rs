//! Reads the DNS servers of DHCP leases on links with our networkd drop-in. The drop-in's
//! `UseDNS=false` keeps these servers out of the host's resolv.conf, but not out of networkd's
//! lease files.

use std::path::Path;

use crate::host_resolver;
use crate::networkd::{NETWORKD_STATE, text_of, value};

/// Returns the DNS servers of the leases on links with our drop-in, separated by spaces,
/// unfiltered, in the order of link indexes. Empty if no link has our drop-in.
pub(crate) fn dhcp_servers() -> String {
    servers_of(Path::new(NETWORKD_STATE), &host_resolver::turned_networks())
}

/// The directory of networkd's DHCP leases.
pub(crate) const DHCP_LEASES: &str = "/run/systemd/netif/leases";

fn servers_of(state: &Path, networks: &[String]) -> String {
    if networks.is_empty() {
        return String::new();
    }
    let links = std::fs::read_dir(state.join("links")).into_iter().flatten().flatten();
    let mut links: Vec<u32> = links.filter_map(|link| link.file_name().to_str()?.parse().ok()).collect();
    links.sort_unstable();
    let is_ours = |link: &u32| {
        let text = text_of(&state.join("links").join(link.to_string()));
        let file = value(&text, "NETWORK_FILE").and_then(|path| path.rsplit('/').next());
        file.is_some_and(|file| networks.iter().any(|network| network == file))
    };
    let leases = links.into_iter().filter(is_ours).take(MOST_LINKS);
    let servers = leases.filter_map(|link| {
        let text = text_of(&state.join("leases").join(link.to_string()));
        value(&text, "DNS").map(str::to_owned)
    });
    servers.collect::<Vec<_>>().join(" ")
}

/// Maximum number of links for which leases are read.
const MOST_LINKS: usize = 64;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The result is in the order of link indexes.
    #[test]
    fn only_leases_with_our_drop_in() {
        let state = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = state.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        };
        let networks = ["10-netplan-eth0.network".to_owned()];
        assert_eq!(servers_of(state.path(), &networks), "");
        let link = |file: &str| {
            format!("# This is private data. Do not parse.\nADMIN_STATE=configured\nNETWORK_FILE={file}\n")
        };
        write("links/10", &link("/run/systemd/network/10-netplan-eth0.network"));
        write("links/2", &link("/run/systemd/network/10-netplan-eth0.network"));
        write("links/3", &link("/run/systemd/network/20-other.network"));
        write("links/4", "ADMIN_STATE=unmanaged\n");
        write("links/so", &link("/run/systemd/network/10-netplan-eth0.network"));
        assert_eq!(servers_of(state.path(), &networks), "", "no lease yet");
        write("leases/2", "ADDRESS=10.0.0.4\nDNS=10.0.0.5 10.0.0.6\nNTP=10.0.0.9\n");
        write("leases/10", "MYDNS=10.9.9.9\nDNS=168.63.129.16\n");
        for other in ["3", "4", "so"] {
            write(&format!("leases/{other}"), "DNS=10.9.9.9\n");
        }
        assert_eq!(servers_of(state.path(), &networks), "10.0.0.5 10.0.0.6 168.63.129.16");
        assert_eq!(servers_of(state.path(), &[]), "", "without a drop-in the resolv.conf has them");
        write("leases/2", "ADDRESS=10.0.0.4\n");
        assert_eq!(servers_of(state.path(), &networks), "168.63.129.16");
    }
}
