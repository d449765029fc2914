//! A round of probes, and what comes of it.

use std::net::IpAddr;
use std::sync::Arc;

use node::Listener;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{LeaseThread, patience};
use crate::iptables::KeptRules;
use crate::self_probe::{self, DNS_PORT, ProbeFailure, ProbeOptions};
use crate::{RuleSet, is_clusters_without_us, is_link_local};
use configuration::Configuration;
use listen::Running;
use plugin::endpoint::Endpoint;

impl LeaseThread {
    /// Who did not answer, and why.
    pub(super) async fn probe(
        &self,
        running: &Arc<Running>,
        configuration: &Configuration,
        listeners: &[Listener],
    ) -> Vec<(IpAddr, ProbeFailure)> {
        let patience = patience(self.settings.lease);
        let until = Instant::now() + patience;
        let manner = ProbeOptions {
            mark: Some(self.settings.mark),
            one_probe: patience / 4,
            one_stream: patience / 3,
        };
        let query: Arc<[u8]> = self_probe::query(&running.shared.probe).into();
        let readers = running.workers().min(configuration.sockets);
        let mut asked = JoinSet::new();
        for address in listeners.iter().map(|listener| listener.address) {
            let (running, query) = (running.clone(), query.clone());
            asked.spawn(async move {
                let endpoint = Endpoint::dns((address, DNS_PORT).into());
                // Together: what took all the time over UDP leaves the other way its own.
                let (udp, stream) = tokio::join!(
                    self_probe::udp(&running, endpoint, readers, &query, &manner, until),
                    self_probe::stream(&running, endpoint, &query, &manner, until),
                );
                (address, udp.and(stream))
            });
        }
        heard(asked, listeners).await
    }

    /// Addresses whose queries the cluster's own DNS gets while we do not know the cluster yet, and why: it knows what we would
    /// have to answer with SERVFAIL. Who has been known once stays so.
    pub(super) fn left_to_cluster(
        &mut self,
        running: &Running,
        listeners: &[Listener],
    ) -> Vec<(IpAddr, ProbeFailure)> {
        if self.is_known {
            return Vec::new();
        }
        let kept = running.shared.lasting.all();
        let Some(missing) = kept.iter().find_map(|kept| kept.not_ready()) else {
            self.is_known = true;
            return Vec::new();
        };
        // The plugin's name alone: why it knows nothing may be another cause each time.
        let plugin = missing.split(':').next().unwrap_or_default();
        let why = format!("{plugin} has not listed its objects yet: the cluster's DNS answers meanwhile");
        let silent = ProbeFailure { why, is_taken: false };
        let of_cluster = |ip: &IpAddr| is_clusters_without_us(*ip, self.settings.fallback);
        listeners.iter().map(|one| one.address).filter(of_cluster).map(|ip| (ip, silent.clone())).collect()
    }

    /// Services' addresses whose queries others translate before they come here, while another address proves that we serve:
    /// those that are silent where nothing brings a probe past that; and those at which somebody else answers our probes
    /// whatever we do, as IPVS has it, unless our rules `came` after these. None where that is not all that is wrong.
    pub(super) fn led_away(
        &self,
        listeners: &[Listener],
        silent: &[(IpAddr, ProbeFailure)],
        came: bool,
    ) -> Vec<IpAddr> {
        let reaches = self.reaches_services();
        let is_taken = |silent: &ProbeFailure| silent.is_taken && !came;
        let is_led =
            |(ip, silent): &(IpAddr, ProbeFailure)| !is_link_local(*ip) && (is_taken(silent) || !reaches);
        match silent.len() < listeners.len() && silent.iter().all(is_led) {
            true => silent.iter().map(|(ip, _)| *ip).collect(),
            false => Vec::new(),
        }
    }

    /// Whether a probe comes here whatever is translated.
    fn reaches_services(&self) -> bool {
        let by_rules = || self.put.is_some() || self.iptables.as_ref().is_some_and(KeptRules::brings_probes);
        self.leases.is_some() || (matches!(self.settings.rules, RuleSet::Iptables(_)) && by_rules())
    }
}

/// What is told of an address whose queries are led away.
pub(super) fn told_of(ip: IpAddr, rules: RuleSet) -> String {
    let mend = match rules {
        RuleSet::Nft => "; fix what prevents the rules, or set -rules iptables",
        RuleSet::None => "; set -rules nft or iptables",
        RuleSet::Iptables(_) => "; fix what prevents the rules",
    };
    format!(
        "queries to {ip} do not arrive here: kube-proxy or another program translates this service address first{mend}"
    )
}

/// Who is silent, and why: one whose probe did not end is silent, too.
async fn heard(
    mut asked: JoinSet<(IpAddr, Result<(), ProbeFailure>)>,
    listeners: &[Listener],
) -> Vec<(IpAddr, ProbeFailure)> {
    let (mut answered, mut silent) = (Vec::new(), Vec::new());
    while let Some(ended) = asked.join_next().await {
        match ended {
            Ok((address, Ok(()))) => answered.push(address),
            Ok((address, Err(why))) => silent.push((address, why)),
            Err(_) => {}
        }
    }
    for Listener { address, .. } in listeners {
        if !answered.contains(address) && silent.iter().all(|(other, _)| other != address) {
            let why = format!("the probe of {address} panicked");
            silent.push((*address, ProbeFailure { why, is_taken: false }));
        }
    }
    silent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_whose_probe_panics_has_not_answered() {
        let silence = |why: &str| ProbeFailure { why: why.to_owned(), is_taken: false };
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let listeners =
            [1, 2, 3].map(|last| Listener { address: address(last), fallback: None, fails_closed: false });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut silent = runtime.block_on(async {
            let mut asked = JoinSet::new();
            asked.spawn(async { panic!("as a fault would") });
            asked.spawn(async move { (address(2), Ok(())) });
            asked.spawn(async move { (address(3), Err(silence("nobody"))) });
            heard(asked, &listeners).await
        });
        silent.sort_by_key(|(ip, _)| *ip);
        let panicked = silence("the probe of 192.0.2.1 panicked");
        assert_eq!(silent, [(address(1), panicked), (address(3), silence("nobody"))]);
    }
}
