//! Counters of the forwarder: plain atomics that the server's collector reads. Knows no metrics
//! library.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

pub use metrics::histogram::Counter;
use metrics::histogram::{DURATIONS, Durations};
use wire::Rcode;

/// The transport to an upstream, as CoreDNS's label `proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamProto {
    /// `udp`.
    Udp,
    /// `tcp`.
    Tcp,
    /// `tcp-tls`.
    Tls,
}

impl UpstreamProto {
    /// All variants, in the order of the counters.
    pub const ALL: [Self; 3] = [Self::Udp, Self::Tcp, Self::Tls];

    /// Returns the label's value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tcp-tls",
        }
    }
}

/// Counters of one upstream, of all workers together.
#[derive(Debug)]
pub struct UpstreamMetrics {
    durations: [Durations<16>; RCODES + 1],
    reused: [Counter; 3],
    opened: [Counter; 3],
    /// `coredns_proxy_healthcheck_failures_total`.
    pub healthcheck_failures: Counter,
    /// Hedges: queries sent to this upstream because another one, or this one, had not answered
    /// yet.
    pub hedges: Counter,
    /// Datagrams with an id or question that matches no query of their socket: forged, duplicated
    /// or far too late.
    pub unmatched: Counter,
    connections: AtomicU32,
    waiting: AtomicU32,
    pipelines: AtomicBool,
    /// `localdns_forward_late_replies_total`: replies that arrived after all clients had been
    /// answered with a failure.
    pub late: Counter,
}

impl Default for UpstreamMetrics {
    fn default() -> Self {
        Self {
            // The buckets are CoreDNS's.
            durations: std::array::from_fn(|_| Durations::new(&DURATIONS)),
            reused: Default::default(),
            opened: Default::default(),
            healthcheck_failures: Counter::default(),
            hedges: Counter::default(),
            unmatched: Counter::default(),
            connections: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            pipelines: AtomicBool::new(false),
            late: Counter::default(),
        }
    }
}

impl UpstreamMetrics {
    /// Counts one reply; `coredns_proxy_request_duration_seconds`.
    #[inline]
    pub(crate) fn replied(&self, rcode: Rcode, rtt: Duration) {
        self.durations[usize::from(rcode.0).min(RCODES)].observe(rtt);
    }

    #[inline]
    pub(crate) fn connection(&self, proto: UpstreamProto, reused: bool) {
        let counters = if reused { &self.reused } else { &self.opened };
        counters[proto as usize].add_shared(1);
    }

    pub(crate) fn connections(&self, open: usize, waiting: usize, pipelines: bool) {
        self.connections.store(u32::try_from(open).unwrap_or(u32::MAX), Relaxed);
        self.waiting.store(u32::try_from(waiting).unwrap_or(u32::MAX), Relaxed);
        self.pipelines.store(pipelines, Relaxed);
    }

    /// Returns the number of TCP and TLS connections that are open or being opened.
    pub fn open_connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// Returns the number of queries that wait for a connection.
    pub fn waiting_for_connection(&self) -> u32 {
        self.waiting.load(Relaxed)
    }

    /// Whether several queries are in flight on one connection, as the upstream replies out of
    /// order.
    pub fn pipelines(&self) -> bool {
        self.pipelines.load(Relaxed)
    }

    /// Returns the histograms that are not empty, by rcode; `None` stands for all rcodes above 23
    /// together.
    pub fn durations(&self) -> impl Iterator<Item = (Option<Rcode>, &Durations<16>)> {
        self.durations.iter().enumerate().filter_map(|(at, durations)| {
            let rcode = (at < RCODES).then_some(Rcode(at as u16));
            durations.is_used().then_some((rcode, durations))
        })
    }

    /// Returns `coredns_proxy_conn_cache_hits_total`: queries over a socket or connection that was
    /// open.
    pub fn conn_cache_hits(&self, proto: UpstreamProto) -> u64 {
        self.reused[proto as usize].get()
    }

    /// Returns `coredns_proxy_conn_cache_misses_total`: sockets and connections opened for a query.
    pub fn conn_cache_misses(&self, proto: UpstreamProto) -> u64 {
        self.opened[proto as usize].get()
    }
}

/// Counters of all stanzas together. The server passes them in, so that they survive a reload.
#[derive(Debug, Default)]
pub struct StanzaMetrics {
    /// `coredns_forward_healthcheck_broken_total`: queries for which every upstream was down.
    pub healthcheck_broken: Counter,
    /// `coredns_forward_max_concurrent_rejects_total`.
    pub max_concurrent_rejects: Counter,
}

/// Rcodes with a histogram of their own: those up to BADCOOKIE in IANA's registry.
const RCODES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    /// Metrics have only the rcodes that were received.
    #[test]
    fn only_received_rcodes_are_reported() {
        let metrics = UpstreamMetrics::default();
        metrics.replied(Rcode::NXDOMAIN, Duration::from_millis(1));
        metrics.replied(Rcode(4000), Duration::from_millis(1));
        let rcodes: Vec<_> = metrics.durations().map(|(rcode, _)| rcode).collect();
        assert_eq!(rcodes, [Some(Rcode::NXDOMAIN), None]);
    }
}
