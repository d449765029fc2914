//! Kubernetes APIs for tests: a real one without a cluster, and a scripted one.

mod api;
mod cluster;
mod door;
mod forms;
mod scripted;

pub use api::{Api, Reply, Request};
pub use cluster::Cluster;
pub use door::Door;
pub use forms::Form;
pub use scripted::{IMPORTS, NAMESPACES, Object, PODS, SERVICES, SLICES, ScriptedCluster};
