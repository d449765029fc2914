//! Test helpers: a block with a scripted clock, queries and answers from text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::{Answer, Class, Flags, Name, OPTION_EDE, Query, RType, Rcode, Reply, Verdict, accept};

use crate::{Cache, CacheResult, CacheSpec, Partition, StoreResult};

/// A server block with its own cache and a clock that the test moves.
pub(crate) struct Block {
    pub(crate) cache: Cache,
    pub(crate) partition: Arc<Partition>,
    pub(crate) spec: CacheSpec,
    pub(crate) now: Instant,
}

impl Block {
    pub(crate) fn new(spec: CacheSpec) -> Self {
        Self::sized(spec, Cache::MIN_BYTES)
    }

    pub(crate) fn sized(spec: CacheSpec, bytes: usize) -> Self {
        let now = start();
        let cache = Cache::new(bytes, now);
        Self { partition: cache.partition("."), cache, spec, now }
    }

    pub(crate) fn wait(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
    }

    pub(crate) fn lookup(&self, ask: &Ask) -> Seen {
        ask.see(|query, reply| self.partition.lookup(&self.spec, query, self.now, reply))
    }

    pub(crate) fn store(&self, ask: &Ask, answer: &mut Answer) -> StoreResult {
        self.partition.store(&self.spec, &ask.query(), answer, self.now)
    }

    pub(crate) fn serve_stale(&self, ask: &Ask) -> Option<Seen> {
        let mut served = false;
        let seen = ask.see(|query, reply| {
            served = self.partition.serve_stale(&self.spec, query, self.now, reply);
            CacheResult::Miss
        });
        served.then_some(seen)
    }

    pub(crate) fn failed(&self, ask: &Ask) {
        self.partition.refresh_failed(&self.spec, &ask.query(), self.now);
    }
}

/// An arbitrary instant; only differences matter.
#[allow(clippy::disallowed_methods)]
pub(crate) fn start() -> Instant {
    Instant::now()
}

/// The reply that a client gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) lookup: CacheResult,
    pub(crate) rcode: Rcode,
    pub(crate) flags: Flags,
    pub(crate) ttls: Vec<u32>,
    pub(crate) ede: Vec<u16>,
    pub(crate) bytes: Vec<u8>,
}

/// A client's query.
#[derive(Clone)]
pub(crate) struct Ask(Vec<u8>);

impl Ask {
    /// `name` in this case, with RD and an OPT.
    pub(crate) fn new(name: &str, rtype: RType) -> Self {
        Self::with(name, rtype, Flags::RD, false)
    }

    pub(crate) fn with(name: &str, rtype: RType, flags: u16, dnssec_ok: bool) -> Self {
        Self::of_class(name, rtype, Class::IN, flags, dnssec_ok)
    }

    pub(crate) fn of_class(name: &str, rtype: RType, class: Class, flags: u16, dnssec_ok: bool) -> Self {
        let mut packet = vec![0x12, 0x34];
        packet.extend_from_slice(&flags.to_be_bytes());
        packet.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 1]);
        for label in name.split('.').filter(|label| !label.is_empty()) {
            packet.push(label.len() as u8);
            packet.extend_from_slice(label.as_bytes());
        }
        packet.push(0);
        packet.extend_from_slice(&rtype.0.to_be_bytes());
        packet.extend_from_slice(&class.0.to_be_bytes());
        packet.extend_from_slice(&[0, 0, 41, 0x10, 0, 0, 0, if dnssec_ok { 0x80 } else { 0 }, 0, 0, 0]);
        Self(packet)
    }

    pub(crate) fn query(&self) -> Query<'_> {
        match accept(&self.0) {
            Verdict::Pass(query) => query,
            _ => panic!("the gate refuses {:?}", self.0),
        }
    }

    pub(crate) fn see(&self, fill: impl FnOnce(&Query<'_>, &mut Reply<'_>) -> CacheResult) -> Seen {
        let query = self.query();
        let mut bytes = Vec::new();
        let mut reply = Reply::start(&mut bytes, &query);
        let lookup = fill(&query, &mut reply);
        let ttls = reply.records().map(|record| record.ttl).collect();
        let mut ede = Vec::new();
        let mut options = reply.options.as_bytes();
        while let [high, low, length_high, length_low, rest @ ..] = options {
            let (value, next) = rest.split_at(usize::from(u16::from_be_bytes([*length_high, *length_low])));
            if u16::from_be_bytes([*high, *low]) == OPTION_EDE {
                ede.push(u16::from_be_bytes([value[0], value[1]]));
            }
            options = next;
        }
        let (rcode, flags) = (reply.rcode, Flags(reply.flags));
        reply.finish(&query, 65535);
        Seen { lookup, rcode, flags, ttls, ede, bytes }
    }

    /// An upstream's answer with this header and these records.
    pub(crate) fn answer(&self, rcode: Rcode, flags: u16, records: &[Record<'_>]) -> Answer {
        let question = self.query().question;
        let mut reply = vec![0, 0];
        reply.extend_from_slice(&(Flags::QR | flags | rcode.0).to_be_bytes());
        reply.extend_from_slice(&[0, 1]);
        for section in [Section::Answer, Section::Authority, Section::Additional] {
            let count = records.iter().filter(|record| record.0 == section).count() as u16;
            reply.extend_from_slice(&count.to_be_bytes());
        }
        reply.extend_from_slice(question);
        for Record(_, owner, rtype, ttl, data) in records {
            reply.extend_from_slice(Name::from_text(owner).unwrap().as_wire());
            reply.extend_from_slice(&rtype.0.to_be_bytes());
            reply.extend_from_slice(&[0, 1]);
            reply.extend_from_slice(&ttl.to_be_bytes());
            reply.extend_from_slice(&(data.len() as u16).to_be_bytes());
            reply.extend_from_slice(data);
        }
        let mut answer = Answer::default();
        answer.read(&reply, question).unwrap();
        answer
    }

    /// A records with these TTLs.
    pub(crate) fn addresses(&self, ttls: &[u32]) -> Answer {
        let name = self.query().name.to_string();
        let records: Vec<Record<'_>> = ttls.iter().map(|&ttl| a(&name, ttl)).collect();
        self.answer(Rcode::NOERROR, Flags::RA, &records)
    }

    /// NXDOMAIN with an SOA of this TTL and MINIMUM.
    pub(crate) fn nxdomain(&self, ttl: u32, minimum: u32) -> Answer {
        self.answer(Rcode::NXDOMAIN, Flags::RA, &[soa(ttl, &soa_data(minimum))])
    }

    pub(crate) fn servfail(&self) -> Answer {
        self.answer(Rcode::SERVFAIL, Flags::RA, &[])
    }
}

pub(crate) use wire::Section;

/// Section, owner, type, TTL and data.
#[derive(Clone, Copy)]
pub(crate) struct Record<'r>(
    pub(crate) Section,
    pub(crate) &'r str,
    pub(crate) RType,
    pub(crate) u32,
    pub(crate) &'r [u8],
);

pub(crate) fn a(owner: &str, ttl: u32) -> Record<'_> {
    Record(Section::Answer, owner, RType::A, ttl, &[192, 0, 2, 1])
}

/// A CNAME to web.example.org.
pub(crate) fn cname(owner: &str, ttl: u32) -> Record<'_> {
    Record(Section::Answer, owner, RType::CNAME, ttl, b"\x03web\x07example\x03org\0")
}

pub(crate) fn ns(ttl: u32) -> Record<'static> {
    Record(Section::Authority, "example.org.", RType::NS, ttl, b"\x02ns\x07example\x03org\0")
}

pub(crate) fn soa(ttl: u32, data: &[u8]) -> Record<'_> {
    Record(Section::Authority, "example.org.", RType::SOA, ttl, data)
}

pub(crate) fn soa_data(minimum: u32) -> Vec<u8> {
    let mut data = b"\x02ns\x07example\x03org\0\x05admin\x07example\x03org\0".to_vec();
    data.extend_from_slice(&[0; 16]);
    data.extend_from_slice(&minimum.to_be_bytes());
    data
}
