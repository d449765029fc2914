//! What operators see of a query once it has been answered: counters, log lines, error lines, metrics.
//!
//! ```text
//! worker -> counters ---------------------> collector -> /metrics
//! worker -> log    -> ring ----\
//! anyone -> errors -> logger ---> one writer thread -> stdout
//! ```
//!
//! The last step on a query's way: it is told what happened, after the reply is sent, and can change nothing. It knows
//! neither workers nor configuration snapshots nor the pipeline, and nothing here waits for a slow reader of the log.

pub mod collector;
pub mod counters;
pub mod errors;
pub mod expose;
pub mod families;
mod json;
pub mod labels;
pub mod log;
pub mod logger;
pub mod names;
#[cfg(any(test, feature = "paper"))]
pub mod paper;
mod queue;
pub mod ring;
mod sync;
mod text;
mod writer;
mod zones;

pub use collector::Collector;
pub use errors::ErrorLog;
pub use expose::Form;
pub use families::{Distribution, Families, Metric, MetricSource};
pub use log::{LogClass, LogEntry, LogFormat, LogRules};
pub use logger::{Format, LineRing, Logger, json_line};
