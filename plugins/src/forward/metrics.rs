//! Metrics of upstreams, and of all stanzas together.

use forwarder::{StanzaMetrics, Upstream, UpstreamPath, UpstreamProto};
use metrics::{Families, Metric};

/// Adds the metrics of all stanzas.
pub fn collect(stanzas: &StanzaMetrics, into: &mut Families) {
    into.counter(HEALTHCHECK_BROKEN, &[], stanzas.healthcheck_broken.get() as f64);
    into.counter(MAX_CONCURRENT_REJECTS, &[], stanzas.max_concurrent_rejects.get() as f64);
}

/// Adds the metrics of one upstream, for all its stanzas.
pub fn collect_upstream(upstream: &Upstream, into: &mut Families) {
    let to = upstream.address().to_string();
    let metrics = upstream.metrics();
    let proxy = [("proxy_name", "forward"), ("to", to.as_str())];
    for (rcode, durations) in metrics.durations() {
        let rcode = rcode.map_or_else(|| "other".to_owned(), |rcode| rcode.to_string());
        let labels = [proxy[0], proxy[1], ("rcode", &rcode)];
        into.durations(REQUEST_DURATION, &labels, durations);
    }
    into.counter(HEALTHCHECK_FAILURES, &proxy, metrics.healthcheck_failures.get() as f64);
    for proto in UpstreamProto::ALL {
        let labels = [proxy[0], proxy[1], ("proto", proto.label())];
        for (metric, count) in [
            (CONN_CACHE_HITS, metrics.conn_cache_hits(proto)),
            (CONN_CACHE_MISSES, metrics.conn_cache_misses(proto)),
        ] {
            if count > 0 {
                into.counter(metric, &labels, count as f64);
            }
        }
    }
    let to = [("to", to.as_str())];
    into.counter(HEDGES, &to, metrics.hedges.get() as f64);
    into.counter(UNMATCHED_REPLIES, &to, metrics.unmatched.get() as f64);
    into.counter(LATE_REPLIES, &to, metrics.late.get() as f64);
    for (path, proto) in [
        (UpstreamPath::Udp, UpstreamProto::Udp),
        (
            UpstreamPath::Stream,
            if upstream.tls().is_some() { UpstreamProto::Tls } else { UpstreamProto::Tcp },
        ),
    ] {
        if upstream.srtt(path).is_none() {
            continue;
        }
        let labels = [to[0], ("proto", proto.label())];
        let (outstanding, limit) = upstream.outstanding(path);
        into.gauge(OUTSTANDING, &labels, f64::from(outstanding));
        into.gauge(OUTSTANDING_LIMIT, &labels, f64::from(limit.unwrap_or(0)));
        if path == UpstreamPath::Stream {
            into.gauge(CONNECTIONS, &labels, f64::from(metrics.open_connections()));
            into.gauge(WAITING, &labels, f64::from(metrics.waiting_for_connection()));
            into.gauge(PIPELINING, &labels, f64::from(u8::from(metrics.pipelines())));
        }
    }
}

/// Counter.
const HEALTHCHECK_BROKEN: Metric = Metric {
    name: "coredns_forward_healthcheck_broken_total",
    help: "Counter of the number of complete failures of the healthchecks.",
};
/// Counter.
const MAX_CONCURRENT_REJECTS: Metric = Metric {
    name: "coredns_forward_max_concurrent_rejects_total",
    help: "Counter of the number of queries rejected because the concurrent queries were at maximum.",
};
/// Histogram {proxy_name, to, rcode}; bounds as `coredns_dns_request_duration_seconds`.
const REQUEST_DURATION: Metric = Metric {
    name: "coredns_proxy_request_duration_seconds",
    help: "Histogram of the time each request took.",
};
/// Counter {proxy_name, to}.
const HEALTHCHECK_FAILURES: Metric = Metric {
    name: "coredns_proxy_healthcheck_failures_total",
    help: "Counter of the number of failed healthchecks.",
};
/// Counter {proxy_name, to, proto}; proto: udp, tcp, tcp-tls.
const CONN_CACHE_HITS: Metric = Metric {
    name: "coredns_proxy_conn_cache_hits_total",
    help: "Counter of connection cache hits per upstream and protocol.",
};
/// Counter {proxy_name, to, proto}.
const CONN_CACHE_MISSES: Metric = Metric {
    name: "coredns_proxy_conn_cache_misses_total",
    help: "Counter of connection cache misses per upstream and protocol.",
};
/// Counter {to}.
const HEDGES: Metric = Metric {
    name: "localdns_forward_hedges_total",
    help: "Counter of queries sent once more because an upstream was slow.",
};
/// Gauge {to, proto}.
const OUTSTANDING: Metric = Metric {
    name: "localdns_forward_outstanding_queries",
    help: "Gauge of queries that were sent to an upstream and are not answered.",
};
/// Gauge {to, proto}.
const OUTSTANDING_LIMIT: Metric = Metric {
    name: "localdns_forward_outstanding_limit",
    help: "Gauge of the most queries that may be outstanding while the upstream has a standing queue, else 0.",
};
/// Gauge {to, proto}.
const CONNECTIONS: Metric =
    Metric { name: "localdns_forward_connections", help: "Gauge of connections to an upstream." };
/// Gauge {to, proto}.
const WAITING: Metric = Metric {
    name: "localdns_forward_waiting_queries",
    help: "Gauge of queries that wait for a connection to an upstream.",
};
/// Gauge {to, proto}.
const PIPELINING: Metric = Metric {
    name: "localdns_forward_pipelining",
    help: "Gauge that is 1 where connections to an upstream have several queries at a time, as it answers out of order.",
};
/// Counter {to}.
const UNMATCHED_REPLIES: Metric = Metric {
    name: "localdns_forward_unmatched_replies_total",
    help: "Counter of upstream replies that no query was waiting for.",
};
/// Counter {to}.
const LATE_REPLIES: Metric = Metric {
    name: "localdns_forward_late_replies_total",
    help: "Counter of upstream replies that arrived after all their clients got a failure.",
};
