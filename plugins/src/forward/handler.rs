//! Whether an upstream is to be asked for a name.

use std::sync::Arc;

use forwarder::{StanzaSpec, Stanzas};
use metrics::counters::ThreadCounters;
use plugin::spec::{BuildContext, Explanation, Source};
use plugin::{HostsGuard, Lookup, QueryContext};
use wire::{Query, Reply};

/// The handler of `forward` in one block: it says which upstreams are to be asked; a worker asks them.
pub struct ForwardSource {
    chain: Arc<Stanzas>,
    /// Whether a stanza is for every name that can come.
    takes_all: bool,
}

impl ForwardSource {
    /// That of a block's stanzas.
    pub fn new(chain: Arc<Stanzas>, context: &BuildContext<'_>) -> Self {
        let takes_all = |spec: &StanzaSpec| spec.except.is_empty() && context.scope(&[spec.from]).is_all();
        let takes_all = chain.stanzas().iter().any(|stanza| takes_all(stanza.spec()));
        Self { chain, takes_all }
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
        if self.takes_all || self.chain.matches(&query.name) { Lookup::Ask(None) } else { Lookup::Pass }
    }

    fn explain(&self, query: &Query<'_>) -> Explanation {
        let Some(stanza) = self.chain.stanzas().iter().find(|stanza| stanza.matches(&query.name)) else {
            return Explanation::Passes(None);
        };
        let upstreams: Vec<String> =
            stanza.upstreams().iter().map(|upstream| upstream.address().to_string()).collect();
        Explanation::Ends(format!("`forward {}` asks {}", stanza.spec().from, upstreams.join(", ")))
    }
}
