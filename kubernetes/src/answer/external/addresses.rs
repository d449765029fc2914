//! Writes the external addresses of a service.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use wire::{Class, HEADER, MAX_NAME, Name, Owner, Query, RType, Reply, Section};

use super::super::apex::{MAX_SERVERS, owner_at, push_address};
use super::super::endpoints::Order;
use super::super::external_target;
use super::super::port_match::{MAX_SCANNED, PortMatch};
use super::{External, ExternalService, weight};
use crate::index::{Service, SliceEndpoint};
use kubernetes_api::objects::ExternalAddress;

/// Writes answers for a service. The methods return `None` if the name does not exist, else whether
/// a CNAME must be resolved.
pub(super) struct AddressWriter<'p, 'b> {
    pub(super) external: &'p External,
    /// TTL of the cluster's zone.
    pub(super) ttl: u32,
    pub(super) zone: &'p Name,
    pub(super) query: &'p Query<'p>,
    pub(super) room: usize,
    pub(super) reply: &'p mut Reply<'b>,
}

impl AddressWriter<'_, '_> {
    /// Writes external addresses; a label for an endpoint is ignored, as in CoreDNS.
    pub(super) fn write_external(&mut self, service: &Service, meant: &ExternalService<'_>) -> Option<bool> {
        let count = meant.count(service.ports());
        if count == 0 || service.external().is_empty() {
            return None;
        }
        match self.query.rtype {
            RType::A | RType::AAAA => Some(self.write_external_addresses(service)),
            RType::SRV => {
                self.write_external_srv(service, meant, count);
                Some(false)
            }
            _ => Some(false),
        }
    }

    /// Returns whether a CNAME is written.
    fn write_external_addresses(&mut self, service: &Service) -> bool {
        let wants_v4 = self.query.rtype == RType::A;
        let (mut seen, mut follows) = (HashSet::new(), false);
        for external in scanned(service) {
            if self.is_full() {
                break;
            }
            match external {
                ExternalAddress::Ip(address) if address.is_ipv4() != wants_v4 => {}
                external if !seen.insert(external) => {}
                ExternalAddress::Ip(address) => self.address(*address),
                ExternalAddress::Name(host) => {
                    let Some(target) = external_target(host) else { continue };
                    self.push(RType::CNAME, target.as_wire());
                    follows = true;
                }
            }
        }
        follows
    }

    /// Writes SRV records; those of all addresses have the service's name as target.
    fn write_external_srv(&mut self, service: &Service, meant: &ExternalService<'_>, count: usize) {
        let numbers = meant.numbers(service.ports());
        if numbers.is_empty() {
            return;
        }
        let name = [meant.key, self.zone.as_wire()].concat();
        let weight = weight(count.saturating_mul(service.external().len()));
        let (mut seen, mut has_address) = (HashSet::new(), false);
        for external in scanned(service) {
            if self.is_full() {
                return;
            }
            match external {
                ExternalAddress::Ip(_) if has_address => {}
                ExternalAddress::Ip(_) => {
                    has_address = true;
                    self.srv(weight, numbers.iter().copied(), &name);
                }
                ExternalAddress::Name(host) if seen.insert(host) => {
                    let Some(target) = external_target(host) else { continue };
                    self.srv(weight, numbers.iter().copied(), target.as_wire());
                }
                ExternalAddress::Name(_) => {}
            }
        }
        if self.is_full() {
            return;
        }
        // The question ends in the name of the service.
        let owner = owner_at(HEADER + self.query.name.as_wire().len() - name.len(), &name);
        let mut addresses: Vec<IpAddr> = service.external_addresses().take(MAX_SERVERS).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.into_iter().for_each(|address| self.additional(&owner, address));
    }

    /// Writes endpoints, with names below the service.
    pub(super) fn write_endpoints(&mut self, service: &Service, meant: &ExternalService<'_>) -> Option<bool> {
        let ports = meant.ports_of(service, self.query.rtype == RType::SRV);
        let chosen = |order| meant.endpoints(service, ports.as_ref(), order);
        chosen(Order::Label).next()?;
        match (self.query.rtype, &ports) {
            (rtype @ (RType::A | RType::AAAA), _) => {
                let mut last = None;
                for address in chosen(Order::Address(rtype)).map(|at| at.endpoint.address) {
                    // Endpoints of one address are adjacent.
                    if last.replace(address) != Some(address) {
                        self.address(address);
                    }
                    if self.is_full() {
                        break;
                    }
                }
            }
            (RType::SRV, Some(ports)) if ports.have_numbers() => {
                self.write_endpoint_srv(service, meant, ports);
            }
            _ => {}
        }
        Some(false)
    }

    fn write_endpoint_srv(&mut self, service: &Service, meant: &ExternalService<'_>, ports: &PortMatch) {
        let chosen = || meant.endpoints(service, Some(ports), Order::Label);
        let with_numbers = || chosen().filter(|at| !ports.numbers(*at).is_empty());
        let weight = weight(ports.count(chosen()));
        let name = |at: SliceEndpoint<'_>| {
            let label = service.label(at.endpoint);
            [&[label.octets().len() as u8], label.octets(), meant.key, self.zone.as_wire()].concat()
        };
        // Offset of the last occurrence of each target, which is uncompressed (RFC 2782).
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        // For the last name, since endpoints of one name are adjacent.
        let (mut last, mut slices, mut known) = (Vec::new(), HashSet::new(), HashSet::new());
        let mut looks = MAX_SCANNED;
        for at in with_numbers() {
            let own = name(at);
            if own != last {
                slices.clear();
                known.clear();
                last = own;
            }
            if !slices.insert(at.number) {
                continue;
            }
            let numbers = ports.numbers(at);
            let Some(left) = looks.checked_sub(numbers.len()) else { break };
            looks = left;
            let numbers = numbers.iter().copied().filter(|number| known.insert(*number));
            if let Some(place) = self.srv(weight, numbers, &last) {
                places.entry(last.clone()).or_insert(place);
            }
            if self.is_full() {
                return;
            }
        }
        let mut last = (Vec::new(), None);
        for at in with_numbers() {
            let own = (name(at), Some(at.endpoint.address));
            if own == last {
                continue;
            }
            if let Some(place) = places.get(&own.0) {
                self.additional(&owner_at(*place, &own.0), at.endpoint.address);
            }
            if self.is_full() {
                break;
            }
            last = own;
        }
    }

    /// Whether the reply will be truncated.
    fn is_full(&self) -> bool {
        self.reply.octets().len() > self.room
    }

    fn address(&mut self, address: IpAddr) {
        #[cfg(test)]
        crate::cost_counter::count();
        if !self.is_full() {
            let (rtype, ttl) = (Some(self.query.rtype), self.external.rules.ttl);
            push_address(self.reply, Section::Answer, Owner::Question, rtype, ttl, address);
        }
    }

    fn additional(&mut self, owner: &[u8], address: IpAddr) {
        if !self.is_full() {
            let ttl = self.external.rules.ttl;
            push_address(self.reply, Section::Additional, Owner::Name(owner), None, ttl, address);
        }
    }

    /// Returns the offset of the last written target.
    fn srv(&mut self, weight: u16, numbers: impl Iterator<Item = u16>, target: &[u8]) -> Option<usize> {
        if target.len() > MAX_NAME {
            return None;
        }
        let mut place = None;
        for number in numbers {
            #[cfg(test)]
            crate::cost_counter::count();
            if self.is_full() {
                break;
            }
            let data = [[0, weight, number].map(u16::to_be_bytes).as_flattened(), target].concat();
            self.push(RType::SRV, &data);
            place = Some(self.reply.octets().len() - target.len());
        }
        place
    }

    fn push(&mut self, rtype: RType, data: &[u8]) {
        if !self.is_full() {
            self.reply.push(Section::Answer, Owner::Question, rtype, Class::IN, self.ttl, data);
        }
    }
}

/// Returns the external addresses that a query scans.
fn scanned(service: &Service) -> impl Iterator<Item = &ExternalAddress> {
    let looked = service.external().iter().take(MAX_SCANNED);
    #[cfg(test)]
    let looked = looked.inspect(|_| crate::cost_counter::count());
    looked
}
