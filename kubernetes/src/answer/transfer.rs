//! Zone transfers, record by record: SOA, name servers, services by name, and the SOA again.

mod external;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use wire::{Name, RType};

use super::endpoints::name_endpoint;
use super::{AnswerOutcome, Responder};
use crate::index::{Index, Listing, Service, SliceEndpoint};
use external::ExternalServices;
use kubernetes_api::objects::{Port, Protocol, Target};

/// A zone at one serial, and the position in its transfer. Shares the services with the index.
pub struct Transfer {
    zone: Name,
    ttls: Ttls,
    soa: Vec<u8>,
    /// Names of the name servers.
    servers: Vec<Vec<u8>>,
    /// Addresses of the name servers, sorted.
    addresses: Vec<(Vec<u8>, IpAddr)>,
    /// The services, sorted by name, then by namespace.
    services: Vec<Arc<Service>>,
    /// Keeps the listing in use until the transfer ends.
    _listing: Option<Arc<Listing>>,
    view: ZoneView,
    part: Part,
    /// Position in the part: server or service, step, record.
    at: [usize; 3],
    /// For the service with this index, whether its slices have a port with a number, as far as
    /// scanned.
    numbered: (usize, HashMap<usize, bool>),
}

/// Result of [`Transfer::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A record did not fit.
    Full,
    /// The limit of scanned items was reached, perhaps without a record.
    Paused,
    /// The transfer is complete.
    All,
}

/// TTLs in seconds.
struct Ttls {
    soa: u32,
    /// For NS and address records.
    addresses: u32,
    /// For SRV and CNAME records.
    leading: u32,
}

/// Which records services have.
enum ZoneView {
    Cluster,
    External(ExternalServices),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Soa,
    NameServers,
    Addresses,
    Services,
    LastSoa,
    End,
}

/// An item of the transfer.
enum ZoneItem {
    Record(Vec<u8>, RType, Vec<u8>),
    Nothing,
    EndOfStep,
    EndOfService,
}

/// Callback for a record (owner, type, TTL, data); returns `false` if it does not fit.
pub type Push<'p> = dyn FnMut(&Name, RType, u32, &[u8]) -> bool + 'p;

impl Responder {
    /// Starts a transfer of a zone that is not a reverse zone. Only its SOA is sent if the client
    /// has this serial or a newer one, or with `soa_alone`.
    ///
    /// # Errors
    /// [`AnswerOutcome::NotInZones`] for other names, [`AnswerOutcome::Unsynced`] before all kinds
    /// are synced.
    pub fn transfer(
        &self,
        index: &Index,
        name: &Name,
        has: Option<u32>,
        soa_alone: bool,
    ) -> Result<Transfer, AnswerOutcome> {
        let zone = self.zones.iter().find(|zone| zone.name == *name);
        let Some((zone, grammar)) = zone.and_then(|zone| Some((zone, zone.grammar?))) else {
            return Err(AnswerOutcome::NotInZones);
        };
        let ttl = self.rules.ttl;
        let begun = Transfer::new(
            *name,
            Ttls { soa: ttl.min(super::apex::SOA_TTL), addresses: ttl, leading: ttl },
            ZoneView::Cluster,
        );
        let listing = match TransferScope::of(index, has, soa_alone)? {
            TransferScope::Soa(serial) => return Ok(begun.of_soa(self.soa_data(name, serial))),
            TransferScope::All(listing) => listing,
        };
        let listed = if grammar.multicluster { &listing.imports } else { &listing.services };
        let shown =
            listed.iter().filter(|listed| listed.is_known && self.shows(&listed.service.namespace.name));
        let services: Vec<_> = shown.map(|listed| listed.service.clone()).collect();
        let mut addresses = self.servers(|address| listing.of_address(address), zone);
        let mut servers: Vec<_> = addresses.iter().map(|(name, _)| name.clone()).collect();
        servers.dedup();
        // Addresses of transferred services are sent with the services.
        let is_server = |service: &&Arc<Service>| {
            !grammar.multicluster && self.rules.own.iter().any(|own| service.has(*own))
        };
        let sent: HashSet<_> =
            services.iter().filter(is_server).map(|service| name_of(service, name)).collect();
        addresses.retain(|(name, _)| {
            let below = name.get(1 + usize::from(name[0])..).unwrap_or_default();
            !sent.contains(&name[..]) && !sent.contains(below)
        });
        let soa = self.soa_data(name, listing.serial);
        Ok(Transfer { soa, servers, addresses, services, _listing: Some(listing), ..begun })
    }
}

/// What a transfer sends.
enum TransferScope {
    /// The SOA with this serial.
    Soa(u32),
    All(Arc<Listing>),
}

impl TransferScope {
    /// Decides by the client's serial: clients with the current or a newer serial get the SOA (RFC
    /// 1995, section 2).
    fn of(index: &Index, has: Option<u32>, soa_alone: bool) -> Result<Self, AnswerOutcome> {
        if let Some(kind) = index.unsynced().kinds().next() {
            return Err(AnswerOutcome::Unsynced(kind));
        }
        let serial = index.serial();
        // Serials wrap around (RFC 1982, section 3.2).
        let is_older = |serial: u32| has.is_none_or(|has| has.wrapping_sub(serial) > u32::MAX / 2);
        if soa_alone || !is_older(serial) {
            return Ok(Self::Soa(serial));
        }
        // A shared listing may be older than the current serial.
        let listing = index.listing();
        Ok(if is_older(listing.serial) { Self::All(listing) } else { Self::Soa(listing.serial) })
    }
}

impl Listing {
    /// Returns the services with an address.
    fn of_address(&self, address: IpAddr) -> Vec<Arc<Service>> {
        let services = self.services.iter().map(|listed| &listed.service);
        services.filter(|service| service.has(address)).cloned().collect()
    }
}

impl Transfer {
    /// Starts at the SOA, without name servers and services.
    fn new(zone: Name, ttls: Ttls, view: ZoneView) -> Self {
        Self {
            zone,
            ttls,
            soa: Vec::new(),
            servers: Vec::new(),
            addresses: Vec::new(),
            services: Vec::new(),
            _listing: None,
            view,
            part: Part::Soa,
            at: [0; 3],
            numbered: Default::default(),
        }
    }

    /// Sends only the SOA.
    fn of_soa(self, soa: Vec<u8>) -> Self {
        Self { soa, part: Part::LastSoa, ..self }
    }

    /// Passes records to `push` until one does not fit, which is the first in the next call, or
    /// until the limit of items per call.
    pub fn next(&mut self, push: &mut Push<'_>) -> Progress {
        let mut left = MAX_ITEMS_PER_CALL;
        while self.part != Part::End {
            // An untrusted service may have many ports without a record.
            let Some(remaining) = left.checked_sub(1) else { return Progress::Paused };
            left = remaining;
            match self.item() {
                ZoneItem::Record(owner, rtype, data) => {
                    // Skips names that are too long.
                    let Ok(owner) = Name::from_wire(&owner) else {
                        self.at[2] += 1;
                        continue;
                    };
                    let ttl = match rtype {
                        RType::SOA => self.ttls.soa,
                        RType::SRV | RType::CNAME => self.ttls.leading,
                        _ => self.ttls.addresses,
                    };
                    if !push(&owner, rtype, ttl, &data) {
                        return Progress::Full;
                    }
                    self.at[2] += 1;
                }
                ZoneItem::Nothing => self.at[2] += 1,
                ZoneItem::EndOfStep => self.at = [self.at[0], self.at[1] + 1, 0],
                ZoneItem::EndOfService => self.at = [self.at[0] + 1, 0, 0],
            }
        }
        Progress::All
    }

    /// Returns the item at the position; advances to the next part at the end of one.
    fn item(&mut self) -> ZoneItem {
        #[cfg(test)]
        crate::cost_counter::count();
        loop {
            let [number, step, record] = self.at;
            let next = match self.part {
                Part::Soa if record == 0 => {
                    return ZoneItem::Record(self.apex(), RType::SOA, self.soa.clone());
                }
                Part::Soa => Part::NameServers,
                Part::NameServers => match self.servers.get(record) {
                    Some(name) => return ZoneItem::Record(self.apex(), RType::NS, name.clone()),
                    None => Part::Addresses,
                },
                Part::Addresses => match self.addresses.get(record) {
                    Some((name, address)) => return address_record(name.clone(), *address),
                    None => Part::Services,
                },
                Part::Services => match (self.services.get(number), &mut self.view) {
                    (Some(service), view) => {
                        if has_no_srv(&mut self.numbered, service, self.at) {
                            return ZoneItem::EndOfStep;
                        }
                        return match view {
                            ZoneView::Cluster => of_service(&self.zone, service, step, record),
                            ZoneView::External(external) => external.of_service(&self.zone, service, self.at),
                        };
                    }
                    (None, _) => Part::LastSoa,
                },
                Part::LastSoa if record == 0 => {
                    return ZoneItem::Record(self.apex(), RType::SOA, self.soa.clone());
                }
                Part::LastSoa | Part::End => Part::End,
            };
            (self.part, self.at) = (next, [0; 3]);
            if next == Part::End {
                return ZoneItem::Nothing;
            }
        }
    }

    fn apex(&self) -> Vec<u8> {
        self.zone.as_wire().to_vec()
    }
}

/// Whether an endpoint has no SRV records, since no port of its slice has a number. Each slice is
/// scanned once.
fn has_no_srv(
    numbered: &mut (usize, HashMap<usize, bool>),
    service: &Service,
    [number, step, record]: [usize; 3],
) -> bool {
    let endpoint = step.checked_sub(service.endpoint_count()).filter(|_| record == 1);
    let Some(endpoint) = endpoint.filter(|endpoint| *endpoint < service.endpoint_count()) else {
        return false;
    };
    if service.target() != Some(&Target::Headless) {
        return false;
    }
    if numbered.0 != number {
        *numbered = (number, HashMap::new());
    }
    let at = service.nth_by_label(endpoint);
    !*numbered.1.entry(at.number).or_insert_with(|| at.slice.ports.iter().any(|port| port.port.is_some()))
}

fn name_of(service: &Service, zone: &Name) -> Vec<u8> {
    [service.key(), &b"\x03svc"[..], zone.as_wire()].concat()
}

fn of_service(zone: &Name, service: &Service, step: usize, record: usize) -> ZoneItem {
    let name = name_of(service, zone);
    match service.target() {
        Some(Target::ClusterIps(addresses)) => of_addresses(service, name, addresses, step, record),
        Some(Target::Headless) => of_endpoints(service, &name, step, record),
        Some(Target::ExternalName(to)) if (step, record) == (0, 0) => match super::external_target(to) {
            Some(target) => ZoneItem::Record(name, RType::CNAME, target.as_wire().to_vec()),
            None => ZoneItem::EndOfService,
        },
        Some(Target::ExternalName(_)) | None => ZoneItem::EndOfService,
    }
}

/// Items of a service with cluster IPs: addresses, then two records for each port: at the name of
/// the service, and at the name of the port if it has one.
fn of_addresses(
    service: &Service,
    name: Vec<u8>,
    addresses: &[IpAddr],
    step: usize,
    record: usize,
) -> ZoneItem {
    if let Some(address) = addresses.get(step) {
        return if record == 0 { address_record(name, *address) } else { ZoneItem::EndOfStep };
    }
    let number = step - addresses.len();
    let Some(port) = service.ports().get(number).filter(|_| !addresses.is_empty()) else {
        return ZoneItem::EndOfService;
    };
    let before = &service.ports()[number.saturating_sub(MAX_COMPARED)..number];
    match record {
        // One record for two protocols with the same number.
        0 if before.iter().any(|other| other.port == port.port) => ZoneItem::Nothing,
        0 => srv(name.clone(), 100, port, &name),
        1 => of_port(port, &name).map_or(ZoneItem::Nothing, |owner| srv(owner, 100, port, &name)),
        _ => ZoneItem::EndOfStep,
    }
}

/// Items of a headless service: addresses at its name, then for each endpoint the address at its
/// own name, and its ports.
fn of_endpoints(service: &Service, name: &[u8], step: usize, record: usize) -> ZoneItem {
    let count = service.endpoint_count();
    if step < count {
        return endpoint_address(service, name, step, record);
    }
    let number = step - count;
    if number >= count {
        return ZoneItem::EndOfService;
    }
    let at = service.nth_by_label(number);
    let own = endpoint_name(service, at, name);
    let mut before = of_label(service, number).filter(|before| endpoint_name(service, *before, name) == own);
    let Some(nth) = record.checked_sub(1) else {
        return match before.any(|before| before.endpoint.address == at.endpoint.address) {
            true => ZoneItem::Nothing,
            false => address_record(own, at.endpoint.address),
        };
    };
    let Some(port) = at.slice.ports.get(nth) else { return ZoneItem::EndOfStep };
    // An earlier endpoint of the same slice has the records of all ports of the slice.
    if before.clone().any(|before| before.number == at.number) {
        return ZoneItem::EndOfStep;
    }
    if before.any(|before| before.slice.ports.iter().take(MAX_COMPARED).any(|other| other == port)) {
        return ZoneItem::Nothing;
    }
    let weight = (100 / at.slice.endpoints.len().max(1)).max(1);
    of_port(port, name).map_or(ZoneItem::Nothing, |owner| srv(owner, weight as u16, port, &own))
}

/// Returns the address of an endpoint at the name of its service, unless an earlier endpoint has
/// the same address.
fn endpoint_address(service: &Service, name: &[u8], step: usize, record: usize) -> ZoneItem {
    let address = |place| service.nth_by_address(place).endpoint.address;
    match record {
        0 if step > 0 && address(step - 1) == address(step) => ZoneItem::EndOfStep,
        0 => address_record(name.to_vec(), address(step)),
        _ => ZoneItem::EndOfStep,
    }
}

/// Returns the endpoints before one, in the order of labels, with the same label.
fn of_label(service: &Service, number: usize) -> impl Iterator<Item = SliceEndpoint<'_>> + Clone {
    let label = move |number| service.label(service.nth_by_label(number).endpoint);
    let back = (number.saturating_sub(MAX_COMPARED)..number).rev();
    back.take_while(move |before| *label(*before).octets() == *label(number).octets())
        .map(move |before| service.nth_by_label(before))
}

fn endpoint_name(service: &Service, at: SliceEndpoint<'_>, name: &[u8]) -> Vec<u8> {
    let mut own = Vec::new();
    name_endpoint(&mut own, service, at);
    own.extend_from_slice(name);
    own
}

fn address_record(owner: Vec<u8>, address: IpAddr) -> ZoneItem {
    match address {
        IpAddr::V4(address) => ZoneItem::Record(owner, RType::A, address.octets().into()),
        IpAddr::V6(address) => ZoneItem::Record(owner, RType::AAAA, address.octets().into()),
    }
}

fn srv(owner: Vec<u8>, weight: u16, port: &Port, target: &[u8]) -> ZoneItem {
    let Some(number) = port.port.filter(|_| target.len() <= wire::MAX_NAME) else { return ZoneItem::Nothing };
    let numbers = [0, weight, number].map(u16::to_be_bytes);
    ZoneItem::Record(owner, RType::SRV, [numbers.as_flattened(), target].concat())
}

/// Returns `_port._protocol` below a service; `None` if the port has no name that is a label.
fn of_port(port: &Port, name: &[u8]) -> Option<Vec<u8>> {
    let protocol: &[u8] = match port.protocol {
        Protocol::Tcp => b"\x04_tcp",
        Protocol::Udp => b"\x04_udp",
        Protocol::Sctp => b"\x05_sctp",
    };
    let length = u8::try_from(port.name.len() + 1).ok().filter(|length| (2..=63).contains(length))?;
    let own = port.name.to_ascii_lowercase();
    Some([&[length, b'_'], own.as_bytes(), protocol, name].concat())
}

impl Responder {
    /// Returns uncompressed SOA data.
    fn soa_data(&self, zone: &Name, serial: u32) -> Vec<u8> {
        let numbers = super::apex::soa_numbers(serial, self.rules.ttl);
        let zone = zone.as_wire();
        [b"\x02ns\x03dns", zone, b"\x0ahostmaster", zone, numbers.as_flattened()].concat()
    }
}

/// Items scanned in a call, after which the caller checks the client, the time and other work.
const MAX_ITEMS_PER_CALL: usize = 1_000;
/// Ports, and endpoints of the same name, that are compared for duplicates: usual are a few.
const MAX_COMPARED: usize = 64;

#[cfg(test)]
mod tests;
