//! A cluster's zone as a whole, record by record: its SOA, its servers, its services by name, and the SOA again.

use std::net::IpAddr;
use std::sync::Arc;

use wire::{Name, RType};

use super::endpoints::name_endpoint;
use super::{Answered, Responder, Zone};
use crate::index::{At, Index, Service};
use kubernetes_api::objects::{Port, Protocol, Target};

/// A zone as it was at one serial, and how far it has been told. It holds what the index held then, and copies nothing of it.
pub struct Transfer {
    zone: Name,
    ttl: u32,
    soa: Vec<u8>,
    /// The zone's servers, in order.
    servers: Vec<(Vec<u8>, IpAddr)>,
    /// By name, then by namespace.
    services: Vec<Arc<Service>>,
    part: Part,
    /// In its part: which server or service, which of its steps, which record of that.
    at: [usize; 3],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Soa,
    NameServers,
    Addresses,
    Services,
    LastSoa,
    End,
}

/// What stands at a place.
enum Place {
    Record(Vec<u8>, RType, Vec<u8>),
    Nothing,
    EndOfStep,
    EndOfService,
}

/// Takes a record, or has no room for it: owner, type, TTL and data.
pub type Push<'p> = dyn FnMut(&Name, RType, u32, &[u8]) -> bool + 'p;

impl Responder {
    /// A zone of names as it is now; its SOA alone for whoever has that serial, or asks for no more.
    ///
    /// # Errors
    /// [`Answered::NotMine`] for what is no such zone, [`Answered::Unknown`] before all is known.
    pub fn transfer(
        &self,
        index: &Index,
        name: &Name,
        has: Option<u32>,
        soa_alone: bool,
    ) -> Result<Transfer, Answered> {
        let zone = self.zones.iter().find(|zone| zone.name == *name);
        let Some((zone, grammar)) = zone.and_then(|zone| Some((zone, zone.grammar?))) else {
            return Err(Answered::NotMine);
        };
        if let Some(kind) = index.unknown().kinds().next() {
            return Err(Answered::Unknown(kind));
        }
        let serial = index.serial();
        if soa_alone || has == Some(serial) {
            return Ok(self.part_of(zone, serial, Part::LastSoa));
        }
        let listing = index.listing();
        let listed = if grammar.multicluster { &listing.imports } else { &listing.services };
        let shown =
            listed.iter().filter(|listed| listed.is_known && self.shows(&listed.service.namespace.name));
        let of_address = |address| {
            let services = listing.services.iter().map(|listed| &listed.service);
            services.filter(|service| service.has(address)).cloned().collect()
        };
        Ok(Transfer {
            servers: self.servers(of_address, zone),
            services: shown.map(|listed| listed.service.clone()).collect(),
            ..self.part_of(zone, listing.serial, Part::Soa)
        })
    }

    /// From `part` on, of a zone without servers and services.
    fn part_of(&self, zone: &Zone, serial: u32, part: Part) -> Transfer {
        Transfer {
            zone: zone.name,
            ttl: self.rules.ttl,
            soa: self.soa_data(&zone.name, serial),
            servers: Vec::new(),
            services: Vec::new(),
            part,
            at: [0; 3],
        }
    }
}

impl Transfer {
    /// Tells records until one finds no room, which comes first the next time; whether that was the last.
    pub fn next(&mut self, push: &mut Push<'_>) -> bool {
        while self.part != Part::End {
            match self.place() {
                Place::Record(owner, rtype, data) => {
                    // Whatever is too long to be a name is none.
                    let Ok(owner) = Name::from_wire(&owner) else {
                        self.at[2] += 1;
                        continue;
                    };
                    let ttl = if rtype == RType::SOA { self.ttl.min(super::apex::SOA_TTL) } else { self.ttl };
                    if !push(&owner, rtype, ttl, &data) {
                        return false;
                    }
                    self.at[2] += 1;
                }
                Place::Nothing => self.at[2] += 1,
                Place::EndOfStep => self.at = [self.at[0], self.at[1] + 1, 0],
                Place::EndOfService => self.at = [self.at[0] + 1, 0, 0],
            }
        }
        true
    }

    /// What stands at the place that it has come to; goes on to the next part where one ends.
    fn place(&mut self) -> Place {
        loop {
            let [number, step, record] = self.at;
            let next = match self.part {
                Part::Soa if record == 0 => return Place::Record(self.apex(), RType::SOA, self.soa.clone()),
                Part::Soa => Part::NameServers,
                Part::NameServers => match self.servers.get(record) {
                    Some((name, _)) if record > 0 && self.servers[record - 1].0 == *name => {
                        return Place::Nothing;
                    }
                    Some((name, _)) => return Place::Record(self.apex(), RType::NS, name.clone()),
                    None => Part::Addresses,
                },
                Part::Addresses => match self.servers.get(record) {
                    Some((name, address)) => return address_record(name.clone(), *address),
                    None => Part::Services,
                },
                Part::Services => match self.services.get(number) {
                    Some(service) => return self.of_service(service, step, record),
                    None => Part::LastSoa,
                },
                Part::LastSoa if record == 0 => {
                    return Place::Record(self.apex(), RType::SOA, self.soa.clone());
                }
                Part::LastSoa | Part::End => Part::End,
            };
            (self.part, self.at) = (next, [0; 3]);
            if next == Part::End {
                return Place::Nothing;
            }
        }
    }

    fn apex(&self) -> Vec<u8> {
        self.zone.as_wire().to_vec()
    }

    fn of_service(&self, service: &Service, step: usize, record: usize) -> Place {
        let name = [service.key(), &b"\x03svc"[..], self.zone.as_wire()].concat();
        match service.target() {
            Some(Target::ClusterIps(addresses)) => of_addresses(service, name, addresses, step, record),
            Some(Target::Headless) => of_endpoints(service, &name, step, record),
            Some(Target::ExternalName(to)) if (step, record) == (0, 0) => match super::external_target(to) {
                Some(target) => Place::Record(name, RType::CNAME, target.as_wire().to_vec()),
                None => Place::EndOfService,
            },
            Some(Target::ExternalName(_)) | None => Place::EndOfService,
        }
    }
}

/// Addresses, then two records for each port: at the service's name, and at the port's own where it has one.
fn of_addresses(service: &Service, name: Vec<u8>, addresses: &[IpAddr], step: usize, record: usize) -> Place {
    if let Some(address) = addresses.get(step) {
        return if record == 0 { address_record(name, *address) } else { Place::EndOfStep };
    }
    let number = step - addresses.len();
    let Some(port) = service.ports().get(number).filter(|_| !addresses.is_empty()) else {
        return Place::EndOfService;
    };
    let before = &service.ports()[number.saturating_sub(LOOKED_BACK)..number];
    match record {
        // One number, two protocols: one record.
        0 if before.iter().any(|other| other.port == port.port) => Place::Nothing,
        0 => srv(name.clone(), 100, port, &name),
        1 => of_port(port, &name).map_or(Place::Nothing, |owner| srv(owner, 100, port, &name)),
        _ => Place::EndOfStep,
    }
}

/// Every address at the service's name, then each endpoint: its address at its own name, and its ports.
fn of_endpoints(service: &Service, name: &[u8], step: usize, record: usize) -> Place {
    let count = service.endpoint_count();
    if step < count {
        let address = |place| service.nth_by_address(place).endpoint.address;
        return match record {
            0 if step > 0 && address(step - 1) == address(step) => Place::EndOfStep,
            0 => address_record(name.to_vec(), address(step)),
            _ => Place::EndOfStep,
        };
    }
    let number = step - count;
    if number >= count {
        return Place::EndOfService;
    }
    let at = service.nth_by_label(number);
    let own = endpoint_name(service, at, name);
    let label = |at: At<'_>| service.label(at.endpoint);
    let back = (number.saturating_sub(LOOKED_BACK)..number).rev().map(|number| service.nth_by_label(number));
    let of_label = back.take_while(|before| *label(*before).octets() == *label(at).octets());
    let mut before = of_label.filter(|before| endpoint_name(service, *before, name) == own);
    let Some(nth) = record.checked_sub(1) else {
        return match before.any(|before| before.endpoint.address == at.endpoint.address) {
            true => Place::Nothing,
            false => address_record(own, at.endpoint.address),
        };
    };
    let Some(port) = at.slice.ports.get(nth) else { return Place::EndOfStep };
    // All ports of its slice were told then.
    if before.clone().any(|before| before.number == at.number) {
        return Place::EndOfStep;
    }
    if before.any(|before| before.slice.ports.iter().take(LOOKED_BACK).any(|other| other == port)) {
        return Place::Nothing;
    }
    let weight = (100 / at.slice.endpoints.len().max(1)).max(1);
    of_port(port, name).map_or(Place::Nothing, |owner| srv(owner, weight as u16, port, &own))
}

fn endpoint_name(service: &Service, at: At<'_>, name: &[u8]) -> Vec<u8> {
    let mut own = Vec::new();
    name_endpoint(&mut own, service, at);
    own.extend_from_slice(name);
    own
}

fn address_record(owner: Vec<u8>, address: IpAddr) -> Place {
    match address {
        IpAddr::V4(address) => Place::Record(owner, RType::A, address.octets().into()),
        IpAddr::V6(address) => Place::Record(owner, RType::AAAA, address.octets().into()),
    }
}

fn srv(owner: Vec<u8>, weight: u16, port: &Port, target: &[u8]) -> Place {
    let Some(number) = port.port.filter(|_| target.len() <= wire::MAX_NAME) else { return Place::Nothing };
    let numbers = [0, weight, number].map(u16::to_be_bytes);
    Place::Record(owner, RType::SRV, [numbers.as_flattened(), target].concat())
}

/// `_port._protocol` below a service; `None` where the port has no name that could stand there.
fn of_port(port: &Port, name: &[u8]) -> Option<Vec<u8>> {
    let protocol: &[u8] = match port.protocol {
        Protocol::Tcp => b"\x04_tcp",
        Protocol::Udp => b"\x04_udp",
        Protocol::Sctp => b"\x05_sctp",
    };
    let length = u8::try_from(port.name.len() + 1).ok().filter(|length| (2..=63).contains(length))?;
    let own = port.name.to_ascii_lowercase();
    Some([&[length, b'_'], own.as_bytes(), protocol, name].concat())
}

impl Responder {
    /// An SOA record's data, with its names written out.
    fn soa_data(&self, zone: &Name, serial: u32) -> Vec<u8> {
        let numbers = super::apex::soa_numbers(serial, self.rules.ttl);
        let zone = zone.as_wire();
        [b"\x02ns\x03dns", zone, b"\x0ahostmaster", zone, numbers.as_flattened()].concat()
    }
}

/// How many ports before one are compared with it, and how many of how many endpoints with its name: there are a handful.
const LOOKED_BACK: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::testing::*;
    use kubernetes_api::{Kind, Object, Sink, Wants};

    fn objects() -> Vec<Object> {
        vec![
            namespace("t1"),
            namespace("t2"),
            service("t2/web", "10.96.0.200", "dns:53/udp dns-tcp:53/tcp"),
            service("t1/web", "10.96.0.100 fd00:96::64", "http:80/tcp :81/tcp"),
            service("t1/pending", "", "http:80/tcp"),
            service("t1/hl", "None", "c:1234/udp"),
            slice("t1/hl-a", "hl", "172.17.0.2=h1 172.17.0.1", "c:1234/udp :80/tcp"),
            slice("t1/hl-b", "hl", "172.17.0.1 172.17.0.2=h1", "c:1234/udp"),
            service("t1/none", "None", "c:1234/udp"),
            service("t1/ext", "to example.net", ""),
            service("t1/odd", "to 192.0.2.1", ""),
            service("t3/web", "10.96.0.1", "http:80/tcp"),
            slice("t1/lost", "lost", "172.17.0.9", ""),
        ]
    }

    fn cluster() -> Cluster {
        let mut rules = rules("cluster.local in-addr.arpa clusterset.local");
        rules.own = vec!["192.0.2.53".parse().unwrap(), "2001:db8::53".parse().unwrap()];
        rules.multicluster = vec![Name::from_text("clusterset.local").unwrap()];
        let wants = Wants { imports: true, ..everything() };
        let imports = [
            import("t1/far", "None", "c:1234/udp"),
            imported("t1/far-c1", "far", "c1", "10.1.0.1=h", "c:1234/udp"),
            import("t1/set", "10.42.0.1", "http:80/tcp"),
        ];
        Cluster::of(&wants, rules, objects().into_iter().chain(imports))
    }

    const SOA: &str = "SOA ns.dns.cluster.local. hostmaster.cluster.local. 1700000000 7200 1800 86400 5";

    #[test]
    fn a_zone_is_sent_whole_in_order_and_each_record_once_whatever_a_message_holds() {
        let expected = [
            SOA,
            "NS ns.dns.cluster.local.",
            "ns.dns.cluster.local. A 192.0.2.53",
            "ns.dns.cluster.local. AAAA 2001:db8::53",
            "ext.t1.svc.cluster.local. CNAME example.net.",
            "hl.t1.svc.cluster.local. A 172.17.0.1",
            "hl.t1.svc.cluster.local. A 172.17.0.2",
            "172-17-0-1.hl.t1.svc.cluster.local. A 172.17.0.1",
            "_c._udp.hl.t1.svc.cluster.local. SRV 0 50 1234 172-17-0-1.hl.t1.svc.cluster.local.",
            "h1.hl.t1.svc.cluster.local. A 172.17.0.2",
            "_c._udp.hl.t1.svc.cluster.local. SRV 0 50 1234 h1.hl.t1.svc.cluster.local.",
            "web.t1.svc.cluster.local. A 10.96.0.100",
            "web.t1.svc.cluster.local. AAAA fd00:96::64",
            "web.t1.svc.cluster.local. SRV 0 100 80 web.t1.svc.cluster.local.",
            "_http._tcp.web.t1.svc.cluster.local. SRV 0 100 80 web.t1.svc.cluster.local.",
            "web.t1.svc.cluster.local. SRV 0 100 81 web.t1.svc.cluster.local.",
            "web.t2.svc.cluster.local. A 10.96.0.200",
            "web.t2.svc.cluster.local. SRV 0 100 53 web.t2.svc.cluster.local.",
            "_dns._udp.web.t2.svc.cluster.local. SRV 0 100 53 web.t2.svc.cluster.local.",
            "_dns-tcp._tcp.web.t2.svc.cluster.local. SRV 0 100 53 web.t2.svc.cluster.local.",
            SOA,
        ];
        for most in [1, 2, 7, 1_000] {
            assert_eq!(cluster().transfer("cluster.local", None, most).unwrap(), expected, "{most}");
        }
        let set = cluster().transfer("clusterset.local", None, 3).unwrap();
        for record in [
            "h.c1.far.t1.svc.clusterset.local. A 10.1.0.1",
            "_c._udp.far.t1.svc.clusterset.local. SRV 0 100 1234 h.c1.far.t1.svc.clusterset.local.",
            "set.t1.svc.clusterset.local. A 10.42.0.1",
        ] {
            assert!(set.iter().any(|own| own == record), "{record} in {set:#?}");
        }
    }

    #[test]
    fn what_changes_in_the_second_of_a_transfer_has_another_serial_from_the_next_second_on() {
        let mut cluster = cluster();
        for at in ["t1/web", "t2/web"] {
            let serial = cluster.index.serial();
            let before = cluster.transfer("cluster.local", None, 9).unwrap();
            cluster.writer.delete(Kind::Service, key(at));
            // Whoever asks in this second hears of the same zone.
            assert_eq!(cluster.index.serial(), serial, "{at}");
            assert_eq!(cluster.transfer("cluster.local", Some(serial), 9).unwrap().len(), 1, "{at}");
            assert_eq!(cluster.transfer("cluster.local", None, 9).unwrap(), before, "{at}");
            LATER.set(LATER.get() + 1);
            assert_eq!(cluster.index.serial(), serial + 1, "{at}");
            let after = cluster.transfer("cluster.local", Some(serial), 9).unwrap();
            assert!(after.len() > 1 && after.len() < before.len(), "{at}: {after:#?}");
        }
    }

    #[test]
    fn a_zone_that_is_transferred_again_and_again_while_it_changes_is_never_ahead_of_the_clock() {
        let mut cluster = cluster();
        let mut listings: HashMap<String, Vec<String>> = HashMap::new();
        for number in 0..600_u64 {
            // A hundred of each in a second.
            LATER.set(number / 100);
            cluster.writer.apply(service("t1/web", &format!("10.0.{}.{}", number >> 8, number & 0xff), ""));
            let sent = cluster.transfer("cluster.local", None, 9).unwrap();
            let serial = sent[0].split(' ').nth(3).unwrap().to_owned();
            assert_eq!(serial, cluster.index.serial().to_string());
            assert!(serial.parse::<u64>().unwrap() <= SERIAL + LATER.get(), "{serial} in {number}");
            assert_eq!(*listings.entry(serial).or_insert_with(|| sent.clone()), sent, "{number}");
        }
        assert_eq!(listings.len(), 6, "one for each second");
        LATER.set(6);
        let last = cluster.transfer("cluster.local", None, 9).unwrap();
        assert!(last.contains(&"web.t1.svc.cluster.local. A 10.0.2.87".to_owned()), "{last:#?}");
    }

    #[test]
    fn a_clock_that_is_set_back_gives_no_serial_twice() {
        let mut cluster = cluster();
        LATER.set(3_600);
        cluster.writer.apply(service("t1/web", "10.0.0.1", ""));
        let first = cluster.index.serial();
        cluster.transfer("cluster.local", None, 9).unwrap();
        for (serial, second) in (first..).zip(0..3) {
            LATER.set(second);
            cluster.writer.apply(service("t1/web", &format!("10.0.1.{second}"), ""));
            assert_eq!(cluster.index.serial(), serial + 1, "{second}");
            assert!(cluster.transfer("cluster.local", Some(serial), 9).unwrap().len() > 1, "{second}");
        }
    }

    #[test]
    fn what_was_listed_is_not_kept_when_something_comes_in_another_second() {
        let mut cluster = cluster();
        cluster.transfer("cluster.local", None, 9).unwrap();
        let was = |cluster: &Cluster| Arc::downgrade(&cluster.index.services.get(b"\x03web\x02t1").unwrap());
        let web = was(&cluster);
        cluster.writer.apply(service("t1/web", "10.0.0.1", ""));
        assert!(web.upgrade().is_some(), "it is sent to whoever asks in this second");
        LATER.set(1);
        cluster.writer.apply(service("t2/web", "10.0.0.2", ""));
        assert!(web.upgrade().is_none());
    }

    #[test]
    fn endpoints_of_one_name_are_told_once_each_however_their_slices_lie() {
        let imports = [
            namespace("t1"),
            import("t1/far", "None", ""),
            imported("t1/far-a", "far", "c1", "10.1.0.1=h 10.1.0.4=h 10.1.0.7=h", "a:1/tcp"),
            imported("t1/far-b", "far", "c2", "10.1.0.2=h 10.1.0.5=h", "a:1/tcp"),
            imported("t1/far-c", "far", "c1", "10.1.0.3=h 10.1.0.7=h", "b:2/tcp"),
        ];
        let mut rules = rules("cluster.local clusterset.local");
        rules.multicluster = vec![Name::from_text("clusterset.local").unwrap()];
        let wants = Wants { imports: true, ..everything() };
        let mut sent = Cluster::of(&wants, rules, imports).transfer("clusterset.local", None, 3).unwrap();
        let count = sent.len();
        sent.retain(|record| !record.starts_with("SOA"));
        sent.sort();
        sent.dedup();
        assert_eq!(sent.len() + 2, count, "{sent:#?}");
        let of =
            |cluster: &str| sent.iter().filter(|record| record.starts_with(&format!("h.{cluster}."))).count();
        let ports = sent.iter().filter(|record| record.contains(" SRV ")).count();
        assert_eq!((of("c1"), of("c2"), ports), (4, 2, 3), "{sent:#?}");
    }

    #[test]
    fn endpoints_and_ports_of_lies_cost_what_they_are_sent_as() {
        let mut rules = rules("cluster.local");
        rules.own = vec!["192.0.2.53".parse().unwrap()];
        let ports: Vec<_> = (1..=20_000).map(|port| format!("p{port}:{port}/tcp")).collect();
        let named: Vec<_> =
            (0..1_000).map(|number| format!("10.1.{}.{}=h", number >> 8, number & 0xff)).collect();
        let objects = [
            namespace("t1"),
            service("t1/hl", "None", ""),
            slice("t1/hl-a", "hl", &named.join(" "), &ports.join(" ")),
        ];
        let sent = Cluster::of(&everything(), rules, objects).transfer("cluster.local", None, 1_000).unwrap();
        // Both SOAs, NS and its address; each address at the service's name and at the endpoint's; each port.
        assert_eq!(sent.len(), 4 + 2 * 1_000 + 20_000);
    }

    #[test]
    fn who_has_the_serial_gets_the_soa_and_who_asks_too_early_nothing() {
        let mut cluster = cluster();
        let serial = cluster.index.serial();
        assert_eq!(cluster.transfer("cluster.local", Some(serial), 9).unwrap(), [SOA]);
        assert!(cluster.transfer("cluster.local", Some(serial - 1), 9).unwrap().len() > 20);
        for none in ["in-addr.arpa", "svc.cluster.local", "local", "example.org"] {
            assert_eq!(cluster.transfer(none, None, 9), Err(Answered::NotMine), "{none}");
        }
        // What changes meanwhile is not in it.
        let mut begun = cluster
            .responder
            .transfer(&cluster.index, &Name::from_text("cluster.local").unwrap(), None, false)
            .unwrap();
        begun.next(&mut |_, rtype, _, _| rtype == RType::SOA);
        for at in ["t1/web", "t2/web", "t1/hl", "t1/ext"] {
            cluster.writer.delete(Kind::Service, key(at));
        }
        let mut left = 0;
        assert!(begun.next(&mut |_, _, _, _| {
            left += 1;
            true
        }));
        assert_eq!(left, 20);
        LATER.set(1);
        assert_eq!(cluster.transfer("cluster.local", None, 9).unwrap().len(), 5);
        let early = Cluster::new(&everything(), rules("cluster.local"));
        assert_eq!(early.transfer("cluster.local", None, 9), Err(Answered::Unknown(Kind::Service)));
    }
}
