//! State of reloads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use metrics::counters::Counter;
use serde_json::{Value, json};

/// State of reloads.
#[derive(Debug, Default)]
pub(crate) struct ReloadState {
    /// The number of reloads that failed.
    pub(crate) failed: Counter,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// The SHA-512 of the serving configuration.
    hash: String,
    /// Whether the serving configuration uses the name servers of the node's network.
    needs_list: bool,
    /// The error and time of the last reload, if it failed.
    failure: Option<(Instant, ReloadFailure)>,
}

/// The reader of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusReader {
    /// The owner of the status socket, which may read the log and the configuration.
    Owner,
    /// Any client of the metrics' address, such as a pod, which gets no text of a failed
    /// configuration.
    Anyone,
}

/// Why a reload failed.
#[derive(Debug)]
pub(crate) struct ReloadFailure {
    /// The error as logged, with text of the configuration.
    pub(crate) full: String,
    /// The place and the kind of error.
    pub(crate) kind: String,
}

impl ReloadState {
    /// Records that a configuration serves, and whether it uses the network's name servers.
    pub(crate) fn serves(&self, hash: String, needs_list: bool) {
        *self.last() = Last { hash, needs_list, failure: None };
    }

    /// Whether the serving configuration uses the network's name servers.
    pub(crate) fn needs_list(&self) -> bool {
        self.last().needs_list
    }

    /// Records a failed reload.
    pub(crate) fn fails(&self, why: ReloadFailure) {
        self.failed.add_shared(1);
        self.last().failure = Some((clock::now(), why));
    }

    /// Clears the failure: the Corefile is again the one that serves.
    pub(crate) fn clear_failure(&self) {
        self.last().failure = None;
    }

    /// Returns the SHA-512 of the serving configuration.
    pub(crate) fn hash(&self) -> String {
        self.last().hash.clone()
    }

    /// Returns the age and error of the last reload, if it failed.
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
