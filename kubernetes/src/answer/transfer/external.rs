//! Transfers of zones of `k8s_external`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use wire::{MAX_NAME, Name, RType, reverse};

use super::super::apex::soa_numbers;
use super::super::external::weight;
use super::super::{AnswerOutcome, External, Responder, external_target};
use super::{
    MAX_COMPARED, Transfer, TransferScope, Ttls, ZoneItem, ZoneView, address_record, endpoint_address,
    of_label, of_port, srv,
};
use crate::index::{Index, Service};
use kubernetes_api::objects::{ExternalAddress, Port, Target};

impl External {
    /// Starts a transfer of a zone, like [`Responder::transfer`].
    ///
    /// # Errors
    /// As for [`Responder::transfer`].
    pub fn transfer(
        &self,
        of: &Responder,
        index: &Index,
        zone: &Name,
        has: Option<u32>,
        soa_alone: bool,
    ) -> Result<Transfer, AnswerOutcome> {
        if !self.rules.zones.contains(zone) || reverse::is_reverse(zone) {
            return Err(AnswerOutcome::NotInZones);
        }
        let ttl = self.rules.ttl;
        let begun = Transfer::new(
            *zone,
            Ttls { soa: ttl, addresses: ttl, leading: of.rules().ttl },
            ZoneView::External(ExternalServices { headless: self.rules.headless, current: None }),
        );
        let soa = |serial| {
            let numbers = soa_numbers(serial, ttl);
            let names = [&*self.server, zone.as_wire(), &*self.hostmaster, zone.as_wire()];
            [&names.concat(), numbers.as_flattened()].concat()
        };
        let listing = match TransferScope::of(index, has, soa_alone)? {
            TransferScope::Soa(serial) => return Ok(begun.of_soa(soa(serial))),
            TransferScope::All(listing) => listing,
        };
        let server = [&self.server, zone.as_wire()].concat();
        let addresses = self.own_addresses(of, |address| listing.of_address(address));
        let shown = listing.services.iter().filter(|listed| {
            let namespace = &listed.service.namespace.name;
            listed.is_known && of.shows(namespace) && self.is_in(&listed.service, zone)
        });
        Ok(Transfer {
            soa: soa(listing.serial),
            addresses: addresses.into_iter().map(|address| (server.clone(), address)).collect(),
            servers: vec![server],
            services: shown.map(|listed| listed.service.clone()).collect(),
            _listing: Some(listing),
            ..begun
        })
    }

    /// Whether a service is answered in this zone: its name is not below the apex label, and not in
    /// a longer zone.
    fn is_in(&self, service: &Service, zone: &Name) -> bool {
        let name = Name::from_wire(&[service.key(), zone.as_wire()].concat());
        let is_of_zone = |name: &Name| self.zone_of(name).is_some_and(|(_, longest)| longest == zone);
        !self.is_below_apex(service.key()) && name.is_ok_and(|name| is_of_zone(&name))
    }
}

/// State of a transfer of external addresses.
pub(super) struct ExternalServices {
    headless: bool,
    /// Data of the service with this index.
    current: Option<(usize, ExternalView)>,
}

/// Data of a service for its records.
enum ExternalView {
    Reached {
        addresses: Vec<IpAddr>,
        /// Distinct names.
        hosts: Vec<Name>,
    },
    Headless {
        /// Weight of SRV records at its name.
        weight: u16,
        /// Weights of SRV records at names of its ports.
        weights: HashMap<Vec<u8>, u16>,
    },
    Hidden,
}

impl ExternalServices {
    pub(super) fn of_service(&mut self, zone: &Name, service: &Service, at: [usize; 3]) -> ZoneItem {
        let [number, step, record] = at;
        let name = [service.key(), zone.as_wire()].concat();
        if self.current.as_ref().is_none_or(|(known, _)| *known != number) {
            self.current = Some((number, ExternalView::of(service, self.headless)));
        }
        match self.current.as_ref().map(|(_, known)| known) {
            Some(ExternalView::Reached { addresses, hosts }) => {
                reached(service, &name, (addresses, hosts), step, record)
            }
            Some(ExternalView::Headless { weight, weights }) => {
                headless(service, &name, (*weight, weights), step, record)
            }
            Some(ExternalView::Hidden) | None => ZoneItem::EndOfService,
        }
    }
}

impl ExternalView {
    fn of(service: &Service, headless: bool) -> Self {
        if !service.external().is_empty() {
            let addresses: BTreeSet<IpAddr> = service.external_addresses().collect();
            let hosts = service.external().iter().filter_map(|external| match external {
                ExternalAddress::Name(host) => external_target(host),
                ExternalAddress::Ip(_) => None,
            });
            let mut seen = HashSet::new();
            let hosts = hosts.filter(|host| seen.insert(*host)).collect();
            return Self::Reached { addresses: addresses.into_iter().collect(), hosts };
        }
        if !headless || service.target() != Some(&Target::Headless) {
            return Self::Hidden;
        }
        let (mut all, mut counts) = (0_usize, HashMap::<Vec<u8>, usize>::new());
        for slice in &service.slices {
            let endpoints = slice.endpoints.len();
            all = all.saturating_add(endpoints.saturating_mul(slice.ports.len().max(1)));
            for port in slice.ports.iter().filter_map(|port| of_port(port, b"")) {
                *counts.entry(port).or_default() += endpoints;
            }
        }
        let weights = counts.into_iter().map(|(port, count)| (port, weight(count)));
        Self::Headless { weight: weight(all), weights: weights.collect() }
    }
}

/// Items of a service with external addresses: addresses or a CNAME, then each port, with the name
/// of the service and each host as target.
fn reached(
    service: &Service,
    name: &[u8],
    (addresses, hosts): (&[IpAddr], &[Name]),
    step: usize,
    record: usize,
) -> ZoneItem {
    // A name with a CNAME has no other records (RFC 1034, section 3.6.2); otherwise secondaries
    // refuse the zone.
    let Some(number) = step.checked_sub(addresses.len().max(1)) else {
        return match (record, addresses.get(step), hosts.first()) {
            (0, Some(address), _) => address_record(name.to_vec(), *address),
            (0, None, Some(host)) => ZoneItem::Record(name.to_vec(), RType::CNAME, host.as_wire().to_vec()),
            _ => ZoneItem::EndOfStep,
        };
    };
    let Some(port) = service.ports().get(number) else { return ZoneItem::EndOfService };
    let is_reached = !addresses.is_empty();
    let target = match (record / 2).checked_sub(usize::from(is_reached)) {
        None => name,
        Some(host) => match hosts.get(host) {
            Some(host) => host.as_wire(),
            None => return ZoneItem::EndOfStep,
        },
    };
    let before = &service.ports()[number.saturating_sub(MAX_COMPARED)..number];
    // A port without a record for one host has none for any host, so that hosts are not scanned.
    let own = is_reached && before.iter().all(|other| other.port != port.port);
    let by_port = of_port(port, name).filter(|owner| owner.len() <= MAX_NAME);
    match (record % 2, by_port) {
        _ if port.port.is_none() => ZoneItem::EndOfStep,
        (_, None) if !own => ZoneItem::EndOfStep,
        (0, _) if own => srv(name.to_vec(), 100, port, target),
        (_, Some(owner)) if record % 2 == 1 => srv(owner, 100, port, target),
        _ => ZoneItem::Nothing,
    }
}

/// Items of a headless service: addresses at its name, then for each endpoint the address at its
/// own name, and its ports at the names of endpoint, service and port.
fn headless(
    service: &Service,
    name: &[u8],
    (weight, weights): (u16, &HashMap<Vec<u8>, u16>),
    step: usize,
    record: usize,
) -> ZoneItem {
    let count = service.endpoint_count();
    if step < count {
        return endpoint_address(service, name, step, record);
    }
    let number = step - count;
    if number >= count {
        return ZoneItem::EndOfService;
    }
    let at = service.nth_by_label(number);
    let label = service.label(at.endpoint);
    let own = [&[label.octets().len() as u8], label.octets(), name].concat();
    let mut before = of_label(service, number);
    let Some(record) = record.checked_sub(1) else {
        return match before.any(|before| before.endpoint.address == at.endpoint.address) {
            true => ZoneItem::Nothing,
            false => address_record(own, at.endpoint.address),
        };
    };
    let (nth, which) = (record / 3, record % 3);
    let Some(port) = at.slice.ports.get(nth) else { return ZoneItem::EndOfStep };
    // An earlier endpoint of the same slice has the records of all ports of the slice.
    if before.clone().any(|before| before.number == at.number) {
        return ZoneItem::EndOfStep;
    }
    let is_same = |other: &Port| match which {
        2 => other == port,
        _ => other.port == port.port,
    };
    let own_before = &at.slice.ports[nth.saturating_sub(MAX_COMPARED)..nth];
    if own_before.iter().any(is_same)
        || before.any(|before| before.slice.ports.iter().take(MAX_COMPARED).any(is_same))
    {
        return ZoneItem::Nothing;
    }
    match which {
        0 => srv(name.to_vec(), weight, port, &own),
        1 => srv(own.clone(), 100, port, &own),
        _ => {
            let weight = of_port(port, b"").and_then(|port| weights.get(&port).copied()).unwrap_or(1);
            of_port(port, name).map_or(ZoneItem::Nothing, |owner| srv(owner, weight, port, &own))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExternalRules;
    use crate::testing::*;
    use kubernetes_api::{Kind, Object, Sink};

    fn zones(text: &str, headless: bool) -> External {
        let zones = text.split(' ').map(|zone| Name::from_text(zone).unwrap()).collect();
        External::new(ExternalRules { zones, apex: "dns".into(), ttl: 30, headless }).unwrap()
    }

    fn cluster(objects: impl IntoIterator<Item = Object>) -> Cluster {
        let mut rules = rules("cluster.local");
        rules.own = vec!["172.17.0.53".parse().unwrap(), "fd00::53".parse().unwrap()];
        rules.ttl = 7;
        let namespaces = ["t1", "t2", "dns", "x"].map(namespace);
        Cluster::of(&everything(), rules, namespaces.into_iter().chain(objects))
    }

    fn objects() -> Vec<Object> {
        vec![
            external("t2/lb", "10.96.0.9", "http:80/tcp", "192.0.2.9"),
            external(
                "t1/lb",
                "10.96.0.1",
                "http:80/tcp :81/tcp dns:80/udp",
                "192.0.2.2 192.0.2.1 2001:db8::1 192.0.2.1",
            ),
            external("t1/host", "10.96.0.2", "http:80/tcp :81/tcp", "lb.example.net two.example.net"),
            external("t1/both", "10.96.0.7", "http:80/tcp", "192.0.2.7 lb.example.net lb.example.net"),
            external("t1/portless", "10.96.0.3", "", "192.0.2.3"),
            service("t1/inside", "10.96.0.4", "http:80/tcp"),
            service("t1/hl", "None", "c:1234/udp"),
            slice("t1/hl-a", "hl", "172.17.0.2=h1 172.17.0.1", "c:1234/udp :80/tcp"),
            slice("t1/hl-b", "hl", "172.17.0.1 172.17.0.2=h1", "c:1234/udp"),
            // Below the apex label, in a longer zone, in a hidden namespace.
            external("dns/ns1", "10.96.0.5", "http:80/tcp", "192.0.2.5"),
            external("x/longer", "10.96.0.6", "http:80/tcp", "192.0.2.6"),
            external("t3/hidden", "10.96.0.8", "http:80/tcp", "192.0.2.8"),
        ]
    }

    const SOA: &str = "30 SOA ns1.dns.example.org. hostmaster.dns.example.org. 1700000000 7200 1800 86400 30";
    const REACHED: &[&str] = &[
        SOA,
        "30 NS ns1.dns.example.org.",
        "ns1.dns.example.org. 30 A 172.17.0.53",
        "ns1.dns.example.org. 30 AAAA fd00::53",
        "both.t1.example.org. 30 A 192.0.2.7",
        "both.t1.example.org. SRV 0 100 80 both.t1.example.org.",
        "_http._tcp.both.t1.example.org. SRV 0 100 80 both.t1.example.org.",
        "both.t1.example.org. SRV 0 100 80 lb.example.net.",
        "_http._tcp.both.t1.example.org. SRV 0 100 80 lb.example.net.",
        "host.t1.example.org. CNAME lb.example.net.",
        "_http._tcp.host.t1.example.org. SRV 0 100 80 lb.example.net.",
        "_http._tcp.host.t1.example.org. SRV 0 100 80 two.example.net.",
        "lb.t1.example.org. 30 A 192.0.2.1",
        "lb.t1.example.org. 30 A 192.0.2.2",
        "lb.t1.example.org. 30 AAAA 2001:db8::1",
        "lb.t1.example.org. SRV 0 100 80 lb.t1.example.org.",
        "_http._tcp.lb.t1.example.org. SRV 0 100 80 lb.t1.example.org.",
        "lb.t1.example.org. SRV 0 100 81 lb.t1.example.org.",
        "_dns._udp.lb.t1.example.org. SRV 0 100 80 lb.t1.example.org.",
        "lb.t2.example.org. 30 A 192.0.2.9",
        "lb.t2.example.org. SRV 0 100 80 lb.t2.example.org.",
        "_http._tcp.lb.t2.example.org. SRV 0 100 80 lb.t2.example.org.",
        "portless.t1.example.org. 30 A 192.0.2.3",
        SOA,
    ];

    const HEADLESS: &[&str] = &[
        "hl.t1.example.org. 30 A 172.17.0.1",
        "hl.t1.example.org. 30 A 172.17.0.2",
        "172-17-0-1.hl.t1.example.org. 30 A 172.17.0.1",
        "hl.t1.example.org. SRV 0 16 1234 172-17-0-1.hl.t1.example.org.",
        "172-17-0-1.hl.t1.example.org. SRV 0 100 1234 172-17-0-1.hl.t1.example.org.",
        "_c._udp.hl.t1.example.org. SRV 0 25 1234 172-17-0-1.hl.t1.example.org.",
        "hl.t1.example.org. SRV 0 16 80 172-17-0-1.hl.t1.example.org.",
        "172-17-0-1.hl.t1.example.org. SRV 0 100 80 172-17-0-1.hl.t1.example.org.",
        "h1.hl.t1.example.org. 30 A 172.17.0.2",
        "hl.t1.example.org. SRV 0 16 1234 h1.hl.t1.example.org.",
        "h1.hl.t1.example.org. SRV 0 100 1234 h1.hl.t1.example.org.",
        "_c._udp.hl.t1.example.org. SRV 0 25 1234 h1.hl.t1.example.org.",
        "hl.t1.example.org. SRV 0 16 80 h1.hl.t1.example.org.",
        "h1.hl.t1.example.org. SRV 0 100 80 h1.hl.t1.example.org.",
    ];

    #[test]
    fn unnumbered_ports_skip_hosts() {
        const MANY: usize = 300;
        let hosts: Vec<_> = (0..MANY).map(|number| format!("h{number}.example.net")).collect();
        let long = "p".repeat(63);
        for (name, address) in [("", ""), (&*long, ""), ("", "192.0.2.1 ")] {
            let ports: Vec<_> = (1..=MANY).map(|port| format!("{name}:{port}/tcp")).collect();
            let lie =
                external("t1/lie", "10.96.0.9", &ports.join(" "), &(address.to_owned() + &hosts.join(" ")));
            let cluster = cluster([lie]);
            let service = cluster.index.services.get(b"\x03lie\x02t1").unwrap();
            let zone = Name::from_text("example.org").unwrap();
            let mut external = ExternalServices { headless: false, current: None };
            let (mut at, mut looks, mut records) = ([0; 3], 0, 0);
            loop {
                looks += 1;
                at = match external.of_service(&zone, &service, at) {
                    ZoneItem::Record(..) => {
                        records += 1;
                        [0, at[1], at[2] + 1]
                    }
                    ZoneItem::Nothing => [0, at[1], at[2] + 1],
                    ZoneItem::EndOfStep => [0, at[1] + 1, 0],
                    ZoneItem::EndOfService => break,
                };
            }
            assert!(
                looks <= 4 * MANY + 2 * records,
                "{looks} looks for {records} records: {name:?} {address:?}"
            );
        }
    }

    #[test]
    fn external_transfer_has_each_record_once() {
        let cluster = cluster(objects());
        for most in [1, 2, 7, 1_000] {
            for headless in [false, true] {
                let zones = zones("example.org x.example.org in-addr.arpa", headless);
                let mut sent = cluster.transfer_external(&zones, "example.org", None, most).unwrap();
                let mut of_endpoints = sent.clone();
                of_endpoints.retain(|record| record.contains("hl.t1."));
                sent.retain(|record| !record.contains("hl.t1."));
                assert_eq!(sent, REACHED, "{most} {headless}");
                let mut expected: Vec<&str> = if headless { HEADLESS.into() } else { Vec::new() };
                expected.sort_unstable();
                of_endpoints.sort_unstable();
                assert_eq!(of_endpoints, expected, "{most} {headless}");
            }
        }
    }

    #[test]
    fn refuses_transfer_of_reverse_zone() {
        let mut cluster = cluster(objects());
        let zones = zones("example.org in-addr.arpa", true);
        let serial = cluster.index.serial();
        let sent = |cluster: &Cluster, has| cluster.transfer_external(&zones, "example.org", has, 9).unwrap();
        // A newer serial may be that of another server of the zone.
        for has in [serial, serial + 1, serial + 1_000_000] {
            assert_eq!(sent(&cluster, Some(has)), [SOA], "{has}");
        }
        let whole = sent(&cluster, None);
        assert_eq!(sent(&cluster, Some(serial - 1)), whole);
        for none in ["in-addr.arpa", "t1.example.org", "org", "cluster.local"] {
            assert_eq!(
                cluster.transfer_external(&zones, none, None, 9),
                Err(AnswerOutcome::NotInZones),
                "{none}"
            );
        }
        cluster.writer.delete(Kind::Service, key("t1/lb"));
        assert_eq!(sent(&cluster, None), whole, "transfers in this second are equal");
        LATER.set(1);
        let later = sent(&cluster, Some(serial));
        assert!(!later.iter().any(|record| record.contains("lb.t1.example.org.")), "{later:#?}");
        assert!(later[0].contains(&(serial + 1).to_string()), "{later:#?}");
        let early = Cluster::new(&everything(), rules("cluster.local"));
        assert_eq!(
            early.transfer_external(&zones, "example.org", None, 9),
            Err(AnswerOutcome::Unsynced(Kind::Service))
        );
    }

    #[test]
    fn server_without_address_has_ns() {
        let bare = Cluster::of(&everything(), rules("cluster.local"), [namespace("t1")]);
        let sent = bare.transfer_external(&zones("example.org", false), "example.org", None, 9).unwrap();
        assert_eq!(sent.len(), 3, "{sent:#?}");
        assert!(sent[1].ends_with("NS ns1.dns.example.org."), "{sent:#?}");
    }

    #[test]
    fn hostile_services_have_bounded_cost() {
        let many =
            |count: usize, text: &dyn Fn(usize) -> String| (0..count).map(text).collect::<Vec<_>>().join(" ");
        let addresses = many(20_000, &|n| format!("10.{}.{}.{}", n >> 16, n >> 8 & 0xff, n & 0xff));
        let ports = many(20_000, &|n| format!("p{n}:{}/tcp", n + 1));
        let named = many(1_000, &|n| format!("10.1.{}.{}=h", n >> 8, n & 0xff));
        let cluster = cluster([
            external("t1/lb", "10.96.0.1", &ports, &addresses),
            service("t1/hl", "None", ""),
            slice("t1/hl-a", "hl", &named, &ports),
        ]);
        let sent = cluster.transfer_external(&zones("example.org", true), "example.org", None, 1_000);
        let sent = sent.unwrap().len();
        // Two SOAs, NS and addresses; for one service each address, and each port twice; for the
        // other each address twice, and each port three times.
        assert_eq!(sent, 5 + (20_000 + 2 * 20_000) + (2 * 1_000 + 3 * 20_000));
    }
}
