//! What plugins keep from one configuration to the next: counters, files that are followed.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use logging::Logger;
use metrics::Families;

/// What one plugin keeps.
pub trait Keeps: Any + Send + Sync {
    /// Adds what is counted.
    fn collect(&self, _into: &mut Families) {}

    /// Begins what takes time until it can answer, for a configuration that is about to serve, and waits for it as long as
    /// that says.
    fn begin(&self, _logger: &Logger) {}

    /// Keeps for the next process what this one knows: in a moment, or not.
    fn leave(&self) {}

    /// The plugin that cannot answer yet, if there is one, and what it lacks, where somebody can give it that.
    fn not_ready(&self) -> Option<Cow<'static, str>> {
        None
    }

    /// Says what is wrong with files that were not looked at yet, for who checks a configuration and does not serve it.
    fn check(&self, _logger: &Logger) {}

    /// Looks at files whose time has come, and says when the next one's does.
    fn look(&self, _now: Instant, _logger: &Logger) -> Option<Instant> {
        None
    }
}

/// What all plugins keep, each by its type.
#[derive(Default)]
pub struct Lasting(Mutex<HashMap<TypeId, Arc<dyn Keeps>>>);

impl Lasting {
    /// The one of this type.
    pub fn get<K: Keeps + Default>(&self) -> Arc<K> {
        let kept: Arc<dyn Any + Send + Sync> =
            self.lock().entry(TypeId::of::<K>()).or_insert_with(|| Arc::<K>::default()).clone();
        // It was put in under its own type.
        kept.downcast().unwrap_or_default()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<dyn Keeps>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TypeId, Arc<dyn Keeps>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
