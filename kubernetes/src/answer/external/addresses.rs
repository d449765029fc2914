//! Where a service is reached, record by record.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use wire::{Class, HEADER, MAX_NAME, Name, Owner, Query, RType, Reply, Section};

use super::super::apex::{MOST_SERVERS, owner_at, push_address};
use super::super::endpoints::Order;
use super::super::external_target;
use super::super::port_match::{MOST_LOOKS, MeantPorts};
use super::{External, Meant, weight};
use crate::index::{At, Service};
use kubernetes_api::objects::ExternalAddress;

/// Writes where a service is reached. Both tell whether there is such a name, and whether a CNAME is to be followed.
pub(super) struct Places<'p, 'b> {
    pub(super) external: &'p External,
    /// Of the cluster's zone.
    pub(super) ttl: u32,
    pub(super) zone: &'p Name,
    pub(super) query: &'p Query<'p>,
    pub(super) room: usize,
    pub(super) reply: &'p mut Reply<'b>,
}

impl Places<'_, '_> {
    /// As in CoreDNS, whatever endpoint is named.
    pub(super) fn of_external(&mut self, service: &Service, meant: &Meant<'_>) -> Option<bool> {
        let count = meant.count(service.ports());
        if count == 0 || service.external().is_empty() {
            return None;
        }
        match self.query.rtype {
            RType::A | RType::AAAA => Some(self.addresses_of_external(service)),
            RType::SRV => {
                self.srv_of_external(service, meant, count);
                Some(false)
            }
            _ => Some(false),
        }
    }

    /// Tells whether a CNAME is written.
    fn addresses_of_external(&mut self, service: &Service) -> bool {
        let wants_v4 = self.query.rtype == RType::A;
        let (mut seen, mut follows) = (HashSet::new(), false);
        for external in looked_at(service) {
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

    /// Those of all addresses together lead to the service's own name.
    fn srv_of_external(&mut self, service: &Service, meant: &Meant<'_>, count: usize) {
        let numbers = meant.numbers(service.ports());
        if numbers.is_empty() {
            return;
        }
        let name = [meant.key, self.zone.as_wire()].concat();
        let weight = weight(count.saturating_mul(service.external().len()));
        let (mut seen, mut has_address) = (HashSet::new(), false);
        for external in looked_at(service) {
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
        // The question ends in the service's name.
        let owner = owner_at(HEADER + self.query.name.as_wire().len() - name.len(), &name);
        let mut addresses: Vec<IpAddr> = service.external_addresses().take(MOST_SERVERS).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.into_iter().for_each(|address| self.additional(&owner, address));
    }

    /// Endpoints by their own names below the service.
    pub(super) fn of_endpoints(&mut self, service: &Service, meant: &Meant<'_>) -> Option<bool> {
        let ports = meant.ports_of(service, self.query.rtype == RType::SRV);
        let chosen = |order| meant.endpoints(service, ports.as_ref(), order);
        chosen(Order::Label).next()?;
        match (self.query.rtype, &ports) {
            (rtype @ (RType::A | RType::AAAA), _) => {
                let mut last = None;
                for address in chosen(Order::Address(rtype)).map(|at| at.endpoint.address) {
                    // Those of one address stand together.
                    if last.replace(address) != Some(address) {
                        self.address(address);
                    }
                    if self.is_full() {
                        break;
                    }
                }
            }
            (RType::SRV, Some(ports)) if ports.have_numbers() => {
                self.srv_of_endpoints(service, meant, ports);
            }
            _ => {}
        }
        Some(false)
    }

    fn srv_of_endpoints(&mut self, service: &Service, meant: &Meant<'_>, ports: &MeantPorts) {
        let chosen = || meant.endpoints(service, Some(ports), Order::Label);
        let with_numbers = || chosen().filter(|at| !ports.numbers(*at).is_empty());
        let weight = weight(ports.count(chosen()));
        let name = |at: At<'_>| {
            let label = service.label(at.endpoint);
            [&[label.octets().len() as u8], label.octets(), meant.key, self.zone.as_wire()].concat()
        };
        // Where each is written last, uncompressed (RFC 2782).
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        // Of the last name, for endpoints of one name stand together.
        let (mut last, mut slices, mut known) = (Vec::new(), HashSet::new(), HashSet::new());
        let mut looks = MOST_LOOKS;
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

    /// What will be cut is not written.
    fn is_full(&self) -> bool {
        self.reply.octets().len() > self.room
    }

    fn address(&mut self, address: IpAddr) {
        #[cfg(test)]
        crate::cost_counter::looked();
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

    /// Tells where in the message the target is written last.
    fn srv(&mut self, weight: u16, numbers: impl Iterator<Item = u16>, target: &[u8]) -> Option<usize> {
        if target.len() > MAX_NAME {
            return None;
        }
        let mut place = None;
        for number in numbers {
            #[cfg(test)]
            crate::cost_counter::looked();
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

/// As many of the places outside of a service as a query looks at.
fn looked_at(service: &Service) -> impl Iterator<Item = &ExternalAddress> {
    let looked = service.external().iter().take(MOST_LOOKS);
    #[cfg(test)]
    let looked = looked.inspect(|_| crate::cost_counter::looked());
    looked
}
