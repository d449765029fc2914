//! Compact records of objects: only the fields that answers need.
//!
//! Names are as the API sends them, in lower case. Invalid addresses and ports are skipped; an
//! object without a name is skipped as a whole.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Kind of a watched object; each has a watch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `services`, v1.
    Service,
    /// `endpointslices` of discovery.k8s.io/v1.
    Slice,
    /// `namespaces`, v1.
    Namespace,
    /// `pods`, v1.
    Pod,
    /// `serviceimports` of multicluster.x-k8s.io.
    ServiceImport,
}

impl Kind {
    /// All kinds, in the order of `as usize`. Append new ones, since snapshots contain these
    /// numbers; an index supports 8.
    pub const ALL: [Self; 5] = [Self::Service, Self::Slice, Self::Namespace, Self::Pod, Self::ServiceImport];

    /// Resource name in the API and in RBAC rules.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::Slice => "endpointslices",
            Self::Namespace => "namespaces",
            Self::Pod => "pods",
            Self::ServiceImport => "serviceimports",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource())
    }
}

/// An object of one of the kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A service.
    Service(Service),
    /// An EndpointSlice: some endpoints of a service.
    Slice(Slice),
    /// A namespace, by its name alone.
    Namespace(Box<str>),
    /// A pod.
    Pod(Pod),
    /// A service of a set of clusters.
    ServiceImport(ServiceImport),
}

impl Object {
    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::Slice(_) => Kind::Slice,
            Self::Namespace(_) => Kind::Namespace,
            Self::Pod(_) => Kind::Pod,
            Self::ServiceImport(_) => Kind::ServiceImport,
        }
    }
}

/// Namespace and name, unique within a kind. Shared by an object and the tables that refer to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Empty if the object is itself a Namespace.
    pub namespace: Box<str>,
    /// Unique in its namespace.
    pub name: Box<str>,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub key: Arc<ObjectKey>,
    /// What its name resolves to.
    pub target: Target,
    /// In the order of the API; names may be empty or duplicate.
    pub ports: Box<[Port]>,
    /// `spec.externalIPs`, then the ingress points of the load balancer status.
    pub external: Box<[ExternalAddress]>,
}

/// What a service's name resolves to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `spec.clusterIPs`, of one family or both; none while they are not assigned.
    ClusterIps(Box<[IpAddr]>),
    /// Ready endpoints: `clusterIP: None`, or an import of type Headless.
    Headless,
    /// `type: ExternalName`. Not validated: it may be an address or not a name.
    ExternalName(Box<str>),
}

/// An external address of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExternalAddress {
    /// An address.
    Ip(IpAddr),
    /// A load balancer's host name.
    Name(Box<str>),
}

/// A port of a service or of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Empty if the port has no name.
    pub name: Box<str>,
    /// TCP by default.
    pub protocol: Protocol,
    /// `None` for endpoints means all ports. Such a port has address records, but no SRV record.
    pub port: Option<u16>,
}

/// A port's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// `_tcp`
    Tcp,
    /// `_udp`
    Udp,
    /// `_sctp`
    Sctp,
}

/// The ready endpoints of an EndpointSlice, at most 1,000 (limit of the API).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Namespace and name.
    pub key: Arc<ObjectKey>,
    /// Label `kubernetes.io/service-name`: the service in its namespace. Empty if it has none.
    pub service: Box<str>,
    /// Labels `multicluster.kubernetes.io/service-name` and `source-cluster`; only if imports are
    /// watched.
    pub import: Option<Box<Imported>>,
    /// One element for each address of each endpoint that is ready (`conditions.ready` is true or
    /// absent).
    pub endpoints: Box<[Endpoint]>,
    /// The ports of each endpoint; empty where the slice has none.
    pub ports: Box<[Port]>,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`: time of the change that
    /// caused this version, for `dns_programming_duration_seconds`.
    pub changed: Option<SinceEpoch>,
}

/// A slice that another cluster exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The ServiceImport in the namespace of the slice.
    pub service: Box<str>,
    /// The source cluster.
    pub cluster: Box<str>,
}

/// An address of a ready endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address, of the slice's address family.
    pub address: IpAddr,
    /// The endpoint's own label below the service's name.
    pub hostname: Option<Box<str>>,
    /// The pod's name (`targetRef.name`), at most 63 bytes; only with
    /// [`WatchConfig::pod_names`](crate::WatchConfig).
    pub pod: Option<Box<str>>,
    /// Topology zone in lower case; only with [`WatchConfig::zones`](crate::WatchConfig). Shared by
    /// the endpoints of a zone.
    pub zone: Option<Arc<str>>,
}

/// A pod that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: Arc<ObjectKey>,
    /// `status.podIPs`, of one family or both; none while they are not assigned.
    pub addresses: Box<[IpAddr]>,
    /// Whether the pod shares the addresses of its node.
    pub host_network: bool,
    /// Whether its phase is Running.
    pub running: bool,
    /// Whether the pod has a `deletionTimestamp`; the pod keeps its addresses until it is deleted.
    pub terminating: bool,
    /// The labels selected by [`PodWatch::labels`](crate::PodWatch), by key.
    pub labels: Box<[(Box<str>, Box<str>)]>,
}

/// A service of a set of clusters (KEP-1645).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceImport {
    /// Namespace and name.
    pub key: Arc<ObjectKey>,
    /// Addresses of the clusterset, or headless; never a name.
    pub target: Target,
    /// In the API's order.
    pub ports: Box<[Port]>,
}

/// Wall-clock time since 1970 by the clock of another machine: not for deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SinceEpoch(pub Duration);

/// Maximum endpoints of a slice (limit of the API).
pub const MAX_ENDPOINTS: usize = 1_000;
/// Maximum addresses of an endpoint, a pod, and a service; the limits of the API are 100, 2 and 2.
pub const MAX_ADDRESSES: usize = 100;
/// Maximum elements of every other list of an object; the API allows 20,000 ports of a slice.
pub const MAX_PARTS: usize = 32_768;
/// Maximum number of zone names that endpoints share; with more zones, endpoints have copies.
pub const MAX_ZONES: usize = 64;
/// Maximum length of a name in the API.
pub(crate) const MAX_NAME_BYTES: usize = 253;
