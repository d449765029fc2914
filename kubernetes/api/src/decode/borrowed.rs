//! Decoded objects that borrow from the input, and their conversion to records.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use crate::objects::{
    Endpoint, ExternalAddress, Imported, Kind, MAX_NAME_BYTES, MAX_ZONES, Object, ObjectKey, Pod, Port,
    Protocol, Service, ServiceImport, Slice, Target,
};
use crate::settings::WatchConfig;

use super::{Malformed, time};

pub(super) type Text<'a> = Cow<'a, str>;

/// Metadata of an object.
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
    /// Address and host name of each ingress point.
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
    /// The concatenated addresses of all endpoints.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ports: Vec<PortView<'a>>,
}

#[derive(Debug, Default)]
pub(super) struct EndpointView<'a> {
    /// Range of the endpoint's addresses in [`SliceView::addresses`].
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

/// An object of any kind.
#[derive(Debug)]
pub(super) enum View<'a> {
    Service(ServiceView<'a>),
    Slice(SliceView<'a>),
    Namespace,
    Pod(PodView<'a>),
    ServiceImport(ImportView<'a>),
}

impl View<'_> {
    /// Whether the object is a pod that has ended: the pod's addresses may belong to other pods.
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
    /// Returns the key.
    ///
    /// # Errors
    /// If name or namespace is missing or too long.
    pub(super) fn key(&self, kind: Kind) -> Result<ObjectKey, Malformed> {
        let is_within = kind != Kind::Namespace;
        let namespace: &str = if is_within { &self.namespace } else { "" };
        if self.name.is_empty() || is_within && namespace.is_empty() {
            return Err(Malformed::Nameless);
        }
        if self.name.len() > MAX_NAME_BYTES || namespace.len() > MAX_NAME_BYTES {
            return Err(Malformed::LongName(MAX_NAME_BYTES));
        }
        Ok(ObjectKey { namespace: namespace.into(), name: (*self.name).into() })
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        value(&self.annotations, name)
    }
}

/// Converts decoded objects to records.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    /// Zone names shared by endpoints.
    zones: Vec<Arc<str>>,
}

impl Recorder {
    /// Returns the record of an object.
    ///
    /// # Errors
    /// As [`Meta::key`].
    pub(super) fn record(
        &mut self,
        meta: &Meta<'_>,
        view: View<'_>,
        wants: &WatchConfig,
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

    fn slice(
        &mut self,
        key: Arc<ObjectKey>,
        meta: &Meta<'_>,
        view: SliceView<'_>,
        wants: &WatchConfig,
    ) -> Slice {
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
            // Each address gets a record; nearly all endpoints have one address.
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

    /// Returns the shared lower-case name of a zone.
    fn zone(&mut self, zone: &str) -> Option<Arc<str>> {
        if zone.is_empty() || zone.len() > MAX_NAME_BYTES {
            return None;
        }
        if let Some(known) = self.zones.iter().find(|known| known.eq_ignore_ascii_case(zone)) {
            return Some(known.clone());
        }
        let new: Arc<str> = zone.to_ascii_lowercase().into();
        if self.zones.len() < MAX_ZONES {
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

fn pod(key: Arc<ObjectKey>, meta: &Meta<'_>, view: &PodView<'_>, wants: &WatchConfig) -> Pod {
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

/// Converts ports; ports with an invalid number or protocol are skipped.
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
    collect_exact(views.len(), views.iter().filter_map(port))
}

fn addresses(texts: &[Text<'_>]) -> Box<[IpAddr]> {
    collect_exact(texts.len(), texts.iter().filter_map(|text| address(text)))
}

/// Collects with the capacity `count`: nearly always all elements are valid.
fn collect_exact<T>(count: usize, parts: impl Iterator<Item = T>) -> Box<[T]> {
    let mut all = Vec::with_capacity(count);
    all.extend(parts);
    all.into()
}

pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|address: IpAddr| address.to_canonical())
}

fn text(text: &str) -> Option<Box<str>> {
    (!text.is_empty()).then(|| text.into())
}

/// Returns the text if it has the length of a DNS label.
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
