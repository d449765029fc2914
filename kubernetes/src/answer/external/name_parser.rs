//! Parses names in a zone of `k8s_external`.

use std::net::IpAddr;

use super::super::endpoints::Order;
use super::super::port_match::{MAX_SCANNED, MAX_SHARES, PortMatch};
use crate::index::{Service, SliceEndpoint};
use kubernetes_api::objects::{Port, Protocol};

/// A name of a service, or of some of its endpoints and ports; empty parts mean any.
pub(in crate::answer) struct ExternalService<'n> {
    /// Key of the service in the index.
    pub(in crate::answer) key: &'n [u8],
    pub(in crate::answer) namespace: &'n [u8],
    pub(super) endpoint: &'n [u8],
    pub(super) port: &'n [u8],
    pub(super) protocol: &'n [u8],
}

/// A name in a zone.
pub(in crate::answer) enum ParsedExternalName<'n> {
    /// The zone itself.
    Apex,
    /// At or below the apex label.
    Servers(&'n [u8]),
    /// `NAMESPACE`
    Namespace(&'n [u8]),
    Service(ExternalService<'n>),
    /// A reverse name.
    Address(IpAddr),
    /// Not a name of a service.
    Invalid,
}

/// Parses the labels below a zone.
pub(super) fn parse(below: &[u8]) -> ParsedExternalName<'_> {
    let (mut starts, mut at) = (Vec::with_capacity(4), 0);
    while let Some(length) = below.get(at) {
        starts.push(at);
        at += 1 + usize::from(*length);
    }
    let count = starts.len();
    // Labels counted from the zone.
    let label = |number: usize| {
        let start = starts[count - 1 - number];
        &below[start + 1..start + 1 + usize::from(below[start])]
    };
    // The underscore is optional (as in CoreDNS).
    let bare = |number: usize| label(number).strip_prefix(b"_").unwrap_or_else(|| label(number));
    if count < 2 {
        return if count == 1 {
            ParsedExternalName::Namespace(label(0))
        } else {
            ParsedExternalName::Invalid
        };
    }
    let plain = ExternalService {
        key: &below[starts[count - 2]..],
        namespace: label(0),
        endpoint: b"",
        port: b"",
        protocol: b"",
    };
    match count {
        2 => ParsedExternalName::Service(plain),
        3 => ParsedExternalName::Service(ExternalService { endpoint: bare(2), ..plain }),
        4 => ParsedExternalName::Service(ExternalService { protocol: bare(2), port: bare(3), ..plain }),
        _ => ParsedExternalName::Invalid,
    }
}

impl ExternalService<'_> {
    /// Returns the matching ports of a service's slices; `None` if all match and `numbers` is not
    /// set.
    pub(in crate::answer) fn ports_of(&self, service: &Service, numbers: bool) -> Option<PortMatch> {
        let is_any = self.is_any();
        (numbers || !is_any).then(|| PortMatch::of(service, is_any, |port| self.matches(port)))
    }

    fn is_any(&self) -> bool {
        self.port.is_empty() && self.protocol.is_empty()
    }

    /// Returns the matching endpoints with these ports.
    pub(in crate::answer) fn endpoints<'s>(
        &'s self,
        service: &'s Service,
        ports: Option<&'s PortMatch>,
        order: Order,
    ) -> impl Iterator<Item = SliceEndpoint<'s>> {
        let all: Box<dyn Iterator<Item = SliceEndpoint<'s>>> = match order {
            _ if ports.is_some_and(|ports| !ports.are_any(service)) => Box::new(std::iter::empty()),
            _ if !self.endpoint.is_empty() => Box::new(service.of_label(self.endpoint)),
            Order::Label => Box::new(service.by_label()),
            Order::Address(rtype) => Box::new(service.by_address_of(rtype)),
        };
        all.take(MAX_SCANNED).filter(move |at| ports.is_none_or(|ports| ports.has_any(*at)))
    }

    /// Returns the number of matching ports, at most [`MAX_SHARES`]. As in CoreDNS a service
    /// without ports exists, without SRV records.
    pub(in crate::answer) fn count(&self, ports: &[Port]) -> usize {
        match ports {
            [] => usize::from(self.is_any()),
            ports => self.matching_ports(ports).take(MAX_SHARES).count(),
        }
    }

    /// Returns the distinct numbers of the matching ports, sorted.
    pub(super) fn numbers(&self, ports: &[Port]) -> Vec<u16> {
        let mut numbers: Vec<u16> = self.matching_ports(ports).filter_map(|port| port.port).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn matching_ports<'p>(&self, ports: &'p [Port]) -> impl Iterator<Item = &'p Port> {
        ports.iter().take(MAX_SCANNED).filter(|port| self.matches(port))
    }

    pub(in crate::answer) fn matches(&self, port: &Port) -> bool {
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
}
