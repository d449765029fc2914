//! Records of the zone itself: SOA, NS, the version of the schema.

use std::net::IpAddr;
use std::sync::Arc;

use wire::{Class, Flags, HEADER, Name, Owner, Query, RType, Rcode, Reply, Section};

use super::port_match::MAX_SCANNED;
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

    /// Writes a negative reply with the zone's SOA (RFC 2308, section 3).
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

    /// Writes the SOA. Names are pointers into the question, which ends in the zone, in the
    /// client's case.
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
        // KEP-1645 specifies a schema version of its own.
        let version = if grammar.multicluster { b"\x051.0.0" } else { b"\x051.1.0" };
        reply.push(Section::Answer, Owner::Question, RType::TXT, Class::IN, VERSION_TTL, version);
        ZoneAnswer::Written
    }

    /// Answers `ns.dns` with the addresses of the name servers.
    pub(super) fn name_server(&self, question: &Question<'_>, reply: &mut Reply<'_>) -> ZoneAnswer {
        if let Some(kind) = question.unsynced.first_of(SERVER_KINDS) {
            return ZoneAnswer::Unsynced(kind);
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
        if let Some(kind) = question.unsynced.first_of(SERVER_KINDS) {
            return ZoneAnswer::Unsynced(kind);
        }
        let servers = self.servers(|own| question.index.services.of_address(own), question.zone);
        let mut names: Vec<&[u8]> = servers.iter().map(|(name, _)| &**name).collect();
        names.dedup();
        // Records that would be truncated are not written.
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

    /// Returns the distinct name servers, sorted: the services with this server as an endpoint,
    /// otherwise this server itself. Any user with permission to write services and slices can add
    /// this server's address; if more names exist than fit a message, some are returned.
    /// `of_address` returns the services with an address.
    pub(super) fn servers(
        &self,
        of_address: impl Fn(IpAddr) -> Vec<Arc<Service>>,
        zone: &Zone,
    ) -> Vec<(Vec<u8>, IpAddr)> {
        // Names below a reverse zone would not resolve.
        let zone = zone.grammar.map_or(&self.primary, |_| &zone.name);
        let mut servers = Vec::new();
        let (mut is_endpoint, mut scans_left) = (false, MAX_SCANNED);
        for own in &self.rules.own {
            for service in of_address(*own) {
                let name = [service.key(), &b"\x03svc"[..], zone.as_wire()].concat();
                for slice in service.of_address(*own).map(|at| at.slice) {
                    is_endpoint = true;
                    if scans_left == 0 {
                        break;
                    }
                    scans_left -= 1;
                    let left = MAX_SERVERS - servers.len();
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
        // A long namespace and zone may exceed the length of a name.
        servers.retain(|(name, _)| name.len() <= wire::MAX_NAME);
        servers.sort();
        servers.dedup();
        servers
    }
}

/// Returns the numbers of an SOA record: serial, refresh, retry, expire, minimum.
pub(super) fn soa_numbers(serial: u32, minimum: u32) -> [[u8; 4]; 5] {
    [serial, REFRESH, RETRY, EXPIRE, minimum].map(u32::to_be_bytes)
}

/// Returns a pointer to a name at `place` in the message, or the name if it is beyond the reach of
/// pointers.
pub(super) fn owner_at(place: usize, name: &[u8]) -> Vec<u8> {
    if place > MAX_POINTER { name.to_vec() } else { (0xc000 | place as u16).to_be_bytes().into() }
}

/// Writes an address record if it has the type `only`; returns whether the record was written.
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

/// Kinds that must be synced to determine the name servers.
pub(super) const SERVER_KINDS: &[Kind] = &[Kind::Service, Kind::Slice];
/// Maximum offset of a compression pointer (RFC 1035, section 4.1.4).
pub(super) const MAX_POINTER: usize = 0x3fff;
/// Address records of 16 bytes that fill the largest message.
pub(super) const MAX_SERVERS: usize = 4_096;
/// In seconds, as in CoreDNS.
const REFRESH: u32 = 7_200;
const RETRY: u32 = 1_800;
const EXPIRE: u32 = 86_400;
/// Maximum TTL of SOA records, in seconds.
pub(super) const SOA_TTL: u32 = 300;
/// TTL of the version, in seconds.
const VERSION_TTL: u32 = 28_800;
/// Bytes of SOA data: two names that end in pointers, and five numbers.
const SOA_DATA: usize = 9 + 13 + 20;
