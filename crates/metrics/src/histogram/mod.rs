//! Prometheus histograms, classic and native, and their counters. Knows no metric names and no
//! exposition format.

mod classic;
mod native;

pub use classic::{Counter, DURATIONS, Durations, Histogram, doubling};
pub use native::{Native, NativeCounts, SCHEMA, ZERO_THRESHOLD};
