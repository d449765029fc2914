//! Unmodified Corefiles from production systems.

/// AKS LocalDNS with its default profile and the hosts plugin.
pub const AKS: &str = include_str!("../fixtures/corefiles/aks-localdns.corefile");
/// The February 2026 design: one listener, hosts, sequential forward.
pub const SEED: &str = include_str!("../fixtures/corefiles/seed-localdns.corefile");
/// The cluster DNS of kubeadm.
pub const KUBEADM: &str = include_str!("../fixtures/corefiles/kubeadm.corefile");
/// The template of NodeLocal DNSCache, its variables not filled in.
pub const NODE_LOCAL: &str = include_str!("../fixtures/corefiles/node-local-dns.corefile");

/// NodeLocal DNSCache's Corefile with its variables filled in.
pub fn node_local(listen: [&str; 2], cluster_dns: &str, upstream: &str) -> String {
    NODE_LOCAL
        .replace("__PILLAR__DNS__DOMAIN__", "cluster.local")
        .replace("__PILLAR__LOCAL__DNS__", listen[0])
        .replace("__PILLAR__DNS__SERVER__", listen[1])
        .replace("__PILLAR__CLUSTER__DNS__", cluster_dns)
        .replace("__PILLAR__UPSTREAM__SERVERS__", upstream)
}
