//! Kubernetes APIs for tests: a real one without a cluster behind it, and one that does as it is told.

mod api;
mod cluster;
mod forms;

pub use api::{Api, Reply, Request};
pub use cluster::Cluster;
pub use forms::Form;
