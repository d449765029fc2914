//! A slow API: each event arrives late and in pieces, while the server answers queries.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use serde_json::json;
use tests::kube::{Api, Form, NAMESPACES, Reply, SERVICES, SLICES};
use tests::{Ask, Message, Server, Stream, ask, eventually, fresh_ip, port};

use super::program::{corefile, objects, service, until, upstream};
use super::scripted_faults::listed;

const FORM: Form = Form::Protobuf;
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two pieces, each half an event.
const PAUSE: Duration = Duration::from_millis(300);

/// A slow API delays no answer.
#[test]
fn slow_api_delays_no_answer() {
    let (sender, receiver) = channel::<Vec<u8>>();
    let receiver = Mutex::new(Some(receiver));
    let api = Api::start(move |request| {
        let (path, kind) = match &*request.path {
            SERVICES => {
                let events = receiver.lock().expect("no script panics").take();
                return events.map_or_else(
                    || Reply::failure(FORM, 500, "asked twice"),
                    |events| Reply::watch(FORM).live(events),
                );
            }
            SLICES => (SLICES, "EndpointSlice"),
            _ => (NAMESPACES, "Namespace"),
        };
        let added = |(_, object)| FORM.event("ADDED", kind, &object);
        let all = objects().into_iter().filter(|(of, _)| *of == path).flat_map(added).collect();
        Reply::watch(FORM).octets(all).octets(listed(FORM, kind, 100)).stall()
    });
    let slowly = |octets: Vec<u8>| {
        for piece in octets.chunks(octets.len().div_ceil(2)) {
            thread::sleep(PAUSE);
            sender.send(piece.to_vec()).expect("the API reads on");
        }
    };
    let (upstream, at) = (upstream(), SocketAddr::from((fresh_ip(), port())));
    let text = corefile(at, &api, &upstream);
    let server = Server::start(&text.replace("pods insecure", "pods insecure\n    startup_timeout 100ms"));
    // Until all lists are complete no name is denied; other names do not wait for them.
    for (_, object) in objects().into_iter().filter(|(path, _)| *path == SERVICES) {
        slowly(FORM.event("ADDED", "Service", &object));
        let reply = Ask::new(NONE, "A").edns(1232).of(at);
        assert_eq!((reply.status(), reply.extended_error().map(|(code, _)| code)), ("SERVFAIL", Some(14)));
        assert_eq!(ask(at, NAMES[1], "A").short(), ["192.0.2.80"]);
    }
    slowly(listed(FORM, "Service", 100));
    eventually("all is known", PATIENCE, || (ask(at, NONE, "A").status() == "NXDOMAIN").then_some(()));
    until(at, NAMES[0], &["10.96.0.100"]);

    let stream = Stream::start(at, 200, |n| Ask::new(NAMES[n % NAMES.len()], "A"), right);
    for number in 1..=6 {
        let address = format!("10.96.1.{number}");
        let mut object = service("late", json!({"clusterIP": address, "clusterIPs": [address]}));
        object["metadata"]["resourceVersion"] = (100 + number).to_string().into();
        let event = if number == 1 { "ADDED" } else { "MODIFIED" };
        slowly(FORM.event(event, "Service", &object));
        // Each object is answered before the next one arrives.
        until(at, "late.t1.svc.cluster.local", &[&address]);
    }
    stream.finish(PATIENCE).assert_clean();
    // A slow event is no error.
    assert!(!server.log_text().contains("Cannot follow"), "{}", server.log_text());
    let asked = api.requests().into_iter().filter(|request| request.path == SERVICES).count();
    assert_eq!(asked, 1, "nothing is asked again");
}

fn right(n: usize, message: &Message) -> bool {
    let address = ["10.96.0.100", "192.0.2.80"][n % NAMES.len()];
    matches!(&message.answers[..], [only] if only.data == address)
}

const NONE: &str = "none.t1.svc.cluster.local";
const NAMES: [&str; 2] = ["web.t1.svc.cluster.local", "example.net"];
