//! Synchronization primitives. Files with loom models (`tests/models`) import them from here, so
//! that the models can substitute loom's.

pub(crate) use std::sync::atomic;
