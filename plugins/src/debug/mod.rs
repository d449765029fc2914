//! `debug`: debug lines in the log.

use std::sync::Arc;

use corefile::Directive;

use plugin::args::{Result, bare};
use plugin::spec::{ParseContext, PluginSpec};

/// The directive: lines of level debug are logged.
#[derive(Debug, Clone, Copy)]
pub struct DebugSpec;

/// Reads the one `debug` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    bare("debug", directives)?;
    Ok(Arc::new(DebugSpec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};

    #[test]
    fn debug_takes_no_argument() {
        assert!(parsed::<DebugSpec>("debug").is_some());
        assert!(parsed::<DebugSpec>("whoami").is_none());
        refused(&[
            ("debug all", "2:7: plugin/debug: unexpected argument \"all\"; `debug` needs no argument"),
            ("debug {\nx\n}", "2:1: plugin/debug: `debug` has no sub-block; remove the braces"),
            ("debug\ndebug", "3:1: plugin/debug: can only be used once per server block; remove one"),
        ]);
    }
}
