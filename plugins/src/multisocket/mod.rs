//! `multisocket`: how many sockets an address is served by.

use std::sync::Arc;
use std::thread;

use corefile::Directive;
use plugin::Spec;

use plugin::args::{Args, Result, no_block, number, once};
use plugin::spec::{ParseContext, PluginSpec};

/// What `multisocket [N]` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultisocketSpec {
    /// How many, 1 to 1024; one for each core where no number stands.
    pub sockets: Option<usize>,
}

/// Reads the one `multisocket` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    let directive = once("multisocket", directives)?;
    no_block("multisocket", directive)?;
    let mut args = Args::new("multisocket", directive, "[N], 1 to 1024 sockets");
    let sockets = match args.optional() {
        Some(word) => Some(number("multisocket", word, 1..=1024, "a number of 1 to 1024 sockets")?),
        None => None,
    };
    args.end()?;
    Ok(Arc::new(MultisocketSpec { sockets }))
}

/// How many UDP sockets each address of a configuration has: what `multisocket` says, else one for each core.
pub fn sockets(spec: &Spec) -> usize {
    let said = spec.said().next().and_then(|multisocket: &MultisocketSpec| multisocket.sockets);
    said.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from).min(MAX_DEFAULT_SOCKETS))
}

/// Sockets, and workers, where the Corefile names no number: more than this rarely pays on a node that has other work.
const MAX_DEFAULT_SOCKETS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{refused, said};

    #[test]
    fn number_bounds() {
        assert_eq!(said::<MultisocketSpec>(""), None);
        for (line, sockets) in
            [("multisocket", None), ("multisocket 1", Some(1)), ("multisocket 1024", Some(1024))]
        {
            assert_eq!(said(line), Some(MultisocketSpec { sockets }), "{line}");
        }
        refused(&[
            ("multisocket 0", "2:13: plugin/multisocket: \"0\" is not a number of 1 to 1024 sockets"),
            ("multisocket 1025", "2:13: plugin/multisocket: \"1025\" is not a number of 1 to 1024 sockets"),
            ("multisocket all", "2:13: plugin/multisocket: \"all\" is not a number of 1 to 1024 sockets"),
            (
                "multisocket 1 2",
                "2:15: plugin/multisocket: unexpected argument \"2\"; `multisocket` needs [N], 1 to 1024 sockets",
            ),
        ]);
    }
}
