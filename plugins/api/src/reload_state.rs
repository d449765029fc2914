//! State of plugins that outlives a reload: counters, watched files.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use logging::Logger;
use metrics::Families;

/// The state of one plugin that outlives a reload.
pub trait Persistent: Any + Send + Sync {
    /// Adds the plugin's metrics.
    fn collect(&self, _into: &mut Families) {}

    /// Starts what a configuration needs before it serves, such as watches of a cluster, and waits
    /// at most as long as the configuration allows.
    fn begin(&self, _logger: &Logger) {}

    /// Saves state for the next process, within about a second.
    fn leave(&self) {}

    /// Returns the plugin's name if it is not ready, with the cause if an operator can remove it.
    fn not_ready(&self) -> Option<Cow<'static, str>> {
        None
    }

    /// Reports problems of files that are not yet read, for `check`, which does not serve.
    fn check(&self, _logger: &Logger) {}

    /// Reads files that are due; returns when the next file is due.
    fn look(&self, _now: Instant, _logger: &Logger) -> Option<Instant> {
        None
    }
}

/// The states of all plugins, by type.
#[derive(Default)]
pub struct ReloadState(Mutex<HashMap<TypeId, Arc<dyn Persistent>>>);

impl ReloadState {
    /// Returns the state of this type, created on first use.
    pub fn get<K: Persistent + Default>(&self) -> Arc<K> {
        let kept: Arc<dyn Any + Send + Sync> =
            self.lock().entry(TypeId::of::<K>()).or_insert_with(|| Arc::<K>::default()).clone();
        // Each state is stored under its own type, so that the downcast succeeds.
        kept.downcast().unwrap_or_default()
    }

    /// Returns all states.
    pub fn all(&self) -> Vec<Arc<dyn Persistent>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TypeId, Arc<dyn Persistent>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
