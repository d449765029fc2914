//! The labels of a query that `kubernetes` publishes.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ::kubernetes::Responder;
use logging::metadata::Labels;
use wire::Name;

use super::cluster::Cluster;

/// The publisher of labels for one block's queries.
pub(super) struct Published {
    pub(super) cluster: Arc<Cluster>,
    pub(super) responder: Responder,
}

impl Labels for Published {
    fn label(&self, label: &str, name: &Name, client: Option<IpAddr>) -> Option<String> {
        let part = label.strip_prefix("kubernetes/")?;
        let pod = || self.cluster.index().certain_pod(client?);
        match part {
            "client-namespace" => pod().map(|pod| pod.key.namespace.to_string()),
            "client-pod-name" => pod().map(|pod| pod.key.name.to_string()),
            _ => match label.strip_prefix(CLIENT_LABEL) {
                Some(key) => {
                    let pod = pod()?;
                    let own = pod.labels.iter().find(|(own, _)| **own == *key);
                    own.map(|(_, value)| value.to_string())
                }
                None => self.responder.part(name, part),
            },
        }
    }
}

/// The prefix of labels about the client.
pub(super) const CLIENT: &str = "kubernetes/client-";
/// The prefix of labels for a pod's Kubernetes labels; the key follows.
pub(super) const CLIENT_LABEL: &str = "kubernetes/client-label/";

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("rules", self.responder.rules()).finish_non_exhaustive()
    }
}
