//! A service: its object, its slices, and the encoded records at its name.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};

use wire::{Class, RType};

use kubernetes_api::objects::{self, Endpoint, Port, Slice, Target};

use super::dns_label::{Label, MAX_LABEL};

/// An immutable service in the index, replaced as a whole.
pub(crate) struct Service {
    /// The name, and the encoded A and AAAA records there, each owner a pointer to the question,
    /// with TTL 0.
    octets: Box<[u8]>,
    pub(crate) namespace: Arc<Namespace>,
    /// End of the A records.
    a_end: u32,
    /// End of the name.
    key_end: u8,
    source: AddressSource,
    has_endpoints: bool,
    naming: EndpointNaming,
    sorted: Option<Box<SortedAddresses>>,
    /// The service object; `None` if only slices exist.
    pub(crate) object: Option<Arc<objects::Service>>,
    pub(crate) slices: Box<[Arc<Slice>]>,
    /// All endpoints by label, then by address.
    by_label: Box<[EndpointRef]>,
    /// All endpoints by address.
    by_address: Box<[EndpointRef]>,
}

/// Source of the addresses at a service's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressSource {
    /// From its cluster IPs.
    ClusterIps,
    /// From its endpoints.
    Endpoints,
    /// No addresses: the name is a CNAME, or only slices exist.
    Other,
}

/// Role of an address of a service, for reverse lookups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressRole {
    /// A cluster IP.
    Own,
    /// An external address.
    External,
    /// An address of an endpoint.
    Endpoint,
}

impl AddressRole {
    pub(super) const ALL: [Self; 3] = [Self::Own, Self::External, Self::Endpoint];
}

/// How endpoints are named.
#[derive(Clone, Copy, Default)]
pub(crate) struct EndpointNaming {
    /// By the pod's name, if the endpoint has no host name.
    pub(crate) pods: bool,
    /// With a label for the cluster, in imports.
    pub(crate) clusters: bool,
}

/// Sorted addresses of a service with many, for binary search: a service may have thousands.
struct SortedAddresses {
    own: Box<[IpAddr]>,
    external: Box<[IpAddr]>,
}

impl SortedAddresses {
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

/// A namespace of services.
pub(crate) struct Namespace {
    /// Name in lower case.
    pub(crate) name: Box<[u8]>,
    /// Whether the namespace exists among the watched namespaces.
    pub(crate) is_known: AtomicBool,
}

impl Namespace {
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Acquire)
    }
}

/// Reference to an endpoint: index of the slice, and of the endpoint in it.
#[derive(Clone, Copy)]
pub(crate) struct EndpointRef {
    slice: u32,
    endpoint: u32,
}

/// An endpoint with its slice.
#[derive(Clone, Copy)]
pub(crate) struct SliceEndpoint<'s> {
    /// Index of the slice in the service.
    pub(crate) number: usize,
    pub(crate) slice: &'s Arc<Slice>,
    pub(crate) endpoint: &'s Endpoint,
}

impl Service {
    /// Builds a service.
    pub(crate) fn new(
        key: &[u8],
        namespace: Arc<Namespace>,
        object: Option<Arc<objects::Service>>,
        slices: Box<[Arc<Slice>]>,
        naming: EndpointNaming,
    ) -> Self {
        let (by_label, by_address) = orders(&slices, naming);
        let source = match object.as_ref().map(|object| &object.target) {
            Some(Target::ClusterIps(_)) => AddressSource::ClusterIps,
            Some(Target::Headless) => AddressSource::Endpoints,
            Some(Target::ExternalName(_)) | None => AddressSource::Other,
        };
        let mut service = Self {
            octets: Box::default(),
            namespace,
            a_end: 0,
            // A key is NAME.NAMESPACE in wire form, at most 128 octets.
            key_end: key.len() as u8,
            source,
            has_endpoints: !by_address.is_empty(),
            naming,
            sorted: None,
            object,
            slices,
            by_label,
            by_address,
        };
        service.sorted = SortedAddresses::of(&service);
        let addresses = service.own_addresses();
        let octets = [IpAddr::is_ipv4, IpAddr::is_ipv6].map(|family| records_len(&addresses, family));
        let mut all = Vec::with_capacity(key.len() + octets[0] + octets[1]);
        all.extend_from_slice(key);
        records(&mut all, &addresses, IpAddr::is_ipv4);
        // Fits, since the records fit a message.
        service.a_end = all.len() as u32;
        records(&mut all, &addresses, IpAddr::is_ipv6);
        service.octets = all.into();
        service
    }

    /// Returns name and namespace as labels in wire form, in lower case.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.octets[..usize::from(self.key_end)]
    }

    /// Returns the source of the addresses at its name.
    #[inline]
    pub(crate) fn address_source(&self) -> AddressSource {
        self.source
    }

    /// Returns what its name resolves to; `None` if only slices exist.
    #[inline]
    pub(crate) fn target(&self) -> Option<&Target> {
        self.object.as_ref().map(|object| &object.target)
    }

    /// Returns the encoded records at its name.
    #[inline]
    pub(crate) fn ready(&self, rtype: RType) -> &[u8] {
        let a_end = self.a_end as usize;
        match rtype {
            RType::A => &self.octets[usize::from(self.key_end)..a_end],
            RType::AAAA => &self.octets[a_end..],
            _ => &[],
        }
    }

    /// Returns the addresses of one family at its name.
    pub(super) fn data(&self, rtype: RType) -> impl Iterator<Item = &[u8]> + Clone {
        let octets = RECORD + if rtype == RType::A { 4 } else { 16 };
        self.ready(rtype).chunks(octets).map(|record| &record[RECORD..])
    }

    /// Whether an address is one of its cluster IPs.
    pub(crate) fn owns(&self, address: IpAddr) -> bool {
        match &self.sorted {
            Some(sorted) => sorted.own.binary_search(&address).is_ok(),
            None => matches!(self.target(), Some(Target::ClusterIps(own)) if own.contains(&address)),
        }
    }

    /// Whether an address is one of its external addresses.
    pub(crate) fn is_reached_at(&self, address: IpAddr) -> bool {
        match &self.sorted {
            Some(sorted) => sorted.external.binary_search(&address).is_ok(),
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

    /// Returns the label of an endpoint.
    pub(crate) fn label(&self, endpoint: &Endpoint) -> Label {
        Label::of(endpoint, self.naming.pods)
    }

    /// Returns the cluster of an import's endpoint; empty if it has none or it is not a label.
    pub(crate) fn cluster<'s>(&self, at: SliceEndpoint<'s>) -> &'s [u8] {
        let import = at.slice.import.as_ref().filter(|_| self.naming.clusters);
        import
            .map(|import| import.cluster.as_bytes())
            .filter(|cluster| cluster.len() <= MAX_LABEL)
            .unwrap_or_default()
    }

    /// Returns the number of endpoints.
    pub(crate) fn endpoint_count(&self) -> usize {
        self.by_label.len()
    }

    /// Returns an endpoint by its position in the order of labels, below [`Self::endpoint_count`].
    pub(crate) fn nth_by_label(&self, number: usize) -> SliceEndpoint<'_> {
        self.at(self.by_label[number])
    }

    /// Returns an endpoint by its position in the order of addresses.
    pub(crate) fn nth_by_address(&self, number: usize) -> SliceEndpoint<'_> {
        self.at(self.by_address[number])
    }

    /// Returns its endpoints by label.
    pub(crate) fn by_label(&self) -> impl Iterator<Item = SliceEndpoint<'_>> {
        self.by_label.iter().map(|place| self.at(*place))
    }

    /// Returns its endpoints by address, which need not be distinct.
    pub(crate) fn by_address(&self) -> impl Iterator<Item = SliceEndpoint<'_>> {
        self.by_address.iter().map(|place| self.at(*place))
    }

    /// Returns its endpoints of one family by address; IPv4 addresses precede IPv6 ones.
    pub(crate) fn by_address_of(&self, rtype: RType) -> impl Iterator<Item = SliceEndpoint<'_>> {
        let v4_end = self.by_address.partition_point(|place| self.at(*place).endpoint.address.is_ipv4());
        let range = if rtype == RType::A { 0..v4_end } else { v4_end..self.by_address.len() };
        self.places(&self.by_address, range)
    }

    /// Returns its endpoints with a label, by address.
    pub(crate) fn of_label(&self, label: &[u8]) -> impl Iterator<Item = SliceEndpoint<'_>> {
        let of = |place: &EndpointRef| self.label(self.at(*place).endpoint);
        let start = self.by_label.partition_point(|place| *of(place).octets() < *label);
        let end = self.by_label.partition_point(|place| *of(place).octets() <= *label);
        self.places(&self.by_label, start..end)
    }

    /// Returns its endpoints with an address.
    pub(crate) fn of_address(&self, address: IpAddr) -> impl Iterator<Item = SliceEndpoint<'_>> {
        let start = self.by_address.partition_point(|place| self.at(*place).endpoint.address < address);
        let end = self.by_address.partition_point(|place| self.at(*place).endpoint.address <= address);
        self.places(&self.by_address, start..end)
    }

    /// Returns its distinct addresses by role, sorted, with or without those of its endpoints.
    pub(super) fn addresses(&self, endpoints: bool) -> Vec<(AddressRole, IpAddr)> {
        let of_endpoints = if endpoints { &*self.by_address } else { &[] };
        let mut addresses: Vec<_> = of_endpoints
            .iter()
            .map(|place| (AddressRole::Endpoint, self.at(*place).endpoint.address))
            .collect();
        if let Some(Target::ClusterIps(own)) = self.target() {
            addresses.extend(own.iter().map(|address| (AddressRole::Own, *address)));
        }
        // For reverse lookups of `k8s_external`.
        addresses.extend(self.external_addresses().map(|address| (AddressRole::External, address)));
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Returns its external addresses and names.
    pub(crate) fn external(&self) -> &[objects::ExternalAddress] {
        self.object.as_ref().map_or(&[], |object| &object.external)
    }

    /// Returns its external addresses.
    pub(crate) fn external_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.external().iter().filter_map(|external| {
            #[cfg(test)]
            crate::cost_counter::count();
            match external {
                objects::ExternalAddress::Ip(address) => Some(*address),
                objects::ExternalAddress::Name(_) => None,
            }
        })
    }

    /// Returns the distinct addresses at its name.
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
                // Sorted, so that duplicates are adjacent.
                let mut addresses: Vec<_> = self.by_address().map(|at| at.endpoint.address).collect();
                addresses.dedup();
                addresses
            }
            Some(Target::ExternalName(_)) | None => Vec::new(),
        }
    }

    fn places<'s>(
        &'s self,
        order: &'s [EndpointRef],
        range: Range<usize>,
    ) -> impl Iterator<Item = SliceEndpoint<'s>> {
        order.get(range).into_iter().flatten().map(|place| self.at(*place))
    }

    fn at(&self, place: EndpointRef) -> SliceEndpoint<'_> {
        #[cfg(test)]
        crate::cost_counter::count();
        // In bounds: references are created from `slices` with the service.
        let number = place.slice as usize;
        let slice = &self.slices[number];
        SliceEndpoint { number, slice, endpoint: &slice.endpoints[place.endpoint as usize] }
    }
}

/// Returns the endpoints of slices by label and by address.
fn orders(slices: &[Arc<Slice>], naming: EndpointNaming) -> (Box<[EndpointRef]>, Box<[EndpointRef]>) {
    let count = slices.iter().map(|slice| slice.endpoints.len()).sum();
    let mut all: Vec<(Label, IpAddr, EndpointRef)> = Vec::with_capacity(count);
    for (slice, index) in slices.iter().zip(0_u32..) {
        for (endpoint, number) in slice.endpoints.iter().zip(0_u32..) {
            let place = EndpointRef { slice: index, endpoint: number };
            all.push((Label::of(endpoint, naming.pods), endpoint.address, place));
        }
    }
    all.sort_by(|one, other| (one.0.octets(), one.1).cmp(&(other.0.octets(), other.1)));
    let by_label = all.iter().map(|(.., place)| *place).collect();
    all.sort_by_key(|(_, address, _)| *address);
    (by_label, all.iter().map(|(.., place)| *place).collect())
}

/// Appends the encoded address records of one family: at most one more than fit a message, so that
/// the reply is truncated.
fn records(body: &mut Vec<u8>, addresses: &[IpAddr], is_of_family: fn(&IpAddr) -> bool) {
    let end = body.len() + records_len(addresses, is_of_family);
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

/// Returns the length of the records that `records` appends.
fn records_len(addresses: &[IpAddr], is_of_family: fn(&IpAddr) -> bool) -> usize {
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

/// Maximum number of addresses that are searched linearly.
const FEW: usize = 16;
/// Bytes of a record before its data: a pointer, type, class, TTL and length.
const RECORD: usize = 12;
