//! State of plugins that outlives a reload: counters, watched files.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use logging::Logger;
use metrics::Families;

/// State of one plugin.
pub trait Persistent: Any + Send + Sync {
    /// Adds its metrics.
    fn collect(&self, _into: &mut Families) {}

    /// Starts what a configuration needs before it serves, such as watches of a cluster, and waits for it
    /// as long as the configuration allows.
    fn begin(&self, _logger: &Logger) {}

    /// Saves state for the next process, within about a second.
    fn leave(&self) {}

    /// The plugin if it is not ready, with the cause if an operator can remove it.
    fn not_ready(&self) -> Option<Cow<'static, str>> {
        None
    }

    /// Reports problems of files that are not read yet, for `check`, which does not serve.
    fn check(&self, _logger: &Logger) {}

    /// Reads files that are due, and returns when the next one is.
    fn look(&self, _now: Instant, _logger: &Logger) -> Option<Instant> {
        None
    }
}

/// The state of all plugins, by its type.
#[derive(Default)]
pub struct ReloadState(Mutex<HashMap<TypeId, Arc<dyn Persistent>>>);

impl ReloadState {
    /// The state of this type.
    pub fn get<K: Persistent + Default>(&self) -> Arc<K> {
        let kept: Arc<dyn Any + Send + Sync> =
            self.lock().entry(TypeId::of::<K>()).or_insert_with(|| Arc::<K>::default()).clone();
        // It was put in under its own type.
        kept.downcast().unwrap_or_default()
    }

    /// All states.
    pub fn all(&self) -> Vec<Arc<dyn Persistent>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TypeId, Arc<dyn Persistent>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
