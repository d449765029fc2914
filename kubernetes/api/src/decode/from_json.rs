//! Decodes JSON, for custom resources and for API servers without protobuf.
//!
//! Each field may be missing or null, as Go writes empty lists.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::objects::{Kind, MAX_ADDRESSES, MAX_ENDPOINTS, MAX_PARTS};

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
    name: TextOrNull<'a>,
    #[serde(borrow)]
    namespace: TextOrNull<'a>,
    #[serde(borrow)]
    resource_version: TextOrNull<'a>,
    #[serde(borrow)]
    deletion_timestamp: TextOrNull<'a>,
    #[serde(borrow)]
    labels: Option<Pairs<'a>>,
    #[serde(borrow)]
    annotations: Option<Pairs<'a>>,
    /// Set in lists only.
    #[serde(rename = "continue", borrow)]
    next: TextOrNull<'a>,
}

/// A text or null.
#[derive(Default)]
struct TextOrNull<'a>(Text<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for TextOrNull<'a> {
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
    kind: TextOrNull<'a>,
    #[serde(rename = "clusterIP", borrow)]
    cluster_ip: TextOrNull<'a>,
    #[serde(rename = "clusterIPs", borrow)]
    cluster_ips: Option<BoundedVec<TextOrNull<'a>, MAX_ADDRESSES>>,
    #[serde(rename = "externalIPs", borrow)]
    external_ips: Option<BoundedVec<TextOrNull<'a>, MAX_PARTS>>,
    #[serde(borrow)]
    external_name: TextOrNull<'a>,
    #[serde(borrow)]
    ports: Option<BoundedVec<PortOf<'a>, MAX_PARTS>>,
    host_network: Option<bool>,
    #[serde(borrow)]
    ips: Option<BoundedVec<TextOrNull<'a>, MAX_PARTS>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StatusOf<'a> {
    #[serde(borrow)]
    load_balancer: Option<Balancer<'a>>,
    #[serde(borrow)]
    phase: TextOrNull<'a>,
    #[serde(rename = "podIPs", borrow)]
    pod_ips: Option<BoundedVec<Address<'a>, MAX_ADDRESSES>>,
}

#[derive(Deserialize)]
struct Balancer<'a> {
    #[serde(borrow)]
    ingress: Option<BoundedVec<Address<'a>, MAX_PARTS>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address<'a> {
    #[serde(borrow)]
    ip: TextOrNull<'a>,
    #[serde(borrow)]
    hostname: TextOrNull<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PortOf<'a> {
    #[serde(borrow)]
    name: TextOrNull<'a>,
    #[serde(borrow)]
    protocol: TextOrNull<'a>,
    port: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EndpointOf<'a> {
    #[serde(borrow)]
    addresses: Option<BoundedVec<TextOrNull<'a>, MAX_ADDRESSES>>,
    conditions: Option<Conditions>,
    #[serde(borrow)]
    hostname: TextOrNull<'a>,
    #[serde(borrow)]
    target_ref: Option<Reference<'a>>,
    #[serde(borrow)]
    zone: TextOrNull<'a>,
}

#[derive(Deserialize)]
struct Conditions {
    ready: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Reference<'a> {
    #[serde(borrow)]
    name: TextOrNull<'a>,
}

/// A list of at most `MAX` elements.
struct BoundedVec<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Default for BoundedVec<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedVec<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedVecVisitor(PhantomData))
    }
}

struct BoundedVecVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for BoundedVecVisitor<T, MAX> {
    type Value = BoundedVec<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            if all.len() >= MAX {
                return Err(A::Error::custom(Malformed::TooMany(MAX)));
            }
            all.push(item);
        }
        Ok(BoundedVec(all))
    }
}

/// Labels or annotations, at most [`MAX_PARTS`].
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
                while let Some((TextOrNull(name), TextOrNull(value))) = map.next_entry()? {
                    if pairs.len() >= MAX_PARTS {
                        return Err(A::Error::custom(Malformed::TooMany(MAX_PARTS)));
                    }
                    pairs.push((name, value));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsOf(PhantomData))
    }
}

/// Decodes an object.
pub(super) fn object(kind: Kind, text: &str) -> Result<(Meta<'_>, View<'_>), Malformed> {
    let any: Any<'_> = read(text)?;
    let metadata = any.metadata.unwrap_or_default();
    let spec = || part::<Spec<'_>>(any.spec);
    let status = || part::<StatusOf<'_>>(any.status);
    let view = match kind {
        Kind::Service => View::Service(service(spec()?, status()?)),
        Kind::Slice => {
            let endpoints =
                part::<Option<BoundedVec<EndpointOf<'_>, MAX_ENDPOINTS>>>(any.endpoints)?.unwrap_or_default();
            let ports = part::<Option<BoundedVec<PortOf<'_>, MAX_PARTS>>>(any.ports)?;
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

/// Returns namespace and name of an invalid object as far as they can be read.
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
        namespace: TextOrNull<'a>,
        #[serde(borrow)]
        name: TextOrNull<'a>,
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

fn ports(ports: Option<BoundedVec<PortOf<'_>, MAX_PARTS>>) -> Vec<PortView<'_>> {
    let ports = ports.unwrap_or_default().0.into_iter();
    ports.map(|port| PortView { name: port.name.0, protocol: port.protocol.0, port: port.port }).collect()
}

fn words<const MAX: usize>(words: Option<BoundedVec<TextOrNull<'_>, MAX>>) -> Vec<Text<'_>> {
    words.unwrap_or_default().0.into_iter().map(|word| word.0).collect()
}

fn part<'a, T: Default + Deserialize<'a>>(part: Option<&'a RawValue>) -> Result<T, Malformed> {
    part.map_or_else(|| Ok(T::default()), |part| Ok(read::<Option<T>>(part.get())?.unwrap_or_default()))
}

/// Decodes a line of a watch: type of the event, and text of the object.
pub(super) fn event(line: &str) -> Result<(Text<'_>, &str), Malformed> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(rename = "type", borrow)]
        kind: TextOrNull<'a>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let event: Event<'_> = read(line)?;
    Ok((event.kind.0, event.object.get()))
}

/// Decodes a Status object.
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
        causes: Option<BoundedVec<Cause, MAX_ADDRESSES>>,
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

/// Decodes a page of a list: calls `item` with the text of each object, and returns the resource
/// version and the token of the next page.
pub(super) fn list<'a>(
    page: &'a str,
    mut item: impl FnMut(&'a str),
) -> Result<(Text<'a>, Text<'a>), Malformed> {
    let mut deserializer = serde_json::Deserializer::from_str(page);
    let metadata = List { item: &mut item }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((metadata.resource_version.0, metadata.next.0))
}

/// Visitor that passes items on and stores none.
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
        while let Some(TextOrNull(key)) = map.next_key()? {
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
