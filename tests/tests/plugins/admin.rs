//! `health`, `ready`, `prometheus`.

use std::thread::sleep;
use std::time::Duration;

use tests::{
    Action, Ask, Dns, Metrics, Server, Upstream, ask, assert_contains, fresh_ip, http_get, now, port,
};

use super::{SOA, good};

#[test]
fn health_and_ready_answer_ok() {
    let ip = fresh_ip();
    let dns = Dns::start_on(ip, &format!("health {ip}:8080\nready {ip}:8181\nwhoami"));
    for (at, path) in [((ip, 8080), "/health"), ((ip, 8181), "/ready")] {
        assert_eq!(http_get(at.into(), path).unwrap(), (200, "OK".to_owned()));
        assert_eq!(http_get(at.into(), "/other").unwrap().0, 404);
    }
    drop(dns);
}

#[test]
fn lameduck_keeps_serving_for_its_time() {
    let ip = fresh_ip();
    let mut dns = Dns::start_on(ip, &format!("health {ip}:8080 {{\nlameduck 1s\n}}\nwhoami"));
    let stopped = now();
    dns.server.signal("TERM");
    sleep(Duration::from_millis(300));
    assert_eq!(ask(dns.at, "a.example", "A").status(), "NOERROR");
    assert_eq!(http_get((ip, 8080).into(), "/health").unwrap().0, 200);
    assert_eq!(dns.server.wait(Duration::from_secs(10)).code(), Some(0));
    assert!(stopped.elapsed() >= Duration::from_secs(1), "{:?}", stopped.elapsed());
}

#[test]
fn metric_names_and_labels_are_those_of_coredns() {
    let ip = fresh_ip();
    let upstream = Upstream::start(fresh_ip(), |asked| match asked.name.starts_with("none") {
        true => Action::nxdomain(SOA),
        false => good(asked),
    });
    let body = format!(
        "prometheus {ip}:9153\nerrors\nhealth {ip}:8080\nreload\nhosts {{\n192.0.2.9 known.example\nfallthrough\n}}\n\
         template IN TXT example {{\nanswer \"{{{{ .Name }}}} 60 IN TXT \\\"x\\\"\"\n}}\ncache\nforward . {}",
        upstream.word()
    );
    let dns = Dns::start_on(ip, &body);
    for (name, rtype) in [
        ("x.example", "A"),
        ("x.example", "A"),
        ("none.example", "A"),
        ("known.example", "A"),
        ("x.example", "TXT"),
    ] {
        ask(dns.at, name, rtype);
    }
    Ask::new("x.example", "AAAA").tcp().of(dns.at);
    Ask::new("x.example", "TYPE65400").dnssec_ok().of(dns.at);
    let server = format!("dns://{ip}:{}", port());
    let metrics = Metrics::after_queries((ip, 9153).into(), 7);
    let rows: [(&str, &[&str]); 20] = [
        ("coredns_build_info", &["goversion", "revision", "version"]),
        ("coredns_panics_total", &[]),
        ("coredns_plugin_enabled", &["name", "server", "view", "zone"]),
        ("coredns_dns_requests_total", &["family", "proto", "server", "type", "view", "zone"]),
        ("coredns_dns_request_duration_seconds_count", &["server", "view", "zone"]),
        ("coredns_dns_request_duration_seconds_bucket", &["le", "server", "view", "zone"]),
        ("coredns_dns_request_size_bytes_count", &["proto", "server", "view", "zone"]),
        ("coredns_dns_response_size_bytes_count", &["proto", "server", "view", "zone"]),
        ("coredns_dns_do_requests_total", &["server", "view", "zone"]),
        ("coredns_dns_responses_total", &["plugin", "rcode", "server", "view", "zone"]),
        ("coredns_cache_entries", &["server", "type", "view", "zones"]),
        ("coredns_cache_requests_total", &["server", "view", "zones"]),
        ("coredns_cache_misses_total", &["server", "view", "zones"]),
        ("coredns_cache_hits_total", &["server", "type", "view", "zones"]),
        ("coredns_hosts_entries", &["hostsfile"]),
        ("coredns_hosts_reload_timestamp_seconds", &[]),
        ("coredns_template_matches_total", &["class", "server", "type", "view", "zone"]),
        ("coredns_health_request_duration_seconds_count", &[]),
        ("coredns_forward_max_concurrent_rejects_total", &[]),
        ("process_resident_memory_bytes", &[]),
    ];
    for (name, labels) in rows {
        assert!(metrics.value(name, &[]).is_some(), "{name} is missing");
        assert_eq!(metrics.label_names(name), labels, "{name}");
    }
    let of = [("server", &server[..]), ("zone", ".")];
    let with = |more: &[(&'static str, &'static str)]| [&of[..], more].concat();
    assert_eq!(
        metrics
            .value("coredns_dns_requests_total", &with(&[("type", "A"), ("proto", "udp"), ("family", "1")])),
        Some(4.0)
    );
    assert_eq!(
        metrics.value("coredns_dns_requests_total", &with(&[("type", "AAAA"), ("proto", "tcp")])),
        Some(1.0)
    );
    assert_eq!(metrics.value("coredns_dns_requests_total", &with(&[("type", "other")])), Some(1.0));
    assert_eq!(
        metrics.value("coredns_dns_responses_total", &with(&[("rcode", "NXDOMAIN"), ("plugin", "errors")])),
        Some(1.0)
    );
    assert_eq!(metrics.value("coredns_dns_do_requests_total", &of), Some(1.0));
    assert_eq!(metrics.value("coredns_dns_request_duration_seconds_count", &of), Some(7.0));
    assert_eq!(
        metrics.value("coredns_cache_hits_total", &[("server", &server), ("type", "success")]),
        Some(1.0)
    );
    assert_eq!(
        metrics.value("coredns_template_matches_total", &[("zone", "example."), ("type", "TXT")]),
        Some(1.0)
    );
    let mut bounds = metrics.label_values("coredns_dns_request_duration_seconds_bucket", "le");
    bounds.dedup();
    assert_eq!(bounds.len(), 17, "{bounds:?}");
    assert_eq!((bounds[0], bounds[16]), ("0.00025", "+Inf"));
}

#[test]
fn our_own_metrics_count_hosts_hits_and_misses() {
    let ip = fresh_ip();
    let upstream = Upstream::start(fresh_ip(), good);
    let hosts = "hosts {\n192.0.2.9 known.example\nfallthrough\n}";
    let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\n{hosts}\nforward . {}", upstream.word()));
    for name in ["known.example", "known.example", "x.example"] {
        ask(dns.at, name, "A");
    }
    let metrics = Metrics::after_queries((ip, 9153).into(), 3);
    assert_eq!(metrics.value("localdns_hosts_hits_total", &[]), Some(2.0));
    assert_eq!(metrics.value("localdns_hosts_misses_total", &[]), Some(1.0));
    assert!(
        metrics.value("localdns_hosts_table_age_seconds", &[]).is_some_and(|age| (0.0..60.0).contains(&age))
    );
}

#[test]
fn blocks_share_a_metrics_listener_and_names_outside_are_counted_as_dropped() {
    let (ip, port) = (fresh_ip(), port());
    let block = |zone: &str| format!("{zone}:{port} {{\nbind {ip}\nprometheus {ip}:9153\nwhoami\n}}\n");
    let _server = Server::start(&format!("{}{}", block("a.example"), block("b.example")));
    for name in ["x.a.example", "x.b.example", "x.b.example", "other"] {
        ask((ip, port).into(), name, "A");
    }
    let metrics = Metrics::after_queries((ip, 9153).into(), 4);
    for (zone, count) in [("a.example.", 1.0), ("b.example.", 2.0), ("dropped", 1.0)] {
        assert_eq!(metrics.value("coredns_dns_requests_total", &[("zone", zone)]), Some(count), "{zone}");
    }
    assert_eq!(http_get((ip, 9153).into(), "/").unwrap().0, 404);
}

#[test]
fn a_bound_admin_address_is_told_and_does_not_stop_dns() {
    let ip = fresh_ip();
    let _taken = std::net::TcpListener::bind((ip, 9153)).unwrap();
    let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\nwhoami"));
    assert_eq!(ask(dns.at, "a.example", "A").status(), "NOERROR");
    assert_contains!(dns.server.wait_for_log("9153", Duration::from_secs(2)), "[ERROR]");
}
