//! The systemd watchdog. It probes every endpoint of this server over UDP, until every worker has
//! answered, and over TCP; an endpoint with TLS must begin a handshake, whatever clients it accepts.
//! Pings are sent only while all endpoints answer, even if timers still work. Under overload pings
//! continue, since the probes run on a separate thread.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use node::Notifier;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::next_process::{HandoverEvent, HandoverEvents};
use crate::stale_rules::redirected_by_stale_rules;
use listen::ServerState;
use node_run::Readiness;
use node_run::self_probe::{DNS_PORT, ProbeOptions, query, stream, udp};
use plugin::endpoint::{Endpoint, Transport};

/// The watchdog thread; it ends on drop.
#[derive(Debug)]
pub(crate) struct Watchdog {
    _end: oneshot::Sender<()>,
}

impl Watchdog {
    /// Starts a thread with a separate runtime, which the probed listeners cannot block.
    /// `looks_for_rules`: whether the predecessor may leave rules, and this process has none.
    ///
    /// # Errors
    /// If the kernel refuses a thread or epoll.
    pub(crate) fn start(
        running: Weak<ServerState>,
        notifier: Arc<Notifier>,
        in_place: watch::Receiver<Readiness>,
        handover: HandoverEvents,
        looks_for_rules: bool,
    ) -> std::io::Result<Self> {
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let watch = async move {
            tokio::select! {
                () = run(running, notifier, in_place, handover, looks_for_rules) => {}
                _ = ended => {}
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).stack_size(STACK);
        thread.spawn(move || runtime.block_on(watch))?;
        Ok(Self { _end: end })
    }
}

/// Sends READY once every address answers and `in_place` is set, then pings as long as all
/// addresses answer. Returns when the server ends, or after READY if systemd expects no pings.
async fn run(
    running: Weak<ServerState>,
    notifier: Arc<Notifier>,
    mut in_place: watch::Receiver<Readiness>,
    handover: HandoverEvents,
    looks_for_rules: bool,
) {
    // The sender is dropped only when the server ends, which the loop detects by `running`.
    let _ = in_place.wait_for(Option::is_some).await;
    let (mut ready, mut is_logged) = (false, false);
    loop {
        let Some(server) = running.upgrade() else { return };
        let led_away = in_place.borrow().clone().unwrap_or_default();
        let answered = probe(&server, &led_away).await;
        let pause = match (&answered, notifier.watchdog_interval()) {
            (Ok(()), Some(interval)) => interval / 3,
            (Ok(()), None) => Duration::ZERO,
            (Err(_), _) => RETRY,
        };
        if let (Err(silent), false) = (&answered, is_logged) {
            is_logged = log_stale_rules(&server, silent);
        }
        match answered {
            Ok(()) if ready => notify(&server, "ping", notifier.ping()),
            Ok(()) => {
                ready = true;
                let (confirm, confirmed) = oneshot::channel();
                // Without a reply, this process is ending.
                if handover.send(HandoverEvent::Settled(confirm)).is_err() || confirmed.await.is_err() {
                    return;
                }
                notify(&server, "READY", notifier.ready());
                // systemd expects no pings: no further probe is needed.
                if notifier.watchdog_interval().is_none() {
                    drop(server);
                    return if looks_for_rules && !is_logged {
                        check_stale_rules(&running).await
                    };
                }
            }
            Err(silent) if ready => server.logger.error(None, &format!("watchdog: no ping: {silent}")),
            Err(_) => {}
        }
        drop(server);
        sleep(pause).await;
    }
}

/// Checks, until the predecessor has released its last lease, whether rules of the predecessor
/// redirect this server's queries.
async fn check_stale_rules(running: &Weak<ServerState>) {
    for _ in 0..LOOKS_FOR_RULES {
        let Some(server) = running.upgrade() else { return };
        if log_stale_rules(&server, "the previous process has ended") {
            return;
        }
        drop(server);
        sleep(RETRY).await;
    }
}

/// Logs an error if rules of an ended process redirect this server's queries; returns whether they
/// do.
fn log_stale_rules(running: &ServerState, silent: &str) -> bool {
    let configuration = running.configuration.load();
    let addresses: Vec<_> = configuration.endpoints.keys().map(|endpoint| endpoint.address.ip()).collect();
    let Some(why) = redirected_by_stale_rules(&addresses) else { return false };
    running.logger.error(None, &format!("{silent}: {why}"));
    true
}

fn notify(running: &ServerState, what: &str, outcome: Result<(), node::NodeError>) {
    if let Err(error) = outcome {
        running.logger.error(None, &format!("cannot notify systemd of {what}: {error}"));
    }
}

/// Probes every listen address, except those with queries redirected elsewhere: UDP concurrently,
/// since a lost query takes time, then TCP sequentially.
///
/// # Errors
/// The address, or its worker, that did not answer.
async fn probe(running: &Arc<ServerState>, led_away: &[IpAddr]) -> Result<(), String> {
    let configuration = running.configuration.load_full();
    let until = Instant::now() + PATIENCE;
    let query: Arc<[u8]> = query(&running.shared.probe).into();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut asked = JoinSet::new();
    // The kernel spreads clients over the first `sockets` workers only, so only these can be
    // probed.
    let readers = running.workers().min(configuration.sockets);
    let is_here = |endpoint: &&Endpoint| {
        let at = endpoint.address;
        at.port() != DNS_PORT || !led_away.contains(&at.ip())
    };
    let endpoints = || configuration.endpoints.keys().filter(is_here);
    for &endpoint in endpoints().filter(|endpoint| endpoint.transport == Transport::Dns) {
        let (running, query, places) = (running.clone(), query.clone(), places.clone());
        asked.spawn(async move {
            let _place = places.acquire_owned().await;
            udp(&running, endpoint, readers, &query, &MANNER, until).await
        });
    }
    while let Some(answered) = asked.join_next().await {
        answered.map_err(|error| error.to_string())?.map_err(|silent| silent.why)?;
    }
    for &endpoint in endpoints() {
        let answered = stream(running, endpoint, &query, &MANNER, until).await;
        answered.map_err(|silent| silent.why)?;
    }
    Ok(())
}

/// Bytes of the probe thread's stack; a TLS ClientHello needs the most.
const STACK: usize = 256 * 1024;
/// Pause after a failed probe.
const RETRY: Duration = Duration::from_millis(100);
/// Number of checks, [`RETRY`] apart: the predecessor releases its leases right after this process
/// serves.
const LOOKS_FOR_RULES: u32 = 100;
/// Time limit of one round, in which every address and every worker is probed.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of concurrent probes.
const AT_ONCE: usize = 64;
/// How the watchdog probes.
const MANNER: ProbeOptions = ProbeOptions {
    mark: None,
    one_probe: Duration::from_millis(250),
    one_stream: Duration::from_millis(500),
};
