//! Reports listen addresses that other programs manage, and addresses that localdns added and no
//! listener uses any more; changes neither.

use std::net::IpAddr;

use configuration::Configuration;
use node::{Diagnosis, Listener};

use super::NodeSettings;

/// Returns notes about listen addresses on other programs' links; none about an address with a
/// network's prefix (shorter than /32 or /128), which is an interface's own address.
pub(super) fn diagnoses(listeners: &[Listener], settings: &NodeSettings) -> Vec<(IpAddr, Diagnosis)> {
    let interfaces = node::interfaces().unwrap_or_default();
    let is_ours = |link: &node::Interface| link.loopback || link.name == settings.link.as_str();
    let owner = |listener: &Listener| {
        let has = |own: &node::Address| {
            own.ip == listener.address && own.prefix_bits == if own.ip.is_ipv4() { 32 } else { 128 }
        };
        let mut links = interfaces.iter().filter(|link| link.addresses.iter().any(has));
        let first = links.next()?;
        // An address that is also on our link is maintained there. But if it is on kube-ipvs0, IPVS
        // takes its queries.
        let link =
            [first].into_iter().chain(links).find(|link| link.name == IPVS || is_ours(link)).unwrap_or(first);
        let ip = listener.address;
        let diagnosis = match link.name.as_str() {
            IPVS => Diagnosis::new(
                format!(
                    "{ip} is on {IPVS}: kube-proxy is in IPVS mode, which takes the queries before this server"
                ),
                "have `bind` name a link-local address (169.254.0.0/16, fd00::/8) in its place",
            ),
            _ if is_ours(link) || !settings.adds_addresses => return None,
            name => Diagnosis::new(
                format!(
                    "{ip} is on {name}, which localdns does not manage: it is not restored if another program removes it"
                ),
                format!("remove it there, or set -link {name}"),
            ),
        };
        Some((ip, diagnosis))
    };
    listeners.iter().filter_map(owner).collect()
}

/// Returns notes about addresses that localdns added and no block binds any more. Pods that started
/// while `bind` named such an address have it in their resolv.conf.
pub(super) async fn left(configuration: &Configuration) -> Vec<(IpAddr, Diagnosis)> {
    let is_bound = |ip: IpAddr| {
        let mut own = configuration.endpoints.keys().map(|endpoint| endpoint.address.ip());
        own.any(|own| own == ip || own.is_unspecified())
    };
    let added = node::added_addresses().await.unwrap_or_default();
    let diagnoses = added.into_iter().filter(|(ip, _)| !is_bound(*ip)).map(|(ip, link)| {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let diagnosis = Diagnosis::new(
            format!(
                "{ip} is on {link}, and no block binds it: clients with it in their resolv.conf get no answer, unless another server listens there"
            ),
            format!(
                "have `bind` name it again or, once no client uses it, `ip address del {ip}/{bits} dev {link}`"
            ),
        );
        (ip, diagnosis)
    });
    diagnoses.collect()
}

/// The link with all service addresses if kube-proxy is in IPVS mode.
pub(super) const IPVS: &str = "kube-ipvs0";
