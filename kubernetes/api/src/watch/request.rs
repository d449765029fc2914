//! Paths and parameters of list and watch requests.

use std::fmt::Write as _;

use crate::decode::Encoding;
use crate::objects::Kind;
use crate::settings::WatchConfig;

/// A list or watch request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatchRequest {
    /// Path and query.
    pub(super) path: String,
    /// Accepted content types, in order of preference.
    pub(super) accept: &'static str,
    pub(super) watch: bool,
}

/// Path and parameters that select the objects.
pub(super) struct Query(String);

impl Query {
    pub(super) fn of(kind: Kind, wants: &WatchConfig) -> Self {
        let path = match kind {
            Kind::Service => "/api/v1/services",
            Kind::Slice => "/apis/discovery.k8s.io/v1/endpointslices",
            Kind::Namespace => "/api/v1/namespaces",
            Kind::Pod => "/api/v1/pods",
            Kind::ServiceImport => "/apis/multicluster.x-k8s.io/v1alpha1/serviceimports",
        };
        let labels = match kind {
            Kind::Service | Kind::Slice | Kind::Pod => wants.labels.as_ref(),
            Kind::Namespace => wants.namespace_labels.as_ref(),
            Kind::ServiceImport => None,
        };
        let mut query = Self(format!("{path}?"));
        if let Some(labels) = labels {
            query.add("labelSelector", labels.as_str());
        }
        if kind == Kind::Pod {
            let mut fields = ENDED.to_owned();
            if let Some(node) = wants.pods.as_ref().and_then(|pods| pods.node.as_deref()) {
                fields.push_str(",spec.nodeName=");
                fields.push_str(node);
            }
            query.add("fieldSelector", &fields);
        }
        query
    }

    pub(super) fn add(&mut self, name: &str, value: &str) {
        if !self.0.ends_with('?') {
            self.0.push('&');
        }
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                self.0.push(char::from(byte));
            } else {
                let _ = write!(self.0, "%{byte:02X}");
            }
        }
    }

    pub(super) fn into_path(self) -> String {
        self.0
    }
}

/// Field selector that excludes pods that have ended. If an API server ignores the selector, such
/// pods are sent and skipped (`View::has_ended`).
const ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed,status.phase!=Unknown";

/// Returns the encoding of a content type.
pub(super) fn encoding(content_type: &str) -> Option<Encoding> {
    match content_type.split(';').next().map(str::trim) {
        Some("application/vnd.kubernetes.protobuf") => Some(Encoding::Protobuf),
        Some("application/json") => Some(Encoding::Json),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PodWatch, Selector};

    #[test]
    fn selectors_of_each_kind() {
        let wants = WatchConfig {
            labels: Some(Selector::parse("app in (a,b)").unwrap()),
            namespace_labels: Some(Selector::parse("team=dns").unwrap()),
            pods: Some(PodWatch { node: Some("node-1".into()), labels: Vec::new() }),
            ..WatchConfig::default()
        };
        let ended = "status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed%2Cstatus.phase%21%3DUnknown";
        for (kind, path) in [
            (Kind::Service, "/api/v1/services?labelSelector=app%20in%20%28a%2Cb%29".to_owned()),
            (
                Kind::Slice,
                "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=app%20in%20%28a%2Cb%29".to_owned(),
            ),
            (Kind::Namespace, "/api/v1/namespaces?labelSelector=team%3Ddns".to_owned()),
            (
                Kind::Pod,
                format!(
                    "/api/v1/pods?labelSelector=app%20in%20%28a%2Cb%29&fieldSelector={ended}%2Cspec.nodeName%3Dnode-1"
                ),
            ),
            (Kind::ServiceImport, "/apis/multicluster.x-k8s.io/v1alpha1/serviceimports?".to_owned()),
        ] {
            assert_eq!(Query::of(kind, &wants).into_path(), path);
        }
    }
}
