//! Decides whether a name is forwarded.

use std::sync::Arc;
use std::time::Duration;

use forwarder::{StanzaSpec, Stanzas};
use metrics::counters::ThreadCounters;
use plugin::spec::{BuildContext, Explanation, Source};
use plugin::{HostsGuard, Lookup, QueryContext};
use wire::{Query, Reply};

/// The source of `forward` in one block: it selects names to forward; a worker queries the
/// upstreams.
pub struct ForwardSource {
    chain: Arc<Stanzas>,
    /// Whether a stanza matches every name of the block.
    takes_all: bool,
    /// The longest that a query waits for upstreams, by `cancel`.
    patience: Option<Duration>,
}

impl ForwardSource {
    /// Creates the source for a block's stanzas.
    pub fn new(chain: Arc<Stanzas>, context: &BuildContext<'_>) -> Self {
        let takes_all = |spec: &StanzaSpec| spec.except.is_empty() && context.scope(&[spec.from]).is_all();
        let takes_all = chain.stanzas().iter().any(|stanza| takes_all(stanza.spec()));
        let patience = context.hooks.patience.filter(|patience| *patience < forwarder::DEADLINE);
        Self { chain, takes_all, patience }
    }
}

impl Source for ForwardSource {
    #[inline]
    fn lookup<'h>(
        &'h self,
        _: &QueryContext<'_>,
        _: &mut HostsGuard<'h>,
        query: &Query<'_>,
        _: &mut Reply<'_>,
        _: ThreadCounters<'_>,
    ) -> Lookup {
        match self.takes_all || self.chain.matches(&query.name) {
            true => Lookup::Ask(self.patience),
            false => Lookup::Pass,
        }
    }

    fn explain(&self, query: &Query<'_>) -> Explanation {
        let Some(stanza) = self.chain.stanzas().iter().find(|stanza| stanza.matches(&query.name)) else {
            return Explanation::Passes(None);
        };
        let upstreams: Vec<String> =
            stanza.upstreams().iter().map(|upstream| upstream.address().to_string()).collect();
        Explanation::Ends(format!("`forward {}` asks {}", stanza.spec().from_text(), upstreams.join(", ")))
    }
}
