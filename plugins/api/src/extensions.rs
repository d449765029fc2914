//! Values that plugins of one server block pass to each other, by their type: `kubernetes` passes its
//! index to `k8s_external` and the search paths of its pods to `autopath`; `loop` passes its probe to
//! the forwarder.
//!
//! Sources set values. Middleware is built after sources and reads them at once, or fails to build
//! without them. A source reads them once the block is built.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The values of one block.
#[derive(Default)]
pub struct Extensions(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// Returns the cell for a value of this type, which one plugin sets and others read.
    pub fn get<T: Any + Send + Sync>(&self) -> Arc<OnceLock<T>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = all.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(OnceLock::<T>::new())).clone();
        // Each value is stored under its own type, so that the downcast succeeds.
        cell.downcast().unwrap_or_default()
    }
}
