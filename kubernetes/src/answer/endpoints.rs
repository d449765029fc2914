//! Answers that are composed for each query: addresses of some endpoints, and SRV.

use std::collections::HashSet;
use std::net::IpAddr;

use wire::{Class, HEADER, MAX_NAME, Owner, RType, Reply, Section};

use super::apex::{MAX_POINTER, push_address};
use super::name_parser::{ServiceName, Topology};
use super::port_match::{MAX_SCANNED, MAX_SHARES, PortMatch};
use super::{Question, Responder, ZoneAnswer};
use crate::index::{Service, SliceEndpoint};

impl Responder {
    /// Answers a service with cluster IPs.
    #[inline(never)]
    pub(super) fn cluster_ips(
        &self,
        question: &Question<'_>,
        below: &ServiceName<'_>,
        service: &Service,
        addresses: &[IpAddr],
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        if !below.matches_any(service.ports()) {
            return ZoneAnswer::NoName;
        }
        match question.query.rtype {
            RType::A | RType::AAAA => self.ready(question, service, reply),
            RType::SRV => {
                let ports = || service.ports().iter().take(MAX_SCANNED).filter(|port| below.matches(port));
                let count = ports().take(MAX_SHARES).count();
                let mut srv = self.srv(question, below, count * addresses.len(), reply);
                if addresses.is_empty() {
                    return srv.end();
                }
                for number in ports().filter_map(|port| port.port) {
                    srv.push(&[], number);
                    if srv.is_full() {
                        return srv.end();
                    }
                }
                for address in addresses {
                    if srv.is_full() {
                        break;
                    }
                    srv.push_address(&[], *address);
                }
                srv.end()
            }
            _ => ZoneAnswer::NoData,
        }
    }

    /// Answers endpoints of a service, selected by label, port or topology zone.
    pub(super) fn endpoints(
        &self,
        question: &Question<'_>,
        below: &ServiceName<'_>,
        service: &Service,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        let mut below = *below;
        let rtype = question.query.rtype;
        let ports = below.ports_of(service, rtype == RType::SRV);
        if select(service, &below, ports.as_ref(), Order::Label).next().is_none() {
            match below.topology {
                Some(Topology { prefer: true, .. }) => below.topology = None,
                Some(Topology { prefer: false, .. }) => return ZoneAnswer::NoData,
                None => return ZoneAnswer::NoName,
            }
        }
        match (rtype, &ports) {
            (RType::A | RType::AAAA, ports) => {
                let chosen = select(service, &below, ports.as_ref(), Order::Address(rtype));
                self.endpoint_addresses(question, chosen, reply)
            }
            (RType::SRV, Some(ports)) if ports.have_numbers() => {
                self.endpoint_srv(question, &below, service, ports, reply)
            }
            _ => ZoneAnswer::NoData,
        }
    }

    fn endpoint_addresses<'s>(
        &self,
        question: &Question<'_>,
        chosen: impl Iterator<Item = SliceEndpoint<'s>>,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        let (mut last, mut found) = (None, ZoneAnswer::NoData);
        for at in chosen {
            let address = at.endpoint.address;
            // Endpoints of one address are adjacent.
            if last.replace(address) == Some(address) {
                continue;
            }
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

    fn endpoint_srv(
        &self,
        question: &Question<'_>,
        below: &ServiceName<'_>,
        service: &Service,
        ports: &PortMatch,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        let chosen = || select(service, below, Some(ports), Order::Label);
        let mut srv = self.srv(question, below, ports.count(chosen()), reply);
        let with_numbers = || chosen().filter(|at| !ports.numbers(*at).is_empty());
        let (mut target, mut scans_left) = (Vec::new(), MAX_SCANNED);
        for at in with_numbers() {
            name_endpoint(&mut target, service, at);
            if srv.is_new(&target, at.number) {
                // Ports of a target may be listed by several slices.
                let Some(left) = scans_left.checked_sub(ports.numbers(at).len()) else { break };
                scans_left = left;
                ports.numbers(at).iter().for_each(|number| srv.push(&target, *number));
            }
            if srv.is_full() {
                return srv.end();
            }
        }
        let mut last = (Vec::new(), None);
        for at in with_numbers() {
            name_endpoint(&mut target, service, at);
            let address = Some(at.endpoint.address);
            if (&last.0, last.1) != (&target, address) {
                srv.push_address(&target, at.endpoint.address);
                last = (target.clone(), address);
            }
            if srv.is_full() {
                break;
            }
        }
        srv.end()
    }

    fn srv<'r, 'o>(
        &self,
        question: &Question<'r>,
        below: &ServiceName<'_>,
        count: usize,
        reply: &'r mut Reply<'o>,
    ) -> SrvWriter<'r, 'o> {
        let end = question.query.name.as_wire().len();
        SrvWriter {
            // The service's name, in the client's case.
            service: question.query.question.get(below.at..end).unwrap_or_default(),
            pointer: (0xc000 | (HEADER + below.at) as u16).to_be_bytes(),
            ttl: self.rules.ttl,
            // Equal weights with a sum of 100, at least 1.
            weight: (100 / count.max(1)).max(1) as u16,
            room: question.room,
            target: Vec::new(),
            slices: HashSet::new(),
            ports: HashSet::new(),
            places: Vec::new(),
            place: 0,
            reply,
        }
    }
}

/// Writes SRV records, and the addresses of their targets as additional records.
struct SrvWriter<'r, 'o> {
    reply: &'r mut Reply<'o>,
    /// Full name of the service.
    service: &'r [u8],
    /// Pointer to the service's name in the question.
    pointer: [u8; 2],
    ttl: u32,
    weight: u16,
    room: usize,
    /// The last target, the slices with ports handled for it, and its written ports.
    target: Vec<u8>,
    slices: HashSet<usize>,
    ports: HashSet<u16>,
    /// Offsets of the targets in the message, in order, for compression pointers.
    places: Vec<usize>,
    /// Index in `places` of the next target.
    place: usize,
}

impl SrvWriter<'_, '_> {
    /// Whether the ports of a slice must be written for a target. Endpoints of a target are
    /// adjacent.
    fn is_new(&mut self, below: &[u8], slice: usize) -> bool {
        if self.target != below {
            self.ports.clear();
            self.slices.clear();
            self.target = below.to_vec();
        }
        below.len() + self.service.len() <= MAX_NAME && self.slices.insert(slice)
    }

    /// Writes a record for a target, given by its labels below the service, unless it would be
    /// truncated.
    fn push(&mut self, below: &[u8], number: u16) {
        #[cfg(test)]
        crate::cost_counter::count();
        let is_new = self.ports.is_empty();
        if self.is_full() || !self.ports.insert(number) {
            return;
        }
        if is_new {
            self.places.push(self.reply.octets().len() + TARGET_OFFSET);
        }
        let numbers = [PRIORITY, self.weight, number].map(u16::to_be_bytes);
        // The target is uncompressed (RFC 2782).
        let data = [numbers.as_flattened(), below, self.service].concat();
        self.reply.push(Section::Answer, Owner::Question, RType::SRV, Class::IN, self.ttl, &data);
    }

    /// Writes an address of a target; called in the order of the targets.
    fn push_address(&mut self, below: &[u8], address: IpAddr) {
        if below.len() + self.service.len() > MAX_NAME {
            return;
        }
        let octets = self.reply.octets();
        let matches = |at: &usize| {
            let labels = octets.get(*at..).and_then(|target| target.strip_prefix(below));
            labels.is_some_and(|rest| rest.starts_with(self.service))
        };
        let Some(offset) = self.places[self.place..].iter().position(matches) else { return };
        self.place += offset;
        let pointer = match self.places[self.place] {
            at if below.is_empty() || at > MAX_POINTER => [below, &self.pointer].concat(),
            at => (0xc000 | at as u16).to_be_bytes().into(),
        };
        push_address(self.reply, Section::Additional, Owner::Name(&pointer), None, self.ttl, address);
    }

    /// Whether the reply will be truncated.
    fn is_full(&self) -> bool {
        self.reply.octets().len() > self.room
    }

    fn end(self) -> ZoneAnswer {
        if self.places.is_empty() { ZoneAnswer::NoData } else { ZoneAnswer::Written }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Label,
    /// The endpoint's address; the type selects the address family.
    Address(RType),
}

/// Returns the endpoints that match a name; `ports` are the matching ports, unless all match.
pub(super) fn select<'s>(
    service: &'s Service,
    below: &'s ServiceName<'_>,
    ports: Option<&'s PortMatch>,
    order: Order,
) -> Box<dyn Iterator<Item = SliceEndpoint<'s>> + 's> {
    if ports.is_some_and(|ports| !ports.are_any(service)) {
        return Box::new(std::iter::empty());
    }
    let all: Box<dyn Iterator<Item = SliceEndpoint<'s>>> = match (below.endpoint, order) {
        (Some(label), _) => Box::new(service.of_label(label)),
        (None, Order::Label) => Box::new(service.by_label()),
        (None, Order::Address(rtype)) => Box::new(service.by_address_of(rtype)),
    };
    Box::new(all.take(MAX_SCANNED).filter(move |at| {
        let in_zone =
            |topology: Topology<'_>| at.endpoint.zone.as_deref().is_some_and(|zone| topology.holds(zone));
        let of_cluster = |cluster: &[u8]| service.cluster(*at).eq_ignore_ascii_case(cluster);
        below.topology.is_none_or(in_zone)
            && below.cluster.is_none_or(of_cluster)
            && ports.is_none_or(|ports| ports.has_any(*at))
    }))
}

/// Writes the labels of an endpoint below its service.
pub(super) fn name_endpoint(name: &mut Vec<u8>, service: &Service, at: SliceEndpoint<'_>) {
    let label = service.label(at.endpoint);
    name.clear();
    for label in [label.octets(), service.cluster(at)].into_iter().filter(|label| !label.is_empty()) {
        name.push(label.len() as u8);
        name.extend_from_slice(label);
    }
}

const PRIORITY: u16 = 0;
/// Bytes before the target of an SRV record: owner (a pointer), type, class, TTL and length;
/// priority, weight and port.
const TARGET_OFFSET: usize = 2 + 10 + 6;
