//! Renews the leases of addresses that answer probes, and maintains the rules, on a thread of its
//! own.

mod commands;
mod handover_hold;
mod network_servers;
mod probes;
mod rule_reconcile;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::mpsc as std_mpsc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::host_resolver_task::{HostResolverState, HostResolverTask};
use node::{Clients, ControlCommand, Diagnosis, Leases, ListenGuard, Listener, Rules};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::aks_files::ReadCorefile;
use super::failover::ScopeWatcher;
use super::iptables::{self, KeptRules};
use super::lease_state::{AddressLease, LeaseState};
use super::{AtStop, NodeSettings, foreign_addresses, listeners};
use crate::self_probe::{DNS_PORT, ProbeFailure};
use crate::upstream_discovery::Discovery;
use commands::CommandSlot;
use configuration::Configuration;
use listen::ServerState;
use node_cache::TemplateRenderer;

/// Handle of the lease thread.
pub struct LeaseManager {
    sender: mpsc::UnboundedSender<LeaseCommand>,
    thread: JoinHandle<()>,
    state: Arc<LeaseState>,
    at_stop: AtStop,
    /// Keeps the control socket open as long as the thread runs.
    _hearing: Option<ListenGuard>,
}

/// `Some` once rules and leases are in place, with the addresses at which other programs' rules
/// redirect port 53.
pub type Readiness = Option<Vec<IpAddr>>;

/// The server's configuration and reloads, as `node status` shows them.
#[derive(Debug, Clone)]
pub struct ReloadStatus {
    /// Whether the serving configuration forwards to the name servers of the node's network.
    pub needs_list: bool,
    /// The last reload, if it failed, without text of the configuration.
    pub failure: Option<Value>,
}

/// Function that returns the current [`ReloadStatus`].
type ReloadStatusFn = Box<dyn Fn() -> ReloadStatus + Send>;

/// The extent of a stop's clean-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Another server starts at once: rules and the host-resolver setting stay, and this process
    /// does not wait for late queries.
    Restart,
    /// Addresses and rules stay, and late queries are answered.
    Failover,
    /// Late queries are answered, then rules and the link are removed.
    Clean,
}

/// A command to the lease thread.
enum LeaseCommand {
    Stop(StopMode),
    /// A command from the control socket, with its place in the bounded queue.
    ControlCommand(ControlCommand, CommandSlot),
    /// Another process takes over: keep queries in the sockets' queues until it answers, at most
    /// this long. The sender receives a message once queries are kept.
    Hold(std_mpsc::Sender<()>, Option<Duration>),
    /// The other process does not take over: continue.
    Resume,
    /// The other process has taken over.
    Leave,
}

impl LeaseManager {
    /// Starts the thread; `ready` is set once every address has answered and the rules are in
    /// place.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        running: &Arc<ServerState>,
        settings: NodeSettings,
        (read, discovery, filler): (Arc<ReadCorefile>, Discovery, Option<Arc<TemplateRenderer>>),
        reload_status: ReloadStatusFn,
        ready: watch::Sender<Readiness>,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let state = Arc::new(LeaseState::new(filler, settings.rules));
        let at_stop = settings.at_stop;
        let has_leases = settings.rules.has_leases();
        let host = HostResolverTask::new(settings.host_resolver, settings.upstreams.clone());
        let worker = LeaseThread {
            host,
            failover: ScopeWatcher::new(&settings),
            running: Arc::downgrade(running),
            settings,
            ready,
            receiver,
            state: state.clone(),
            rules: None,
            iptables: None,
            clears_tables: !has_leases,
            leases: None,
            put: None,
            put_clients: None,
            back: BTreeSet::new(),
            looked: 0,
            is_known: false,
            misplaced: None,
            unserved: None,
            reload_status,
            noted: Vec::new(),
            read,
            discovery,
            written: None,
            failed_to_write: Arc::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("lease".to_owned());
        let thread = thread.spawn(move || runtime.block_on(worker.run()))?;
        let hearing = commands::hear(sender.clone()).inspect_err(|error| {
            let note = "node: `localdns node down` cannot reach this server; stop it first";
            running.logger.warning(None, &format!("{note}: {error}"));
        });
        Ok(Self { sender, thread, state, at_stop, _hearing: hearing.ok() })
    }

    /// Returns the state of the leases.
    pub fn state(&self) -> &Arc<LeaseState> {
        &self.state
    }

    /// Returns the stop mode, which depends on systemd's job and `-at-stop`.
    pub fn ended(&self) -> StopMode {
        match (node::Job::now(), self.at_stop) {
            (node::Job::Restart, _) => StopMode::Restart,
            (_, AtStop::Failover) => StopMode::Failover,
            (_, AtStop::Clean) => StopMode::Clean,
        }
    }

    /// Releases the leases; restores the host's resolver unless `ended` is a restart; removes the
    /// rules if it is `Clean`. No new queries arrive afterwards.
    pub fn stop(self, ended: StopMode) {
        let _ = self.sender.send(LeaseCommand::Stop(ended));
        let _ = self.thread.join();
    }

    /// Keeps queries in the sockets' queues while no worker reads them, for `at_most` or, without a
    /// limit, until 2 s after the end of this process.
    pub fn hold(&self, at_most: Option<Duration>) {
        let (sender, is_held) = std_mpsc::channel();
        let _ = self.sender.send(LeaseCommand::Hold(sender, at_most));
        // The lease thread may be in a round, which takes at most `ROUND`. Without its message, the
        // leases last until they time out.
        let _ = is_held.recv_timeout(ROUND);
    }

    /// Ends [`hold`](Self::hold): this process serves on.
    pub fn resume(&self) {
        let _ = self.sender.send(LeaseCommand::Resume);
    }

    /// Releases the leases, and leaves the rules to another process.
    pub fn leave(self) {
        let _ = self.sender.send(LeaseCommand::Leave);
        let _ = self.thread.join();
    }
}

/// Addresses with problems: another program manages the address, or no server listens on it.
type Misplaced = Vec<(IpAddr, Diagnosis)>;

struct LeaseThread {
    host: HostResolverTask,
    failover: ScopeWatcher,
    running: Weak<ServerState>,
    settings: NodeSettings,
    ready: watch::Sender<Readiness>,
    receiver: mpsc::UnboundedReceiver<LeaseCommand>,
    state: Arc<LeaseState>,
    rules: Option<Rules>,
    iptables: Option<KeptRules>,
    /// Whether tables of a server with leases may exist, which conflict with this rule set.
    clears_tables: bool,
    leases: Option<Leases>,
    /// The listeners in the rules, as last written.
    put: Option<Vec<Listener>>,
    put_clients: Option<Clients>,
    /// Addresses that receive their queries again after a failover.
    back: BTreeSet<IpAddr>,
    /// [`LeaseState::looks`] at the last renewal. The counter rises with each repair of addresses:
    /// while an address is missing, its queries fail over even with a lease.
    looked: u64,
    /// Whether every plugin has been ready once.
    is_known: bool,
    /// The listeners and the counter [`LeaseState::looks`] of the last search, and the problems
    /// found: addresses on other programs' links, and leftover addresses.
    misplaced: Option<(Vec<Listener>, u64, [Misplaced; 2])>,
    /// The leftover addresses on which no other server listened, and the time of that check.
    unserved: Option<(Instant, Misplaced)>,
    reload_status: ReloadStatusFn,
    /// The notes of the last round; equal notes of the next round are not logged again.
    noted: Vec<Diagnosis>,
    read: Arc<ReadCorefile>,
    discovery: Discovery,
    /// The configuration and server list for which the files of `aks_files` were written.
    written: Option<(Weak<Configuration>, u64)>,
    /// Errors of writing the files of `aks_files`.
    failed_to_write: Arc<Mutex<Vec<Diagnosis>>>,
}

impl LeaseThread {
    async fn run(mut self) {
        if let Some(running) = self.running.upgrade() {
            self.iptables = iptables::begin(&self.settings, &running.logger);
        }
        loop {
            let Some(running) = self.running.upgrade() else { return };
            let began = Instant::now();
            if !self.state.is_let_go() {
                self.round(&running).await;
            }
            drop(running);
            let until = Instant::now() + rest(self.settings.lease, began.elapsed());
            if !self.serve_commands_until(until).await {
                return;
            }
        }
    }

    async fn round(&mut self, running: &Arc<ServerState>) {
        let configuration = running.configuration.load_full();
        self.follow(running, &configuration);
        let (listeners, mut notes) = listeners(&configuration, &self.settings);
        notes.extend(self.failed_to_write.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        notes.extend(self.state.template_problems());
        // Leases first: without their table the rules may redirect the probes below to another
        // host.
        if let Err(error) = self.open_leases(&listeners) {
            notes.push(
                Diagnosis::from(&error).context(
                    "there are neither leases nor rules: clients get no answer once this server dies",
                ),
            );
        }
        notes.extend(self.clear_tables());
        let lacking = self.leases.as_ref().and_then(|leases| rule_reconcile::lacking(leases.seen()));
        notes.extend(lacking.map(Diagnosis::without_remedy));
        let silent = self.probe(running, &configuration, &listeners).await;
        let answered = |listener: &Listener| silent.iter().all(|(ip, _)| *ip != listener.address);
        let left = self.left_to_cluster(running, &listeners);
        notes.extend(left.first().map(|(_, silent)| Diagnosis::without_remedy(silent.why.clone())));
        let is_left = |listener: &Listener| left.iter().any(|(ip, _)| *ip == listener.address);
        let good = listeners.iter().filter(|one| answered(one) && !is_left(one));
        let good: Vec<_> = good.map(|one| one.address).collect();
        // Leases are renewed before rules are written, since writing removes the handover set of
        // the previous process.
        if let Err(error) = self.renew(running, &good, &listeners) {
            notes.push(Diagnosis::from(&error).context("cannot renew leases"));
            // Reopens a dropped table at once; if that fails, the next round reports the error.
            let _ = self.open_leases(&listeners);
        }
        let failover = self.failover.now().await;
        notes.extend(failover.notes());
        // Rules are written only once all addresses answer: until then, existing rules stay.
        let had_rules = self.put.is_some();
        if (self.led_away(&listeners, &silent, false).len() == silent.len() || self.put.is_some())
            && let Err(error) = self.keep(&listeners, &failover.clients).await
        {
            self.state.count_rules(&error.to_string());
            notes.push(error.context("cannot add the rules"));
        }
        // If this round wrote the first rules, only the next round shows whether queries arrive.
        let led_away = self.led_away(&listeners, &silent, !had_rules && self.put.is_some());
        let all_answer = led_away.len() == silent.len();
        let misplaced = self.misplaced(&configuration, &listeners).await;
        let is_reported = |ip: &IpAddr| {
            misplaced.iter().any(|(address, diagnosis)| {
                address == ip && diagnosis.problem.contains(foreign_addresses::IPVS)
            })
        };
        notes.extend(
            led_away
                .iter()
                .filter(|ip| !is_reported(ip))
                .map(|ip| probes::redirected_note(*ip, self.settings.rules)),
        );
        notes.extend(misplaced.into_iter().map(|(_, diagnosis)| diagnosis));
        let here = listeners.iter().filter(|one| !led_away.contains(&one.address)).cloned();
        let ended = all_answer && self.put.is_some() && self.host.goes_on(&here.collect::<Vec<_>>()).await;
        if let HostResolverState::Failed(why) = self.host.state() {
            notes.push(why.clone().context("host lookups are not sent to this server"));
        }
        notes.extend(self.host.problems().cloned());
        // Errors of the kernel and of networkd are logged, but do not delay READY.
        if all_answer && (ended || self.put.is_none()) {
            self.ready.send_replace(Some(led_away));
        }
        if self.put.is_none() && !all_answer {
            let silent = silent.iter().map(|(_, silent)| format!("no rules yet: {}", silent.why));
            notes.extend(silent.map(Diagnosis::without_remedy));
        }
        self.note(running, &listeners, &[silent, left].concat());
        for note in &notes {
            if !self.noted.contains(note) {
                running.logger.warning(None, &format!("node: {note}"));
            }
        }
        self.noted = notes;
    }

    fn renew(
        &mut self,
        running: &ServerState,
        addresses: &[IpAddr],
        listeners: &[Listener],
    ) -> Result<(), node::NftError> {
        let Some(leases) = &mut self.leases else { return Ok(()) };
        let served: Vec<_> = listeners.iter().map(|one| one.address).collect();
        let now = Instant::now();
        let states = self.state.addresses();
        let is_held =
            |ip: &IpAddr| states.get(ip).and_then(|state| state.ends).is_some_and(|ends| ends > now);
        let (held, begin): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_held);
        drop(states);
        if !begin.is_empty() {
            // Addresses with a valid lease are renewed first, since the cleanup below may take
            // long.
            let _ = leases.renew(&held, self.settings.lease);
            // If the list cannot be read, a client that reuses the port of an old connection waits
            // until its timeout.
            let led_away = Rules::open().and_then(|mut rules| rules.led_away(begin)).unwrap_or_default();
            let _ = node::destroy_closed_connections(&led_away, DNS_PORT);
        }
        let ended = leases.end_others(&served);
        let renewed = match ended.and_then(|()| leases.renew(addresses, self.settings.lease)) {
            Ok(renewed) => renewed,
            // The table is opened again in the next round if another process changed it, or if the
            // kernel has no table owners, so that another process can change it.
            Err(error) => {
                let is_ours = |leases: &Leases| {
                    leases.seen().by_owner && !matches!(error, node::NftError::Changed { .. })
                };
                self.leases = self.leases.take().filter(is_ours);
                return Err(error);
            }
        };
        // The kernel started the timeout between the request and now. Counted from now, a lease
        // counts as ended only once that is certain.
        let ends = Instant::now() + self.settings.lease.unwrap_or(OPEN_ENDED);
        let looks = self.state.looks();
        let one_was_gone = std::mem::replace(&mut self.looked, looks) != looks;
        let mut states = self.state.addresses();
        for address in addresses {
            let state = states.entry(*address).or_default();
            if one_was_gone || state.ends.is_none_or(|ends| ends <= renewed) {
                self.back.insert(*address);
            }
            // The lease timed out before this renewal, for example because the whole process hung:
            // count it as lost.
            if state.ends.is_some_and(|ends| ends <= renewed) {
                log_lost(running, *address, state, LATE);
            }
            state.ends = Some(ends);
        }
        Ok(())
    }

    /// Logs the leases that ended and the leases that are held again, and stores the probes'
    /// results.
    fn note(&self, running: &ServerState, listeners: &[Listener], silent: &[(IpAddr, ProbeFailure)]) {
        let now = Instant::now();
        let mut states = self.state.addresses();
        states.retain(|ip, _| listeners.iter().any(|listener| listener.address == *ip));
        for listener in listeners {
            let ip = listener.address;
            let state = states.entry(ip).or_default();
            match state.ends {
                // Also if `held` is not set yet.
                Some(ends) if ends <= now => {
                    let why = silent.iter().find(|(address, _)| *address == ip);
                    log_lost(running, ip, state, why.map_or(LATE, |(_, silent)| &silent.why));
                }
                Some(_) if !state.held => {
                    state.held = true;
                    running.logger.info(None, &format!("node: queries to {ip} are answered here"));
                }
                _ => {}
            }
            state.silent =
                silent.iter().find(|(address, _)| *address == ip).map(|(_, silent)| silent.why.clone());
            state.probed = Some(now);
        }
    }

    async fn stop(&mut self, ended: StopMode) {
        // Rules are removed before leases: rules without a lease would redirect clients that this
        // server still answers.
        if let (StopMode::Clean, Some(rules)) = (ended, &mut self.rules) {
            let _ = rules.remove();
        }
        if let (StopMode::Clean, Some(kept)) = (ended, self.iptables.take())
            && let Err(error) = kept.remove().await
            && let Some(running) = self.running.upgrade()
        {
            let remedy = "`localdns node down` tries again";
            running.logger.warning(None, &format!("node: iptables rules remain: {error}; {remedy}"));
        }
        if let Some(leases) = self.leases.take() {
            // If the kernel refuses, the leases time out.
            let _ = leases.give_up();
        }
        if ended == StopMode::Restart {
            return;
        }
        let failed = self.host.take_back().await;
        if let Some(running) = self.running.upgrade() {
            for error in failed {
                let remedy = "`localdns node down` tries again";
                running.logger.warning(
                    None,
                    &format!("node: host lookups are still sent to this server: {error}; {remedy}"),
                );
            }
        }
    }
}

/// Counts and logs a lease that ended while the server was running.
fn log_lost(running: &ServerState, ip: IpAddr, state: &mut AddressLease, why: &str) {
    state.lost += 1;
    (state.held, state.ends) = (false, None);
    running.logger.error(None, &format!("node: the lease of {ip} ended: {why}"));
}

/// Returns the pause after a round that took `took`. Rounds begin a third of the lease apart, and a
/// round that took longer is followed at once, so that one round may fail.
fn rest(lease: Option<Duration>, took: Duration) -> Duration {
    lease.map_or(WITHOUT_LEASE, |lease| lease / 3).saturating_sub(took)
}

/// Time limit of a round's probes.
fn patience(lease: Option<Duration>) -> Duration {
    lease.map_or(PATIENCE, |lease| lease / 2)
}

/// Reason for the loss of a lease although the address answers.
const LATE: &str = "a round took too long";
/// Stands for a lease without timeout, which ends with its table.
const OPEN_ENDED: Duration = Duration::from_secs(u32::MAX as u64);
/// Interval of rounds without leases.
const WITHOUT_LEASE: Duration = Duration::from_secs(1);
/// Time limit of a round's probes without leases.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time limit of a round, changes of rules included.
const ROUND: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_may_fail() {
        let lease = Some(NodeSettings::LEASE);
        // The first round renews at its end, the second fails as late as possible, and the third
        // may take a twelfth of the lease.
        let failed = rest(lease, Duration::ZERO) + patience(lease);
        let third = rest(lease, patience(lease)) + NodeSettings::LEASE / 12;
        assert!(failed + third < NodeSettings::LEASE, "{failed:?} and {third:?}");
    }
}
