//! An object as it was read, before what is kept of it is made: borrowed, from either form.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use crate::objects::{
    Endpoint, ExternalAddress, Imported, Kind, MOST_NAME, MOST_ZONES, Object, ObjectKey, Pod, Port, Protocol,
    Service, ServiceImport, Slice, Target,
};
use crate::settings::Wants;

use super::{Malformed, time};

pub(super) type Text<'a> = Cow<'a, str>;

/// What every object has.
#[derive(Debug, Default)]
pub(super) struct Meta<'a> {
    pub(super) name: Text<'a>,
    pub(super) namespace: Text<'a>,
    pub(super) version: Text<'a>,
    pub(super) terminating: bool,
    pub(super) labels: Vec<(Text<'a>, Text<'a>)>,
    pub(super) annotations: Vec<(Text<'a>, Text<'a>)>,
}

#[derive(Debug, Default)]
pub(super) struct ServiceView<'a> {
    pub(super) kind: Text<'a>,
    pub(super) cluster_ip: Text<'a>,
    pub(super) cluster_ips: Vec<Text<'a>>,
    pub(super) external_name: Text<'a>,
    pub(super) external_ips: Vec<Text<'a>>,
    /// Address and host name of each.
    pub(super) ingress: Vec<(Text<'a>, Text<'a>)>,
    pub(super) ports: Vec<PortView<'a>>,
}

#[derive(Debug, Default)]
pub(super) struct PortView<'a> {
    pub(super) name: Text<'a>,
    pub(super) protocol: Text<'a>,
    pub(super) port: Option<i64>,
}

#[derive(Debug, Default)]
pub(super) struct SliceView<'a> {
    pub(super) endpoints: Vec<EndpointView<'a>>,
    /// Those of all endpoints, one endpoint's after the other's.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ports: Vec<PortView<'a>>,
}

#[derive(Debug, Default)]
pub(super) struct EndpointView<'a> {
    /// Which of its slice's are its own.
    pub(super) addresses: Range<usize>,
    pub(super) ready: Option<bool>,
    pub(super) hostname: Text<'a>,
    pub(super) pod: Text<'a>,
    pub(super) zone: Text<'a>,
}

#[derive(Debug, Default)]
pub(super) struct PodView<'a> {
    pub(super) phase: Text<'a>,
    pub(super) addresses: Vec<Text<'a>>,
    pub(super) host_network: bool,
}

#[derive(Debug, Default)]
pub(super) struct ImportView<'a> {
    pub(super) kind: Text<'a>,
    pub(super) ips: Vec<Text<'a>>,
    pub(super) ports: Vec<PortView<'a>>,
}

/// Any of them.
#[derive(Debug)]
pub(super) enum View<'a> {
    Service(ServiceView<'a>),
    Slice(SliceView<'a>),
    Namespace,
    Pod(PodView<'a>),
    ServiceImport(ImportView<'a>),
}

impl View<'_> {
    /// Whether it is a pod that has ended: its addresses are other pods' by now.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Self::Pod(pod) if matches!(&*pod.phase, "Succeeded" | "Failed" | "Unknown"))
    }

    pub(super) fn empty(kind: Kind) -> Self {
        match kind {
            Kind::Service => Self::Service(ServiceView::default()),
            Kind::Slice => Self::Slice(SliceView::default()),
            Kind::Namespace => Self::Namespace,
            Kind::Pod => Self::Pod(PodView::default()),
            Kind::ServiceImport => Self::ServiceImport(ImportView::default()),
        }
    }
}

impl Meta<'_> {
    /// What tells it apart.
    ///
    /// # Errors
    /// If it has no name, or no namespace where it needs one, or longer ones than there are.
    pub(super) fn key(&self, kind: Kind) -> Result<ObjectKey, Malformed> {
        let is_within = kind != Kind::Namespace;
        let namespace: &str = if is_within { &self.namespace } else { "" };
        if self.name.is_empty() || is_within && namespace.is_empty() {
            return Err(Malformed::Nameless);
        }
        if self.name.len() > MOST_NAME || namespace.len() > MOST_NAME {
            return Err(Malformed::LongName(MOST_NAME));
        }
        Ok(ObjectKey { namespace: namespace.into(), name: (*self.name).into() })
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        value(&self.annotations, name)
    }
}

/// Makes records of what was read.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    /// The zones that endpoints share.
    zones: Vec<Arc<str>>,
}

impl Recorder {
    /// What is kept of an object.
    ///
    /// # Errors
    /// As [`Meta::key`].
    pub(super) fn record(
        &mut self,
        meta: &Meta<'_>,
        view: View<'_>,
        wants: &Wants,
    ) -> Result<Object, Malformed> {
        let kind = match &view {
            View::Service(_) => Kind::Service,
            View::Slice(_) => Kind::Slice,
            View::Namespace => Kind::Namespace,
            View::Pod(_) => Kind::Pod,
            View::ServiceImport(_) => Kind::ServiceImport,
        };
        let key = Arc::new(meta.key(kind)?);
        Ok(match view {
            View::Service(view) => Object::Service(service(key, view)),
            View::Slice(view) => Object::Slice(self.slice(key, meta, view, wants)),
            View::Namespace => Object::Namespace(key.name.clone()),
            View::Pod(view) => Object::Pod(pod(key, meta, &view, wants)),
            View::ServiceImport(view) => Object::ServiceImport(import(key, view)),
        })
    }

    fn slice(&mut self, key: Arc<ObjectKey>, meta: &Meta<'_>, view: SliceView<'_>, wants: &Wants) -> Slice {
        let label = |name| value(&meta.labels, name).unwrap_or_default();
        let import = || {
            Some(Box::new(Imported {
                service: value(&meta.labels, IMPORT_NAME)?.into(),
                cluster: label(IMPORT_CLUSTER).into(),
            }))
        };
        let mut endpoints = Vec::with_capacity(view.addresses.len());
        for endpoint in view.endpoints.iter().filter(|endpoint| endpoint.ready != Some(false)) {
            let Some((first, others)) = view.addresses[endpoint.addresses.clone()].split_first() else {
                continue;
            };
            let of_first = Endpoint {
                address: *first,
                hostname: label_of(&endpoint.hostname),
                pod: if wants.pod_names { label_of(&endpoint.pod) } else { None },
                zone: if wants.zones { self.zone(&endpoint.zone) } else { None },
            };
            // Each address has its own copy; nearly all endpoints have one.
            let of_other = |address: &IpAddr| Endpoint { address: *address, ..of_first.clone() };
            let of_others: Vec<_> = others.iter().map(of_other).collect();
            endpoints.push(of_first);
            endpoints.extend(of_others);
        }
        Slice {
            key,
            service: label(SERVICE_NAME).into(),
            import: if wants.imports { import() } else { None },
            endpoints: endpoints.into(),
            ports: ports(&view.ports),
            changed: meta.annotation(CHANGED).and_then(time::parse),
        }
    }

    /// The zone in lower case, shared with others of it.
    fn zone(&mut self, zone: &str) -> Option<Arc<str>> {
        if zone.is_empty() || zone.len() > MOST_NAME {
            return None;
        }
        if let Some(known) = self.zones.iter().find(|known| known.eq_ignore_ascii_case(zone)) {
            return Some(known.clone());
        }
        let new: Arc<str> = zone.to_ascii_lowercase().into();
        if self.zones.len() < MOST_ZONES {
            self.zones.push(new.clone());
        }
        Some(new)
    }
}

fn service(key: Arc<ObjectKey>, view: ServiceView<'_>) -> Service {
    let given = if view.cluster_ips.is_empty() { vec![view.cluster_ip] } else { view.cluster_ips };
    let target = if view.kind == "ExternalName" {
        Target::ExternalName((*view.external_name).into())
    } else if given.first().is_some_and(|first| first == "None") {
        Target::Headless
    } else {
        Target::ClusterIps(addresses(&given))
    };
    let external = view.external_ips.iter().filter_map(|ip| Some(ExternalAddress::Ip(address(ip)?)));
    let ingress = view.ingress.iter().filter_map(|(ip, name)| match (address(ip), text(name)) {
        (Some(ip), _) => Some(ExternalAddress::Ip(ip)),
        (None, Some(name)) if ip.is_empty() => Some(ExternalAddress::Name(name)),
        (None, _) => None,
    });
    Service { key, target, ports: ports(&view.ports), external: external.chain(ingress).collect() }
}

fn pod(key: Arc<ObjectKey>, meta: &Meta<'_>, view: &PodView<'_>, wants: &Wants) -> Pod {
    let keep = wants.pods.as_ref().map_or(&[][..], |pods| &pods.labels);
    let mut labels: Vec<_> = meta
        .labels
        .iter()
        .filter(|(name, _)| keep.iter().any(|keep| **keep == **name))
        .map(|(name, value)| ((**name).into(), (**value).into()))
        .collect();
    labels.sort_unstable();
    Pod {
        key,
        addresses: addresses(&view.addresses),
        host_network: view.host_network,
        running: view.phase == "Running",
        terminating: meta.terminating,
        labels: labels.into(),
    }
}

fn import(key: Arc<ObjectKey>, view: ImportView<'_>) -> ServiceImport {
    let headless = view.kind == "Headless";
    let target = if headless { Target::Headless } else { Target::ClusterIps(addresses(&view.ips)) };
    ServiceImport { key, target, ports: ports(&view.ports) }
}

/// A port with a number or a protocol that is none is left out.
fn ports(views: &[PortView<'_>]) -> Box<[Port]> {
    let port = |view: &PortView<'_>| {
        let protocol = match &*view.protocol {
            "TCP" | "" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            "SCTP" => Protocol::Sctp,
            _ => return None,
        };
        let port = match view.port {
            None => None,
            Some(number) => Some(u16::try_from(number).ok().filter(|port| *port != 0)?),
        };
        Some(Port { name: (*view.name).into(), protocol, port })
    };
    kept(views.len(), views.iter().filter_map(port))
}

fn addresses(texts: &[Text<'_>]) -> Box<[IpAddr]> {
    kept(texts.len(), texts.iter().filter_map(|text| address(text)))
}

/// What is kept of so many parts: nearly always all, so that room is made once.
fn kept<T>(count: usize, parts: impl Iterator<Item = T>) -> Box<[T]> {
    let mut kept = Vec::with_capacity(count);
    kept.extend(parts);
    kept.into()
}

pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|address: IpAddr| address.to_canonical())
}

fn text(text: &str) -> Option<Box<str>> {
    (!text.is_empty()).then(|| text.into())
}

/// What can be a label of a name: any other text names nothing.
fn label_of(text: &str) -> Option<Box<str>> {
    (1..=63).contains(&text.len()).then(|| text.into())
}

fn value<'a>(pairs: &'a [(Text<'_>, Text<'_>)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
}

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const IMPORT_NAME: &str = "multicluster.kubernetes.io/service-name";
const IMPORT_CLUSTER: &str = "multicluster.kubernetes.io/source-cluster";
const CHANGED: &str = "endpoints.kubernetes.io/last-change-trigger-time";
