//! What stands at the zones themselves: SOA, NS, the version of the schema.

use std::net::IpAddr;
use std::sync::Arc;

use wire::{Class, Flags, HEADER, Name, Owner, Query, RType, Rcode, Reply, Section};

use super::port_match::MOST_LOOKS;
use super::{Grammar, Question, Responder, Zone, ZoneAnswer};
use crate::index::{Index, Service};
use kubernetes_api::objects::{Kind, Target};

impl Responder {
    pub(super) fn at_apex(&self, question: &Question<'_>, reply: &mut Reply<'_>) -> ZoneAnswer {
        match question.query.rtype {
            RType::SOA => {
                self.soa(question.index, &question.zone.name, question.query, Section::Answer, reply);
                ZoneAnswer::Written
            }
            RType::NS => self.name_servers(question, reply),
            _ => ZoneAnswer::NoData,
        }
    }

    /// A reply without records: the zone's SOA says for how long (RFC 2308, section 3).
    #[inline(never)]
    pub(super) fn negative(
        &self,
        index: &Index,
        zone: usize,
        query: &Query<'_>,
        rcode: Rcode,
        reply: &mut Reply<'_>,
    ) {
        reply.rcode = rcode;
        reply.flags = Flags::AA;
        if let Some(zone) = self.zones.get(zone) {
            self.soa(index, &zone.name, query, Section::Authority, reply);
        }
    }

    /// Names are pointers into the question, which ends in the zone: it is in the client's case.
    fn soa(&self, index: &Index, zone: &Name, query: &Query<'_>, section: Section, reply: &mut Reply<'_>) {
        let zone_at = HEADER + query.name.as_wire().len() - zone.as_wire().len();
        let pointer = (0xc000 | zone_at as u16).to_be_bytes();
        let ttl = self.rules.ttl;
        let numbers = soa_numbers(index.serial(), ttl);
        let mut data = [0; SOA_DATA];
        let parts: [&[u8]; 5] =
            [b"\x02ns\x03dns", &pointer, b"\x0ahostmaster", &pointer, numbers.as_flattened()];
        let mut at = 0;
        for part in parts {
            data[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        reply.push(section, Owner::Name(&pointer), RType::SOA, Class::IN, ttl.min(SOA_TTL), &data);
    }

    #[inline(never)]
    pub(super) fn version(&self, grammar: Grammar, reply: &mut Reply<'_>) -> ZoneAnswer {
        // That of the multi-cluster specification is another one (KEP-1645).
        let version = if grammar.multicluster { b"\x051.0.0" } else { b"\x051.1.0" };
        reply.push(Section::Answer, Owner::Question, RType::TXT, Class::IN, VERSION_TTL, version);
        ZoneAnswer::Written
    }

    /// `ns.dns`: the addresses of the zone's servers.
    pub(super) fn name_server(&self, question: &Question<'_>, reply: &mut Reply<'_>) -> ZoneAnswer {
        if let Some(kind) = question.unknown.first_of(LEAD_TO_SERVERS) {
            return ZoneAnswer::Unknown(kind);
        }
        let mut found = ZoneAnswer::NoData;
        let mut addresses: Vec<IpAddr> = self
            .servers(|own| question.index.services.of_address(own), question.zone)
            .into_iter()
            .map(|(_, address)| address)
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        for address in addresses {
            let only = Some(question.query.rtype);
            if push_address(reply, Section::Answer, Owner::Question, only, self.rules.ttl, address) {
                found = ZoneAnswer::Written;
            }
            if reply.octets().len() > question.room {
                break;
            }
        }
        found
    }

    fn name_servers(&self, question: &Question<'_>, reply: &mut Reply<'_>) -> ZoneAnswer {
        if let Some(kind) = question.unknown.first_of(LEAD_TO_SERVERS) {
            return ZoneAnswer::Unknown(kind);
        }
        let servers = self.servers(|own| question.index.services.of_address(own), question.zone);
        let mut names: Vec<&[u8]> = servers.iter().map(|(name, _)| &**name).collect();
        names.dedup();
        // What will be cut is not written.
        let is_full = |reply: &Reply<'_>| reply.octets().len() > question.room;
        for name in &names {
            if is_full(reply) {
                break;
            }
            reply.push(Section::Answer, Owner::Question, RType::NS, Class::IN, self.rules.ttl, name);
        }
        for (name, address) in &servers {
            if is_full(reply) {
                break;
            }
            push_address(reply, Section::Additional, Owner::Name(name), None, self.rules.ttl, *address);
        }
        if servers.is_empty() { ZoneAnswer::NoData } else { ZoneAnswer::Written }
    }

    /// The zone's servers, in order and each once: the services that this one is an endpoint of, else itself. Whoever may write
    /// services and slices makes it an endpoint of theirs: of more than a message has room for, there are some.
    /// `of_address` finds the services that an address leads back to.
    pub(super) fn servers(
        &self,
        of_address: impl Fn(IpAddr) -> Vec<Arc<Service>>,
        zone: &Zone,
    ) -> Vec<(Vec<u8>, IpAddr)> {
        // Names below a reverse zone would lead to nothing.
        let zone = zone.grammar.map_or(&self.primary, |_| &zone.name);
        let mut servers = Vec::new();
        let (mut is_endpoint, mut looks) = (false, MOST_LOOKS);
        for own in &self.rules.own {
            for service in of_address(*own) {
                let name = [service.key(), &b"\x03svc"[..], zone.as_wire()].concat();
                for slice in service.of_address(*own).map(|at| at.slice) {
                    is_endpoint = true;
                    if looks == 0 {
                        break;
                    }
                    looks -= 1;
                    let left = MOST_SERVERS - servers.len();
                    match service.target() {
                        _ if left == 0 => break,
                        Some(Target::ClusterIps(addresses)) => {
                            let addresses = addresses.iter().take(left);
                            servers.extend(addresses.map(|address| (name.clone(), *address)));
                        }
                        Some(Target::Headless) => {
                            servers.extend(slice.endpoints.iter().take(left).map(|endpoint| {
                                let label = service.label(endpoint);
                                let name = [&[label.octets().len() as u8], label.octets(), &name].concat();
                                (name, endpoint.address)
                            }))
                        }
                        Some(Target::ExternalName(_)) | None => {}
                    }
                }
            }
        }
        if !is_endpoint {
            let name = [&b"\x02ns\x03dns"[..], zone.as_wire()].concat();
            servers = self.rules.own.iter().map(|address| (name.clone(), *address)).collect();
        }
        // A long namespace below a long zone is no name.
        servers.retain(|(name, _)| name.len() <= wire::MAX_NAME);
        servers.sort();
        servers.dedup();
        servers
    }
}

/// What an SOA record has behind its names: serial, refresh, retry, expire, minimum.
pub(super) fn soa_numbers(serial: u32, minimum: u32) -> [[u8; 4]; 5] {
    [serial, REFRESH, RETRY, EXPIRE, minimum].map(u32::to_be_bytes)
}

/// The octets of an owner that stands at `place` in the message already: a pointer to there, or the name where none reaches.
pub(super) fn owner_at(place: usize, name: &[u8]) -> Vec<u8> {
    if place > FURTHEST { name.to_vec() } else { (0xc000 | place as u16).to_be_bytes().into() }
}

/// Writes an address record, if it is of the type asked for.
pub(super) fn push_address(
    reply: &mut Reply<'_>,
    section: Section,
    owner: Owner<'_>,
    only: Option<RType>,
    ttl: u32,
    address: IpAddr,
) -> bool {
    let rtype = if address.is_ipv4() { RType::A } else { RType::AAAA };
    let is_asked = only.is_none_or(|only| only == rtype);
    if is_asked {
        match address {
            IpAddr::V4(address) => reply.push(section, owner, rtype, Class::IN, ttl, &address.octets()),
            IpAddr::V6(address) => reply.push(section, owner, rtype, Class::IN, ttl, &address.octets()),
        }
    }
    is_asked
}

/// What must be known before it is known which servers a zone has: whose endpoint this one is.
pub(super) const LEAD_TO_SERVERS: &[Kind] = &[Kind::Service, Kind::Slice];
/// Where a pointer leads at most (RFC 1035, section 4.1.4).
pub(super) const FURTHEST: usize = 0x3fff;
/// Address records, the shortest of which has 16 octets, that fill the largest message.
pub(super) const MOST_SERVERS: usize = 4_096;
/// Seconds, as CoreDNS has them.
const REFRESH: u32 = 7_200;
const RETRY: u32 = 1_800;
const EXPIRE: u32 = 86_400;
/// The longest TTL of an SOA record, in seconds.
pub(super) const SOA_TTL: u32 = 300;
/// Of the version, in seconds.
const VERSION_TTL: u32 = 28_800;
/// Octets of an SOA's data: two names that end in pointers, five numbers.
const SOA_DATA: usize = 9 + 13 + 20;
