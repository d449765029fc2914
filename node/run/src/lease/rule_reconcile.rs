//! Creates and repairs rules and lease tables, and reports addresses that localdns does not manage.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use configuration::Configuration;
use node::{Clients, DeathDetection, Diagnosis, Leases, Listener, Rules, TableState};

use tokio::time::Instant;

use super::LeaseThread;
use crate::iptables::{self, KeptRules};
use crate::self_probe::DNS_PORT;
use crate::{NodeSettings, RuleSet, foreign_addresses};

impl LeaseThread {
    /// Returns problems of addresses on other programs' links, and of leftover addresses on which
    /// no server listens. The addresses are read only when they change, since a link may have the
    /// addresses of all services. Listening servers are checked at an interval.
    pub(super) async fn misplaced(
        &mut self,
        configuration: &Configuration,
        listeners: &[Listener],
    ) -> Vec<(IpAddr, Diagnosis)> {
        let looks = self.state.looks();
        if self.misplaced.as_ref().is_none_or(|(of, at, _)| of != listeners || *at != looks) {
            let (foreign, left) = (
                foreign_addresses::diagnoses(listeners, &self.settings),
                foreign_addresses::left(configuration).await,
            );
            self.misplaced = Some((listeners.to_vec(), looks, [foreign, left]));
            self.unserved = None;
        }
        let Some((_, _, [foreign, left])) = &self.misplaced else { return Vec::new() };
        if !left.is_empty() && self.unserved.as_ref().is_none_or(|(at, _)| at.elapsed() >= UNSERVED) {
            let is_served = |ip: IpAddr| node::is_taken_over_udp((ip, DNS_PORT).into());
            let unserved = left.iter().filter(|(ip, _)| !is_served(*ip)).cloned().collect();
            self.unserved = Some((Instant::now(), unserved));
        }
        let unserved = self.unserved.iter().flat_map(|(_, unserved)| unserved);
        foreign.iter().chain(unserved).cloned().collect()
    }

    /// Adds or repairs the rules of the rule set.
    pub(super) async fn keep(&mut self, listeners: &[Listener], clients: &Clients) -> Result<(), Diagnosis> {
        match self.settings.rules {
            // Without a lease table these rules would redirect all clients.
            RuleSet::Nft if self.leases.is_none() => return Ok(()),
            RuleSet::Nft => {
                return self.reconcile_tables(listeners, clients).map_err(|error| {
                    Diagnosis::from(&error).context("clients get no answer once this server dies")
                });
            }
            RuleSet::Iptables(_) => {
                let Some(kept) = &mut self.iptables else { return Ok(()) };
                let put_back = kept.keep(listeners).await;
                let put_back = put_back
                    .map_err(|error| Diagnosis::from(&error).context("each query takes a conntrack entry"))?;
                self.state.put_back.fetch_add(u64::from(put_back), Relaxed);
            }
            RuleSet::None => {}
        }
        self.put = Some(listeners.to_vec());
        Ok(())
    }

    fn reconcile_tables(&mut self, listeners: &[Listener], clients: &Clients) -> Result<(), node::NftError> {
        if self.rules.is_none() {
            self.rules = Some(Rules::open()?);
        }
        let Some(rules) = &mut self.rules else { return Ok(()) };
        let stand = are_in_place(rules)?;
        let same = self.put.as_deref() == Some(listeners) && self.put_clients.as_ref() == Some(clients);
        if !stand || !same || !self.back.is_empty() {
            rules.rotate_zones(self.back.iter().copied())?;
            rules.put(listeners, clients)?;
            self.put_clients = Some(clients.clone());
            self.back.clear();
            if !stand && self.put.is_some() {
                self.state.put_back.fetch_add(1, Relaxed);
            }
            self.put = Some(listeners.to_vec());
        }
        Ok(())
    }

    /// Removes the failover table of an earlier server with leases, which would redirect queries;
    /// returns the error, if any.
    pub(super) fn clear_tables(&mut self) -> Option<Diagnosis> {
        if !self.clears_tables {
            return None;
        }
        let own = usize::from(self.iptables.as_ref().is_some_and(KeptRules::brings_probes));
        match iptables::remove_tables_left(own) {
            Ok(is_done) => {
                self.clears_tables = !is_done;
                None
            }
            Err(error) => Some(Diagnosis::from(&error).context(
                "rules of an earlier `-rules nft` may remain, which send queries to a fallback (see nft list ruleset)",
            )),
        }
    }

    /// Opens the lease table if this is needed, and lets probes reach these listeners despite
    /// address translation.
    pub(super) fn open_leases(&mut self, listeners: &[Listener]) -> Result<(), node::NftError> {
        if self.settings.rules.has_leases() && self.leases.is_none() {
            self.leases = Some(self.new_leases()?);
        }
        let probed: Vec<_> = listeners.iter().map(|listener| listener.address).collect();
        if let Some(kept) = &mut self.iptables {
            kept.admit_probes(&probed)?;
        }
        self.leases.as_mut().map_or(Ok(()), |leases| leases.admit_probes(&probed))
    }

    fn new_leases(&mut self) -> Result<Leases, node::NftError> {
        let leases = Leases::open(self.settings.mark)?;
        if !leases.seen().by_owner {
            // The kernel has no table owners: leases would outlive this process, so they get a
            // timeout.
            self.state.outlives_us.store(true, Relaxed);
            self.settings.lease.get_or_insert(NodeSettings::LEASE);
        }
        Ok(leases)
    }
}

/// Interval of checks whether another server listens on a leftover address; for each address, the
/// kernel lists all sockets.
const UNSERVED: Duration = Duration::from_secs(2);

/// Whether the failover table is unchanged. If several servers run in this network namespace, a
/// change is accepted, since they would otherwise overwrite each other's rules forever.
pub(super) fn are_in_place(rules: &mut Rules) -> Result<bool, node::NftError> {
    Ok(match rules.standing()? {
        TableState::AsPut => true,
        TableState::Changed => rules.holders()?.len() > 1,
        TableState::Missing => false,
    })
}

/// Returns which means of detecting a server's death the kernel lacks, and when queries fail over
/// instead.
pub(super) fn lacking(seen: DeathDetection) -> Option<&'static str> {
    match (seen.by_owner, seen.by_socket) {
        (true, true) => None,
        (true, false) => Some(
            "this kernel cannot match sockets (nft_socket): queries to a socket that is closed while the server runs fail over when the lease ends",
        ),
        (false, true) => Some(
            "this kernel keeps the lease table when the server dies (it is older than 5.12): pods' queries fail over at once, by the closed socket, all others when the leases end",
        ),
        (false, false) => Some(
            "this kernel keeps the lease table when the server dies (it is older than 5.12), and cannot match sockets (nft_socket): queries fail over when the leases end",
        ),
    }
}
