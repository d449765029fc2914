//! What /status says of clusters.

use std::time::{Duration, Instant};

use kubernetes_api::{Access, Kind, printable_url};

use super::cluster::Cluster;
use super::sync_problem::SyncProblem;

/// What is known of one cluster, and how fresh that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Where its API is.
    pub api: String,
    /// What is followed of it.
    pub kinds: Vec<KindStatus>,
    /// Since an object was heard of last, if one ever was.
    pub event_age: Option<Duration>,
    /// The age of the snapshot that answers come from; `None` once the API's lists are complete.
    pub snapshot_age: Option<Duration>,
    /// What the account may not do, such as `watch services`.
    pub rights_missing: Vec<String>,
    /// Why it is not followed, or the snapshot is of no use.
    pub problems: Vec<SyncProblem>,
}

/// Objects of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindStatus {
    /// As the API calls it.
    pub kind: Kind,
    /// How many are known.
    pub objects: usize,
    /// Whether all of them are: a list has been whole once.
    pub is_known: bool,
    /// Whether their changes are heard just now.
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

    /// Whether all that is followed has been known once: answers are whole.
    pub fn is_synced(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_known)
    }

    /// Whether answers may be outdated: from a snapshot, or while changes do not arrive from the API.
    pub fn is_stale(&self) -> bool {
        self.snapshot_age.is_some() || self.kinds.iter().any(|kind| !kind.is_followed)
    }
}

/// The API in a few words without secrets: the user part of a URL is left out.
fn place(access: &Access) -> String {
    match access {
        Access::InCluster(_) => "in-cluster".to_owned(),
        Access::Endpoint { url, .. } => printable_url(url),
        Access::Kubeconfig { file, context: None } => file.display().to_string(),
        Access::Kubeconfig { file, context: Some(context) } => format!("{} {context}", file.display()),
    }
}
