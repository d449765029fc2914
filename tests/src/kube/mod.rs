//! Kubernetes APIs for tests: a real one without a cluster behind it, and one that does as it is told.

mod cluster;

pub use cluster::Cluster;
