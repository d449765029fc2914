//! What plugins of one server block lend each other and who starts them, by its type: `kubernetes` what it answers of to
//! `k8s_external`, and the search paths of its pods to `autopath`; `loop` what it watches for to who asks upstreams.
//!
//! Sources lend. They are built before steps: a step finds what is lent at once, or can refuse to be built without it. A source
//! finds it once the block is built.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The things that are lent in one block.
#[derive(Default)]
pub struct Extensions(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// Where the one of this type is put by who lends it, and found by all others.
    pub fn get<T: Any + Send + Sync>(&self) -> Arc<OnceLock<T>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = all.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(OnceLock::<T>::new())).clone();
        // It was put in under its own type.
        cell.downcast().unwrap_or_default()
    }
}
