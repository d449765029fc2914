//! Causes why an API cannot be watched, in the log, /ready, /status and `localdns status`, and the
//! reports of its recovery.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use serde_json::{Value, json};
use tests::kube::{Api, Form, Reply, SERVICES, SLICES, ScriptedCluster};
use tests::{
    Authority, Metrics, Options, Server, assert_contains, binary, eventually, http_get, output, publish,
    tempdir,
};

use super::bad_input::{FORM, PATIENCE, at, corefile};
use super::program::{objects, ready};
use super::scripted_faults::{listed, quiet};

/// An API counts as followed again once every kind of object is.
#[test]
fn followed_once_every_kind_is() {
    let (lists, list) = channel();
    let (list, is_late) = (Mutex::new(Some(list)), AtomicBool::new(false));
    let api = Api::start(move |request| match (&*request.path, request.earlier) {
        // The watch's version is expired, and the list that follows stays incomplete until the test
        // sends its end.
        (SLICES, 0) => {
            let expired =
                json!({"status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
            Reply::watch(FORM)
                .octets(listed(FORM, "EndpointSlice", 1))
                .octets(FORM.event("ERROR", "Status", &expired))
                .stall()
        }
        (SLICES, 1) => {
            is_late.store(true, Ordering::Release);
            let list = list.lock().expect("no thread panics").take().expect("asked once");
            Reply::watch(FORM).live(list)
        }
        (SERVICES, _) if !is_late.load(Ordering::Acquire) => Reply::failure(FORM, 401, "Unauthorized"),
        (SERVICES, _) if request.is_watch_list() => {
            // An unreadable object, so that the log shows that services were listed.
            let odd = json!({"metadata": {"name": "odd", "namespace": "t1"}, "spec": {"clusterIP": 7}});
            Reply::watch(Form::Json)
                .octets(listed(Form::Json, "Service", 1))
                .octets(Form::Json.event("ADDED", "Service", &odd))
                .stall()
        }
        _ => quiet(FORM, request),
    });
    let at = at();
    let server = Server::start(&corefile(at, &format!("endpoint {}", api.url())));
    server.wait_for_log("Cannot follow services", PATIENCE);
    server.wait_for_log("Some services of the API", PATIENCE);
    assert!(!server.log_text().contains("is followed again"), "{}", server.log_text());
    lists.send(listed(FORM, "EndpointSlice", 2)).expect("it is waited for");
    server.wait_for_log("the Kubernetes API is followed again", PATIENCE);
}

/// An older API refuses watches that begin with a list, and a proxy may refuse protobuf: the client
/// falls back.
#[test]
fn fallback_request_is_no_warning() {
    for (protobuf, watch_list) in [(200, 422), (200, 400), (406, 200), (415, 422)] {
        let api = Api::start(move |request| {
            let wants_protobuf = request.headers["accept"].contains("protobuf");
            let form = if wants_protobuf && protobuf == 200 { Form::Protobuf } else { Form::Json };
            match request.is_watch_list() {
                _ if wants_protobuf && protobuf != 200 => Reply::failure(form, protobuf, "NotAcceptable"),
                true if watch_list != 200 => Reply::failure(form, watch_list, "Invalid"),
                _ => quiet(form, request),
            }
        });
        let at = at();
        let server = Server::start(&corefile(at, &format!("endpoint {}", api.url())));
        eventually("all is known", PATIENCE, || (ready(at).0 == 200).then_some(()));
        server.signal("USR1");
        server.wait_for_log("Reloading complete", PATIENCE);
        let log = server.log_text();
        assert!(!log.contains("Cannot follow") && !log.contains("followed again"), "{log}");
    }
}

/// `/ready` and `status` give the cause until the cluster is followed.
#[test]
fn unfollowed_cluster_is_explained() {
    let directory = tempdir();
    let (snapshot, socket) = (directory.path().join("cluster"), directory.path().join("status.sock"));
    std::fs::write(&snapshot, "localdns kubernetes 2\n damaged").expect("the test's own");
    let is_good = std::sync::Arc::new(AtomicBool::new(false));
    let good = is_good.clone();
    let api = Api::start(move |request| match good.load(Ordering::Acquire) {
        false => Reply::failure(FORM, 401, "Unauthorized"),
        true => quiet(FORM, request),
    });
    let at = at();
    let text = corefile(at, &format!("endpoint {}\nsnapshot {} 1s", api.url(), snapshot.display()));
    let text = text.replacen("ready ", &format!("prometheus {}:9153\nready ", at.ip()), 1);
    let socket = socket.to_str().expect("text");
    let server = Server::start_with(&text, Options::default().args(["-status", socket]));
    let problems = || {
        let (_, text) = http_get((at.ip(), 9153).into(), "/status").expect("a page");
        let status: Value = serde_json::from_str(&text).expect("one object");
        status["kubernetes"]["clusters"][0]["problems"].clone()
    };
    let words = || {
        let mut command = Command::new(binary());
        command.args(["status", "-status", socket]);
        String::from_utf8(output(command, PATIENCE).stdout).expect("text")
    };
    let why = "the API rejects the credentials: scripted: Unauthorized";
    let remedy = "use a token or certificate of this cluster that has not expired; it is read again before each attempt";
    let kept = format!("{}: its checksum is wrong", snapshot.display());
    let replaced = "it is replaced once the lists of the API are complete";
    let expected = json!([
        {"subject": "services, endpointslices, namespaces", "problem": why, "remedy": remedy},
        {"subject": "snapshot", "problem": kept, "remedy": replaced},
    ]);
    eventually("every kind is refused", PATIENCE, || (problems() == expected).then_some(()));
    assert_eq!(ready(at), (503, format!("kubernetes: {why}")));
    let printed = words();
    assert_contains!(printed, format!("  services, endpointslices, namespaces: {why}; {remedy}\n"));
    assert_contains!(printed, format!("  snapshot: {kept}; {replaced}\n"));

    is_good.store(true, Ordering::Release);
    eventually("nothing is wrong", PATIENCE, || (problems() == json!([])).then_some(()));
    assert_eq!(ready(at), (200, "OK".to_owned()));
    assert!(!words().contains("Unauthorized") && !words().contains("checksum"), "{}", words());

    // Known data is still answered from, but the cause is reported all the same.
    let address = api.address();
    drop(api);
    let refused = format!("{address}: Connection refused (os error 111)");
    eventually("no socket listens", PATIENCE, || (problems()[0]["problem"] == *refused).then_some(()));
    assert_contains!(words(), format!("{refused}; check that the API is up and reachable from here\n"));
    drop(server);
}

/// An API that closes its connections is reported in plain words.
#[test]
fn closed_connections_are_reported() {
    let (authority, files) = (Authority::new(), tempdir());
    authority.write(files.path());
    authority.certify(files.path(), "client.example");
    let cluster = ScriptedCluster::start_tls(objects(), &authority);
    let (at, root) = (at(), files.path().display());
    let tls = format!("endpoint {}\ntls {root}/cert.pem {root}/key.pem {root}/ca.pem", cluster.api.url());
    let text = corefile(at, &tls).replacen("ready ", &format!("prometheus {}:9153\nready ", at.ip()), 1);
    let server = Server::start(&text);
    eventually("all is followed", PATIENCE, || {
        let metrics = Metrics::of((at.ip(), 9153).into());
        let followed = |kind| metrics.value("localdns_kubernetes_followed", &[("kind", kind)]);
        ["services", "endpointslices", "namespaces"]
            .iter()
            .all(|kind| followed(kind) == Some(1.0))
            .then_some(())
    });
    cluster.fail();
    // A watch that had just begun may be reported first: each cause has its line.
    let line = server.wait_for_log("the API closed the connection", PATIENCE);
    let address = cluster.api.address();
    assert_contains!(line, format!("{address}: the API closed the connection; check that the API is up "));
    assert!(!server.log_text().contains("://docs.rs"), "{}", server.log_text());
}

/// `check` warns of an API that cannot be followed as the log does, and sends no request.
#[test]
fn check_warns_without_requests() {
    let files = tempdir();
    let (config, conf) = (files.path().join("kubeconfig"), files.path().join("Corefile"));
    let api = Api::start(|request| quiet(FORM, request));
    let file = json!({
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": api.url()}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    publish(&config, file.to_string());
    publish(&files.path().join("token"), "secret");
    let (config, absent) = (config.display(), files.path().join("absent"));
    let unreadable = format!("{}: No such file or directory (os error 2)", absent.display());
    for (properties, why) in [
        (format!("kubeconfig {}", absent.display()), Some(unreadable)),
        (format!("kubeconfig {config} dev"), Some(format!("{config}: no context \"dev\""))),
        (format!("kubeconfig {config}"), None),
        (format!("endpoint {}", api.url()), None),
        // In a pod the API is found by the environment, which is missing where Corefiles are
        // checked.
        (String::new(), None),
    ] {
        let text = corefile(at(), &properties);
        publish(&conf, &text);
        let mut command = Command::new(binary());
        command.args(["check", "-conf", conf.to_str().expect("text")]);
        let printed = output(command, PATIENCE);
        assert!(printed.status.success());
        let printed = String::from_utf8(printed.stderr).expect("text");
        let Some(why) = why else {
            assert_eq!(printed, "", "{properties}");
            continue;
        };
        let message = format!("{why}; correct it, no restart is needed");
        assert_eq!(printed, format!("localdns: warning: plugin/kubernetes: {message}\n"));
        assert_contains!(Server::start(&text).wait_for_log("Cannot follow", PATIENCE), message);
    }
    assert!(api.requests().is_empty());
}

#[test]
fn ignored_endpoint_is_reported() {
    let (api, files) = (Api::start(|request| quiet(FORM, request)), tempdir());
    let text = corefile(at(), &format!("endpoint {} http://192.0.2.1", api.url()));
    let conf = files.path().join("Corefile");
    publish(&conf, &text);
    let mut command = Command::new(binary());
    command.args(["check", "-conf", conf.to_str().expect("text")]);
    let printed = String::from_utf8(output(command, PATIENCE).stderr).expect("text");
    assert_contains!(printed, ":1:1: of several APIs behind `endpoint` the first alone is asked");
    let server = Server::start(&text);
    server.wait_for_log("of several APIs behind `endpoint` the first alone is asked", PATIENCE);
}
