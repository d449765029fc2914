//! `rewrite`: changes queries before they are answered, and their responses.
//!
//! ```text
//! in:   rule -> rule -> ...      each may change name, type, class or EDNS options; the first that `stop`s is the last
//! back: ... <- reversal <- reversal   of the rules that fitted, the last one first
//! ```

mod cname;
mod edns0;
mod name_match;
mod revert;
mod setup;

use std::net::IpAddr;
use std::sync::Arc;

use wire::{Class, Message, Name, RType, Rcode};

use cname::Cname;
use edns0::{Edns0, Undo};
use logging::metadata::Labels;
use name_match::{Pattern, Replacement};
use plugin::QueryContext;
use plugin::failure::{Failure, FailureKind, beginning};
use plugin::middleware::{EffectiveQuery, HookResult, Middleware, OnQuery, ResponseHook, Subqueries};
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec};
use revert::{NameMap, NameMaps, Turned};

/// All rules of a server block, in file order.
#[derive(Debug, Clone)]
pub struct Rewrite {
    rules: Vec<Rule>,
    /// The option codes in rules.
    codes: Vec<u16>,
    /// The publisher of labels; set when the rules are built for a block with `metadata`.
    labels: Option<Arc<dyn Labels>>,
}

/// One `rewrite`.
#[derive(Debug, Clone)]
struct Rule {
    /// Whether a match ends the evaluation of rules.
    stop: bool,
    /// As written, variables too, for `explain`.
    text: String,
    field: Field,
}

/// The field that a rule changes.
#[derive(Debug, Clone)]
enum Field {
    Name(NameRule),
    Type(RType, RType),
    Class(Class, Class),
    Ttl(Pattern, Ttls),
    Rcode(Pattern, Rcode, Rcode),
    Cname(Cname),
    Edns0(Edns0),
}

/// `name`.
#[derive(Debug, Clone)]
struct NameRule {
    pattern: Pattern,
    to: Replacement,
    /// Whether the replacement has the value of an environment variable.
    is_private: bool,
    /// Whether names in the answer are mapped back to those in the client's question.
    auto: bool,
    /// Further changes to names in the answer.
    answers: Vec<AnswerRule>,
}

/// `answer name` and `answer value`, and the reversal of a suffix.
#[derive(Debug, Clone)]
struct AnswerRule {
    owners: bool,
    values: bool,
    map: NameMap,
}

/// Bounds of `ttl`, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ttls {
    least: u32,
    most: u32,
}

use setup::PLUGIN;
pub(crate) use setup::read;

impl MiddlewareSpec for Rewrite {
    fn build(&self, context: &BuildContext<'_>) -> plugin::args::Result<Arc<dyn Middleware>> {
        Ok(Arc::new(Self { labels: context.hooks.labels.clone(), ..self.clone() }))
    }

    fn keeps_names(&self) -> bool {
        !self.rules.iter().any(|rule| matches!(rule.field, Field::Name(_)))
    }
}

impl Middleware for Rewrite {
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, context: &QueryContext<'_>) -> OnQuery<'s> {
        let mut reversals = Reversals { codes: &self.codes, ..Reversals::default() };
        for rule in &self.rules {
            match rule.apply(self.labels.as_deref(), effective, Some(context), &mut reversals) {
                Ok(true) if rule.stop => break,
                Ok(_) => {}
                Err(failure) => return OnQuery::Fail(failure),
            }
        }
        let copies_options = effective.client_query().edns.is_some() && effective.options().next().is_some();
        if reversals.all.is_empty() && !copies_options {
            OnQuery::Pass
        } else {
            OnQuery::Hook(Box::new(reversals))
        }
    }

    fn explain(&self, effective: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        // The rules that matched: for the query, and for the answer.
        let (mut of_queries, mut of_answers) = (Vec::new(), Vec::new());
        for rule in &self.rules {
            match rule.apply(self.labels.as_deref(), effective, None, &mut Reversals::default()) {
                Ok(true) if rule.is_of_answers() => of_answers.push(format!("`rewrite {}`", rule.text)),
                Ok(true) => of_queries.push(format!("`rewrite {}`", rule.text)),
                Ok(false) => continue,
                Err(failure) => return Explanation::Ends(format!("{}: {failure}", failure.rcode())),
            }
            if rule.stop {
                break;
            }
        }
        let mut notes = Vec::new();
        if !of_queries.is_empty() {
            let rtype = effective.rtype();
            let made = match (effective.hides_name, of_queries.len()) {
                (false, _) => format!("{} {rtype}", effective.name()),
                (true, 1) => format!("{rtype} of the name that the rule makes"),
                (true, _) => format!("{rtype} of the name that the rules make"),
            };
            notes.push(format!("{}: {made} is looked up", of_queries.join(", ")));
        }
        if !of_answers.is_empty() {
            notes.push(format!("{} is for the answer", of_answers.join(", ")));
        }
        Explanation::Passes((!notes.is_empty()).then(|| notes.join("; ")))
    }
}

impl Rule {
    /// Whether the rule changes responses only.
    fn is_of_answers(&self) -> bool {
        matches!(self.field, Field::Ttl(..) | Field::Rcode(..) | Field::Cname(_))
    }

    /// Returns whether the rule matched. Without a `context` rules for EDNS options are not
    /// applied.
    fn apply<'s>(
        &'s self,
        labels: Option<&dyn Labels>,
        effective: &mut EffectiveQuery<'_>,
        context: Option<&QueryContext<'_>>,
        reversals: &mut Reversals<'s>,
    ) -> Result<bool, Failure> {
        let Reversals { all, undo, .. } = reversals;
        // As in CoreDNS, labels are those of the client's question, regardless of earlier rules.
        let (asked, client) =
            (effective.client_query(), context.map(|context| context.client().ip().to_canonical()));
        let label = move |label: &str| labels.and_then(|labels| labels.label(label, &asked.name, client));
        match &self.field {
            Field::Name(rule) => return rule.apply(effective, &label, all),
            Field::Edns0(rule) => {
                return Ok(context.is_none_or(|context| rule.apply(effective, context, &label, undo)));
            }
            Field::Type(from, to) if effective.rtype() == *from => effective.set_rtype(*to),
            Field::Class(from, to) if effective.class() == *from => effective.set_class(*to),
            Field::Type(..) | Field::Class(..) => return Ok(false),
            Field::Ttl(pattern, ttls) if pattern.fits(&effective.name().to_string()) => {
                all.push(Reversal::Ttl(*ttls));
            }
            Field::Rcode(pattern, from, to) if pattern.fits(&effective.name().to_string()) => {
                all.push(Reversal::Rcode(*from, *to));
            }
            Field::Ttl(..) | Field::Rcode(..) => return Ok(false),
            Field::Cname(rule) => all.push(Reversal::Cname(rule)),
        }
        Ok(true)
    }
}

impl NameRule {
    fn apply<'s>(
        &'s self,
        effective: &mut EffectiveQuery<'_>,
        label: &dyn Fn(&str) -> Option<String>,
        reversals: &mut Vec<Reversal<'s>>,
    ) -> Result<bool, Failure> {
        let before = *effective.name();
        let after = self.pattern.replace_by(&before.to_string(), &self.to, label);
        let Some(after) = after else { return Ok(false) };
        let name = Name::from_text(&after).map_err(|why| {
            let why = match self.is_private || effective.hides_name {
                true => format!("the rules do not make a name of it: {why}"),
                false => {
                    let after = beginning(after);
                    format!("the rules make {after:?} of it, which is not a name: {why}")
                }
            };
            Failure::own(PLUGIN, FailureKind::Error, why)
        })?;
        effective.set_name(name);
        effective.hides_name |= self.is_private;
        if self.auto {
            reversals.push(Reversal::Names(NameMap::Zone(Box::new(Turned { from: name, to: before }))));
        }
        reversals.extend(self.answers.iter().map(Reversal::Answer));
        Ok(true)
    }
}

/// Changes to apply to the response, in the order of the rules.
#[derive(Debug, Default)]
struct Reversals<'s> {
    all: Vec<Reversal<'s>>,
    codes: &'s [u16],
    /// Steps that undo changes of options.
    undo: Vec<Undo>,
}

#[derive(Debug)]
enum Reversal<'s> {
    /// Owners and values.
    Names(NameMap),
    Answer(&'s AnswerRule),
    Ttl(Ttls),
    Rcode(Rcode, Rcode),
    Cname(&'s Cname),
}

impl Reversal<'_> {
    /// Whether it maps names one by one, so that several can be applied in one pass.
    fn is_of_names(&self) -> bool {
        matches!(self, Self::Names(_) | Self::Answer(_))
    }
}

impl ResponseHook for Reversals<'_> {
    fn sees_failures(&self) -> bool {
        true
    }

    fn on_response(
        &self,
        effective: &EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        response: &mut Message,
        subqueries: &mut dyn Subqueries,
    ) -> HookResult {
        for alike in self.all.chunk_by(|one, next| one.is_of_names() && next.is_of_names()).rev() {
            let mut names = NameMaps::default();
            for reversal in alike.iter().rev() {
                match reversal {
                    Reversal::Names(map) => names.push(map, true, true),
                    Reversal::Answer(rule) => names.push(&rule.map, rule.owners, rule.values),
                    Reversal::Ttl(Ttls { least, most }) => {
                        response.records.iter_mut().for_each(|rr| rr.ttl = rr.ttl.clamp(*least, *most));
                    }
                    Reversal::Rcode(from, to) if response.rcode == *from => {
                        response.rcode = *to;
                        response.clear_ad();
                    }
                    Reversal::Rcode(..) => {}
                    Reversal::Cname(rule) => {
                        let result = rule.apply(effective, response, subqueries);
                        if !matches!(result, HookResult::Done) {
                            return result;
                        }
                    }
                }
            }
            names.apply(response, subqueries);
        }
        edns0::copy_options(self.codes, &self.undo, effective, response);
        HookResult::Done
    }
}
