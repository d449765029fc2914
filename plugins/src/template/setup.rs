//! Parsing of `template`.

use std::sync::{Arc, LazyLock};

use corefile::{Directive, Located, Location, Word};
use expression::{Expression, Names, is_free};
use gotemplate::{Schema, Template};
use regex::Regex;
use wire::{Class, Name, RType, Rcode};

use plugin::args::{Args, Result, bad, no_block, number, regex, unknown_property, zones_or};
use plugin::spec::{ParseContext, SourceSpec};
use plugin::{Fallthrough, HiddenZones, SetupError};

pub(super) const PLUGIN: &str = "template";
/// The pattern without `match`: compiled once, since a Corefile may have a thousand templates.
static EVERY_NAME: LazyLock<std::result::Result<Regex, regex::Error>> = LazyLock::new(|| Regex::new(".*"));
const PROPERTIES: &[&str] =
    &["additional", "answer", "authority", "ederror", "fallthrough", "match", "rcode", "var", "expr"];

/// All `template` directives of a server block.
#[derive(Debug, Clone)]
pub struct TemplateSpecs {
    /// In file order.
    pub templates: Vec<TemplateSpec>,
}

/// One `template` directive.
#[derive(Debug, Clone)]
pub struct TemplateSpec {
    /// The class of queries that the template answers; ANY for every class.
    pub class: Class,
    /// The type of queries that the template answers; ANY for every type.
    pub rtype: RType,
    /// Only names within these zones; default the server block's.
    pub zones: Vec<Name>,
    /// The zones that messages and metrics show as written in the Corefile.
    pub hidden: HiddenZones,
    /// At least one must match the lower-cased name; default `.*`.
    pub patterns: Vec<Regex>,
    /// `var`: names and expressions, each with access to those before it.
    pub vars: Vec<(String, Expression)>,
    /// `expr`: all must be true.
    pub conditions: Vec<Expression>,
    /// Records of the answer section.
    pub answer: Vec<Record>,
    /// Records of the authority section.
    pub authority: Vec<Record>,
    /// Records of the additional section.
    pub additional: Vec<Record>,
    /// The answer's rcode; default NOERROR.
    pub rcode: Rcode,
    /// An Extended DNS Error to add.
    pub ede: Option<(u16, String)>,
    /// Whether a word has the value of an environment variable: then neither the log nor an
    /// Extended DNS Error contains text that the template renders.
    pub is_private: bool,
    /// Zones in which a name without matching pattern passes to the next plugin.
    pub fallthrough: Fallthrough,
}

/// One record.
#[derive(Debug, Clone)]
pub struct Record {
    /// The source text, for metrics and the log, without values of environment variables.
    pub text: String,
    /// The compiled text.
    pub template: Arc<Template>,
    /// The record's location.
    pub at: Location,
}

/// Reads every `template` of a server block, in file order.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    let templates =
        directives.iter().map(|directive| template(directive, written.zones)).collect::<Result<_>>()?;
    Ok(Arc::new(TemplateSpecs { templates }))
}

fn template(directive: &Directive, own_zones: &[Name]) -> Result<TemplateSpec> {
    let mut args = Args::new(PLUGIN, directive, "CLASS TYPE [ZONE...]");
    let class_word = args.required()?;
    let class = class_word.text.parse().map_err(|_| bad(PLUGIN, class_word, "a class such as IN or ANY"))?;
    let type_word = args.required()?;
    let rtype =
        type_word.text.parse().map_err(|_| bad(PLUGIN, type_word, "a record type such as A or ANY"))?;
    let zones = args.rest();
    let mut spec = TemplateSpec {
        class,
        rtype,
        zones: zones_or(zones, own_zones)?,
        hidden: HiddenZones::of(zones),
        patterns: Vec::new(),
        vars: Vec::new(),
        conditions: Vec::new(),
        answer: Vec::new(),
        authority: Vec::new(),
        additional: Vec::new(),
        rcode: Rcode::NOERROR,
        ede: None,
        is_private: has_value(directive),
        fallthrough: Fallthrough::default(),
    };
    // Variables are fields of the templates: they are read first, regardless of their place.
    let mut names = Vec::new();
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            "match" => {
                no_block(PLUGIN, property)?;
                for word in Args::new(PLUGIN, property, "a regular expression").some()? {
                    spec.patterns.push(regex(PLUGIN, word)?);
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
                let expression = Expression::read(PLUGIN, args.some()?, Names::Template(&names))?;
                names.push(name.text.clone());
                spec.vars.push((name.text.clone(), expression));
            }
            "expr" => {
                no_block(PLUGIN, property)?;
                let words = Args::new(PLUGIN, property, "an expression").some()?;
                spec.conditions.push(Expression::read(PLUGIN, words, Names::Template(&names))?);
            }
            _ => {}
        }
    }
    if spec.patterns.is_empty() {
        spec.patterns.extend(EVERY_NAME.clone());
    }
    let schema = super::schema(&names);
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
            // A property of old Corefiles without effect, also in CoreDNS.
            "upstream" => no_block(PLUGIN, property)?,
            _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
        }
    }
    Ok(spec)
}

/// Whether a word of the directive or of its properties has the value of an environment variable.
fn has_value(directive: &Directive) -> bool {
    directive.args.iter().any(Word::is_private) || directive.body.iter().flatten().any(has_value)
}

fn records(property: &Directive, schema: &Schema, into: &mut Vec<Record>) -> Result<()> {
    no_block(PLUGIN, property)?;
    for word in Args::new(PLUGIN, property, "a record as a template").some()? {
        let template = Template::parse(&word.text, schema).map_err(|error| {
            Located::new(&word.at, SetupError::Own { plugin: PLUGIN, error: error.into() })
        })?;
        into.push(Record {
            text: word.shown().to_owned(),
            template: Arc::new(template),
            at: word.at.clone(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
