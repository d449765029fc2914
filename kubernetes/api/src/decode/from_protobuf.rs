//! Decodes protobuf. The field numbers are those of the `generated.proto` files of k8s.io/api 0.37
//! and k8s.io/apimachinery 0.37, and never change.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::objects::{Kind, MAX_ADDRESSES, MAX_ENDPOINTS, MAX_PARTS};

use super::borrowed::{EndpointView, Meta, PodView, PortView, ServiceView, Text, View, address};
use super::protobuf::{Fields, Value};
use super::{Malformed, Status};

/// Decodes an object; the metadata of all kinds is field 1.
pub(super) fn object(kind: Kind, message: &[u8]) -> Result<(Meta<'_>, View<'_>), Malformed> {
    let (mut meta, mut view) = (Meta::default(), View::empty(kind));
    if let View::Slice(slice) = &mut view {
        // Allocates once; an invalid field ends both passes over the message.
        let endpoints = messages(message, 2).take_while(Result::is_ok).take(MAX_ENDPOINTS).count();
        slice.endpoints.reserve_exact(endpoints);
        slice.addresses.reserve_exact(endpoints);
    }
    for field in Fields::of(message) {
        match (field?, &mut view) {
            ((1, value), _) => meta = self::meta(value.bytes()?)?,
            ((2, value), View::Service(service)) => spec_of_service(value.bytes()?, service)?,
            ((3, value), View::Service(service)) => status_of_service(value.bytes()?, service)?,
            ((2, value), View::Slice(slice)) => {
                let endpoint = endpoint(value.bytes()?, &mut slice.addresses)?;
                push(&mut slice.endpoints, MAX_ENDPOINTS, endpoint)?;
            }
            ((3, value), View::Slice(slice)) => push(&mut slice.ports, MAX_PARTS, port(value.bytes()?)?)?,
            ((2, value), View::Pod(pod)) => spec_of_pod(value.bytes()?, pod)?,
            ((3, value), View::Pod(pod)) => status_of_pod(value.bytes()?, pod)?,
            // Imports are custom resources, which the API sends in JSON only.
            (
                _,
                View::ServiceImport(_) | View::Service(_) | View::Slice(_) | View::Pod(_) | View::Namespace,
            ) => {}
        }
    }
    Ok((meta, view))
}

/// Returns namespace and name of an invalid object as far as they can be read.
pub(super) fn name(message: &[u8]) -> (Text<'_>, Text<'_>) {
    let (mut namespace, mut name) = (Text::default(), Text::default());
    for meta in messages(message, 1).map_while(Result::ok) {
        for field in Fields::of(meta).map_while(Result::ok) {
            match field {
                (1, value) => name = text(value).unwrap_or_default(),
                (3, value) => namespace = text(value).unwrap_or_default(),
                _ => {}
            }
        }
    }
    (namespace, name)
}

fn meta(message: &[u8]) -> Result<Meta<'_>, Malformed> {
    let mut meta = Meta::default();
    for field in Fields::of(message) {
        match field? {
            (1, value) => meta.name = text(value)?,
            (3, value) => meta.namespace = text(value)?,
            (6, value) => meta.version = text(value)?,
            // A zero time has no fields.
            (9, value) => meta.terminating = !value.bytes()?.is_empty(),
            (11, value) => push(&mut meta.labels, MAX_PARTS, pair(value.bytes()?)?)?,
            (12, value) => push(&mut meta.annotations, MAX_PARTS, pair(value.bytes()?)?)?,
            _ => {}
        }
    }
    Ok(meta)
}

fn spec_of_service<'a>(message: &'a [u8], service: &mut ServiceView<'a>) -> Result<(), Malformed> {
    for field in Fields::of(message) {
        match field? {
            (1, value) => push(&mut service.ports, MAX_PARTS, port(value.bytes()?)?)?,
            (3, value) => service.cluster_ip = text(value)?,
            (4, value) => service.kind = text(value)?,
            (5, value) => push(&mut service.external_ips, MAX_PARTS, text(value)?)?,
            (10, value) => service.external_name = text(value)?,
            (18, value) => push(&mut service.cluster_ips, MAX_ADDRESSES, text(value)?)?,
            _ => {}
        }
    }
    Ok(())
}

/// Field 1 is the load balancer status; its field 1 are the ingress points.
fn status_of_service<'a>(message: &'a [u8], service: &mut ServiceView<'a>) -> Result<(), Malformed> {
    for balancer in messages(message, 1) {
        for ingress in messages(balancer?, 1) {
            let (mut address, mut name) = (Text::default(), Text::default());
            for field in Fields::of(ingress?) {
                match field? {
                    (1, value) => address = text(value)?,
                    (2, value) => name = text(value)?,
                    _ => {}
                }
            }
            push(&mut service.ingress, MAX_PARTS, (address, name))?;
        }
    }
    Ok(())
}

/// Decodes a port of a service or slice: these three fields have the same numbers.
fn port(message: &[u8]) -> Result<PortView<'_>, Malformed> {
    let mut port = PortView::default();
    for field in Fields::of(message) {
        match field? {
            (1, value) => port.name = text(value)?,
            (2, value) => port.protocol = text(value)?,
            (3, value) => port.port = Some(value.number()?.cast_signed()),
            _ => {}
        }
    }
    Ok(port)
}

/// Decodes an endpoint, and appends its valid addresses to `addresses`.
fn endpoint<'a>(message: &'a [u8], addresses: &mut Vec<IpAddr>) -> Result<EndpointView<'a>, Malformed> {
    let (mut endpoint, start, mut count) = (EndpointView::default(), addresses.len(), 0);
    for field in Fields::of(message) {
        match field? {
            (1, value) if count < MAX_ADDRESSES => {
                addresses.extend(address(value.text()?));
                count += 1;
            }
            (1, _) => return Err(Malformed::TooMany(MAX_ADDRESSES)),
            (2, value) => endpoint.ready = ready(value.bytes()?)?,
            (3, value) => endpoint.hostname = text(value)?,
            (4, value) => endpoint.pod = name_of_reference(value.bytes()?)?,
            (7, value) => endpoint.zone = text(value)?,
            _ => {}
        }
    }
    endpoint.addresses = start..addresses.len();
    Ok(endpoint)
}

fn ready(conditions: &[u8]) -> Result<Option<bool>, Malformed> {
    let mut ready = None;
    for field in Fields::of(conditions) {
        if let (1, value) = field? {
            ready = Some(value.boolean()?);
        }
    }
    Ok(ready)
}

fn name_of_reference(message: &[u8]) -> Result<Text<'_>, Malformed> {
    let mut name = Text::default();
    for field in Fields::of(message) {
        if let (3, value) = field? {
            name = text(value)?;
        }
    }
    Ok(name)
}

fn spec_of_pod(message: &[u8], pod: &mut PodView<'_>) -> Result<(), Malformed> {
    for field in Fields::of(message) {
        if let (11, value) = field? {
            pod.host_network = value.boolean()?;
        }
    }
    Ok(())
}

fn status_of_pod<'a>(message: &'a [u8], pod: &mut PodView<'a>) -> Result<(), Malformed> {
    for field in Fields::of(message) {
        match field? {
            (1, value) => pod.phase = text(value)?,
            (12, value) => {
                for field in Fields::of(value.bytes()?) {
                    if let (1, value) = field? {
                        push(&mut pod.addresses, MAX_ADDRESSES, text(value)?)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns resource version and token of the next page.
pub(super) fn list_meta(message: &[u8]) -> Result<(Text<'_>, Text<'_>), Malformed> {
    let (mut version, mut next) = (Text::default(), Text::default());
    for field in Fields::of(message) {
        match field? {
            (2, value) => version = text(value)?,
            (3, value) => next = text(value)?,
            _ => {}
        }
    }
    Ok((version, next))
}

/// Decodes a Status object.
pub(super) fn status(message: &[u8]) -> Result<Status, Malformed> {
    let mut status = Status::default();
    for field in Fields::of(message) {
        match field? {
            (3, value) => status.message = value.text()?.into(),
            (4, value) => status.reason = value.text()?.into(),
            (5, value) => details(value.bytes()?, &mut status)?,
            (6, value) => status.code = u16::try_from(value.number()?).unwrap_or_default(),
            _ => {}
        }
    }
    Ok(status)
}

fn details(message: &[u8], status: &mut Status) -> Result<(), Malformed> {
    for field in Fields::of(message) {
        match field? {
            (4, value) => {
                for field in Fields::of(value.bytes()?) {
                    if let (1, value) = field? {
                        push(&mut status.causes, MAX_ADDRESSES, value.text()?.into())?;
                    }
                }
            }
            (5, value) => status.retry_after_s = value.number()?,
            _ => {}
        }
    }
    Ok(())
}

/// Decodes an envelope (runtime.Unknown) after [`MAGIC`]: kind, and bytes of the object.
pub(super) fn envelope(bytes: &[u8]) -> Result<(&str, &[u8]), Malformed> {
    let (mut kind, mut raw) = ("", &[][..]);
    for field in Fields::of(bytes.strip_prefix(MAGIC).ok_or(Malformed::Envelope)?) {
        match field? {
            (1, value) => {
                for field in Fields::of(value.bytes()?) {
                    if let (2, value) = field? {
                        kind = value.text()?;
                    }
                }
            }
            (2, value) => raw = value.bytes()?,
            _ => {}
        }
    }
    Ok((kind, raw))
}

/// Decodes a frame of a watch (WatchEvent): type of the event, and the object in its envelope.
pub(super) fn event(frame: &[u8]) -> Result<(&str, &[u8]), Malformed> {
    let (mut kind, mut object) = ("", &[][..]);
    for field in Fields::of(frame) {
        match field? {
            (1, value) => kind = value.text()?,
            (2, value) => {
                for raw in messages(value.bytes()?, 1) {
                    object = raw?;
                }
            }
            _ => {}
        }
    }
    Ok((kind, object))
}

/// Returns the submessages with a field number.
fn messages(message: &[u8], number: u32) -> impl Iterator<Item = Result<&[u8], Malformed>> {
    Fields::of(message).filter_map(move |field| match field {
        Ok((found, value)) if found == number => Some(value.bytes()),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

fn pair(message: &[u8]) -> Result<(Text<'_>, Text<'_>), Malformed> {
    let (mut key, mut found) = (Text::default(), Text::default());
    for field in Fields::of(message) {
        match field? {
            (1, value) => key = text(value)?,
            (2, value) => found = text(value)?,
            _ => {}
        }
    }
    Ok((key, found))
}

/// Appends an element up to a limit, since 2 bytes on the wire may take 100 in memory.
fn push<T>(parts: &mut Vec<T>, max: usize, part: T) -> Result<(), Malformed> {
    if parts.len() >= max {
        return Err(Malformed::TooMany(max));
    }
    parts.push(part);
    Ok(())
}

fn text(value: Value<'_>) -> Result<Text<'_>, Malformed> {
    value.text().map(Cow::Borrowed)
}

/// Magic bytes of every protobuf object.
pub(super) const MAGIC: &[u8] = b"k8s\0";
