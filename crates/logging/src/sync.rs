//! What threads share by. The ring, whose steps are modelled (`models/`), takes it from here; there, loom's stands in this place.

pub(crate) use std::sync::{Arc, atomic};
