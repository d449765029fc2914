//! What the directives that observe say, and what is wrong with them.

use super::super::tests::{good, refused, refused_properties, with};
use super::*;

const ALL: Classes = Classes { success: true, denial: true, error: true };

#[test]
fn log_lines_become_rules_in_file_order() {
    let rules = |lines: &str| -> Vec<(String, String, Classes)> {
        let rules = good(lines).log.into_iter();
        rules.map(|rule| (rule.zone.to_string(), rule.format, rule.classes)).collect()
    };
    let rule = |zone: &str, format: &str, classes| (zone.to_owned(), format.to_owned(), classes);
    let only = |success, denial, error| Classes { success, denial, error };
    for (lines, expected) in [
        ("whoami", vec![]),
        ("log", vec![rule(".", COMMON, ALL)]),
        ("log a.org b.org", vec![rule("a.org.", COMMON, ALL), rule("b.org.", COMMON, ALL)]),
        ("log a.org \"{name} {rcode}\"", vec![rule("a.org.", "{name} {rcode}", ALL)]),
        ("log . {combined}", vec![rule(".", COMBINED, ALL)]),
        ("log . \"{common} x\"", vec![rule(".", &format!("{COMMON} x"), ALL)]),
        ("log {\nclass denial error\n}", vec![rule(".", COMMON, only(false, true, true))]),
        ("log {\nclass success\nclass denial\n}", vec![rule(".", COMMON, only(true, true, false))]),
        ("log {\nclass success all\n}", vec![rule(".", COMMON, ALL)]),
        ("log a.org\nlog", vec![rule("a.org.", COMMON, ALL), rule(".", COMMON, ALL)]),
    ] {
        assert_eq!(rules(lines), expected, "{lines}");
    }
    refused(&[("log a..b", "2:5: the zone `a..b` has an empty label")]);
    refused_properties(
        "log",
        &[
            ("class", "1: plugin/log: `class` wants success, denial, error or all"),
            ("class errors", "7: plugin/log: \"errors\" is not one of success, denial, error, all"),
            ("clas error", "1: plugin/log: unknown property \"clas\"; did you mean `class`?"),
        ],
    );
}

#[test]
fn errors_are_consolidated_by_pattern() {
    for lines in ["errors", "errors stdout", "errors {\nstacktrace\n}"] {
        assert!(good(lines).errors.unwrap().consolidate.is_empty(), "{lines}");
    }
    let lines = "errors {\nconsolidate 5m \".* i/o timeout$\" warning\nconsolidate 30s ^x show_first\n}";
    let found: Vec<_> = good(lines)
        .errors
        .unwrap()
        .consolidate
        .into_iter()
        .map(|c| (c.period.as_secs(), c.pattern.as_str().to_owned(), c.level, c.show_first))
        .collect();
    assert_eq!(
        found,
        [
            (300, ".* i/o timeout$".to_owned(), Level::Warning, false),
            (30, "^x".to_owned(), Level::Error, true)
        ]
    );
    refused(&[
        ("errors stderr", "2:8: plugin/errors: \"stderr\" is not `stdout`, the only destination"),
        ("errors stdout x", "2:15: plugin/errors: unexpected argument \"x\"; `errors` wants no argument"),
    ]);
    refused_properties(
        "errors",
        &[
            ("consolidate", "1: plugin/errors: `consolidate` wants DURATION REGEXP [LEVEL] [show_first]"),
            ("consolidate 5 x", "13: plugin/errors: \"5\" is not a duration such as 5m"),
            ("consolidate 5m", "1: plugin/errors: `consolidate` wants DURATION REGEXP [LEVEL] [show_first]"),
            (
                "consolidate 5m x loud",
                "18: plugin/errors: \"loud\" is not a level (debug, info, warning, error) or show_first",
            ),
            ("consolidate 5m (", "16: plugin/errors: the regular expression cannot be used: unclosed group"),
            (
                "stacktrace on",
                "12: plugin/errors: unexpected argument \"on\"; `stacktrace` wants no argument",
            ),
            (
                "consolidat 5m x",
                "1: plugin/errors: unknown property \"consolidat\"; did you mean `consolidate`?",
            ),
        ],
    );
}

#[test]
fn admin_addresses_have_the_defaults_of_coredns() {
    let shown = |address: AdminAddress| {
        address.sockets().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    for (argument, health, ready, prometheus) in [
        ("", "0.0.0.0:8080 [::]:8080", "0.0.0.0:8181 [::]:8181", "127.0.0.1:9153"),
        (":1", "0.0.0.0:1 [::]:1", "0.0.0.0:1 [::]:1", "0.0.0.0:1 [::]:1"),
        ("localhost:1", "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"),
        ("localhost:", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"),
        ("169.254.10.10:1", "169.254.10.10:1", "169.254.10.10:1", "169.254.10.10:1"),
        ("[::1]:1", "[::1]:1", "[::1]:1", "[::1]:1"),
    ] {
        let block = good(&format!("health {argument}\nready {argument}\nprometheus {argument}"));
        assert_eq!(shown(block.health.unwrap().address), health, "{argument}");
        assert_eq!(shown(block.ready.unwrap().address), ready, "{argument}");
        assert_eq!(shown(block.prometheus.unwrap().address), prometheus, "{argument}");
    }
    const ADDRESS: &str = "is not ADDRESS:PORT, such as :9153 or 127.0.0.1:9153";
    for plugin in ["health", "ready", "prometheus"] {
        let column = plugin.len() + 2;
        for wrong in ["9153", "host:9153", ":65536", "::1:x", "127.0.0.1"] {
            let error = format!("2:{column}: plugin/{plugin}: {wrong:?} {ADDRESS}");
            refused(&[(&format!("{plugin} {wrong}"), &error)]);
        }
        let error = format!(
            "2:{}: plugin/{plugin}: unexpected argument \"x\"; `{plugin}` wants [ADDRESS:PORT]",
            column + 3
        );
        refused(&[(&format!("{plugin} :1 x"), &error)]);
    }
}

#[test]
fn properties_of_admin_directives() {
    let lameduck = good(&with("health", "lameduck 5s")).health.unwrap().lameduck;
    assert_eq!(lameduck, Duration::from_secs(5));
    for (lines, continuously) in [
        ("ready".to_owned(), false),
        (with("ready", "monitor until-ready"), false),
        (with("ready", "monitor continuously"), true),
    ] {
        assert_eq!(good(&lines).ready.unwrap().continuously, continuously, "{lines}");
    }
    assert!(good(&with("prometheus", "runtime_metrics go_gc go_memory")).prometheus.is_some());
    refused_properties(
        "health",
        &[
            ("lameduck", "1: plugin/health: `lameduck` wants a duration"),
            ("lameduck 5", "10: plugin/health: \"5\" is not a duration such as 5s"),
            ("lame 5s", "1: plugin/health: unknown property \"lame\"; expected lameduck"),
        ],
    );
    refused_properties(
        "ready",
        &[
            ("monitor", "1: plugin/ready: `monitor` wants until-ready or continuously"),
            ("monitor never", "9: plugin/ready: \"never\" is not until-ready or continuously"),
            ("moniter never", "1: plugin/ready: unknown property \"moniter\"; did you mean `monitor`?"),
        ],
    );
    refused_properties(
        "prometheus",
        &[
            (
                "tls web.yml",
                "1: plugin/prometheus: the property `tls` of CoreDNS is not built yet; remove it, or keep CoreDNS for this server block",
            ),
            (
                "runtime_metric x",
                "1: plugin/prometheus: unknown property \"runtime_metric\"; did you mean `runtime_metrics`?",
            ),
        ],
    );
}

#[test]
fn reload_has_an_interval_and_a_jitter() {
    for (line, interval, jitter_ms) in [
        ("reload", 30, 15_000),
        ("reload 2s", 2, 1000),
        ("reload 1m", 60, 15_000),
        ("reload 10s 1s", 10, 1000),
        ("reload 10s 0s", 10, 0),
        ("reload 10s 9s", 10, 5000),
    ] {
        let (interval, jitter) = (Duration::from_secs(interval), Duration::from_millis(jitter_ms));
        assert_eq!(good(line).reload, Some(ReloadSpec { interval, jitter }), "{line}");
    }
    refused(&[
        ("reload 1s", "2:8: plugin/reload: \"1s\" is not a duration of at least 2s"),
        ("reload soon", "2:8: plugin/reload: \"soon\" is not a duration of at least 2s"),
        ("reload 10s 999ms", "2:12: plugin/reload: \"999ms\" is not 0 or a duration of at least 1s"),
        (
            "reload 10s 1s x",
            "2:15: plugin/reload: unexpected argument \"x\"; `reload` wants [INTERVAL] [JITTER]",
        ),
        ("reload {\nx\n}", "2:1: plugin/reload: `reload` has no sub-block; remove the braces"),
    ]);
}
