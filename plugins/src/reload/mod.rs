//! `reload`: interval of checking the Corefile.

pub mod metrics;

use std::sync::Arc;
use std::time::Duration;

use corefile::Directive;

use plugin::args::{Args, Result, bad, duration, no_block, once};
use plugin::spec::{ParseContext, PluginSpec};

/// The directive `reload`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReloadSpec {
    /// How often the Corefile is read again; default 30 s, at least 2 s.
    pub interval: Duration,
    /// Maximum random shift of each check; default 15 s, 0 or at least 1 s, at most half the
    /// interval.
    pub jitter: Duration,
}

/// Reads the one `reload` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
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
    Ok(Arc::new(ReloadSpec { interval, jitter: jitter.min(interval / 2) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};

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
            assert_eq!(parsed(line), Some(ReloadSpec { interval, jitter }), "{line}");
        }
        refused(&[
            ("reload 1s", "2:8: plugin/reload: \"1s\" is not a duration of at least 2s"),
            ("reload soon", "2:8: plugin/reload: \"soon\" is not a duration of at least 2s"),
            ("reload 10s 999ms", "2:12: plugin/reload: \"999ms\" is not 0 or a duration of at least 1s"),
            (
                "reload 10s 1s x",
                "2:15: plugin/reload: unexpected argument \"x\"; `reload` needs [INTERVAL] [JITTER]",
            ),
            ("reload {\nx\n}", "2:1: plugin/reload: `reload` has no sub-block; remove the braces"),
        ]);
    }
}
