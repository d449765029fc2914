//! Search paths of pods, as kubelet writes them to resolv.conf, for `autopath @kubernetes`.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use wire::Name;

use super::cluster::Cluster;
use plugin::search_path::{MOST_DOMAINS, MOST_SEARCH_OCTETS, SearchPaths};

/// The search paths of a cluster's pods: `NAMESPACE.svc.ZONE`, `svc.ZONE`, `ZONE`, and the domains
/// of the machine's resolv.conf.
pub(super) struct PodPaths {
    cluster: Arc<Cluster>,
    zones: Vec<Name>,
    machine: Vec<Name>,
}

impl PodPaths {
    /// Creates the search paths of a cluster's pods in these zones.
    pub(super) fn new(cluster: Arc<Cluster>, zones: Vec<Name>) -> Self {
        Self { cluster, zones, machine: machine(Path::new(RESOLV_CONF)) }
    }
}

impl SearchPaths for PodPaths {
    fn search_path(&self, name: &Name, client: IpAddr) -> Option<Vec<Name>> {
        let zones = self.zones.iter().filter(|zone| name.is_within(zone));
        let zone = zones.max_by_key(|zone| zone.label_count())?;
        let pod = self.cluster.index().certain_pod(client)?;
        let below = |labels: &str| {
            let zone = zone.to_string();
            Name::from_text(&format!("{labels}.{}", zone.trim_start_matches('.'))).ok()
        };
        let mut path = vec![below(&format!("{}.svc", pod.key.namespace))?, below("svc")?];
        path.extend([*zone].into_iter().filter(|zone| *zone != Name::ROOT));
        path.extend(&self.machine);
        Some(path)
    }
}

impl fmt::Debug for PodPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodPaths").field("zones", &self.zones).field("machine", &self.machine).finish()
    }
}

/// Returns the domains of the machine's search list, which kubelet appends to the cluster's; empty
/// if the file cannot be read.
fn machine(file: &Path) -> Vec<Name> {
    let text = files::read_with_timeout(file, LARGEST).unwrap_or_default();
    domains(&String::from_utf8_lossy(&text))
}

/// Returns the domains of a search list, as many as fit a search path besides the cluster's.
fn domains(text: &str) -> Vec<Name> {
    let mut octets = 0;
    let mut fits = |domain: &&str| {
        octets += domain.len() + 1;
        octets <= MOST_SEARCH_OCTETS
    };
    let words = node::search_list(text).into_iter().take_while(|domain| fits(domain));
    let domains = words.filter_map(|domain| Name::from_text(domain).ok());
    domains.filter(|domain| *domain != Name::ROOT).take(MOST_DOMAINS - OF_CLUSTER).collect()
}

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Maximum bytes read from a resolv.conf, which usually has some hundred.
const LARGEST: u64 = 1 << 20;
/// Number of search domains made from the cluster's zone.
const OF_CLUSTER: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_search_list_bounds() {
        let long = format!("{}.example", ["a".repeat(61).as_str(); 3].join("."));
        let list = |domain: &str, count: usize| format!("search{}", format!(" {domain}").repeat(count));
        let rows = [
            (list("example.com", 29), 29),
            (list("example.com", 40), 29),
            // 194 bytes each.
            (list(&long, 10), 10),
            (list(&long, 11), 10),
            ("search . a..b example.com".to_owned(), 1),
            (String::new(), 0),
        ];
        for (text, count) in rows {
            assert_eq!(domains(&text).len(), count, "{text}");
        }
    }
}
