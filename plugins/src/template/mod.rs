//! `template`: answers built from patterns and Go templates.

mod captures;
mod message_fields;
mod odd;
mod record_text;
mod setup;
mod var;

use std::sync::Arc;

use expression::{Facts, QueryFacts};
use gotemplate::{Fields, Schema, Value};
use regex::{Captures, Regex};
use wire::{Class, CompressingWriter, Flags, Name, Query, RType, Rcode, Reply, Section};

use crate::name_display::NameText;
use captures::Groups;
use logging::metadata::Labels;
use message_fields::{Asked, QUESTION};
use metrics::counters::{Counter, PerThread, ThreadCounters};
use metrics::{Families, Metric};
pub use odd::odd;
use plugin::failure::{Failure, FailureKind, beginning};
use plugin::hooks::ReplySize;
use plugin::reload_state::Persistent;
use plugin::spec::{BuildContext, Explanation, Source, SourceSpec};
use plugin::{HostsGuard, Lookup, QueryContext, Scope};
use record_text::NOT_SHOWN;
use setup::PLUGIN;
pub(crate) use setup::read;
pub use setup::{Record, TemplateSpec, TemplateSpecs};
use var::{Entries, Var};

/// All `template` directives of a server block, in file order.
#[derive(Debug)]
struct Templates {
    templates: Vec<One>,
}

#[derive(Debug)]
struct One {
    spec: TemplateSpec,
    scope: Scope,
    counters: Arc<TemplateCounters>,
    /// The Extended DNS Error as option data: code and text (RFC 8914, section 2).
    ede: Option<Box<[u8]>>,
    /// Every name of its zones has the same answer, without records: the name is not read.
    same_for_all: bool,
    /// The publisher of labels, if the block has `metadata`.
    labels: Option<Arc<dyn Labels>>,
    /// Maximum size of the block's replies.
    size: ReplySize,
}

/// Counters of one template.
#[derive(Debug)]
pub struct TemplateCounters {
    /// Queries that matched.
    pub matches: PerThread,
    /// Templates that could not be rendered.
    pub template_failures: Counter,
    /// Rendered texts that are no record.
    pub rr_failures: Counter,
}

impl SourceSpec for TemplateSpecs {
    fn build(&self, context: &BuildContext<'_>) -> plugin::args::Result<Box<dyn Source>> {
        // The counters outlive a reload.
        let registry = context.reload_state.get::<TemplateRegistry>();
        let one = |spec: &TemplateSpec| One {
            scope: context.scope(&spec.zones),
            counters: registry.counters(context, spec),
            ede: spec.ede.as_ref().map(|(code, text)| [&code.to_be_bytes(), text.as_bytes()].concat().into()),
            same_for_all: spec.has_no_records() && spec.takes_every_name(),
            labels: context.hooks.labels.clone(),
            size: context.hooks.size,
            spec: spec.clone(),
        };
        Ok(Box::new(Templates { templates: self.templates.iter().map(one).collect() }))
    }
}

impl Source for Templates {
    #[inline]
    fn lookup<'h>(
        &'h self,
        context: &QueryContext<'_>,
        _: &mut HostsGuard<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        _: ThreadCounters<'_>,
    ) -> Lookup {
        let mut text = None;
        for one in &self.templates {
            let spec = &one.spec;
            let fits = one.same_for_all && spec.is_for(query.class, query.rtype);
            if fits && one.scope.holds(&query.name) {
                one.counters.matches.add(context.writer);
                one.begin(reply);
                return Lookup::Answer;
            }
            let Some(zone) = one.zone_of(query) else { continue };
            match one.take(context, query, zone, &mut text, reply) {
                Lookup::Pass => {}
                found => return found,
            }
        }
        Lookup::Pass
    }

    fn explain(&self, query: &Query<'_>) -> Explanation {
        let mut text = NameText::new();
        let name = text.of(&query.name);
        for template in self.templates.iter().filter(|one| one.zone_of(query).is_some()).map(|one| &one.spec)
        {
            if let Some(regex) = template.patterns.iter().find(|regex| regex.is_match(name)) {
                let pattern = match template.is_private {
                    true => String::new(),
                    false => format!(" by {:?}", regex.as_str()),
                };
                let conditions = if template.conditions.is_empty() { "" } else { ", if each `expr` is true" };
                return Explanation::Ends(format!("`template {template}` matches{pattern}{conditions}"));
            }
            if !template.fallthrough.through(&query.name) {
                return Explanation::Ends(format!(
                    "SERVFAIL: no pattern of `template {template}` matches and it does not fall through"
                ));
            }
        }
        Explanation::Passes(Some("no template matches".to_owned()))
    }
}

impl TemplateSpec {
    /// Whether the query's class and type match.
    #[inline]
    fn is_for(&self, class: Class, rtype: RType) -> bool {
        (class == Class::ANY || self.class == Class::ANY || self.class == class)
            && (rtype == RType::ANY || self.rtype == RType::ANY || self.rtype == rtype)
    }

    /// Whether there is nothing to render: for a failure, CoreDNS renders nothing either.
    fn has_no_records(&self) -> bool {
        self.rcode == Rcode::SERVFAIL
            || self.answer.is_empty() && self.authority.is_empty() && self.additional.is_empty()
    }

    /// Whether the template has neither a pattern nor an expression.
    fn takes_every_name(&self) -> bool {
        let bare = self.vars.is_empty() && self.conditions.is_empty();
        bare && self.patterns.first().is_some_and(|regex| regex.as_str() == ".*")
    }
}

impl TemplateSpec {
    /// Returns the values of the `var`s if every `expr` is true, otherwise `None`.
    ///
    /// # Errors
    /// The reason why an expression has no value.
    fn evaluate(
        &self,
        context: &QueryContext<'_>,
        labels: Option<&dyn Labels>,
        size: ReplySize,
        query: &Query<'_>,
        regex: &Regex,
        name: &str,
    ) -> Result<Option<Entries>, String> {
        if self.vars.is_empty() && self.conditions.is_empty() {
            return Ok(Some(Entries::default()));
        }
        let data = QueryFacts { context, labels, size, query, name };
        let mut facts = Facts::new(&data);
        for (index, group) in regex.captures(name).iter().flat_map(Captures::iter).enumerate() {
            let text = group.map_or("", |group| group.as_str());
            facts.add_group(&index.to_string(), text);
            if let Some(group) = regex.capture_names().nth(index).flatten() {
                facts.add_group(group, text);
            }
        }
        let mut vars = Vec::new();
        for (name, expression) in &self.vars {
            let value = expression.run(&facts)?;
            vars.push((name.clone(), Var::new(&value)));
            facts.add_var(name, value);
        }
        for condition in &self.conditions {
            if !matches!(condition.run(&facts)?, expression::Value::Bool(true)) {
                return Ok(None);
            }
        }
        Ok(Some(vars.into_iter().collect()))
    }
}

impl One {
    /// Returns the longest zone of the template that contains the name, if class and type match.
    fn zone_of(&self, query: &Query<'_>) -> Option<&Name> {
        if !self.spec.is_for(query.class, query.rtype) {
            return None;
        }
        if let [zone] = &self.spec.zones[..] {
            return self.scope.holds(&query.name).then_some(zone);
        }
        let zones = self.spec.zones.iter().filter(|zone| query.name.is_within(zone));
        zones.max_by_key(|zone| zone.as_wire().len())
    }

    /// Writes the rcode, AA and the Extended DNS Error.
    fn begin(&self, reply: &mut Reply<'_>) {
        reply.rcode = self.spec.rcode;
        // SERVFAIL is not authoritative.
        reply.flags = if self.spec.rcode == Rcode::SERVFAIL { 0 } else { Flags::AA };
        if let Some(ede) = &self.ede {
            reply.options.push(wire::OPTION_EDE, ede);
        }
    }

    /// Answers a query with matching class, type and `zone`, or passes it; `text` caches the name
    /// as text.
    ///
    /// Out of line: a query answered without reading its name would set up this frame, too.
    #[inline(never)]
    fn take(
        &self,
        context: &QueryContext<'_>,
        query: &Query<'_>,
        zone: &Name,
        text: &mut Option<NameText>,
        reply: &mut Reply<'_>,
    ) -> Lookup {
        let spec = &self.spec;
        let name = text.get_or_insert_with(NameText::new).of(&query.name);
        let missed = || match spec.fallthrough.through(&query.name) {
            true => Lookup::Pass,
            false => Lookup::Fail(no_pattern()),
        };
        let Some(regex) = spec.patterns.iter().find(|regex| regex.is_match(name)) else { return missed() };
        match spec.evaluate(context, self.labels.as_deref(), self.size, query, regex, name) {
            Ok(Some(vars)) => {
                self.counters.matches.add(context.writer);
                self.answer(context, query, zone, regex, name, vars, reply)
            }
            Ok(None) => missed(),
            Err(_) if spec.is_private => {
                Lookup::Fail(failed(format!("an expression has no value here; {NOT_SHOWN}")))
            }
            Err(error) => Lookup::Fail(failed(beginning(error))),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "all of them are what the templates may name")]
    fn answer(
        &self,
        context: &QueryContext<'_>,
        query: &Query<'_>,
        zone: &Name,
        regex: &Regex,
        name: &str,
        vars: Entries,
        reply: &mut Reply<'_>,
    ) -> Lookup {
        let spec = &self.spec;
        self.begin(reply);
        if spec.has_no_records() {
            return Lookup::Answer;
        }
        let Some(captures) = regex.captures(name) else { return Lookup::Fail(no_pattern()) };
        let class = if query.class == Class::ANY { spec.class } else { query.class };
        let rtype = if query.rtype == RType::ANY { spec.rtype } else { query.rtype };
        let (zone, groups) = (zone.to_string(), Groups::new(regex, captures));
        let labels = self.labels.as_deref();
        let asked = Asked { query, name };
        let data = Data { context, labels, asked, zone, regex, class, rtype, groups, vars };
        let sections = [
            (&spec.answer, Section::Answer),
            (&spec.authority, Section::Authority),
            (&spec.additional, Section::Additional),
        ];
        let (mut body, mut buffer) = (Vec::new(), Vec::new());
        let (mut text, mut has_alias) = (String::new(), false);
        let mut records = match CompressingWriter::new(query.question, &mut body) {
            Ok(records) => records,
            Err(error) => return Lookup::Fail(failed(error.to_string())),
        };
        for (templates, section) in sections {
            for record in templates {
                text.clear();
                if let Err(error) = record.template.render(&data, &mut text) {
                    self.counters.template_failures.add_shared(1);
                    let error = match spec.is_private {
                        true => format!(
                            "no text can be made of {:?}; {NOT_SHOWN}",
                            beginning(record.text.clone())
                        ),
                        false => beginning(format!("{error} in {:?}", record.text)),
                    };
                    return Lookup::Fail(failed(error));
                }
                let pushed = spec.read_record(record, &text).and_then(|read| {
                    let rr = read.into_rr(section);
                    has_alias |= section == Section::Answer && rr.rtype == RType::CNAME;
                    rr.push_to(&mut records, &mut buffer)
                        .map_err(|error| format!("{:?}: {error}", beginning(spec.shown(record, &text))))
                });
                if let Err(error) = pushed {
                    self.counters.rr_failures.add_shared(1);
                    return Lookup::Fail(failed(error));
                }
            }
        }
        let counts = records.counts();
        reply.push_ready(&body, counts);
        match query.rtype {
            RType::A | RType::AAAA if has_alias => Lookup::Follow,
            _ => Lookup::Answer,
        }
    }
}

/// Returns the failure of a name in a template's zone that matches no pattern.
fn no_pattern() -> Failure {
    Failure::own(PLUGIN, FailureKind::NotMine, "no pattern matches")
}

/// Returns the failure of a record that cannot be created.
fn failed(why: String) -> Failure {
    Failure::own(PLUGIN, FailureKind::Error, why)
}

/// Returns the fields available to a record; `vars` are the names of the template's variables.
pub(crate) fn schema(vars: &[String]) -> Schema {
    let question = Schema::fields(QUESTION.iter().map(|name| (*name, Schema::Scalar)));
    let message = Schema::fields([
        ("Id", Schema::Scalar),
        ("RecursionDesired", Schema::Scalar),
        ("CheckingDisabled", Schema::Scalar),
        ("AuthenticatedData", Schema::Scalar),
        ("Question", Schema::list(question.clone())),
    ]);
    Schema::fields([
        ("Zone", Schema::Scalar),
        ("Name", Schema::Scalar),
        ("Regex", Schema::Scalar),
        ("Match", Schema::list(Schema::Scalar)),
        ("Group", Schema::open_map(Schema::Scalar)),
        ("Var", Schema::map(vars, Schema::Any)),
        ("Class", Schema::Scalar),
        ("Type", Schema::Scalar),
        ("Remote", Schema::Scalar),
        ("Question", question),
        ("Message", message),
        ("Meta", Schema::Method),
    ])
}

/// A template's data: the query as text.
struct Data<'a> {
    context: &'a QueryContext<'a>,
    labels: Option<&'a dyn Labels>,
    asked: Asked<'a>,
    /// The query's, or the template's if the query's is ANY; likewise the type.
    class: Class,
    rtype: RType,
    zone: String,
    regex: &'a Regex,
    groups: Groups<'a>,
    vars: Entries,
}

impl Fields for Data<'_> {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "Zone" => Value::Text(self.zone.as_str().into()),
            "Name" => Value::Text(self.asked.name.into()),
            "Regex" => Value::Text(self.regex.as_str().into()),
            "Match" => Value::list(&self.groups),
            "Group" => Value::Map(&self.groups),
            "Var" => Value::Map(&self.vars),
            "Class" => Value::Text(self.class.to_string().into()),
            "Type" => Value::Text(self.rtype.to_string().into()),
            "Remote" => Value::Text(self.context.client().ip().to_string().into()),
            "Question" | "Message" => Value::Fields(&self.asked),
            _ => return None,
        })
    }

    /// A label without a value is empty, as all are in CoreDNS without `metadata`.
    fn call(&self, name: &str, label: &str) -> Option<Value<'_>> {
        let client = self.context.client().ip().to_canonical();
        let known = || self.labels?.label(label, &self.asked.query.name, Some(client));
        (name == "Meta").then(|| Value::Text(known().unwrap_or_default().into()))
    }
}

impl std::fmt::Display for TemplateSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.class, self.rtype)?;
        for zone in &self.zones {
            write!(f, " {}", self.hidden.text(zone))?;
        }
        if self.rcode != Rcode::NOERROR {
            write!(f, " {}", self.rcode)?;
        }
        Ok(())
    }
}

/// The counters of all templates, kept across reloads.
#[derive(Debug, Default)]
pub struct TemplateRegistry {
    templates: std::sync::Mutex<Vec<(TemplateLabels, Arc<TemplateCounters>)>>,
}

/// The labels of one template's metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateLabels {
    /// `dns://ADDRESS:PORT` of the block's first address.
    pub server: String,
    /// The template's first zone.
    pub zone: String,
    /// The name of the block's view, or empty.
    pub view: String,
    /// The template's class.
    pub class: String,
    /// The template's type.
    pub rtype: String,
    /// All of its record texts, which identify a template.
    pub template: String,
}

impl Persistent for TemplateRegistry {
    fn collect(&self, into: &mut Families) {
        for (labels, counters) in self.all() {
            let shared = [
                ("server", labels.server.as_str()),
                ("zone", &labels.zone),
                ("view", &labels.view),
                ("class", &labels.class),
                ("type", &labels.rtype),
            ];
            if counters.matches.get() > 0 {
                into.counter(MATCHES, &shared, counters.matches.get() as f64);
            }
            let [server, zone, view, class, rtype] = shared;
            let full = [server, zone, view, class, rtype, ("section", ""), ("template", &labels.template)];
            for (metric, count) in
                [(FAILURES, counters.template_failures.get()), (RR_FAILURES, counters.rr_failures.get())]
            {
                if count > 0 {
                    into.counter(metric, &full, count as f64);
                }
            }
        }
    }
}

impl TemplateRegistry {
    /// Returns the counters of the template, created on first use.
    fn counters(&self, context: &BuildContext<'_>, spec: &TemplateSpec) -> Arc<TemplateCounters> {
        let records = spec.answer.iter().chain(&spec.authority).chain(&spec.additional);
        let labels = TemplateLabels {
            server: context.servers.first().cloned().unwrap_or_default(),
            view: context.hooks.view_name().to_owned(),
            zone: spec.zones.first().map(|zone| spec.hidden.text(zone)).unwrap_or_default(),
            class: spec.class.to_string(),
            rtype: spec.rtype.to_string(),
            template: records.map(|record| record.text.as_str()).collect::<Vec<_>>().join("; "),
        };
        let mut templates = self.templates.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, counters)) = templates.iter().find(|(known, _)| *known == labels) {
            return counters.clone();
        }
        let counters = Arc::new(TemplateCounters {
            matches: PerThread::new(context.threads),
            template_failures: Counter::default(),
            rr_failures: Counter::default(),
        });
        templates.push((labels, counters.clone()));
        counters
    }

    /// Returns all templates since the start.
    pub fn all(&self) -> Vec<(TemplateLabels, Arc<TemplateCounters>)> {
        self.templates.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// Counter {server, zone, view, class, type}.
const MATCHES: Metric =
    Metric { name: "coredns_template_matches_total", help: "Counter of template regex matches." };
/// Counter {server, zone, view, class, type, section, template}.
const FAILURES: Metric =
    Metric { name: "coredns_template_template_failures_total", help: "Counter of go template failures." };
/// Counter {server, zone, view, class, type, section, template}.
const RR_FAILURES: Metric =
    Metric { name: "coredns_template_rr_failures_total", help: "Counter of mis-templated RRs." };
