//! Zones of `k8s_external`: what answers there have of services, each record once.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use wire::{MAX_NAME, Name, RType, reverse};

use super::super::apex::soa_numbers;
use super::super::external::weight;
use super::super::{Answered, External, Responder, external_target};
use super::{
    LOOKED_BACK, Place, SeenFrom, Transfer, Ttls, Wanted, address_record, endpoint_address, of_label,
    of_port, srv,
};
use crate::index::{Index, Service};
use kubernetes_api::objects::{ExternalAddress, Port, Target};

impl External {
    /// One of the zones as it is now, as [`Responder::transfer`] sends a cluster's own.
    ///
    /// # Errors
    /// As there; a zone of addresses is none that is sent.
    pub fn transfer(
        &self,
        of: &Responder,
        index: &Index,
        zone: &Name,
        has: Option<u32>,
        soa_alone: bool,
    ) -> Result<Transfer, Answered> {
        if !self.rules.zones.contains(zone) || reverse::is_reverse(zone) {
            return Err(Answered::NotMine);
        }
        let ttl = self.rules.ttl;
        let begun = Transfer::new(
            *zone,
            Ttls { soa: ttl, addresses: ttl, leading: of.rules().ttl },
            SeenFrom::External(ExternalServices { headless: self.rules.headless, current: None }),
        );
        let soa = |serial| {
            let numbers = soa_numbers(serial, ttl);
            let names = [&*self.server, zone.as_wire(), &*self.hostmaster, zone.as_wire()];
            [&names.concat(), numbers.as_flattened()].concat()
        };
        let listing = match Wanted::of(index, has, soa_alone)? {
            Wanted::Soa(serial) => return Ok(begun.of_soa(soa(serial))),
            Wanted::All(listing) => listing,
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

    /// Whether it is answered in this zone: not where the zone's servers are, nor in a longer zone.
    fn is_in(&self, service: &Service, zone: &Name) -> bool {
        let name = Name::from_wire(&[service.key(), zone.as_wire()].concat());
        let is_of_zone = |name: &Name| self.zone_of(name).is_some_and(|(_, longest)| longest == zone);
        !self.holds_servers(service.key()) && name.is_ok_and(|name| is_of_zone(&name))
    }
}

/// How far services are told as they are seen from outside.
pub(super) struct ExternalServices {
    headless: bool,
    /// What is known of the service with this number.
    current: Option<(usize, Known)>,
}

/// What its records need to know of a service as a whole.
enum Known {
    Reached {
        addresses: Vec<IpAddr>,
        /// Each once.
        hosts: Vec<Name>,
    },
    Headless {
        /// Of SRV records at its own name.
        weight: u16,
        /// Of those at names of its ports.
        weights: HashMap<Vec<u8>, u16>,
    },
    Hidden,
}

impl ExternalServices {
    pub(super) fn of_service(&mut self, zone: &Name, service: &Service, at: [usize; 3]) -> Place {
        let [number, step, record] = at;
        let name = [service.key(), zone.as_wire()].concat();
        if self.current.as_ref().is_none_or(|(known, _)| *known != number) {
            self.current = Some((number, Known::of(service, self.headless)));
        }
        match self.current.as_ref().map(|(_, known)| known) {
            Some(Known::Reached { addresses, hosts }) => {
                reached(service, &name, (addresses, hosts), step, record)
            }
            Some(Known::Headless { weight, weights }) => {
                headless(service, &name, (*weight, weights), step, record)
            }
            Some(Known::Hidden) | None => Place::EndOfService,
        }
    }
}

impl Known {
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

/// Addresses or an alias, then each port: by the service's own name, and by each host's.
fn reached(
    service: &Service,
    name: &[u8],
    (addresses, hosts): (&[IpAddr], &[Name]),
    step: usize,
    record: usize,
) -> Place {
    // An alias has nothing beside it (RFC 1034, section 3.6.2), or nobody could take the zone.
    let Some(number) = step.checked_sub(addresses.len().max(1)) else {
        return match (record, addresses.get(step), hosts.first()) {
            (0, Some(address), _) => address_record(name.to_vec(), *address),
            (0, None, Some(host)) => Place::Record(name.to_vec(), RType::CNAME, host.as_wire().to_vec()),
            _ => Place::EndOfStep,
        };
    };
    let Some(port) = service.ports().get(number) else { return Place::EndOfService };
    let is_reached = !addresses.is_empty();
    let target = match (record / 2).checked_sub(usize::from(is_reached)) {
        None => name,
        Some(host) => match hosts.get(host) {
            Some(host) => host.as_wire(),
            None => return Place::EndOfStep,
        },
    };
    let before = &service.ports()[number.saturating_sub(LOOKED_BACK)..number];
    // What is not told of one host is told of none: as many hosts as there are would cost as many looks.
    let own = is_reached && before.iter().all(|other| other.port != port.port);
    let by_port = of_port(port, name).filter(|owner| owner.len() <= MAX_NAME);
    match (record % 2, by_port) {
        _ if port.port.is_none() => Place::EndOfStep,
        (_, None) if !own => Place::EndOfStep,
        (0, _) if own => srv(name.to_vec(), 100, port, target),
        (_, Some(owner)) if record % 2 == 1 => srv(owner, 100, port, target),
        _ => Place::Nothing,
    }
}

/// Every address at the service's name, then each endpoint: its address at its own name, and its ports at that name, the
/// service's and the port's.
fn headless(
    service: &Service,
    name: &[u8],
    (weight, weights): (u16, &HashMap<Vec<u8>, u16>),
    step: usize,
    record: usize,
) -> Place {
    let count = service.endpoint_count();
    if step < count {
        return endpoint_address(service, name, step, record);
    }
    let number = step - count;
    if number >= count {
        return Place::EndOfService;
    }
    let at = service.nth_by_label(number);
    let label = service.label(at.endpoint);
    let own = [&[label.octets().len() as u8], label.octets(), name].concat();
    let mut before = of_label(service, number);
    let Some(record) = record.checked_sub(1) else {
        return match before.any(|before| before.endpoint.address == at.endpoint.address) {
            true => Place::Nothing,
            false => address_record(own, at.endpoint.address),
        };
    };
    let (nth, which) = (record / 3, record % 3);
    let Some(port) = at.slice.ports.get(nth) else { return Place::EndOfStep };
    // An earlier endpoint of the same slice sent the records of all the slice's ports already.
    if before.clone().any(|before| before.number == at.number) {
        return Place::EndOfStep;
    }
    let is_same = |other: &Port| match which {
        2 => other == port,
        _ => other.port == port.port,
    };
    let own_before = &at.slice.ports[nth.saturating_sub(LOOKED_BACK)..nth];
    if own_before.iter().any(is_same)
        || before.any(|before| before.slice.ports.iter().take(LOOKED_BACK).any(is_same))
    {
        return Place::Nothing;
    }
    match which {
        0 => srv(name.to_vec(), weight, port, &own),
        1 => srv(own.clone(), 100, port, &own),
        _ => {
            let weight = of_port(port, b"").and_then(|port| weights.get(&port).copied()).unwrap_or(1);
            of_port(port, name).map_or(Place::Nothing, |owner| srv(owner, weight, port, &own))
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
            // Where the zone's servers are, in a longer zone, in no namespace that is shown.
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
    fn ports_that_have_no_record_cost_no_look_at_each_host() {
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
                    Place::Record(..) => {
                        records += 1;
                        [0, at[1], at[2] + 1]
                    }
                    Place::Nothing => [0, at[1], at[2] + 1],
                    Place::EndOfStep => [0, at[1] + 1, 0],
                    Place::EndOfService => break,
                };
            }
            assert!(
                looks <= 4 * MANY + 2 * records,
                "{looks} looks for {records} records: {name:?} {address:?}"
            );
        }
    }

    #[test]
    fn a_zone_has_what_is_reached_from_outside_each_record_once_whatever_a_message_holds() {
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
    fn a_zone_is_sent_at_its_serial_and_none_of_addresses() {
        let mut cluster = cluster(objects());
        let zones = zones("example.org in-addr.arpa", true);
        let serial = cluster.index.serial();
        let sent = |cluster: &Cluster, has| cluster.transfer_external(&zones, "example.org", has, 9).unwrap();
        // Whoever has a newer one has been told so by another server of the zone.
        for has in [serial, serial + 1, serial + 1_000_000] {
            assert_eq!(sent(&cluster, Some(has)), [SOA], "{has}");
        }
        let whole = sent(&cluster, None);
        assert_eq!(sent(&cluster, Some(serial - 1)), whole);
        for none in ["in-addr.arpa", "t1.example.org", "org", "cluster.local"] {
            assert_eq!(cluster.transfer_external(&zones, none, None, 9), Err(Answered::NotMine), "{none}");
        }
        cluster.writer.delete(Kind::Service, key("t1/lb"));
        assert_eq!(sent(&cluster, None), whole, "whoever asks in this second is sent the same");
        LATER.set(1);
        let later = sent(&cluster, Some(serial));
        assert!(!later.iter().any(|record| record.contains("lb.t1.example.org.")), "{later:#?}");
        assert!(later[0].contains(&(serial + 1).to_string()), "{later:#?}");
        let early = Cluster::new(&everything(), rules("cluster.local"));
        assert_eq!(
            early.transfer_external(&zones, "example.org", None, 9),
            Err(Answered::Unknown(Kind::Service))
        );
    }

    #[test]
    fn a_server_without_an_address_has_its_ns_record() {
        let bare = Cluster::of(&everything(), rules("cluster.local"), [namespace("t1")]);
        let sent = bare.transfer_external(&zones("example.org", false), "example.org", None, 9).unwrap();
        assert_eq!(sent.len(), 3, "{sent:#?}");
        assert!(sent[1].ends_with("NS ns1.dns.example.org."), "{sent:#?}");
    }

    #[test]
    fn places_and_ports_of_lies_cost_what_they_are_sent_as() {
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
        // SOA twice, NS and addresses; of the one each place, and each port twice; of the other each address twice, and each
        // port three times.
        assert_eq!(sent, 5 + (20_000 + 2 * 20_000) + (2 * 1_000 + 3 * 20_000));
    }
}
