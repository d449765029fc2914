//! Which objects are followed, where the API server is, and why a list or watch failed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::{Kind, Selector};

/// Which objects to follow, where and how fast.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the API is, and who asks it.
    pub access: Access,
    /// Which kinds, and of them which objects.
    pub wants: Wants,
    /// How fast requests may be made.
    pub pace: Pace,
    /// The monotonic clock.
    pub now: fn() -> Instant,
}

/// How fast the API is asked, all kinds together: as fast as it answers unless this says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Requests in a second, over time: `apiserver_qps`. Zero or less is no bound.
    pub per_second: f64,
    /// Requests at once, before that counts: `apiserver_burst`. At least one.
    pub burst: u32,
    /// Requests that wait for the head of their reply at one time: `apiserver_max_inflight`. Zero is no bound.
    pub in_flight: usize,
}

/// Where the API is, and who asks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// What a pod finds: the environment's `KUBERNETES_SERVICE_HOST` and `_PORT`, and its account's `token` and `ca.crt`
    /// below this directory ([`SERVICE_ACCOUNT`] but in tests).
    InCluster(PathBuf),
    /// `endpoint URL`, and `tls CERT KEY CA`.
    Endpoint {
        /// `http://` or `https://`, host, port if it is not the scheme's, and what stands before the API's own paths.
        url: Box<str>,
        /// Without it the system's certificate authorities are trusted, and requests carry no credentials.
        tls: Option<ClientFiles>,
    },
    /// `kubeconfig FILE [CONTEXT]`.
    Kubeconfig {
        /// Read at the start, and again after a 401.
        file: PathBuf,
        /// `current-context` if it is not named.
        context: Option<Box<str>>,
    },
}

/// The directory that the kubelet mounts a pod's service account at.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Files in PEM form, read again for every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// Our client certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The certificate authorities that the API server's certificate is verified against.
    pub authority: PathBuf,
}

/// Which kinds are followed besides services and namespaces, and which objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// EndpointSlices: off by `noendpoints`.
    pub endpoints: bool,
    /// Whether an endpoint's `targetRef` is kept: `endpoint_pod_names`.
    pub pod_names: bool,
    /// Whether an endpoint's topology zone is kept: `zonal`.
    pub zones: bool,
    /// Pods, where they are needed at all.
    pub pods: Option<PodsWanted>,
    /// ServiceImports, and the EndpointSlices of other clusters: `multicluster`.
    pub imports: bool,
    /// Objects of these namespaces alone: `namespaces`. All of them where it is empty.
    pub namespaces: Vec<Box<str>>,
    /// Services, slices and pods with these labels: `labels`.
    pub labels: Option<Selector>,
    /// Namespaces with these labels: `namespace_labels`. Objects in other namespaces
    /// are sent all the same, and left out by whoever reads them.
    pub namespace_labels: Option<Selector>,
}

/// Which pods, and which of their labels. Pods in phase Succeeded, Failed or Unknown are never followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodsWanted {
    /// Only those with this `spec.nodeName`.
    pub node: Option<Box<str>>,
    /// Labels that are kept, by key.
    pub labels: Vec<Box<str>>,
}

/// Why a list or watch of a kind failed; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// 403: RBAC does not allow it, or the API server has not loaded its roles yet.
    #[error("may not {verb} {kind}: {message}")]
    Forbidden {
        /// `list` or `watch`.
        verb: &'static str,
        /// The resource.
        kind: Kind,
        /// What the API says.
        message: Box<str>,
    },
    /// 401: the credentials are not accepted.
    #[error("the API does not accept who asks: {message}")]
    Unauthorized {
        /// What the API says.
        message: Box<str>,
    },
    /// 404: the API server does not have this resource.
    #[error("the API has no {kind}: {message}")]
    Unknown {
        /// The resource.
        kind: Kind,
        /// What the API says.
        message: Box<str>,
    },
    /// Any other HTTP status but 200.
    #[error("{status} from the API: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// What the API says.
        message: Box<str>,
    },
    /// 400, 406, 415 or 422: the API does not offer this way to ask, as an older one has no lists by a watch; it is asked in
    /// another way at once.
    #[error("{status} from the API: {message}")]
    Unoffered {
        /// The HTTP status.
        status: u16,
        /// What the API says.
        message: Box<str>,
    },
    /// A file or variable with the address or credentials cannot be read or parsed.
    #[error("{file}: {cause}")]
    Access {
        /// The file, or the variable.
        file: Box<str>,
        /// What is wrong with it.
        cause: Box<str>,
    },
    /// The connection failed, or broke.
    #[error("{address}: {cause}")]
    Connection {
        /// The API's host and port.
        address: Box<str>,
        /// What the system, TLS or HTTP says.
        cause: Box<str>,
        /// Where that lies.
        at: Fault,
    },
    /// Nothing came for this long.
    #[error("nothing came for {} s", .0.as_secs())]
    Silent(Duration),
    /// Something comes, but is not whole after this long.
    #[error("a reply is not whole after {} s", .0.as_secs())]
    Slow(Duration),
    /// 410: the resource version is too old to watch from; everything is listed again.
    #[error("the API has forgotten what was heard last: {0}")]
    Expired(Box<str>),
    /// A resource version below one that was sent before; everything is listed again.
    #[error("version {0} after {1}")]
    Disorder(Box<str>, Box<str>),
    /// Objects were left out for want of room, and there is room again; everything is listed again.
    #[error("there is room again for what was left out")]
    Crowded,
    /// The reply is no Kubernetes list, watch event or Status.
    #[error("the reply makes no sense: {0}")]
    Nonsense(Box<str>),
}

/// Where a connection fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The API's name has no address.
    Lookup,
    /// On the way, or at its end.
    Way,
    /// The API's certificate is not of the authority that it is verified against.
    Authority,
    /// The API's certificate has other names than the one it is reached by.
    Name,
    /// The API's certificate is not valid yet, or no more.
    Validity,
    /// The API refuses our certificate, or how TLS is spoken.
    Refused,
}

/// What the names of a pod's variables begin with.
const VARIABLES: &str = "KUBERNETES_SERVICE_";

impl Lost {
    /// What ends it, for the log: behind the cause, and without a full stop.
    pub fn mend(&self) -> &'static str {
        match self {
            Self::Forbidden { kind: Kind::ServiceImport, .. } => {
                "does the account have the role of system:localdns? That of system:coredns has no such right"
            }
            Self::Forbidden { .. } => "does the account have the role of system:coredns?",
            Self::Unauthorized { .. } => {
                "are its token or certificate of this cluster, and not expired? They are read again before each try"
            }
            Self::Unknown { kind: Kind::ServiceImport, .. } => "is its CRD installed?",
            Self::Unknown { .. } | Self::Nonsense(_) => "is a Kubernetes API at this address?",
            // What Go's servers say to who speaks no TLS to them.
            Self::Status { status: 400, .. } => {
                "does it want TLS, by a URL of https://? Else the API server's own log says more"
            }
            Self::Status { .. } => "the API server's own log says more",
            Self::Unoffered { .. } => "it is asked in another way at once",
            Self::Access { file, .. } if file.starts_with(VARIABLES) => {
                "the environment is read once: start anew when it is right"
            }
            Self::Access { .. } => "once that is right it is taken without a restart",
            Self::Connection { at, .. } => at.mend(),
            Self::Silent(_) | Self::Slow(_) => "is the API overloaded, or the way to it broken?",
            Self::Expired(_) | Self::Disorder(..) | Self::Crowded => "all is listed again",
        }
    }
}

impl Fault {
    fn mend(self) -> &'static str {
        match self {
            Self::Lookup => {
                "do the servers of /etc/resolv.conf know that name? An address may stand in its place"
            }
            Self::Way => "is the API up, and can it be reached from here?",
            Self::Authority => {
                "is it verified against its own authority (CA of `tls`, certificate-authority of the kubeconfig, ca.crt of the \
                 account)? That is read again before each try"
            }
            Self::Name => {
                "name the API as its certificate does, or that name as tls-server-name in a kubeconfig"
            }
            Self::Validity => "renew the API's certificate, or set the clock of this machine",
            Self::Refused => {
                "does the API accept our certificate (`tls`, client-certificate of the kubeconfig)?"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mend_fits_its_cause() {
        let access = |file: &str| Lost::Access { file: file.into(), cause: "bad".into() };
        let status = |status| Lost::Status { status, message: "no".into() };
        for (lost, expected) in [
            (access("KUBERNETES_SERVICE_HOST"), "the environment is read once"),
            (access("/etc/kubeconfig"), "without a restart"),
            (status(400), "https://"),
            (status(503), "log"),
        ] {
            assert!(lost.mend().contains(expected), "{lost}: {}", lost.mend());
        }
    }
}
