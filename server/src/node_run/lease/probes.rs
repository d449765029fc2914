//! A round of probes, and what comes of it.

use std::net::IpAddr;
use std::sync::Arc;

use node::Listener;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Worker, patience};
use crate::node_run::iptables::KeptRules;
use crate::node_run::{RuleSet, is_link_local};
use crate::watchdog::{self, DNS_PORT, Manner};
use configuration::Configuration;
use listen::{Prober, Running};
use plugin::endpoint::Endpoint;

impl Worker {
    /// Who did not answer, and why.
    pub(super) async fn probe(
        &self,
        running: &Arc<Running>,
        configuration: &Configuration,
        listeners: &[Listener],
    ) -> Vec<(IpAddr, String)> {
        let patience = patience(self.settings.lease);
        let until = Instant::now() + patience;
        let manner = Manner {
            prober: Prober::Lease,
            mark: Some(self.settings.mark),
            one_probe: patience / 4,
            one_stream: patience / 3,
        };
        let query: Arc<[u8]> = watchdog::query(&running.shared.probe).into();
        let readers = running.workers().min(configuration.sockets);
        let mut asked = JoinSet::new();
        for address in listeners.iter().map(|listener| listener.address) {
            let (running, query) = (running.clone(), query.clone());
            asked.spawn(async move {
                let endpoint = Endpoint::dns((address, DNS_PORT).into());
                (address, watchdog::udp(&running, endpoint, readers, &query, &manner, until).await)
            });
        }
        let over_tcp = async |address: IpAddr| {
            let endpoint = Endpoint::dns((address, DNS_PORT).into());
            watchdog::stream(running, endpoint, &query, &manner, until).await
        };
        heard(asked, listeners, over_tcp).await
    }

    /// Services' addresses whose queries others translate before they come here: those that are silent where nothing brings a
    /// probe past that, while another address proves that we serve. None where that is not all that is wrong.
    pub(super) fn led_away(&self, listeners: &[Listener], silent: &[(IpAddr, String)]) -> Vec<IpAddr> {
        let is_all = silent.len() < listeners.len() && silent.iter().all(|(ip, _)| !is_link_local(*ip));
        match is_all && !self.reaches_services() {
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
        RuleSet::Nft => "; mend what keeps our rules away, or choose -rules iptables",
        RuleSet::None => "; only rules change that: choose -rules nft or iptables",
        RuleSet::Iptables(_) => "; mend what keeps our rules away",
    };
    format!(
        "queries for {ip} go elsewhere: a service's address is translated, as by kube-proxy, before they come here{mend}"
    )
}

/// Who is silent over UDP or, asked then, over TCP, and why: one whose probe did not end is silent, too. Nobody waits for whom is
/// silent, whose time is all that there is.
async fn heard(
    mut asked: JoinSet<(IpAddr, Result<(), String>)>,
    listeners: &[Listener],
    over_tcp: impl AsyncFn(IpAddr) -> Result<(), String>,
) -> Vec<(IpAddr, String)> {
    let (mut answered, mut silent) = (Vec::new(), Vec::new());
    while let Some(ended) = asked.join_next().await {
        let Ok((address, over_udp)) = ended else { continue };
        match over_udp {
            Ok(()) => match over_tcp(address).await {
                Ok(()) => answered.push(address),
                Err(why) => silent.push((address, why)),
            },
            Err(why) => silent.push((address, why)),
        }
    }
    for Listener { address, .. } in listeners {
        if !answered.contains(address) && silent.iter().all(|(other, _)| other != address) {
            silent.push((*address, format!("the probe of {address} panicked")));
        }
    }
    silent
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn an_address_whose_probe_panics_has_not_answered() {
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let listeners = [1, 2, 3].map(|last| Listener { address: address(last), way_out: None });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut silent = runtime.block_on(async {
            let mut asked = JoinSet::new();
            asked.spawn(async { panic!("as a fault would") });
            asked.spawn(async move { (address(2), Ok(())) });
            asked.spawn(async move { (address(3), Err("nobody".to_owned())) });
            heard(asked, &listeners, async |_| Ok(())).await
        });
        silent.sort();
        let panicked = "the probe of 192.0.2.1 panicked".to_owned();
        assert_eq!(silent, [(address(1), panicked), (address(3), "nobody".to_owned())]);
    }
    #[test]
    fn an_address_is_asked_over_tcp_while_others_are_silent_over_udp() {
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let listeners = [1, 2].map(|last| Listener { address: address(last), way_out: None });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let silent = runtime.block_on(async {
            let (over_tcp, is_asked) = tokio::sync::watch::channel(None);
            let mut asked = JoinSet::new();
            asked.spawn(async move { (address(1), Ok(())) });
            let mut hears = is_asked.clone();
            asked.spawn(async move {
                let _ = timeout(Duration::from_secs(10), hears.wait_for(Option::is_some)).await;
                (address(2), Err("nobody".to_owned()))
            });
            let tcp = async |address: IpAddr| {
                over_tcp.send_replace(Some(address));
                Ok(())
            };
            let silent = heard(asked, &listeners, tcp).await;
            assert_eq!(*is_asked.borrow(), Some(address(1)));
            silent
        });
        assert_eq!(silent, [(address(2), "nobody".to_owned())]);
    }
}
