//! `bufsize`: maximum size of a reply over UDP.

use std::sync::Arc;

use corefile::Directive;

use plugin::args::{Args, Result, no_block, number, once};
use plugin::hooks::ReplySize;
use plugin::spec::{BuildContext, HooksSpec, ParseContext};

/// The directive `bufsize [SIZE]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufsizeSpec {
    /// Maximum size of a UDP reply in bytes; default 1232, 512 to 4096.
    pub octets: u16,
}

/// Reads the one `bufsize` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn HooksSpec>> {
    let directive = once("bufsize", directives)?;
    no_block("bufsize", directive)?;
    let mut args = Args::new("bufsize", directive, "[SIZE], 512 to 4096 octets");
    let octets = match args.optional() {
        Some(word) => number("bufsize", word, 512..=wire::MAX_UDP_SIZE, "a size of 512 to 4096 octets")?,
        None => wire::UDP_SIZE,
    };
    args.end()?;
    Ok(Arc::new(BufsizeSpec { octets }))
}

impl HooksSpec for BufsizeSpec {
    fn build(&self, context: &mut BuildContext<'_>) {
        context.hooks.size = ReplySize::at_most(self.octets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};

    #[test]
    fn size_bounds() {
        assert_eq!(parsed::<BufsizeSpec>(""), None);
        for (line, octets) in
            [("bufsize", 1232), ("bufsize 512", 512), ("bufsize 4096", 4096), ("bufsize +600", 600)]
        {
            assert_eq!(parsed(line), Some(BufsizeSpec { octets }), "{line}");
        }
        refused(&[
            ("bufsize 511", "2:9: plugin/bufsize: \"511\" is not a size of 512 to 4096 octets"),
            ("bufsize 4097", "2:9: plugin/bufsize: \"4097\" is not a size of 512 to 4096 octets"),
            ("bufsize -600", "2:9: plugin/bufsize: \"-600\" is not a size of 512 to 4096 octets"),
            ("bufsize 99999", "2:9: plugin/bufsize: \"99999\" is not a size of 512 to 4096 octets"),
            ("bufsize 1k", "2:9: plugin/bufsize: \"1k\" is not a size of 512 to 4096 octets"),
            (
                "bufsize 512 513",
                "2:13: plugin/bufsize: unexpected argument \"513\"; `bufsize` needs [SIZE], 512 to 4096 octets",
            ),
            ("bufsize {\nx\n}", "2:1: plugin/bufsize: `bufsize` has no sub-block; remove the braces"),
        ]);
    }
}
