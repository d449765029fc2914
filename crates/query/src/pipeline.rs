//! A query's life in one server block, on one page.
//!
//! ```text
//! steps, such as rewrite -> sources, such as hosts -> cache -> forward -> tail, such as whoami
//! ```
//! The order in each is the table's (the crate `plugins`), which is that of CoreDNS's plugin.cfg, except that what memory knows
//! comes before the cache, which wraps `forward` alone: a cached copy can never hide a newer entry. Which of them a block has is
//! decided when it is built.

use std::borrow::Cow;
use std::sync::Arc;

use cache::BlockCache;
use forwarder::Chain;
use wire::{Name, Query, RType, Reply, ZoneRequest};

use observe::counters::ThreadCounters;
use plugin::failure::Failure;
use plugin::messages::OfZone;
use plugin::spec::{Explained, Source};
use plugin::step::{Sought, Step};
use plugin::{Lookup, QueryContext, Tables};

/// What answers in one server block.
pub struct Pipeline {
    steps: Box<[Arc<dyn Step>]>,
    /// What they are called, for `explain`.
    step_names: Box<[&'static str]>,
    /// What answers from memory, before the cache.
    sources: Box<[NamedSource]>,
    forwarding: Option<Forwarding>,
    /// The sources that answer where no other plugin of the block did (`whoami`).
    tail: Box<[NamedSource]>,
    /// The last plugin of the block that sees queries, for the error where none answered.
    last: Option<&'static str>,
}

/// A source, and its directive.
pub struct NamedSource {
    /// The directive.
    pub name: &'static str,
    /// What answers.
    pub source: Box<dyn Source>,
}

/// Asking upstreams, and the cache of their answers.
pub struct Forwarding {
    /// Where upstreams' answers are kept; nothing without the directive `cache`.
    pub cache: Option<BlockCache>,
    /// Whom to ask.
    pub chain: Arc<Chain>,
    /// What looks for an earlier answer.
    pub cache_source: Option<NamedSource>,
    /// What says whether an upstream is to be asked.
    pub forward_source: NamedSource,
}

impl Pipeline {
    /// What acts and answers in one block. `last` is the last of its plugins that sees queries.
    pub fn new(
        steps: Vec<(&'static str, Arc<dyn Step>)>,
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

    /// Answers from memory, or says what is to be done; [`Lookup::Pass`] where unanswered in the block has an answer. Allocates
    /// nothing, waits for unanswered.
    #[inline]
    pub fn answer_now<'h>(
        &'h self,
        context: &QueryContext<'_>,
        tables: &mut Tables<'h>,
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

    /// What the first source does that takes a request for a zone; unanswered else is asked, an upstream least of all.
    pub fn of_zone(
        &self,
        request: &ZoneRequest<'_>,
        context: &QueryContext<'_>,
        reply: &mut Reply<'_>,
    ) -> OfZone {
        if request.is_transfer() {
            match self.sources.iter().find_map(|named| named.source.permits(request, context)) {
                Some(true) => {}
                Some(false) => return OfZone::Fail(Failure::NotPermitted),
                None => return OfZone::Pass,
            }
        }
        for NamedSource { source, .. } in self.sources.iter().chain(&self.tail) {
            match source.of_zone(request, context, reply) {
                OfZone::Pass => {}
                found => return found,
            }
        }
        OfZone::Pass
    }

    /// What acts around the sources, from the outside to the inside.
    #[inline]
    pub fn steps(&self) -> &[Arc<dyn Step>] {
        &self.steps
    }

    /// Why a query fails that no plugin of the block has answered.
    pub fn unanswered(&self) -> Failure {
        self.last.map_or(Failure::NoPlugin, Failure::NoNextPlugin)
    }

    /// What asks upstreams, if there is one.
    pub fn forwarding(&self) -> Option<&Forwarding> {
        self.forwarding.as_ref()
    }

    /// Whether this block asks upstreams.
    pub fn forwards(&self) -> bool {
        self.forwarding.is_some()
    }

    /// Whether something in this block answers queries of other classes than IN: `forward`, or a
    /// step such as `chaos`.
    pub fn takes_other_classes(&self) -> bool {
        self.forwards() || self.steps.iter().any(|step| step.takes_other_classes())
    }

    /// Which plugin would end such a query, and why: in the order in which they are asked.
    pub fn explain(&self, sought: &mut Sought<'_>, zone: &Name) -> (Cow<'static, str>, String) {
        let mut passed = String::new();
        for (step, name) in self.steps.iter().zip(&self.step_names) {
            if let Some(end) = end(name, step.explain(sought, None), &mut passed) {
                return end;
            }
        }
        let query = &sought.query();
        if matches!(sought.asked().rtype, RType::AXFR | RType::IXFR) {
            return self.explain_transfer(sought, passed);
        }
        if let Some(end) = ends(&self.sources, query, &mut passed) {
            return end;
        }
        if let Some(forwarding) = &self.forwarding
            && let Some((who, why)) = forwarding.explain(query)
        {
            return (who, passed + &why);
        }
        if let Some(end) = ends(&self.tail, query, &mut passed) {
            return end;
        }
        let names = if query.name == *zone {
            "the zone's own name".to_owned()
        } else {
            format!("names below {zone}")
        };
        (
            "nobody".into(),
            format!("{passed}{}: no plugin of the block answers {names}", self.unanswered().rcode()),
        )
    }

    /// The same of a transfer: see [`of_zone`](Self::of_zone).
    fn explain_transfer(&self, sought: &Sought<'_>, passed: String) -> (Cow<'static, str>, String) {
        let (query, asked) = (sought.query(), sought.asked());
        let is_as_asked = (query.name, query.rtype, query.class) == (asked.name, asked.rtype, asked.class);
        let found =
            self.sources.iter().find_map(|NamedSource { name, source }| Some((*name, source.sends(&query)?)));
        match found.filter(|_| is_as_asked) {
            Some((name, to)) => {
                (name.into(), format!("{passed}the zone, if it is one of the block's, is sent to {to}"))
            }
            None => {
                let rcode = Failure::NotTaken.rcode();
                (
                    "nobody".into(),
                    format!(
                        "{passed}{rcode}: the block transfers no such zone, and no upstream is asked for one"
                    ),
                )
            }
        }
    }
}

/// The first of these at which a query ends; what the others before it say is added.
fn ends(
    sources: &[NamedSource],
    query: &Query<'_>,
    passed: &mut String,
) -> Option<(Cow<'static, str>, String)> {
    sources.iter().find_map(|NamedSource { name, source }| end(name, source.explain(query), passed))
}

/// The plugin at which a query ends, and why, if it does; else what the plugin says is added.
fn end(name: &'static str, said: Explained, passed: &mut String) -> Option<(Cow<'static, str>, String)> {
    match said {
        Explained::Ends(why) => return Some((name.into(), format!("{passed}{why}"))),
        Explained::Passes(Some(why)) => *passed += &(why + "; "),
        Explained::Passes(None) => {}
    }
    None
}

impl Forwarding {
    /// What was kept, else that an upstream is to be asked.
    #[inline]
    fn lookup<'h>(
        &'h self,
        context: &QueryContext<'_>,
        tables: &mut Tables<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        counters: ThreadCounters<'_>,
    ) -> Lookup {
        let mut patience = None;
        if let Some(NamedSource { source, .. }) = &self.cache_source {
            match source.lookup(context, tables, query, reply, counters) {
                Lookup::Pass => {}
                // The stale entry is served where the upstream does not answer within this time (serve-stale, RFC 8767).
                Lookup::Ask(wait) => patience = wait,
                found => return found,
            }
        }
        match self.forward_source.source.lookup(context, tables, query, reply, counters) {
            Lookup::Ask(_) => Lookup::Ask(patience),
            found => found,
        }
    }

    /// Where such a query ends, and why, if an upstream would be asked for it.
    fn explain(&self, query: &Query<'_>) -> Option<(Cow<'static, str>, String)> {
        let Explained::Ends(why) = self.forward_source.source.explain(query) else { return None };
        let keeps = |named: &&NamedSource| matches!(named.source.explain(query), Explained::Ends(_));
        let who = match self.cache_source.as_ref().filter(keeps) {
            Some(kept) => format!("{}, else {}", kept.name, self.forward_source.name).into(),
            None => self.forward_source.name.into(),
        };
        Some((who, why))
    }
}
