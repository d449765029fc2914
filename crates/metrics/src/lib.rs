//! Metrics: counters of each zone and thread, metric families, and their text for /metrics.
//!
//! ```text
//! thread -> counters --.
//! MetricSource --------+-> Collector -> Families -> text or protobuf, of Prometheus or OpenMetrics
//! ```
//!
//! Each counter has one writer and is summed when it is read. Knows no worker, no configuration and no HTTP.

pub mod collector;
pub mod counters;
pub mod exposition;
pub mod families;
pub mod histogram;
pub mod names;
mod zone_metrics;

pub use collector::Collector;
pub use exposition::Form;
pub use families::{Distribution, Families, Metric, MetricSource};
