//! Maintains rules in the tables of iptables, which do not fail over. They are added once every
//! address has answered.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use logging::Logger;
use node::{Iptables, Leases, Listener, NftError, Rules};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::{NodeSettings, RuleSet, peers};

/// The iptables rules of a running server.
pub(super) struct KeptRules {
    set: Iptables,
    logger: Logger,
    /// The addresses of the rules last written; `None` before the first write.
    put: Option<Vec<IpAddr>>,
    looked: Option<Instant>,
    every: Duration,
    /// A lease table without leases, which lets probes reach this server until there are rules:
    /// kube-proxy would redirect probes of a service address.
    probes: Option<Leases>,
}

impl KeptRules {
    fn new(set: Iptables, settings: &NodeSettings, logger: &Logger) -> Self {
        let probes = Leases::open(settings.mark).map_err(|error| {
            let note = "node: without nftables a service address cannot be probed before its rules exist";
            logger.warning(None, &format!("{note}: {error}"));
        });
        let every = settings.looks_every;
        Self { set, logger: logger.clone(), put: None, looked: None, every, probes: probes.ok() }
    }

    /// Whether probes reach this server although there are no rules yet.
    pub(super) fn brings_probes(&self) -> bool {
        self.probes.is_some()
    }

    /// Lets probes to these addresses through as long as there are no rules.
    pub(super) fn admit_probes(&mut self, addresses: &[IpAddr]) -> Result<(), NftError> {
        self.probes.as_mut().map_or(Ok(()), |probes| probes.admit_probes(addresses))
    }

    /// Adds missing rules, and removes those of other addresses; returns whether another program
    /// had removed some.
    pub(super) async fn keep(&mut self, listeners: &[Listener]) -> io::Result<bool> {
        let now = addresses(listeners);
        let same = self.put.as_ref() == Some(&now);
        if same && self.looked.is_some_and(|looked| !is_due(looked.elapsed(), self.every)) {
            return Ok(false);
        }
        self.looked = Some(Instant::now());
        let (set, wanted) = (self.set, now.clone());
        // New rules are added before old ones are removed, so that no query is redirected in
        // between.
        let (added, gone) = aside(move || {
            let added = set.put(&wanted)?;
            Ok((added, if same { Ok(0) } else { set.remove_others(&wanted) }))
        })
        .await?;
        log_removed(&self.logger, gone);
        self.put = Some(now);
        if let Some(probes) = self.probes.take() {
            // An error has no effect: the table ends with this process, and affects only packets of
            // probes.
            let _ = probes.give_up();
        }
        Ok(same && added > 0)
    }

    /// Removes all iptables rules that have localdns's comments.
    pub(super) async fn remove(self) -> io::Result<()> {
        aside(|| node::remove_iptables_rules().map(drop)).await
    }
}

/// Returns the iptables rules to maintain, for a rule set of iptables; other rule sets remove
/// leftover iptables rules here, if `clears_rules` is set.
pub(super) fn begin(settings: &NodeSettings, logger: &Logger) -> Option<KeptRules> {
    match settings.rules {
        RuleSet::Nft | RuleSet::None if settings.clears_rules => remove_left(logger),
        _ => {}
    }
    match settings.rules {
        RuleSet::Iptables(set) => Some(KeptRules::new(set, settings, logger)),
        RuleSet::Nft | RuleSet::None => None,
    }
}

/// Removes the rules of a killed script or server: they exempt queries from conntrack, and so from
/// the address translation to the fallback.
fn remove_left(logger: &Logger) {
    let logger = logger.clone();
    spawn_blocking(move || log_removed(&logger, node::remove_iptables_rules()));
}

fn log_removed(logger: &Logger, rules: io::Result<usize>) {
    match rules {
        Ok(0) => {}
        Ok(rules) => logger.info(None, &format!("node: removed {rules} iptables rules")),
        Err(error) => {
            let note = "node: iptables rules may remain, which keep queries from conntrack and from the fallback (see iptables-save)";
            logger.warning(None, &format!("{note}: {error}"));
        }
    }
}

/// Removes the failover table that a server with leases left, which would redirect queries, but
/// only if no process but this one, which has `own` lease tables, has any: a predecessor keeps its
/// leases until this server answers. Returns whether that is so.
pub(super) fn remove_tables_left(own: usize) -> Result<bool, NftError> {
    let tables = || {
        let mut rules = Rules::open()?;
        let is_last = rules.holders()?.len() <= own;
        if is_last && rules.are_there()? {
            rules.remove()?;
        }
        Ok(is_last)
    };
    match tables() {
        // Without nftables there are no tables.
        Err(NftError::NotSupported { .. }) => Ok(true),
        tried => tried,
    }
}

/// Adds the rules if a localdns answers at every address; otherwise clients would get no answer.
pub(super) fn up(set: Iptables, listeners: &[Listener]) -> io::Result<String> {
    let addresses = addresses(listeners);
    if let Err(why) = peers::answer(&addresses) {
        // A killed script or server leaves its rules.
        return Ok(match set.standing(&addresses) {
            Ok((0, _)) => format!("no rules added: {why}\n"),
            Ok((there, all)) => format!(
                "no rules added: {why}; {there} of {all} remain from before, which keep queries from any other server: `localdns node down` removes them\n"
            ),
            Err(error) => {
                format!("no rules added: {why}; whether some remain is not known: {error}\n")
            }
        });
    }
    let put = set.put(&addresses)?;
    Ok(format!("{put} rules added, the others exist already\n"))
}

/// Whether all rules for these listeners exist.
pub(super) fn are_there(set: Iptables, listeners: &[Listener]) -> io::Result<bool> {
    set.are_there(&addresses(listeners))
}

/// Whether the rules are checked in this round, which is so for the round nearest to the due time.
fn is_due(since: Duration, every: Duration) -> bool {
    since + HALF_A_ROUND >= every
}

fn addresses(listeners: &[Listener]) -> Vec<IpAddr> {
    listeners.iter().map(|listener| listener.address).collect()
}

/// Runs blocking programs on a thread of the pool.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|panic| Err(io::Error::other(panic.to_string())))
}

/// Half the interval of rounds without leases.
const HALF_A_ROUND: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_round_that_is_nearest_looks() {
        let due = |since, every| is_due(Duration::from_millis(since), Duration::from_secs(every));
        for (since, every, is) in [
            (999, 1, true),
            (1001, 2, false),
            (1999, 2, true),
            (2002, 2, true),
            (59_003, 60, false),
            (59_990, 60, true),
        ] {
            assert_eq!(due(since, every), is, "{since} ms of {every} s");
        }
    }
}
