//! `acl`: allows, refuses or drops queries by client, name and type.
//!
//! ```text
//! each `acl` with a zone that contains the name -> its rules from top to bottom -> the first match
//! decides
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use corefile::{Directive, Word};
use ipnet::IpNet;
use wire::{Ede, Message, Name, RType, Rcode};

use metrics::counters::PerThread;
use metrics::{Families, Metric};
use plugin::args::{Args, Result, bad, unknown_property, zones_or};
use plugin::cidr::mapped;
use plugin::middleware::{EffectiveQuery, Middleware, OnQuery};
use plugin::reload_state::Persistent;
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec, ParseContext};
use plugin::{HiddenZones, QueryContext, Spec};

/// All `acl` directives of a server block, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AclSpec(Vec<List>);

/// One `acl`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct List {
    zones: Vec<Name>,
    hidden: HiddenZones,
    rules: Vec<Rule>,
}

/// `ACTION [type QTYPE...] [net SOURCE...]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    action: Action,
    /// Empty means every type.
    types: Vec<RType>,
    /// Empty means every client.
    sources: Vec<IpNet>,
    /// Warnings about the sources, with their location.
    odd: Vec<String>,
}

/// Returns the warnings about `acl` directives, with their location.
pub fn odd(spec: &Spec) -> impl Iterator<Item = String> {
    let all = spec.blocks.iter().filter_map(|block| block.get::<AclSpec>()).flat_map(|AclSpec(lists)| lists);
    all.flat_map(|list| &list.rules).flat_map(|rule| rule.odd.iter().cloned())
}

/// The effect of a rule on a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Allow,
    Block,
    Filter,
    Drop,
}

impl AclSpec {
    /// Reads every `acl` of a server block; an `acl` without zones applies to `own`, the block's
    /// zones.
    fn read(directives: &[&Directive], own: &[Name]) -> Result<Self> {
        let list = |directive: &&Directive| {
            let words = Args::new(PLUGIN, directive, "[ZONES...]").rest();
            let rules = directive.body.iter().flatten().map(Rule::read).collect::<Result<_>>()?;
            Ok(List { zones: zones_or(words, own)?, hidden: HiddenZones::of(words), rules })
        };
        directives.iter().map(list).collect::<Result<_>>().map(Self)
    }

    /// Returns the text of a list's zone; as written if it has the value of an environment
    /// variable.
    fn text_of(&self, zone: &Name) -> String {
        let shown = self.0.iter().find_map(|list| list.hidden.get(zone));
        shown.map_or_else(|| zone.to_string(), ToString::to_string)
    }

    /// Returns the first matching rule, with the zone of its list that contains the name.
    fn find(&self, name: &Name, rtype: RType, client: IpAddr) -> Option<(&Name, &Rule)> {
        self.rules(name, rtype).find(|(_, rule)| rule.is_for(client))
    }

    /// Returns the rules for a query with this name and type, for any client, in order of
    /// evaluation.
    fn rules<'l>(&'l self, name: &Name, rtype: RType) -> impl Iterator<Item = (&'l Name, &'l Rule)> {
        self.0.iter().flat_map(move |list| {
            // The longest zone that matches, which is the metrics' `zone` label.
            let zones = list.zones.iter().filter(|zone| name.is_within(zone));
            let zone = zones.max_by_key(|zone| zone.label_count());
            let rules = list.rules.iter().filter(move |rule| rule.is_about(rtype));
            zone.into_iter().flat_map(move |zone| rules.clone().map(move |rule| (zone, rule)))
        })
    }

    /// Returns the verdict for all clients; `None` if it depends on the client.
    fn for_all_clients(&self, name: &Name, rtype: RType) -> Option<Option<(&Name, &Rule)>> {
        let mut rules = self.rules(name, rtype);
        let first = rules.next();
        let action = first.map_or(Action::Allow, |(_, rule)| rule.action);
        for (zone, rule) in first.into_iter().chain(rules) {
            if rule.action != action {
                return None;
            }
            if rule.sources.is_empty() {
                return Some(Some((zone, rule)));
            }
        }
        // A client that matches no rule is allowed.
        (action == Action::Allow).then_some(None)
    }
}

impl Rule {
    fn read(property: &Directive) -> Result<Self> {
        let action = match property.name.text.to_ascii_lowercase().as_str() {
            "allow" => Action::Allow,
            "block" => Action::Block,
            "filter" => Action::Filter,
            "drop" => Action::Drop,
            _ => return Err(unknown_property(PLUGIN, property, &["allow", "block", "drop", "filter"])),
        };
        let mut rule = Self { action, types: Vec::new(), sources: Vec::new(), odd: Vec::new() };
        let mut args = Args::new(PLUGIN, property, "[type QTYPE...] [net SOURCE...]");
        let mut rest = args.rest();
        let is_section =
            |word: &Word| word.text.eq_ignore_ascii_case("type") || word.text.eq_ignore_ascii_case("net");
        while let [section, words @ ..] = rest {
            if !is_section(section) {
                return Err(bad(PLUGIN, section, "`type` or `net`"));
            }
            let (values, later) = words.split_at(words.iter().take_while(|word| !is_section(word)).count());
            rest = later;
            let types = section.text.eq_ignore_ascii_case("type");
            if values.is_empty() {
                let wanted = if types {
                    "a section: types or `*` must follow"
                } else {
                    "a section: networks or `*` must follow"
                };
                return Err(bad(PLUGIN, section, wanted));
            }
            // `*` matches everything: the rest of the section is ignored.
            let all = values.iter().any(|word| word.text == "*");
            for word in values.iter().take_while(|word| word.text != "*") {
                if types {
                    rule.types.push(
                        word.text
                            .parse()
                            .ok()
                            .ok_or_else(|| bad(PLUGIN, word, "a type, such as AAAA, or `*`"))?,
                    );
                } else {
                    let source = network(word)?;
                    rule.odd.extend(matches_no_client(word, &source));
                    rule.sources.push(source);
                }
            }
            if all {
                if types { rule.types.clear() } else { rule.sources.clear() }
            }
        }
        Ok(rule)
    }

    fn is_about(&self, rtype: RType) -> bool {
        self.types.is_empty() || self.types.contains(&rtype)
    }

    fn is_for(&self, client: IpAddr) -> bool {
        self.sources.is_empty() || self.sources.iter().any(|source| source.contains(&client))
    }
}

/// Parses `ADDRESS[/LENGTH]`.
fn network(word: &Word) -> Result<IpNet> {
    let text = &word.text;
    let read = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    read.map_err(|_| bad(PLUGIN, word, "a network, such as 10.0.0.0/8 or 2001:db8::1, or `*`"))
}

/// Returns a warning for an IPv4-mapped network, which never matches: IPv4 clients have IPv4
/// addresses.
fn matches_no_client(word: &Word, source: &IpNet) -> Option<String> {
    let (mapped, text) = (mapped(source)?, word.shown());
    // A variable's value is not printed.
    let write = if text == word.text { format!("; write {mapped}") } else { String::new() };
    Some(format!(
        "{}: plugin/{PLUGIN}: {text:?} matches no client, since IPv4 clients have IPv4 addresses{write}",
        word.at
    ))
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.action {
            Action::Allow => "allow",
            Action::Block => "block",
            Action::Filter => "filter",
            Action::Drop => "drop",
        })?;
        for (section, mut values) in [
            ("type", self.types.iter().map(ToString::to_string).collect::<Vec<_>>().into_iter()),
            ("net", self.sources.iter().map(ToString::to_string).collect::<Vec<_>>().into_iter()),
        ] {
            if let Some(first) = values.next() {
                write!(f, " {section} {first}")?;
                values.try_for_each(|value| write!(f, " {value}"))?;
            }
        }
        Ok(())
    }
}

/// Reads every `acl` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn MiddlewareSpec>> {
    Ok(Arc::new(AclSpec::read(directives, written.zones)?))
}

impl MiddlewareSpec for AclSpec {
    fn build(&self, context: &BuildContext<'_>) -> Result<Arc<dyn Middleware>> {
        let registry: Arc<AclCounters> = context.reload_state.get();
        let zones = || self.0.iter().flat_map(|list| &list.zones);
        let of = |action, server: &String, zone: Option<&Name>| {
            let zone = zone.map(|zone| self.text_of(zone)).unwrap_or_default();
            registry.counter(action, server, zone, context.hooks.view_name(), context.threads)
        };
        let counters = context.servers.iter().map(|server| ServerCounters {
            server: server.clone(),
            allowed: of(Action::Allow, server, None),
            by_zone: zones()
                .map(|zone| {
                    let refused = [Action::Block, Action::Filter, Action::Drop];
                    (*zone, refused.map(|action| of(action, server, Some(zone))))
                })
                .collect(),
        });
        Ok(Arc::new(Acl { spec: self.clone(), counters: counters.collect() }))
    }

    fn keeps_names(&self) -> bool {
        true
    }
}

/// The middleware of one server block.
#[derive(Debug)]
struct Acl {
    spec: AclSpec,
    counters: Vec<ServerCounters>,
}

/// Counters for queries to one server.
#[derive(Debug)]
struct ServerCounters {
    server: String,
    allowed: Arc<PerThread>,
    /// Counters of blocked, filtered and dropped queries, by the zone of the list.
    by_zone: HashMap<Name, [Arc<PerThread>; 3]>,
}

impl Acl {
    fn count(&self, server: &str, action: Action, zone: Option<&Name>, writer: usize) {
        let Some(counters) = self.counters.iter().find(|counters| counters.server == server) else { return };
        let refused = zone.and_then(|zone| counters.by_zone.get(zone));
        let counter = match (action, refused) {
            (Action::Allow, _) | (_, None) => &counters.allowed,
            (Action::Block, Some([blocked, ..])) => blocked,
            (Action::Filter, Some([_, filtered, _])) => filtered,
            (Action::Drop, Some([.., dropped])) => dropped,
        };
        counter.add(writer);
    }
}

impl Middleware for Acl {
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, context: &QueryContext<'_>) -> OnQuery<'s> {
        let client = context.client().ip().to_canonical();
        let found = self.spec.find(effective.name(), effective.rtype(), client);
        let action = found.map_or(Action::Allow, |(_, rule)| rule.action);
        if effective.counts {
            self.count(effective.server, action, found.map(|(zone, _)| zone), context.writer);
        }
        let (rcode, ede) = match action {
            Action::Allow => return OnQuery::Pass,
            Action::Drop => return OnQuery::Drop,
            Action::Block => (Rcode::REFUSED, Ede::BLOCKED),
            Action::Filter => (Rcode::NOERROR, Ede::FILTERED),
        };
        let mut response = Message { rcode, ..Message::default() };
        response.options.push_ede(ede);
        OnQuery::Answer(Box::new(response))
    }

    fn explain(&self, effective: &mut EffectiveQuery<'_>, client: Option<IpAddr>) -> Explanation {
        let (name, rtype) = (effective.name(), effective.rtype());
        let (found, fits) = match client {
            Some(client) => (self.spec.find(name, rtype, client), client.to_string()),
            None => match self.spec.for_all_clients(name, rtype) {
                Some(found) => (found, "every client".to_owned()),
                None => return Explanation::Passes(Some("what `acl` says depends on the client".to_owned())),
            },
        };
        let Some((zone, rule)) = found else { return Explanation::Passes(None) };
        let reason = format!("`{rule}` of `acl {}` fits {fits}", self.spec.text_of(zone));
        match rule.action {
            Action::Allow => Explanation::Passes(Some(reason)),
            Action::Block => Explanation::Ends(format!("REFUSED: {reason}")),
            Action::Filter => Explanation::Ends(format!("NODATA: {reason}")),
            Action::Drop => Explanation::Ends(format!("no reply: {reason}")),
        }
    }
}

/// Counters of all `acl` directives, for the life of the process.
#[derive(Debug, Default)]
struct AclCounters(Mutex<BTreeMap<Labels, Arc<PerThread>>>);

/// The action, the server, the zone of the list, the view.
type Labels = (usize, String, String, String);

impl AclCounters {
    fn counter(
        &self,
        action: Action,
        server: &str,
        zone: String,
        view: &str,
        threads: usize,
    ) -> Arc<PerThread> {
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = (action as usize, server.to_owned(), zone, view.to_owned());
        counters.entry(labels).or_insert_with(|| Arc::new(PerThread::new(threads))).clone()
    }
}

impl Persistent for AclCounters {
    fn collect(&self, into: &mut Families) {
        for ((action, server, zone, view), counter) in &*self.0.lock().unwrap_or_else(PoisonError::into_inner)
        {
            let labels = [("server", server.as_str()), ("view", view.as_str()), ("zone", zone.as_str())];
            let labels = if *action == Action::Allow as usize { &labels[..2] } else { &labels };
            // As in CoreDNS, a counter has no sample before it is first incremented.
            if counter.get() > 0 {
                into.counter(METRICS[*action], labels, counter.get() as f64);
            }
        }
    }
}

const PLUGIN: &str = "acl";
/// The metrics, in the order of the actions.
const METRICS: [Metric; 4] = [
    Metric { name: "coredns_acl_allowed_requests_total", help: "Counter of DNS requests being allowed." },
    Metric { name: "coredns_acl_blocked_requests_total", help: "Counter of DNS requests being blocked." },
    Metric { name: "coredns_acl_filtered_requests_total", help: "Counter of DNS requests being filtered." },
    Metric { name: "coredns_acl_dropped_requests_total", help: "Counter of DNS requests being dropped." },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::read;

    const OWN: &[Name] = &[Name::ROOT];

    /// Returns the matching rule with its zone, or `-`.
    fn decided(lines: &str, name: &str, rtype: RType, client: &str) -> String {
        let spec = read(lines, |directives| AclSpec::read(directives, OWN)).unwrap();
        let found = spec.find(&Name::from_text(name).unwrap(), rtype, client.parse().unwrap());
        found.map_or_else(|| "-".to_owned(), |(zone, rule)| format!("{rule} in {zone}"))
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let lists = "acl example.org sub.example.org {\nallow type A net 192.0.2.0/24 2001:db8::1\nblock type A *\nfilter net 198.51.100.9\n}\nacl {\ndrop type MX TYPE65 net *\n}";
        for (name, rtype, client, expected) in [
            (
                "example.org",
                RType::A,
                "192.0.2.9",
                "allow type A net 192.0.2.0/24 2001:db8::1/128 in example.org.",
            ),
            (
                "a.sub.example.org",
                RType::A,
                "2001:db8::1",
                "allow type A net 192.0.2.0/24 2001:db8::1/128 in sub.example.org.",
            ),
            ("example.org", RType::A, "203.0.113.1", "block in example.org."),
            ("example.org", RType::TXT, "192.0.2.9", "block in example.org."),
            ("example.net", RType::MX, "192.0.2.9", "drop type MX HTTPS in ."),
            ("example.net", RType::A, "192.0.2.9", "-"),
        ] {
            assert_eq!(decided(lists, name, rtype, client), expected, "{name} {rtype} {client}");
        }
    }

    #[test]
    fn mapped_networks_get_a_warning() {
        let list = "acl {\nblock net ::ffff:192.0.2.0/120 ::ffff:192.0.2.9 ::/0\nfilter net 192.0.2.0/24\n}";
        assert_eq!(decided(list, "example.org", RType::A, "192.0.2.9"), "filter net 192.0.2.0/24 in .");
        let spec = crate::read_corefile::tests::spec(&format!(". {{\n{list}\nwhoami\n}}\n")).unwrap();
        assert_eq!(
            odd(&spec).collect::<Vec<_>>(),
            [
                "Corefile:3:11: plugin/acl: \"::ffff:192.0.2.0/120\" matches no client, since IPv4 clients have IPv4 addresses; write 192.0.2.0/24",
                "Corefile:3:32: plugin/acl: \"::ffff:192.0.2.9\" matches no client, since IPv4 clients have IPv4 addresses; write 192.0.2.9/32",
            ]
        );
    }

    #[test]
    fn bad_words_have_their_place() {
        for (rule, error) in [
            ("deny", "3:1: plugin/acl: unknown property \"deny\"; expected allow, block, drop, filter"),
            ("block typ A", "3:7: plugin/acl: \"typ\" is not `type` or `net`"),
            ("block type", "3:7: plugin/acl: \"type\" is not a section: types or `*` must follow"),
            ("block net type A", "3:7: plugin/acl: \"net\" is not a section: networks or `*` must follow"),
            ("block type QUAD", "3:12: plugin/acl: \"QUAD\" is not a type, such as AAAA, or `*`"),
            (
                "block net 10.0.0.0/33",
                "3:11: plugin/acl: \"10.0.0.0/33\" is not a network, such as 10.0.0.0/8 or 2001:db8::1, or `*`",
            ),
        ] {
            let lines = format!("acl {{\n{rule}\n}}");
            let found = read(&lines, |directives| AclSpec::read(directives, OWN)).unwrap_err();
            assert_eq!(found, format!("Corefile:{error}"), "{rule}");
        }
    }
}
