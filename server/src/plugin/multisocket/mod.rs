//! `multisocket`: how many sockets an address is served by.

use corefile::Directive;

use crate::setup::args::{Args, Result, no_block, number, once};

/// `multisocket [N]`: workers; default one per core, at most 1024.
pub(crate) fn parse(directives: &[&Directive]) -> Result<Option<usize>> {
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

#[cfg(test)]
mod tests {
    use crate::setup::tests::{good, refused};

    #[test]
    fn a_number_is_1_to_1024() {
        assert_eq!(good("").multisocket, None);
        for (line, workers) in
            [("multisocket", None), ("multisocket 1", Some(1)), ("multisocket 1024", Some(1024))]
        {
            assert_eq!(good(line).multisocket, Some(workers), "{line}");
        }
        refused(&[
            ("multisocket 0", "2:13: plugin/multisocket: \"0\" is not a number of 1 to 1024 workers"),
            ("multisocket 1025", "2:13: plugin/multisocket: \"1025\" is not a number of 1 to 1024 workers"),
            ("multisocket all", "2:13: plugin/multisocket: \"all\" is not a number of 1 to 1024 workers"),
            (
                "multisocket 1 2",
                "2:15: plugin/multisocket: unexpected argument \"2\"; `multisocket` wants [N], 1 to 1024 workers",
            ),
        ]);
    }
}
