//! `nsid`: the server's name, for clients that ask for it (RFC 5001).

use corefile::Directive;

use crate::setup::args::{Result, bad, no_block, once};

/// `nsid [DATA]`: the identifier as it travels; `None` means the host's name.
pub(crate) fn parse(directives: &[&Directive]) -> Result<Option<String>> {
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

#[cfg(test)]
mod tests {
    use crate::setup::tests::{good, refused};

    #[test]
    fn an_identifier_has_128_octets_at_most() {
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
            (&long_line, &long_error),
            ("nsid a {\nx\n}", "2:1: plugin/nsid: `nsid` has no sub-block; remove the braces"),
        ]);
    }
}
