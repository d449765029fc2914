//! Index of a cluster's objects, and answers from it.
//!
//! `kubernetes-api` delivers the objects. All workers read the index without waiting.

mod answer;
#[cfg(test)]
mod cost_counter;
pub mod index;
pub mod snapshot;
mod sync;
#[cfg(test)]
mod testing;

pub use answer::{
    AnswerOutcome, ClusterHandle, External, ExternalRules, Pods, Progress, Push, Responder, Rules,
    SnapshotAge, SnapshotSource, Transfer,
};
pub use index::{Index, IndexWriter};
