//! A zone in which services are known by where they are reached from outside: `SERVICE.NAMESPACE.ZONE`, for `k8s_external`.

mod addresses;
mod name_parser;

use std::net::IpAddr;
use std::sync::Arc;

use wire::{Class, Flags, HEADER, MAX_NAME, Name, Owner, Query, RType, Rcode, Reply, Section};

pub(super) use self::name_parser::{Below, Meant};

use self::addresses::Places;
use self::name_parser::read;
use super::apex::{LEAD_TO_SERVERS, MOST_SERVERS, owner_at, push_address, soa_numbers};
use super::{Answered, Responder};
use crate::index::{Index, Service};
use kubernetes_api::objects::{Kind, Target};

/// What a `k8s_external` directive says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalRules {
    /// The zones; addresses lead back to the first of them.
    pub zones: Vec<Name>,
    /// The label below which the zone's servers are.
    pub apex: Box<str>,
    /// TTL of address, PTR, NS and SOA records in seconds, 0 to 3600; SRV and CNAME have that of the cluster's zone.
    pub ttl: u32,
    /// Endpoints of headless services have names here, too, where the service has nothing from outside.
    pub headless: bool,
}

/// Answers by rules, of the cluster that a [`Responder`] answers of.
#[derive(Debug)]
pub struct External {
    pub(super) rules: ExternalRules,
    /// The name servers' own name below each zone, as labels in wire form: `ns1.APEX`.
    pub(super) server: Box<[u8]>,
    pub(super) hostmaster: Box<[u8]>,
}

impl External {
    /// `None` where the apex can be no label.
    pub fn new(rules: ExternalRules) -> Option<Self> {
        let apex = rules.apex.to_ascii_lowercase();
        let length = u8::try_from(apex.len()).ok().filter(|length| (1..=63).contains(length))?;
        let below = |name: &[u8]| [name, &[length], apex.as_bytes()].concat().into();
        let (server, hostmaster) = (below(b"\x03ns1"), below(b"\x0ahostmaster"));
        Some(Self { rules, server, hostmaster })
    }

    /// Answers a question of class IN; `room` is the most octets that the reply may have.
    pub fn answer(
        &self,
        of: &Responder,
        index: &Index,
        query: &Query<'_>,
        room: usize,
        reply: &mut Reply<'_>,
    ) -> Answered {
        let Some((number, zone)) = self.zone_of(&query.name) else { return Answered::NotMine };
        reply.flags = Flags::AA;
        let shown = |namespace: &[u8]| of.shows(namespace) && index.has_namespace(namespace);
        let absent = |kinds: &[Kind]| match index.unknown().first_of(kinds) {
            Some(kind) => Answered::Unknown(kind),
            None => Answered::NoName(number),
        };
        match self.read(&query.name, zone) {
            Below::Apex => {
                if query.rtype == RType::NS
                    && let Some(kind) = index.unknown().first_of(LEAD_TO_SERVERS)
                {
                    return Answered::Unknown(kind);
                }
                self.at_apex(of, index, zone, query, room, reply);
                Answered::Written
            }
            Below::Servers(below) => self.below_apex(of, index, (number, below), query, room, reply),
            Below::Address(address) => {
                let names = self.names_of(of, index, address);
                if names.is_empty() {
                    return absent(&[Kind::Service]);
                }
                for name in names.iter().filter(|_| query.rtype == RType::PTR) {
                    reply.push(Section::Answer, Owner::Question, RType::PTR, Class::IN, self.rules.ttl, name);
                    if reply.octets().len() > room {
                        break;
                    }
                }
                self.answered(index, zone, query, false, reply)
            }
            Below::Namespace(namespace) if shown(namespace) => {
                self.answered(index, zone, query, false, reply)
            }
            Below::Service(meant) if shown(meant.namespace) => {
                let service = index.services.get(meant.key).filter(|service| service.object.is_some());
                let Some(service) = service else { return absent(&[Kind::Service]) };
                let of_endpoints = self.is_by_endpoints(&service, &meant);
                if of_endpoints && let Some(kind) = index.unknown().first_of(&[Kind::Slice]) {
                    return Answered::Unknown(kind);
                }
                let mut places = Places { external: self, ttl: of.rules().ttl, zone, query, room, reply };
                let there = match of_endpoints {
                    true => places.of_endpoints(&service, &meant),
                    false => places.of_external(&service, &meant),
                };
                match there {
                    Some(follows) => self.answered(index, zone, query, follows, reply),
                    None => Answered::NoName(number),
                }
            }
            Below::Namespace(_) | Below::Service(_) => absent(&[Kind::Namespace]),
            Below::Nothing => Answered::NoName(number),
        }
    }

    /// The longest zone that holds the name, and its place among them.
    pub(super) fn zone_of(&self, name: &Name) -> Option<(usize, &Name)> {
        let zones = self.rules.zones.iter().enumerate().filter(|(_, zone)| name.is_within(zone));
        zones.max_by_key(|(_, zone)| zone.as_wire().len())
    }

    /// What a name in `zone` says.
    pub(super) fn read<'n>(&self, name: &'n Name, zone: &Name) -> Below<'n> {
        let wire = name.as_wire();
        let below = &wire[..wire.len() - zone.as_wire().len()];
        if below.is_empty() {
            return Below::Apex;
        }
        if self.holds_servers(below) {
            return Below::Servers(below);
        }
        wire::reverse::address(name).map_or_else(|| read(below), Below::Address)
    }

    /// Whether a service is known here by its endpoints, as it has nothing from outside.
    pub(super) fn is_by_endpoints(&self, service: &Service, meant: &Meant<'_>) -> bool {
        let is_endpoint = !meant.endpoint.is_empty() || service.target() == Some(&Target::Headless);
        self.rules.headless && service.external().is_empty() && is_endpoint
    }

    /// What the name has is written; without any of it, that it is there.
    fn answered(
        &self,
        index: &Index,
        zone: &Name,
        query: &Query<'_>,
        follows: bool,
        reply: &mut Reply<'_>,
    ) -> Answered {
        if reply.counts()[0] == 0 {
            self.soa(index, zone, query, Section::Authority, reply);
        }
        if follows { Answered::Follow } else { Answered::Written }
    }

    /// The names of the services that are reached at an address.
    fn names_of(&self, of: &Responder, index: &Index, address: IpAddr) -> Vec<Vec<u8>> {
        let Some(zone) = self.rules.zones.first() else { return Vec::new() };
        let services = reached_at(of, index, address);
        let names = services.iter().map(|service| [service.key(), zone.as_wire()].concat());
        names.filter(|name| name.len() <= MAX_NAME).collect()
    }

    /// Says that there is no such name.
    pub fn deny(&self, index: &Index, zone: usize, query: &Query<'_>, reply: &mut Reply<'_>) {
        reply.clear();
        (reply.rcode, reply.flags) = (Rcode::NXDOMAIN, Flags::AA);
        if let Some(zone) = self.rules.zones.get(zone) {
            self.soa(index, zone, query, Section::Authority, reply);
        }
    }

    /// Whether labels stand where the zone's servers have their names: the one next to the zone is the apex.
    pub(super) fn holds_servers(&self, labels: &[u8]) -> bool {
        let (mut next, mut rest) = (labels, labels);
        while let Some((label, after)) =
            rest.first().and_then(|length| rest.split_at_checked(1 + usize::from(*length)))
        {
            (next, rest) = (label, after);
        }
        *next == *self.apex()
    }

    /// The apex label in wire form.
    pub(super) fn apex(&self) -> &[u8] {
        &self.server[b"\x03ns1".len()..]
    }

    fn at_apex(
        &self,
        of: &Responder,
        index: &Index,
        zone: &Name,
        query: &Query<'_>,
        room: usize,
        reply: &mut Reply<'_>,
    ) {
        match query.rtype {
            RType::SOA => self.soa(index, zone, query, Section::Answer, reply),
            RType::NS => {
                let name = [&self.server, zone.as_wire()].concat();
                let ttl = self.rules.ttl;
                reply.push(Section::Answer, Owner::Question, RType::NS, Class::IN, ttl, &name);
                let owner = owner_at(reply.octets().len() - name.len(), &name);
                for address in self.own_addresses(of, |own| index.services.of_address(own)) {
                    if reply.octets().len() > room {
                        break;
                    }
                    push_address(reply, Section::Additional, Owner::Name(&owner), None, ttl, address);
                }
            }
            _ => self.soa(index, zone, query, Section::Authority, reply),
        }
    }

    /// `APEX` and `ns1.APEX`, and nothing else there.
    fn below_apex(
        &self,
        of: &Responder,
        index: &Index,
        (number, below): (usize, &[u8]),
        query: &Query<'_>,
        room: usize,
        reply: &mut Reply<'_>,
    ) -> Answered {
        if *below == *self.server {
            if let Some(kind) = index.unknown().first_of(LEAD_TO_SERVERS) {
                return Answered::Unknown(kind);
            }
            for address in self.own_addresses(of, |own| index.services.of_address(own)) {
                let rtype = Some(query.rtype);
                push_address(reply, Section::Answer, Owner::Question, rtype, self.rules.ttl, address);
                if reply.octets().len() > room {
                    break;
                }
            }
        } else if *below != *self.apex() {
            self.deny(index, number, query, reply);
            return Answered::Written;
        }
        if reply.counts()[0] == 0 {
            self.soa(index, &self.rules.zones[number], query, Section::Authority, reply);
        }
        Answered::Written
    }

    fn soa(&self, index: &Index, zone: &Name, query: &Query<'_>, section: Section, reply: &mut Reply<'_>) {
        // The question ends in the zone: names are pointers into it.
        let zone_at = HEADER + query.name.as_wire().len() - zone.as_wire().len();
        let pointer = (0xc000 | zone_at as u16).to_be_bytes();
        let numbers = soa_numbers(index.serial(), self.rules.ttl);
        let data = [&self.server, &pointer[..], &self.hostmaster, &pointer, numbers.as_flattened()].concat();
        reply.push(section, Owner::Name(&pointer), RType::SOA, Class::IN, self.rules.ttl, &data);
    }

    /// From outside, this server is where the services are reached that it is an endpoint of, or some of them; else at its own
    /// addresses. `of_address` finds the services that an address leads back to.
    pub(super) fn own_addresses(
        &self,
        of: &Responder,
        of_address: impl Fn(IpAddr) -> Vec<Arc<Service>>,
    ) -> Vec<IpAddr> {
        let (mut addresses, mut is_endpoint) = (Vec::new(), false);
        for own in &of.rules().own {
            for service in of_address(*own) {
                if service.of_address(*own).next().is_none() {
                    continue;
                }
                is_endpoint = true;
                let left = MOST_SERVERS - addresses.len();
                if self.rules.headless && service.target() == Some(&Target::Headless) {
                    addresses.extend(service.by_address().map(|at| at.endpoint.address).take(left));
                } else {
                    addresses.extend(service.external_addresses().take(left));
                }
            }
        }
        if !is_endpoint {
            addresses.clone_from(&of.rules().own);
        }
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

/// The services that are reached at an address from outside.
pub(super) fn reached_at(of: &Responder, index: &Index, address: IpAddr) -> Vec<Arc<Service>> {
    let mut services = index.services.of_address(address);
    services.retain(|service| service.is_reached_at(address));
    services.retain(|service| of.shows_reverse(service));
    services
}

/// All have the same share of 100, and each has some.
pub(super) fn weight(count: usize) -> u16 {
    (100 / count.max(1)).max(1) as u16
}

#[cfg(test)]
mod tests;
