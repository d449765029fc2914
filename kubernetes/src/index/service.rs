//! What is known of one service: its object, its slices, and the answers at its own name, ready to send.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};

use wire::{Class, RType};

use kubernetes_api::objects::{self, Endpoint, Port, Slice, Target};

use super::dns_label::{LONGEST, Label};

/// A service by its name, as queries find it. Never changes: a change is another one in its place.
pub(crate) struct Service {
    /// Its name, and the A and AAAA answers there: records as they are sent, each owner a pointer to the question, TTL 0.
    octets: Box<[u8]>,
    pub(crate) namespace: Arc<Namespace>,
    /// Where the A records end.
    a_end: u32,
    /// Where the name ends.
    key_end: u8,
    leads: Leads,
    has_endpoints: bool,
    naming: Naming,
    many: Option<Box<Many>>,
    /// None where only slices name it.
    pub(crate) object: Option<Arc<objects::Service>>,
    pub(crate) slices: Box<[Arc<Slice>]>,
    /// Every endpoint, by label, those of one label by address.
    by_label: Box<[Place]>,
    /// Every endpoint, by address.
    by_address: Box<[Place]>,
}

/// What a service's own name leads to, said without a look at its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// To addresses of its own.
    ToItself,
    /// To those of its endpoints.
    ToEndpoints,
    /// To another name, or nowhere: only slices name it.
    Elsewhere,
}

/// How a service has an address that leads back to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Has {
    /// As one of its own.
    Own,
    /// As one that it is reached at from outside.
    External,
    /// As an endpoint's.
    Endpoint,
}

impl Has {
    pub(super) const ALL: [Self; 3] = [Self::Own, Self::External, Self::Endpoint];
}

/// What endpoints are called.
#[derive(Clone, Copy, Default)]
pub(crate) struct Naming {
    /// After their pods, where they have no host name.
    pub(crate) pods: bool,
    /// With their cluster behind it: those of imports.
    pub(crate) clusters: bool,
}

/// Addresses of a service that has many, in order: a service may have thousands, and a query asks whether one is among them.
struct Many {
    own: Box<[IpAddr]>,
    external: Box<[IpAddr]>,
}

impl Many {
    fn of(service: &Service) -> Option<Box<Self>> {
        let own = match service.target() {
            Some(Target::ClusterIps(own)) => &**own,
            _ => &[],
        };
        if own.len() + service.external().len() <= FEW {
            return None;
        }
        let [mut own, mut external] = [own.to_vec(), service.external_addresses().collect()];
        [&mut own, &mut external].into_iter().for_each(|addresses| addresses.sort_unstable());
        Some(Box::new(Self { own: own.into(), external: external.into() }))
    }
}

/// A namespace that services lie in.
pub(crate) struct Namespace {
    /// In lower case.
    pub(crate) name: Box<[u8]>,
    /// Whether the API has it among those that are followed.
    pub(crate) is_known: AtomicBool,
}

impl Namespace {
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Acquire)
    }
}

/// An endpoint of a service: which slice's, and which of it.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    slice: u32,
    endpoint: u32,
}

/// An endpoint with the slice that it is in.
#[derive(Clone, Copy)]
pub(crate) struct At<'s> {
    /// The slice's place among those of the service.
    pub(crate) number: usize,
    pub(crate) slice: &'s Arc<Slice>,
    pub(crate) endpoint: &'s Endpoint,
}

impl Service {
    /// Puts together what queries find.
    pub(crate) fn new(
        key: &[u8],
        namespace: Arc<Namespace>,
        object: Option<Arc<objects::Service>>,
        slices: Box<[Arc<Slice>]>,
        naming: Naming,
    ) -> Self {
        let (by_label, by_address) = orders(&slices, naming);
        let leads = match object.as_ref().map(|object| &object.target) {
            Some(Target::ClusterIps(_)) => Leads::ToItself,
            Some(Target::Headless) => Leads::ToEndpoints,
            Some(Target::ExternalName(_)) | None => Leads::Elsewhere,
        };
        let mut service = Self {
            octets: Box::default(),
            namespace,
            a_end: 0,
            // A key is NAME.NAMESPACE in wire form, two labels of 64 octets at most.
            key_end: key.len() as u8,
            leads,
            has_endpoints: !by_address.is_empty(),
            naming,
            many: None,
            object,
            slices,
            by_label,
            by_address,
        };
        service.many = Many::of(&service);
        let addresses = service.own_addresses();
        let octets = [IpAddr::is_ipv4, IpAddr::is_ipv6].map(|family| octets_of(&addresses, family));
        let mut all = Vec::with_capacity(key.len() + octets[0] + octets[1]);
        all.extend_from_slice(key);
        records(&mut all, &addresses, IpAddr::is_ipv4);
        // Not more than fit a message.
        service.a_end = all.len() as u32;
        records(&mut all, &addresses, IpAddr::is_ipv6);
        service.octets = all.into();
        service
    }

    /// Name and namespace as labels in wire form, as queries find it: lower-case, without the root's.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.octets[..usize::from(self.key_end)]
    }

    /// What its name leads to.
    #[inline]
    pub(crate) fn leads(&self) -> Leads {
        self.leads
    }

    /// What its name leads to; `None` where only slices name it.
    #[inline]
    pub(crate) fn target(&self) -> Option<&Target> {
        self.object.as_ref().map(|object| &object.target)
    }

    /// The records at its own name.
    #[inline]
    pub(crate) fn ready(&self, rtype: RType) -> &[u8] {
        let a_end = self.a_end as usize;
        match rtype {
            RType::A => &self.octets[usize::from(self.key_end)..a_end],
            RType::AAAA => &self.octets[a_end..],
            _ => &[],
        }
    }

    /// The addresses of one family at its own name.
    pub(super) fn data(&self, rtype: RType) -> impl Iterator<Item = &[u8]> + Clone {
        let octets = RECORD + if rtype == RType::A { 4 } else { 16 };
        self.ready(rtype).chunks(octets).map(|record| &record[RECORD..])
    }

    /// Whether an address is its own, and none of an endpoint.
    pub(crate) fn owns(&self, address: IpAddr) -> bool {
        match &self.many {
            Some(many) => many.own.binary_search(&address).is_ok(),
            None => matches!(self.target(), Some(Target::ClusterIps(own)) if own.contains(&address)),
        }
    }

    /// Whether it is reached at an address from outside.
    pub(crate) fn is_reached_at(&self, address: IpAddr) -> bool {
        match &self.many {
            Some(many) => many.external.binary_search(&address).is_ok(),
            None => self.external_addresses().any(|external| external == address),
        }
    }

    /// Whether an address is among [`Self::addresses`].
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.owns(address) || self.is_reached_at(address) || self.of_address(address).next().is_some()
    }

    pub(crate) fn ports(&self) -> &[Port] {
        self.object.as_ref().map_or(&[], |object| &object.ports)
    }

    #[inline]
    pub(crate) fn has_endpoints(&self) -> bool {
        self.has_endpoints
    }

    /// The label of one of its endpoints.
    pub(crate) fn label(&self, endpoint: &Endpoint) -> Label {
        Label::of(endpoint, self.naming.pods)
    }

    /// The cluster of one of an import's endpoints; empty where it is of none, or can be no label.
    pub(crate) fn cluster<'s>(&self, at: At<'s>) -> &'s [u8] {
        let import = at.slice.import.as_ref().filter(|_| self.naming.clusters);
        import
            .map(|import| import.cluster.as_bytes())
            .filter(|cluster| cluster.len() <= LONGEST)
            .unwrap_or_default()
    }

    /// How many endpoints it has.
    pub(crate) fn endpoint_count(&self) -> usize {
        self.by_label.len()
    }

    /// One of them in the order of labels; there are [`Self::endpoint_count`].
    pub(crate) fn nth_by_label(&self, number: usize) -> At<'_> {
        self.at(self.by_label[number])
    }

    /// One of them in the order of addresses.
    pub(crate) fn nth_by_address(&self, number: usize) -> At<'_> {
        self.at(self.by_address[number])
    }

    /// Its endpoints by label.
    pub(crate) fn by_label(&self) -> impl Iterator<Item = At<'_>> {
        self.by_label.iter().map(|place| self.at(*place))
    }

    /// Its endpoints by address; several may have one.
    pub(crate) fn by_address(&self) -> impl Iterator<Item = At<'_>> {
        self.by_address.iter().map(|place| self.at(*place))
    }

    /// Those of the family that A or AAAA has; every IPv4 address stands before every IPv6 one.
    pub(crate) fn by_address_of(&self, rtype: RType) -> impl Iterator<Item = At<'_>> {
        let v4_end = self.by_address.partition_point(|place| self.at(*place).endpoint.address.is_ipv4());
        let range = if rtype == RType::A { 0..v4_end } else { v4_end..self.by_address.len() };
        self.places(&self.by_address, range)
    }

    /// Its endpoints of this label, by address.
    pub(crate) fn of_label(&self, label: &[u8]) -> impl Iterator<Item = At<'_>> {
        let of = |place: &Place| self.label(self.at(*place).endpoint);
        let start = self.by_label.partition_point(|place| *of(place).octets() < *label);
        let end = self.by_label.partition_point(|place| *of(place).octets() <= *label);
        self.places(&self.by_label, start..end)
    }

    /// Its endpoints of this address.
    pub(crate) fn of_address(&self, address: IpAddr) -> impl Iterator<Item = At<'_>> {
        let start = self.by_address.partition_point(|place| self.at(*place).endpoint.address < address);
        let end = self.by_address.partition_point(|place| self.at(*place).endpoint.address <= address);
        self.places(&self.by_address, start..end)
    }

    /// Every address that leads back to it, with those of its endpoints or without, by how it has them, in order and each once.
    pub(super) fn addresses(&self, endpoints: bool) -> Vec<(Has, IpAddr)> {
        let of_endpoints = if endpoints { &*self.by_address } else { &[] };
        let mut addresses: Vec<_> =
            of_endpoints.iter().map(|place| (Has::Endpoint, self.at(*place).endpoint.address)).collect();
        if let Some(Target::ClusterIps(own)) = self.target() {
            addresses.extend(own.iter().map(|address| (Has::Own, *address)));
        }
        // Those from outside lead back to it in zones of `k8s_external`.
        addresses.extend(self.external_addresses().map(|address| (Has::External, address)));
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Where it is reached from outside.
    pub(crate) fn external(&self) -> &[objects::ExternalAddress] {
        self.object.as_ref().map_or(&[], |object| &object.external)
    }

    /// Those of them that are addresses.
    pub(crate) fn external_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.external().iter().filter_map(|external| {
            #[cfg(test)]
            crate::cost_counter::looked();
            match external {
                objects::ExternalAddress::Ip(address) => Some(*address),
                objects::ExternalAddress::Name(_) => None,
            }
        })
    }

    /// The addresses at its own name, each once.
    fn own_addresses(&self) -> Vec<IpAddr> {
        match self.target() {
            Some(Target::ClusterIps(own)) => {
                let mut addresses = own.to_vec();
                if addresses.len() > 1 {
                    let mut seen = std::collections::HashSet::new();
                    addresses.retain(|address| seen.insert(*address));
                }
                addresses
            }
            Some(Target::Headless) => {
                // They come sorted by address, so equal ones stand beside each other.
                let mut addresses: Vec<_> = self.by_address().map(|at| at.endpoint.address).collect();
                addresses.dedup();
                addresses
            }
            Some(Target::ExternalName(_)) | None => Vec::new(),
        }
    }

    fn places<'s>(&'s self, order: &'s [Place], range: Range<usize>) -> impl Iterator<Item = At<'s>> {
        order.get(range).into_iter().flatten().map(|place| self.at(*place))
    }

    fn at(&self, place: Place) -> At<'_> {
        #[cfg(test)]
        crate::cost_counter::looked();
        // Every `Place` was made from `slices` when the service was, so both indices exist.
        let number = place.slice as usize;
        let slice = &self.slices[number];
        At { number, slice, endpoint: &slice.endpoints[place.endpoint as usize] }
    }
}

/// Every endpoint of these slices by label, and by address.
fn orders(slices: &[Arc<Slice>], naming: Naming) -> (Box<[Place]>, Box<[Place]>) {
    let count = slices.iter().map(|slice| slice.endpoints.len()).sum();
    let mut all: Vec<(Label, IpAddr, Place)> = Vec::with_capacity(count);
    for (slice, index) in slices.iter().zip(0_u32..) {
        for (endpoint, number) in slice.endpoints.iter().zip(0_u32..) {
            let place = Place { slice: index, endpoint: number };
            all.push((Label::of(endpoint, naming.pods), endpoint.address, place));
        }
    }
    all.sort_by(|one, other| (one.0.octets(), one.1).cmp(&(other.0.octets(), other.1)));
    let by_label = all.iter().map(|(.., place)| *place).collect();
    all.sort_by_key(|(_, address, _)| *address);
    (by_label, all.iter().map(|(.., place)| *place).collect())
}

/// Address records of one family as they are sent; where they fit no message, one more than fit, so that the reply is cut and
/// says so.
fn records(body: &mut Vec<u8>, addresses: &[IpAddr], is_of_family: fn(&IpAddr) -> bool) {
    let end = body.len() + octets_of(addresses, is_of_family);
    for address in addresses.iter().filter(|address| is_of_family(address)) {
        if body.len() >= end {
            break;
        }
        match address {
            IpAddr::V4(address) => record(body, RType::A, &address.octets()),
            IpAddr::V6(address) => record(body, RType::AAAA, &address.octets()),
        }
    }
}

/// What these take.
fn octets_of(addresses: &[IpAddr], is_of_family: fn(&IpAddr) -> bool) -> usize {
    let addresses = addresses.iter().filter(|address| is_of_family(address));
    let each = |address: &IpAddr| RECORD + if address.is_ipv4() { 4 } else { 16 };
    let octets = addresses.clone().next().map_or(0, each);
    addresses.count().min(usize::from(u16::MAX) / octets.max(1) + 1) * octets
}

fn record(body: &mut Vec<u8>, rtype: RType, data: &[u8]) {
    body.extend_from_slice(&[0xc0, wire::HEADER as u8]);
    body.extend_from_slice(&rtype.0.to_be_bytes());
    body.extend_from_slice(&Class::IN.0.to_be_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&(data.len() as u16).to_be_bytes());
    body.extend_from_slice(data);
}

/// So many addresses are looked through one by one.
const FEW: usize = 16;
/// Octets of a record before its data: a pointer, type, class, TTL and length.
const RECORD: usize = 12;
