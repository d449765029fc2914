//! Directives of a line or two: bufsize, debug, loop, multisocket, nsid, root, timeouts, whoami.

use std::path::PathBuf;
use std::time::Duration;

use corefile::Directive;

use super::args::{Args, Result, bad, duration_or_seconds, no_block, number, once, unknown_property};

/// Reads a directive that has neither arguments nor properties.
pub(crate) fn parse_bare(plugin: &'static str, directives: &[&Directive]) -> Result<bool> {
    let directive = once(plugin, directives)?;
    no_block(plugin, directive)?;
    Args::new(plugin, directive, "no argument").end()?;
    Ok(true)
}

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
                let count =
                    number(PLUGIN, word, -1..=i64::from(u32::MAX), "a number of queries, -1 for no bound")?;
                spec.queries = u32::try_from(count).ok().filter(|&count| count > 0);
            }
            _ => return Err(unknown_property(PLUGIN, property, &["idle", "maxtcpqueries", "read", "write"])),
        }
        args.end()?;
    }
    Ok(spec)
}
