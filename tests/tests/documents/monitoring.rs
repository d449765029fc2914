//! The dashboard and the alert rules: they load, the alerts fire when they must, and their metrics
//! are those of the server.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use tests::{output, tempdir, tool};

use super::{PATIENCE, read, root};

/// Metrics that Prometheus itself adds.
const OF_PROMETHEUS: &[&str] = &["up"];

/// Prometheus loads the alert rules, and they fire when they should.
#[test]
fn alert_rules_load_and_fire() {
    if !tool("alert_rules_load_and_fire", "promtool") {
        return;
    }
    for args in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let mut promtool = Command::new("promtool");
        promtool.args(args).current_dir(root().join("deploy/monitoring"));
        let output = output(promtool, PATIENCE);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
}

#[test]
fn every_alert_has_a_firing_case() {
    let (rules, cases) = (read("deploy/monitoring/alerts.yaml"), read("deploy/monitoring/alerts_test.yaml"));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(cases.contains(&format!("alertname=\"{alert}\"")), "{alert}");
    }
}

/// The metrics of the dashboard and of the alerts are exposed.
#[test]
fn monitored_metrics_exist() {
    let names = read("crates/metrics/src/names.rs") + &text_of("plugins/src");
    let dashboard = dashboard();
    let looked_at: BTreeSet<String> = expressions(&dashboard)
        .chain(read("deploy/monitoring/alerts.yaml").lines().map(str::to_owned))
        .flat_map(|text| metrics(&text).collect::<Vec<_>>())
        .collect();
    assert!(looked_at.len() > 30, "{looked_at:?}");
    for metric in looked_at {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|part| metric.strip_suffix(part));
        let exposed = |name: &str| names.contains(&format!("\"{name}\""));
        assert!(exposed(&metric) || family.is_some_and(exposed), "{metric}");
    }
}

/// The dashboard shows every metric that decides whether a node is healthy.
#[test]
fn dashboard_shows_every_health_metric() {
    let shown: BTreeSet<String> =
        expressions(&dashboard()).flat_map(|text| metrics(&text).collect::<Vec<_>>()).collect();
    for (what, wanted) in [
        (
            "hit ratio",
            &["coredns_cache_hits_total", "coredns_cache_requests_total", "localdns_hosts_hits_total"][..],
        ),
        (
            "latency",
            &["coredns_dns_request_duration_seconds_bucket", "coredns_proxy_request_duration_seconds_bucket"],
        ),
        (
            "upstream health",
            &["coredns_proxy_healthcheck_failures_total", "coredns_proxy_request_duration_seconds_count"],
        ),
        ("lease", &["localdns_lease_held", "localdns_leases_lost_total", "localdns_rules_put_back_total"]),
        ("stale served", &["coredns_cache_served_stale_total"]),
        ("refresh age", &["localdns_refresh_entry_age_seconds", "localdns_refresh_last_round_failed"]),
        ("drops", &["localdns_kernel_drops_total", "localdns_queries_shed_total"]),
    ] {
        for metric in wanted {
            assert!(shown.contains(*metric), "{what}: {metric}");
        }
    }
}

/// Metrics of plugins are named as Prometheus recommends.
#[test]
fn plugin_metric_names_are_idiomatic() {
    let plugins = text_of("plugins/src");
    let families: Vec<(&str, &str)> = plugins
        .split("Metric {")
        .skip(1)
        .filter_map(|family| family.split_once("name: \"")?.1.split_once("\", help: \""))
        .map(|(name, rest)| (name, rest.split('"').next().unwrap_or_default()))
        .collect();
    assert!(families.len() > 30, "{families:?}");
    let mut names = BTreeSet::new();
    for (name, help) in families {
        assert!(
            names.insert(name) && !read("crates/metrics/src/names.rs").contains(&format!("\"{name}\"")),
            "{name} twice"
        );
        assert!(name.bytes().all(|octet| matches!(octet, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
        assert!(["coredns_", "localdns_"].iter().any(|start| name.starts_with(start)), "{name}");
        assert!(help.ends_with('.'), "{name}: {help}");
        let counts = help.starts_with("Counter") || help.starts_with("The count");
        assert!(!counts || name.ends_with("_total"), "{name}");
    }
}

/// Metrics of plugins are on the plugin's page and in the list.
#[test]
fn plugin_metrics_are_documented() {
    let list = read("docs/metrics.md") + &read("docs/plugins/README.md");
    let families: Vec<&str> = list.split('`').filter_map(|word| word.strip_suffix('*')).collect();
    let mut count = 0;
    for entry in fs::read_dir(root().join("plugins/src")).expect("plugins have a folder").flatten() {
        if !entry.path().is_dir() {
            continue;
        }
        let folder = format!("plugins/src/{}", entry.file_name().to_string_lossy());
        let (text, page) = (text_of(&folder), read(&format!("{folder}/README.md")));
        for metric in text.split("Metric { name: \"").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(page.contains(metric), "the page in {folder} lacks {metric}");
            let listed = list.contains(&format!("`{metric}`"))
                || families.iter().any(|family| metric.starts_with(family));
            assert!(listed, "neither docs/metrics.md nor docs/plugins/README.md has {metric} or its family");
            count += 1;
        }
    }
    assert!(count > 30, "{count} metrics of plugins");
}

/// The sources in a folder and its subfolders, with single spaces.
fn text_of(folder: &str) -> String {
    let (mut folders, mut text) = (vec![root().join(folder)], String::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("it is there").flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path if path.extension().is_some_and(|extension| extension == "rs") => {
                    text += &fs::read_to_string(path).expect("it can be read");
                }
                _ => {}
            }
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Shares are shown for a node that lacks a directive or has had no failure.
#[test]
fn dashboard_shares_without_some_metrics() {
    if !tool("dashboard_shares_without_some_metrics", "promtool") {
        return;
    }
    let dashboard = dashboard();
    let shown = |title: &str| {
        let panels = dashboard["panels"].as_array().expect("it has panels");
        let panel = panels.iter().find(|panel| panel["title"] == title).expect("such a panel");
        let expression = panel["targets"][0]["expr"].as_str().expect("a target has its expression");
        expression.replace("$job", "dns").replace("$instance", ".*")
    };
    let rising = |series: &str, by: u32| {
        let (name, more) = series.split_once('{').unwrap_or((series, "}"));
        json!({"series": format!("{name}{{job=\"dns\",instance=\"a\",{more}"), "values": format!("0+{by}x60")})
    };
    let all = rising("coredns_dns_requests_total", 600);
    let good = rising("coredns_dns_responses_total{rcode=\"NOERROR\"}", 600);
    let cases = [
        ("Answered from memory", vec![all.clone(), rising("coredns_cache_hits_total", 300)], 0.5),
        ("Answered from memory", vec![all.clone(), rising("localdns_hosts_hits_total", 150)], 0.25),
        ("Answered from memory", vec![all], 0.0),
        ("SERVFAIL", vec![good], 0.0),
    ];
    let tests: Vec<Value> = cases
        .into_iter()
        .map(|(title, series, value)| {
            let samples = [json!({"labels": "{}", "value": value})];
            let wanted = json!({"expr": shown(title), "eval_time": "50m", "exp_samples": samples});
            json!({"interval": "1m", "input_series": series, "promql_expr_test": [wanted]})
        })
        .collect();
    let directory = tempdir();
    let text = json!({"evaluation_interval": "1m", "tests": tests}).to_string();
    fs::write(directory.path().join("shares.yaml"), text).expect("the test's own");
    let mut promtool = Command::new("promtool");
    promtool.args(["test", "rules", "shares.yaml"]).current_dir(directory.path());
    let output = output(promtool, PATIENCE);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The dashboard's panels have titles and do not overlap.
#[test]
fn dashboard_panels_are_laid_out() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let mut cells = BTreeSet::new();
    for panel in panels {
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a panel has its place");
        for cell in (place("y")..place("y") + place("h"))
            .flat_map(|y| (place("x")..place("x") + place("w")).map(move |x| (x, y)))
        {
            assert!(cell.0 < 24 && cells.insert(cell), "{}: {cell:?}", panel["title"]);
        }
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&read("deploy/monitoring/grafana-dashboard.json")).expect("the dashboard is JSON")
}

fn expressions(dashboard: &Value) -> impl Iterator<Item = String> {
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().expect("a target has its expression").to_owned())
}

/// The names of metrics in an expression: localdns's, CoreDNS's and those of the process.
fn metrics(expression: &str) -> impl Iterator<Item = String> {
    expression
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| {
            let ours = ["coredns_", "localdns_", "process_"].iter().any(|start| word.starts_with(start));
            ours && !OF_PROMETHEUS.contains(word)
        })
        .map(str::to_owned)
}
