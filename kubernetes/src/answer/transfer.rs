//! A zone as a whole, record by record: its SOA, its servers, its services by name, and the SOA again.

mod external;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use wire::{Name, RType};

use super::endpoints::name_endpoint;
use super::{Answered, Responder};
use crate::index::{At, Index, Listing, Service};
use external::ExternalServices;
use kubernetes_api::objects::{Port, Protocol, Target};

/// A zone as it was at one serial, and how far it has been told. It holds what the index held then, and copies nothing of it.
pub struct Transfer {
    zone: Name,
    ttls: Ttls,
    soa: Vec<u8>,
    /// The names of the zone's servers.
    servers: Vec<Vec<u8>>,
    /// Theirs, in order.
    addresses: Vec<(Vec<u8>, IpAddr)>,
    /// By name, then by namespace.
    services: Vec<Arc<Service>>,
    /// What they are of: it counts as read for as long as somebody has it.
    _listing: Option<Arc<Listing>>,
    seen_from: SeenFrom,
    part: Part,
    /// In its part: which server or service, which of its steps, which record of that.
    at: [usize; 3],
    /// Of the service with this number, which slices have a port with a number, as far as they were looked at.
    numbered: (usize, HashMap<usize, bool>),
}

/// How far [`Transfer::next`] has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A record found no room.
    Full,
    /// It has looked at as much as it may at once; there may be no record that it told.
    Paused,
    /// That was the last.
    All,
}

/// In seconds.
struct Ttls {
    soa: u32,
    /// Of NS and address records.
    addresses: u32,
    /// Of records that lead to a name.
    leading: u32,
}

/// Where the names of the services are for.
enum SeenFrom {
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

/// What stands at a place.
enum Place {
    Record(Vec<u8>, RType, Vec<u8>),
    Nothing,
    EndOfStep,
    EndOfService,
}

/// Takes a record, or has no room for it: owner, type, TTL and data.
pub type Push<'p> = dyn FnMut(&Name, RType, u32, &[u8]) -> bool + 'p;

impl Responder {
    /// A zone of names as it is now; its SOA alone for whoever has that serial or a newer one, or asks for no more.
    ///
    /// # Errors
    /// [`Answered::NotMine`] for what is no such zone, [`Answered::Unknown`] before all is known.
    pub fn transfer(
        &self,
        index: &Index,
        name: &Name,
        has: Option<u32>,
        soa_alone: bool,
    ) -> Result<Transfer, Answered> {
        let zone = self.zones.iter().find(|zone| zone.name == *name);
        let Some((zone, grammar)) = zone.and_then(|zone| Some((zone, zone.grammar?))) else {
            return Err(Answered::NotMine);
        };
        let ttl = self.rules.ttl;
        let begun = Transfer::new(
            *name,
            Ttls { soa: ttl.min(super::apex::SOA_TTL), addresses: ttl, leading: ttl },
            SeenFrom::Cluster,
        );
        let listing = match Wanted::of(index, has, soa_alone)? {
            Wanted::Soa(serial) => return Ok(begun.of_soa(self.soa_data(name, serial))),
            Wanted::All(listing) => listing,
        };
        let listed = if grammar.multicluster { &listing.imports } else { &listing.services };
        let shown =
            listed.iter().filter(|listed| listed.is_known && self.shows(&listed.service.namespace.name));
        let services: Vec<_> = shown.map(|listed| listed.service.clone()).collect();
        let mut addresses = self.servers(|address| listing.of_address(address), zone);
        let mut servers: Vec<_> = addresses.iter().map(|(name, _)| name.clone()).collect();
        servers.dedup();
        // Those of a service that is sent come with it.
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

/// What somebody is to be sent.
enum Wanted {
    /// The SOA, of this serial.
    Soa(u32),
    All(Arc<Listing>),
}

impl Wanted {
    /// Whoever has what there is, or something newer, gets the SOA (RFC 1995, section 2).
    fn of(index: &Index, has: Option<u32>, soa_alone: bool) -> Result<Self, Answered> {
        if let Some(kind) = index.unknown().kinds().next() {
            return Err(Answered::Unknown(kind));
        }
        let serial = index.serial();
        // Serials wrap around (RFC 1982, section 3.2).
        let is_older = |serial: u32| has.is_none_or(|has| has.wrapping_sub(serial) > u32::MAX / 2);
        if soa_alone || !is_older(serial) {
            return Ok(Self::Soa(serial));
        }
        // One that is shared may be older than what there is.
        let listing = index.listing();
        Ok(if is_older(listing.serial) { Self::All(listing) } else { Self::Soa(listing.serial) })
    }
}

impl Listing {
    /// The services that an address leads back to.
    fn of_address(&self, address: IpAddr) -> Vec<Arc<Service>> {
        let services = self.services.iter().map(|listed| &listed.service);
        services.filter(|service| service.has(address)).cloned().collect()
    }
}

impl Transfer {
    /// From its SOA on, of a zone without servers and services.
    fn new(zone: Name, ttls: Ttls, seen_from: SeenFrom) -> Self {
        Self {
            zone,
            ttls,
            soa: Vec::new(),
            servers: Vec::new(),
            addresses: Vec::new(),
            services: Vec::new(),
            _listing: None,
            seen_from,
            part: Part::Soa,
            at: [0; 3],
            numbered: Default::default(),
        }
    }

    /// That is all that is sent.
    fn of_soa(self, soa: Vec<u8>) -> Self {
        Self { soa, part: Part::LastSoa, ..self }
    }

    /// Tells records until one finds no room, which comes first the next time, or for as long as others may wait.
    pub fn next(&mut self, push: &mut Push<'_>) -> Progress {
        let mut looks = MOST_AT_ONCE;
        while self.part != Part::End {
            // A service has as many ports as who may write it likes, and none of them need have a record.
            let Some(left) = looks.checked_sub(1) else { return Progress::Paused };
            looks = left;
            match self.place() {
                Place::Record(owner, rtype, data) => {
                    // Whatever is too long to be a name is none.
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
                Place::Nothing => self.at[2] += 1,
                Place::EndOfStep => self.at = [self.at[0], self.at[1] + 1, 0],
                Place::EndOfService => self.at = [self.at[0] + 1, 0, 0],
            }
        }
        Progress::All
    }

    /// What stands at the place that it has come to; goes on to the next part where one ends.
    fn place(&mut self) -> Place {
        #[cfg(test)]
        crate::cost_counter::looked();
        loop {
            let [number, step, record] = self.at;
            let next = match self.part {
                Part::Soa if record == 0 => return Place::Record(self.apex(), RType::SOA, self.soa.clone()),
                Part::Soa => Part::NameServers,
                Part::NameServers => match self.servers.get(record) {
                    Some(name) => return Place::Record(self.apex(), RType::NS, name.clone()),
                    None => Part::Addresses,
                },
                Part::Addresses => match self.addresses.get(record) {
                    Some((name, address)) => return address_record(name.clone(), *address),
                    None => Part::Services,
                },
                Part::Services => match (self.services.get(number), &mut self.seen_from) {
                    (Some(service), seen_from) => {
                        if is_silent(&mut self.numbered, service, self.at) {
                            return Place::EndOfStep;
                        }
                        return match seen_from {
                            SeenFrom::Cluster => of_service(&self.zone, service, step, record),
                            SeenFrom::External(external) => external.of_service(&self.zone, service, self.at),
                        };
                    }
                    (None, _) => Part::LastSoa,
                },
                Part::LastSoa if record == 0 => {
                    return Place::Record(self.apex(), RType::SOA, self.soa.clone());
                }
                Part::LastSoa | Part::End => Part::End,
            };
            (self.part, self.at) = (next, [0; 3]);
            if next == Part::End {
                return Place::Nothing;
            }
        }
    }

    fn apex(&self) -> Vec<u8> {
        self.zone.as_wire().to_vec()
    }
}

/// Whether what follows the address of an endpoint is nothing, as no port of its slice has a number. Each slice is looked at
/// once.
fn is_silent(
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

fn of_service(zone: &Name, service: &Service, step: usize, record: usize) -> Place {
    let name = name_of(service, zone);
    match service.target() {
        Some(Target::ClusterIps(addresses)) => of_addresses(service, name, addresses, step, record),
        Some(Target::Headless) => of_endpoints(service, &name, step, record),
        Some(Target::ExternalName(to)) if (step, record) == (0, 0) => match super::external_target(to) {
            Some(target) => Place::Record(name, RType::CNAME, target.as_wire().to_vec()),
            None => Place::EndOfService,
        },
        Some(Target::ExternalName(_)) | None => Place::EndOfService,
    }
}

/// Addresses, then two records for each port: at the service's name, and at the port's own where it has one.
fn of_addresses(service: &Service, name: Vec<u8>, addresses: &[IpAddr], step: usize, record: usize) -> Place {
    if let Some(address) = addresses.get(step) {
        return if record == 0 { address_record(name, *address) } else { Place::EndOfStep };
    }
    let number = step - addresses.len();
    let Some(port) = service.ports().get(number).filter(|_| !addresses.is_empty()) else {
        return Place::EndOfService;
    };
    let before = &service.ports()[number.saturating_sub(LOOKED_BACK)..number];
    match record {
        // One number, two protocols: one record.
        0 if before.iter().any(|other| other.port == port.port) => Place::Nothing,
        0 => srv(name.clone(), 100, port, &name),
        1 => of_port(port, &name).map_or(Place::Nothing, |owner| srv(owner, 100, port, &name)),
        _ => Place::EndOfStep,
    }
}

/// Every address at the service's name, then each endpoint: its address at its own name, and its ports.
fn of_endpoints(service: &Service, name: &[u8], step: usize, record: usize) -> Place {
    let count = service.endpoint_count();
    if step < count {
        return endpoint_address(service, name, step, record);
    }
    let number = step - count;
    if number >= count {
        return Place::EndOfService;
    }
    let at = service.nth_by_label(number);
    let own = endpoint_name(service, at, name);
    let mut before = of_label(service, number).filter(|before| endpoint_name(service, *before, name) == own);
    let Some(nth) = record.checked_sub(1) else {
        return match before.any(|before| before.endpoint.address == at.endpoint.address) {
            true => Place::Nothing,
            false => address_record(own, at.endpoint.address),
        };
    };
    let Some(port) = at.slice.ports.get(nth) else { return Place::EndOfStep };
    // An earlier endpoint of the same slice sent the records of all the slice's ports already.
    if before.clone().any(|before| before.number == at.number) {
        return Place::EndOfStep;
    }
    if before.any(|before| before.slice.ports.iter().take(LOOKED_BACK).any(|other| other == port)) {
        return Place::Nothing;
    }
    let weight = (100 / at.slice.endpoints.len().max(1)).max(1);
    of_port(port, name).map_or(Place::Nothing, |owner| srv(owner, weight as u16, port, &own))
}

/// The address of an endpoint at its service's name, if none before it has that one.
fn endpoint_address(service: &Service, name: &[u8], step: usize, record: usize) -> Place {
    let address = |place| service.nth_by_address(place).endpoint.address;
    match record {
        0 if step > 0 && address(step - 1) == address(step) => Place::EndOfStep,
        0 => address_record(name.to_vec(), address(step)),
        _ => Place::EndOfStep,
    }
}

/// Those before an endpoint, in the order of labels, that have its label.
fn of_label(service: &Service, number: usize) -> impl Iterator<Item = At<'_>> + Clone {
    let label = move |number| service.label(service.nth_by_label(number).endpoint);
    let back = (number.saturating_sub(LOOKED_BACK)..number).rev();
    back.take_while(move |before| *label(*before).octets() == *label(number).octets())
        .map(move |before| service.nth_by_label(before))
}

fn endpoint_name(service: &Service, at: At<'_>, name: &[u8]) -> Vec<u8> {
    let mut own = Vec::new();
    name_endpoint(&mut own, service, at);
    own.extend_from_slice(name);
    own
}

fn address_record(owner: Vec<u8>, address: IpAddr) -> Place {
    match address {
        IpAddr::V4(address) => Place::Record(owner, RType::A, address.octets().into()),
        IpAddr::V6(address) => Place::Record(owner, RType::AAAA, address.octets().into()),
    }
}

fn srv(owner: Vec<u8>, weight: u16, port: &Port, target: &[u8]) -> Place {
    let Some(number) = port.port.filter(|_| target.len() <= wire::MAX_NAME) else { return Place::Nothing };
    let numbers = [0, weight, number].map(u16::to_be_bytes);
    Place::Record(owner, RType::SRV, [numbers.as_flattened(), target].concat())
}

/// `_port._protocol` below a service; `None` where the port has no name that could stand there.
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
    /// An SOA record's data, with its names written out.
    fn soa_data(&self, zone: &Name, serial: u32) -> Vec<u8> {
        let numbers = super::apex::soa_numbers(serial, self.rules.ttl);
        let zone = zone.as_wire();
        [b"\x02ns\x03dns", zone, b"\x0ahostmaster", zone, numbers.as_flattened()].concat()
    }
}

/// So many places are looked at before the client, the time and others have their turn.
const MOST_AT_ONCE: usize = 1_000;
/// How many ports before one are compared with it, and how many of how many endpoints with its name: there are a handful.
const LOOKED_BACK: usize = 64;

#[cfg(test)]
mod tests;
