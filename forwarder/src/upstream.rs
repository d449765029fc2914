//! One upstream as workers, probes and stanzas share it: health, round-trip time, EDNS state,
//! counters. No lock, no I/O.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use wire::Name;

use crate::congestion::{Congestion, RTT_MAX};
use crate::edns_capability::EdnsState;
use crate::{TlsSettings, UpstreamMetrics};
use client_quota::ClientQuota;

/// A DNS server that queries are forwarded to, at one address over one kind of transport.
#[derive(Debug)]
pub struct Upstream {
    id: u32,
    address: SocketAddr,
    tls: Option<Arc<TlsSettings>>,
    source: Option<IpAddr>,
    epoch: Instant,
    probes: mpsc::UnboundedSender<ProbeRequest>,
    udp: PathState,
    stream: PathState,
    edns: EdnsState,
    metrics: UpstreamMetrics,
    /// Quota of queries on the upstream's connections; created at first use.
    stream_places: LazyLock<ClientQuota>,
}

/// The path by which an upstream is queried. The state of one path does not affect the other: a
/// firewall may drop one of them, and a connection takes round trips that a datagram does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamPath {
    /// Datagrams.
    Udp,
    /// TCP or TLS.
    Stream,
}

/// The state of an upstream over one path.
#[derive(Debug)]
struct PathState {
    congestion: Congestion,
    /// Probes that failed in a row.
    fails: AtomicU32,
    probing: AtomicBool,
    /// Hedges lost in a row, and the time of the last one, in milliseconds since the epoch.
    losses: AtomicU32,
    lost_at: AtomicU64,
    /// When the next trial may be sent while it is suspect, in milliseconds since the epoch.
    trial_at: AtomicU64,
}

impl PathState {
    fn new() -> Self {
        Self {
            congestion: Congestion::new(),
            fails: AtomicU32::new(0),
            probing: AtomicBool::new(false),
            losses: AtomicU32::new(0),
            lost_at: AtomicU64::new(0),
            trial_at: AtomicU64::new(0),
        }
    }
}

impl Upstream {
    /// Returns the upstream's number, unique in the process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the upstream's address and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the TLS settings; `None`: plain DNS.
    pub fn tls(&self) -> Option<&Arc<TlsSettings>> {
        self.tls.as_ref()
    }

    /// Returns the local address of queries to the upstream; `None`: the kernel's choice.
    pub fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// Returns the upstream's counters.
    pub fn metrics(&self) -> &UpstreamMetrics {
        &self.metrics
    }

    /// Returns the path of a query to the upstream; `tcp`: over TCP even without TLS.
    #[inline]
    pub(crate) fn path(&self, tcp: bool) -> UpstreamPath {
        if tcp || self.tls.is_some() { UpstreamPath::Stream } else { UpstreamPath::Udp }
    }

    fn state(&self, path: UpstreamPath) -> &PathState {
        match path {
            UpstreamPath::Udp => &self.udp,
            UpstreamPath::Stream => &self.stream,
        }
    }

    /// Returns the number of probes that failed in a row.
    pub fn fails(&self, path: UpstreamPath) -> u32 {
        self.state(path).fails.load(Ordering::Relaxed)
    }

    /// Whether the upstream is down for a stanza with this `max_fails`.
    #[inline]
    pub fn is_down(&self, path: UpstreamPath, max_fails: u32) -> bool {
        max_fails != 0 && self.fails(path) > max_fails
    }

    /// Returns the smoothed round-trip time; `None` while unknown.
    pub fn srtt(&self, path: UpstreamPath) -> Option<Duration> {
        self.congestion(path).srtt()
    }

    /// Returns the number of outstanding queries, and its bound while there is a standing queue.
    pub fn outstanding(&self, path: UpstreamPath) -> (u32, Option<u32>) {
        self.congestion(path).outstanding()
    }

    pub(crate) fn congestion(&self, path: UpstreamPath) -> &Congestion {
        &self.state(path).congestion
    }

    /// Notes an answer to a query that was sent `rtt` ago: the upstream is alive. For `is_copy` see
    /// [`Congestion::replied`].
    pub(crate) fn replied(&self, path: UpstreamPath, now: Instant, rtt: Duration, is_copy: bool) {
        let state = self.state(path);
        let now = self.micros(now);
        state.congestion.replied(now.saturating_sub(rtt.as_micros() as u64), now, is_copy);
        if state.losses.load(Ordering::Relaxed) != 0 {
            state.losses.store(0, Ordering::Relaxed);
        }
        if state.fails.load(Ordering::Relaxed) != 0 {
            state.fails.store(0, Ordering::Relaxed);
        }
    }

    /// Notes a failed exchange: the upstream is probed until it replies, unless it is probed
    /// already or `max_fails` is 0.
    pub(crate) fn failed(self: &Arc<Self>, path: UpstreamPath, max_fails: u32, check: &HealthCheck) {
        let state = self.state(path);
        if max_fails == 0 || state.probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let request = ProbeRequest { upstream: Arc::downgrade(self), path, check: check.clone() };
        if self.probes.send(request).is_err() {
            // The probing task has ended: the server is stopping.
            state.probing.store(false, Ordering::Relaxed);
        }
    }

    /// Notes a lost hedge: another upstream replied first.
    pub(crate) fn lost(&self, path: UpstreamPath, now: Instant) {
        let state = self.state(path);
        state.losses.fetch_add(1, Ordering::Relaxed);
        state.lost_at.store(self.millis(now), Ordering::Relaxed);
    }

    /// Whether the upstream lost so many hedges in a row, so recently, that others are tried first.
    pub(crate) fn is_suspect(&self, path: UpstreamPath, now: Instant) -> bool {
        let state = self.state(path);
        state.losses.load(Ordering::Relaxed) >= SUSPECT_LOSSES
            && self.millis(now).saturating_sub(state.lost_at.load(Ordering::Relaxed)) < SUSPECT_MS
    }

    /// Whether a copy of a query may be sent now to see whether a suspect answers again; true at
    /// most every 250 ms over all workers.
    pub(crate) fn take_trial(&self, path: UpstreamPath, now: Instant) -> bool {
        let trial_at = &self.state(path).trial_at;
        let (now, due) = (self.millis(now), trial_at.load(Ordering::Relaxed));
        now >= due
            && trial_at.compare_exchange(due, now + TRIAL_MS, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Returns the quota of queries on the upstream's connections, over all workers.
    pub(crate) fn stream_places(&self) -> &ClientQuota {
        &self.stream_places
    }

    /// Returns the upstream's EDNS state.
    pub(crate) fn edns(&self) -> &EdnsState {
        &self.edns
    }

    /// Notes the end of a probe of [`crate::health::run`]; returns whether another one is due.
    pub fn probed(&self, path: UpstreamPath, healthy: bool) -> bool {
        let state = self.state(path);
        if healthy {
            state.fails.store(0, Ordering::Relaxed);
            state.probing.store(false, Ordering::Relaxed);
        } else {
            // The count saturates, for an upstream may be down for years.
            let _ =
                state.fails.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |fails| fails.checked_add(1));
            self.metrics.healthcheck_failures.add_shared(1);
        }
        !healthy
    }

    /// Converts a time to that of [`Congestion`], in microseconds.
    pub(crate) fn micros(&self, now: Instant) -> u64 {
        // The query of the first reply may have been sent before the epoch.
        (now.saturating_duration_since(self.epoch) + RTT_MAX).as_micros() as u64
    }

    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_millis() as u64
    }
}

/// All upstreams in use, so that health, counters and connections survive a reload.
#[derive(Debug)]
pub struct Registry {
    epoch: Instant,
    probes: mpsc::UnboundedSender<ProbeRequest>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    upstreams: Vec<Weak<Upstream>>,
    next_id: u32,
}

impl Registry {
    /// Creates an empty registry, and the queue of probe requests for [`crate::health::run`].
    pub fn new(now: Instant) -> (Self, ProbeRequests) {
        let (probes, requests) = mpsc::unbounded_channel();
        (Self { epoch: now, probes, known: Mutex::default() }, ProbeRequests(requests))
    }

    /// Returns the upstream at `address` with these TLS settings (equal by content) and this source
    /// address: the one in use, or a new one.
    pub fn upstream(
        &self,
        address: SocketAddr,
        tls: Option<Arc<TlsSettings>>,
        source: Option<IpAddr>,
    ) -> Arc<Upstream> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.upstreams.retain(|upstream| upstream.strong_count() > 0);
        let same = |upstream: &Arc<Upstream>| {
            upstream.address == address && upstream.tls == tls && upstream.source == source
        };
        if let Some(found) = known.upstreams.iter().filter_map(Weak::upgrade).find(same) {
            return found;
        }
        let upstream = Arc::new(Upstream {
            id: known.next_id,
            address,
            tls,
            source,
            epoch: self.epoch,
            probes: self.probes.clone(),
            udp: PathState::new(),
            stream: PathState::new(),
            edns: EdnsState::new(self.epoch),
            metrics: UpstreamMetrics::default(),
            stream_places: LazyLock::new(|| ClientQuota::new(STREAM_PLACES)),
        });
        known.next_id = known.next_id.wrapping_add(1);
        known.upstreams.push(Arc::downgrade(&upstream));
        upstream
    }

    /// Returns the upstreams in use, for the collector. Two may share an address (plain and TLS, or
    /// different sources).
    pub fn upstreams(&self) -> Vec<Arc<Upstream>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.upstreams.iter().filter_map(Weak::upgrade).collect()
    }
}

/// `health_check DURATION [no_rec] [domain FQDN]`.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    /// Time between two probes. Default 0.5 s, min 10 ms.
    pub interval: Duration,
    /// Whether probes set RD. Default yes; `no_rec` clears it.
    pub recursion: bool,
    /// Name of the probe's NS query. Default the root.
    pub domain: Name,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self { interval: Duration::from_millis(500), recursion: true, domain: Name::ROOT }
    }
}

/// A request to probe an upstream over one path until it replies.
#[derive(Debug)]
pub struct ProbeRequest {
    pub(crate) upstream: Weak<Upstream>,
    pub(crate) path: UpstreamPath,
    pub(crate) check: HealthCheck,
}

/// The queue of probe requests; at most one per upstream and path waits.
#[derive(Debug)]
pub struct ProbeRequests(pub(crate) mpsc::UnboundedReceiver<ProbeRequest>);

#[cfg(feature = "testing")]
impl ProbeRequests {
    /// Takes the next request, if one waits.
    pub fn try_next(&mut self) -> Option<ProbeRequest> {
        self.0.try_recv().ok()
    }
}

/// One lost hedge is a lost packet; three in a row, without a reply in between, are a silent
/// upstream.
const SUSPECT_LOSSES: u32 = 3;
/// How long lost hedges make an upstream suspect, in milliseconds: long enough that trials (every
/// 250 ms) renew the suspicion while there is traffic, short enough that it expires without
/// traffic.
const SUSPECT_MS: u64 = 2_000;
const TRIAL_MS: u64 = 250;

/// Queries of one client on the connections to an upstream at a time; all clients together have a
/// quarter more.
pub(crate) const STREAM_PLACES: u32 = 1_636;

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::disallowed_methods, reason = "a test's time begins at any moment")]
    fn registry() -> (Registry, ProbeRequests, Instant) {
        let now = Instant::now();
        let (registry, requests) = Registry::new(now);
        (registry, requests, now)
    }

    /// One address is one upstream while any stanza holds it.
    #[test]
    fn upstream_is_shared_while_held() {
        let (registry, _requests, _) = registry();
        let address = "192.0.2.1:53".parse().unwrap();
        let first = registry.upstream(address, None, None);
        assert!(Arc::ptr_eq(&first, &registry.upstream(address, None, None)));
        let id = first.id();
        drop(first);
        assert_ne!(registry.upstream(address, None, None).id(), id);
    }

    #[test]
    fn a_failure_asks_for_one_probe_until_that_is_answered() {
        let (registry, mut requests, _) = registry();
        let upstream = registry.upstream("192.0.2.1:53".parse().unwrap(), None, None);
        let check = HealthCheck::default();
        upstream.failed(UpstreamPath::Udp, 0, &check);
        assert!(requests.0.try_recv().is_err(), "max_fails 0 is never probed");
        upstream.failed(UpstreamPath::Udp, 2, &check);
        upstream.failed(UpstreamPath::Udp, 2, &check);
        assert!(requests.0.try_recv().is_ok());
        assert!(requests.0.try_recv().is_err());
        for (healthy, down) in [(false, false), (false, false), (false, true), (true, false)] {
            assert_eq!(upstream.probed(UpstreamPath::Udp, healthy), !healthy);
            assert_eq!(upstream.is_down(UpstreamPath::Udp, 2), down);
            assert!(!upstream.is_down(UpstreamPath::Udp, 0));
        }
        upstream.failed(UpstreamPath::Udp, 2, &check);
        assert!(requests.0.try_recv().is_ok());
    }

    #[test]
    fn a_suspect_is_one_that_lost_three_times_of_late_without_a_reply() {
        let (registry, _requests, now) = registry();
        let upstream = registry.upstream("192.0.2.1:53".parse().unwrap(), None, None);
        for lost in 1..=3 {
            upstream.lost(UpstreamPath::Udp, now);
            assert_eq!(upstream.is_suspect(UpstreamPath::Udp, now), lost == 3);
        }
        assert!(!upstream.is_suspect(UpstreamPath::Udp, now + Duration::from_secs(3)));
        assert!(upstream.take_trial(UpstreamPath::Udp, now));
        assert!(!upstream.take_trial(UpstreamPath::Udp, now + Duration::from_millis(249)));
        assert!(upstream.take_trial(UpstreamPath::Udp, now + Duration::from_millis(250)));
        upstream.replied(UpstreamPath::Udp, now, Duration::from_millis(1), false);
        assert!(!upstream.is_suspect(UpstreamPath::Udp, now));
    }

    /// The state of one path does not affect the other.
    #[test]
    fn paths_have_separate_state() {
        let (registry, mut requests, now) = registry();
        let upstream = registry.upstream("192.0.2.1:53".parse().unwrap(), None, None);
        let check = HealthCheck::default();
        upstream.replied(UpstreamPath::Udp, now, Duration::from_millis(1), false);
        upstream.replied(UpstreamPath::Stream, now, Duration::from_millis(900), false);
        let srtt_ms =
            [UpstreamPath::Udp, UpstreamPath::Stream].map(|path| upstream.srtt(path).unwrap().as_millis());
        assert_eq!(srtt_ms, [1, 900]);
        upstream.failed(UpstreamPath::Udp, 2, &check);
        upstream.failed(UpstreamPath::Stream, 2, &check);
        let paths = [(); 2].map(|()| requests.0.try_recv().ok().map(|request| request.path));
        assert_eq!(paths, [Some(UpstreamPath::Udp), Some(UpstreamPath::Stream)]);
        for _ in 0..3 {
            upstream.probed(UpstreamPath::Udp, false);
            upstream.lost(UpstreamPath::Udp, now);
        }
        upstream.replied(UpstreamPath::Stream, now, Duration::from_millis(1), false);
        assert!(upstream.is_down(UpstreamPath::Udp, 2) && upstream.is_suspect(UpstreamPath::Udp, now));
        assert!(
            !upstream.is_down(UpstreamPath::Stream, 2) && !upstream.is_suspect(UpstreamPath::Stream, now)
        );
    }
}
