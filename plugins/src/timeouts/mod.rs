//! `timeouts`: time limits of TCP connections.

use std::sync::Arc;
use std::time::Duration;

use corefile::{Directive, Located};

use plugin::SetupError;
use plugin::args::{Args, Result, bad, duration_or_seconds, number, once, unknown_property};
use plugin::spec::{ParseContext, PluginSpec};

/// The directive `timeouts`, for TCP clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeoutsSpec {
    /// Time limit for the first byte, and then for each message; default 3 s, 1 s to 24 h.
    pub read: Duration,
    /// Time limit for writing a reply; default 5 s, 1 s to 24 h.
    pub write: Duration,
    /// Maximum idle time of a connection; default 10 s, 1 s to 24 h.
    pub idle: Duration,
    /// Maximum number of queries on a connection; `None`, the default, for no limit.
    pub queries: Option<u32>,
}

impl Default for TimeoutsSpec {
    fn default() -> Self {
        let [read, write, idle] = [3, 5, 10].map(Duration::from_secs);
        Self { read, write, idle, queries: None }
    }
}

/// Reads the one `timeouts` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    const PLUGIN: &str = "timeouts";
    const EXPECTED: &str = "a duration of 1s to 24h";
    const QUERIES: &str = "a number of queries above 0, or -1 for no bound";
    let directive = once(PLUGIN, directives)?;
    Args::new(PLUGIN, directive, "properties in braces").end()?;
    let mut spec = TimeoutsSpec::default();
    for property in directive.body.iter().flatten() {
        let mut args = Args::new(PLUGIN, property, EXPECTED);
        let mut time = || -> Result<Duration> {
            let word = args.required()?;
            let time = duration_or_seconds(PLUGIN, word, EXPECTED)?;
            match time.as_secs() {
                1..86_400 => Ok(time),
                86_400 if time.subsec_nanos() == 0 => Ok(time),
                _ => Err(bad(PLUGIN, word, EXPECTED)),
            }
        };
        match property.name.text.as_str() {
            "read" => spec.read = time()?,
            "write" => spec.write = time()?,
            "idle" => spec.idle = time()?,
            "maxtcpqueries" => {
                let word = args.required()?;
                let count = number(PLUGIN, word, -1..=i64::from(u32::MAX), QUERIES)?;
                if count == 0 {
                    return Err(bad(PLUGIN, word, QUERIES));
                }
                spec.queries = u32::try_from(count).ok().filter(|&count| count > 0);
            }
            _ => return Err(unknown_property(PLUGIN, property, &["idle", "maxtcpqueries", "read", "write"])),
        }
        args.end()?;
    }
    if directive.body.iter().flatten().next().is_none() {
        let rule = "`timeouts` needs at least one of idle, maxtcpqueries, read and write; or remove it";
        return Err(Located::new(&directive.name.at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    Ok(Arc::new(spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties, with};

    #[test]
    fn timeouts_are_durations_or_seconds() {
        let default = TimeoutsSpec::default();
        let second = Duration::from_secs(1);
        for (property, expected) in [
            ("read 1s", TimeoutsSpec { read: second, ..default }),
            ("write 1500ms", TimeoutsSpec { write: second * 3 / 2, ..default }),
            ("idle 20", TimeoutsSpec { idle: second * 20, ..default }),
            ("idle 24h", TimeoutsSpec { idle: second * 86_400, ..default }),
            ("maxtcpqueries 5", TimeoutsSpec { queries: Some(5), ..default }),
            ("maxtcpqueries -1", default),
        ] {
            assert_eq!(parsed(&with("timeouts", property)), Some(expected), "{property}");
        }
        refused(&[(
            "timeouts",
            "2:1: plugin/timeouts: `timeouts` needs at least one of idle, maxtcpqueries, read and write; or remove it",
        )]);
        refused(&[(
            "timeouts {\n}",
            "2:1: plugin/timeouts: `timeouts` needs at least one of idle, maxtcpqueries, read and write; or remove it",
        )]);
        refused(&[(
            "timeouts 5s",
            "2:10: plugin/timeouts: unexpected argument \"5s\"; `timeouts` needs properties in braces",
        )]);
        refused_properties(
            "timeouts",
            &[
                ("read", "1: plugin/timeouts: `read` needs a duration of 1s to 24h"),
                ("read 999ms", "6: plugin/timeouts: \"999ms\" is not a duration of 1s to 24h"),
                ("write 0", "7: plugin/timeouts: \"0\" is not a duration of 1s to 24h"),
                ("idle 24h1ns", "6: plugin/timeouts: \"24h1ns\" is not a duration of 1s to 24h"),
                ("idle -1s", "6: plugin/timeouts: \"-1s\" is not a duration of 1s to 24h"),
                (
                    "read 1s 2s",
                    "9: plugin/timeouts: unexpected argument \"2s\"; `read` needs a duration of 1s to 24h",
                ),
                (
                    "maxtcpqueries -2",
                    "15: plugin/timeouts: \"-2\" is not a number of queries above 0, or -1 for no bound",
                ),
                ("raed 1s", "1: plugin/timeouts: unknown property \"raed\"; did you mean `read`?"),
            ],
        );
    }
}
