//! What is composed of services and endpoints when it is asked for: addresses of some of them, and SRV.

use std::collections::HashSet;
use std::net::IpAddr;

use wire::{Class, HEADER, MAX_NAME, Owner, RType, Reply, Section};

use super::apex::{FURTHEST, push_address};
use super::name_parser::{Below, Topology};
use super::port_match::{MOST_LOOKS, MOST_SHARES, MeantPorts};
use super::{Question, Responder, ZoneAnswer};
use crate::index::{At, Service};

impl Responder {
    /// A service with addresses of its own.
    #[inline(never)]
    pub(super) fn cluster_ips(
        &self,
        question: &Question<'_>,
        below: &Below<'_>,
        service: &Service,
        addresses: &[IpAddr],
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        if !below.means_any(service.ports()) {
            return ZoneAnswer::NoName;
        }
        match question.query.rtype {
            RType::A | RType::AAAA => self.ready(question, service, reply),
            RType::SRV => {
                let ports = || service.ports().iter().take(MOST_LOOKS).filter(|port| below.means(port));
                let count = ports().take(MOST_SHARES).count();
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

    /// Endpoints of a service: all of them, those of a label, at a port, in a zone.
    pub(super) fn endpoints(
        &self,
        question: &Question<'_>,
        below: &Below<'_>,
        service: &Service,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        let mut below = *below;
        let rtype = question.query.rtype;
        let ports = below.ports_of(service, rtype == RType::SRV);
        if chosen(service, &below, ports.as_ref(), Order::Label).next().is_none() {
            match below.topology {
                Some(Topology { prefer: true, .. }) => below.topology = None,
                Some(Topology { prefer: false, .. }) => return ZoneAnswer::NoData,
                None => return ZoneAnswer::NoName,
            }
        }
        match (rtype, &ports) {
            (RType::A | RType::AAAA, ports) => {
                let chosen = chosen(service, &below, ports.as_ref(), Order::Address(rtype));
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
        chosen: impl Iterator<Item = At<'s>>,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        let (mut last, mut found) = (None, ZoneAnswer::NoData);
        for at in chosen {
            let address = at.endpoint.address;
            // Those of one address stand together.
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
        below: &Below<'_>,
        service: &Service,
        ports: &MeantPorts,
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        let chosen = || chosen(service, below, Some(ports), Order::Label);
        let mut srv = self.srv(question, below, ports.count(chosen()), reply);
        let with_numbers = || chosen().filter(|at| !ports.numbers(*at).is_empty());
        let (mut target, mut looks) = (Vec::new(), MOST_LOOKS);
        for at in with_numbers() {
            name_endpoint(&mut target, service, at);
            if srv.is_new(&target, at.number) {
                // What other slices have said of a target is looked at as well.
                let Some(left) = looks.checked_sub(ports.numbers(at).len()) else { break };
                looks = left;
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
        below: &Below<'_>,
        count: usize,
        reply: &'r mut Reply<'o>,
    ) -> Srv<'r, 'o> {
        let end = question.query.name.as_wire().len();
        Srv {
            // In the client's case, as the question has it.
            service: question.query.question.get(below.at..end).unwrap_or_default(),
            pointer: (0xc000 | (HEADER + below.at) as u16).to_be_bytes(),
            ttl: self.rules.ttl,
            // All have the same share of 100, and each has some.
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

/// SRV records, and the addresses of their targets behind them.
struct Srv<'r, 'o> {
    reply: &'r mut Reply<'o>,
    /// The service's whole name.
    service: &'r [u8],
    /// The same as a pointer into the question.
    pointer: [u8; 2],
    ttl: u32,
    weight: u16,
    room: usize,
    /// The last target, the slices whose ports were told of it, and the ports that are written of it.
    target: Vec<u8>,
    slices: HashSet<usize>,
    ports: HashSet<u16>,
    /// Where in the message each target is written, in order: there its addresses point to.
    places: Vec<usize>,
    /// Which of them is the next.
    place: usize,
}

impl Srv<'_, '_> {
    /// Whether the ports of a slice are still to be told of a target that can have records; endpoints of a target stand
    /// together.
    fn is_new(&mut self, below: &[u8], slice: usize) -> bool {
        if self.target != below {
            self.ports.clear();
            self.slices.clear();
            self.target = below.to_vec();
        }
        below.len() + self.service.len() <= MAX_NAME && self.slices.insert(slice)
    }

    /// One for a target, given by its labels below the service. A service has as many ports as who may write it likes: what will
    /// be cut is not written.
    fn push(&mut self, below: &[u8], number: u16) {
        #[cfg(test)]
        crate::cost_counter::looked();
        let is_new = self.ports.is_empty();
        if self.is_full() || !self.ports.insert(number) {
            return;
        }
        if is_new {
            self.places.push(self.reply.octets().len() + BEFORE_TARGET);
        }
        let numbers = [PRIORITY, self.weight, number].map(u16::to_be_bytes);
        // Without compression (RFC 2782).
        let data = [numbers.as_flattened(), below, self.service].concat();
        self.reply.push(Section::Answer, Owner::Question, RType::SRV, Class::IN, self.ttl, &data);
    }

    /// The address of a target; targets come in the order in which they were written.
    fn push_address(&mut self, below: &[u8], address: IpAddr) {
        if below.len() + self.service.len() > MAX_NAME {
            return;
        }
        let octets = self.reply.octets();
        let is_it = |at: &usize| {
            let labels = octets.get(*at..).and_then(|target| target.strip_prefix(below));
            labels.is_some_and(|rest| rest.starts_with(self.service))
        };
        let Some(further) = self.places[self.place..].iter().position(is_it) else { return };
        self.place += further;
        let pointer = match self.places[self.place] {
            at if below.is_empty() || at > FURTHEST => [below, &self.pointer].concat(),
            at => (0xc000 | at as u16).to_be_bytes().into(),
        };
        push_address(self.reply, Section::Additional, Owner::Name(&pointer), None, self.ttl, address);
    }

    /// Whether the reply will be cut.
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
    /// Those of the family that this type has.
    Address(RType),
}

/// The endpoints that a name means; `ports` are the ones that it means of them, where it does not mean all.
pub(super) fn chosen<'s>(
    service: &'s Service,
    below: &'s Below<'_>,
    ports: Option<&'s MeantPorts>,
    order: Order,
) -> Box<dyn Iterator<Item = At<'s>> + 's> {
    if ports.is_some_and(|ports| !ports.are_any(service)) {
        return Box::new(std::iter::empty());
    }
    let all: Box<dyn Iterator<Item = At<'s>>> = match (below.endpoint, order) {
        (Some(label), _) => Box::new(service.of_label(label)),
        (None, Order::Label) => Box::new(service.by_label()),
        (None, Order::Address(rtype)) => Box::new(service.by_address_of(rtype)),
    };
    Box::new(all.take(MOST_LOOKS).filter(move |at| {
        let in_zone =
            |topology: Topology<'_>| at.endpoint.zone.as_deref().is_some_and(|zone| topology.holds(zone));
        let of_cluster = |cluster: &[u8]| service.cluster(*at).eq_ignore_ascii_case(cluster);
        below.topology.is_none_or(in_zone)
            && below.cluster.is_none_or(of_cluster)
            && ports.is_none_or(|ports| ports.has_any(*at))
    }))
}

/// The labels of an endpoint below its service.
pub(super) fn name_endpoint(name: &mut Vec<u8>, service: &Service, at: At<'_>) {
    let label = service.label(at.endpoint);
    name.clear();
    for label in [label.octets(), service.cluster(at)].into_iter().filter(|label| !label.is_empty()) {
        name.push(label.len() as u8);
        name.extend_from_slice(label);
    }
}

const PRIORITY: u16 = 0;
/// Of an SRV record: its owner, a pointer to the question; type, class, TTL and length; priority, weight and port.
const BEFORE_TARGET: usize = 2 + 10 + 6;
