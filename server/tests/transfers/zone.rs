//! A zone of many records, and a source that transfers it, as a zone plugin would.

use std::sync::{Arc, Mutex};

use plugin::QueryContext;
use plugin::failure::Failure;
use plugin::spec::{BuildContext, Explanation, Source, SourceSpec};
use plugin::zone_request::{Messages, Next, StreamMessage, ZoneOutcome};
use wire::{Name, Opcode, Query, RType, Reply, Section, ZoneRequest};

/// A version of a zone: this many records below its SOA.
#[derive(Debug)]
pub(crate) struct Zone {
    pub(crate) serial: u32,
    pub(crate) records: u32,
}

/// The plugin data of a Corefile with the zone; also the source itself.
#[derive(Debug, Clone)]
pub(crate) struct Zones(pub(crate) Arc<Mutex<Arc<Zone>>>);

impl Zones {
    pub(crate) fn new(records: u32) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(Zone { serial: 1, records }))))
    }

    /// Returns the current version.
    pub(crate) fn now(&self) -> Arc<Zone> {
        self.0.lock().unwrap().clone()
    }

    /// Replaces the version.
    pub(crate) fn change(&self, records: u32) {
        let mut zone = self.0.lock().unwrap();
        *zone = Arc::new(Zone { serial: zone.serial + 1, records });
    }
}

impl SourceSpec for Zones {
    fn build(&self, _: &BuildContext<'_>) -> plugin::args::Result<Box<dyn Source>> {
        Ok(Box::new(self.clone()))
    }
}

impl Source for Zones {
    fn of_zone(&self, request: &ZoneRequest<'_>, _: &QueryContext<'_>, reply: &mut Reply<'_>) -> ZoneOutcome {
        let query = &request.query;
        match query.name.to_string().as_str() {
            "example." => {}
            "failing.example." => return ZoneOutcome::Fail(Failure::Circle),
            "broken.example." => return ZoneOutcome::Stream(Box::new(Broken(0))),
            "panicking.example." => return ZoneOutcome::Stream(Box::new(Broken(1))),
            _ => return ZoneOutcome::Pass,
        }
        let zone = self.now();
        if query.flags.opcode() == Opcode::NOTIFY {
            let soa = soa(zone.serial);
            reply.push(Section::Answer, wire::Owner::Question, RType::SOA, query.class, 60, &soa);
            return ZoneOutcome::Answer;
        }
        if !request.is_transfer() {
            return ZoneOutcome::Pass;
        }
        let newest = request.serial() == Some(zone.serial);
        ZoneOutcome::Stream(Box::new(Walk { apex: query.name, next: 0, newest, zone }))
    }

    fn explain(&self, _: &Query<'_>) -> Explanation {
        Explanation::Passes(None)
    }
}

/// The messages of a transfer: the zone from SOA to SOA, or only the SOA.
struct Walk {
    zone: Arc<Zone>,
    apex: Name,
    next: u32,
    newest: bool,
}

impl Messages for Walk {
    fn next(&mut self, message: &mut StreamMessage<'_, '_>) -> Next {
        let last = if self.newest { 0 } else { self.zone.records + 1 };
        while self.next <= last {
            let pushed = if self.next == 0 || self.next == self.zone.records + 1 {
                message.push(&self.apex, RType::SOA, 60, &soa(self.zone.serial))
            } else if self.next.is_multiple_of(10_000) {
                // A record that fills a message, which is larger than usual.
                message.push(&owner(self.next), RType::TXT, 60, &[0; 60_000])
            } else {
                message.push(&owner(self.next), RType::A, 60, &self.next.to_be_bytes())
            };
            if pushed.is_err() {
                return Next::More;
            }
            self.next += 1;
        }
        Next::End
    }
}

/// The messages of a faulty source, which promises more and adds nothing, or panics.
struct Broken(u32);

impl Messages for Broken {
    fn next(&mut self, message: &mut StreamMessage<'_, '_>) -> Next {
        if self.0 > 1 {
            std::panic::resume_unwind(Box::new("on demand"));
        }
        if self.0 == 1 {
            message.push(&owner(1), RType::TXT, 60, &[0; 60_000]).unwrap();
            self.0 = 2;
        }
        Next::More
    }
}

/// Returns the owner name of the nth record.
pub(crate) fn owner(n: u32) -> Name {
    Name::from_text(&format!("r{n}.sub.example")).unwrap()
}

fn soa(serial: u32) -> Vec<u8> {
    [&[0, 0][..], &serial.to_be_bytes(), &[0; 16]].concat()
}
