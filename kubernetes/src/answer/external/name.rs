//! What a name below a zone of `k8s_external` means.

use std::net::IpAddr;

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
    /// The endpoints that are meant; `counts` are the ports of each slice that are.
    pub(in crate::answer) fn endpoints<'s>(
        &'s self,
        service: &'s Service,
        counts: &'s [usize],
    ) -> impl Iterator<Item = At<'s>> {
        let is_called = |at: &At<'_>| service.label(at.endpoint).octets() == self.endpoint;
        let all = service.by_label().filter(move |at| self.endpoint.is_empty() || is_called(at));
        all.filter(|at| self.ports(counts, *at) > 0)
    }

    /// How many ports of an endpoint are meant.
    pub(super) fn ports(&self, counts: &[usize], at: At<'_>) -> usize {
        if at.slice.ports.is_empty() { self.count(&[]) } else { counts[at.number] }
    }

    /// How many of these ports are meant. As in CoreDNS what has none is there, and SRV leads to none.
    pub(in crate::answer) fn count(&self, ports: &[Port]) -> usize {
        match ports {
            [] => usize::from(self.port.is_empty() && self.protocol.is_empty()),
            ports => ports.iter().filter(|port| self.means(port)).count(),
        }
    }

    pub(in crate::answer) fn means(&self, port: &Port) -> bool {
        let protocol: &[u8] = match port.protocol {
            Protocol::Tcp => b"tcp",
            Protocol::Udp => b"udp",
            Protocol::Sctp => b"sctp",
        };
        (self.port.is_empty() || port.name.as_bytes().eq_ignore_ascii_case(self.port))
            && (self.protocol.is_empty() || protocol == self.protocol)
    }
}
