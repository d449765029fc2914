//! What a plugin's directives say to one server block: read from the Corefile as plain data, and built when the block is.

use std::any::Any;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use corefile::Directive;
use observe::Logger;
use observe::counters::ThreadCounters;
use observe::labels::Labels;
use wire::{Name, Query, Reply, ZoneRequest};

use crate::args::{Result, Root};
use crate::endpoint::Endpoint;
use crate::hooks::Hooks;
pub use crate::explain::Explanation;
use crate::reload_state::ReloadState;
use crate::extensions::Extensions;
use crate::zone_request::ZoneOutcome;
use crate::middleware::Middleware;
use crate::{Lookup, QueryContext, Scope, HostsGuard};

/// A plugin's directives in one server block, read and checked. Who knows the type finds it in its block by it.
pub trait PluginSpec: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> PluginSpec for T {}

/// The directives of a plugin that every query and reply of its block passes.
pub trait HooksSpec: PluginSpec {
    /// Puts what it does into `context.envelope`, where those above it in the table have been already.
    fn build(&self, context: &mut BuildContext<'_>);

    /// Whether labels of queries can be read in the block.
    fn publishes_labels(&self) -> bool {
        false
    }
}

/// The directives of a plugin that acts on queries and answers around the sources.
pub trait MiddlewareSpec: PluginSpec {
    /// Makes the step of that block, whose sources are built: what they lend is there.
    ///
    /// # Errors
    /// A file or the like that a directive names and that cannot be used, with the place of its word in the Corefile.
    fn build(&self, context: &BuildContext<'_>) -> Result<Arc<dyn Middleware>>;

    /// Whether every name that is sought below the step is the one that came to it. Where a step may seek another, it may be
    /// one of no zone of the block.
    fn keeps_names(&self) -> bool {
        false
    }

    /// The directive of the block that is to know the search paths of clients.
    fn searches(&self) -> Option<&'static str> {
        None
    }
}

/// The directives of a plugin that answers from memory.
pub trait SourceSpec: PluginSpec {
    /// Makes the source of that block.
    fn build(&self, context: &BuildContext<'_>) -> Box<dyn Source>;

    /// Zones of which it alone knows the names.
    fn zones(&self) -> &[Name] {
        &[]
    }

    /// Who knows the labels that the plugin publishes, where the block has `metadata`. Other sources read them: they are had
    /// before any is built.
    fn labels(&self, _context: &BuildContext<'_>) -> Option<Arc<dyn Labels>> {
        None
    }
}

/// What a plugin may use of the server block while it reads its directives.
#[derive(Debug, Clone, Copy)]
pub struct ParseContext<'c> {
    /// The block's zones.
    pub zones: &'c [Name],
    /// All that stands in the block.
    pub directives: &'c [Directive],
    /// The plugins of the block that stand above this one in the table, with what they have read.
    pub read: &'c [(&'static str, Role)],
}

impl<'c> ParseContext<'c> {
    /// The directory of `root`, which relative paths are below.
    pub fn root(&self) -> Option<&'c Path> {
        self.read.iter().find_map(|(_, role)| role.get()).map(|Root(path)| path.as_path())
    }

    /// Whether a step asks this directive for the search paths of clients.
    pub fn is_searched(&self, directive: &str) -> bool {
        self.read
            .iter()
            .any(|(_, role)| matches!(role, Role::Middleware(step) if step.searches() == Some(directive)))
    }

    /// All that stands in the block, where labels of queries can be read: some of it names those that are.
    pub fn readers_of_labels(&self) -> &'c [Directive] {
        let publishes =
            |(_, role): &(&str, Role)| role.hooks().is_some_and(HooksSpec::publishes_labels);
        if self.read.iter().any(publishes) { self.directives } else { &[] }
    }
}

/// What a plugin may use while its step or source is made.
pub struct BuildContext<'c> {
    /// Values that are kept over reloads, such as counters: one of each type.
    pub reload_state: &'c ReloadState,
    /// Values that a plugin of the block gives others, by their type.
    pub extensions: &'c Extensions,
    /// The process's log.
    pub logger: &'c Logger,
    /// Where the block listens.
    pub endpoints: &'c [Endpoint],
    /// The same as labels: `dns://ADDRESS:PORT`.
    pub servers: &'c [String],
    /// The zones of the block.
    pub zones: &'c [Name],
    /// The plugins of the block, with what they have read.
    pub plugins: &'c [(&'static str, Role)],
    /// How many threads count, each with a counter of its own: every worker and, last, the streams' thread.
    pub threads: usize,
    /// What every query and reply of the block passes: complete before the first source is built.
    pub hooks: Hooks,
}

impl BuildContext<'_> {
    /// The names that a source with these zones is for: nothing is compared where every name that can come to it is within one
    /// of them.
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

/// What a plugin is to its server block.
#[derive(Debug, Clone)]
pub enum Role {
    /// A setting, read by who needs it.
    Setting(Arc<dyn PluginSpec>),
    /// What every query and reply of the block passes, whoever answers.
    Hooks(Arc<dyn HooksSpec>),
    /// A step around the sources.
    Middleware(Arc<dyn MiddlewareSpec>),
    /// What answers from memory, before the cache.
    Source(Arc<dyn SourceSpec>),
    /// Asking others, and keeping what they said.
    Forwarding(Arc<dyn PluginSpec>),
    /// What answers where nobody else did.
    Tail(Arc<dyn SourceSpec>),
}

impl Role {
    /// What every query and reply of the block passes.
    pub fn hooks(&self) -> Option<&dyn HooksSpec> {
        match self {
            Self::Hooks(hooks) => Some(&**hooks),
            _ => None,
        }
    }

    /// What answers from memory, before the cache.
    pub fn source(&self) -> Option<&dyn SourceSpec> {
        match self {
            Self::Source(source) => Some(&**source),
            _ => None,
        }
    }

    /// The plugin's spec, if it is of this type.
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

/// What answers from memory, without I/O and without a lock.
pub trait Source: Send + Sync {
    /// Answers, fails or lets the query pass, as one does that decides about whole zones alone. `tables` is what the batch has
    /// found of the hosts tables so far.
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

    /// Whether this client may be sent the zone: `transfer` says so, and no other source says anything. Nobody is sent a zone of
    /// a block where nothing permits it.
    fn permits(&self, _request: &ZoneRequest<'_>, _context: &QueryContext<'_>) -> Option<bool> {
        None
    }

    /// Takes a request for a zone as a whole, or lets it pass, as most sources do. AXFR comes over streams alone.
    fn of_zone(
        &self,
        _request: &ZoneRequest<'_>,
        _context: &QueryContext<'_>,
        _reply: &mut Reply<'_>,
    ) -> ZoneOutcome {
        ZoneOutcome::Pass
    }

    /// To whom this plugin permits that the zone is sent, for `explain`; `None` where it says nothing of it.
    fn sends(&self, _query: &Query<'_>) -> Option<String> {
        None
    }

    /// What becomes of such a query here, for `explain`.
    fn explain(&self, query: &Query<'_>) -> Explanation;
}
