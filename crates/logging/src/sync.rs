//! The synchronization types of the ring: std's here, loom's in its model (`tests/models`).

pub(crate) use std::sync::{Arc, atomic};
