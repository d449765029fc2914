//! `log`: which queries are logged, and how.

use std::sync::Arc;

use corefile::Directive;
use logging::query_log::{Classes, LogRule};
use logging::{LineRing, LogEntry, LogRules};
use wire::Name;

use plugin::args::{Args, Result, bad, unknown_property, zones_or};
use plugin::hooks::ObserveQueries;
use plugin::spec::{BuildContext, HooksSpec, ParseContext};

/// All `log` directives of a server block.
#[derive(Debug, Clone)]
pub struct LogSpec {
    /// The rules in file order; the first with a zone that contains the name applies.
    pub rules: Vec<LogRule>,
}

/// CoreDNS's `{common}` format, the default.
pub(crate) const COMMON: &str = r#"{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" {rcode} {>rflags} {rsize} {duration}"#;
/// CoreDNS's `{combined}` format.
pub(crate) const COMBINED: &str = r#"{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" {rcode} {>rflags} {rsize} {duration} "{>opcode}""#;

/// Reads every `log` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn HooksSpec>> {
    const PLUGIN: &str = "log";
    let mut rules = Vec::new();
    for directive in directives {
        let mut words = directive.args.as_slice();
        let mut format = COMMON.to_owned();
        if let [names @ .., last] = words
            && last.text.contains('{')
        {
            format = last.text.replace("{common}", COMMON).replace("{combined}", COMBINED);
            words = names;
        }
        let mut classes: Option<Classes> = None;
        for property in directive.body.iter().flatten() {
            if property.name.text != "class" {
                return Err(unknown_property(PLUGIN, property, &["class"]));
            }
            for word in Args::new(PLUGIN, property, "success, denial, error or all").some()? {
                let classes = classes.get_or_insert(Classes { success: false, denial: false, error: false });
                match word.text.as_str() {
                    "success" => classes.success = true,
                    "denial" => classes.denial = true,
                    "error" => classes.error = true,
                    "all" => *classes = Classes { success: true, denial: true, error: true },
                    _ => return Err(bad(PLUGIN, word, "one of success, denial, error, all")),
                }
            }
        }
        let classes = classes.unwrap_or(Classes { success: true, denial: true, error: true });
        for zone in zones_or(words, &[Name::ROOT])? {
            rules.push(LogRule { zone, format: format.clone(), classes });
        }
    }
    Ok(Arc::new(LogSpec { rules }))
}

impl HooksSpec for LogSpec {
    fn build(&self, context: &mut BuildContext<'_>) {
        let (format, labels) = (context.logger.format(), context.hooks.labels.as_ref());
        let rules = LogRules::new(self.rules.clone(), format, labels);
        context.hooks.ended.push(Box::new(Lines(rules)));
    }
}

/// The log rules of a block.
struct Lines(LogRules);

impl ObserveQueries for Lines {
    fn ended(&self, entry: &LogEntry<'_>, lines: &mut LineRing) {
        self.0.log(entry, lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties};

    const ALL: Classes = Classes { success: true, denial: true, error: true };

    #[test]
    fn log_lines_become_rules_in_file_order() {
        let rules = |lines: &str| -> Vec<(String, String, Classes)> {
            let rules = parsed::<LogSpec>(lines).map(|spec| spec.rules).unwrap_or_default().into_iter();
            rules.map(|rule| (rule.zone.to_string(), rule.format, rule.classes)).collect()
        };
        let rule = |zone: &str, format: &str, classes| (zone.to_owned(), format.to_owned(), classes);
        let only = |success, denial, error| Classes { success, denial, error };
        for (lines, expected) in [
            ("whoami", vec![]),
            ("log", vec![rule(".", COMMON, ALL)]),
            ("log a.org b.org", vec![rule("a.org.", COMMON, ALL), rule("b.org.", COMMON, ALL)]),
            ("log a.org \"{name} {rcode}\"", vec![rule("a.org.", "{name} {rcode}", ALL)]),
            ("log . {combined}", vec![rule(".", COMBINED, ALL)]),
            ("log . \"{common} x\"", vec![rule(".", &format!("{COMMON} x"), ALL)]),
            ("log {\nclass denial error\n}", vec![rule(".", COMMON, only(false, true, true))]),
            ("log {\nclass success\nclass denial\n}", vec![rule(".", COMMON, only(true, true, false))]),
            ("log {\nclass success all\n}", vec![rule(".", COMMON, ALL)]),
            ("log a.org\nlog", vec![rule("a.org.", COMMON, ALL), rule(".", COMMON, ALL)]),
        ] {
            assert_eq!(rules(lines), expected, "{lines}");
        }
        refused(&[("log a..b", "2:5: the zone `a..b` has an empty label")]);
        refused_properties(
            "log",
            &[
                ("class", "1: plugin/log: `class` needs success, denial, error or all"),
                ("class errors", "7: plugin/log: \"errors\" is not one of success, denial, error, all"),
                ("clas error", "1: plugin/log: unknown property \"clas\"; did you mean `class`?"),
            ],
        );
    }
}
