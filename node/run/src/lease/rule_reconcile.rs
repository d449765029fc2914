//! Rules and leases as they are to be, and what is told of addresses that are not ours to keep.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use configuration::Configuration;
use node::{Clients, DeathDetection, Leases, Listener, Rules, TableState};

use tokio::time::Instant;

use super::LeaseThread;
use crate::iptables::{self, KeptRules};
use crate::self_probe::DNS_PORT;
use crate::{NodeSettings, RuleSet, foreign_addresses};

impl LeaseThread {
    /// What is to be told of addresses on others' links, and of those that we left where nobody serves them; looked up when the
    /// addresses change, or one may have been moved, for others' links may have all services'. Another server may come to those that
    /// we left, and go.
    pub(super) async fn misplaced(
        &mut self,
        configuration: &Configuration,
        listeners: &[Listener],
    ) -> Vec<(IpAddr, String)> {
        let looks = self.state.looks();
        if self.misplaced.as_ref().is_none_or(|(of, at, _)| of != listeners || *at != looks) {
            let (told, left) = (
                foreign_addresses::told(listeners, &self.settings),
                foreign_addresses::left(configuration).await,
            );
            self.misplaced = Some((listeners.to_vec(), looks, [told, left]));
            self.unserved = None;
        }
        let Some((_, _, [told, left])) = &self.misplaced else { return Vec::new() };
        if !left.is_empty() && self.unserved.as_ref().is_none_or(|(at, _)| at.elapsed() >= UNSERVED) {
            let is_served = |ip: IpAddr| node::is_taken_over_udp((ip, DNS_PORT).into());
            let unserved = left.iter().filter(|(ip, _)| !is_served(*ip)).cloned().collect();
            self.unserved = Some((Instant::now(), unserved));
        }
        let unserved = self.unserved.iter().flat_map(|(_, unserved)| unserved);
        told.iter().chain(unserved).cloned().collect()
    }

    /// Sees to it that the rules are those of now.
    pub(super) async fn keep(&mut self, listeners: &[Listener], clients: &Clients) -> Result<(), String> {
        match self.settings.rules {
            // Without leases these rules would lead all clients away.
            RuleSet::Nft if self.leases.is_none() => return Ok(()),
            RuleSet::Nft => {
                return self
                    .keep_tables(listeners, clients)
                    .map_err(|error| format!("clients get no answer once this server dies: {error}"));
            }
            RuleSet::Iptables(_) => {
                let Some(kept) = &mut self.iptables else { return Ok(()) };
                let put_back = kept.keep(listeners).await;
                let put_back =
                    put_back.map_err(|error| format!("each query takes a conntrack entry: {error}"))?;
                self.state.put_back.fetch_add(u64::from(put_back), Relaxed);
            }
            RuleSet::None => {}
        }
        self.put = Some(listeners.to_vec());
        Ok(())
    }

    fn keep_tables(&mut self, listeners: &[Listener], clients: &Clients) -> Result<(), node::NftError> {
        if self.rules.is_none() {
            self.rules = Some(Rules::open()?);
        }
        let Some(rules) = &mut self.rules else { return Ok(()) };
        let stand = are_in_place(rules)?;
        let same = self.put.as_deref() == Some(listeners) && self.put_clients.as_ref() == Some(clients);
        if !stand || !same || !self.back.is_empty() {
            rules.take_turns(self.back.iter().copied())?;
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

    /// Sees to it that no table of a server with leases leads away whom these rules are to bring here; what keeps it there.
    pub(super) fn clear_tables(&mut self) -> Option<String> {
        if !self.clears_tables {
            return None;
        }
        let own = usize::from(self.iptables.as_ref().is_some_and(KeptRules::brings_probes));
        match iptables::remove_tables_left(own) {
            Ok(is_done) => {
                self.clears_tables = !is_done;
                None
            }
            Err(error) => Some(format!(
                "rules of an earlier `-rules nft` may remain, which send queries to a fallback (see nft list ruleset): {error}"
            )),
        }
    }

    /// Sees to it that there is a table of leases, and that our probes reach these listeners whatever others translate.
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
            // The kernel knows no owners of tables: leases would outlive this process, so they get a timeout.
            self.state.outlives_us.store(true, Relaxed);
            self.settings.lease.get_or_insert(NodeSettings::LEASE);
        }
        Ok(leases)
    }
}

/// How often it is looked at whether another server has an address that we left: the kernel lists all sockets for that.
const UNSERVED: Duration = Duration::from_secs(2);

/// Whether nobody has changed the table that stays; another server of this network may, and two would change it for ever.
pub(super) fn are_in_place(rules: &mut Rules) -> Result<bool, node::NftError> {
    Ok(match rules.standing()? {
        TableState::AsPut => true,
        TableState::Changed => rules.holders()?.len() > 1,
        TableState::Missing => false,
    })
}

/// What the kernel lacks of what a death is seen by, and how it is seen all the same.
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
