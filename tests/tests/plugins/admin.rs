//! `health`, `ready`, `prometheus`.

use std::thread::sleep;
use std::time::Duration;

use tests::{
    Action, Ask, Dns, Metrics, Server, Upstream, ask, assert_contains, eventually, fresh_ip, http_get,
    isolated, now, port, run,
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
    dns.server.wait_for_log("Going into lameduck mode", Duration::from_secs(5));
    assert_eq!(ask(dns.at, "a.example", "A").status(), "NOERROR");
    assert_eq!(http_get((ip, 8080).into(), "/health").unwrap().0, 200);
    assert_eq!(dns.server.wait(Duration::from_secs(10)).code(), Some(0));
    assert!(stopped.elapsed() >= Duration::from_secs(1), "{:?}", stopped.elapsed());
}

/// Names and labels of metrics are those of CoreDNS.
#[test]
fn metrics_match_coredns() {
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
    let mut enabled = metrics.label_values("coredns_plugin_enabled", "name");
    enabled.sort_unstable();
    // Like in CoreDNS: the plugins in the plugin chain.
    assert_eq!(enabled, ["cache", "errors", "forward", "hosts", "prometheus", "template"]);
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

/// Like in CoreDNS, where the cache's metrics are global; queries are counted only for blocks with
/// `prometheus`.
#[test]
fn cache_metrics_with_any_prometheus() {
    let [ip, other] = [fresh_ip(), fresh_ip()];
    let upstream = Upstream::start(fresh_ip(), good);
    let (forward, port) = (format!("forward . {}", upstream.word()), port());
    let text = format!(
        ".:{port} {{\nbind {ip}\nprometheus {ip}:9153\n{forward}\n}}\n\
         .:{port} {{\nbind {other}\ncache\n{forward}\n}}\n"
    );
    let _server = Server::start(&text);
    for _ in 0..3 {
        assert_eq!(ask((other, port).into(), "x.example", "A").status(), "NOERROR");
    }
    let server = format!("dns://{other}:{port}");
    let of = [("server", &server[..])];
    let metrics = eventually("three queries that are counted", Duration::from_secs(10), || {
        let metrics = Metrics::of((ip, 9153).into());
        (metrics.value("coredns_cache_requests_total", &of) == Some(3.0)).then_some(metrics)
    });
    let success = [of[0], ("type", "success")];
    assert_eq!(metrics.value("coredns_cache_hits_total", &success), Some(2.0));
    assert_eq!(metrics.value("coredns_cache_misses_total", &of), Some(1.0));
    assert_eq!(metrics.value("coredns_cache_entries", &success), Some(1.0));
    for (name, labels, _) in metrics.samples() {
        let is_of_queries = name.starts_with("coredns_dns_") || name == "coredns_plugin_enabled";
        assert!(!is_of_queries || labels.get("server") != Some(&server), "{name} {labels:?}");
    }
}

/// Metrics that are absent at first appear and increase with what they count.
#[test]
fn metrics_absent_at_first() {
    let upstream = Upstream::start(fresh_ip(), |asked| match &asked.name[..4] {
        "slow" => Action::Silent,
        "ttl1" | "ttl2" => Action::answer(&format!("{} {} IN A 192.0.2.1", asked.name, &asked.name[3..4])),
        _ => good(asked),
    });
    let forward = format!("forward . {}", upstream.word());
    // Nothing listens there: the kernel refuses.
    let down = format!("forward . {}:{} {{\nhealth_check 100ms\nmax_fails 1\n}}", fresh_ip(), port());
    let template = |answer: &str| format!("template IN A example {{\nanswer \"{answer}\"\n}}");
    let proxy = ["proto", "proxy_name", "to"];
    let zone = ["server", "view", "zones"];
    let kind = ["server", "type", "view", "zones"];
    let failure = ["class", "section", "server", "template", "type", "view", "zone"];
    // The directives, the query name (N is replaced by a counter), and the metric with its labels.
    let rows: [(String, &str, &str, &[&str]); 11] = [
        (forward.clone(), "nameN.example", "coredns_proxy_conn_cache_misses_total", &proxy),
        (forward.clone(), "nameN.example", "coredns_proxy_conn_cache_hits_total", &proxy),
        (
            format!("{forward} {{\nforce_tcp\n}}"),
            "nameN.example",
            "coredns_proxy_conn_cache_hits_total",
            &proxy,
        ),
        (down.clone(), "nameN.example", "coredns_proxy_healthcheck_failures_total", &proxy[1..]),
        (down, "nameN.example", "coredns_forward_healthcheck_broken_total", &[]),
        (
            format!("{forward} {{\nmax_concurrent 1\n}}"),
            "slowN.example",
            "coredns_forward_max_concurrent_rejects_total",
            &[],
        ),
        (
            format!("cache {{\nsuccess 9984 3600 1\nprefetch 1 1m 90%\n}}\n{forward}"),
            "ttl2.example",
            "coredns_cache_prefetch_total",
            &zone,
        ),
        (
            format!("cache {{\nsuccess 9984 3600 1\nserve_stale 1h immediate\n}}\n{forward}"),
            "ttl1.example",
            "coredns_cache_served_stale_total",
            &zone,
        ),
        (
            format!("cache {{\nsuccess 4\n}}\n{forward}"),
            "nameN.example",
            "coredns_cache_evictions_total",
            &kind,
        ),
        (template("{{ .Name }}"), "name.example", "coredns_template_rr_failures_total", &failure),
        (
            template("{{ index .Match 9 }} 60 IN A 192.0.2.1"),
            "name.example",
            "coredns_template_template_failures_total",
            &failure,
        ),
    ];
    for (directives, name, metric, labels) in rows {
        let ip = fresh_ip();
        let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\n{directives}"));
        let page = (ip, 9153).into();
        assert_eq!(Metrics::of(page).count(metric, &[]), 0.0, "{metric} before any query");
        let mut n = 0;
        let metrics = eventually(metric, Duration::from_secs(10), || {
            n += 1;
            let query = Ask::new(&name.replace('N', &n.to_string()), "A");
            // Some queries get no reply.
            drop(query.timeout(Duration::from_millis(100)).try_of(dns.at));
            sleep(Duration::from_millis(5));
            let metrics = Metrics::of(page);
            (metrics.count(metric, &[]) > 0.0).then_some(metrics)
        });
        assert_eq!(metrics.label_names(metric), labels, "{metric}");
    }
}

#[test]
fn served_corefile_version_is_a_metric() {
    let ip = fresh_ip();
    let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\nreload\nwhoami"));
    let version = || {
        let metrics = Metrics::of((ip, 9153).into());
        assert_eq!(metrics.value("coredns_reload_version_info", &[("hash", "sha512")]), Some(1.0));
        metrics.label_values("coredns_reload_version_info", "value").concat()
    };
    let first = version();
    assert!(first.len() == 128 && first.bytes().all(|digit| digit.is_ascii_hexdigit()), "{first}");
    dns.server.write_corefile(&Dns::corefile(dns.at, &format!("prometheus {ip}:9153\nreload\nnsid\nwhoami")));
    dns.server.signal("USR1");
    dns.server.wait_for_log("Reloading complete", Duration::from_secs(5));
    assert_ne!(version(), first);
}

/// A health page that does not answer is counted and reported.
#[test]
fn failing_health_page_is_counted() {
    isolated(|| {
        let ip = fresh_ip();
        let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\nhealth {ip}:8080\nwhoami"));
        let page = (ip, 9153).into();
        let metrics = Metrics::when(page, |metrics| {
            metrics.count("coredns_health_request_duration_seconds_count", &[]) > 0.0
        });
        assert_eq!(metrics.value("coredns_health_request_failures_total", &[]), Some(0.0));
        // No packet arrives, not even on the probe's open connection.
        run("ip", &["link", "set", "lo", "down"]);
        dns.server.wait_for_log("Local health request to", Duration::from_secs(10));
        run("ip", &["link", "set", "lo", "up"]);
        Metrics::when(page, |metrics| metrics.count("coredns_health_request_failures_total", &[]) > 0.0);
    });
}

#[test]
fn hosts_hits_and_misses_are_counted() {
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

/// Names outside of every zone are counted as dropped.
#[test]
fn blocks_share_a_metrics_listener() {
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

/// An occupied admin address is reported, and DNS is served.
#[test]
fn occupied_admin_address_keeps_dns() {
    let ip = fresh_ip();
    let _taken = std::net::TcpListener::bind((ip, 9153)).unwrap();
    let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\nwhoami"));
    assert_eq!(ask(dns.at, "a.example", "A").status(), "NOERROR");
    assert_contains!(dns.server.wait_for_log("9153", Duration::from_secs(2)), "[ERROR]");
}

/// An upstream that sends queries back is reported and no longer queried.
#[test]
fn looping_upstream_in_status() {
    let (ip, other) = (fresh_ip(), Upstream::start(fresh_ip(), good));
    let back = fresh_ip();
    let looping = format!("{back}:{}", port());
    let _back = Dns::start_on(back, &format!("forward . {ip}:{}", port()));
    let body =
        format!("prometheus {ip}:9153\nloop\nforward . {looping} {} {{\npolicy sequential\n}}", other.word());
    let dns = Dns::start_on(ip, &body);
    let upstreams = eventually("the loop is seen", Duration::from_secs(20), || {
        let (_, text) = http_get((ip, 9153).into(), "/status").ok()?;
        let status: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let of = |address: &str| {
            let all = status["upstreams"].as_array().into_iter().flatten();
            all.clone()
                .find(|one| one["address"] == address)
                .map(|one| (one["loops"].clone(), one["up"].clone()))
        };
        let (first, second) = (of(&looping)?, of(&other.word())?);
        (first.0 == true).then_some((first, second))
    });
    assert_eq!(upstreams, ((true.into(), false.into()), (false.into(), true.into())));
    dns.server.wait_for_log("sends our queries back to us", Duration::from_secs(5));
    assert_eq!(ask(dns.at, "a.example", "A").status(), "NOERROR");
    assert_eq!(printed_status(ip), format!("upstream {looping} (UDP) sends our queries back\n"));
}

#[test]
fn status_names_a_failed_upstream() {
    let (ip, good) = (fresh_ip(), Upstream::start(fresh_ip(), good));
    let gone = format!("{}:{}", fresh_ip(), port());
    let body = format!("prometheus {ip}:9153\nforward . {gone} {} {{\npolicy sequential\n}}", good.word());
    let dns = Dns::start_on(ip, &body);
    assert_eq!(printed_status(ip), "no names are refreshed\n");
    let line = eventually("it is down", Duration::from_secs(20), || {
        assert_eq!(ask(dns.at, "a.example", "A").status(), "NOERROR");
        Some(printed_status(ip)).filter(|line| line != "no names are refreshed\n")
    });
    assert!(line.starts_with(&format!("upstream {gone} (UDP) is down, failed ")), "{line}");
    assert!(line.ends_with(" times in a row\n"), "{line}");
}

/// The output of `localdns status` for the server at this address.
fn printed_status(ip: std::net::Ipv4Addr) -> String {
    let mut command = std::process::Command::new(tests::binary());
    command.args(["status", "-status", &format!("{ip}:9153")]);
    let output = tests::output(command, Duration::from_secs(5));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}
