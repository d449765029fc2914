//! `loop`: detects upstreams that send this server's queries back to it.
//!
//! At start, and again after each reload, each upstream receives a query for an unguessable name.
//! If the query arrives at a listener of this server, the upstream is a loop: it is removed from
//! its stanza, which is logged. Nothing from the network can end the process.

mod probe;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use corefile::Directive;
use wire::{Name, Query, RType, Reply};

use metrics::counters::ThreadCounters;
use plugin::args::{Result, bare};
use plugin::spec::{BuildContext, Explanation, ParseContext, Source, SourceSpec};
use plugin::{HostsGuard, Lookup, QueryContext};
pub use probe::probe;

/// The directive: the block's upstreams are probed.
#[derive(Debug, Clone, Copy)]
pub struct LoopSpec;

/// Reads the one `loop` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    bare("loop", directives)?;
    Ok(Arc::new(LoopSpec))
}

impl SourceSpec for LoopSpec {
    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn Source>> {
        let watch = Watch::new(context.zones.to_vec());
        // `forward` finds the watch here, and sends the probes to its upstreams.
        let _ = context.extensions.get().set(watch.clone());
        Ok(Box::new(watch))
    }
}

/// The probe that one block watches for; all clones share it.
#[derive(Debug, Clone)]
pub struct Watch {
    zones: Arc<[Name]>,
    seen: Arc<Seen>,
}

/// Probes in flight, and the upstreams that returned one.
#[derive(Debug, Default)]
struct Seen {
    /// Names of probes, with the index of their upstream.
    probes: Mutex<Vec<(Name, usize)>>,
    watching: AtomicBool,
    upstreams: Mutex<Vec<usize>>,
}

impl Watch {
    /// Creates a watch without probes.
    pub fn new(zones: Vec<Name>) -> Self {
        Self { zones: zones.into(), seen: Arc::default() }
    }

    /// Returns the zones with queries that would loop.
    pub fn zones(&self) -> &[Name] {
        &self.zones
    }

    /// Starts watching: from now on a query for a name in `probes` means that the upstream with
    /// that index is a loop.
    pub fn start(&self, probes: Vec<(Name, usize)>) {
        *self.seen.probes.lock().unwrap_or_else(PoisonError::into_inner) = probes;
        self.seen.watching.store(true, Relaxed);
    }

    /// Whether this upstream has returned a probe since [`Watch::start`].
    pub fn has_seen(&self, upstream: usize) -> bool {
        self.seen.upstreams.lock().unwrap_or_else(PoisonError::into_inner).contains(&upstream)
    }

    /// Stops watching and returns the upstreams that send queries back to this server.
    pub fn stop(&self) -> Vec<usize> {
        self.seen.watching.store(false, Relaxed);
        self.seen.probes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        std::mem::take(&mut *self.seen.upstreams.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cold]
    fn notice(&self, query: &Query<'_>) {
        let probes = self.seen.probes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, upstream)) = probes.iter().find(|(name, _)| *name == query.name) {
            let mut seen = self.seen.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
            if !seen.contains(upstream) {
                seen.push(*upstream);
            }
        }
    }
}

impl Source for Watch {
    /// Passes every query, and records probes.
    #[inline]
    fn lookup<'h>(
        &'h self,
        _: &QueryContext<'_>,
        _: &mut HostsGuard<'h>,
        query: &Query<'_>,
        _: &mut Reply<'_>,
        _: ThreadCounters<'_>,
    ) -> Lookup {
        if query.rtype == RType::HINFO && self.seen.watching.load(Relaxed) {
            self.notice(query);
        }
        Lookup::Pass
    }

    fn explain(&self, _: &Query<'_>) -> Explanation {
        Explanation::Passes(None)
    }
}
