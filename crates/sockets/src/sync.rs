//! What threads share by. Files whose steps are modelled (`models/`) take it from here; there, loom's stands in this place.

pub(crate) use std::sync::atomic;
