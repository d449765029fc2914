//! The process log, and the lines of the plugins `log` and `errors`.
//!
//! ```text
//! worker -> query_log -> ring ----.
//! any thread -> error_log --------+-> one writer thread -> stdout
//! any thread -> Logger -> queue --'
//! ```
//!
//! No thread but the writer waits for a slow reader of the log. Knows no worker and no configuration.

#[cfg(any(test, feature = "captured-log"))]
pub mod captured_log;
pub mod error_log;
mod json;
mod log_format;
pub mod logger;
pub mod metadata;
pub mod query_log;
mod queue;
pub mod ring;
mod sync;
mod writer;

pub use error_log::ErrorLog;
pub use logger::{Format, LineRing, Logger, json_line};
pub use query_log::{LogClass, LogEntry, LogFormat, LogRules};
