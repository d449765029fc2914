//! What a plugin's directives say to one server block: read from the Corefile as plain data, and built when the block is.

use std::any::Any;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use corefile::Directive;
use logging::Logger;
use logging::metadata::Labels;
use metrics::counters::ThreadCounters;
use wire::{Name, Query, Reply, ZoneRequest};

use crate::args::{Result, Root};
use crate::endpoint::Endpoint;
use crate::envelope::Envelope;
pub use crate::explained::Explained;
use crate::lasting::Lasting;
use crate::lent::Lent;
use crate::messages::OfZone;
use crate::step::Step;
use crate::{Lookup, QueryContext, Scope, Tables};

/// A plugin's directives in one server block, read and checked. Who knows the type finds it in its block by it.
pub trait PluginSpec: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> PluginSpec for T {}

/// The directives of a plugin that every query and reply of its block passes.
pub trait EnvelopeSpec: PluginSpec {
    /// Puts what it does into `context.envelope`, where those above it in the table have been already.
    fn build(&self, context: &mut BuildContext<'_>);

    /// Whether labels of queries can be read in the block.
    fn publishes_labels(&self) -> bool {
        false
    }
}

/// The directives of a plugin that acts on queries and answers around the sources.
pub trait StepSpec: PluginSpec {
    /// Makes the step of that block, whose sources are built: what they lend is there.
    ///
    /// # Errors
    /// A file or the like that a directive names and that cannot be used, with the place of its word in the Corefile.
    fn build(&self, context: &BuildContext<'_>) -> Result<Arc<dyn Step>>;

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
pub struct Written<'c> {
    /// The block's zones.
    pub zones: &'c [Name],
    /// All that stands in the block.
    pub directives: &'c [Directive],
    /// The plugins of the block that stand above this one in the table, with what they have read.
    pub read: &'c [(&'static str, Role)],
}

impl<'c> Written<'c> {
    /// The directory of `root`, which relative paths are below.
    pub fn root(&self) -> Option<&'c Path> {
        self.read.iter().find_map(|(_, role)| role.get()).map(|Root(path)| path.as_path())
    }

    /// Whether a step asks this directive for the search paths of clients.
    pub fn is_searched(&self, directive: &str) -> bool {
        self.read
            .iter()
            .any(|(_, role)| matches!(role, Role::Step(step) if step.searches() == Some(directive)))
    }

    /// All that stands in the block, where labels of queries can be read: some of it names those that are.
    pub fn readers_of_labels(&self) -> &'c [Directive] {
        let publishes =
            |(_, role): &(&str, Role)| role.envelope().is_some_and(EnvelopeSpec::publishes_labels);
        if self.read.iter().any(publishes) { self.directives } else { &[] }
    }
}

/// What a plugin may use while its step or source is made.
pub struct BuildContext<'c> {
    /// Values that are kept over reloads, such as counters: one of each type.
    pub lasting: &'c Lasting,
    /// Values that a plugin of the block gives others, by their type.
    pub lent: &'c Lent,
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
    pub envelope: Envelope,
}

impl BuildContext<'_> {
    /// The names that a source with these zones is for: nothing is compared where every name that can come to it is within one
    /// of them.
    pub fn scope(&self, zones: &[Name]) -> Scope {
        let is_within = |zone: &Name| zones.iter().any(|own| zone.is_within(own));
        let keep_names = self.plugins.iter().all(|(_, role)| match role {
            Role::Step(step) => step.keeps_names(),
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
    Envelope(Arc<dyn EnvelopeSpec>),
    /// A step around the sources.
    Step(Arc<dyn StepSpec>),
    /// What answers from memory, before the cache.
    Source(Arc<dyn SourceSpec>),
    /// Asking others, and keeping what they said.
    Forwarding(Arc<dyn PluginSpec>),
    /// What answers where nobody else did.
    Tail(Arc<dyn SourceSpec>),
}

impl Role {
    /// What every query and reply of the block passes.
    pub fn envelope(&self) -> Option<&dyn EnvelopeSpec> {
        match self {
            Self::Envelope(envelope) => Some(&**envelope),
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
            Self::Envelope(spec) => &**spec,
            Self::Step(spec) => &**spec,
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
        _tables: &mut Tables<'h>,
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
    ) -> OfZone {
        OfZone::Pass
    }

    /// To whom this plugin permits that the zone is sent, for `explain`; `None` where it says nothing of it.
    fn sends(&self, _query: &Query<'_>) -> Option<String> {
        None
    }

    /// What becomes of such a query here, for `explain`.
    fn explain(&self, query: &Query<'_>) -> Explained;
}
