//! Metrics: counters of each zone and thread, metric families, and their text for /metrics.
//!
//! ```text
//! thread -> counters --.
//! MetricSource --------+-> Families -> Registry -> MetricFamily -> text, OpenMetrics or protobuf
//! ```
//!
//! Each counter has one writer and is summed when it is read. The registry, the messages, and the formats text and protobuf are those
//! of `prometheus`; native histograms and OpenMetrics, which it lacks, are here. Knows no worker, no configuration and no HTTP.

pub mod counters;
pub mod exposition;
pub mod families;
pub mod gatherer;
pub mod histogram;
pub mod names;
mod native_fields;
mod openmetrics;
mod zone_metrics;

pub use exposition::Form;
pub use families::{Distribution, Families, Metric, MetricSource, sum};
pub use gatherer::Gatherer;
pub use prometheus::proto::MetricFamily;
