//! `errors`, `log`, `prometheus`, `health`, `ready`, `reload`: what operators see.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use admin::AdminAddress;
use corefile::{Directive, Located};
use observe::errors::{Consolidate, ErrorsSpec};
use observe::log::{Classes, LogRule};
use observe::logger::Level;
use wire::Name;

use super::SetupError;
use super::args::{Args, Result, bad, duration, flag, no_block, once, regex, unknown_property, zones_or};

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
                let pattern = regex(PLUGIN, args.required()?)?;
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

fn admin_address(plugin: &'static str, directive: &Directive, default: AdminAddress) -> Result<AdminAddress> {
    let mut args = Args::new(plugin, directive, "[ADDRESS:PORT]");
    let Some(word) = args.optional() else { return Ok(default) };
    args.end()?;
    AdminAddress::from_text(&word.text)
        .ok_or_else(|| bad(plugin, word, "ADDRESS:PORT, such as :9153 or 127.0.0.1:9153"))
}

#[cfg(test)]
mod tests;
