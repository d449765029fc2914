//! What threads share by. Files whose steps are modelled (`models/`) take it from here; there, a
//! model of it stands in this place.

pub(crate) use std::sync::atomic;

pub(crate) use arc_swap::{ArcSwapOption, Guard};
