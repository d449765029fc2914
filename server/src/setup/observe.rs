//! `errors`, `log`, `prometheus`, `health`, `ready`, `reload`: what operators see.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use corefile::{Directive, Located, Word};
use regex::Regex;
use wire::Name;

use super::SetupError;
use super::args::{Args, Result, bad, duration, flag, no_block, once, unknown_property, zones_or};
use super::template::pattern;

/// One line of `log`: which queries are logged, and how.
#[derive(Debug, Clone)]
pub struct LogRule {
    /// Names within this zone.
    pub zone: Name,
    /// CoreDNS's format text, `{common}` and `{combined}` already replaced.
    pub format: String,
    /// Which outcomes.
    pub classes: Classes,
}

/// Classes of outcomes that `log` tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    /// NOERROR with an answer or a delegation, and everything else that is none of the others.
    pub success: bool,
    /// NXDOMAIN and NODATA.
    pub denial: bool,
    /// SERVFAIL, NOTIMP, REFUSED and other rcodes.
    pub error: bool,
}

/// CoreDNS's `{common}` format, the default.
pub(crate) const COMMON: &str = r#"{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" {rcode} {>rflags} {rsize} {duration}"#;
/// CoreDNS's `{combined}` format.
pub(crate) const COMBINED: &str = r#"{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" {rcode} {>rflags} {rsize} {duration} "{>opcode}""#;

/// Reads every `log` of a server block; the first rule whose zone holds a name decides.
pub(crate) fn parse_log(directives: &[&Directive]) -> Result<Vec<LogRule>> {
    const PLUGIN: &str = "log";
    let mut rules = Vec::new();
    for directive in directives {
        let mut words = directive.args.as_slice();
        let mut format = COMMON.to_owned();
        if let [names @ .., last] = words
            && last.text.contains('{')
        {
            format = last.text.replace("{common}", COMMON).replace("{combined}", COMBINED);
            words = names;
        }
        let mut classes: Option<Classes> = None;
        for property in directive.body.iter().flatten() {
            if property.name.text != "class" {
                return Err(unknown_property(PLUGIN, property, &["class"]));
            }
            for word in Args::new(PLUGIN, property, "success, denial, error or all").some()? {
                let classes = classes.get_or_insert(Classes { success: false, denial: false, error: false });
                match word.text.as_str() {
                    "success" => classes.success = true,
                    "denial" => classes.denial = true,
                    "error" => classes.error = true,
                    "all" => *classes = Classes { success: true, denial: true, error: true },
                    _ => return Err(bad(PLUGIN, word, "one of success, denial, error, all")),
                }
            }
        }
        let classes = classes.unwrap_or(Classes { success: true, denial: true, error: true });
        for zone in zones_or(words, &[Name::ROOT])? {
            rules.push(LogRule { zone, format: format.clone(), classes });
        }
    }
    Ok(rules)
}

/// What `errors` says.
#[derive(Debug, Clone, Default)]
pub struct ErrorsSpec {
    /// Patterns whose errors are counted and printed once in a while; the first that matches decides.
    pub consolidate: Vec<Consolidate>,
}

/// One `consolidate`.
#[derive(Debug, Clone)]
pub struct Consolidate {
    /// How long errors are counted before they are printed.
    pub period: Duration,
    /// Which errors.
    pub pattern: Regex,
    /// At which level they are printed.
    pub level: Level,
    /// Whether the first one is printed at once.
    pub show_first: bool,
}

/// A log level, as CoreDNS prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// `[DEBUG]`.
    Debug,
    /// `[INFO]`.
    Info,
    /// `[WARNING]`.
    Warning,
    /// `[ERROR]`.
    Error,
}

/// Reads the one `errors` of a server block.
pub(crate) fn parse_errors(directives: &[&Directive]) -> Result<ErrorsSpec> {
    const PLUGIN: &str = "errors";
    let directive = once(PLUGIN, directives)?;
    let mut args = Args::new(PLUGIN, directive, "no argument");
    // CoreDNS takes `errors stdout` from old files and means the same.
    if let Some(word) = args.optional()
        && word.text != "stdout"
    {
        return Err(bad(PLUGIN, word, "`stdout`, the only destination"));
    }
    args.end()?;
    let mut spec = ErrorsSpec::default();
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            "stacktrace" => {
                flag(PLUGIN, property)?;
            }
            "consolidate" => {
                let mut args = Args::new(PLUGIN, property, "DURATION REGEXP [LEVEL] [show_first]");
                let period = args.duration("a duration such as 5m")?;
                let pattern = pattern(PLUGIN, args.required()?)?;
                let (mut level, mut show_first) = (Level::Error, false);
                for word in args.rest() {
                    match word.text.as_str() {
                        "debug" => level = Level::Debug,
                        "info" => level = Level::Info,
                        "warning" => level = Level::Warning,
                        "error" => level = Level::Error,
                        "show_first" => show_first = true,
                        _ => {
                            return Err(bad(
                                PLUGIN,
                                word,
                                "a level (debug, info, warning, error) or show_first",
                            ));
                        }
                    }
                }
                spec.consolidate.push(Consolidate { period, pattern, level, show_first });
            }
            _ => return Err(unknown_property(PLUGIN, property, &["consolidate", "stacktrace"])),
        }
    }
    Ok(spec)
}

/// What `health` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthSpec {
    /// Where /health is served; default every address, port 8080.
    pub address: AdminAddress,
    /// How long everything goes on after SIGTERM; default 0.
    pub lameduck: Duration,
}

/// Reads the one `health` of a server block.
pub(crate) fn parse_health(directives: &[&Directive]) -> Result<HealthSpec> {
    const PLUGIN: &str = "health";
    let directive = once(PLUGIN, directives)?;
    let address = admin_address(PLUGIN, directive, AdminAddress::everywhere(8080))?;
    let mut spec = HealthSpec { address, lameduck: Duration::ZERO };
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            "lameduck" => {
                let mut args = Args::new(PLUGIN, property, "a duration");
                spec.lameduck = args.duration("a duration such as 5s")?;
                args.end()?;
            }
            _ => return Err(unknown_property(PLUGIN, property, &["lameduck"])),
        }
    }
    Ok(spec)
}

/// What `ready` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadySpec {
    /// Where /ready is served; default every address, port 8181.
    pub address: AdminAddress,
    /// Whether a plugin that was ready once is asked again.
    pub continuously: bool,
}

/// Reads the one `ready` of a server block.
pub(crate) fn parse_ready(directives: &[&Directive]) -> Result<ReadySpec> {
    const PLUGIN: &str = "ready";
    let directive = once(PLUGIN, directives)?;
    let address = admin_address(PLUGIN, directive, AdminAddress::everywhere(8181))?;
    let mut spec = ReadySpec { address, continuously: false };
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            "monitor" => {
                let mut args = Args::new(PLUGIN, property, "until-ready or continuously");
                let word = args.required()?;
                spec.continuously = match word.text.as_str() {
                    "continuously" => true,
                    "until-ready" => false,
                    _ => return Err(bad(PLUGIN, word, "until-ready or continuously")),
                };
                args.end()?;
            }
            _ => return Err(unknown_property(PLUGIN, property, &["monitor"])),
        }
    }
    Ok(spec)
}

/// What `prometheus` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrometheusSpec {
    /// Where /metrics is served; default localhost, port 9153.
    pub address: AdminAddress,
}

/// Reads the one `prometheus` of a server block.
pub(crate) fn parse_prometheus(directives: &[&Directive]) -> Result<PrometheusSpec> {
    const PLUGIN: &str = "prometheus";
    let directive = once(PLUGIN, directives)?;
    let default = AdminAddress { host: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), port: 9153 };
    let address = admin_address(PLUGIN, directive, default)?;
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            // Go's runtime has no counterpart here: there is nothing to choose.
            "runtime_metrics" => {
                Args::new(PLUGIN, property, "the names of Go's runtime metrics").rest();
            }
            "tls" => {
                return Err(Located::new(
                    &property.name.at,
                    SetupError::PropertyNotBuilt { plugin: PLUGIN, property: "tls" },
                ));
            }
            _ => return Err(unknown_property(PLUGIN, property, &["runtime_metrics", "tls"])),
        }
    }
    Ok(PrometheusSpec { address })
}

/// What `reload` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReloadSpec {
    /// How often the Corefile is read again; default 30 s, at least 2 s.
    pub interval: Duration,
    /// By how much each look is shifted at random; default 15 s, 0 or at least 1 s, at most half the interval.
    pub jitter: Duration,
}

/// Reads the one `reload` of a server block.
pub(crate) fn parse_reload(directives: &[&Directive]) -> Result<ReloadSpec> {
    const PLUGIN: &str = "reload";
    let directive = once(PLUGIN, directives)?;
    no_block(PLUGIN, directive)?;
    let mut args = Args::new(PLUGIN, directive, "[INTERVAL] [JITTER]");
    let mut interval = Duration::from_secs(30);
    if let Some(word) = args.optional() {
        interval = duration(PLUGIN, word, "a duration of at least 2s")?;
        if interval < Duration::from_secs(2) {
            return Err(bad(PLUGIN, word, "a duration of at least 2s"));
        }
    }
    let mut jitter = Duration::from_secs(15);
    if let Some(word) = args.optional() {
        jitter = duration(PLUGIN, word, "0 or a duration of at least 1s")?;
        if !jitter.is_zero() && jitter < Duration::from_secs(1) {
            return Err(bad(PLUGIN, word, "0 or a duration of at least 1s"));
        }
    }
    args.end()?;
    Ok(ReloadSpec { interval, jitter: jitter.min(interval / 2) })
}

/// `HOST:PORT` of an admin listener; no host means every address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdminAddress {
    /// The address, if one is named.
    pub host: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

impl AdminAddress {
    fn everywhere(port: u16) -> Self {
        Self { host: None, port }
    }

    /// The addresses to listen on: the one named, or IPv6 and IPv4 wildcards.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        match self.host {
            Some(host) => vec![SocketAddr::new(host, self.port)],
            None => vec![
                SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), self.port),
                SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), self.port),
            ],
        }
    }
}

fn admin_address(plugin: &'static str, directive: &Directive, default: AdminAddress) -> Result<AdminAddress> {
    let mut args = Args::new(plugin, directive, "[ADDRESS:PORT]");
    let Some(word) = args.optional() else { return Ok(default) };
    args.end()?;
    parse_admin_address(word)
        .ok_or_else(|| bad(plugin, word, "ADDRESS:PORT, such as :9153 or 127.0.0.1:9153"))
}

fn parse_admin_address(word: &Word) -> Option<AdminAddress> {
    let (host, port) = word.text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = match host {
        "" => None,
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        host => Some(host.trim_start_matches('[').trim_end_matches(']').parse().ok()?),
    };
    Some(AdminAddress { host, port })
}

#[cfg(test)]
mod tests {
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
                (
                    "consolidate 5m",
                    "1: plugin/errors: `consolidate` wants DURATION REGEXP [LEVEL] [show_first]",
                ),
                (
                    "consolidate 5m x loud",
                    "18: plugin/errors: \"loud\" is not a level (debug, info, warning, error) or show_first",
                ),
                (
                    "consolidate 5m (",
                    "16: plugin/errors: the regular expression cannot be used: unclosed group",
                ),
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
                ("lame 5s", "1: plugin/health: unknown property \"lame\""),
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
}
