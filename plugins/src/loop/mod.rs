//! `loop`: notices that an upstream sends our own queries back to us.
//!
//! At start, and again after each reload, every upstream is asked for a name that nobody can guess. If that query comes
//! in at one of our own listeners, the upstream leads back here: it is taken out of its stanza and that is said. Nothing that comes
//! from the network can end the process.

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

/// Stands in a block: its upstreams are probed.
#[derive(Debug, Clone, Copy)]
pub struct LoopSpec;

/// Reads the one `loop` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    bare("loop", directives)?;
    Ok(Arc::new(LoopSpec))
}

impl SourceSpec for LoopSpec {
    fn build(&self, context: &BuildContext<'_>) -> Box<dyn Source> {
        let watch = Watch::new(context.zones.to_vec());
        // `forward` finds the watch here, and sends the probes to its upstreams.
        let _ = context.extensions.get().set(watch.clone());
        Box::new(watch)
    }
}

/// The probe that one block watches for; all clones share it.
#[derive(Debug, Clone)]
pub struct Watch {
    zones: Arc<[Name]>,
    seen: Arc<Seen>,
}

/// What is watched for, and what came.
#[derive(Debug, Default)]
struct Seen {
    /// Names that were asked of upstreams and are still watched for; with the place in the list of the upstream asked.
    probes: Mutex<Vec<(Name, usize)>>,
    watching: AtomicBool,
    upstreams: Mutex<Vec<usize>>,
}

impl Watch {
    /// Watches for nothing yet.
    pub fn new(zones: Vec<Name>) -> Self {
        Self { zones: zones.into(), seen: Arc::default() }
    }

    /// The zones whose queries would loop.
    pub fn zones(&self) -> &[Name] {
        &self.zones
    }

    /// From now on the names in `probes` mean that the upstream with that number leads back here.
    pub fn start(&self, probes: Vec<(Name, usize)>) {
        *self.seen.probes.lock().unwrap_or_else(PoisonError::into_inner) = probes;
        self.seen.watching.store(true, Relaxed);
    }

    /// Whether this upstream was seen to lead back here since [`Watch::start`].
    pub fn has_seen(&self, upstream: usize) -> bool {
        self.seen.upstreams.lock().unwrap_or_else(PoisonError::into_inner).contains(&upstream)
    }

    /// Stops watching and returns the upstreams that lead back to this server.
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
    /// Passes every query on, noting ours.
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
