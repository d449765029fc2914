//! `cancel`: how long a query may wait for upstreams.

use std::sync::Arc;
use std::time::Duration;

use corefile::Directive;

use plugin::args::{Args, Result, bad, duration, no_block, once};
use plugin::spec::{BuildContext, HooksSpec, ParseContext};

/// The directive `cancel [TIMEOUT]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelSpec {
    /// How long upstreams may take.
    pub timeout: Duration,
}

/// Reads the one `cancel` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn HooksSpec>> {
    let directive = once(PLUGIN, directives)?;
    no_block(PLUGIN, directive)?;
    let mut args = Args::new(PLUGIN, directive, "at most a duration");
    let mut timeout = DEFAULT;
    if let Some(word) = args.optional() {
        timeout = duration(PLUGIN, word, EXPECTED)?;
        if timeout.is_zero() {
            return Err(bad(PLUGIN, word, EXPECTED));
        }
    }
    args.end()?;
    Ok(Arc::new(CancelSpec { timeout }))
}

impl HooksSpec for CancelSpec {
    fn build(&self, context: &mut BuildContext<'_>) {
        context.hooks.patience = Some(self.timeout);
    }
}

const PLUGIN: &str = "cancel";
/// Longer than clients wait by default.
const DEFAULT: Duration = Duration::from_millis(5001);
const EXPECTED: &str = "a duration such as 1s, above 0";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};

    #[test]
    fn timeouts() {
        for (line, millis) in [("cancel", 5001), ("cancel 1s", 1000), ("cancel 1m", 60_000)] {
            assert_eq!(parsed(line), Some(CancelSpec { timeout: Duration::from_millis(millis) }), "{line}");
        }
        let not = "is not a duration such as 1s, above 0";
        refused(&[
            ("cancel 0s", &format!("2:8: plugin/cancel: \"0s\" {not}")),
            ("cancel -1s", &format!("2:8: plugin/cancel: \"-1s\" {not}")),
            ("cancel 5", &format!("2:8: plugin/cancel: \"5\" {not}")),
            (
                "cancel 1s 2s",
                "2:11: plugin/cancel: unexpected argument \"2s\"; `cancel` needs at most a duration",
            ),
            ("cancel\ncancel", "3:1: plugin/cancel: can only be used once per server block; remove one"),
            ("cancel {\nx\n}", "2:1: plugin/cancel: `cancel` has no sub-block; remove the braces"),
        ]);
    }
}
