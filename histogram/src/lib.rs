//! Prometheus's native histograms.

mod native;

pub use native::{Native, NativeCounts, SCHEMA, ZERO_THRESHOLD};
