//! Prometheus's histograms, and the counters that they are made of: classic ones, whose buckets are chosen beforehand, and
//! native ones. Knows no metric by name and no page.

mod classic;
mod native;

pub use classic::{Counter, DURATIONS, Durations, Histogram, doubling};
pub use native::{Native, NativeCounts, SCHEMA, ZERO_THRESHOLD};
