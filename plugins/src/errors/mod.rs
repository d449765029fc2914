//! `errors`: logs failures of queries, some as summaries.

use std::sync::Arc;
use std::time::Instant;

use corefile::Directive;
use corefile::go_values::format_duration;
use logging::ErrorLog;
use logging::error_log::Consolidate;
use logging::logger::Level;
use wire::Query;

use plugin::args::{Args, Result, bad, flag, once, regex, unknown_property};
use plugin::failure::Failure;
use plugin::hooks::ObserveFailures;
use plugin::spec::{BuildContext, HooksSpec, ParseContext};

/// The directive `errors`.
#[derive(Debug, Clone, Default)]
pub struct ErrorsSpec {
    /// Patterns of errors that are counted and logged as summaries; the first match decides.
    pub consolidate: Vec<Consolidate>,
}

/// Reads the one `errors` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn HooksSpec>> {
    const PLUGIN: &str = "errors";
    let directive = once(PLUGIN, directives)?;
    let mut args = Args::new(PLUGIN, directive, "no argument");
    // CoreDNS accepts `errors stdout` from old files with the same meaning.
    if let Some(word) = args.optional()
        && word.text != "stdout"
    {
        return Err(bad(PLUGIN, word, "`stdout`, the only destination"));
    }
    args.end()?;
    let mut spec = ErrorsSpec::default();
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            "stacktrace" => {
                flag(PLUGIN, property)?;
            }
            "consolidate" => {
                let mut args = Args::new(PLUGIN, property, "DURATION REGEXP [LEVEL] [show_first]");
                let period = args.duration("a duration such as 5m")?;
                let word = args.required()?;
                let (pattern, pattern_text) = (regex(PLUGIN, word)?, word.shown().to_owned());
                let (mut level, mut show_first) = (None, false);
                for word in args.rest() {
                    match (word.text.as_str(), level, show_first) {
                        ("show_first", ..) => show_first = true,
                        ("debug", None, false) => level = Some(Level::Debug),
                        ("info", None, false) => level = Some(Level::Info),
                        ("warning", None, false) => level = Some(Level::Warning),
                        ("error", None, false) => level = Some(Level::Error),
                        _ => {
                            return Err(bad(
                                PLUGIN,
                                word,
                                "one level (debug, info, warning, error), or show_first behind it",
                            ));
                        }
                    }
                }
                let level = level.unwrap_or(Level::Error);
                let period_text = format_duration(period);
                spec.consolidate.push(Consolidate {
                    period,
                    period_text,
                    pattern,
                    pattern_text,
                    level,
                    show_first,
                });
            }
            _ => return Err(unknown_property(PLUGIN, property, &["consolidate", "stacktrace"])),
        }
    }
    Ok(Arc::new(spec))
}

impl HooksSpec for ErrorsSpec {
    fn build(&self, context: &mut BuildContext<'_>) {
        let log = ErrorLog::new(self.consolidate.clone(), context.logger.clone());
        context.hooks.failed.push(Box::new(Errors(log)));
    }
}

/// The hook that logs a block's failures.
struct Errors(ErrorLog);

impl ObserveFailures for Errors {
    fn failed(&self, failure: &Failure, query: &Query<'_>, now: Instant) {
        if failure.is_error() {
            self.0.report(now, failure.rcode().0, &query.name, query.rtype, &failure.to_string());
        }
    }

    fn catch_up(&self, now: Instant) {
        self.0.flush(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties};

    #[test]
    fn errors_are_consolidated_by_pattern() {
        for lines in ["errors", "errors stdout", "errors {\nstacktrace\n}"] {
            assert!(parsed::<ErrorsSpec>(lines).unwrap().consolidate.is_empty(), "{lines}");
        }
        let lines = "errors {\nconsolidate 5m \".* i/o timeout$\" warning\nconsolidate 30s ^x show_first\n}";
        let found: Vec<_> = parsed::<ErrorsSpec>(lines)
            .unwrap()
            .consolidate
            .into_iter()
            .map(|c| (c.period.as_secs(), c.pattern.as_str().to_owned(), c.level, c.show_first))
            .collect();
        assert_eq!(
            found,
            [
                (300, ".* i/o timeout$".to_owned(), Level::Warning, false),
                (30, "^x".to_owned(), Level::Error, true)
            ]
        );
        refused(&[
            ("errors stderr", "2:8: plugin/errors: \"stderr\" is not `stdout`, the only destination"),
            ("errors stdout x", "2:15: plugin/errors: unexpected argument \"x\"; `errors` needs no argument"),
        ]);
        refused_properties(
            "errors",
            &[
                ("consolidate", "1: plugin/errors: `consolidate` needs DURATION REGEXP [LEVEL] [show_first]"),
                ("consolidate 5 x", "13: plugin/errors: \"5\" is not a duration such as 5m"),
                (
                    "consolidate 5m",
                    "1: plugin/errors: `consolidate` needs DURATION REGEXP [LEVEL] [show_first]",
                ),
                (
                    "consolidate 5m x loud",
                    "18: plugin/errors: \"loud\" is not one level (debug, info, warning, error), or show_first behind it",
                ),
                (
                    "consolidate 5m x show_first info",
                    "29: plugin/errors: \"info\" is not one level (debug, info, warning, error), or show_first behind it",
                ),
                (
                    "consolidate 5m x info debug",
                    "23: plugin/errors: \"debug\" is not one level (debug, info, warning, error), or show_first behind it",
                ),
                (
                    "consolidate 5m (",
                    "16: plugin/errors: the regular expression cannot be used: unclosed group",
                ),
                (
                    "consolidate 5m (?:a{1000}){11}",
                    "16: plugin/errors: the regular expression cannot be used: its length with each repeat written out, times its groups, is 11000, and 10000 at most; repeat less",
                ),
                (
                    "stacktrace on",
                    "12: plugin/errors: unexpected argument \"on\"; `stacktrace` needs no argument",
                ),
                (
                    "consolidat 5m x",
                    "1: plugin/errors: unknown property \"consolidat\"; did you mean `consolidate`?",
                ),
            ],
        );
    }
}
