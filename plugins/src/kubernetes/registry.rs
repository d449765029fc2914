//! Registry of clusters: finds a cluster by its watched objects, counts clusters, and starts them
//! with a configuration.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::KubernetesSpec;
use super::cluster::Cluster;
use super::metrics::Metrics;
use super::status::ClusterStatus;
use logging::Logger;
use metrics::{Families, Metric};
use plugin::reload_state::Persistent;

/// All clusters in use by blocks.
#[derive(Default)]
pub struct ClusterRegistry {
    clusters: Mutex<Vec<Arc<Cluster>>>,
    metrics: Arc<Metrics>,
}

impl ClusterRegistry {
    /// Returns the cluster of a directive: one that is watched already, or a new one.
    pub(super) fn cluster(&self, spec: &KubernetesSpec) -> Arc<Cluster> {
        let mut clusters = self.clusters();
        let is_it = |cluster: &Arc<Cluster>| cluster.is_of(&spec.access, &spec.wants, spec.snapshot.as_ref());
        let known = clusters.iter().find(|cluster| is_it(cluster)).cloned();
        let cluster = known.unwrap_or_else(|| {
            let (access, wants, snapshot) = (spec.access.clone(), spec.wants.clone(), spec.snapshot.clone());
            let new = Arc::new(Cluster::new(access, wants, snapshot, self.metrics.clone()));
            clusters.push(new.clone());
            new
        });
        cluster.start_with(spec.startup_timeout, spec.pace);
        cluster
    }

    /// Returns the state of every cluster in use.
    pub fn status(&self, now: Instant) -> Vec<ClusterStatus> {
        let clusters = self.clusters();
        let used = clusters.iter().filter(|cluster| Arc::strong_count(cluster) > 1);
        used.map(|cluster| ClusterStatus::of(cluster, now)).collect()
    }

    fn clusters(&self) -> MutexGuard<'_, Vec<Arc<Cluster>>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Persistent for ClusterRegistry {
    fn collect(&self, into: &mut Families) {
        let clusters = self.clusters().clone();
        self.metrics.collect(into);
        let now = clock::now();
        for (number, cluster) in clusters.iter().enumerate() {
            let number = number.to_string();
            for kind in cluster.wants().kinds() {
                let labels = [("cluster", number.as_str()), ("kind", kind.resource())];
                into.gauge(OBJECTS, &labels, cluster.index().count(kind) as f64);
                let followed = if cluster.index().is_connected(kind) { 1.0 } else { 0.0 };
                into.gauge(FOLLOWED, &labels, followed);
            }
            if let Some(kept) = cluster.snapshot() {
                let labels = [("cluster", number.as_str())];
                if let Some(age) = kept.age(now) {
                    into.gauge(SNAPSHOT_AGE, &labels, age.as_secs_f64());
                }
                for (count, result) in kept.counts().into_iter().zip(["written", "failed"]) {
                    let labels = [("cluster", number.as_str()), ("result", result)];
                    into.counter(SNAPSHOTS, &labels, count as f64);
                }
            }
            if let Some(heard) = cluster.heard() {
                let age = now.saturating_duration_since(heard).as_secs_f64();
                into.gauge(EVENT_AGE, &[("cluster", number.as_str())], age);
            }
        }
    }

    fn look(&self, _: Instant, _: &Logger) -> Option<Instant> {
        // Clusters that no configuration uses are referenced by the registry alone; their watchers
        // are stopped without holding the lock.
        let unused: Vec<_> =
            self.clusters().extract_if(.., |cluster| Arc::strong_count(cluster) == 1).collect();
        drop(unused);
        None
    }

    fn begin(&self, logger: &Logger) {
        let clusters = self.clusters().clone();
        let mut waits = Vec::new();
        for cluster in &clusters {
            match cluster.begin(logger) {
                Ok(end) => waits.extend(end.map(|end| (cluster, end))),
                Err(error) => {
                    let line =
                        format!("Cannot follow the Kubernetes API: {error}; give this process more threads");
                    logger.error(Some("kubernetes"), &line);
                }
            }
        }
        for (cluster, end) in waits {
            cluster.wait_until(end, logger);
        }
    }

    fn leave(&self) {
        let end = clock::now() + LEAVE;
        let clusters = self.clusters();
        // An unused cluster may have the same file as one in use.
        let used = clusters.iter().filter(|cluster| Arc::strong_count(cluster) > 1);
        let written: Vec<_> = used.filter_map(|cluster| cluster.write_now()).collect();
        drop(clusters);
        for one in written {
            let _ = one.recv_timeout(end.saturating_duration_since(clock::now()));
        }
    }

    fn not_ready(&self) -> Option<Cow<'static, str>> {
        let clusters = self.clusters();
        let is_unknown = |cluster: &&Arc<Cluster>| Arc::strong_count(cluster) > 1 && !cluster.is_known();
        let unknown: Vec<_> = clusters.iter().filter(is_unknown).collect();
        if unknown.is_empty() {
            return None;
        }
        let missing =
            unknown.iter().map(|cluster| cluster.rights_missing()).find(|missing| !missing.is_empty());
        let why = match missing {
            Some(missing) => Some(format!("may not {}", missing.join(", "))),
            None => {
                unknown.iter().flat_map(|cluster| cluster.problems()).next().map(|problem| problem.problem)
            }
        };
        Some(why.map_or_else(|| "kubernetes".into(), |why| format!("kubernetes: {why}").into()))
    }
}

/// Maximum wait for snapshots when the process ends, since a disk may hang.
const LEAVE: Duration = Duration::from_secs(1);
/// Gauge {cluster, kind}; kind: services, endpointslices, namespaces, pods, serviceimports.
const OBJECTS: Metric =
    Metric { name: "localdns_kubernetes_objects", help: "Objects of a cluster that are known." };
/// Gauge {cluster, kind}.
const FOLLOWED: Metric = Metric {
    name: "localdns_kubernetes_followed",
    help: "1 while changes of these objects arrive from the API, 0 while they do not.",
};
/// Gauge {cluster}.
const EVENT_AGE: Metric =
    Metric { name: "localdns_kubernetes_event_age_seconds", help: "Time since the API last sent an object." };
/// Gauge {cluster}.
const SNAPSHOT_AGE: Metric = Metric {
    name: "localdns_kubernetes_snapshot_age_seconds",
    help: "Age of the snapshot that answers are from, until the lists of the API are complete.",
};
/// Counter {cluster, result}.
const SNAPSHOTS: Metric = Metric {
    name: "localdns_kubernetes_snapshots_total",
    help: "Counter of snapshots by whether they could be written.",
};
