//! What /status says of clusters.

use std::time::{Duration, Instant};

use kubernetes_api::{Access, Kind};

use super::cluster::Cluster;
use super::sync_problem::Wrong;

/// What is known of one cluster, and how fresh that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Where its API is.
    pub api: String,
    /// What is followed of it.
    pub kinds: Vec<KindStatus>,
    /// Since an object was heard of last, if one ever was.
    pub event_age: Option<Duration>,
    /// How old the snapshot is that answers are of; none once the API has told all.
    pub snapshot_age: Option<Duration>,
    /// What the account may not do, such as `watch services`.
    pub rights_missing: Vec<String>,
    /// Why it is not followed, or the snapshot is of no use.
    pub wrong: Vec<Wrong>,
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
            wrong: cluster.wrong(),
        }
    }

    /// Whether all that is followed has been known once: answers are whole.
    pub fn is_synced(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_known)
    }

    /// Whether answers may be of what was once: those of a snapshot, or of an API whose changes are not heard.
    pub fn is_stale(&self) -> bool {
        self.snapshot_age.is_some() || self.kinds.iter().any(|kind| !kind.is_followed)
    }
}

/// Who the API is, in a few words and without secrets: of a URL what stands before `@` is none of the readers'.
fn place(access: &Access) -> String {
    match access {
        Access::InCluster(_) => "in-cluster".to_owned(),
        Access::Endpoint { url, .. } => match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
            (None, Some((_, rest))) => rest.to_owned(),
            (_, None) => url.to_string(),
        },
        Access::Kubeconfig { file, context: None } => file.display().to_string(),
        Access::Kubeconfig { file, context: Some(context) } => format!("{} {context}", file.display()),
    }
}
