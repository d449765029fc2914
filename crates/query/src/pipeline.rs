//! Middleware and sources of one server block, in order.
//!
//! ```text
//! middleware, such as rewrite -> sources, such as hosts -> cache -> forward -> tail, such as whoami
//! ```
//! The order is that of the table in the crate `plugins`, which is plugin.cfg's, except that all
//! other sources precede the cache, which wraps `forward` alone: a cached answer never hides a
//! newer entry of another source. Which plugins a block has is decided when it is built.

use std::borrow::Cow;
use std::sync::Arc;

use cache::BlockCache;
use forwarder::Stanzas;
use wire::{Name, Query, RType, Reply, ZoneRequest};

use metrics::counters::ThreadCounters;
use plugin::failure::Failure;
use plugin::middleware::{EffectiveQuery, Middleware};
use plugin::spec::{Explanation, Source};
use plugin::zone_request::ZoneOutcome;
use plugin::{HostsGuard, Lookup, QueryContext};

/// Middleware and sources of one server block.
pub struct Pipeline {
    steps: Box<[Arc<dyn Middleware>]>,
    /// The middleware's directives, for `explain`.
    step_names: Box<[&'static str]>,
    /// Sources in memory, before the cache.
    sources: Box<[NamedSource]>,
    forwarding: Option<Forwarding>,
    /// Sources that answer if no other plugin of the block does (`whoami`).
    tail: Box<[NamedSource]>,
    /// The last plugin of the block that sees queries, for the error if none answers.
    last: Option<&'static str>,
}

/// A source and its directive.
pub struct NamedSource {
    /// The directive.
    pub name: &'static str,
    /// The source.
    pub source: Box<dyn Source>,
}

/// Forwarding to upstreams, and the cache of their answers.
pub struct Forwarding {
    /// The cache of upstreams' answers; `None` without the directive `cache`.
    pub cache: Option<Arc<BlockCache>>,
    /// The stanzas of `forward`.
    pub chain: Arc<Stanzas>,
    /// Answers from the cache.
    pub cache_source: Option<NamedSource>,
    /// Decides whether the query is forwarded.
    pub forward_source: NamedSource,
}

impl Pipeline {
    /// Builds a pipeline; `last` is the last of the block's plugins that sees queries.
    pub fn new(
        steps: Vec<(&'static str, Arc<dyn Middleware>)>,
        sources: Vec<NamedSource>,
        forwarding: Option<Forwarding>,
        tail: Vec<NamedSource>,
        last: Option<&'static str>,
    ) -> Self {
        let (step_names, steps): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        Self {
            steps: steps.into(),
            step_names: step_names.into(),
            sources: sources.into(),
            forwarding,
            tail: tail.into(),
            last,
        }
    }

    /// Answers from memory, or returns what to do; [`Lookup::Pass`] if no plugin of the block
    /// answers. Does not allocate or block.
    #[inline]
    pub fn answer_now<'h>(
        &'h self,
        context: &QueryContext<'_>,
        tables: &mut HostsGuard<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        counters: ThreadCounters<'_>,
    ) -> Lookup {
        for NamedSource { source, .. } in &self.sources {
            match source.lookup(context, tables, query, reply, counters) {
                Lookup::Pass => {}
                found => return found,
            }
        }
        if let Some(forwarding) = &self.forwarding {
            match forwarding.lookup(context, tables, query, reply, counters) {
                Lookup::Pass => {}
                found => return found,
            }
        }
        for NamedSource { source, .. } in &self.tail {
            match source.lookup(context, tables, query, reply, counters) {
                Lookup::Pass => {}
                found => return found,
            }
        }
        Lookup::Pass
    }

    /// Answers a request about a zone by the first source that accepts it; never forwards it.
    pub fn of_zone(
        &self,
        request: &ZoneRequest<'_>,
        context: &QueryContext<'_>,
        reply: &mut Reply<'_>,
    ) -> ZoneOutcome {
        if request.is_transfer() {
            match self.sources.iter().find_map(|named| named.source.permits(request, context)) {
                Some(true) => {}
                Some(false) => return ZoneOutcome::Fail(Failure::NotPermitted),
                None => return ZoneOutcome::Pass,
            }
        }
        for NamedSource { source, .. } in self.sources.iter().chain(&self.tail) {
            match source.of_zone(request, context, reply) {
                ZoneOutcome::Pass => {}
                found => return found,
            }
        }
        ZoneOutcome::Pass
    }

    /// Returns the middleware, outermost first.
    #[inline]
    pub fn steps(&self) -> &[Arc<dyn Middleware>] {
        &self.steps
    }

    /// Returns the failure of a query that no plugin of the block answers.
    pub fn unanswered(&self) -> Failure {
        self.last.map_or(Failure::NoPlugin, Failure::NoNextPlugin)
    }

    /// Returns the block's forwarding, if it has any.
    pub fn forwarding(&self) -> Option<&Forwarding> {
        self.forwarding.as_ref()
    }

    /// Whether the block forwards.
    pub fn forwards(&self) -> bool {
        self.forwarding.is_some()
    }

    /// Whether the block answers classes other than IN: by `forward`, or by middleware such as
    /// `chaos`.
    pub fn takes_other_classes(&self) -> bool {
        self.forwards() || self.steps.iter().any(|step| step.takes_other_classes())
    }

    /// Returns the plugin at which such a query would end, and the reason.
    pub fn explain(&self, effective: &mut EffectiveQuery<'_>, zone: &Name) -> (Cow<'static, str>, String) {
        let mut passed = String::new();
        for (step, name) in self.steps.iter().zip(&self.step_names) {
            // The step that makes the name does not print the name itself.
            let hides_name = effective.hides_name;
            let explanation = step.explain(effective, None);
            let explanation = if hides_name { without_name(explanation, effective) } else { explanation };
            if let Some(end) = end(name, explanation, &mut passed) {
                return end;
            }
        }
        let query = &effective.query();
        if matches!(effective.client_query().rtype, RType::AXFR | RType::IXFR) {
            return self.explain_transfer(effective, passed);
        }
        if let Some(end) = ends(&self.sources, effective, &mut passed) {
            return end;
        }
        if let Some(forwarding) = &self.forwarding
            && let Some((plugin, why)) = forwarding.explain(query)
        {
            return (plugin, passed + &why);
        }
        if let Some(end) = ends(&self.tail, effective, &mut passed) {
            return end;
        }
        let names = if query.name == *zone {
            "the zone's own name".to_owned()
        } else {
            format!("names below {zone}")
        };
        (
            "no plugin".into(),
            format!("{passed}{}: no plugin of the block answers {names}", self.unanswered().rcode()),
        )
    }

    /// Like [`explain`](Self::explain), for a transfer: see [`of_zone`](Self::of_zone).
    fn explain_transfer(
        &self,
        effective: &EffectiveQuery<'_>,
        passed: String,
    ) -> (Cow<'static, str>, String) {
        let (query, client_query) = (effective.query(), effective.client_query());
        let is_unchanged = (query.name, query.rtype, query.class)
            == (client_query.name, client_query.rtype, client_query.class);
        let found =
            self.sources.iter().find_map(|NamedSource { name, source }| Some((*name, source.sends(&query)?)));
        match found.filter(|_| is_unchanged) {
            Some((name, to)) => {
                (name.into(), format!("{passed}the zone, if it is one of the block's, is sent to {to}"))
            }
            None => {
                let rcode = Failure::NotTaken.rcode();
                (
                    "no plugin".into(),
                    format!(
                        "{passed}{rcode}: the block transfers no such zone, and no upstream is asked for one"
                    ),
                )
            }
        }
    }
}

/// Returns the first of these sources at which a query ends; explanations of sources before it are
/// appended to `passed`.
fn ends(
    sources: &[NamedSource],
    effective: &EffectiveQuery<'_>,
    passed: &mut String,
) -> Option<(Cow<'static, str>, String)> {
    let query = &effective.query();
    sources.iter().find_map(|NamedSource { name, source }| {
        end(name, without_name(source.explain(query), effective), passed)
    })
}

/// Returns the explanation; without its text if that has a label that only the hidden name has, not
/// the client's: the label may be the value of an environment variable, which may be a secret.
fn without_name(explanation: Explanation, effective: &EffectiveQuery<'_>) -> Explanation {
    if !effective.hides_name {
        return explanation;
    }
    let lower = |text: &str| text.to_ascii_lowercase();
    let (made, asked) =
        (lower(&effective.name().to_string()), lower(&effective.client_query().name.to_string()));
    let has_label = |text: &str| {
        let text = lower(text);
        let mut own =
            made.split('.').filter(|label| !label.is_empty() && asked.split('.').all(|own| own != *label));
        own.any(|label| has_word(&text, label))
    };
    let hidden = || "why is not shown: it names what `rewrite` makes of a variable's value".to_owned();
    match explanation {
        Explanation::Ends(why) if has_label(&why) => Explanation::Ends(hidden()),
        Explanation::Passes(Some(why)) if has_label(&why) => Explanation::Passes(Some(hidden())),
        shown => shown,
    }
}

/// Whether the text has the word, and not only as a part of a longer word.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |next: Option<char>| next.is_some_and(char::is_alphanumeric);
    text.match_indices(word).any(|(at, _)| {
        !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next())
    })
}

/// Returns this plugin and the reason, if the query ends here; else appends its explanation to
/// `passed`.
fn end(
    name: &'static str,
    explanation: Explanation,
    passed: &mut String,
) -> Option<(Cow<'static, str>, String)> {
    match explanation {
        Explanation::Ends(why) => return Some((name.into(), format!("{passed}{why}"))),
        Explanation::Passes(Some(why)) => *passed += &(why + "; "),
        Explanation::Passes(None) => {}
    }
    None
}

impl Forwarding {
    /// Looks in the cache, then decides whether to query upstreams.
    #[inline]
    fn lookup<'h>(
        &'h self,
        context: &QueryContext<'_>,
        tables: &mut HostsGuard<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        counters: ThreadCounters<'_>,
    ) -> Lookup {
        let mut patience = None;
        if let Some(NamedSource { source, .. }) = &self.cache_source {
            match source.lookup(context, tables, query, reply, counters) {
                Lookup::Pass => {}
                // If no upstream answers within this time, the stale entry is served (serve-stale,
                // RFC 8767).
                Lookup::Ask(wait) => patience = wait,
                found => return found,
            }
        }
        match self.forward_source.source.lookup(context, tables, query, reply, counters) {
            Lookup::Ask(None) => Lookup::Ask(patience),
            Lookup::Ask(Some(most)) => {
                Lookup::Ask(Some(patience.map_or(most, |patience| patience.min(most))))
            }
            found => found,
        }
    }

    /// Returns where such a query ends and why, if it would be forwarded.
    fn explain(&self, query: &Query<'_>) -> Option<(Cow<'static, str>, String)> {
        let Explanation::Ends(why) = self.forward_source.source.explain(query) else { return None };
        let keeps = |named: &&NamedSource| matches!(named.source.explain(query), Explanation::Ends(_));
        let plugin = match self.cache_source.as_ref().filter(keeps) {
            Some(kept) => format!("{}, else {}", kept.name, self.forward_source.name).into(),
            None => self.forward_source.name.into(),
        };
        Some((plugin, why))
    }
}
