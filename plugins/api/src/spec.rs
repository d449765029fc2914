//! The traits of plugins: directives of one server block as plain data, and the objects built from
//! them.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use corefile::Directive;
use files::ShownPath;
use logging::Logger;
use logging::metadata::Labels;
use metrics::counters::ThreadCounters;
use wire::{Name, Query, Reply, ZoneRequest};

use crate::args::{Result, Root};
use crate::endpoint::{Endpoint, Transport};
pub use crate::explain::Explanation;
use crate::extensions::Extensions;
use crate::hooks::Hooks;
use crate::middleware::Middleware;
use crate::reload_state::ReloadState;
use crate::zone_request::ZoneOutcome;
use crate::{HostsGuard, Lookup, QueryContext, Scope};

/// A plugin's directives in one server block, read and checked; found in the block by its type.
pub trait PluginSpec: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> PluginSpec for T {}

/// The directives of a plugin with hooks for every query and reply of its block.
pub trait HooksSpec: PluginSpec {
    /// Adds hooks to `context.hooks`; plugins earlier in plugin.cfg have already added theirs.
    fn build(&self, context: &mut BuildContext<'_>);

    /// Whether other plugins of the block can read labels of queries.
    fn publishes_labels(&self) -> bool {
        false
    }

    /// Returns the publisher of this plugin's metadata labels, if the block has `metadata`.
    fn labels(&self) -> Option<Arc<dyn Labels>> {
        None
    }
}

/// The directives of a plugin that acts on queries and answers around the sources.
pub trait MiddlewareSpec: PluginSpec {
    /// Builds the middleware of a block, after its sources and their extensions.
    ///
    /// # Errors
    /// A file or other resource cannot be used; the error has the location of its word in the
    /// Corefile.
    fn build(&self, context: &BuildContext<'_>) -> Result<Arc<dyn Middleware>>;

    /// Whether the middleware never changes a query's name. A changed name may lie in no zone of the
    /// block.
    fn keeps_names(&self) -> bool {
        false
    }

    /// Returns the directive that must provide the search paths of clients, if the middleware needs
    /// them.
    fn searches(&self) -> Option<&'static str> {
        None
    }
}

/// The directives of a plugin that answers from memory.
pub trait SourceSpec: PluginSpec {
    /// Builds the source of a block. Called off the workers' threads: may wait for disks.
    ///
    /// # Errors
    /// A file or other resource cannot be used; the error has the location of its word in the
    /// Corefile.
    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn Source>>;

    /// Returns the zones with names that only this source answers.
    fn zones(&self) -> &[Name] {
        &[]
    }

    /// Returns the publisher of this plugin's metadata labels, if the block has `metadata`. Called
    /// before any source is built, since other sources read labels.
    fn labels(&self, _context: &BuildContext<'_>) -> Option<Arc<dyn Labels>> {
        None
    }
}

/// The server block as seen by a plugin that reads its directives.
#[derive(Debug, Clone, Copy)]
pub struct ParseContext<'c> {
    /// The block's zones.
    pub zones: &'c [Name],
    /// The transports of the block's keys.
    pub transports: &'c [Transport],
    /// All directives of the block.
    pub directives: &'c [Directive],
    /// The plugins of the block that precede this one in plugin.cfg, with their specs.
    pub read: &'c [(&'static str, Role)],
}

impl<'c> ParseContext<'c> {
    /// Returns the directory of `root`, which relative paths start from.
    pub fn root(&self) -> Option<&'c ShownPath> {
        self.read.iter().find_map(|(_, role)| role.get()).map(|Root(path)| path)
    }

    /// Whether middleware needs the search paths of clients from this directive.
    pub fn is_searched(&self, directive: &str) -> bool {
        self.read
            .iter()
            .any(|(_, role)| matches!(role, Role::Middleware(step) if step.searches() == Some(directive)))
    }

    /// Returns all directives of the block if plugins can read metadata labels, since directives
    /// name labels; otherwise returns none.
    pub fn readers_of_labels(&self) -> &'c [Directive] {
        let publishes = |(_, role): &(&str, Role)| role.hooks().is_some_and(HooksSpec::publishes_labels);
        if self.read.iter().any(publishes) { self.directives } else { &[] }
    }
}

/// The server block as seen by a plugin that is being built.
pub struct BuildContext<'c> {
    /// Values that outlive a reload, such as counters: one of each type.
    pub reload_state: &'c ReloadState,
    /// Values that plugins of the block pass to each other, by their type.
    pub extensions: &'c Extensions,
    /// The process's log.
    pub logger: &'c Logger,
    /// The endpoints on which the block listens.
    pub endpoints: &'c [Endpoint],
    /// The endpoints as labels: `dns://ADDRESS:PORT`.
    pub servers: &'c [String],
    /// The zones of the block.
    pub zones: &'c [Name],
    /// The plugins of the block with their specs.
    pub plugins: &'c [(&'static str, Role)],
    /// The last plugin of the block that handles queries in CoreDNS: nothing is below it.
    pub last_handler: Option<&'static str>,
    /// Number of threads that count, each with its own counter: every worker and, last, the thread
    /// that serves streams.
    pub threads: usize,
    /// The hooks of the block; complete before the first source is built.
    pub hooks: Hooks,
}

impl BuildContext<'_> {
    /// Returns the scope of a source with these zones. The scope compares no names if every name
    /// that can reach the source is within one of the zones.
    pub fn scope(&self, zones: &[Name]) -> Scope {
        let is_within = |zone: &Name| zones.iter().any(|own| zone.is_within(own));
        let keep_names = self.plugins.iter().all(|(_, role)| match role {
            Role::Middleware(step) => step.keeps_names(),
            _ => true,
        });
        let holds_all = is_within(&Name::ROOT) || keep_names && self.zones.iter().all(is_within);
        match holds_all {
            true => Scope::ALL,
            false => Scope::within(zones),
        }
    }
}

/// The role of a plugin in its server block, with its spec.
#[derive(Debug, Clone)]
pub enum Role {
    /// A setting that other code reads.
    Setting(Arc<dyn PluginSpec>),
    /// Hooks that every query and reply of the block passes.
    Hooks(Arc<dyn HooksSpec>),
    /// Middleware around the sources.
    Middleware(Arc<dyn MiddlewareSpec>),
    /// A source, which answers from memory before the cache.
    Source(Arc<dyn SourceSpec>),
    /// Forwarding queries, and caching their answers.
    Forwarding(Arc<dyn PluginSpec>),
    /// A source that answers queries that no other plugin answered.
    Tail(Arc<dyn SourceSpec>),
}

impl Role {
    /// Returns the spec of hooks, if the plugin has this role.
    pub fn hooks(&self) -> Option<&dyn HooksSpec> {
        match self {
            Self::Hooks(hooks) => Some(&**hooks),
            _ => None,
        }
    }

    /// Returns the spec of a source, if the plugin has this role.
    pub fn source(&self) -> Option<&dyn SourceSpec> {
        match self {
            Self::Source(source) => Some(&**source),
            _ => None,
        }
    }

    /// Returns the plugin's spec, if it is of this type.
    pub fn get<T: PluginSpec>(&self) -> Option<&T> {
        let spec: &dyn Any = match self {
            Self::Setting(spec) | Self::Forwarding(spec) => &**spec,
            Self::Hooks(spec) => &**spec,
            Self::Middleware(spec) => &**spec,
            Self::Source(spec) | Self::Tail(spec) => &**spec,
        };
        spec.downcast_ref()
    }
}

/// Answers from memory, without I/O and without a lock.
pub trait Source: Send + Sync {
    /// Answers the query, fails it or lets it pass. The default lets every query pass, for sources
    /// that only answer zone requests. `tables` caches the hosts table for the batch of queries.
    fn lookup<'h>(
        &'h self,
        _context: &QueryContext<'_>,
        _tables: &mut HostsGuard<'h>,
        _query: &Query<'_>,
        _reply: &mut Reply<'_>,
        _counters: ThreadCounters<'_>,
    ) -> Lookup {
        Lookup::Pass
    }

    /// Whether the client may transfer the zone; `None` if this plugin does not decide. Only
    /// `transfer` decides; without it no client of the block may transfer a zone.
    fn permits(&self, _request: &ZoneRequest<'_>, _context: &QueryContext<'_>) -> Option<bool> {
        None
    }

    /// Answers a request for a whole zone, or lets it pass, as most sources do. AXFR requests
    /// arrive over streams only.
    fn of_zone(
        &self,
        _request: &ZoneRequest<'_>,
        _context: &QueryContext<'_>,
        _reply: &mut Reply<'_>,
    ) -> ZoneOutcome {
        ZoneOutcome::Pass
    }

    /// Returns the clients that may transfer the zone, for `explain`; `None` if this plugin does
    /// not decide.
    fn sends(&self, _query: &Query<'_>) -> Option<String> {
        None
    }

    /// Returns the effect on a query, for `explain`.
    fn explain(&self, query: &Query<'_>) -> Explanation;
}
