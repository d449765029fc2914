//! A cluster's part of /status.

use std::time::{Duration, Instant};

use kubernetes_api::{Access, Kind, printable_url};

use super::cluster::Cluster;
use super::sync_problem::SyncProblem;

/// State of one cluster, and its age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The API's address.
    pub api: String,
    /// The watched kinds.
    pub kinds: Vec<KindStatus>,
    /// Time since the last event, if there was one.
    pub event_age: Option<Duration>,
    /// The age of the snapshot in use; `None` once the API's lists are complete.
    pub snapshot_age: Option<Duration>,
    /// Missing permissions of the account, such as `watch services`.
    pub rights_missing: Vec<String>,
    /// Errors of the watches or of the snapshot.
    pub problems: Vec<SyncProblem>,
}

/// Objects of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindStatus {
    /// The API's name of the kind.
    pub kind: Kind,
    /// Number of objects.
    pub objects: usize,
    /// Whether a list has been complete once.
    pub is_known: bool,
    /// Whether its watch is connected.
    pub is_followed: bool,
}

impl ClusterStatus {
    pub(super) fn of(cluster: &Cluster, now: Instant) -> Self {
        let index = cluster.index();
        let unknown: Vec<Kind> = index.unsynced().kinds().collect();
        let of_kind = |kind: Kind| KindStatus {
            kind,
            objects: index.count(kind),
            is_known: !unknown.contains(&kind),
            is_followed: index.is_connected(kind),
        };
        Self {
            api: place(cluster.access()),
            kinds: cluster.wants().kinds().map(of_kind).collect(),
            event_age: cluster.heard().map(|heard| now.saturating_duration_since(heard)),
            snapshot_age: cluster.snapshot().and_then(|kept| kept.age(now)),
            rights_missing: cluster.rights_missing(),
            problems: cluster.problems(),
        }
    }

    /// Whether all watched kinds have been synced once: answers are complete.
    pub fn is_synced(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_known)
    }

    /// Whether answers may be outdated: from a snapshot, or while changes do not arrive from the API.
    pub fn is_stale(&self) -> bool {
        self.snapshot_age.is_some() || self.kinds.iter().any(|kind| !kind.is_followed)
    }
}

/// Returns a short text for the API without secrets: the user part of a URL is omitted.
fn place(access: &Access) -> String {
    match access {
        Access::InCluster(_) => "in-cluster".to_owned(),
        Access::Endpoint { url, .. } => printable_url(url.shown()),
        Access::Kubeconfig { file, context: None } => file.display().to_string(),
        Access::Kubeconfig { file, context: Some(context) } => format!("{} {context}", file.display()),
    }
}
