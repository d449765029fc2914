//! What is followed, where the API is, and why it may not be heard.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::{Kind, Selector};

/// What to follow, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the API is, and who asks it.
    pub access: Access,
    /// What is asked.
    pub wants: Wants,
    /// How fast.
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
        /// Without it the machine's own authorities are trusted, and nobody in particular asks.
        tls: Option<ClientFiles>,
    },
    /// `kubeconfig FILE [CONTEXT]`.
    Kubeconfig {
        /// Read at the start, and again where the API knows us no more.
        file: PathBuf,
        /// `current-context` if it is not named.
        context: Option<Box<str>>,
    },
}

/// Where a pod finds its account.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Files in PEM form, read again for every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// What we show.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who may vouch for the API.
    pub authority: PathBuf,
}

/// What is followed: services and namespaces always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Slices, too: not with `noendpoints`.
    pub endpoints: bool,
    /// Names of pods with their endpoints: `endpoint_pod_names`.
    pub pod_names: bool,
    /// Zones of endpoints: `zonal`.
    pub zones: bool,
    /// Pods, too.
    pub pods: Option<PodsWanted>,
    /// Service imports, and the slices of other clusters: `multicluster`.
    pub imports: bool,
    /// Objects of these namespaces alone: `namespaces`. All of them where it is empty.
    pub namespaces: Vec<Box<str>>,
    /// Services, slices and pods with these labels: `labels`.
    pub labels: Option<Selector>,
    /// Namespaces with these labels: `namespace_labels`. What lies in others comes all the same.
    pub namespace_labels: Option<Selector>,
}

/// Which pods, and what of them: never those that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodsWanted {
    /// Those of this node alone.
    pub node: Option<Box<str>>,
    /// Labels that are kept, by key.
    pub labels: Vec<Box<str>>,
}

/// Why nothing is heard of a kind just now.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// A right is missing, or the API has not read its roles yet.
    #[error("may not {verb} {kind}: {message}; does the account have the role of system:coredns?")]
    Forbidden {
        /// `list` or `watch`.
        verb: &'static str,
        /// Of what.
        kind: Kind,
        /// What the API says.
        message: Box<str>,
    },
    /// The API does not know who asks.
    #[error("the API does not accept who asks: {message}")]
    Unauthorized {
        /// What the API says.
        message: Box<str>,
    },
    /// The API has no such kind.
    #[error("the API has no {kind}: {message}; is its CRD installed?")]
    Unknown {
        /// Which.
        kind: Kind,
        /// What the API says.
        message: Box<str>,
    },
    /// Another status than the one that was hoped for.
    #[error("{status} from the API: {message}")]
    Status {
        /// As HTTP has it.
        status: u16,
        /// What the API says.
        message: Box<str>,
    },
    /// What we need to ask cannot be read, or makes no sense.
    #[error("{file}: {cause}")]
    Access {
        /// Which file, or which variable.
        file: Box<str>,
        /// What is wrong with it.
        cause: Box<str>,
    },
    /// No connection, or one that broke.
    #[error("{address}: {cause}")]
    Connection {
        /// The API's host and port.
        address: Box<str>,
        /// What the system, TLS or HTTP says.
        cause: Box<str>,
    },
    /// Nothing came for this long.
    #[error("nothing came for {} s", .0.as_secs())]
    Silent(Duration),
    /// Something comes, but is not whole after this long.
    #[error("a reply is not whole after {} s", .0.as_secs())]
    Slow(Duration),
    /// What was heard last is too old for the API to go on from; all is listed again.
    #[error("the API has forgotten what was heard last: {0}")]
    Expired(Box<str>),
    /// Older things after newer ones; all is listed again.
    #[error("version {0} after {1}")]
    Disorder(Box<str>, Box<str>),
    /// What came is no reply of an API.
    #[error("the reply makes no sense: {0}")]
    Nonsense(Box<str>),
}
