//! Runs one round of probes, and evaluates the result.

use std::net::IpAddr;
use std::sync::Arc;

use node::{Diagnosis, Listener};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{LeaseThread, patience};
use crate::iptables::KeptRules;
use crate::self_probe::{self, DNS_PORT, ProbeFailure, ProbeOptions};
use crate::{RuleSet, is_clusters_without_us, is_link_local};
use configuration::Configuration;
use listen::ServerState;
use plugin::endpoint::Endpoint;

impl LeaseThread {
    /// Probes the listeners; returns the addresses that did not answer, with the reason.
    pub(super) async fn probe(
        &self,
        running: &Arc<ServerState>,
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
                // Concurrently: a slow UDP probe must not use up the time of the TCP probe.
                let (udp, stream) = tokio::join!(
                    self_probe::udp(&running, endpoint, readers, &query, &manner, until),
                    self_probe::stream(&running, endpoint, &query, &manner, until),
                );
                (address, udp.and(stream))
            });
        }
        heard(asked, listeners).await
    }

    /// Returns the addresses left to the cluster's own DNS until all plugins have been ready once,
    /// with the reason. Until then this server would return SERVFAIL where the cluster's DNS has
    /// the answer.
    pub(super) fn left_to_cluster(
        &mut self,
        running: &ServerState,
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
        // Only the plugin's name is kept: the rest of the reason may differ each time.
        let plugin = missing.split(':').next().unwrap_or_default();
        let why = format!("{plugin} has not listed its objects yet: the cluster's DNS answers meanwhile");
        let silent = ProbeFailure { why, is_taken: false };
        let of_cluster = |ip: &IpAddr| is_clusters_without_us(*ip, self.settings.fallback);
        listeners.iter().map(|one| one.address).filter(of_cluster).map(|ip| (ip, silent.clone())).collect()
    }

    /// Returns the service addresses that other programs' rules redirect, if another address
    /// answers, which shows that the server works. These are addresses that do not answer while no
    /// rule of localdns exempts probes from address translation, and addresses where another
    /// process answers despite the rules, as with IPVS; the latter not in the round that writes the
    /// rules (`rules_written`). Empty if there is any other problem.
    pub(super) fn led_away(
        &self,
        listeners: &[Listener],
        silent: &[(IpAddr, ProbeFailure)],
        rules_written: bool,
    ) -> Vec<IpAddr> {
        let reaches = self.reaches_services();
        let is_taken = |silent: &ProbeFailure| silent.is_taken && !rules_written;
        let is_led =
            |(ip, silent): &(IpAddr, ProbeFailure)| !is_link_local(*ip) && (is_taken(silent) || !reaches);
        match silent.len() < listeners.len() && silent.iter().all(is_led) {
            true => silent.iter().map(|(ip, _)| *ip).collect(),
            false => Vec::new(),
        }
    }

    /// Whether rules or leases make probes arrive here despite address translation.
    fn reaches_services(&self) -> bool {
        let by_rules = || self.put.is_some() || self.iptables.as_ref().is_some_and(KeptRules::brings_probes);
        self.leases.is_some() || (matches!(self.settings.rules, RuleSet::Iptables(_)) && by_rules())
    }
}

/// Returns the note for an address with queries that other programs redirect.
pub(super) fn redirected_note(ip: IpAddr, rules: RuleSet) -> Diagnosis {
    let remedy = match rules {
        RuleSet::Nft => "fix what prevents the rules, or set -rules iptables",
        RuleSet::None => "set -rules nft or iptables",
        RuleSet::Iptables(_) => "fix what prevents the rules",
    };
    let problem = format!(
        "queries to {ip} do not arrive here: kube-proxy or another program translates this service address first"
    );
    Diagnosis::new(problem, remedy)
}

/// Returns the addresses that did not answer; an address with a panicked probe is one of them.
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
    fn panicked_probe_is_a_failure() {
        let silence = |why: &str| ProbeFailure { why: why.to_owned(), is_taken: false };
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let listeners =
            [1, 2, 3].map(|last| Listener { address: address(last), fallback: None, fails_closed: false });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut silent = runtime.block_on(async {
            let mut asked = JoinSet::new();
            asked.spawn(async { panic!("as a fault would") });
            asked.spawn(async move { (address(2), Ok(())) });
            asked.spawn(async move { (address(3), Err(silence("no server"))) });
            heard(asked, &listeners).await
        });
        silent.sort_by_key(|(ip, _)| *ip);
        let panicked = silence("the probe of 192.0.2.1 panicked");
        assert_eq!(silent, [(address(1), panicked), (address(3), silence("no server"))]);
    }
}
