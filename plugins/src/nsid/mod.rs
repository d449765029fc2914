//! `nsid`: the server's identifier, for clients that request it (RFC 5001).

use std::sync::Arc;

use corefile::Directive;
use wire::{OPTION_NSID, OptionBytes, Query};

use crate::host_name::host_name;
use plugin::args::{Result, bad, no_block, once};
use plugin::hooks::WriteEdnsOptions;
use plugin::spec::{BuildContext, HooksSpec, ParseContext};

/// The directive `nsid [DATA]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NsidSpec {
    /// The identifier as sent; `None` means the host's name.
    pub data: Option<String>,
}

/// Reads the one `nsid` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn HooksSpec>> {
    let directive = once("nsid", directives)?;
    no_block("nsid", directive)?;
    let words: Vec<&str> = directive.args.iter().map(|word| word.text.as_str()).collect();
    if words.is_empty() {
        return Ok(Arc::new(NsidSpec { data: None }));
    }
    let data = words.join(" ");
    // The identifier must fit one OPT record together with an Extended DNS Error.
    if data.len() > 128 {
        return Err(bad("nsid", &directive.args[0], "an identifier of at most 128 octets"));
    }
    Ok(Arc::new(NsidSpec { data: Some(data) }))
}

impl HooksSpec for NsidSpec {
    fn build(&self, context: &mut BuildContext<'_>) {
        let data = self.data.clone().unwrap_or_else(host_name);
        context.hooks.options.push(Box::new(Identifier(data.into_bytes().into())));
    }
}

/// The identifier as sent.
struct Identifier(Box<[u8]>);

impl WriteEdnsOptions for Identifier {
    #[inline]
    fn write(&self, query: &Query<'_>, options: &mut OptionBytes) {
        if query.edns.is_some_and(|edns| edns.nsid) {
            options.push(OPTION_NSID, &self.0);
        }
    }

    fn most_octets(&self) -> usize {
        OPTION_HEAD + self.0.len()
    }
}

/// Code and length of an option (RFC 6891, section 6.1.2).
const OPTION_HEAD: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};

    #[test]
    fn identifier_bounds() {
        let longest = "a".repeat(128);
        for (line, data) in [
            ("nsid".to_owned(), None),
            ("nsid node-1".to_owned(), Some("node-1")),
            ("nsid node  1".to_owned(), Some("node 1")),
            ("nsid \"node  1\"".to_owned(), Some("node  1")),
            (format!("nsid {longest}"), Some(longest.as_str())),
        ] {
            let data = data.map(str::to_owned);
            assert_eq!(parsed(&line), Some(NsidSpec { data }), "{line}");
        }
        let too_long = "a".repeat(129);
        let long_line = format!("nsid {too_long}");
        let long_error = format!("2:6: plugin/nsid: {too_long:?} is not an identifier of at most 128 octets");
        refused(&[
            (&long_line, &long_error),
            ("nsid a {\nx\n}", "2:1: plugin/nsid: `nsid` has no sub-block; remove the braces"),
        ]);
    }
}
