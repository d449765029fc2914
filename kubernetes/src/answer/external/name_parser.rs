//! What a name below a zone of `k8s_external` means.

use std::net::IpAddr;

use super::super::endpoints::Order;
use super::super::port_match::{MOST_LOOKS, MOST_SHARES, MeantPorts};
use crate::index::{At, Service};
use kubernetes_api::objects::{Port, Protocol};

/// What a name below a zone means; empty parts mean any.
pub(in crate::answer) struct Meant<'n> {
    /// The service, as the index finds it.
    pub(in crate::answer) key: &'n [u8],
    pub(in crate::answer) namespace: &'n [u8],
    pub(super) endpoint: &'n [u8],
    pub(super) port: &'n [u8],
    pub(super) protocol: &'n [u8],
}

/// What stands below a zone.
pub(in crate::answer) enum Below<'n> {
    /// Nothing: the zone itself.
    Apex,
    /// Its servers, or nothing at a name that is theirs.
    Servers(&'n [u8]),
    /// `NAMESPACE`
    Namespace(&'n [u8]),
    Service(Meant<'n>),
    /// The name that leads back from an address.
    Address(IpAddr),
    Nothing,
}

/// What the labels below a zone say.
pub(super) fn read(below: &[u8]) -> Below<'_> {
    let (mut starts, mut at) = (Vec::with_capacity(4), 0);
    while let Some(length) = below.get(at) {
        starts.push(at);
        at += 1 + usize::from(*length);
    }
    let count = starts.len();
    // Of the labels next to the zone, that next to it first.
    let label = |number: usize| {
        let start = starts[count - 1 - number];
        &below[start + 1..start + 1 + usize::from(below[start])]
    };
    // The underscore may be left out (as in CoreDNS).
    let bare = |number: usize| label(number).strip_prefix(b"_").unwrap_or_else(|| label(number));
    if count < 2 {
        return if count == 1 { Below::Namespace(label(0)) } else { Below::Nothing };
    }
    let plain = Meant {
        key: &below[starts[count - 2]..],
        namespace: label(0),
        endpoint: b"",
        port: b"",
        protocol: b"",
    };
    match count {
        2 => Below::Service(plain),
        3 => Below::Service(Meant { endpoint: bare(2), ..plain }),
        4 => Below::Service(Meant { protocol: bare(2), port: bare(3), ..plain }),
        _ => Below::Nothing,
    }
}

impl Meant<'_> {
    /// Which ports of a service's slices are meant; `None` where that is any, and their numbers are not wanted.
    pub(in crate::answer) fn ports_of(&self, service: &Service, numbers: bool) -> Option<MeantPorts> {
        let is_any = self.is_any();
        (numbers || !is_any).then(|| MeantPorts::of(service, is_any, |port| self.means(port)))
    }

    fn is_any(&self) -> bool {
        self.port.is_empty() && self.protocol.is_empty()
    }

    /// The endpoints that are meant, with these ports.
    pub(in crate::answer) fn endpoints<'s>(
        &'s self,
        service: &'s Service,
        ports: Option<&'s MeantPorts>,
        order: Order,
    ) -> impl Iterator<Item = At<'s>> {
        let all: Box<dyn Iterator<Item = At<'s>>> = match order {
            _ if ports.is_some_and(|ports| !ports.are_any(service)) => Box::new(std::iter::empty()),
            _ if !self.endpoint.is_empty() => Box::new(service.of_label(self.endpoint)),
            Order::Label => Box::new(service.by_label()),
            Order::Address(rtype) => Box::new(service.by_address_of(rtype)),
        };
        all.take(MOST_LOOKS).filter(move |at| ports.is_none_or(|ports| ports.has_any(*at)))
    }

    /// How many of these ports are meant, not more than make a difference. As in CoreDNS what has none is there, and SRV leads
    /// to none.
    pub(in crate::answer) fn count(&self, ports: &[Port]) -> usize {
        match ports {
            [] => usize::from(self.is_any()),
            ports => self.ports_among(ports).take(MOST_SHARES).count(),
        }
    }

    /// The numbers of those that are meant, in order and each once.
    pub(super) fn numbers(&self, ports: &[Port]) -> Vec<u16> {
        let mut numbers: Vec<u16> = self.ports_among(ports).filter_map(|port| port.port).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn ports_among<'p>(&self, ports: &'p [Port]) -> impl Iterator<Item = &'p Port> {
        ports.iter().take(MOST_LOOKS).filter(|port| self.means(port))
    }

    pub(in crate::answer) fn means(&self, port: &Port) -> bool {
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
}
