//! `bufsize`: the largest reply over UDP.

use corefile::Directive;

use crate::setup::args::{Args, Result, no_block, number, once};

/// `bufsize [SIZE]`: the largest UDP reply; default 1232, 512 to 4096.
pub(crate) fn parse(directives: &[&Directive]) -> Result<u16> {
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

#[cfg(test)]
mod tests {
    use crate::setup::tests::{good, refused};

    #[test]
    fn a_size_is_512_to_4096_octets() {
        assert_eq!(good("").bufsize, None);
        for (line, size) in
            [("bufsize", 1232), ("bufsize 512", 512), ("bufsize 4096", 4096), ("bufsize +600", 600)]
        {
            assert_eq!(good(line).bufsize, Some(size), "{line}");
        }
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
        ]);
    }
}
