//! Hooks that every query and reply of a server block passes, whichever plugin answers.
//!
//! ```text
//! directives -> HooksSpec -> build, in plugin.cfg's order -> Hooks: sizes, and lists of hooks
//! ```
//! The lists are filled when the block is built. An empty list costs a reply one comparison.

use std::sync::Arc;
use std::time::{Duration, Instant};

use logging::metadata::Labels;
use logging::{LineRing, LogEntry};
use wire::{OptionBytes, Query};

use crate::QueryContext;
use crate::failure::Failure;
pub use crate::reply_size::ReplySize;

/// The hooks of one block.
#[derive(Default)]
pub struct Hooks {
    /// The size limit of replies.
    pub size: ReplySize,
    /// Plugins that write options into the OPT record of replies.
    pub options: Vec<Box<dyn WriteEdnsOptions>>,
    /// Whether metrics count the block's queries.
    pub counts: bool,
    /// The publisher of metadata labels, if the block has `metadata`.
    pub labels: Option<Arc<dyn Labels>>,
    /// Which queries for the block's zones the block serves: all without `view`.
    pub view: Option<Arc<dyn View>>,
    /// How long a query waits for upstreams, if that is less than the deadline of all queries.
    pub patience: Option<Duration>,
    /// Plugins that observe every query.
    pub ended: Vec<Box<dyn ObserveQueries>>,
    /// Plugins that observe failed queries.
    pub failed: Vec<Box<dyn ObserveFailures>>,
}

/// The condition under which a block serves a query for its zones.
pub trait View: Send + Sync {
    /// Returns the name of the view, for metrics.
    fn name(&self) -> &str;

    /// Whether the block serves the query; `labels` are those of the block's `metadata`. Called
    /// before the query is routed: for a query, or a subquery with the client of its query.
    fn admits(&self, query: &Query<'_>, context: &QueryContext<'_>, labels: Option<&dyn Labels>) -> bool;

    /// Returns the condition, for `explain`.
    fn explain(&self) -> String;
}

/// Writes options into the OPT record of replies to queries with an OPT record.
pub trait WriteEdnsOptions: Send + Sync {
    /// Writes the options of the reply to this query.
    fn write(&self, query: &Query<'_>, options: &mut OptionBytes);

    /// Returns the maximum number of bytes that `write` adds, with code and length of each option.
    fn most_octets(&self) -> usize;
}

/// Observes every query after its reply is sent.
pub trait ObserveQueries: Send + Sync {
    /// Called once for each query; log lines are written to the thread's ring `lines`.
    fn ended(&self, entry: &LogEntry<'_>, lines: &mut LineRing);
}

/// Observes failed queries after their replies are sent, and failed subqueries.
pub trait ObserveFailures: Send + Sync {
    /// Called once for each failure; not every failure is an error.
    fn failed(&self, failure: &Failure, query: &Query<'_>, now: Instant);

    /// Writes summaries that are due; called about once a second.
    fn catch_up(&self, _now: Instant) {}
}

impl Hooks {
    /// Returns the name of the block's view for metrics; empty without `view`.
    pub fn view_name(&self) -> &str {
        self.view.as_ref().map_or("", |view| view.name())
    }

    /// Whether the block serves a query for one of its zones.
    pub fn admits(&self, query: &Query<'_>, context: &QueryContext<'_>) -> bool {
        self.view.as_ref().is_none_or(|view| view.admits(query, context, self.labels.as_deref()))
    }

    /// Writes the options into the OPT record of a reply, if there are any.
    #[inline]
    pub fn write_options(&self, query: &Query<'_>, options: &mut OptionBytes) {
        self.options.iter().for_each(|plugin| plugin.write(query, options));
    }

    /// Returns the maximum bytes of options in an OPT record.
    pub fn most_octets(&self) -> usize {
        self.options.iter().map(|plugin| plugin.most_octets()).sum()
    }

    /// Whether a plugin observes every query, not only failures.
    #[inline]
    pub fn observes_queries(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Calls the observers of an ended query.
    pub fn query_ended(&self, entry: &LogEntry<'_>, lines: &mut LineRing) {
        self.ended.iter().for_each(|plugin| plugin.ended(entry, lines));
    }

    /// Makes observers of failures write summaries that are due.
    pub fn catch_up(&self, now: Instant) {
        self.failed.iter().for_each(|plugin| plugin.catch_up(now));
    }

    /// Calls the observers of a failed query.
    pub fn query_failed(&self, failure: &Failure, query: &Query<'_>, now: Instant) {
        self.failed.iter().for_each(|plugin| plugin.failed(failure, query, now));
    }
}
