//! Answers in a zone of `k8s_external`, where `SERVICE.NAMESPACE.ZONE` has the external addresses
//! of a service.

mod addresses;
mod name_parser;

use std::net::IpAddr;
use std::sync::Arc;

use wire::{Class, Flags, HEADER, MAX_NAME, Name, Owner, Query, RType, Rcode, Reply, Section};

pub(super) use self::name_parser::{ExternalService, ParsedExternalName};

use self::addresses::AddressWriter;
use self::name_parser::parse;
use super::apex::{MAX_SERVERS, SERVER_KINDS, owner_at, push_address, soa_numbers};
use super::{AnswerOutcome, Responder};
use crate::index::{Index, Service};
use kubernetes_api::objects::{Kind, Target};

/// Options of a `k8s_external` directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalRules {
    /// The zones; PTR records point into the first.
    pub zones: Vec<Name>,
    /// The label below which the name servers are.
    pub apex: Box<str>,
    /// TTL of address, PTR, NS and SOA records in seconds, 0 to 3600; SRV and CNAME records have
    /// the TTL of the cluster's zone.
    pub ttl: u32,
    /// Whether headless services without external addresses are answered by their endpoints.
    pub headless: bool,
}

/// Answers questions in the zones of [`ExternalRules`], for the cluster of a [`Responder`].
#[derive(Debug)]
pub struct External {
    pub(super) rules: ExternalRules,
    /// Name of the name server below each zone, in wire form: `ns1.APEX`.
    pub(super) server: Box<[u8]>,
    pub(super) hostmaster: Box<[u8]>,
}

impl External {
    /// Creates the responder; `None` if the apex is not a label.
    pub fn new(rules: ExternalRules) -> Option<Self> {
        let apex = rules.apex.to_ascii_lowercase();
        let length = u8::try_from(apex.len()).ok().filter(|length| (1..=63).contains(length))?;
        let below = |name: &[u8]| [name, &[length], apex.as_bytes()].concat().into();
        let (server, hostmaster) = (below(b"\x03ns1"), below(b"\x0ahostmaster"));
        Some(Self { rules, server, hostmaster })
    }

    /// Answers a question of class IN; `room` is the maximum size of the reply in bytes.
    pub fn answer(
        &self,
        of: &Responder,
        index: &Index,
        query: &Query<'_>,
        room: usize,
        reply: &mut Reply<'_>,
    ) -> AnswerOutcome {
        let Some((number, zone)) = self.zone_of(&query.name) else { return AnswerOutcome::NotInZones };
        reply.flags = Flags::AA;
        let is_shown = |namespace: &[u8]| of.shows(namespace) && index.has_namespace(namespace);
        let absent = |kinds: &[Kind]| match index.unsynced().first_of(kinds) {
            Some(kind) => AnswerOutcome::Unsynced(kind),
            None => AnswerOutcome::NoName(number),
        };
        match self.parse(&query.name, zone) {
            ParsedExternalName::Apex => {
                if query.rtype == RType::NS
                    && let Some(kind) = index.unsynced().first_of(SERVER_KINDS)
                {
                    return AnswerOutcome::Unsynced(kind);
                }
                self.at_apex(of, index, zone, query, room, reply);
                AnswerOutcome::Written
            }
            ParsedExternalName::Servers(below) => {
                self.below_apex(of, index, (number, below), query, room, reply)
            }
            ParsedExternalName::Address(address) => {
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
                self.finish(index, zone, query, false, reply)
            }
            ParsedExternalName::Namespace(namespace) if is_shown(namespace) => {
                self.finish(index, zone, query, false, reply)
            }
            ParsedExternalName::Service(meant) if is_shown(meant.namespace) => {
                let service = index.services.get(meant.key).filter(|service| service.object.is_some());
                let Some(service) = service else { return absent(&[Kind::Service]) };
                let of_endpoints = self.is_by_endpoints(&service, &meant);
                if of_endpoints && let Some(kind) = index.unsynced().first_of(&[Kind::Slice]) {
                    return AnswerOutcome::Unsynced(kind);
                }
                let mut writer =
                    AddressWriter { external: self, ttl: of.rules().ttl, zone, query, room, reply };
                let result = match of_endpoints {
                    true => writer.write_endpoints(&service, &meant),
                    false => writer.write_external(&service, &meant),
                };
                match result {
                    Some(follows) => self.finish(index, zone, query, follows, reply),
                    None => AnswerOutcome::NoName(number),
                }
            }
            ParsedExternalName::Namespace(_) | ParsedExternalName::Service(_) => absent(&[Kind::Namespace]),
            ParsedExternalName::Invalid => AnswerOutcome::NoName(number),
        }
    }

    /// Returns the longest zone that contains the name, and its index.
    pub(super) fn zone_of(&self, name: &Name) -> Option<(usize, &Name)> {
        let zones = self.rules.zones.iter().enumerate().filter(|(_, zone)| name.is_within(zone));
        zones.max_by_key(|(_, zone)| zone.as_wire().len())
    }

    /// Parses a name in `zone`.
    pub(super) fn parse<'n>(&self, name: &'n Name, zone: &Name) -> ParsedExternalName<'n> {
        let wire = name.as_wire();
        let below = &wire[..wire.len() - zone.as_wire().len()];
        if below.is_empty() {
            return ParsedExternalName::Apex;
        }
        if self.is_below_apex(below) {
            return ParsedExternalName::Servers(below);
        }
        wire::reverse::address(name).map_or_else(|| parse(below), ParsedExternalName::Address)
    }

    /// Whether a service without external addresses is answered by its endpoints.
    pub(super) fn is_by_endpoints(&self, service: &Service, meant: &ExternalService<'_>) -> bool {
        let is_endpoint = !meant.endpoint.is_empty() || service.target() == Some(&Target::Headless);
        self.rules.headless && service.external().is_empty() && is_endpoint
    }

    /// Finishes a reply for an existing name: NODATA without answers.
    fn finish(
        &self,
        index: &Index,
        zone: &Name,
        query: &Query<'_>,
        follows: bool,
        reply: &mut Reply<'_>,
    ) -> AnswerOutcome {
        if reply.counts()[0] == 0 {
            self.soa(index, zone, query, Section::Authority, reply);
        }
        if follows { AnswerOutcome::Follow } else { AnswerOutcome::Written }
    }

    /// Returns the names of the services with an external address.
    fn names_of(&self, of: &Responder, index: &Index, address: IpAddr) -> Vec<Vec<u8>> {
        let Some(zone) = self.rules.zones.first() else { return Vec::new() };
        let services = reached_at(of, index, address);
        let names = services.iter().map(|service| [service.key(), zone.as_wire()].concat());
        names.filter(|name| name.len() <= MAX_NAME).collect()
    }

    /// Writes NXDOMAIN.
    pub fn deny(&self, index: &Index, zone: usize, query: &Query<'_>, reply: &mut Reply<'_>) {
        reply.clear();
        (reply.rcode, reply.flags) = (Rcode::NXDOMAIN, Flags::AA);
        if let Some(zone) = self.rules.zones.get(zone) {
            self.soa(index, zone, query, Section::Authority, reply);
        }
    }

    /// Whether a name is at or below the apex label.
    pub(super) fn is_below_apex(&self, labels: &[u8]) -> bool {
        let (mut next, mut rest) = (labels, labels);
        while let Some((label, after)) =
            rest.first().and_then(|length| rest.split_at_checked(1 + usize::from(*length)))
        {
            (next, rest) = (label, after);
        }
        *next == *self.apex()
    }

    /// Returns the apex label in wire form.
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

    /// Answers `APEX` and `ns1.APEX`; other names at or below the apex label do not exist.
    fn below_apex(
        &self,
        of: &Responder,
        index: &Index,
        (number, below): (usize, &[u8]),
        query: &Query<'_>,
        room: usize,
        reply: &mut Reply<'_>,
    ) -> AnswerOutcome {
        if *below == *self.server {
            if let Some(kind) = index.unsynced().first_of(SERVER_KINDS) {
                return AnswerOutcome::Unsynced(kind);
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
            return AnswerOutcome::Written;
        }
        if reply.counts()[0] == 0 {
            self.soa(index, &self.rules.zones[number], query, Section::Authority, reply);
        }
        AnswerOutcome::Written
    }

    fn soa(&self, index: &Index, zone: &Name, query: &Query<'_>, section: Section, reply: &mut Reply<'_>) {
        // The question ends in the zone, so that names are pointers into it.
        let zone_at = HEADER + query.name.as_wire().len() - zone.as_wire().len();
        let pointer = (0xc000 | zone_at as u16).to_be_bytes();
        let numbers = soa_numbers(index.serial(), self.rules.ttl);
        let data = [&self.server, &pointer[..], &self.hostmaster, &pointer, numbers.as_flattened()].concat();
        reply.push(section, Owner::Name(&pointer), RType::SOA, Class::IN, self.rules.ttl, &data);
    }

    /// Returns the external addresses of services with this server as an endpoint, up to a limit,
    /// otherwise this server's own addresses. `of_address` returns the services with an address.
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
                let left = MAX_SERVERS - addresses.len();
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

/// Returns the services with an external address.
pub(super) fn reached_at(of: &Responder, index: &Index, address: IpAddr) -> Vec<Arc<Service>> {
    let mut services = index.services.of_address(address);
    services.retain(|service| service.is_reached_at(address));
    services.retain(|service| of.shows_reverse(service));
    services
}

/// Returns the weight of an SRV record: equal weights with a sum of 100, at least 1.
pub(super) fn weight(count: usize) -> u16 {
    (100 / count.max(1)).max(1) as u16
}

#[cfg(test)]
mod tests;
