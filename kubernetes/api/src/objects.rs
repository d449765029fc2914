//! What is kept of an object: the fields that an answer is made of, and no other.
//!
//! Names are as the API gives them, which makes them lower-case. An address or a port that makes no sense is left out of its
//! object; an object without a name is left out whole.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// What is followed, each in a stream of its own.
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
    /// Every kind, in the order of `as usize`. A new one goes last, for snapshots have these numbers; eight find room in an index.
    pub const ALL: [Self; 5] = [Self::Service, Self::Slice, Self::Namespace, Self::Pod, Self::ServiceImport];

    /// As the API and its roles call it.
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
    /// Some endpoints of a service.
    Slice(Slice),
    /// A namespace, by its name alone.
    Namespace(Box<str>),
    /// A pod.
    Pod(Pod),
    /// A service of a set of clusters.
    ServiceImport(ServiceImport),
}

impl Object {
    /// Its kind.
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

/// What tells objects of a kind apart. An object shares it with the tables that lead to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Empty for a namespace.
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

/// A name for endpoints, or for another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub key: Arc<ObjectKey>,
    /// What its name leads to.
    pub target: Target,
    /// In the API's order; several may lack a name, or bear the same.
    pub ports: Box<[Port]>,
    /// `spec.externalIPs`, then what the load balancer's status says.
    pub external: Box<[ExternalAddress]>,
}

/// What a service's name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `spec.clusterIPs`, of one family or both; none while they are not assigned.
    ClusterIps(Box<[IpAddr]>),
    /// Its ready endpoints: `clusterIP: None`, or an import of type Headless.
    Headless,
    /// `type: ExternalName`. As it stands there: it may be an address, or no name at all.
    ExternalName(Box<str>),
}

/// Where a service is reached from outside.
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
    /// Empty where it has none.
    pub name: Box<str>,
    /// What the API has by default is TCP.
    pub protocol: Protocol,
    /// `None`: endpoints without one, which means all of them. Such a port answers by address, never as SRV.
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

/// The ready endpoints of an EndpointSlice, at most 1,000 by the API's own bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Namespace and name.
    pub key: Arc<ObjectKey>,
    /// Label `kubernetes.io/service-name`: the service in its namespace. Empty where it has none.
    pub service: Box<str>,
    /// Labels `multicluster.kubernetes.io/service-name` and `source-cluster`; only where imports are followed.
    pub import: Option<Box<Imported>>,
    /// One for each address of each endpoint that is ready (`conditions.ready` is true or not known).
    pub endpoints: Box<[Endpoint]>,
    /// The ports of each endpoint; empty where the slice has none.
    pub ports: Box<[Port]>,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`: when what changed it did, for
    /// `dns_programming_duration_seconds`.
    pub changed: Option<SinceEpoch>,
}

/// A slice that another cluster exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The import in the slice's namespace.
    pub service: Box<str>,
    /// The cluster that it comes from.
    pub cluster: Box<str>,
}

/// An address of a ready endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Of the family that its slice has.
    pub address: IpAddr,
    /// Its own label below the service's name.
    pub hostname: Option<Box<str>>,
    /// The pod's name (`targetRef.name`), shorter than 64 octets; only with [`Wants::pod_names`](crate::Wants).
    pub pod: Option<Box<str>>,
    /// In lower case; only with [`Wants::zones`](crate::Wants). Endpoints of a zone share it.
    pub zone: Option<Arc<str>>,
}

/// A pod that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: Arc<ObjectKey>,
    /// `status.podIPs`, of one family or both; none while they are not assigned.
    pub addresses: Box<[IpAddr]>,
    /// Its addresses are its node's, and other pods' as well.
    pub host_network: bool,
    /// Phase Running.
    pub running: bool,
    /// It has a `deletionTimestamp`: its addresses are its own until it is deleted.
    pub terminating: bool,
    /// Those of [`Wants::pod_labels`](crate::Wants) that it has, by key.
    pub labels: Box<[(Box<str>, Box<str>)]>,
}

/// A service of a set of clusters (KEP-1645).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceImport {
    /// Namespace and name.
    pub key: Arc<ObjectKey>,
    /// The clusterset's addresses, or headless; never a name.
    pub target: Target,
    /// In the API's order.
    pub ports: Box<[Port]>,
}

/// Wall time, as the cluster's machines write it, since 1970. Another machine's clock: never a deadline of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SinceEpoch(pub Duration);

/// Endpoints of a slice: as the API has it.
pub const MOST_ENDPOINTS: usize = 1_000;
/// Addresses of an endpoint, of a pod, and of a service in its cluster; the API has 100, 2 and 2.
pub const MOST_ADDRESSES: usize = 100;
/// Of everything else that an object has several of; the API lets a slice have 20,000 ports.
pub const MOST_PARTS: usize = 32_768;
/// Zones whose names endpoints share: a cluster has a handful; beyond these each endpoint has its own text.
pub const MOST_ZONES: usize = 64;
/// Octets of a name in the API.
pub(crate) const MOST_NAME: usize = 253;
