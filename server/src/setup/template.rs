//! `template`: answers made from patterns.

use std::sync::Arc;

use corefile::{Directive, Located, Location, Word};
use gotemplate::{Schema, Template};
use regex::Regex;
use wire::{Class, Name, RType, Rcode};

use super::args::{Args, Result, bad, no_block, number, unknown_property, zones_or};
use super::{Fallthrough, SetupError};
use crate::plugin::template::{Expression, is_free};

const PLUGIN: &str = "template";
const PROPERTIES: &[&str] =
    &["additional", "answer", "authority", "ederror", "fallthrough", "match", "rcode", "var", "expr"];

/// What one `template` directive says.
#[derive(Debug, Clone)]
pub struct TemplateSpec {
    /// The class it answers; ANY for every one.
    pub class: Class,
    /// The type it answers; ANY for every one.
    pub rtype: RType,
    /// Only names within these zones; default the server block's.
    pub zones: Vec<Name>,
    /// At least one must match the lower-cased name; default `.*`.
    pub patterns: Vec<Regex>,
    /// `var`: names and expressions, each of which may use those before it.
    pub vars: Vec<(String, Expression)>,
    /// `expr`: all must be true.
    pub conditions: Vec<Expression>,
    /// Records of the answer section.
    pub answer: Vec<Record>,
    /// Records of the authority section.
    pub authority: Vec<Record>,
    /// Records of the additional section.
    pub additional: Vec<Record>,
    /// The rcode of what is answered; default NOERROR.
    pub rcode: Rcode,
    /// An Extended DNS Error to add.
    pub ede: Option<(u16, String)>,
    /// Where a name that no pattern matches goes on.
    pub fallthrough: Fallthrough,
}

/// One record to be made.
#[derive(Debug, Clone)]
pub struct Record {
    /// As written, for metrics.
    pub text: String,
    /// Compiled.
    pub template: Arc<Template>,
}

/// Reads every `template` of a server block, in file order.
pub(crate) fn parse(directives: &[&Directive], own_zones: &[Name]) -> Result<Vec<TemplateSpec>> {
    directives.iter().map(|directive| parse_one(directive, own_zones)).collect()
}

fn parse_one(directive: &Directive, own_zones: &[Name]) -> Result<TemplateSpec> {
    let mut args = Args::new(PLUGIN, directive, "CLASS TYPE [ZONE...]");
    let class_word = args.required()?;
    let class = class_word.text.parse().map_err(|_| bad(PLUGIN, class_word, "a class such as IN or ANY"))?;
    let type_word = args.required()?;
    let rtype =
        type_word.text.parse().map_err(|_| bad(PLUGIN, type_word, "a record type such as A or ANY"))?;
    let mut spec = TemplateSpec {
        class,
        rtype,
        zones: zones_or(args.rest(), own_zones)?,
        patterns: Vec::new(),
        vars: Vec::new(),
        conditions: Vec::new(),
        answer: Vec::new(),
        authority: Vec::new(),
        additional: Vec::new(),
        rcode: Rcode::NOERROR,
        ede: None,
        fallthrough: Fallthrough::default(),
    };
    // Named groups and variables are fields of the templates: they come first, wherever they stand.
    let mut names = Vec::new();
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            "match" => {
                no_block(PLUGIN, property)?;
                for word in Args::new(PLUGIN, property, "a regular expression").some()? {
                    spec.patterns.push(pattern(PLUGIN, word)?);
                }
            }
            "var" => {
                no_block(PLUGIN, property)?;
                let mut args = Args::new(PLUGIN, property, "a name and an expression");
                let name = args.required()?;
                if !is_free(&name.text) {
                    return Err(bad(
                        PLUGIN,
                        name,
                        "a name for a variable: letters, digits and _, and no word of the language",
                    ));
                }
                let expression = expression(args.some()?, &names)?;
                names.push(name.text.clone());
                spec.vars.push((name.text.clone(), expression));
            }
            "expr" => {
                no_block(PLUGIN, property)?;
                let words = Args::new(PLUGIN, property, "an expression").some()?;
                spec.conditions.push(expression(words, &names)?);
            }
            _ => {}
        }
    }
    if spec.patterns.is_empty() {
        spec.patterns.extend(Regex::new(".*"));
    }
    let groups: Vec<&str> = spec.patterns.iter().flat_map(|regex| regex.capture_names().flatten()).collect();
    let schema = crate::plugin::template::schema(&groups, &names);
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            "match" | "var" | "expr" => {}
            "answer" => records(property, &schema, &mut spec.answer)?,
            "authority" => records(property, &schema, &mut spec.authority)?,
            "additional" => records(property, &schema, &mut spec.additional)?,
            "rcode" => {
                let mut args = Args::new(PLUGIN, property, "an rcode such as NXDOMAIN");
                let word = args.required()?;
                spec.rcode = word.text.parse().map_err(|_| bad(PLUGIN, word, "an rcode such as NXDOMAIN"))?;
                args.end()?;
            }
            "ederror" => {
                let mut args =
                    Args::new(PLUGIN, property, "an Extended DNS Error code and, if wanted, a text");
                let code =
                    number(PLUGIN, args.required()?, 0..=u16::MAX, "an Extended DNS Error code, 0 to 65535")?;
                let text = args.optional().map(|word| word.text.clone()).unwrap_or_default();
                args.end()?;
                spec.ede = Some((code, text));
            }
            "fallthrough" => spec.fallthrough.add(PLUGIN, property)?,
            // What older Corefiles still say: CoreDNS, too, takes it and does nothing.
            "upstream" => no_block(PLUGIN, property)?,
            _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
        }
    }
    Ok(spec)
}

fn records(property: &Directive, schema: &Schema, into: &mut Vec<Record>) -> Result<()> {
    no_block(PLUGIN, property)?;
    for word in Args::new(PLUGIN, property, "a record as a template").some()? {
        let template = Template::parse(&word.text, schema)
            .map_err(|error| Located::new(&word.at, SetupError::Template(error)))?;
        into.push(Record { text: word.text.clone(), template: Arc::new(template) });
    }
    Ok(())
}

/// An expression of several words, as CoreDNS joins them; an error stands at the word that it lies in.
fn expression(words: &[Word], vars: &[String]) -> Result<Expression> {
    let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    Expression::compile(&texts.join(" "), vars).map_err(|(position, error)| {
        let mut end = 0;
        let word = words.iter().find(|word| {
            end += word.text.len() + 1;
            position < end
        });
        let at = word
            .or_else(|| words.last())
            .map_or_else(|| Location::file_only("Corefile"), |word| word.at.clone());
        Located::new(&at, SetupError::Expression(error))
    })
}

/// A regular expression of Go's syntax; what this crate's engine does not take is an error that says so.
pub(crate) fn pattern(plugin: &'static str, word: &Word) -> Result<Regex> {
    if word.text.len() > LONGEST_PATTERN {
        let error = format!("it has more than {LONGEST_PATTERN} octets");
        return Err(Located::new(&word.at, SetupError::Pattern { plugin, error }));
    }
    Regex::new(&word.text).map_err(|error| {
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned();
        Located::new(&word.at, SetupError::Pattern { plugin, error: last })
    })
}

/// As in CoreDNS: octets of a pattern.
const LONGEST_PATTERN: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::super::tests::{good, refused, refused_properties, with};
    use super::*;

    /// Class, type, zones, patterns and everything else that a template says.
    fn shown(lines: &str) -> String {
        let spec = good(lines).template.remove(0);
        let records = |records: &[Record]| records.iter().map(|r| r.text.clone()).collect::<Vec<_>>();
        format!(
            "{} {} {:?} {:?} {:?} {:?} {:?} {} {:?} {}",
            spec.class,
            spec.rtype,
            spec.zones,
            spec.patterns.iter().map(Regex::as_str).collect::<Vec<_>>(),
            records(&spec.answer),
            records(&spec.authority),
            records(&spec.additional),
            spec.rcode,
            spec.ede,
            spec.fallthrough.is_written(),
        )
    }

    #[test]
    fn arguments_and_properties_are_read() {
        for (lines, expected) in [
            ("template ANY ANY".to_owned(), r#"ANY ANY [.] [".*"] [] [] [] NOERROR None false"#),
            ("template in aaaa a.org".to_owned(), r#"IN AAAA [a.org.] [".*"] [] [] [] NOERROR None false"#),
            (
                "template CH TYPE65400 10.0.0.0/24".to_owned(),
                r#"CH TYPE65400 [0.0.10.in-addr.arpa.] [".*"] [] [] [] NOERROR None false"#,
            ),
            (
                with("template IN A", "match ^a ^b\nmatch c$\nrcode nxdomain\nfallthrough"),
                r#"IN A [.] ["^a", "^b", "c$"] [] [] [] NXDOMAIN None true"#,
            ),
            (
                with(
                    "template IN A",
                    "answer \"{{ .Name }} 60 IN A 192.0.2.1\" \"{{ .Name }} 60 IN A 192.0.2.2\"\nauthority \"a. NS b.\"\nadditional \"b. A 192.0.2.3\"",
                ),
                r#"IN A [.] [".*"] ["{{ .Name }} 60 IN A 192.0.2.1", "{{ .Name }} 60 IN A 192.0.2.2"] ["a. NS b."] ["b. A 192.0.2.3"] NOERROR None false"#,
            ),
            (
                with("template IN A", "answer \"{{ .Group.host }} A 192.0.2.1\"\nmatch \"^(?P<host>.*)$\""),
                r#"IN A [.] ["^(?P<host>.*)$"] ["{{ .Group.host }} A 192.0.2.1"] [] [] NOERROR None false"#,
            ),
            (
                with("template IN A", "ederror 15 \"not here\""),
                r#"IN A [.] [".*"] [] [] [] NOERROR Some((15, "not here")) false"#,
            ),
            (with("template IN A", "ederror 0"), r#"IN A [.] [".*"] [] [] [] NOERROR Some((0, "")) false"#),
        ] {
            assert_eq!(shown(&lines), expected, "{lines}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_at_its_word() {
        refused(&[
            ("template", "2:1: plugin/template: `template` wants CLASS TYPE [ZONE...]"),
            ("template IN", "2:1: plugin/template: `template` wants CLASS TYPE [ZONE...]"),
            ("template INN A", "2:10: plugin/template: \"INN\" is not a class such as IN or ANY"),
            ("template IN AAA", "2:13: plugin/template: \"AAA\" is not a record type such as A or ANY"),
            ("template IN A a..b", "2:15: the zone `a..b` has an empty label"),
        ]);
        refused_properties(
            "template IN A",
            &[
                ("match", "1: plugin/template: `match` wants a regular expression"),
                ("match ^a (b", "10: plugin/template: the regular expression cannot be used: unclosed group"),
                (
                    "match (?=a)",
                    "7: plugin/template: the regular expression cannot be used: look-around, including look-ahead and look-behind, is not supported",
                ),
                ("answer", "1: plugin/template: `answer` wants a record as a template"),
                (
                    "answer \"{{ .Nam }}\"",
                    "8: plugin/template: unknown field \".Nam\", did you mean \"Name\"?",
                ),
                ("answer a \"{{ .Name \"", "10: plugin/template: unclosed action"),
                ("authority {\nx\n}", "1: plugin/template: `authority` has no sub-block; remove the braces"),
                ("additional \"{{ define }}\"", "12: plugin/template: {{define}} is not supported"),
                ("rcode", "1: plugin/template: `rcode` wants an rcode such as NXDOMAIN"),
                ("rcode NOPE", "7: plugin/template: \"NOPE\" is not an rcode such as NXDOMAIN"),
                (
                    "rcode NXDOMAIN x",
                    "16: plugin/template: unexpected argument \"x\"; `rcode` wants an rcode such as NXDOMAIN",
                ),
                (
                    "ederror",
                    "1: plugin/template: `ederror` wants an Extended DNS Error code and, if wanted, a text",
                ),
                (
                    "ederror 65536",
                    "9: plugin/template: \"65536\" is not an Extended DNS Error code, 0 to 65535",
                ),
                (
                    "fallthrough {\nx\n}",
                    "1: plugin/template: `fallthrough` has no sub-block; remove the braces",
                ),
                ("var", "1: plugin/template: `var` wants a name and an expression"),
                ("var x", "1: plugin/template: `var` wants a name and an expression"),
                (
                    "var len 1",
                    "5: plugin/template: \"len\" is not a name for a variable: letters, digits and _, and no word of the language",
                ),
                (
                    "var a-b 1",
                    "5: plugin/template: \"a-b\" is not a name for a variable: letters, digits and _, and no word of the language",
                ),
                ("expr", "1: plugin/template: `expr` wants an expression"),
                ("expr size() >", "13: plugin/template: the expression ends too early"),
                (
                    "expr size() == == 1",
                    "16: plugin/template: the expression cannot be read from \"== 1\" on",
                ),
                (
                    "expr nmae() == 'a.'",
                    "6: plugin/template: \"nmae\" in the expression is neither a `var` above it nor a function; did you mean `name`?",
                ),
                ("expr 1 == name", "11: plugin/template: `name` is a function; write `name(...)`"),
                (
                    "expr later > 1\nvar later 2",
                    "6: plugin/template: \"later\" in the expression is neither a `var` above it nor a function",
                ),
                ("expr now() > 1", "6: plugin/template: \"now()\" in an expression is not built yet"),
                ("expr 1 in 1..5", "11: plugin/template: \"..\" in an expression is not built yet"),
                ("answer \"{{ .Var.m }}\"\nvar n 1", "8: plugin/template: unknown field \".Var.m\""),
                ("anwser x", "1: plugin/template: unknown property \"anwser\"; did you mean `answer`?"),
            ],
        );
    }
}
