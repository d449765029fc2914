//! The time limit of a transfer, regardless of the client's reading.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use plugin::QueryContext;
use plugin::spec::{BuildContext, Explanation, Role, Source, SourceSpec};
use plugin::zone_request::{Messages, Next, StreamMessage, ZoneOutcome};
use wire::{Query, Reply, ZoneRequest};

use super::*;
use crate::failpoint::EARLIER;

#[test]
fn a_transfer_that_takes_too_long_is_cut_off_though_its_client_reads_on() {
    let scene = Scene::with(1, "", "errors");
    let mut spec = scene::spec(&scene.corefile("errors\ntransfer {\nto *\n}")).unwrap();
    spec.blocks[0].plugins.insert(0, ("endless", Role::Source(Arc::new(Endless))));
    let configuration = Configuration::build(&spec, &scene.running.shared, &|_| Ok(Vec::new())).unwrap();
    scene.running.configuration.store(Arc::new(configuration));
    let mut question = packet("zone.example");
    let rtype = question.len() - 3;
    question[rtype] = RType::AXFR.0 as u8;
    // The transfer seems to have begun 598 s ago: 2 s of its ten minutes are left.
    *EARLIER.lock().unwrap() = Some((scene.at.ip(), Duration::from_secs(598)));
    let mut stream = TcpStream::connect(scene.at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[&(question.len() as u16).to_be_bytes()[..], &question].concat()).unwrap();
    let (began, mut received, mut some) = (clock::now(), 0, vec![0; 65_536]);
    while let Ok(octets @ 1..) = stream.read(&mut some) {
        received += octets;
        assert!(began.elapsed() < 2 * PATIENCE, "it goes on after {received} octets");
    }
    assert!(received > 1 << 20, "{received} octets");
    scene.wait("why", || scene.logged("AXFR: transfer cut off after "));
}

#[test]
fn a_transfer_that_looks_for_its_next_record_lets_others_be_served() {
    let scene = Scene::with(1, "", "errors");
    let mut spec = scene::spec(&scene.corefile("errors\ntransfer {\nto *\n}")).unwrap();
    let (asked, found) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let source = Later { asked: asked.clone(), found: found.clone() };
    spec.blocks[0].plugins.insert(0, ("later", Role::Source(Arc::new(source))));
    let configuration = Configuration::build(&spec, &scene.running.shared, &|_| Ok(Vec::new())).unwrap();
    scene.running.configuration.store(Arc::new(configuration));
    let mut question = packet("zone.example");
    let rtype = question.len() - 3;
    let framed = |question: &[u8]| [&(question.len() as u16).to_be_bytes()[..], question].concat();
    let other = framed(&question);
    question[rtype] = RType::AXFR.0 as u8;
    let connect = |octets: &[u8]| {
        let mut stream = TcpStream::connect(scene.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(octets).unwrap();
        stream
    };
    let mut transfer = connect(&framed(&question));
    scene.wait("the transfer is asked again and again", || asked.load(Relaxed) > 1_000);
    let mut length = [0; 2];
    connect(&other).read_exact(&mut length).unwrap();
    found.store(true, Relaxed);
    transfer.read_exact(&mut length).unwrap();
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    transfer.read_exact(&mut message).unwrap();
    assert_eq!(message[6..8], [0, 1], "the first message that is sent has a record");
}

/// A zone with one record, found once `found` is set.
#[derive(Debug, Clone)]
struct Later {
    asked: Arc<AtomicUsize>,
    found: Arc<AtomicBool>,
}

impl SourceSpec for Later {
    fn build(&self, _: &BuildContext<'_>) -> plugin::args::Result<Box<dyn Source>> {
        Ok(Box::new(self.clone()))
    }
}

impl Source for Later {
    fn of_zone(&self, request: &ZoneRequest<'_>, _: &QueryContext<'_>, _: &mut Reply<'_>) -> ZoneOutcome {
        ZoneOutcome::Stream(Box::new(Looks(request.query.name, self.clone())))
    }

    fn explain(&self, _: &Query<'_>) -> Explanation {
        Explanation::Passes(None)
    }
}

struct Looks(Name, Later);

impl Messages for Looks {
    fn next(&mut self, message: &mut StreamMessage<'_, '_>) -> Next {
        self.1.asked.fetch_add(1, Relaxed);
        if !self.1.found.load(Relaxed) {
            return Next::Later;
        }
        message.push(&self.0, RType::A, 60, &[192, 0, 2, 1]).unwrap();
        Next::End
    }
}

/// A zone with an endless sequence of records.
#[derive(Debug)]
struct Endless;

impl SourceSpec for Endless {
    fn build(&self, _: &BuildContext<'_>) -> plugin::args::Result<Box<dyn Source>> {
        Ok(Box::new(Self))
    }
}

impl Source for Endless {
    fn of_zone(&self, request: &ZoneRequest<'_>, _: &QueryContext<'_>, _: &mut Reply<'_>) -> ZoneOutcome {
        ZoneOutcome::Stream(Box::new(Records(request.query.name)))
    }

    fn explain(&self, _: &Query<'_>) -> Explanation {
        Explanation::Passes(None)
    }
}

struct Records(Name);

impl Messages for Records {
    fn next(&mut self, message: &mut StreamMessage<'_, '_>) -> Next {
        while message.push(&self.0, RType::A, 60, &[192, 0, 2, 1]).is_ok() {}
        Next::More
    }
}
