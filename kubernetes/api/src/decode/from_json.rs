//! Objects in JSON, where a server has no other form: custom resources, and servers that are not Kubernetes's own.
//!
//! Each field may be missing, or null: Go writes empty lists so.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::objects::{Kind, MOST_ADDRESSES, MOST_ENDPOINTS, MOST_PARTS};

use super::borrowed::{
    EndpointView, ImportView, Meta, PodView, PortView, ServiceView, SliceView, Text, View, address,
};
use super::{Malformed, Status};

#[derive(Deserialize)]
struct Any<'a> {
    #[serde(borrow)]
    metadata: Option<Metadata<'a>>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    endpoints: Option<&'a RawValue>,
    #[serde(borrow)]
    ports: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Word<'a>,
    #[serde(borrow)]
    namespace: Word<'a>,
    #[serde(borrow)]
    resource_version: Word<'a>,
    #[serde(borrow)]
    deletion_timestamp: Word<'a>,
    #[serde(borrow)]
    labels: Option<Pairs<'a>>,
    #[serde(borrow)]
    annotations: Option<Pairs<'a>>,
    /// A list's own.
    #[serde(rename = "continue", borrow)]
    next: Word<'a>,
}

/// A text, or null.
#[derive(Default)]
struct Word<'a>(Text<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Word<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Inner<'a>(#[serde(borrow)] Text<'a>);
        Ok(Self(Option::<Inner<'de>>::deserialize(deserializer)?.map_or(Cow::Borrowed(""), |inner| inner.0)))
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(rename = "type", borrow)]
    kind: Word<'a>,
    #[serde(rename = "clusterIP", borrow)]
    cluster_ip: Word<'a>,
    #[serde(rename = "clusterIPs", borrow)]
    cluster_ips: Option<Few<Word<'a>, MOST_ADDRESSES>>,
    #[serde(rename = "externalIPs", borrow)]
    external_ips: Option<Few<Word<'a>, MOST_PARTS>>,
    #[serde(borrow)]
    external_name: Word<'a>,
    #[serde(borrow)]
    ports: Option<Few<PortOf<'a>, MOST_PARTS>>,
    host_network: Option<bool>,
    #[serde(borrow)]
    ips: Option<Few<Word<'a>, MOST_PARTS>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StatusOf<'a> {
    #[serde(borrow)]
    load_balancer: Option<Balancer<'a>>,
    #[serde(borrow)]
    phase: Word<'a>,
    #[serde(rename = "podIPs", borrow)]
    pod_ips: Option<Few<Address<'a>, MOST_ADDRESSES>>,
}

#[derive(Deserialize)]
struct Balancer<'a> {
    #[serde(borrow)]
    ingress: Option<Few<Address<'a>, MOST_PARTS>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address<'a> {
    #[serde(borrow)]
    ip: Word<'a>,
    #[serde(borrow)]
    hostname: Word<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PortOf<'a> {
    #[serde(borrow)]
    name: Word<'a>,
    #[serde(borrow)]
    protocol: Word<'a>,
    port: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EndpointOf<'a> {
    #[serde(borrow)]
    addresses: Option<Few<Word<'a>, MOST_ADDRESSES>>,
    conditions: Option<Conditions>,
    #[serde(borrow)]
    hostname: Word<'a>,
    #[serde(borrow)]
    target_ref: Option<Reference<'a>>,
    #[serde(borrow)]
    zone: Word<'a>,
}

#[derive(Deserialize)]
struct Conditions {
    ready: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Reference<'a> {
    #[serde(borrow)]
    name: Word<'a>,
}

/// A list of at most so many.
struct Few<T, const MOST: usize>(Vec<T>);

impl<T, const MOST: usize> Default for Few<T, MOST> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Few<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FewOf(PhantomData))
    }
}

struct FewOf<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for FewOf<T, MOST> {
    type Value = Few<T, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MOST}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut few = Vec::new();
        while let Some(item) = items.next_element()? {
            if few.len() >= MOST {
                return Err(A::Error::custom(Malformed::TooMany(MOST)));
            }
            few.push(item);
        }
        Ok(Few(few))
    }
}

/// Labels or annotations; an object has no more of them than of other parts.
#[derive(Default)]
struct Pairs<'a>(Vec<(Text<'a>, Text<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsOf<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for PairsOf<'a> {
            type Value = Pairs<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("texts by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((Word(name), Word(value))) = map.next_entry()? {
                    if pairs.len() >= MOST_PARTS {
                        return Err(A::Error::custom(Malformed::TooMany(MOST_PARTS)));
                    }
                    pairs.push((name, value));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsOf(PhantomData))
    }
}

/// An object, whatever its kind.
pub(super) fn object(kind: Kind, text: &str) -> Result<(Meta<'_>, View<'_>), Malformed> {
    let any: Any<'_> = read(text)?;
    let metadata = any.metadata.unwrap_or_default();
    let spec = || part::<Spec<'_>>(any.spec);
    let status = || part::<StatusOf<'_>>(any.status);
    let view = match kind {
        Kind::Service => View::Service(service(spec()?, status()?)),
        Kind::Slice => {
            let endpoints =
                part::<Option<Few<EndpointOf<'_>, MOST_ENDPOINTS>>>(any.endpoints)?.unwrap_or_default();
            let ports = part::<Option<Few<PortOf<'_>, MOST_PARTS>>>(any.ports)?;
            let mut addresses = Vec::new();
            let endpoints = endpoints.0.into_iter().map(|of| endpoint(of, &mut addresses)).collect();
            View::Slice(SliceView { endpoints, addresses, ports: self::ports(ports) })
        }
        Kind::Namespace => View::Namespace,
        Kind::Pod => View::Pod(pod(&spec()?, status()?)),
        Kind::ServiceImport => {
            let spec = spec()?;
            View::ServiceImport(ImportView {
                kind: spec.kind.0,
                ips: words(spec.ips),
                ports: ports(spec.ports),
            })
        }
    };
    Ok((meta(metadata), view))
}

/// Namespace and name of an object that cannot be read, as far as they can.
pub(super) fn name(text: &str) -> (Text<'_>, Text<'_>) {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Named<'a> {
        #[serde(borrow)]
        metadata: Option<Names<'a>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Names<'a> {
        #[serde(borrow)]
        namespace: Word<'a>,
        #[serde(borrow)]
        name: Word<'a>,
    }
    let names = read::<Named<'_>>(text).ok().and_then(|named| named.metadata).unwrap_or_default();
    (names.namespace.0, names.name.0)
}

fn meta(metadata: Metadata<'_>) -> Meta<'_> {
    Meta {
        name: metadata.name.0,
        namespace: metadata.namespace.0,
        version: metadata.resource_version.0,
        terminating: !metadata.deletion_timestamp.0.is_empty(),
        labels: metadata.labels.unwrap_or_default().0,
        annotations: metadata.annotations.unwrap_or_default().0,
    }
}

fn service<'a>(spec: Spec<'a>, status: StatusOf<'a>) -> ServiceView<'a> {
    let ingress = status.load_balancer.and_then(|balancer| balancer.ingress).unwrap_or_default();
    ServiceView {
        kind: spec.kind.0,
        cluster_ip: spec.cluster_ip.0,
        cluster_ips: words(spec.cluster_ips),
        external_name: spec.external_name.0,
        external_ips: words(spec.external_ips),
        ingress: ingress.0.into_iter().map(|ingress| (ingress.ip.0, ingress.hostname.0)).collect(),
        ports: ports(spec.ports),
    }
}

fn endpoint<'a>(endpoint: EndpointOf<'a>, addresses: &mut Vec<IpAddr>) -> EndpointView<'a> {
    let start = addresses.len();
    addresses.extend(words(endpoint.addresses).iter().filter_map(|text| address(text)));
    EndpointView {
        addresses: start..addresses.len(),
        ready: endpoint.conditions.and_then(|conditions| conditions.ready),
        hostname: endpoint.hostname.0,
        pod: endpoint.target_ref.unwrap_or_default().name.0,
        zone: endpoint.zone.0,
    }
}

fn pod<'a>(spec: &Spec<'a>, status: StatusOf<'a>) -> PodView<'a> {
    PodView {
        phase: status.phase.0,
        addresses: status.pod_ips.unwrap_or_default().0.into_iter().map(|address| address.ip.0).collect(),
        host_network: spec.host_network.unwrap_or_default(),
    }
}

fn ports(ports: Option<Few<PortOf<'_>, MOST_PARTS>>) -> Vec<PortView<'_>> {
    let ports = ports.unwrap_or_default().0.into_iter();
    ports.map(|port| PortView { name: port.name.0, protocol: port.protocol.0, port: port.port }).collect()
}

fn words<const MOST: usize>(words: Option<Few<Word<'_>, MOST>>) -> Vec<Text<'_>> {
    words.unwrap_or_default().0.into_iter().map(|word| word.0).collect()
}

fn part<'a, T: Default + Deserialize<'a>>(part: Option<&'a RawValue>) -> Result<T, Malformed> {
    part.map_or_else(|| Ok(T::default()), |part| Ok(read::<Option<T>>(part.get())?.unwrap_or_default()))
}

/// What a line of a watch says: the event's type, and the object.
pub(super) fn event(line: &str) -> Result<(Text<'_>, &str), Malformed> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(rename = "type", borrow)]
        kind: Word<'a>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let event: Event<'_> = read(line)?;
    Ok((event.kind.0, event.object.get()))
}

/// A failure as the API tells it.
pub(super) fn status(text: &str) -> Result<Status, Malformed> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Failure {
        message: Option<Box<str>>,
        reason: Option<Box<str>>,
        code: Option<u16>,
        details: Option<Details>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Details {
        causes: Option<Few<Cause, MOST_ADDRESSES>>,
        retry_after_seconds: Option<u64>,
    }
    #[derive(Deserialize)]
    struct Cause {
        reason: Option<Box<str>>,
    }
    let failure: Failure = read(text)?;
    let details = failure.details.unwrap_or_default();
    Ok(Status {
        code: failure.code.unwrap_or_default(),
        reason: failure.reason.unwrap_or_default(),
        message: failure.message.unwrap_or_default(),
        causes: details.causes.unwrap_or_default().0.into_iter().filter_map(|cause| cause.reason).collect(),
        retry_after_s: details.retry_after_seconds.unwrap_or_default(),
    })
}

/// A page of a list: its resource version and the token for the next, when `item` has been called for each object's text.
pub(super) fn list<'a>(
    page: &'a str,
    mut item: impl FnMut(&'a str),
) -> Result<(Text<'a>, Text<'a>), Malformed> {
    let mut deserializer = serde_json::Deserializer::from_str(page);
    let metadata = List { item: &mut item }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((metadata.resource_version.0, metadata.next.0))
}

/// Hands items on as they are met, and keeps none.
struct List<'f, F> {
    item: &'f mut F,
}

impl<'de, F: FnMut(&'de str)> DeserializeSeed<'de> for List<'_, F> {
    type Value = Metadata<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(&'de str)> Visitor<'de> for List<'_, F> {
    type Value = Metadata<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of the API")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = Metadata::default();
        while let Some(Word(key)) = map.next_key()? {
            match &*key {
                "metadata" => metadata = map.next_value::<Option<_>>()?.unwrap_or_default(),
                "items" => map.next_value_seed(Items { item: &mut *self.item })?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(metadata)
    }
}

struct Items<'f, F> {
    item: &'f mut F,
}

impl<'de, F: FnMut(&'de str)> DeserializeSeed<'de> for Items<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(&'de str)> Visitor<'de> for Items<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("items, or null")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element::<&'de RawValue>()? {
            (self.item)(item.get());
        }
        Ok(())
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Malformed> {
    Ok(serde_json::from_str(text)?)
}
