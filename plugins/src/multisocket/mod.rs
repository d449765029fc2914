//! `multisocket`: number of sockets for each address.

use std::sync::Arc;
use std::thread;

use corefile::Directive;
use plugin::Spec;

use plugin::args::{Args, Result, no_block, number, once};
use plugin::spec::{ParseContext, PluginSpec};

/// The directive `multisocket [N]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultisocketSpec {
    /// Number of sockets, 1 to 1024; `None` means one for each core.
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

/// Returns the number of UDP sockets for each address: from `multisocket`, otherwise one for each
/// core up to `MAX_DEFAULT_SOCKETS`.
pub fn sockets(spec: &Spec) -> usize {
    let configured = spec.specs().next().and_then(|multisocket: &MultisocketSpec| multisocket.sockets);
    configured
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from).min(MAX_DEFAULT_SOCKETS))
}

/// Maximum number of sockets and workers by default: more rarely helps on a node with other work.
const MAX_DEFAULT_SOCKETS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};

    #[test]
    fn number_bounds() {
        assert_eq!(parsed::<MultisocketSpec>(""), None);
        for (line, sockets) in
            [("multisocket", None), ("multisocket 1", Some(1)), ("multisocket 1024", Some(1024))]
        {
            assert_eq!(parsed(line), Some(MultisocketSpec { sockets }), "{line}");
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
