//! What is known of reloads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use observe::counters::Counter;
use serde_json::{Value, json};

/// What is known of reloads.
#[derive(Debug, Default)]
pub(crate) struct ReloadState {
    /// Reloads that failed.
    pub(crate) failed: Counter,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// The SHA-512 of the configuration that serves.
    hash: String,
    /// Whether it asks the servers of the node's network.
    needs_list: bool,
    /// Why, and since when, it is not the Corefile that was read last.
    failure: Option<(Instant, ReloadFailure)>,
}

/// Which readers a report is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusReader {
    /// The owner of the status socket, which may read the log and the configuration.
    Owner,
    /// Every client of the metrics' address, such as any pod: no words of a configuration that
    /// failed.
    Anyone,
}

/// Why a configuration is not served.
#[derive(Debug)]
pub(crate) struct ReloadFailure {
    /// As the log has it, with words of the configuration.
    pub(crate) full: String,
    /// The place and the kind of error.
    pub(crate) kind: String,
}

impl ReloadState {
    /// A configuration serves; whether it asks the servers of the node's network.
    pub(crate) fn serves(&self, hash: String, needs_list: bool) {
        *self.last() = Last { hash, needs_list, failure: None };
    }

    /// Whether the configuration that serves asks the servers of the node's network.
    pub(crate) fn needs_list(&self) -> bool {
        self.last().needs_list
    }

    /// A reload failed: the configuration before it serves.
    pub(crate) fn fails(&self, why: ReloadFailure) {
        self.failed.add_shared(1);
        self.last().failure = Some((clock::now(), why));
    }

    /// The Corefile is what serves, after all.
    pub(crate) fn mended(&self) {
        self.last().failure = None;
    }

    /// The SHA-512 of the configuration that serves.
    pub(crate) fn hash(&self) -> String {
        self.last().hash.clone()
    }

    /// Of the last reload, where it failed.
    pub(crate) fn failure(&self, now: Instant, reader: StatusReader) -> Option<Value> {
        let last = self.last();
        let (at, why) = last.failure.as_ref()?;
        let error = match reader {
            StatusReader::Owner => &why.full,
            StatusReader::Anyone => &why.kind,
        };
        Some(json!({ "seconds_ago": now.saturating_duration_since(*at).as_secs(), "error": error }))
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
