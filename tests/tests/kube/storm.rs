//! 100,000 events at once, as after an outage of the API or with a flapping service, while the
//! server answers queries.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use tests::kube::{Api, Form, NAMESPACES, Reply, SERVICES, SLICES};
use tests::{Ask, Message, Metrics, Server, Stream, ask, eventually, fresh_ip, now, port, report};

use super::program::{corefile, objects, slice, until, upstream};
use super::scripted_faults::listed;

const FORM: Form = Form::Protobuf;
const EVENTS: u32 = 100_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// No answer is lost, and nothing is left in memory.
#[test]
fn hundred_thousand_events_at_once() {
    let (sender, receiver) = channel::<Vec<u8>>();
    let receiver = Mutex::new(Some(receiver));
    let api = Api::start(move |request| {
        let (path, kind) = match &*request.path {
            SLICES => (SLICES, "EndpointSlice"),
            SERVICES => (SERVICES, "Service"),
            _ => (NAMESPACES, "Namespace"),
        };
        let added = |(_, object)| FORM.event("ADDED", kind, &object);
        let all = objects().into_iter().filter(|(of, _)| *of == path).flat_map(added).collect();
        let reply = Reply::watch(FORM).octets(all).octets(listed(FORM, kind, 100));
        match receiver.lock().expect("no script panics").take_if(|_| path == SLICES) {
            Some(events) => reply.live(events),
            None => reply.stall(),
        }
    });
    let (upstream, at) = (upstream(), SocketAddr::from((fresh_ip(), port())));
    let server = Server::start(&corefile(at, &api, &upstream));
    until(at, "hl.t1.svc.cluster.local", &["172.17.0.254"]);
    let batches: Vec<Vec<u8>> = (0..EVENTS / 1_000)
        .map(|batch| (batch * 1_000..(batch + 1) * 1_000).flat_map(event).collect())
        .collect();
    let memory = server.rss_kb();
    let stream = Stream::start(at, 200, |n| Ask::new(NAMES[n % NAMES.len()], "A"), right);
    let began = now();
    for batch in batches {
        sender.send(batch).expect("the API reads on");
    }
    let (last, _) = endpoint(EVENTS - 1);
    eventually("the last event", PATIENCE, || (ask(at, NAMES[1], "A").short() == [&*last]).then_some(()));
    let took = began.elapsed();
    stream.finish(PATIENCE).assert_clean();
    // Each endpoint had its own name and address.
    for number in [0, 1, EVENTS / 2, EVENTS - 2] {
        let (_, name) = endpoint(number);
        assert_eq!(ask(at, &format!("{name}.{}", NAMES[1]), "A").status(), "NXDOMAIN", "{name}");
    }
    eventually("the end of all that was for the events", PATIENCE, || {
        (server.rss_kb() < memory + GROWTH).then_some(())
    });
    let metrics = Metrics::of((at.ip(), 9153).into());
    assert_eq!(metrics.value("localdns_kubernetes_unreadable_total", &[]).unwrap_or(0.0), 0.0);
    assert_eq!(metrics.value("localdns_kubernetes_objects", &[("kind", "endpointslices")]), Some(1.0));
    report(&format!("measured: {EVENTS} events of a slice in {took:?}"));
}

fn event(number: u32) -> Vec<u8> {
    let (address, name) = endpoint(number);
    FORM.event("MODIFIED", "EndpointSlice", &slice(101 + number, &[(&address, &name)]))
}

/// The address and the name of the only endpoint after an event.
fn endpoint(number: u32) -> (String, String) {
    let [_, a, b, c] = number.to_be_bytes();
    (format!("10.{a}.{b}.{c}"), format!("e{number}"))
}

/// The unchanged service has its address, and the flapping one exactly one at any time.
fn right(n: usize, message: &Message) -> bool {
    match &message.answers[..] {
        [web] if n.is_multiple_of(NAMES.len()) => web.data == "10.96.0.100",
        [flapping] => flapping.data.starts_with("10.") || flapping.data == "172.17.0.254",
        _ => false,
    }
}

const NAMES: [&str; 2] = ["web.t1.svc.cluster.local", "hl.t1.svc.cluster.local"];
/// A tenth of the size of all events, in KiB.
const GROWTH: u64 = 4096;
