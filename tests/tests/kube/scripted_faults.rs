//! A scripted API with every kind of fault, and the store's content meanwhile.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use kubernetes_api::{Access, ClientSettings, Kind, Object, RateLimit, WatchConfig, WatchHandle, follow};
use serde_json::{Value, json};
use tests::kube::{Api, Form, Reply, Request};
use tests::{eventually, now};

use super::store::Seen;

pub(super) const SERVICES: &str = "/api/v1/services";
pub(super) const BOTH: [Form; 2] = [Form::Json, Form::Protobuf];

pub(super) fn service(name: &str, version: u64, ip: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "resourceVersion": version.to_string()},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    })
}

/// The bookmark at the end of the list that a watch begins with.
pub(super) fn listed(form: Form, kind: &str, version: u64) -> Vec<u8> {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    form.event("BOOKMARK", kind, &json!({ "metadata": metadata }))
}

pub(super) fn added(form: Form, name: &str, version: u64) -> Vec<u8> {
    form.event("ADDED", "Service", &service(name, version, "10.96.0.1"))
}

fn expired(form: Form) -> Vec<u8> {
    let status =
        json!({"status": "Failure", "code": 410, "reason": "Expired", "message": "too old resource version"});
    form.event("ERROR", "Status", &status)
}

/// The reply for kinds that a test does not use: an empty list, and a watch without events.
pub(super) fn quiet(form: Form, request: &Request) -> Reply {
    let kind = match request.path.rsplit('/').next() {
        Some("services") => "Service",
        Some("endpointslices") => "EndpointSlice",
        Some("pods") => "Pod",
        _ => "Namespace",
    };
    match (request.is_watch_list(), request.is_watch()) {
        (true, _) => Reply::watch(form).octets(listed(form, kind, 1)).stall(),
        (false, true) => Reply::watch(form).stall(),
        (false, false) => Reply::list(form, kind, "1", "", &[]),
    }
}

/// An API with a script for services.
pub(super) fn services(form: Form, script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Api {
    Api::start(move |request| if request.path == SERVICES { script(request) } else { quiet(form, request) })
}

pub(super) fn start(access: Access, wants: WatchConfig) -> (Seen, WatchHandle) {
    let seen = Seen::default();
    let following =
        follow(ClientSettings { access, wants, pace: RateLimit::default(), now }, Box::new(seen.clone()))
            .expect("a thread can be had");
    (seen, following)
}

pub(super) fn endpoint(api: &Api) -> Access {
    Access::Endpoint { url: api.url().into(), tls: None }
}

/// The names of the stored services.
fn names(seen: &Seen) -> Vec<String> {
    let store = seen.store();
    let names =
        store.objects.keys().filter(|(kind, _)| *kind == Kind::Service).map(|(_, key)| key.name.to_string());
    names.collect()
}

pub(super) fn until_names(seen: &Seen, wanted: &[&str]) {
    eventually(&format!("{wanted:?}"), Duration::from_secs(30), || (names(seen) == wanted).then_some(()));
}

/// The resource versions from which watches of services began.
pub(super) fn begun(api: &Api) -> Vec<String> {
    let watches = api.requests().into_iter().filter(|request| request.path == SERVICES && request.is_watch());
    watches.map(|request| request.parameter("resourceVersion").to_owned()).collect()
}

#[test]
fn lists_in_pages_without_watch_lists() {
    for form in BOTH {
        let api = services(form, move |request| match (request.is_watch_list(), request.is_watch()) {
            (true, _) => Reply::failure(form, 422, "Invalid"),
            (_, true) => Reply::watch(form).octets(added(form, "late", 11)).stall(),
            _ => match request.parameter("continue") {
                "" => Reply::list(
                    form,
                    "Service",
                    "10",
                    "p 2",
                    &[service("a", 3, "None"), service("b", 4, "None")],
                ),
                // The middle page arrives byte by byte.
                "p 2" => Reply::new(200, form.content_type(false)).dribble(form.list(
                    "Service",
                    "10",
                    "",
                    &[service("c", 5, "None")],
                )),
                other => panic!("{other}"),
            },
        });
        let (seen, _following) = start(endpoint(&api), WatchConfig::default());
        until_names(&seen, &["a", "b", "c", "late"]);
        assert_eq!(begun(&api), ["", "10"]);
        let lists =
            api.requests().into_iter().filter(|request| request.path == SERVICES && !request.is_watch());
        assert!(lists.into_iter().all(|request| request.parameter("limit") == "100"));
    }
}

/// A broken watch is resumed where it was, without another list.
#[test]
fn broken_watch_is_resumed() {
    for form in BOTH {
        let api = services(form, move |request| {
            let torn = |name, version| {
                let mut event = added(form, name, version);
                event.truncate(event.len() / 2);
                event
            };
            match request.earlier {
                0 => Reply::watch(form)
                    .dribble(added(form, "a", 3))
                    .octets(listed(form, "Service", 10))
                    .octets(torn("x", 11))
                    .cut(),
                // Half an event, then a regular end of the reply.
                1 => Reply::watch(form).octets(added(form, "b", 12)).octets(torn("x", 13)),
                _ => Reply::watch(form).octets(added(form, "c", 14)).stall(),
            }
        });
        let (seen, _following) = start(endpoint(&api), WatchConfig::default());
        until_names(&seen, &["a", "b", "c"]);
        assert_eq!(begun(&api), ["", "10", "12"]);
        assert_eq!(seen.store().lists[&Kind::Service], 1);
    }
}

/// A half-closed reply ends at once, in a list and in a watch.
#[test]
fn half_closed_reply_ends_at_once() {
    for form in BOTH {
        let api = services(form, move |request| match request.earlier {
            // In the middle of a list, which is discarded.
            0 => Reply::watch(form).octets(added(form, "x", 3)).half_close(),
            1 => Reply::watch(form)
                .octets([added(form, "a", 3), listed(form, "Service", 10)].concat())
                .octets(added(form, "b", 11))
                .half_close(),
            _ => Reply::watch(form).octets(added(form, "c", 12)).stall(),
        });
        let (seen, _following) = start(endpoint(&api), WatchConfig::default());
        // Long before the timeout of a silent watch.
        until_names(&seen, &["a", "b", "c"]);
        assert_eq!(begun(&api), ["", "", "11"]);
        assert_eq!(seen.store().lists[&Kind::Service], 1);
    }
}

/// A list that stalls on an open connection is repeated.
#[test]
fn stalled_list_is_repeated() {
    const FORM: Form = Form::Protobuf;
    let api = services(FORM, |request| match (request.earlier, request.is_watch()) {
        (0, _) => Reply::watch(FORM).octets(added(FORM, "x", 3)).stall(),
        (_, false) => Reply::list(FORM, "Service", "10", "", &[service("a", 3, "None")]),
        _ => Reply::watch(FORM).stall(),
    });
    let (seen, _following) = start(endpoint(&api), WatchConfig::default());
    eventually("the second list", Duration::from_secs(90), || (names(&seen) == ["a"]).then_some(()));
    let lost = [(Kind::Service, "no data for 30 s".to_owned())];
    assert_eq!(seen.store().lost, lost);
    assert_eq!(seen.store().lists[&Kind::Service], 1);
}

/// A watch that stalls on an open connection is resumed.
#[test]
#[ignore = "takes minutes: a watch may be silent for so long"]
fn stalled_watch_is_resumed() {
    const FORM: Form = Form::Protobuf;
    let api = services(FORM, |request| match request.earlier {
        0 => {
            let first = [added(FORM, "a", 3), listed(FORM, "Service", 10), added(FORM, "b", 11)].concat();
            Reply::watch(FORM).octets(first).stall()
        }
        _ => Reply::watch(FORM).octets(added(FORM, "c", 12)).stall(),
    });
    let (seen, _following) = start(endpoint(&api), WatchConfig::default());
    until_names(&seen, &["a", "b"]);
    let began = now();
    eventually("the changes afterwards", Duration::from_secs(300), || {
        (names(&seen) == ["a", "b", "c"]).then_some(())
    });
    assert!(began.elapsed() >= Duration::from_secs(60), "quiet is no loss at once: {:?}", began.elapsed());
    assert_eq!(begun(&api)[..2], ["", "11"]);
    assert_eq!(seen.store().lists[&Kind::Service], 1);
    assert!(seen.store().lost.is_empty(), "{:?}", seen.store().lost);
}

/// An expired version causes a new list; known objects stay meanwhile.
#[test]
fn expired_version_is_listed_again() {
    for form in BOTH {
        let (sender, receiver) = channel();
        let receiver = Mutex::new(Some(receiver));
        let api = services(form, move |request| match request.earlier {
            0 => {
                let first = [added(form, "a", 3), added(form, "b", 4), listed(form, "Service", 10)].concat();
                Reply::watch(form).octets(first).octets(expired(form))
            }
            1 => Reply::watch(form)
                .octets(added(form, "b", 4))
                .live(receiver.lock().unwrap().take().expect("once"))
                .octets(listed(form, "Service", 20))
                .stall(),
            _ => Reply::failure(form, 500, "no more"),
        });
        let (seen, _following) = start(endpoint(&api), WatchConfig::default());
        seen.until("the second list", |store| store.events >= 3);
        assert_eq!(names(&seen), ["a", "b"], "the second list is not whole");
        sender.send(added(form, "c", 12)).unwrap();
        until_names(&seen, &["a", "b", "c"]);
        drop(sender);
        until_names(&seen, &["b", "c"]);
        assert_eq!(begun(&api), ["", ""]);
    }
}

/// Repeated and reordered events end in the API's state.
#[test]
fn repeated_and_reordered_events() {
    for form in BOTH {
        let api = services(form, move |request| {
            let gone = form.event("DELETED", "Service", &service("a", 12, "None"));
            match request.earlier {
                0 => {
                    let twice = [added(form, "a", 11), added(form, "a", 11), gone.clone(), gone];
                    // An old event that would restore the deleted object.
                    Reply::watch(form)
                        .octets(listed(form, "Service", 10))
                        .octets(twice.concat())
                        .octets(added(form, "a", 11))
                        .stall()
                }
                _ => Reply::watch(form)
                    .octets(added(form, "b", 13))
                    .octets(listed(form, "Service", 13))
                    .stall(),
            }
        });
        let (seen, _following) = start(endpoint(&api), WatchConfig::default());
        until_names(&seen, &["b"]);
        assert_eq!(
            seen.store().lost.first().map(|(_, why)| &**why),
            Some("resource version 11 received after 12")
        );
    }
}

/// Invalid objects and replies are left out or requested again.
#[test]
fn invalid_replies_are_survived() {
    let broken: [(Form, Vec<u8>); 7] = [
        (Form::Protobuf, vec![0xff; 64]),
        (Form::Protobuf, vec![0, 0, 0, 3, 1, 2, 3]),
        (Form::Protobuf, [&[0, 0, 0, 8][..], b"\x0a\x05ADDED\xff"].concat()),
        (Form::Json, b"<html>\n".to_vec()),
        (Form::Json, b"{\"type\":\"ADDED\"}\n".to_vec()),
        (Form::Json, [&b"{\"type\":\"ADDED\",\"object\":"[..], &vec![b'['; 200_000], b"\n"].concat()),
        (Form::Json, vec![0xff, b'\n']),
    ];
    for (form, octets) in broken {
        let api = services(form, move |request| match request.earlier {
            0 => Reply::watch(form).octets(octets.clone()).stall(),
            1 => Reply::new(200, "text/html").octets(b"<html>".to_vec()),
            2 => Reply::new(500, "text/html").octets(vec![b'x'; 1 << 20]),
            _ => Reply::watch(form)
                .octets(form.event("ADDED", "Service", &json!({"metadata": {"name": "nowhere"}})))
                .octets(form.event("WHAT", "Service", &service("what", 3, "None")))
                .octets(added(form, "a", 4))
                .octets(listed(form, "Service", 10))
                .stall(),
        });
        let (seen, _following) = start(endpoint(&api), WatchConfig::default());
        until_names(&seen, &["a"]);
        let store = seen.store();
        assert_eq!(store.unreadable, 2);
        let services: Vec<_> = store.lost.iter().filter(|(kind, _)| *kind == Kind::Service).collect();
        assert_eq!(services.len(), 3, "{services:?}");
        assert!(services[0].1.starts_with("invalid reply: "), "{services:?}");
        assert_eq!(services[1].1, "invalid reply: text/html");
    }
}

/// The client waits for missing rights and for a busy API.
#[test]
fn late_rights_and_a_busy_api() {
    let api = services(Form::Protobuf, |request| match request.earlier {
        0 | 1 => Reply::failure(Form::Protobuf, 403, "Forbidden"),
        2 => Reply::new(429, "text/plain").header("Retry-After", "1").octets(b"Too many requests".to_vec()),
        3 => Reply::failure(Form::Json, 503, "ServiceUnavailable"),
        _ => Reply::watch(Form::Protobuf)
            .octets([added(Form::Protobuf, "a", 3), listed(Form::Protobuf, "Service", 10)].concat())
            .stall(),
    });
    let began = now();
    let (seen, _following) = start(endpoint(&api), WatchConfig::default());
    until_names(&seen, &["a"]);
    assert!(now() - began >= Duration::from_secs(1), "it said when to come again");
    let lost: Vec<_> = seen.store().lost.iter().map(|(_, why)| why.clone()).collect();
    let forbidden = "may not watch services: scripted: Forbidden";
    assert_eq!(
        lost,
        [forbidden, forbidden, "429 from the API: ", "503 from the API: scripted: ServiceUnavailable"]
    );
}

/// The client waits for an API that is not there yet, and for one that is gone.
#[test]
fn absent_api_is_waited_for() {
    let address = {
        let api = Api::start(|request| quiet(Form::Json, request));
        api.address()
    };
    let (seen, following) = start(
        Access::Endpoint { url: format!("http://{address}").into(), tls: None },
        WatchConfig::default(),
    );
    let refused = format!("{address}: Connection refused (os error 111)");
    seen.until("the refusal", |store| store.lost.iter().any(|(_, why)| *why == refused));
    let api = Api::start_at(address, |request| quiet(Form::Json, request));
    seen.until_following(&[Kind::Service, Kind::Namespace]);
    // The client stops at once, also in the middle of a reply.
    let began = now();
    drop(following);
    assert!(now() - began < Duration::from_secs(2));
    drop(api);
}

#[test]
fn hundred_thousand_events_in_order() {
    const EVENTS: u64 = 100_000;
    for form in BOTH {
        let (sender, receiver) = channel::<Vec<u8>>();
        let receiver = Mutex::new(Some(receiver));
        let api = services(form, move |_| match receiver.lock().unwrap().take() {
            Some(parts) => Reply::watch(form).octets(listed(form, "Service", 1)).live(parts),
            None => Reply::failure(form, 500, "once is enough"),
        });
        let (seen, _following) = start(endpoint(&api), WatchConfig::default());
        seen.until_following(&[Kind::Service]);
        send_events(&sender, form, EVENTS);
        seen.until("all of them", |store| store.events as u64 == EVENTS);
        let store = seen.store();
        assert_eq!(store.count(Kind::Service), 1_000);
        // Each of the 1,000 objects has its last state.
        for (at, object) in store.objects.values().enumerate() {
            let Object::Service(service) = object else { continue };
            let number: u64 = service.key.name[1..].parse().unwrap();
            let wanted = EVENTS - 1_000 + number;
            assert_eq!(service.ports[0].port, Some((wanted / 2) as u16), "{at}: {}", service.key);
        }
        assert!(store.lost.is_empty(), "{:?}", store.lost);
    }
}

fn send_events(sender: &Sender<Vec<u8>>, form: Form, events: u64) {
    for batch in 0..events / 1_000 {
        let event = |number: u64| {
            let mut object = service(&format!("s{:03}", number % 1_000), number + 2, "10.96.0.1");
            object["spec"]["ports"][0]["port"] = (number / 2).into();
            form.event("MODIFIED", "Service", &object)
        };
        let octets: Vec<u8> = (batch * 1_000..(batch + 1) * 1_000).flat_map(event).collect();
        sender.send(octets).expect("the API reads on");
    }
}

/// The client's requests respect the API's limits of rate and number.
#[test]
fn requests_respect_the_apis_limits() {
    // Ten pages at 20 requests a second with a burst of two.
    let api = services(Form::Json, |request| {
        let page = request.parameter("continue").parse().unwrap_or(0);
        match (request.is_watch_list(), request.is_watch(), page) {
            (true, _, _) => Reply::failure(Form::Json, 422, "Invalid"),
            (_, true, _) => Reply::watch(Form::Json).stall(),
            (_, _, 10) => Reply::list(Form::Json, "Service", "10", "", &[service("a", 3, "None")]),
            (_, _, page) => Reply::list(Form::Json, "Service", "10", &(page + 1).to_string(), &[]),
        }
    });
    let seen = Seen::default();
    let pace = RateLimit { per_second: 20.0, burst: 2, in_flight: 1 };
    let settings = ClientSettings { access: endpoint(&api), wants: WatchConfig::default(), pace, now };
    let began = now();
    let _following = follow(settings, Box::new(seen.clone())).expect("a thread can be had");
    until_names(&seen, &["a"]);
    // Services alone need twelve requests, of which the burst of two is not delayed.
    assert!(now() - began >= Duration::from_millis(500), "{:?}", now() - began);
    let waited = std::mem::take(&mut seen.store().waited);
    let (free, paced) = waited.split_at(2);
    assert!(free.iter().all(Duration::is_zero) && paced.iter().any(|waited| !waited.is_zero()), "{waited:?}");
}
