//! Configuration of the API client, and errors of lists and watches.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use files::ShownPath;

use crate::{Kind, Selector};

/// Configuration of the API client.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Address and credentials.
    pub access: Access,
    /// The objects to watch.
    pub wants: WatchConfig,
    /// Limits for requests.
    pub pace: RateLimit,
    /// The monotonic clock.
    pub now: fn() -> Instant,
}

/// Limits for requests of all kinds together; without limit by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateLimit {
    /// Requests per second on average: `apiserver_qps`. Zero or less means no limit.
    pub per_second: f64,
    /// Burst of requests above that rate: `apiserver_burst`. At least one.
    pub burst: u32,
    /// Requests that wait for the head of their reply at a time: `apiserver_max_inflight`. Zero
    /// means no limit.
    pub in_flight: usize,
}

/// Address of the API and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// In a pod: the variables `KUBERNETES_SERVICE_HOST` and `_PORT`, and `token` and `ca.crt` of
    /// the service account in this directory ([`SERVICE_ACCOUNT`] except in tests).
    InCluster(PathBuf),
    /// `endpoint URL`, and `tls CERT KEY CA`.
    Endpoint {
        /// `http://` or `https://`, host, optional port, and optional path prefix.
        url: ShownText,
        /// `None`: the system's certificate authorities are trusted, and requests have no
        /// credentials.
        tls: Option<ClientFiles>,
    },
    /// `kubeconfig FILE [CONTEXT]`.
    Kubeconfig {
        /// Read at start, and again after status 401.
        file: ShownPath,
        /// `None`: `current-context`.
        context: Option<ShownText>,
    },
}

/// A text of the configuration, and its form in messages, which has no value of a variable.
#[derive(Clone, PartialEq, Eq)]
pub struct ShownText {
    text: Box<str>,
    shown: Box<str>,
}

impl ShownText {
    /// Creates a text that messages show as `shown`.
    pub fn new(text: &str, shown: &str) -> Self {
        Self { text: text.into(), shown: shown.into() }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the form for messages.
    pub fn shown(&self) -> &str {
        &self.shown
    }
}

impl<T: AsRef<str>> From<T> for ShownText {
    fn from(text: T) -> Self {
        Self::new(text.as_ref(), text.as_ref())
    }
}

impl fmt::Display for ShownText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for ShownText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown, f)
    }
}

/// The directory in which the kubelet mounts a pod's service account.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// PEM files, read again for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// The client certificate of localdns.
    pub certificate: ShownPath,
    /// The key of that certificate.
    pub key: ShownPath,
    /// The certificate authorities of the API server.
    pub authority: ShownPath,
}

/// The kinds to watch besides services and namespaces, and filters for their objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchConfig {
    /// Whether EndpointSlices are watched; `noendpoints` disables them.
    pub endpoints: bool,
    /// Whether an endpoint's `targetRef` is stored: `endpoint_pod_names`.
    pub pod_names: bool,
    /// Whether an endpoint's topology zone is stored: `zonal`.
    pub zones: bool,
    /// Which pods are watched, if any.
    pub pods: Option<PodWatch>,
    /// Whether ServiceImports and the EndpointSlices of other clusters are watched: `multicluster`.
    pub imports: bool,
    /// Namespaces of the objects to use: `namespaces`. Empty means all.
    pub namespaces: Vec<Box<str>>,
    /// Label selector for services, slices and pods: `labels`.
    pub labels: Option<Selector>,
    /// Label selector for namespaces: `namespace_labels`. The API sends objects of other namespaces
    /// as well; readers filter them.
    pub namespace_labels: Option<Selector>,
}

/// Which pods to watch, and which of their labels to store. Pods in phase Succeeded, Failed or
/// Unknown are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodWatch {
    /// Only pods with this `spec.nodeName`.
    pub node: Option<Box<str>>,
    /// Keys of the labels to store.
    pub labels: Vec<Box<str>>,
}

/// Why a list or watch failed; it is retried.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// 403: RBAC does not allow it, or the API server has not loaded its roles yet.
    #[error("may not {verb} {kind}: {message}")]
    Forbidden {
        /// `list` or `watch`.
        verb: &'static str,
        /// The resource.
        kind: Kind,
        /// The message of the API.
        message: Box<str>,
    },
    /// 401: the API rejects the credentials.
    #[error("the API rejects the credentials: {message}")]
    Unauthorized {
        /// The message of the API.
        message: Box<str>,
    },
    /// 404: the API server does not have this resource.
    #[error("the API has no {kind}: {message}")]
    NoSuchResource {
        /// The resource.
        kind: Kind,
        /// The message of the API.
        message: Box<str>,
    },
    /// Any other HTTP status except 200.
    #[error("{status} from the API: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The message of the API.
        message: Box<str>,
    },
    /// 400, 406, 415 or 422: the API does not support this form of request (older API servers have
    /// no watch lists); another form is tried at once.
    #[error("{status} from the API: {message}")]
    Unsupported {
        /// The HTTP status.
        status: u16,
        /// The message of the API.
        message: Box<str>,
    },
    /// A file or variable with address or credentials cannot be read or parsed.
    #[error("{file}: {cause}")]
    Access {
        /// The file or variable.
        file: Box<str>,
        /// The cause.
        cause: Box<str>,
    },
    /// The connection failed.
    #[error("{address}: {cause}")]
    Connection {
        /// The API's host and port.
        address: Box<str>,
        /// The error of the system, TLS or HTTP.
        cause: Box<str>,
        /// Class of the cause.
        at: ConnectionFault,
    },
    /// No data arrived for this duration.
    #[error("no data for {} s", .0.as_secs())]
    Silent(Duration),
    /// Data arrives, but the reply is incomplete after this duration.
    #[error("reply incomplete after {} s", .0.as_secs())]
    Slow(Duration),
    /// 410: the resource version is too old to watch from; all objects are listed again.
    #[error("resource version expired: {0}")]
    Expired(Box<str>),
    /// A resource version lower than an earlier one; all objects are listed again.
    #[error("resource version {0} received after {1}")]
    OutOfOrder(Box<str>, Box<str>),
    /// Objects were skipped at the memory limit, and memory is available again; all objects are
    /// listed again.
    #[error("memory is available again for skipped objects")]
    RelistForMemory,
    /// The reply is not a Kubernetes list, watch event or Status.
    #[error("invalid reply: {0}")]
    Invalid(Box<str>),
}

/// Class of a connection failure, which decides the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFault {
    /// The API's name was not resolved.
    Lookup,
    /// The network, or the API itself.
    Network,
    /// The API's certificate is not signed by the configured authority.
    Authority,
    /// The API's certificate does not have the name of the API's address.
    Name,
    /// The API's certificate is expired or not yet valid.
    Validity,
    /// The API rejects localdns's certificate or TLS parameters.
    Rejected,
}

/// Prefix of the variables of a pod.
const VARIABLE_PREFIX: &str = "KUBERNETES_SERVICE_";

impl WatchError {
    /// Returns what the operator can do, for the log.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Forbidden { kind: Kind::ServiceImport, .. } => {
                "bind the account to the ClusterRole system:localdns, since system:coredns lacks this right"
            }
            Self::Forbidden { .. } => "bind the account to the ClusterRole system:coredns",
            Self::Unauthorized { .. } => {
                "use a token or certificate of this cluster that has not expired; it is read again before each attempt"
            }
            Self::NoSuchResource { kind: Kind::ServiceImport, .. } => "install its CRD",
            Self::NoSuchResource { .. } | Self::Invalid(_) => {
                "check that a Kubernetes API is at this address"
            }
            // The status that Go's servers return for plain HTTP on a TLS port.
            Self::Status { status: 400, .. } => {
                "use an https:// URL if the API expects TLS, otherwise see the API server's log"
            }
            Self::Status { .. } => "see the API server's log",
            Self::Unsupported { .. } => "another form of request is tried at once",
            Self::Access { file, .. } if file.starts_with(VARIABLE_PREFIX) => {
                "correct it and restart, since the environment is read once"
            }
            Self::Access { .. } => "correct it, no restart is needed",
            Self::Connection { at, .. } => at.remedy(),
            Self::Silent(_) | Self::Slow(_) => "check the load of the API and the network",
            Self::Expired(_) | Self::OutOfOrder(..) | Self::RelistForMemory => "all objects are listed again",
        }
    }
}

impl ConnectionFault {
    fn remedy(self) -> &'static str {
        match self {
            Self::Lookup => "check that the servers in /etc/resolv.conf resolve this name, or use an address",
            Self::Network => "check that the API is up and reachable from here",
            Self::Authority => {
                "name its own authority (CA of `tls`, certificate-authority of the kubeconfig, ca.crt of the account), which \
                 is read again before each attempt"
            }
            Self::Name => {
                "use a name of the API's certificate as address, or as tls-server-name in a kubeconfig"
            }
            Self::Validity => "renew the API's certificate, or correct the clock of this machine",
            Self::Rejected => {
                "use a certificate that the API accepts (`tls`, client-certificate of the kubeconfig)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_fits_the_cause() {
        let access = |file: &str| WatchError::Access { file: file.into(), cause: "bad".into() };
        let status = |status| WatchError::Status { status, message: "no".into() };
        for (error, expected) in [
            (access("KUBERNETES_SERVICE_HOST"), "the environment is read once"),
            (access("/etc/kubeconfig"), "no restart"),
            (status(400), "https://"),
            (status(503), "log"),
        ] {
            assert!(error.remedy().contains(expected), "{error}: {}", error.remedy());
        }
    }
}
