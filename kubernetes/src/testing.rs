//! Clusters for tests, with short notations for objects and answers.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use wire::{HEADER, Message, Name, Packed, RType, Rcode, Reply, Rr, Section, Verdict, accept};

use crate::index::{Index, IndexWriter};
use crate::{AnswerOutcome, Progress, Responder, Rules, Transfer};
use kubernetes_api::Sink;
use kubernetes_api::objects::{
    Endpoint, ExternalAddress, Imported, Kind, Object, ObjectKey, Pod, Port, Protocol, Service,
    ServiceImport, SinceEpoch, Slice, Target,
};
use kubernetes_api::settings::{PodWatch, WatchConfig};

/// An index with its writer and responder.
pub(crate) struct Cluster {
    pub(crate) index: Arc<Index>,
    pub(crate) writer: IndexWriter,
    pub(crate) responder: Responder,
}

impl Cluster {
    /// Creates an empty index.
    pub(crate) fn new(wants: &WatchConfig, rules: Rules) -> Self {
        let now = || SinceEpoch(Duration::from_secs(SERIAL + LATER.get()));
        let index = Arc::new(Index::new(wants, now));
        let writer = IndexWriter::new(index.clone(), wants, 256 << 20, Box::new(()));
        Self { index, writer, responder: Responder::new(rules) }
    }

    /// Creates a synced index with these objects.
    pub(crate) fn of(wants: &WatchConfig, rules: Rules, objects: impl IntoIterator<Item = Object>) -> Self {
        let mut cluster = Self::new(wants, rules);
        cluster.list(objects);
        cluster
    }

    /// Applies a list of all kinds.
    pub(crate) fn list(&mut self, objects: impl IntoIterator<Item = Object>) {
        Kind::ALL.into_iter().for_each(|kind| self.writer.begin(kind));
        objects.into_iter().for_each(|object| self.writer.apply(object));
        Kind::ALL.into_iter().for_each(|kind| self.writer.complete(kind));
    }

    /// Returns the records of a zone transfer as text, `most` per message.
    pub(crate) fn transfer(
        &self,
        zone: &str,
        has: Option<u32>,
        most: usize,
    ) -> Result<Vec<String>, AnswerOutcome> {
        let zone = Name::from_text(zone).unwrap();
        let transfer = self.responder.transfer(&self.index, &zone, has, false)?;
        Ok(self.transfer_text(transfer, &zone, most))
    }

    /// [`Self::transfer`] of a zone of `k8s_external`.
    pub(crate) fn transfer_external(
        &self,
        external: &crate::External,
        zone: &str,
        has: Option<u32>,
        most: usize,
    ) -> Result<Vec<String>, AnswerOutcome> {
        let zone = Name::from_text(zone).unwrap();
        let transfer = external.transfer(&self.responder, &self.index, &zone, has, false)?;
        Ok(self.transfer_text(transfer, &zone, most))
    }

    fn transfer_text(&self, mut transfer: Transfer, zone: &Name, most: usize) -> Vec<String> {
        let mut words = Vec::new();
        loop {
            let full = words.len() + most;
            let progress = transfer.next(&mut |owner, rtype, ttl, data| {
                let rr = Rr::new(Section::Answer, owner, rtype, ttl, data);
                let has_room = words.len() < full;
                if has_room {
                    words.push(record(&rr, zone, self.responder.rules().ttl));
                }
                has_room
            });
            if progress == Progress::All {
                return words;
            }
        }
    }

    /// Returns the answer of `k8s_external` as text.
    pub(crate) fn ask_external(&self, external: &crate::External, question: &str) -> String {
        let (name, rtype) = question.split_once(' ').unwrap();
        let packet = packet(name, rtype_of(rtype));
        let Verdict::Pass(query) = accept(&packet) else { panic!("{question} is refused") };
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, &query);
        let answered = external.answer(&self.responder, &self.index, &query, 65_535, &mut reply);
        match answered {
            AnswerOutcome::NotInZones => return "not mine".to_owned(),
            AnswerOutcome::Unsynced(kind) => return format!("{kind} are not known"),
            AnswerOutcome::NoName(zone) => external.deny(&self.index, zone, &query, &mut reply),
            AnswerOutcome::Written | AnswerOutcome::Follow => {}
        }
        let message = Packed::new(&query, &reply).message(u16::MAX).unwrap();
        let ttl = self.responder.rules().ttl;
        let mut words: Vec<String> =
            message.section(Section::Answer).map(|rr| record(rr, &query.name, ttl)).collect();
        words.extend(
            message.section(Section::Additional).map(|rr| format!("+ {}", record(rr, &query.name, ttl))),
        );
        for rr in message.section(Section::Authority) {
            let what = if message.rcode == Rcode::NXDOMAIN { "NXDOMAIN" } else { "NODATA" };
            words.push(format!("{what} {}", rr.name()));
        }
        let end = if answered == AnswerOutcome::Follow { " ..." } else { "" };
        words.join(", ") + end
    }

    /// Returns the explanation of a question.
    pub(crate) fn explain(&self, question: &str) -> String {
        let (name, rtype) = question.split_once(' ').unwrap();
        let packet = packet(name, rtype_of(rtype));
        let Verdict::Pass(query) = accept(&packet) else { panic!("{question} is refused") };
        self.responder.explain(&self.index, &query)
    }

    /// Returns the explanation of `k8s_external`.
    pub(crate) fn explain_external(&self, external: &crate::External, name: &str) -> String {
        let packet = packet(name, RType::A);
        let Verdict::Pass(query) = accept(&packet) else { panic!("{name} is refused") };
        external.explain(&self.responder, &self.index, &query)
    }

    /// Returns the answer as text.
    pub(crate) fn ask(&self, question: &str) -> String {
        self.ask_within(question, 65_535).0
    }

    /// As [`Self::ask`] with a maximum size in bytes; also returns whether the reply was truncated.
    pub(crate) fn ask_within(&self, question: &str, room: usize) -> (String, bool) {
        let (name, rtype) = question.split_once(' ').unwrap();
        let rtype = rtype_of(rtype);
        let packet = packet(name, rtype);
        let Verdict::Pass(query) = accept(&packet) else { panic!("{question} is refused") };
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, &query);
        let answered = self.responder.answer(&self.index, &query, room, &mut reply);
        match answered {
            AnswerOutcome::NotInZones => return ("not mine".to_owned(), false),
            AnswerOutcome::Unsynced(kind) => return (format!("{kind} are not known"), false),
            AnswerOutcome::NoName(zone) => self.responder.deny(&self.index, zone, &query, &mut reply),
            AnswerOutcome::Written | AnswerOutcome::Follow => {}
        }
        let message = Packed::new(&query, &reply).message(u16::MAX).unwrap();
        let (flags, _) = reply.finish(&query, room);
        assert!(flags.has(wire::Flags::AA), "{question}");
        let mut words = self.words(&message, &query.name);
        if answered == AnswerOutcome::Follow {
            words += " ...";
        }
        (words, flags.has(wire::Flags::TC))
    }

    /// Returns the size of a reply with a limit in bytes, and whether it is truncated.
    pub(crate) fn written(&self, question: &str, room: usize) -> (usize, bool) {
        let (name, rtype) = question.split_once(' ').unwrap();
        let packet = packet(name, rtype_of(rtype));
        let Verdict::Pass(query) = accept(&packet) else { panic!("{question} is refused") };
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, &query);
        assert_eq!(self.responder.answer(&self.index, &query, room, &mut reply), AnswerOutcome::Written);
        (reply.octets().len(), reply.finish(&query, room).0.has(wire::Flags::TC))
    }

    fn words(&self, message: &Message, name: &Name) -> String {
        let ttl = self.responder.rules().ttl;
        let answers = message.section(Section::Answer).map(|rr| record(rr, name, ttl));
        let mut words = answers.collect::<Vec<_>>();
        words.extend(message.section(Section::Additional).map(|rr| format!("+ {}", record(rr, name, ttl))));
        for rr in message.section(Section::Authority) {
            let soa = record(rr, &rr.name(), ttl.min(300));
            let zone = rr.name().to_string();
            let zone = if zone == "." { "" } else { &zone };
            let expected = format!("SOA ns.dns.{zone} hostmaster.{zone} {SERIAL} 7200 1800 86400 {ttl}");
            let serial = self.index.serial();
            assert_eq!(soa, expected.replace(&SERIAL.to_string(), &serial.to_string()));
            let what = if message.rcode == Rcode::NXDOMAIN { "NXDOMAIN" } else { "NODATA" };
            words.push(format!("{what} {}", rr.name()));
        }
        words.join(", ")
    }
}

fn record(rr: &Rr, name: &Name, ttl: u32) -> String {
    let mut words = if rr.name() == *name { String::new() } else { format!("{} ", rr.name()) };
    if rr.ttl != ttl {
        words += &format!("{} ", rr.ttl);
    }
    let name_at = |at: usize| Name::read_plain(&rr.data, at).unwrap();
    let number = |at: usize| u16::from_be_bytes([rr.data[at], rr.data[at + 1]]);
    let data = match rr.rtype {
        RType::A => Ipv4Addr::from(<[u8; 4]>::try_from(&*rr.data).unwrap()).to_string(),
        RType::AAAA => Ipv6Addr::from(<[u8; 16]>::try_from(&*rr.data).unwrap()).to_string(),
        RType::SRV => format!("{} {} {} {}", number(0), number(2), number(4), name_at(6).0),
        RType::TXT => format!("{:?}", str::from_utf8(&rr.data[1..]).unwrap()),
        RType::SOA => {
            let (first, at) = name_at(0);
            let (second, at) = name_at(at);
            let numbers =
                rr.data[at..].chunks_exact(4).map(|four| u32::from_be_bytes(four.try_into().unwrap()));
            numbers.fold(format!("{first} {second}"), |words, number| format!("{words} {number}"))
        }
        _ => name_at(0).0.to_string(),
    };
    format!("{words}{} {data}", rr.rtype)
}

fn packet(name: &str, rtype: RType) -> Vec<u8> {
    let mut packet = vec![0; HEADER];
    packet[5] = 1;
    for label in name.split('.').filter(|label| !label.is_empty()) {
        packet.push(label.len() as u8);
        packet.extend_from_slice(label.as_bytes());
    }
    packet.push(0);
    packet.extend_from_slice(&rtype.0.to_be_bytes());
    packet.extend_from_slice(&wire::Class::IN.0.to_be_bytes());
    packet
}

fn rtype_of(text: &str) -> RType {
    let all = [
        RType::A,
        RType::AAAA,
        RType::SRV,
        RType::TXT,
        RType::SOA,
        RType::NS,
        RType::CNAME,
        RType::PTR,
        RType::MX,
        RType::ANY,
        RType::HTTPS,
    ];
    all.into_iter().find(|rtype| rtype.to_string() == text).unwrap()
}

/// Watches all kinds.
pub(crate) fn everything() -> WatchConfig {
    let pods = Some(PodWatch::default());
    WatchConfig { endpoints: true, zones: true, imports: true, pods, ..WatchConfig::default() }
}

/// Rules with CoreDNS's defaults.
pub(crate) fn rules(zones: &str) -> Rules {
    Rules::of(zones.split(' ').map(|zone| Name::from_text(zone).unwrap()).collect())
}

/// Parses `NAMESPACE/NAME`.
pub(crate) fn key(text: &str) -> ObjectKey {
    let (namespace, name) = text.split_once('/').unwrap_or(("", text));
    ObjectKey { namespace: namespace.into(), name: name.into() }
}

pub(crate) fn namespace(name: &str) -> Object {
    Object::Namespace(name.into())
}

/// A service: target as `10.0.0.1 fd00::1`, `None`, or an external name; ports as `http:80/tcp`,
/// `:53/udp`, `x:-/tcp`.
pub(crate) fn service(at: &str, target: &str, ports: &str) -> Object {
    Object::Service(Service {
        key: key(at).into(),
        target: self::target(target),
        ports: self::ports(ports),
        external: [].into(),
    })
}

/// A service with external addresses and names.
pub(crate) fn external(at: &str, target: &str, ports: &str, from: &str) -> Object {
    let Object::Service(service) = service(at, target, ports) else { unreachable!("a service") };
    let external = from.split_whitespace().map(|text| match text.parse() {
        Ok(address) => ExternalAddress::Ip(address),
        Err(_) => ExternalAddress::Name(text.into()),
    });
    Object::Service(Service { external: external.collect(), ..service })
}

pub(crate) fn import(at: &str, target: &str, ports: &str) -> Object {
    Object::ServiceImport(ServiceImport {
        key: key(at).into(),
        target: self::target(target),
        ports: self::ports(ports),
    })
}

/// A slice `NAMESPACE/SLICE`; endpoints as `10.0.0.1`, `10.0.0.1=hostname`, `10.0.0.1#pod`,
/// `10.0.0.1@zone`.
pub(crate) fn slice(at: &str, of: &str, endpoints: &str, ports: &str) -> Object {
    let endpoints = endpoints.split_whitespace().map(|text| {
        let end = text.find(['=', '#', '@']).unwrap_or(text.len());
        let part = |sign: char| {
            let (_, rest) = text[end..].split_once(sign)?;
            Some(&rest[..rest.find(['=', '#', '@']).unwrap_or(rest.len())])
        };
        Endpoint {
            address: text[..end].parse().unwrap(),
            hostname: part('=').map(Into::into),
            pod: part('#').map(Into::into),
            zone: part('@').map(Into::into),
        }
    });
    Object::Slice(Slice {
        key: key(at).into(),
        service: of.into(),
        import: None,
        endpoints: endpoints.collect(),
        ports: self::ports(ports),
        changed: None,
    })
}

/// A slice exported by a cluster.
pub(crate) fn imported(at: &str, of: &str, cluster: &str, endpoints: &str, ports: &str) -> Object {
    let Object::Slice(slice) = slice(at, "", endpoints, ports) else { unreachable!("a slice") };
    let import = Some(Box::new(Imported { service: of.into(), cluster: cluster.into() }));
    Object::Slice(Slice { import, ..slice })
}

pub(crate) fn pod(at: &str, addresses: &str) -> Object {
    Object::Pod(Pod {
        key: key(at).into(),
        addresses: addresses.split_whitespace().map(|text| text.parse().unwrap()).collect(),
        host_network: false,
        running: true,
        terminating: false,
        labels: [].into(),
    })
}

/// A pod that is being deleted.
pub(crate) fn terminating(pod: Object) -> Object {
    let Object::Pod(pod) = pod else { unreachable!("a pod") };
    Object::Pod(Pod { terminating: true, ..pod })
}

fn target(text: &str) -> Target {
    let addresses: Result<Vec<IpAddr>, _> = text.split_whitespace().map(str::parse).collect();
    match addresses {
        _ if text == "None" => Target::Headless,
        Ok(addresses) => Target::ClusterIps(addresses.into()),
        Err(_) => Target::ExternalName(text.trim_start_matches("to ").into()),
    }
}

fn ports(text: &str) -> Box<[Port]> {
    let one = |text: &str| {
        let (name, rest) = text.split_once(':').unwrap();
        let (port, protocol) = rest.split_once('/').unwrap();
        let protocol = match protocol {
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        Port { name: name.into(), protocol, port: port.parse().ok() }
    };
    text.split_whitespace().map(one).collect()
}

/// Time of all changes, in seconds since 1970.
pub(crate) const SERIAL: u64 = 1_700_000_000;

thread_local! {
    /// Seconds since [`SERIAL`] in a test.
    pub(crate) static LATER: Cell<u64> = const { Cell::new(0) };
}
