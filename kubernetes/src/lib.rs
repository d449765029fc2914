//! What is known of a cluster, and what its zones answer of it.
//!
//! Objects come in as `kubernetes-api` decodes them; the index of them is read by every worker, and none waits.

mod answer;
#[cfg(test)]
mod cost_counter;
pub mod index;
pub mod snapshot;
mod sync;
#[cfg(test)]
mod testing;

pub use answer::{
    Answered, External, ExternalRules, LentCluster, Pods, Progress, Push, Recalled, Recalls, Responder,
    Rules, Transfer,
};
pub use index::{Index, Writer};
