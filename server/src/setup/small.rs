//! Directives of a line or two: bufsize, debug, loop, multisocket, nsid, root, timeouts, whoami.

use std::path::PathBuf;
use std::time::Duration;

use corefile::{Directive, Located};

use super::SetupError;
use super::args::{Args, Result, bad, duration_or_seconds, no_block, number, once, unknown_property};

/// `root PATH`: where relative paths of this block start.
pub(crate) fn parse_root(directives: &[&Directive]) -> Result<PathBuf> {
    let directive = once("root", directives)?;
    no_block("root", directive)?;
    let mut args = Args::new("root", directive, "a directory");
    let path = PathBuf::from(&args.required()?.text);
    args.end()?;
    Ok(path)
}

/// `bufsize [SIZE]`: the largest UDP reply; default 1232, 512 to 4096.
pub(crate) fn parse_bufsize(directives: &[&Directive]) -> Result<u16> {
    let directive = once("bufsize", directives)?;
    no_block("bufsize", directive)?;
    let mut args = Args::new("bufsize", directive, "[SIZE], 512 to 4096 octets");
    let size = match args.optional() {
        Some(word) => number("bufsize", word, 512..=4096, "a size of 512 to 4096 octets")?,
        None => wire::UDP_SIZE,
    };
    args.end()?;
    Ok(size)
}

/// `nsid [DATA]`: the identifier as it travels; `None` means the host's name.
pub(crate) fn parse_nsid(directives: &[&Directive]) -> Result<Option<String>> {
    let directive = once("nsid", directives)?;
    no_block("nsid", directive)?;
    let words: Vec<&str> = directive.args.iter().map(|word| word.text.as_str()).collect();
    if words.is_empty() {
        return Ok(None);
    }
    let data = words.join(" ");
    // It must fit one OPT beside an Extended DNS Error.
    if data.len() > 128 {
        return Err(bad("nsid", &directive.args[0], "an identifier of at most 128 octets"));
    }
    Ok(Some(data))
}

/// `multisocket [N]`: workers; default one per core, at most 1024.
pub(crate) fn parse_multisocket(directives: &[&Directive]) -> Result<Option<usize>> {
    let directive = once("multisocket", directives)?;
    no_block("multisocket", directive)?;
    let mut args = Args::new("multisocket", directive, "[N], 1 to 1024 workers");
    let workers = match args.optional() {
        Some(word) => Some(number("multisocket", word, 1..=1024, "a number of 1 to 1024 workers")?),
        None => None,
    };
    args.end()?;
    Ok(workers)
}

/// What `timeouts` says, for TCP clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeoutsSpec {
    /// How long the first octet, and then each message, may take; default 3 s, 1 s to 24 h.
    pub read: Duration,
    /// How long a reply may take to be written; default 5 s, 1 s to 24 h.
    pub write: Duration,
    /// How long a connection may be idle; default 10 s, 1 s to 24 h.
    pub idle: Duration,
    /// Queries a connection may bring; `None` without bound, the default.
    pub queries: Option<u32>,
}

impl Default for TimeoutsSpec {
    fn default() -> Self {
        let [read, write, idle] = [3, 5, 10].map(Duration::from_secs);
        Self { read, write, idle, queries: None }
    }
}

/// Reads the one `timeouts` of a server block.
pub(crate) fn parse_timeouts(directives: &[&Directive]) -> Result<TimeoutsSpec> {
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
        let rule = "`timeouts` wants at least one of idle, maxtcpqueries, read and write; or remove it";
        return Err(Located::new(&directive.name.at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{good, refused, refused_properties, with};
    use super::*;

    #[test]
    fn words_without_arguments_take_none() {
        for (name, set) in [
            ("debug", (true, false, false)),
            ("loop", (false, true, false)),
            ("whoami", (false, false, true)),
        ] {
            let block = good(name);
            assert_eq!((block.debug, block.detect_loop, block.whoami), set);
            let column = name.len() + 2;
            let extra =
                format!("2:{column}: plugin/{name}: unexpected argument \"x\"; `{name}` wants no argument");
            let body = format!("2:1: plugin/{name}: `{name}` has no sub-block; remove the braces");
            refused(&[(&format!("{name} x"), &extra), (&with(name, "x"), &body)]);
        }
    }

    #[test]
    fn sizes_numbers_and_identifiers() {
        assert_eq!(good("").bufsize, None);
        for (line, size) in
            [("bufsize", 1232), ("bufsize 512", 512), ("bufsize 4096", 4096), ("bufsize +600", 600)]
        {
            assert_eq!(good(line).bufsize, Some(size), "{line}");
        }
        assert_eq!(good("").multisocket, None);
        for (line, workers) in
            [("multisocket", None), ("multisocket 1", Some(1)), ("multisocket 1024", Some(1024))]
        {
            assert_eq!(good(line).multisocket, Some(workers), "{line}");
        }
        let longest = "a".repeat(128);
        for (line, data) in [
            ("nsid".to_owned(), None),
            ("nsid node-1".to_owned(), Some("node-1")),
            ("nsid node  1".to_owned(), Some("node 1")),
            ("nsid \"node  1\"".to_owned(), Some("node  1")),
            (format!("nsid {longest}"), Some(longest.as_str())),
        ] {
            assert_eq!(good(&line).nsid, Some(data.map(str::to_owned)), "{line}");
        }
        let too_long = "a".repeat(129);
        let long_line = format!("nsid {too_long}");
        let long_error = format!("2:6: plugin/nsid: {too_long:?} is not an identifier of at most 128 octets");
        refused(&[
            ("bufsize 511", "2:9: plugin/bufsize: \"511\" is not a size of 512 to 4096 octets"),
            ("bufsize 4097", "2:9: plugin/bufsize: \"4097\" is not a size of 512 to 4096 octets"),
            ("bufsize -600", "2:9: plugin/bufsize: \"-600\" is not a size of 512 to 4096 octets"),
            ("bufsize 99999", "2:9: plugin/bufsize: \"99999\" is not a size of 512 to 4096 octets"),
            ("bufsize 1k", "2:9: plugin/bufsize: \"1k\" is not a size of 512 to 4096 octets"),
            (
                "bufsize 512 513",
                "2:13: plugin/bufsize: unexpected argument \"513\"; `bufsize` wants [SIZE], 512 to 4096 octets",
            ),
            ("bufsize {\nx\n}", "2:1: plugin/bufsize: `bufsize` has no sub-block; remove the braces"),
            ("multisocket 0", "2:13: plugin/multisocket: \"0\" is not a number of 1 to 1024 workers"),
            ("multisocket 1025", "2:13: plugin/multisocket: \"1025\" is not a number of 1 to 1024 workers"),
            ("multisocket all", "2:13: plugin/multisocket: \"all\" is not a number of 1 to 1024 workers"),
            (
                "multisocket 1 2",
                "2:15: plugin/multisocket: unexpected argument \"2\"; `multisocket` wants [N], 1 to 1024 workers",
            ),
            (&long_line, &long_error),
            ("nsid a {\nx\n}", "2:1: plugin/nsid: `nsid` has no sub-block; remove the braces"),
            ("root", "2:1: plugin/root: `root` wants a directory"),
            ("root /a /b", "2:9: plugin/root: unexpected argument \"/b\"; `root` wants a directory"),
        ]);
    }

    #[test]
    fn relative_paths_start_at_root() {
        for (line, file) in
            [("hosts h", "h"), ("hosts h\nroot /srv", "/srv/h"), ("root /srv\nhosts /etc/h", "/etc/h")]
        {
            assert_eq!(good(line).hosts.unwrap().file, PathBuf::from(file), "{line}");
        }
    }

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
            assert_eq!(good(&with("timeouts", property)).timeouts, Some(expected), "{property}");
        }
        refused(&[(
            "timeouts",
            "2:1: plugin/timeouts: `timeouts` wants at least one of idle, maxtcpqueries, read and write; or remove it",
        )]);
        refused(&[(
            "timeouts {\n}",
            "2:1: plugin/timeouts: `timeouts` wants at least one of idle, maxtcpqueries, read and write; or remove it",
        )]);
        refused(&[(
            "timeouts 5s",
            "2:10: plugin/timeouts: unexpected argument \"5s\"; `timeouts` wants properties in braces",
        )]);
        refused_properties(
            "timeouts",
            &[
                ("read", "1: plugin/timeouts: `read` wants a duration of 1s to 24h"),
                ("read 999ms", "6: plugin/timeouts: \"999ms\" is not a duration of 1s to 24h"),
                ("write 0", "7: plugin/timeouts: \"0\" is not a duration of 1s to 24h"),
                ("idle 24h1ns", "6: plugin/timeouts: \"24h1ns\" is not a duration of 1s to 24h"),
                ("idle -1s", "6: plugin/timeouts: \"-1s\" is not a duration of 1s to 24h"),
                (
                    "read 1s 2s",
                    "9: plugin/timeouts: unexpected argument \"2s\"; `read` wants a duration of 1s to 24h",
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
