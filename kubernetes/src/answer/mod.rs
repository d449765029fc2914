//! Answers in a cluster's zones from the index.
//!
//! ```text
//! question -> zone -> parsed name -> index -> records | NODATA | NXDOMAIN | not synced yet
//! ```
//! A and AAAA records of services are copied without allocation; all others are composed for each
//! query.

mod apex;
mod endpoints;
mod explain;
mod external;
mod metadata;
mod name_parser;
mod pod;
mod port_match;
mod reverse;
mod transfer;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use wire::{Class, Flags, Name, Owner, Query, RType, Rcode, Reply, Section};

pub use self::external::{External, ExternalRules};
pub use self::transfer::{Progress, Push, Transfer};

use self::name_parser::{Grammar, ParsedName, ServiceName};
use self::port_match::{MAX_SCANNED, PortMatch};
use crate::index::{AddressSource, Index, Service, ServiceIndex, UnsyncedKinds, named};
use kubernetes_api::objects::{Kind, Port, Protocol, Target};

/// Options of a `kubernetes` directive for answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The zones, including reverse zones. PTR records point into the first one that is not a
    /// reverse zone.
    pub zones: Vec<Name>,
    /// Those of `zones` for ServiceImports: `multicluster`.
    pub multicluster: Vec<Name>,
    /// TTL of every record in seconds, 0 to 3600.
    pub ttl: u32,
    /// Which names of pods exist.
    pub pods: Pods,
    /// Namespaces with answers; empty means all.
    pub namespaces: HashSet<Box<str>>,
    /// Whether names for a topology zone exist: `zonal`.
    pub zonal: bool,
    /// `ignore empty_service`: services without ready endpoints do not exist.
    pub ignore_empty: bool,
    /// Listen addresses of this server.
    pub own: Vec<IpAddr>,
}

/// Which names of pods exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pods {
    /// None.
    #[default]
    Disabled,
    /// One for each address, in each existing namespace.
    Insecure,
    /// One for each address of a pod, in its namespace.
    Verified,
}

/// A cluster, for plugins that answer from it in other zones.
#[derive(Debug)]
pub struct ClusterHandle {
    /// The index.
    pub index: Arc<Index>,
    /// Answers in the cluster's zones.
    pub responder: Responder,
    /// Fills the index from a snapshot if no client runs.
    pub snapshot: Arc<dyn SnapshotSource>,
}

/// Loads the snapshot of a cluster, for `explain`.
pub trait SnapshotSource: fmt::Debug + Send + Sync {
    /// Loads the snapshot into the index, if no client updates it.
    fn load_snapshot(&self) -> SnapshotAge;
}

/// Age of the loaded snapshot, if there is one, or why it cannot be used.
#[derive(Debug)]
pub struct SnapshotAge(pub Result<Option<Duration>, String>);

/// Outcome of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerOutcome {
    /// The name is in none of the zones.
    NotInZones,
    /// The reply is written.
    Written,
    /// A CNAME is written; the caller resolves its target.
    Follow,
    /// The name does not exist in this zone, given by index: call [`Responder::deny`].
    NoName(usize),
    /// The answer depends on objects of this kind, which is not synced.
    Unsynced(Kind),
}

/// Result for a name in a zone.
enum ZoneAnswer {
    Written,
    Follow,
    /// The name exists, without records of the type.
    NoData,
    NoName,
    Unsynced(Kind),
}

/// Answers questions in the zones of [`Rules`].
#[derive(Debug)]
pub struct Responder {
    rules: Rules,
    /// The zones, longest first.
    zones: Box<[Zone]>,
    /// Zone of PTR targets.
    primary: Name,
    /// Zone of PTR targets for imports.
    clusterset: Option<Name>,
    /// Headers of A and AAAA records for inline services.
    heads: [[u8; HEAD]; 2],
}

#[derive(Debug)]
struct Zone {
    name: Name,
    /// Which optional names exist in the zone; `None` for a reverse zone.
    grammar: Option<Grammar>,
}

/// A question in one of the zones.
struct Question<'a> {
    index: &'a Index,
    query: &'a Query<'a>,
    zone: &'a Zone,
    unsynced: UnsyncedKinds,
    /// Maximum bytes of the reply.
    room: usize,
}

impl Responder {
    /// Creates a responder. At least one of `rules.zones` must not be a reverse zone.
    pub fn new(rules: Rules) -> Self {
        let mut zones: Box<[Zone]> =
            rules.zones.iter().map(|name| Zone { name: *name, grammar: rules.grammar(name) }).collect();
        let primary = zones.iter().find(|zone| zone.grammar.is_some()).map_or(Name::ROOT, |zone| zone.name);
        // The first match is the longest.
        zones.sort_by_key(|zone| Reverse(zone.name.as_wire().len()));
        let clusterset = rules.multicluster.first().copied();
        let heads = [(RType::A, 4), (RType::AAAA, 16)].map(|(rtype, octets)| head(rtype, rules.ttl, octets));
        Self { rules, zones, primary, clusterset, heads }
    }

    /// Returns the rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Answers a question of class IN; `room` is the maximum size of the reply in bytes.
    #[inline]
    pub fn answer(
        &self,
        index: &Index,
        query: &Query<'_>,
        room: usize,
        reply: &mut Reply<'_>,
    ) -> AnswerOutcome {
        let Some((number, zone)) = self.zone_of(&query.name) else { return AnswerOutcome::NotInZones };
        let question = Question { index, query, zone, unsynced: index.unsynced(), room };
        match self.find(&question, reply) {
            ZoneAnswer::Written => {
                reply.flags = Flags::AA;
                AnswerOutcome::Written
            }
            ZoneAnswer::Follow => {
                reply.flags = Flags::AA;
                AnswerOutcome::Follow
            }
            ZoneAnswer::NoData => {
                self.negative(index, number, query, Rcode::NOERROR, reply);
                AnswerOutcome::Written
            }
            ZoneAnswer::NoName => AnswerOutcome::NoName(number),
            ZoneAnswer::Unsynced(kind) => AnswerOutcome::Unsynced(kind),
        }
    }

    /// Writes NXDOMAIN.
    pub fn deny(&self, index: &Index, zone: usize, query: &Query<'_>, reply: &mut Reply<'_>) {
        self.negative(index, zone, query, Rcode::NXDOMAIN, reply);
    }

    /// Returns the longest zone that contains the name.
    #[inline]
    fn zone_of(&self, name: &Name) -> Option<(usize, &Zone)> {
        self.zones.iter().enumerate().find(|(_, zone)| name.is_within(&zone.name))
    }

    #[inline]
    fn find(&self, question: &Question<'_>, reply: &mut Reply<'_>) -> ZoneAnswer {
        let Question { query, zone, .. } = question;
        let Some(grammar) = zone.grammar else { return self.in_reverse_zone(question, reply) };
        let asked = name_parser::parse(&query.name, &zone.name, grammar);
        if let ParsedName::Service(below) = &asked
            && query.rtype != RType::SOA
        {
            return self.service(question, grammar, below, reply);
        }
        match asked {
            ParsedName::Apex => self.at_apex(question, reply),
            // As in CoreDNS, an SOA query for any name below the apex gets NODATA.
            _ if query.rtype == RType::SOA => ZoneAnswer::NoData,
            ParsedName::Version if query.rtype == RType::TXT => self.version(grammar, reply),
            ParsedName::Above | ParsedName::Version => ZoneAnswer::NoData,
            ParsedName::NameServer => self.name_server(question, reply),
            ParsedName::Namespace(name) => self.namespace(question, name),
            ParsedName::Pod { address, namespace } => self.pod(question, address, namespace, reply),
            ParsedName::Service(_) | ParsedName::Invalid => ZoneAnswer::NoName,
        }
    }

    /// Whether a namespace, in lower case, has answers if it exists.
    #[inline]
    fn shows(&self, namespace: &[u8]) -> bool {
        let only = &self.rules.namespaces;
        only.is_empty() || str::from_utf8(namespace).is_ok_and(|name| only.contains(name))
    }

    #[inline(never)]
    fn namespace(&self, question: &Question<'_>, name: &[u8]) -> ZoneAnswer {
        if !self.shows(name) {
            ZoneAnswer::NoName
        } else if question.index.has_namespace(name) {
            ZoneAnswer::NoData
        } else {
            question.absent(&[Kind::Namespace])
        }
    }

    #[inline]
    fn service(
        &self,
        question: &Question<'_>,
        grammar: Grammar,
        below: &ServiceName<'_>,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        if !self.shows(below.namespace) {
            return ZoneAnswer::NoName;
        }
        let directory = question.directory(grammar);
        let kinds: &[Kind] = match grammar.multicluster {
            true => &[Kind::ServiceImport, Kind::Slice, Kind::Namespace],
            false => &[Kind::Service, Kind::Slice, Kind::Namespace],
        };
        if below.is_bare()
            && let rtype @ (RType::A | RType::AAAA) = question.query.rtype
            && let Some(entry) = directory.entry(below.key)
            && let Some(addresses) = entry.addresses(rtype)
        {
            return match self.missing_endpoints(question, entry.address_source(), entry.has_endpoints()) {
                Some(answer) => answer,
                None if rtype == RType::A => push_addresses::<4, A_RECORD>(&self.heads[0], addresses, reply),
                None => push_addresses::<16, AAAA_RECORD>(&self.heads[1], addresses, reply),
            };
        }
        self.indexed_service(question, kinds, below, directory, reply)
    }

    /// [`Self::service`] for services that are not inline, and for names below services.
    #[inline(never)]
    fn indexed_service(
        &self,
        question: &Question<'_>,
        kinds: &[Kind],
        below: &ServiceName<'_>,
        directory: &ServiceIndex,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        let place = directory.of_name(below.key);
        let service = named(&place, below.key).filter(|service| service.namespace.is_known());
        let Some(service) = service else { return question.absent(kinds) };
        if below.is_bare()
            && matches!(question.query.rtype, RType::A | RType::AAAA)
            && service.address_source() != AddressSource::Other
        {
            let missing = self.missing_endpoints(question, service.address_source(), service.has_endpoints());
            return missing.unwrap_or_else(|| self.ready(question, service, reply));
        }
        let Some(target) = service.target() else { return question.absent(kinds) };
        if below.topology.is_some() && *target != Target::Headless {
            return ZoneAnswer::NoName;
        }
        match target {
            Target::ExternalName(to) => self.external_name(question, below, to, reply),
            Target::ClusterIps(_) if self.is_empty(service.has_endpoints()) => {
                question.absent(&[Kind::Slice])
            }
            Target::ClusterIps(addresses) if below.endpoint.is_none() => {
                self.cluster_ips(question, below, service, addresses, reply)
            }
            Target::ClusterIps(_) | Target::Headless => match question.unsynced.first_of(&[Kind::Slice]) {
                Some(kind) => ZoneAnswer::Unsynced(kind),
                None => self.endpoints(question, below, service, reply),
            },
        }
    }

    /// Returns the result if required endpoints of a service are missing or not synced, else
    /// `None`.
    #[inline]
    fn missing_endpoints(
        &self,
        question: &Question<'_>,
        source: AddressSource,
        has_endpoints: bool,
    ) -> Option<ZoneAnswer> {
        match source {
            AddressSource::ClusterIps => {
                self.is_empty(has_endpoints).then(|| question.absent(&[Kind::Slice]))
            }
            AddressSource::Endpoints | AddressSource::Other => {
                match question.unsynced.first_of(&[Kind::Slice]) {
                    Some(kind) => Some(ZoneAnswer::Unsynced(kind)),
                    None => (!has_endpoints).then_some(ZoneAnswer::NoName),
                }
            }
        }
    }

    /// Whether a service is hidden since it has no endpoints.
    #[inline]
    fn is_empty(&self, has_endpoints: bool) -> bool {
        self.rules.ignore_empty && !has_endpoints
    }

    /// Writes the address records of a service.
    #[inline(never)]
    fn ready(&self, question: &Question<'_>, service: &Service, reply: &mut Reply<'_>) -> ZoneAnswer {
        let (records, room) = (service.ready(question.query.rtype), question.room);
        match question.query.rtype {
            RType::A => self.push_records::<A_RECORD>(records, room, reply),
            _ => self.push_records::<AAAA_RECORD>(records, room, reply),
        }
    }

    /// Writes records of a fixed length, a constant to avoid a division at run time.
    #[inline]
    fn push_records<const OCTETS: usize>(
        &self,
        records: &[u8],
        room: usize,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        // One record more than fits, so that the reply is truncated with TC.
        let count = (records.len() / OCTETS).min(room / OCTETS + 1);
        if count == 0 {
            return ZoneAnswer::NoData;
        }
        reply.push_ready(&records[..count * OCTETS], [count as u16, 0, 0]);
        let ttl = self.rules.ttl.to_be_bytes();
        for record in reply.body_mut().as_chunks_mut::<OCTETS>().0 {
            record[TTL_OFFSET..TTL_OFFSET + 4].copy_from_slice(&ttl);
        }
        ZoneAnswer::Written
    }

    #[inline(never)]
    fn external_name(
        &self,
        question: &Question<'_>,
        below: &ServiceName<'_>,
        to: &str,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        let Some(target) = external_target(to).filter(|_| below.is_bare()) else { return ZoneAnswer::NoName };
        match question.query.rtype {
            RType::A | RType::AAAA | RType::CNAME => {
                let data = target.as_wire();
                reply.push(Section::Answer, Owner::Question, RType::CNAME, Class::IN, self.rules.ttl, data);
                if question.query.rtype == RType::CNAME { ZoneAnswer::Written } else { ZoneAnswer::Follow }
            }
            _ => ZoneAnswer::NoData,
        }
    }
}

/// Writes the records of an inline service, which fit any message. Their length is a constant to
/// avoid a division at run time.
#[inline]
fn push_addresses<const OCTETS: usize, const RECORD: usize>(
    head: &[u8; HEAD],
    octets: &[u8],
    reply: &mut Reply<'_>,
) -> ZoneAnswer {
    let addresses = octets.as_chunks::<OCTETS>().0;
    for address in addresses {
        let mut record = [0; RECORD];
        record[..HEAD].copy_from_slice(head);
        record[HEAD..].copy_from_slice(address);
        reply.push_ready(&record, [1, 0, 0]);
    }
    if addresses.is_empty() { ZoneAnswer::NoData } else { ZoneAnswer::Written }
}

/// Returns the header of an address record with the question's name as its owner.
fn head(rtype: RType, ttl: u32, octets: u16) -> [u8; HEAD] {
    let [[t0, t1], [c0, c1], [l0, l1]] = [rtype.0, Class::IN.0, octets].map(u16::to_be_bytes);
    let [s0, s1, s2, s3] = ttl.to_be_bytes();
    [0xc0, wire::HEADER as u8, t0, t1, c0, c1, s0, s1, s2, s3, l0, l1]
}

/// Returns the target of a CNAME: a name that is not an address and not the root.
fn external_target(text: &str) -> Option<Name> {
    let target = Name::from_text(text).ok().filter(|_| text.parse::<IpAddr>().is_err());
    target.filter(|target| *target != Name::ROOT)
}

impl Rules {
    /// Returns CoreDNS's defaults.
    pub fn of(zones: Vec<Name>) -> Self {
        Self {
            zones,
            multicluster: Vec::new(),
            ttl: 5,
            pods: Pods::Disabled,
            namespaces: HashSet::new(),
            zonal: false,
            ignore_empty: false,
            own: Vec::new(),
        }
    }

    fn grammar(&self, zone: &Name) -> Option<Grammar> {
        if wire::reverse::is_reverse(zone) {
            return None;
        }
        Some(Grammar { multicluster: self.multicluster.contains(zone), zonal: self.zonal })
    }
}

impl Question<'_> {
    fn directory(&self, grammar: Grammar) -> &ServiceIndex {
        if grammar.multicluster { &self.index.imports } else { &self.index.services }
    }

    /// Returns that a name does not exist, if all of these kinds are synced.
    fn absent(&self, kinds: &[Kind]) -> ZoneAnswer {
        self.unsynced.first_of(kinds).map_or(ZoneAnswer::NoName, ZoneAnswer::Unsynced)
    }
}

impl ServiceName<'_> {
    /// Whether a port matches the name.
    fn matches(&self, port: &Port) -> bool {
        #[cfg(test)]
        crate::cost_counter::count();
        let protocol: &[u8] = match port.protocol {
            Protocol::Tcp => b"tcp",
            Protocol::Udp => b"udp",
            Protocol::Sctp => b"sctp",
        };
        (self.port.is_empty() || port.name.as_bytes().eq_ignore_ascii_case(self.port))
            && (self.protocol.is_empty() || protocol == self.protocol)
    }

    /// Returns the matching ports of a service's slices; `None` if all match and `numbers` is not
    /// set.
    fn ports_of(&self, service: &Service, numbers: bool) -> Option<PortMatch> {
        let is_any = self.port.is_empty() && self.protocol.is_empty();
        (numbers || !is_any).then(|| PortMatch::of(service, is_any, |port| self.matches(port)))
    }

    /// Whether the query names one of the first ports, or no port of a service without ports.
    fn matches_any(&self, ports: &[Port]) -> bool {
        match ports {
            [] => self.port.is_empty() && self.protocol.is_empty(),
            ports => ports.iter().take(MAX_SCANNED).any(|port| self.matches(port)),
        }
    }
}

/// Bytes of a record before its data, the owner a pointer (RFC 1035, sections 3.2.1 and 4.1.4).
const HEAD: usize = 12;
/// Bytes of an A record with a pointer as its owner.
const A_RECORD: usize = HEAD + 4;
/// Bytes of an AAAA record with a pointer as its owner.
const AAAA_RECORD: usize = HEAD + 16;
/// Offset of the TTL in such a record.
const TTL_OFFSET: usize = 6;

#[cfg(test)]
mod tests;
