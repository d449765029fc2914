//! Reverse lookups.

use std::collections::BTreeSet;
use std::net::IpAddr;

use wire::{Class, MAX_NAME, Name, Owner, RType, Reply, Section};

use super::port_match::MAX_SCANNED;
use super::{Question, Responder, ZoneAnswer};
use crate::index::{Service, ServiceIndex};
use kubernetes_api::objects::Kind;

impl Responder {
    #[inline(never)]
    pub(super) fn in_reverse_zone(&self, question: &Question<'_>, reply: &mut Reply<'_>) -> ZoneAnswer {
        let query = question.query;
        if query.name == question.zone.name {
            return self.at_apex(question, reply);
        }
        if query.rtype == RType::SOA {
            return ZoneAnswer::NoData;
        }
        let Some(address) = wire::reverse::address(&query.name) else { return ZoneAnswer::NoName };
        let names = match self.names_of(question, address) {
            Ok(names) => names,
            Err(kind) => return ZoneAnswer::Unsynced(kind),
        };
        if names.is_empty() {
            return question.absent(&[Kind::Service, Kind::Slice, Kind::ServiceImport, Kind::Namespace]);
        }
        // The name exists for all types.
        if query.rtype != RType::PTR {
            return ZoneAnswer::NoData;
        }
        for name in names {
            reply.push(Section::Answer, Owner::Question, RType::PTR, Class::IN, self.rules.ttl, &name);
            if reply.octets().len() > question.room {
                break;
            }
        }
        ZoneAnswer::Written
    }

    /// Returns the name of the service with the address, otherwise of all endpoints with the
    /// address.
    fn names_of(&self, question: &Question<'_>, address: IpAddr) -> Result<Vec<Vec<u8>>, Kind> {
        let of = |directory: &ServiceIndex| {
            let mut services = directory.of_address(address);
            services.retain(|service| self.shows_reverse(service));
            services
        };
        let services = of(&question.index.services);
        // An import needs an existing namespace.
        let imports = self.clusterset.map(|zone| {
            let mut imports = of(&question.index.imports);
            imports.retain(|import| import.namespace.is_known());
            (imports, zone)
        });
        let all = services.iter().map(|service| (service, &self.primary));
        let all = all.chain(
            imports.iter().flat_map(|(imports, zone)| imports.iter().map(move |import| (import, zone))),
        );
        let owner = all.clone().find(|(service, _)| service.owns(address));
        if let Some((service, zone)) = owner {
            return Ok(name(&[], service, zone).into_iter().collect());
        }
        if let Some(kind) = question.unsynced.first_of(&[Kind::Slice]) {
            return Err(kind);
        }
        // For other types one name is sufficient.
        let room = if question.query.rtype == RType::PTR { usize::from(u16::MAX) } else { 0 };
        let (mut names, mut octets) = (BTreeSet::new(), 0);
        let endpoints =
            services.iter().flat_map(|service| service.of_address(address).map(move |at| (service, at)));
        let mut last = None;
        for (service, at) in endpoints.take(MAX_SCANNED) {
            let label = service.label(at.endpoint);
            // Endpoints of one label are adjacent.
            if last.replace((service.key(), label)) == Some((service.key(), label)) {
                continue;
            }
            let Some(name) = name(label.octets(), service, &self.primary) else { continue };
            let length = name.len();
            octets += if names.insert(name) { length } else { 0 };
            // More than a message can hold.
            if octets > room {
                break;
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Whether reverse lookups show a service. As in CoreDNS, its namespace is checked only with the
    /// option `namespaces`.
    pub(super) fn shows_reverse(&self, service: &Service) -> bool {
        let namespace = &service.namespace;
        self.rules.namespaces.is_empty() || self.shows(&namespace.name) && namespace.is_known()
    }
}

/// Returns the name of a service, or of an endpoint below it; `None` if it is too long.
fn name(label: &[u8], service: &Service, zone: &Name) -> Option<Vec<u8>> {
    let length: &[u8] = if label.is_empty() { &[] } else { &[label.len() as u8] };
    let name = [length, label, service.key(), b"\x03svc", zone.as_wire()].concat();
    (name.len() <= MAX_NAME).then_some(name)
}

#[cfg(test)]
mod tests;
