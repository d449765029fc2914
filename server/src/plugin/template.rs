//! `template`: answers made from patterns and Go templates.

use std::fmt::Write as _;
use std::sync::Arc;

use gotemplate::{Fields, List, Map, Schema, Value};
use regex::{Captures, Regex};
use wire::{Class, Flags, Name, Query, RType, Rcode, Reply, Section};

use super::{Lookup, Moment};
use crate::failure::Failure;
use crate::observe::counters::Counter;
use crate::setup::{Record, TemplateSpec};
use crate::text::NameText;
use crate::zonetext;

/// Every `template` of a server block, in file order.
#[derive(Debug)]
pub struct Templates {
    templates: Vec<One>,
}

#[derive(Debug)]
struct One {
    spec: TemplateSpec,
    counters: Arc<TemplateCounters>,
}

/// What is counted of one template.
#[derive(Debug, Default)]
pub struct TemplateCounters {
    /// Queries that matched.
    pub matches: Counter,
    /// Templates that could not be rendered.
    pub template_failures: Counter,
    /// Rendered texts that are no record.
    pub rr_failures: Counter,
}

impl Templates {
    /// Ready to answer; the counters outlive a reload.
    pub fn new(specs: Vec<TemplateSpec>, counters: impl Fn(&TemplateSpec) -> Arc<TemplateCounters>) -> Self {
        let templates = specs.into_iter().map(|spec| One { counters: counters(&spec), spec }).collect();
        Self { templates }
    }

    /// Asks one template after another; the first whose zone, class, type and pattern match answers.
    pub fn lookup(&self, moment: &Moment, query: &Query<'_>, reply: &mut Reply<'_>) -> Lookup {
        let mut text = NameText::new();
        for one in &self.templates {
            let spec = &one.spec;
            let Some(zone) = spec.zone_of(query) else { continue };
            let name = text.of(&query.name);
            let Some(regex) = spec.patterns.iter().find(|regex| regex.is_match(name)) else {
                if spec.fallthrough.through(&query.name) {
                    continue;
                }
                return Lookup::Fail(Failure::NoPattern);
            };
            one.counters.matches.add_shared(1);
            return one.answer(moment, query, zone, regex, name, reply);
        }
        Lookup::Pass
    }
}

/// What one template says to a query, for `explain`.
pub(crate) enum Verdict<'t> {
    /// It answers.
    Matches {
        /// The directive's arguments.
        template: &'t TemplateSpec,
        /// The pattern that matched.
        pattern: &'t str,
    },
    /// Its zone, class and type fit, no pattern does, and it does not fall through.
    NoPattern {
        /// The directive's arguments.
        template: &'t TemplateSpec,
    },
}

impl Templates {
    /// Which template would end the query's way, if any.
    pub(crate) fn explain(&self, query: &Query<'_>) -> Option<Verdict<'_>> {
        let mut text = NameText::new();
        let name = text.of(&query.name);
        self.templates.iter().map(|one| &one.spec).filter(|spec| spec.zone_of(query).is_some()).find_map(
            |template| match template.patterns.iter().find(|regex| regex.is_match(name)) {
                Some(regex) => Some(Verdict::Matches { template, pattern: regex.as_str() }),
                None if template.fallthrough.through(&query.name) => None,
                None => Some(Verdict::NoPattern { template }),
            },
        )
    }
}

impl TemplateSpec {
    /// The longest of its zones that holds the name, if class and type fit, too.
    fn zone_of(&self, query: &Query<'_>) -> Option<&Name> {
        let class = query.class == Class::ANY || self.class == Class::ANY || self.class == query.class;
        let rtype = query.rtype == RType::ANY || self.rtype == RType::ANY || self.rtype == query.rtype;
        if !class || !rtype {
            return None;
        }
        let zones = self.zones.iter().filter(|zone| query.name.is_within(zone));
        zones.max_by_key(|zone| zone.as_wire().len())
    }
}

impl One {
    fn answer(
        &self,
        moment: &Moment,
        query: &Query<'_>,
        zone: &Name,
        regex: &Regex,
        name: &str,
        reply: &mut Reply<'_>,
    ) -> Lookup {
        let spec = &self.spec;
        reply.rcode = spec.rcode;
        // A failure has no authority, and CoreDNS renders nothing for it.
        let failed = spec.rcode == Rcode::SERVFAIL;
        reply.flags = if failed { 0 } else { Flags::AA };
        if let Some((code, text)) = &spec.ede {
            let mut value = code.to_be_bytes().to_vec();
            value.extend_from_slice(text.as_bytes());
            reply.options.push(wire::OPTION_EDE, &value);
        }
        if failed || spec.answer.is_empty() && spec.authority.is_empty() && spec.additional.is_empty() {
            return Lookup::Answer;
        }
        let Some(captures) = regex.captures(name) else { return Lookup::Fail(Failure::NoPattern) };
        let data = Data {
            moment,
            query,
            class: if query.class == Class::ANY { spec.class } else { query.class },
            rtype: if query.rtype == RType::ANY { spec.rtype } else { query.rtype },
            zone: zone.to_string(),
            regex,
            name,
            groups: Groups { regex, captures },
        };
        let sections = [
            (&spec.answer, Section::Answer),
            (&spec.authority, Section::Authority),
            (&spec.additional, Section::Additional),
        ];
        let mut records = zonetext::Records::new(query.question);
        let mut text = String::new();
        for (templates, section) in sections {
            for record in templates {
                text.clear();
                if let Err(error) = record.template.render(&data, &mut text) {
                    self.counters.template_failures.add_shared(1);
                    return Lookup::Fail(Failure::Template(error.to_string()));
                }
                if let Err(error) = records.push(section, &text) {
                    self.counters.rr_failures.add_shared(1);
                    return Lookup::Fail(Failure::Template(error.to_string()));
                }
            }
        }
        let (body, counts) = records.finish();
        reply.push_ready(&body, counts);
        let is_cname =
            |record: wire::Record| record.section == Section::Answer && record.rtype == RType::CNAME;
        match query.rtype {
            RType::A | RType::AAAA if reply.records().any(is_cname) => Lookup::Follow,
            _ => Lookup::Answer,
        }
    }
}

/// The fields that a record of `template` may name; `groups` are the names of its patterns' groups.
pub(crate) fn schema(groups: &[&str]) -> Schema {
    let numbered = (0..=99).map(|number| number.to_string());
    let question =
        Schema::fields([("Name", Schema::Scalar), ("Qtype", Schema::Scalar), ("Qclass", Schema::Scalar)]);
    let groups = groups.iter().map(|group| (*group).to_owned()).chain(numbered);
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
        ("Group", Schema::map(groups, Schema::Scalar)),
        ("Class", Schema::Scalar),
        ("Type", Schema::Scalar),
        ("Remote", Schema::Scalar),
        ("Question", question),
        ("Message", message),
        ("Meta", Schema::Method),
    ])
}

/// A template's data: what the query says, as text.
struct Data<'a> {
    moment: &'a Moment,
    query: &'a Query<'a>,
    /// The query's, or the template's where the query is for any; likewise the type.
    class: Class,
    rtype: RType,
    zone: String,
    regex: &'a Regex,
    name: &'a str,
    groups: Groups<'a>,
}

struct Groups<'a> {
    regex: &'a Regex,
    captures: Captures<'a>,
}

impl Fields for Data<'_> {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "Zone" => Value::Text(self.zone.as_str().into()),
            "Name" => Value::Text(self.name.into()),
            "Regex" => Value::Text(self.regex.as_str().into()),
            "Match" => Value::list(&self.groups),
            "Group" => Value::Map(&self.groups),
            "Class" => Value::Text(self.class.to_string().into()),
            "Type" => Value::Text(self.rtype.to_string().into()),
            "Remote" => Value::Text(self.moment.client.ip().to_string().into()),
            "Question" => Value::Fields(self),
            "Message" => Value::Fields(self),
            // The parts of Question and Message, which are this same query.
            "Qtype" => Value::Uint16(self.query.rtype.0),
            "Qclass" => Value::Uint16(self.query.class.0),
            "Id" => Value::Uint16(self.query.id),
            "RecursionDesired" => Value::Bool(self.query.flags.has(Flags::RD)),
            "CheckingDisabled" => Value::Bool(self.query.flags.has(Flags::CD)),
            "AuthenticatedData" => Value::Bool(self.query.flags.has(Flags::AD)),
            _ => return None,
        })
    }

    /// There are no metadata: as CoreDNS without its `metadata` directive, every label is empty.
    fn call(&self, name: &str, _label: &str) -> Option<Value<'_>> {
        (name == "Meta").then(|| Value::Text("".into()))
    }
}

impl List for Groups<'_> {
    fn count(&self) -> usize {
        self.captures.len()
    }

    fn get(&self, index: usize) -> Option<Value<'_>> {
        (index < self.captures.len())
            .then(|| Value::Text(self.captures.get(index).map_or("", |m| m.as_str()).into()))
    }
}

impl Map for Groups<'_> {
    fn get(&self, key: &str) -> Option<Value<'_>> {
        let group = match key.parse::<usize>() {
            Ok(index) if index < self.captures.len() => self.captures.get(index),
            Ok(_) => return None,
            Err(_) if self.regex.capture_names().flatten().any(|name| name == key) => self.captures.name(key),
            Err(_) => return None,
        };
        Some(Value::Text(group.map_or("", |m| m.as_str()).into()))
    }

    fn keys(&self) -> Vec<&str> {
        self.regex.capture_names().flatten().collect()
    }

    fn absent(&self) -> Value<'_> {
        Value::Text("".into())
    }
}

impl Record {
    /// The labels `section` and `template` of the failure metrics.
    pub fn label(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Display for TemplateSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.class, self.rtype)?;
        for zone in &self.zones {
            f.write_char(' ')?;
            write!(f, "{zone}")?;
        }
        if self.rcode != Rcode::NOERROR {
            write!(f, " {}", self.rcode)?;
        }
        Ok(())
    }
}

/// The counters of every template, kept over reloads.
#[derive(Debug, Default)]
pub struct TemplateRegistry {
    templates: std::sync::Mutex<Vec<(TemplateLabels, Arc<TemplateCounters>)>>,
}

/// What the metrics of one template are labelled with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateLabels {
    /// `dns://ADDRESS:PORT` of the block's first address.
    pub server: String,
    /// The template's first zone.
    pub zone: String,
    /// Its class.
    pub class: String,
    /// Its type.
    pub rtype: String,
    /// All of its record texts, to tell templates apart.
    pub template: String,
}

impl TemplateRegistry {
    /// The counters of the template, made on first use.
    pub fn counters(&self, addresses: &[std::net::SocketAddr], spec: &TemplateSpec) -> Arc<TemplateCounters> {
        let records = spec.answer.iter().chain(&spec.authority).chain(&spec.additional);
        let labels = TemplateLabels {
            server: addresses.first().map(|&address| crate::house::server_label(address)).unwrap_or_default(),
            zone: spec.zones.first().map(ToString::to_string).unwrap_or_default(),
            class: spec.class.to_string(),
            rtype: spec.rtype.to_string(),
            template: records.map(|record| record.text.as_str()).collect::<Vec<_>>().join("; "),
        };
        let mut templates = self.templates.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, counters)) = templates.iter().find(|(known, _)| *known == labels) {
            return counters.clone();
        }
        let counters = Arc::new(TemplateCounters::default());
        templates.push((labels, counters.clone()));
        counters
    }

    /// Every template seen since the start.
    pub fn all(&self) -> Vec<(TemplateLabels, Arc<TemplateCounters>)> {
        self.templates.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use crate::failure::Failure;
    use crate::house::tests::{Scene, Sent, packet};
    use wire::{RType, Rcode};

    const AT: &str = "127.0.0.1:53";

    fn scene(lines: &str) -> Scene {
        Scene::new(&format!(". {{\nbind 127.0.0.1\n{lines}\n}}\n"))
    }

    fn answer(record: &str) -> Scene {
        scene(&format!(
            "template ANY ANY example.org {{\nmatch \"^(?P<host>[a-z]+)-([0-9]+)\\.(?P<none>x)?\"\nanswer \"{record}\"\n}}"
        ))
    }

    #[test]
    fn every_field_is_what_the_query_says() {
        for (field, value) in [
            ("{{ .Name }}", "web-7.example.org."),
            ("{{ .Zone }}", "example.org."),
            ("{{ .Type }}", "TXT"),
            ("{{ .Class }}", "IN"),
            ("{{ .Remote }}", "192.0.2.200"),
            ("{{ .Group.host }}", "web"),
            ("{{ .Group.none }}", ""),
            ("{{ index .Group `host` }}", "web"),
            ("{{ index .Group `2` }}", "7"),
            ("{{ index .Match 0 }}", "web-7."),
            ("{{ index .Match 1 }}", "web"),
            ("{{ index .Match 2 }}", "7"),
            ("{{ len .Match }}", "4"),
            ("{{ .Question.Name }}", "web-7.example.org."),
            ("{{ .Question.Qtype }}", "16"),
            ("{{ .Question.Qclass }}", "1"),
            ("{{ .Message.Id }}", "4660"),
            ("{{ .Message.RecursionDesired }}", "true"),
            ("{{ .Meta `kubernetes/namespace` }}", ""),
            ("{{ if eq .Type `TXT` }}yes{{ else }}no{{ end }}", "yes"),
            ("{{ parseInt (index .Match 2) 10 32 | printf `%03d` }}", "007"),
        ] {
            let scene = answer(&format!("{{{{ .Name }}}} 5 IN TXT <{field}>"));
            let reply = scene.ask(AT, "Web-7.Example.org", RType::TXT);
            assert_eq!(reply, format!("NOERROR aa; Web-7.Example.org. 5 IN TXT <{value}>"), "{field}");
        }
    }

    #[test]
    fn sections_rcode_and_several_records() {
        let scene = scene(
            "template IN MX example.org {\nanswer \"{{ .Name }} 60 IN MX 10 mail.{{ .Zone }}\" \"{{ .Name }} MX 20 b.example.net.\"\n\
             authority \"{{ .Zone }} 60 IN NS ns.example.org.\"\nadditional \"mail.example.org. 60 IN A 192.0.2.9\"\nrcode YXDOMAIN\n}",
        );
        assert_eq!(
            scene.ask(AT, "example.org", RType::MX),
            "YXDOMAIN aa; example.org. 60 IN MX 10 mail.example.org.; example.org. 3600 IN MX 20 b.example.net.; \
             authority example.org. 60 IN NS ns.example.org.; additional mail.example.org. 60 IN A 192.0.2.9"
        );
    }

    #[test]
    fn a_query_for_any_type_has_the_type_of_the_template() {
        let scene = scene(
            "template IN TXT example.org {\nanswer \"{{ .Name }} 5 IN TXT {{ .Class }}-{{ .Type }}\"\n}",
        );
        for rtype in [RType::ANY, RType::TXT] {
            assert_eq!(scene.ask(AT, "example.org", rtype), "NOERROR aa; example.org. 5 IN TXT IN-TXT");
        }
    }

    #[test]
    fn a_failure_has_neither_authority_nor_records() {
        let scene = scene(
            "template ANY ANY {\nrcode SERVFAIL\nauthority \"{{ .Zone }} 60 IN NS ns.example.org.\"\n}",
        );
        assert_eq!(scene.ask(AT, "example.org", RType::A), "SERVFAIL");
    }

    #[test]
    fn templates_are_tried_in_file_order_until_one_takes_the_query() {
        const TWO: &str = "template IN A example.org {\nmatch ^a\\. ^aa\\.\nrcode NXDOMAIN\nFIRST\n}\n\
                           template IN ANY org example.org {\nmatch ^b\\.\nrcode REFUSED\nSECOND\n}\nwhoami";
        let own = "NOERROR aa; additional";
        for (first, second, rows) in [
            (
                "",
                "",
                [
                    ("a.example.org", RType::A, "NXDOMAIN aa"),
                    ("aa.example.org", RType::A, "NXDOMAIN aa"),
                    ("b.example.org", RType::A, "SERVFAIL"),
                    ("b.example.org", RType::AAAA, "REFUSED aa"),
                    ("a.example.org", RType::AAAA, "SERVFAIL"),
                    ("a.example.net", RType::A, own),
                ],
            ),
            (
                "fallthrough",
                "fallthrough example.org",
                [
                    ("a.example.org", RType::A, "NXDOMAIN aa"),
                    ("b.example.org", RType::A, "REFUSED aa"),
                    ("c.example.org", RType::A, own),
                    ("c.b.org", RType::A, "SERVFAIL"),
                    ("b.org", RType::A, "REFUSED aa"),
                    ("a.example.org", RType::ANY, "NXDOMAIN aa"),
                ],
            ),
        ] {
            let scene = scene(&TWO.replace("FIRST", first).replace("SECOND", second));
            for (name, rtype, expected) in rows {
                let reply = scene.ask(AT, name, rtype);
                assert!(reply.starts_with(expected), "{first} {second} {name} {rtype}: {reply}");
            }
        }
    }

    #[test]
    fn a_template_that_makes_no_record_fails_and_is_counted() {
        for (record, template_failures, rr_failures) in [
            ("{{ .Name }} 60 IN A 192.0.2.256", 0, 1),
            ("{{ .Name }}", 0, 1),
            ("{{ index .Match 9 }} 60 IN A 192.0.2.1", 1, 0),
            ("{{ .Name }} 60 IN A 192.0.2.1", 0, 0),
        ] {
            let scene = answer(record);
            let Sent::Reply(reply) = scene.send(AT, &packet("web-7.example.org", RType::A, None)) else {
                panic!("no reply")
            };
            let failed = template_failures + rr_failures > 0;
            assert_eq!(reply.2.rcode, if failed { Rcode::SERVFAIL } else { Rcode::NOERROR }, "{record}");
            assert_eq!(matches!(reply.2.failure.as_deref(), Some(Failure::Template(_))), failed, "{record}");
            assert_eq!(reply.0.answers.len(), usize::from(!failed), "{record}");
            let (labels, counters) = scene.shared.templates.all().remove(0);
            assert_eq!(
                (labels.server.as_str(), labels.zone.as_str()),
                ("dns://127.0.0.1:53", "example.org.")
            );
            let counts =
                [counters.matches.get(), counters.template_failures.get(), counters.rr_failures.get()];
            assert_eq!(counts, [1, template_failures, rr_failures], "{record}");
        }
    }

    #[test]
    fn an_extended_error_goes_to_clients_with_edns_only() {
        let scene = scene("template ANY ANY {\nrcode NXDOMAIN\nederror 15 blocked\n}");
        for (edns, expected) in [(None, false), (Some(&[][..]), true)] {
            let Sent::Reply(reply) = scene.send(AT, &packet("a", RType::A, edns)) else { panic!("no reply") };
            assert_eq!(reply.0.edns.is_some(), expected);
            assert_eq!(reply.1.ends_with(b"\0\x0f\0\x09\0\x0fblocked"), expected);
        }
    }

    #[test]
    fn counters_outlive_a_reload() {
        let corefile = ". {\nbind 127.0.0.1\ntemplate ANY ANY {\nrcode NXDOMAIN\n}\n}\n";
        let mut scene = Scene::new(corefile);
        scene.ask(AT, "a", RType::A);
        scene.reload(corefile);
        scene.ask(AT, "a", RType::A);
        let all = scene.shared.templates.all();
        assert_eq!((all.len(), all[0].1.matches.get()), (1, 2));
    }
}
