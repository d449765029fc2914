//! Problems of watching a cluster, for /status and /ready.

/// A problem with its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncProblem {
    /// The kinds of objects that are not watched, or the snapshot.
    pub subject: String,
    /// The problem, as in the log.
    pub problem: String,
    /// The remedy.
    pub remedy: &'static str,
}
