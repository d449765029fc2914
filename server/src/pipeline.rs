//! A query's life in one server block, on one page.
//!
//! ```text
//! steps { rewrite, acl, header, minimal } -> sources { template, hosts, loop } -> cache -> forward -> whoami
//! ```
//! The order is that of CoreDNS's plugin.cfg, except that what memory knows comes before the cache, which wraps only
//! what is dialled: a cached copy can never hide a newer entry. Which rooms a block has is decided when it is built.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cache::{Kind, Partition, Policy};
use forwarder::Chain;
use wire::{Name, Query, Reply};

use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::house::Shared;
use crate::observe::counters::Tally;
use crate::plugin::hosts::Hosts;
use crate::plugin::step::{BuildContext, Step};
use crate::plugin::template::Templates;
use crate::plugin::{Lookup, Moment, r#loop, table, whoami};
use crate::setup::BlockSpec;
use crate::setup::args::Result;

/// The rooms of one server block.
pub struct Pipeline {
    steps: Box<[Arc<dyn Step>]>,
    sources: Vec<Source>,
    dial: Option<Dial>,
    whoami: bool,
    /// The last plugin of the block that sees queries, for the error when nobody answered.
    last: Option<&'static str>,
}

/// What answers from memory.
enum Source {
    Template(Templates),
    Hosts(Hosts),
    Loop(Arc<r#loop::Watch>),
}

/// Asking somebody else, and remembering what they said.
pub struct Dial {
    /// What is remembered.
    pub cache: Option<CacheRoom>,
    /// Whom to ask.
    pub chain: Arc<Chain>,
}

/// A block's part of the cache.
pub struct CacheRoom {
    /// Where its answers are.
    pub partition: Arc<Partition>,
    /// How long they live.
    pub policy: Policy,
}

/// What a query came to without waiting.
pub enum Now {
    /// The reply is written.
    Answered,
    /// The reply is written, and CNAMEs in its answer section are to be followed through the server.
    Follow,
    /// The reply is written, and an upstream is to be asked for the next one.
    Refresh,
    /// An upstream must be asked; the client waits at most this long, then takes a stale answer.
    Ask(Option<Duration>),
    /// There is no answer.
    Failed(Failure),
}

impl Pipeline {
    /// The rooms that `spec` asks for.
    ///
    /// # Errors
    /// What the Corefile names and the machine does not have, at its word.
    pub fn build(
        spec: &BlockSpec,
        shared: &Shared,
        endpoints: &[Endpoint],
        ours: &[SocketAddr],
    ) -> Result<Self> {
        let mut sources = Vec::new();
        if !spec.template.is_empty() {
            let counters = |template: &_| shared.templates.counters(endpoints, template);
            sources.push(Source::Template(Templates::new(spec.template.clone(), counters)));
        }
        if let Some(hosts) = &spec.hosts {
            sources.push(Source::Hosts(shared.hosts.hosts(hosts)));
        }
        let chain = crate::plugin::forward::chain(&spec.forward, shared, ours)?;
        if spec.detect_loop && chain.is_some() {
            sources.push(Source::Loop(Arc::new(r#loop::Watch::new(spec.zone_names()))));
        }
        let dial = chain.map(|chain| Dial {
            chain,
            cache: spec.cache.clone().map(|policy| CacheRoom {
                partition: shared.cache.partition(&identity(spec, endpoints)),
                policy,
            }),
        });
        let servers: Vec<String> = endpoints.iter().map(Endpoint::label).collect();
        let place = BuildContext { lasting: &shared.lasting, servers: &servers };
        let steps = spec.steps.iter().map(|step| step.build(&place)).collect();
        // A block without handlers refuses everything.
        let last = table::handlers(&spec.directives).next_back();
        Ok(Self { steps, sources, dial, whoami: spec.whoami, last })
    }

    /// Answers from memory, or says what is to be done. Allocates nothing, waits for nobody.
    #[inline]
    pub fn answer_now(
        &self,
        moment: &Moment<'_>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        tally: Tally<'_>,
    ) -> Now {
        for source in &self.sources {
            let lookup = match source {
                Source::Template(templates) => templates.lookup(moment, query, reply),
                Source::Hosts(hosts) => hosts.lookup(moment.tables, query, reply, tally),
                Source::Loop(watch) => watch.lookup(query),
            };
            match lookup {
                Lookup::Answer => return Now::Answered,
                Lookup::Follow => return Now::Follow,
                Lookup::Pass => {}
                Lookup::Fail(failure) => return Now::Failed(failure),
            }
        }
        if let Some(dial) = &self.dial {
            let mut patience = None;
            if let Some(room) = dial.cache.as_ref().filter(|room| room.policy.covers(&query.name)) {
                tally.add(|zone| &zone.cache_requests);
                let lookup = room.partition.lookup(&room.policy, query, moment.now, reply);
                let kind = match lookup {
                    cache::Lookup::Miss => None,
                    cache::Lookup::Verify { wait } => {
                        patience = Some(wait);
                        None
                    }
                    cache::Lookup::Hit { kind } | cache::Lookup::Prefetch { kind } => Some(kind),
                    cache::Lookup::Stale { kind, .. } => {
                        tally.add(|zone| &zone.cache_stale);
                        Some(kind)
                    }
                };
                match kind {
                    Some(Kind::Success) => tally.add(|zone| &zone.cache_hits[0]),
                    Some(Kind::Denial) => tally.add(|zone| &zone.cache_hits[1]),
                    None => tally.add(|zone| &zone.cache_misses),
                }
                match lookup {
                    cache::Lookup::Hit { .. } | cache::Lookup::Stale { refresh: false, .. } => {
                        return Now::Answered;
                    }
                    cache::Lookup::Prefetch { .. } => {
                        tally.add(|zone| &zone.cache_prefetches);
                        return Now::Refresh;
                    }
                    cache::Lookup::Stale { refresh: true, .. } => return Now::Refresh,
                    cache::Lookup::Miss | cache::Lookup::Verify { .. } => {}
                }
            }
            if dial.chain.matches(&query.name) {
                return Now::Ask(patience);
            }
        }
        if self.whoami {
            whoami::lookup(moment, query, reply);
            return Now::Answered;
        }
        Now::Failed(self.nobody())
    }

    /// What acts around the sources, from the outside to the inside.
    #[inline]
    pub fn steps(&self) -> &[Arc<dyn Step>] {
        &self.steps
    }

    /// Why a query fails that nobody in the block has answered.
    pub fn nobody(&self) -> Failure {
        self.last.map_or(Failure::NoPlugin, Failure::NoNextPlugin)
    }

    /// The room that asks upstreams, if there is one.
    pub fn dial(&self) -> Option<&Dial> {
        self.dial.as_ref()
    }

    /// Whether this block asks upstreams.
    pub fn forwards(&self) -> bool {
        self.dial.is_some()
    }

    /// What `loop` watches for, if the block has it.
    pub fn loop_watch(&self) -> Option<&Arc<r#loop::Watch>> {
        self.sources.iter().find_map(|source| match source {
            Source::Loop(watch) => Some(watch),
            _ => None,
        })
    }

    /// The hosts table, if the block has one.
    pub fn hosts(&self) -> Option<&Hosts> {
        self.sources.iter().find_map(|source| match source {
            Source::Hosts(hosts) => Some(hosts),
            _ => None,
        })
    }

    /// The templates, if the block has any.
    pub fn templates(&self) -> Option<&Templates> {
        self.sources.iter().find_map(|source| match source {
            Source::Template(templates) => Some(templates),
            _ => None,
        })
    }

    /// Whether whoami stands at the end.
    pub fn ends_in_whoami(&self) -> bool {
        self.whoami
    }
}

impl CacheRoom {
    /// The room, if it keeps answers to `name`.
    pub fn covering(&self, name: &Name) -> Option<&Self> {
        self.policy.covers(name).then_some(self)
    }
}

/// The same block keeps its answers over a reload: what counts are its zones and where it listens.
fn identity(spec: &BlockSpec, endpoints: &[Endpoint]) -> String {
    use std::fmt::Write as _;
    let mut identity = String::new();
    for key in &spec.keys {
        let _ = write!(identity, "{}:{} ", key.zone, key.port);
    }
    for endpoint in endpoints {
        let _ = write!(identity, "{endpoint} ");
    }
    identity
}

#[cfg(test)]
mod tests;
