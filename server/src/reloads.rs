//! What is told of reloads.

use observe::counters::Counter;

/// What is told of reloads.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    /// Reloads that failed.
    pub(crate) failed: Counter,
    /// The SHA-512 of the configuration that serves.
    pub(crate) hash: std::sync::Mutex<String>,
}
