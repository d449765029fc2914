//! Encodes and decodes objects: numbers as varints, texts with length prefixes.

use std::net::IpAddr;
use std::sync::Arc;

use super::SnapshotError;
use kubernetes_api::objects::{
    Endpoint, ExternalAddress, Imported, Kind, MAX_ADDRESSES, MAX_ENDPOINTS, MAX_PARTS, MAX_ZONES, Object,
    ObjectKey, Pod, Port, Protocol, Service, ServiceImport, Slice, Target,
};

/// Encodes objects one after another.
#[derive(Default)]
pub(super) struct Encoder(pub(super) Vec<u8>);

impl Encoder {
    pub(super) fn service(&mut self, service: &Service) {
        self.begin(Kind::Service, &service.key);
        self.target(&service.target);
        self.ports(&service.ports);
        self.all(&service.external, |to, external| match external {
            ExternalAddress::Ip(address) => to.address(*address),
            ExternalAddress::Name(name) => {
                to.0.push(NAME);
                to.text(name);
            }
        });
    }

    pub(super) fn import(&mut self, key: &ObjectKey, target: &Target, ports: &[Port]) {
        self.begin(Kind::ServiceImport, key);
        self.target(target);
        self.ports(ports);
    }

    pub(super) fn slice(&mut self, slice: &Slice) {
        self.begin(Kind::Slice, &slice.key);
        self.text(&slice.service);
        self.truth(slice.import.is_some());
        if let Some(import) = &slice.import {
            self.text(&import.service);
            self.text(&import.cluster);
        }
        self.all(&slice.endpoints, |to, endpoint| {
            to.address(endpoint.address);
            for text in [endpoint.hostname.as_deref(), endpoint.pod.as_deref(), endpoint.zone.as_deref()] {
                to.text(text.unwrap_or_default());
            }
        });
        self.ports(&slice.ports);
    }

    pub(super) fn namespace(&mut self, name: &str) {
        self.0.push(Kind::Namespace as u8);
        self.text(name);
    }

    pub(super) fn pod(&mut self, pod: &Pod) {
        self.begin(Kind::Pod, &pod.key);
        self.all(&pod.addresses, |to, address| to.address(*address));
        [pod.host_network, pod.running, pod.terminating].into_iter().for_each(|truth| self.truth(truth));
        self.all(&pod.labels, |to, (name, value)| {
            to.text(name);
            to.text(value);
        });
    }

    fn begin(&mut self, kind: Kind, key: &ObjectKey) {
        self.0.push(kind as u8);
        self.text(&key.namespace);
        self.text(&key.name);
    }

    fn target(&mut self, target: &Target) {
        match target {
            Target::ClusterIps(addresses) => {
                self.0.push(CLUSTER_IPS);
                self.all(addresses, |to, address| to.address(*address));
            }
            Target::Headless => self.0.push(HEADLESS),
            Target::ExternalName(name) => {
                self.0.push(NAME);
                self.text(name);
            }
        }
    }

    fn ports(&mut self, ports: &[Port]) {
        self.all(ports, |to, port| {
            to.text(&port.name);
            to.0.push(port.protocol as u8);
            // 0 encodes a port without a number.
            to.number(port.port.unwrap_or(0).into());
        });
    }

    fn all<T>(&mut self, all: &[T], one: impl Fn(&mut Self, &T)) {
        self.number(all.len() as u64);
        all.iter().for_each(|item| one(self, item));
    }

    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => {
                self.0.push(V4);
                self.0.extend(address.octets());
            }
            IpAddr::V6(address) => {
                self.0.push(V6);
                self.0.extend(address.octets());
            }
        }
    }

    fn truth(&mut self, truth: bool) {
        self.0.push(truth.into());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

/// Decodes objects one after another.
pub(super) struct Decoder<'a> {
    octets: &'a [u8],
    /// Zone names, which endpoints share.
    zones: Vec<Arc<str>>,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(octets: &'a [u8]) -> Self {
        Self { octets, zones: Vec::new() }
    }

    /// Returns the unread bytes.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.octets
    }

    /// Decodes the next object; `None` at the end.
    ///
    /// # Errors
    /// [`SnapshotError::Malformed`].
    pub(super) fn object(&mut self) -> Result<Option<Object>, SnapshotError> {
        if self.octets.is_empty() {
            return Ok(None);
        }
        let kind = usize::from(self.octet()?);
        let kind = *Kind::ALL.get(kind).ok_or(SnapshotError::Malformed)?;
        Ok(Some(match kind {
            Kind::Service => {
                let (key, target, ports) = (self.key()?, self.target(MAX_ADDRESSES)?, self.ports()?);
                let external = self.all(2 * MAX_PARTS, Self::external)?;
                Object::Service(Service { key, target, ports, external })
            }
            Kind::ServiceImport => {
                let (key, target, ports) = (self.key()?, self.target(MAX_PARTS)?, self.ports()?);
                Object::ServiceImport(ServiceImport { key, target, ports })
            }
            Kind::Slice => Object::Slice(self.slice()?),
            Kind::Namespace => Object::Namespace(self.text()?.into()),
            Kind::Pod => Object::Pod(self.pod()?),
        }))
    }

    fn slice(&mut self) -> Result<Slice, SnapshotError> {
        let (key, service) = (self.key()?, self.text()?.into());
        let import = match self.truth()? {
            true => Some(Box::new(Imported { service: self.text()?.into(), cluster: self.text()?.into() })),
            false => None,
        };
        let (endpoints, ports) = (self.all(MAX_ENDPOINTS * MAX_ADDRESSES, Self::endpoint)?, self.ports()?);
        Ok(Slice { key, service, import, endpoints, ports, changed: None })
    }

    fn endpoint(&mut self) -> Result<Endpoint, SnapshotError> {
        let address = self.address()?;
        let (hostname, pod) = (self.some_text()?, self.some_text()?);
        Ok(Endpoint { address, hostname, pod, zone: self.zone()? })
    }

    fn zone(&mut self) -> Result<Option<Arc<str>>, SnapshotError> {
        let zone = self.text()?;
        if zone.is_empty() {
            return Ok(None);
        }
        if let Some(known) = self.zones.iter().find(|known| ***known == *zone) {
            return Ok(Some(known.clone()));
        }
        let new: Arc<str> = zone.into();
        if self.zones.len() < MAX_ZONES {
            self.zones.push(new.clone());
        }
        Ok(Some(new))
    }

    fn pod(&mut self) -> Result<Pod, SnapshotError> {
        Ok(Pod {
            key: self.key()?,
            addresses: self.all(MAX_ADDRESSES, Self::address)?,
            host_network: self.truth()?,
            running: self.truth()?,
            terminating: self.truth()?,
            labels: self.all(MAX_PARTS, |from| Ok((from.text()?.into(), from.text()?.into())))?,
        })
    }

    fn external(&mut self) -> Result<ExternalAddress, SnapshotError> {
        if self.octets.first() == Some(&NAME) {
            self.octet()?;
            return Ok(ExternalAddress::Name(self.text()?.into()));
        }
        Ok(ExternalAddress::Ip(self.address()?))
    }

    fn key(&mut self) -> Result<Arc<ObjectKey>, SnapshotError> {
        Ok(ObjectKey { namespace: self.text()?.into(), name: self.text()?.into() }.into())
    }

    fn target(&mut self, max: usize) -> Result<Target, SnapshotError> {
        Ok(match self.octet()? {
            CLUSTER_IPS => Target::ClusterIps(self.all(max, Self::address)?),
            HEADLESS => Target::Headless,
            NAME => Target::ExternalName(self.text()?.into()),
            _ => return Err(SnapshotError::Malformed),
        })
    }

    fn ports(&mut self) -> Result<Box<[Port]>, SnapshotError> {
        self.all(MAX_PARTS, |from| {
            let name = from.text()?.into();
            let protocol =
                [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].get(usize::from(from.octet()?)).copied();
            let port = u16::try_from(from.number()?).map_err(|_| SnapshotError::Malformed)?;
            let protocol = protocol.ok_or(SnapshotError::Malformed)?;
            Ok(Port { name, protocol, port: (port != 0).then_some(port) })
        })
    }

    /// Decodes a list with a length prefix of at most `max`, the limit for objects of the API.
    /// Allocates as elements are read, so that a wrong length takes no memory.
    fn all<T>(
        &mut self,
        max: usize,
        one: impl Fn(&mut Self) -> Result<T, SnapshotError>,
    ) -> Result<Box<[T]>, SnapshotError> {
        let count = self.number()?;
        let count = usize::try_from(count).ok().filter(|count| *count <= self.octets.len().min(max));
        (0..count.ok_or(SnapshotError::Malformed)?).map(|_| one(self)).collect()
    }

    fn address(&mut self) -> Result<IpAddr, SnapshotError> {
        match self.octet()? {
            V4 => Ok(IpAddr::from(*self.chunk::<4>()?)),
            V6 => Ok(IpAddr::from(*self.chunk::<16>()?)),
            _ => Err(SnapshotError::Malformed),
        }
    }

    fn truth(&mut self) -> Result<bool, SnapshotError> {
        match self.octet()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(SnapshotError::Malformed),
        }
    }

    fn some_text(&mut self) -> Result<Option<Box<str>>, SnapshotError> {
        let text = self.text()?;
        Ok((!text.is_empty()).then(|| text.into()))
    }

    pub(super) fn text(&mut self) -> Result<&'a str, SnapshotError> {
        let length = usize::try_from(self.number()?).map_err(|_| SnapshotError::Malformed)?;
        let (text, rest) = self.octets.split_at_checked(length).ok_or(SnapshotError::Malformed)?;
        self.octets = rest;
        str::from_utf8(text).map_err(|_| SnapshotError::Malformed)
    }

    pub(super) fn number(&mut self) -> Result<u64, SnapshotError> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let octet = self.octet()?;
            number |= u64::from(octet & 0x7f) << shift;
            if octet < 0x80 {
                return Ok(number);
            }
        }
        Err(SnapshotError::Malformed)
    }

    fn octet(&mut self) -> Result<u8, SnapshotError> {
        self.chunk::<1>().map(|[octet]| *octet)
    }

    fn chunk<const LENGTH: usize>(&mut self) -> Result<&'a [u8; LENGTH], SnapshotError> {
        let (chunk, rest) = self.octets.split_first_chunk().ok_or(SnapshotError::Malformed)?;
        self.octets = rest;
        Ok(chunk)
    }
}

const CLUSTER_IPS: u8 = 0;
const HEADLESS: u8 = 1;
const NAME: u8 = 2;
const V4: u8 = 4;
const V6: u8 = 6;
