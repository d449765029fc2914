//! `view`: the condition under which a server block serves a query for its zones.

use std::fmt::Write as _;
use std::sync::Arc;

use corefile::{Directive, Word};
use expression::{Expression, Facts, Names, QueryFacts, Value};
use logging::metadata::Labels;
use std::net::IpAddr;
use wire::{Name, Query};

use crate::name_display::NameText;
use plugin::QueryContext;
use plugin::args::{Args, Result, no_block, once, unknown_property};
use plugin::hooks::{ReplySize, View};
use plugin::spec::{BuildContext, HooksSpec, ParseContext};

/// The directive `view NAME { expr EXPRESSION... }`.
#[derive(Debug, Clone)]
pub struct ViewSpec {
    /// The name, for metrics and the label `view/name`.
    name: Arc<str>,
    /// All must be true.
    conditions: Arc<[Condition]>,
}

/// One `expr`.
#[derive(Debug)]
struct Condition {
    expression: Expression,
    /// The words, joined by blanks.
    text: String,
    /// The same without values of environment variables.
    shown: String,
}

impl ViewSpec {
    /// Returns a text that only views with the same name and conditions have.
    pub fn identity(&self) -> String {
        let mut text = format!("view {:?}", self.name);
        for Condition { text: condition, .. } in &*self.conditions {
            let _ = write!(text, " {condition:?}");
        }
        text
    }
}

/// Reads the one `view` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn HooksSpec>> {
    let directive = once(PLUGIN, directives)?;
    let mut args = Args::new(PLUGIN, directive, "a name");
    let name = args.required()?.text.as_str().into();
    args.end()?;
    let conditions = directive.body.iter().flatten().map(condition).collect::<Result<_>>()?;
    Ok(Arc::new(ViewSpec { name, conditions }))
}

fn condition(property: &Directive) -> Result<Condition> {
    if property.name.text != "expr" {
        return Err(unknown_property(PLUGIN, property, &["expr"]));
    }
    no_block(PLUGIN, property)?;
    let words = Args::new(PLUGIN, property, "an expression").some()?;
    let joined = |text: fn(&Word) -> &str| words.iter().map(text).collect::<Vec<_>>().join(" ");
    Ok(Condition {
        expression: Expression::read(PLUGIN, words, Names::None)?,
        text: joined(|word| &word.text),
        shown: joined(Word::shown),
    })
}

impl HooksSpec for ViewSpec {
    fn build(&self, context: &mut BuildContext<'_>) {
        context.hooks.view = Some(Arc::new(self.clone()));
    }

    fn labels(&self) -> Option<Arc<dyn Labels>> {
        Some(Arc::new(ViewName(self.name.clone())))
    }
}

impl View for ViewSpec {
    fn name(&self) -> &str {
        &self.name
    }

    fn admits(&self, query: &Query<'_>, context: &QueryContext<'_>, labels: Option<&dyn Labels>) -> bool {
        let mut name = NameText::new();
        let name = name.of(&query.name);
        // The block's own limit of replies does not apply before the block is known.
        let data = QueryFacts { context, labels, size: ReplySize::default(), query, name };
        let facts = Facts::new(&data);
        self.conditions
            .iter()
            .all(|condition| matches!(condition.expression.run(&facts), Ok(Value::Bool(true))))
    }

    fn explain(&self) -> String {
        let mut text = format!("view {:?}", self.name);
        for (nth, condition) in self.conditions.iter().enumerate() {
            let _ = write!(text, "{} `{}`", if nth == 0 { "" } else { " and" }, condition.shown);
        }
        text
    }
}

/// Publishes the label `view/name`.
#[derive(Debug)]
struct ViewName(Arc<str>);

impl Labels for ViewName {
    fn label(&self, label: &str, _: &Name, _: Option<IpAddr>) -> Option<String> {
        (label == "view/name").then(|| self.0.to_string())
    }
}

const PLUGIN: &str = "view";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};

    #[test]
    fn identities_differ_by_name_and_conditions() {
        let identity = |lines: &str| parsed::<ViewSpec>(lines).unwrap().identity();
        let lines = [
            "view a",
            "view b",
            "view a {\nexpr true\n}",
            "view a {\nexpr true\nexpr true\n}",
            "view a {\nexpr true == true\n}",
            "view \"a \\\"true\\\"\"",
        ];
        for (nth, one) in lines.iter().enumerate() {
            assert_eq!(identity(one), identity(one));
            for other in &lines[nth + 1..] {
                assert_ne!(identity(one), identity(other), "{one}, {other}");
            }
        }
    }

    #[test]
    fn unusable_views() {
        refused(&[
            ("view", "2:1: plugin/view: `view` needs a name"),
            ("view a b", "2:8: plugin/view: unexpected argument \"b\"; `view` needs a name"),
            ("view a {\nexp true\n}", "3:1: plugin/view: unknown property \"exp\"; did you mean `expr`?"),
            ("view a {\nexpr\n}", "3:1: plugin/view: `expr` needs an expression"),
            (
                "view a {\nexpr name() == nam()\n}",
                "3:16: plugin/view: \"nam\" in the expression is no function; did you mean `name`?",
            ),
            (
                "view a {\nexpr group(1) == ''\n}",
                "3:6: plugin/view: \"group\" in the expression is no function",
            ),
            ("view a\nview b", "3:1: plugin/view: can only be used once per server block; remove one"),
        ]);
    }
}
