//! Synchronization primitives. Files with modelled steps (`models/`) import them from here; the
//! models replace this module.

pub(crate) use std::sync::atomic;

pub(crate) use arc_swap::{ArcSwapOption, Guard};
