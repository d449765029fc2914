//! What a cluster's zones answer of what the index has found.
//!
//! ```text
//! question -> zone -> shape of the name -> index -> records | NODATA | no such name | not known yet
//! ```
//! A and AAAA of services are copied as they lie ready, without allocation; all else is composed when it is asked for.

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

use self::name_parser::{Asked, Below, Grammar};
use self::port_match::{MOST_LOOKS, MeantPorts};
use crate::index::{Directory, Index, Leads, Service, Unknown, named};
use kubernetes_api::objects::{Kind, Port, Protocol, Target};

/// How a cluster's zones are answered: what a `kubernetes` directive says, but for what is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The zones, reverse ones among them. The first that is none of those is where addresses lead back to.
    pub zones: Vec<Name>,
    /// Those of `zones` that are of a set of clusters: `multicluster`.
    pub multicluster: Vec<Name>,
    /// TTL of every record in seconds, 0 to 3600.
    pub ttl: u32,
    /// Which names of pods there are.
    pub pods: Pods,
    /// Namespaces that are shown; all of them where it is empty.
    pub namespaces: HashSet<Box<str>>,
    /// Names for one zone of the cluster's topology: `zonal`.
    pub zonal: bool,
    /// `ignore empty_service`: services without ready endpoints are not there.
    pub ignore_empty: bool,
    /// Addresses at which this server is asked.
    pub own: Vec<IpAddr>,
}

/// Which names of pods there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pods {
    /// None.
    #[default]
    Disabled,
    /// One for every address, in every namespace that there is.
    Insecure,
    /// Those of the addresses that pods have.
    Verified,
}

/// A cluster, for others that answer of it beside its own zones.
#[derive(Debug)]
pub struct LentCluster {
    /// What is known.
    pub index: Arc<Index>,
    /// Who answers in the cluster's zones.
    pub responder: Responder,
    /// Who knows it where nobody follows it.
    pub recalls: Arc<dyn Recalls>,
}

/// Knows a cluster by its snapshot, for `explain`.
pub trait Recalls: fmt::Debug + Send + Sync {
    /// Puts what is known without asking anybody into the index, where nobody follows the cluster.
    fn recall(&self) -> Recalled;
}

/// How old the snapshot is that all comes from, where it comes from one, or why none can be used.
#[derive(Debug)]
pub struct Recalled(pub Result<Option<Duration>, String>);

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// It is for none of the zones.
    NotMine,
    /// The reply is written.
    Written,
    /// A CNAME is written, and what it leads to belongs behind it.
    Follow,
    /// There is no such name in this zone, by its number: [`Responder::deny`] says so.
    NoName(usize),
    /// That depends on objects of this kind, which are not known yet.
    Unknown(Kind),
}

/// What was found of a name in a zone.
enum ZoneAnswer {
    Written,
    Follow,
    /// The name is there, without such records.
    NoData,
    NoName,
    Unknown(Kind),
}

/// Answers by rules.
#[derive(Debug)]
pub struct Responder {
    rules: Rules,
    /// The longest first.
    zones: Box<[Zone]>,
    /// Where addresses lead back to.
    primary: Name,
    /// Where those of imports do.
    clusterset: Option<Name>,
    /// How records of few addresses begin, A and AAAA.
    heads: [[u8; HEAD]; 2],
}

#[derive(Debug)]
struct Zone {
    name: Name,
    /// None for a reverse zone.
    grammar: Option<Grammar>,
}

/// A question in one of the zones.
struct Question<'a> {
    index: &'a Index,
    query: &'a Query<'a>,
    zone: &'a Zone,
    unknown: Unknown,
    /// Octets that the reply may have, or more.
    room: usize,
}

impl Responder {
    /// One of `rules.zones` is none of those that addresses have.
    pub fn new(rules: Rules) -> Self {
        let mut zones: Box<[Zone]> =
            rules.zones.iter().map(|name| Zone { name: *name, grammar: rules.grammar(name) }).collect();
        let primary = zones.iter().find(|zone| zone.grammar.is_some()).map_or(Name::ROOT, |zone| zone.name);
        // The first that holds a name is the longest.
        zones.sort_by_key(|zone| Reverse(zone.name.as_wire().len()));
        let clusterset = rules.multicluster.first().copied();
        let heads = [(RType::A, 4), (RType::AAAA, 16)].map(|(rtype, octets)| head(rtype, rules.ttl, octets));
        Self { rules, zones, primary, clusterset, heads }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Answers a question of class IN; `room` is the most octets that the reply may have.
    #[inline]
    pub fn answer(&self, index: &Index, query: &Query<'_>, room: usize, reply: &mut Reply<'_>) -> Answered {
        let Some((number, zone)) = self.zone_of(&query.name) else { return Answered::NotMine };
        let question = Question { index, query, zone, unknown: index.unknown(), room };
        match self.find(&question, reply) {
            ZoneAnswer::Written => {
                reply.flags = Flags::AA;
                Answered::Written
            }
            ZoneAnswer::Follow => {
                reply.flags = Flags::AA;
                Answered::Follow
            }
            ZoneAnswer::NoData => {
                self.negative(index, number, query, Rcode::NOERROR, reply);
                Answered::Written
            }
            ZoneAnswer::NoName => Answered::NoName(number),
            ZoneAnswer::Unknown(kind) => Answered::Unknown(kind),
        }
    }

    /// Says that there is no such name.
    pub fn deny(&self, index: &Index, zone: usize, query: &Query<'_>, reply: &mut Reply<'_>) {
        self.negative(index, zone, query, Rcode::NXDOMAIN, reply);
    }

    /// The longest zone that holds the name.
    #[inline]
    fn zone_of(&self, name: &Name) -> Option<(usize, &Zone)> {
        self.zones.iter().enumerate().find(|(_, zone)| name.is_within(&zone.name))
    }

    #[inline]
    fn find(&self, question: &Question<'_>, reply: &mut Reply<'_>) -> ZoneAnswer {
        let Question { query, zone, .. } = question;
        let Some(grammar) = zone.grammar else { return self.in_reverse_zone(question, reply) };
        let asked = name_parser::read(&query.name, &zone.name, grammar);
        if let Asked::Service(below) = &asked
            && query.rtype != RType::SOA
        {
            return self.service(question, grammar, below, reply);
        }
        match asked {
            Asked::Apex => self.at_apex(question, reply),
            // As in CoreDNS: the SOA of whatever is below the apex is NODATA.
            _ if query.rtype == RType::SOA => ZoneAnswer::NoData,
            Asked::Version if query.rtype == RType::TXT => self.version(grammar, reply),
            Asked::Above | Asked::Version => ZoneAnswer::NoData,
            Asked::NameServer => self.name_server(question, reply),
            Asked::Namespace(name) => self.namespace(question, name),
            Asked::Pod { address, namespace } => self.pod(question, address, namespace, reply),
            Asked::Service(_) | Asked::Nothing => ZoneAnswer::NoName,
        }
    }

    /// Whether a namespace is shown, if the cluster has it; its name in lower case.
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
        below: &Below<'_>,
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
            return match self.lack(question, entry.leads(), entry.has_endpoints()) {
                Some(answer) => answer,
                None if rtype == RType::A => push_addresses::<4, A_RECORD>(&self.heads[0], addresses, reply),
                None => push_addresses::<16, AAAA_RECORD>(&self.heads[1], addresses, reply),
            };
        }
        self.of_service(question, kinds, below, directory, reply)
    }

    /// The same of any service, and what stands below it.
    #[inline(never)]
    fn of_service(
        &self,
        question: &Question<'_>,
        kinds: &[Kind],
        below: &Below<'_>,
        directory: &Directory,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        let place = directory.of_name(below.key);
        let service = named(&place, below.key).filter(|service| service.namespace.is_known());
        let Some(service) = service else { return question.absent(kinds) };
        if below.is_bare()
            && matches!(question.query.rtype, RType::A | RType::AAAA)
            && service.leads() != Leads::Elsewhere
        {
            let lack = self.lack(question, service.leads(), service.has_endpoints());
            return lack.unwrap_or_else(|| self.ready(question, service, reply));
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
            Target::ClusterIps(_) | Target::Headless => match question.unknown.first_of(&[Kind::Slice]) {
                Some(kind) => ZoneAnswer::Unknown(kind),
                None => self.endpoints(question, below, service, reply),
            },
        }
    }

    /// What is said in place of the addresses that a service's own name leads to, where its endpoints are missing, or not known.
    #[inline]
    fn lack(&self, question: &Question<'_>, leads: Leads, has_endpoints: bool) -> Option<ZoneAnswer> {
        match leads {
            Leads::ToItself => self.is_empty(has_endpoints).then(|| question.absent(&[Kind::Slice])),
            Leads::ToEndpoints | Leads::Elsewhere => match question.unknown.first_of(&[Kind::Slice]) {
                Some(kind) => Some(ZoneAnswer::Unknown(kind)),
                None => (!has_endpoints).then_some(ZoneAnswer::NoName),
            },
        }
    }

    /// Whether a service is not there for its lack of endpoints.
    #[inline]
    fn is_empty(&self, has_endpoints: bool) -> bool {
        self.rules.ignore_empty && !has_endpoints
    }

    /// The address records of a service's own name.
    #[inline(never)]
    fn ready(&self, question: &Question<'_>, service: &Service, reply: &mut Reply<'_>) -> ZoneAnswer {
        let (records, room) = (service.ready(question.query.rtype), question.room);
        match question.query.rtype {
            RType::A => self.push_records::<A_RECORD>(records, room, reply),
            _ => self.push_records::<AAAA_RECORD>(records, room, reply),
        }
    }

    /// Records of this length: it is no variable, for that would be divided by.
    #[inline]
    fn push_records<const OCTETS: usize>(
        &self,
        records: &[u8],
        room: usize,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        // One more than there is room for, so that the reply is cut and says so.
        let count = (records.len() / OCTETS).min(room / OCTETS + 1);
        if count == 0 {
            return ZoneAnswer::NoData;
        }
        reply.push_ready(&records[..count * OCTETS], [count as u16, 0, 0]);
        let ttl = self.rules.ttl.to_be_bytes();
        for record in reply.body_mut().as_chunks_mut::<OCTETS>().0 {
            record[TTL_AT..TTL_AT + 4].copy_from_slice(&ttl);
        }
        ZoneAnswer::Written
    }

    #[inline(never)]
    fn external_name(
        &self,
        question: &Question<'_>,
        below: &Below<'_>,
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

/// Records of a few addresses, which any message has room for, each with this head. Their length is no variable, for that would
/// be divided by.
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

/// What stands before the address in a record of the question's name.
fn head(rtype: RType, ttl: u32, octets: u16) -> [u8; HEAD] {
    let [[t0, t1], [c0, c1], [l0, l1]] = [rtype.0, Class::IN.0, octets].map(u16::to_be_bytes);
    let [s0, s1, s2, s3] = ttl.to_be_bytes();
    [0xc0, wire::HEADER as u8, t0, t1, c0, c1, s0, s1, s2, s3, l0, l1]
}

/// What a CNAME leads to: no address, and not the root.
fn external_target(text: &str) -> Option<Name> {
    let target = Name::from_text(text).ok().filter(|_| text.parse::<IpAddr>().is_err());
    target.filter(|target| *target != Name::ROOT)
}

impl Rules {
    /// CoreDNS's defaults.
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
    fn directory(&self, grammar: Grammar) -> &Directory {
        if grammar.multicluster { &self.index.imports } else { &self.index.services }
    }

    /// What is not found is not there, if all of these kinds are known.
    fn absent(&self, kinds: &[Kind]) -> ZoneAnswer {
        self.unknown.first_of(kinds).map_or(ZoneAnswer::NoName, ZoneAnswer::Unknown)
    }
}

impl Below<'_> {
    /// Whether a port is meant.
    fn means(&self, port: &Port) -> bool {
        #[cfg(test)]
        crate::cost_counter::looked();
        let protocol: &[u8] = match port.protocol {
            Protocol::Tcp => b"tcp",
            Protocol::Udp => b"udp",
            Protocol::Sctp => b"sctp",
        };
        (self.port.is_empty() || port.name.as_bytes().eq_ignore_ascii_case(self.port))
            && (self.protocol.is_empty() || protocol == self.protocol)
    }

    /// Which ports of a service's slices are meant; `None` where that is any, and their numbers are not wanted.
    fn ports_of(&self, service: &Service, numbers: bool) -> Option<MeantPorts> {
        let is_any = self.port.is_empty() && self.protocol.is_empty();
        (numbers || !is_any).then(|| MeantPorts::of(service, is_any, |port| self.means(port)))
    }

    /// Whether something at these ports is meant: without any port, it is there by its address alone.
    fn means_any(&self, ports: &[Port]) -> bool {
        match ports {
            [] => self.port.is_empty() && self.protocol.is_empty(),
            ports => ports.iter().take(MOST_LOOKS).any(|port| self.means(port)),
        }
    }
}

/// Octets of a record before its data, the owner a pointer (RFC 1035, sections 3.2.1 and 4.1.4).
const HEAD: usize = 12;
/// Octets of an A record whose owner is a pointer.
const A_RECORD: usize = HEAD + 4;
/// Of an AAAA record.
const AAAA_RECORD: usize = HEAD + 16;
/// Where such a record has its TTL.
const TTL_AT: usize = 6;

#[cfg(test)]
mod tests;
