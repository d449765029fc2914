//! Names and help texts of metrics: CoreDNS's unchanged, those of localdns alone under `localdns_`.
//! Metrics of a plugin are named in that plugin's folder, except those of `cache`, `health` and
//! `hosts`, which have their counters in crates below the plugins.
//!
//! Each constant's documentation lists the labels; their order does not matter.

use super::families::Metric;

macro_rules! metrics {
    ($($(#[$doc:meta])* $konst:ident = $name:literal $help:literal;)*) => {
        $($(#[$doc])* pub const $konst: Metric = Metric { name: $name, help: $help };)*

        /// Every name of the table, for the test that reads it.
        #[cfg(test)]
        const ALL: &[Metric] = &[$($konst),*];
    };
}

metrics! {
    /// Gauge {version, revision, goversion}.
    BUILD_INFO = "coredns_build_info" "A metric with a constant '1' value labeled by version, revision, and goversion from which CoreDNS was built.";
    /// Counter.
    PANICS = "coredns_panics_total" "A metrics that counts the number of panics.";
    /// Gauge {server, zone, view, name}, always 1.
    PLUGIN_ENABLED = "coredns_plugin_enabled" "A metric that indicates whether a plugin is enabled on per server and zone basis.";

    /// Counter {server, zone, view, proto, family, type}.
    DNS_REQUESTS = "coredns_dns_requests_total" "Counter of DNS requests made per zone, protocol and family.";
    /// Histogram {server, zone, view}.
    DNS_REQUEST_DURATION = "coredns_dns_request_duration_seconds" "Histogram of the time (in seconds) each request took per zone.";
    /// Histogram {server, zone, view, proto}.
    DNS_REQUEST_SIZE = "coredns_dns_request_size_bytes" "Size of the EDNS0 UDP buffer in bytes (64K for TCP) per zone and protocol.";
    /// Counter {server, zone, view}.
    DNS_DO_REQUESTS = "coredns_dns_do_requests_total" "Counter of DNS requests with DO bit set per zone.";
    /// Histogram {server, zone, view, proto}.
    DNS_RESPONSE_SIZE = "coredns_dns_response_size_bytes" "Size of the returned response in bytes.";
    /// Counter {server, zone, view, rcode, plugin}.
    DNS_RESPONSES = "coredns_dns_responses_total" "Counter of response status codes.";

    /// Counter {server, status}.
    HTTPS_RESPONSES = "coredns_dns_https_responses_total" "Counter of DoH responses per server and http status code.";

    /// Counter {server, status}.
    QUIC_RESPONSES = "coredns_dns_quic_responses_total" "Counter of DoQ responses per server and QUIC application code.";

    /// Counter {server, zones, view}.
    CACHE_REQUESTS = "coredns_cache_requests_total" "The count of cache requests.";
    /// Counter {server, type, zones, view}.
    CACHE_HITS = "coredns_cache_hits_total" "The count of cache hits.";
    /// Counter {server, zones, view}.
    CACHE_MISSES = "coredns_cache_misses_total" "The count of cache misses. Deprecated, derive misses from cache hits/requests counters.";
    /// Counter {server, zones, view}.
    CACHE_PREFETCH = "coredns_cache_prefetch_total" "The number of times the cache has prefetched a cached item.";
    /// Counter {server, zones, view}.
    CACHE_SERVED_STALE = "coredns_cache_served_stale_total" "The number of requests served from stale cache entries.";

    /// Gauge {hostsfile, name, family, source}; family: ipv4, ipv6; source: shipped, file, refreshed.
    REFRESH_ENTRY_AGE = "localdns_refresh_entry_age_seconds" "Time since the addresses of a refreshed name were last confirmed.";
    /// Gauge {hostsfile, name, family}.
    REFRESH_ENTRY_TTL = "localdns_refresh_entry_ttl_seconds" "TTL of the last good answer for a refreshed name.";
    /// Counter {hostsfile, name, family}.
    REFRESH_FAILURES = "localdns_refresh_failures_total" "Counter of rounds without a good answer for a refreshed name.";
    /// Counter {hostsfile, result}; result: ok, partial, failed.
    REFRESH_ROUNDS = "localdns_refresh_rounds_total" "Counter of rounds of lookups by result: all, some or none of the names answered.";
    /// Gauge {hostsfile}.
    REFRESH_LAST_ROUND = "localdns_refresh_last_round_timestamp_seconds" "Start of the last round, in seconds since 1970.";
    /// Gauge {hostsfile}.
    REFRESH_LAST_ROUND_DURATION = "localdns_refresh_last_round_duration_seconds" "Duration of the last round in seconds.";
    /// Gauge {hostsfile}.
    REFRESH_LAST_ROUND_FAILED = "localdns_refresh_last_round_failed" "Names and families without a good answer in the last round.";
    /// Counter {hostsfile}.
    REFRESH_PUBLISH_FAILURES = "localdns_refresh_publish_failures_total" "Counter of failed writes of a hosts file.";

    /// Histogram.
    HEALTH_REQUEST_DURATION = "coredns_health_request_duration_seconds" "Histogram of the time (in seconds) each request took.";
    /// Counter.
    HEALTH_REQUEST_FAILURES = "coredns_health_request_failures_total" "The number of times the health check failed.";

    /// Counter {server, zone, view}.
    HOSTS_HITS = "localdns_hosts_hits_total" "Counter of queries that the hosts table answered.";
    /// Counter {server, zone, view}.
    HOSTS_MISSES = "localdns_hosts_misses_total" "Counter of queries whose name is not in the hosts table.";
    /// Counter.
    KERNEL_DROPS = "localdns_kernel_drops_total" "Counter of datagrams that the kernel dropped because a receive buffer was full.";
    /// Gauge {address}.
    LEASE_HELD = "localdns_lease_held" "1 while queries to this address reach this server, 0 while they are redirected to another.";
    /// Counter {address}.
    LEASES_LOST = "localdns_leases_lost_total" "Counter of leases that ended while this server was running.";
    /// Counter.
    RULES_PUT_BACK = "localdns_rules_put_back_total" "Counter of times that the rules were restored after another process had removed them.";
    /// Gauge {status}.
    SERVICE_STATUS = "localdns_service_status" "1 for the current state of the service.";
    /// Gauge.
    MEMORY_USAGE = "localdns_memory_usage_bytes" "Memory of the service in bytes: of its control group, else resident memory of the process.";
    /// Counter.
    CPU_USAGE = "localdns_cpu_usage_seconds_total" "Processor time of the service: of its control group, else of its process.";
    /// Gauge.
    LAST_UPDATE = "localdns_metrics_last_update_timestamp_seconds" "Time of the last update of these metrics, in seconds since 1970.";
    /// Gauge {ip, block, status}.
    VNETDNS_FORWARD = "localdns_vnetdns_forward_info" "Upstreams of `forward .` at 169.254.10.10.";
    /// Gauge {ip, block, status}.
    KUBEDNS_FORWARD = "localdns_kubedns_forward_info" "Upstreams of `forward .` at 169.254.10.11.";
    /// Counter {errortype}.
    NODECACHE_SETUP_ERRORS = "coredns_nodecache_setup_errors_total" "Counter of errors while the node was set up for node-cache, by kind.";
    /// Counter.
    LOG_LINES_DROPPED = "localdns_log_lines_dropped_total" "Counter of log lines that were dropped because they were not read in time.";
    /// Gauge.
    WORKERS = "localdns_workers" "Number of threads that answer queries over UDP.";
    /// Gauge.
    WORKER_HEARTBEAT_AGE = "localdns_worker_heartbeat_age_seconds" "Time since the slowest worker began its turn.";
    /// Counter.
    WORKER_RESTARTS = "localdns_worker_restarts_total" "Counter of restarts of worker threads.";
    /// Counter.
    QUERIES_SHED = "localdns_queries_shed_total" "Counter of queries refused because too many were in flight.";
    /// Counter {was}.
    CONNECTIONS_EVICTED = "localdns_connections_evicted_total" "Counter of TCP connections closed to make room for others.";
    /// Counter.
    CONNECTIONS_REFUSED = "localdns_connections_refused_total" "Counter of new TCP connections closed at once because no other could be evicted.";
    /// Gauge.
    STREAM_BYTES = "localdns_stream_bytes" "Bytes of incomplete messages and of unread replies that are held for TCP clients.";
    /// Counter.
    NODE_RESOLVER_ROUNDS = "localdns_node_resolver_rounds_total" "Counter of rounds in which every service was looked up.";
    /// Counter {outcome}; outcome: addresses, failed, no_data, no_such_name.
    NODE_RESOLVER_LOOKUPS = "localdns_node_resolver_lookups_total" "Counter of lookups, one for each service and family.";
    /// Counter {result}; result: failed, in_place, replaced, unchanged.
    NODE_RESOLVER_WRITES = "localdns_node_resolver_writes_total" "Counter of rounds by their result for the hosts file.";
    /// Gauge.
    NODE_RESOLVER_AGE = "localdns_node_resolver_age_seconds" "Time since the hosts file was last known to be correct.";
    /// Gauge {service, verdict}; verdict: absent, alias, defined_by_others, headless, kept, known, refused.
    NODE_RESOLVER_LINES = "localdns_node_resolver_lines" "Lines of a service in the hosts file.";

    /// Counter.
    PROCESS_CPU_SECONDS = "process_cpu_seconds_total" "Total user and system CPU time spent in seconds.";
    /// Gauge.
    PROCESS_OPEN_FDS = "process_open_fds" "Number of open file descriptors.";
    /// Gauge.
    PROCESS_MAX_FDS = "process_max_fds" "Maximum number of open file descriptors.";
    /// Gauge.
    PROCESS_VIRTUAL_MEMORY = "process_virtual_memory_bytes" "Virtual memory size in bytes.";
    /// Gauge.
    PROCESS_VIRTUAL_MEMORY_MAX = "process_virtual_memory_max_bytes" "Maximum amount of virtual memory available in bytes.";
    /// Gauge.
    PROCESS_RESIDENT_MEMORY = "process_resident_memory_bytes" "Resident memory size in bytes.";
    /// Gauge.
    PROCESS_START_TIME = "process_start_time_seconds" "Start time of the process since unix epoch in seconds.";
    /// Counter.
    PROCESS_NETWORK_RECEIVED = "process_network_receive_bytes_total" "Number of bytes received by the process over the network.";
    /// Counter.
    PROCESS_NETWORK_SENT = "process_network_transmit_bytes_total" "Number of bytes sent by the process over the network.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_prometheus_rules() {
        let mut names: Vec<&str> = ALL.iter().map(|metric| metric.name).collect();
        for metric in ALL {
            assert!(
                metric.name.bytes().all(|octet| octet.is_ascii_lowercase() || octet == b'_'),
                "{}",
                metric.name
            );
            assert!(
                ["coredns_", "localdns_", "process_"].iter().any(|prefix| metric.name.starts_with(prefix)),
                "{}",
                metric.name
            );
            assert!(metric.help.ends_with('.'), "{}", metric.name);
            let counts = metric.help.starts_with("Counter") || metric.help.starts_with("The count");
            assert!(!counts || metric.name.ends_with("_total"), "{}", metric.name);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
