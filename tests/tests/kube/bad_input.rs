//! The program with wrong, missing or hostile data of a cluster: it reports a configuration error
//! with its place, or logs cause and remedy once; it answers SERVFAIL with a reason where the
//! cluster's data is unknown; and it answers all other names.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tests::kube::{Api, Form, NAMESPACES, Reply, SERVICES, SLICES};
use tests::{
    Ask, Authority, Options, Server, ask, assert_contains, binary, eventually, fresh_ip, output, port,
    publish, tempdir,
};

use super::program::ready;
use super::scripted_faults::{listed, quiet};

pub(super) const PATIENCE: Duration = Duration::from_secs(30);
pub(super) const FORM: Form = Form::Protobuf;

/// A server block with a cluster's zone, and one without.
pub(super) fn corefile(at: SocketAddr, properties: &str) -> String {
    let (ip, port) = (at.ip(), at.port());
    format!(
        "cluster.local:{port} {{\nbind {ip}\nready {ip}:8181\nkubernetes {{\nstartup_timeout 100ms\n{properties}\n}}\n}}\n\
         example:{port} {{\nbind {ip}\nwhoami\n}}\n"
    )
}

pub(super) fn at() -> SocketAddr {
    (fresh_ip(), port()).into()
}

/// Stands in for an API behind TLS: a DNS server with the certificate in `files`.
fn names_over_tls(at: SocketAddr, files: &Path) -> Server {
    let (ip, port) = (at.ip(), at.port());
    let text =
        format!("tls://.:{port} {{\nbind {ip}\nroot {}\ntls cert.pem key.pem\nwhoami\n}}\n", files.display());
    Server::start_with(&text, Options::default())
}

/// Asserts SERVFAIL with a reason for names of the cluster, and answers for all others.
pub(super) fn assert_unknown(at: SocketAddr) {
    let reply = Ask::new("web.t1.svc.cluster.local", "A").edns(1232).of(at);
    assert_eq!((reply.status(), reply.extended_error().map(|(code, _)| code)), ("SERVFAIL", Some(14)));
    assert_eq!(ask(at, "a.example", "A").status(), "NOERROR");
}

/// The log reports a missing right once, and `/ready` reports it.
#[test]
fn missing_right_is_reported_once() {
    let api = Api::start(|request| match &*request.path {
        SLICES => Reply::failure(FORM, 403, "Forbidden"),
        _ => quiet(FORM, request),
    });
    let at = at();
    let server = Server::start(&corefile(at, &format!("endpoint {}", api.url())));
    let line = server.wait_for_log("Cannot follow endpointslices", PATIENCE);
    assert_contains!(
        line,
        "may not watch endpointslices: scripted: Forbidden; bind the account to the ClusterRole system:coredns"
    );
    assert_eq!(ready(at), (503, "kubernetes: may not watch endpointslices".to_owned()));
    assert_unknown(at);
    eventually("three tries", PATIENCE, || {
        (api.requests().iter().filter(|request| request.path == SLICES).count() >= 3).then_some(())
    });
    let lines = server.log_text().matches("Cannot follow").count();
    assert_eq!(lines, 1, "{}", server.log_text());
}

/// A missing right for service imports is reported, and the cluster's own names are answered.
#[test]
fn service_imports_without_a_right() {
    const IMPORTS: &str = "/apis/multicluster.x-k8s.io/v1alpha1/serviceimports";
    let api = Api::start(|request| match &*request.path {
        IMPORTS => Reply::failure(FORM, 403, "Forbidden"),
        _ => quiet(FORM, request),
    });
    let at = at();
    let text = corefile(at, &format!("endpoint {}\nmulticluster clusterset.local", api.url()));
    let text = text.replacen("cluster.local:", &format!("clusterset.local:{} cluster.local:", at.port()), 1);
    let server = Server::start(&text);
    let line = server.wait_for_log("Cannot follow serviceimports", PATIENCE);
    assert_contains!(
        line,
        "; bind the account to the ClusterRole system:localdns, since system:coredns lacks this right; "
    );
    assert_contains!(line, "may not watch serviceimports: scripted: Forbidden");
    assert_eq!(ready(at), (503, "kubernetes: may not watch serviceimports".to_owned()));
    let of_set = Ask::new("web.t1.svc.clusterset.local", "A").edns(1232).of(at);
    assert_eq!((of_set.status(), of_set.extended_error().map(|(code, _)| code)), ("SERVFAIL", Some(14)));
    eventually("what is known of the cluster", PATIENCE, || {
        (ask(at, "web.t1.svc.cluster.local", "A").status() == "NXDOMAIN").then_some(())
    });
    assert_eq!(server.log_text().matches("Cannot follow").count(), 1, "{}", server.log_text());
}

/// A kubeconfig that cannot be used is reported with its error.
#[test]
fn unusable_kubeconfig_is_reported() {
    for (content, cause) in [
        (None, "No such file or directory"),
        (Some("clusters: ["), "kubeconfig: "),
        (Some("current-context: dev"), "no context \"dev\""),
        (
            Some("current-context: dev\ncontexts: [{name: dev, context: {cluster: c, user: u}}]"),
            "no cluster \"c\"",
        ),
    ] {
        let (at, files) = (at(), tempdir());
        let file = files.path().join("kubeconfig");
        if let Some(content) = content {
            publish(&file, content);
        }
        let server = Server::start(&corefile(at, &format!("kubeconfig {}", file.display())));
        let line = server.wait_for_log("Cannot follow", PATIENCE);
        assert_contains!(line, file.display().to_string());
        assert_contains!(line, cause);
        let (status, text) = ready(at);
        assert!(status == 503 && text.starts_with("kubernetes: ") && text.contains(cause), "{text}");
        assert_unknown(at);
    }
}

#[test]
fn api_of_another_authority_is_rejected() {
    let (at, files) = (at(), tempdir());
    let (ours, theirs) = (Authority::new(), Authority::new());
    theirs.certify(files.path(), "api.example");
    let api = names_over_tls(at, files.path());
    ours.write(files.path());
    let config = json!({
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {
            "server": format!("https://{at}"), "certificate-authority": "ca.pem", "tls-server-name": "api.example"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    publish(&files.path().join("config"), config.to_string());
    let asked = self::at();
    let server =
        Server::start(&corefile(asked, &format!("kubeconfig {}", files.path().join("config").display())));
    let line = server.wait_for_log("Cannot follow", PATIENCE);
    assert_contains!(line, "invalid peer certificate: BadSignature; name its own authority ");
    assert!(!line.contains("secret"));
    assert_eq!(ready(asked), (503, format!("kubernetes: {at}: invalid peer certificate: BadSignature")));
    assert_unknown(asked);
    drop(api);
}

/// Each new cause is reported once, with its remedy.
#[test]
fn each_cause_is_reported_once() {
    let (asked, files, theirs) = (at(), tempdir(), Authority::new());
    let file = files.path().join("kubeconfig");
    let server = Server::start(&corefile(asked, &format!("kubeconfig {}", file.display())));
    let reported = |cause: &str, remedy: &str| {
        let line = server.wait_for_log(cause, PATIENCE);
        assert_contains!(line, format!("{cause}; {remedy}"));
        assert_contains!(line, "; names that depend on it are SERVFAIL until then");
    };
    let configure = |url: &str| {
        let config = json!({
            "current-context": "c",
            "clusters": [{"name": "k", "cluster": {
                "server": url, "certificate-authority": "ca.pem", "tls-server-name": "api.example"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        });
        publish(&file, config.to_string());
    };
    reported("No such file or directory (os error 2)", "correct it, no restart is needed");
    publish(&file, "current-context: dev");
    reported("no context \"dev\"", "correct it, no restart is needed");
    // No server listens there yet.
    let of_names = at();
    Authority::new().write(files.path());
    configure(&format!("https://{of_names}"));
    reported("Connection refused (os error 111)", "check that the API is up and reachable from here");
    theirs.certify(files.path(), "api.example");
    let _names = names_over_tls(of_names, files.path());
    reported("invalid peer certificate: BadSignature", "name its own authority (CA of `tls`, ");
    let api = Api::start(|request| match request.earlier {
        0 => Reply::failure(FORM, 401, "Unauthorized"),
        _ => quiet(FORM, request),
    });
    configure(&api.url());
    reported(
        "the API rejects the credentials: scripted: Unauthorized",
        "use a token or certificate of this cluster ",
    );
    server.wait_for_log("the Kubernetes API is followed again", PATIENCE);
    assert_eq!(server.log_text().matches("Cannot follow").count(), 5, "{}", server.log_text());
    assert_eq!(ready(asked).0, 200);
}

/// An API with a different error each time is reported four times.
#[test]
fn changing_errors_are_reported_four_times() {
    let api = Api::start(|request| {
        Reply::failure(FORM, 500, &format!("\u{1b}[31m{} {}", request.path, request.earlier))
    });
    let at = at();
    let server = Server::start(&corefile(at, &format!("endpoint {}", api.url())));
    eventually("more tries than lines", PATIENCE, || (api.requests().len() > 9).then_some(()));
    let log = server.log_text();
    assert_eq!(log.matches("Cannot follow").count(), 4, "{log}");
    assert_eq!(log.matches("see the API server's log").count(), 4, "{log}");
    assert!(!log.contains('\u{1b}'), "{log}");
    assert_unknown(at);
}

/// The first invalid object is named with its error, and the other objects are served.
#[test]
fn invalid_object_is_reported() {
    let api = Api::start(|request| {
        let namespace = json!({"metadata": {"name": "t1"}});
        match &*request.path {
            SERVICES if request.is_watch_list() => {}
            NAMESPACES if request.is_watch_list() => {
                let event = Form::Json.event("ADDED", "Namespace", &namespace);
                return Reply::watch(Form::Json)
                    .octets(event)
                    .octets(listed(Form::Json, "Namespace", 1))
                    .stall();
            }
            _ => return quiet(Form::Json, request),
        }
        let service =
            |name: &str, spec: Value| json!({"metadata": {"name": name, "namespace": "t1"}, "spec": spec});
        let all = [
            service("od\u{1b}[31md", json!({"clusterIP": "10.96.0.1", "ports": "none"})),
            service("second", json!({"clusterIP": 7})),
            service("web", json!({"clusterIP": "10.96.0.2"})),
        ];
        let all = all.iter().flat_map(|service| Form::Json.event("ADDED", "Service", service)).collect();
        Reply::watch(Form::Json).octets(all).octets(listed(Form::Json, "Service", 1)).stall()
    });
    let at = at();
    let server = Server::start(&corefile(at, &format!("endpoint {}", api.url())));
    let line = server.wait_for_log("are invalid and left out", PATIENCE);
    assert_contains!(
        line,
        "Some services of the API are invalid and left out; the first is t1/od?[31md: invalid type: string \"none\""
    );
    assert_contains!(line, "Correct it or delete it: `kubectl get services -A -o yaml` shows it");
    eventually("what is known of others", PATIENCE, || {
        (ask(at, "web.t1.svc.cluster.local", "A").short() == ["10.96.0.2"]).then_some(())
    });
    assert_eq!(ask(at, "second.t1.svc.cluster.local", "A").status(), "NXDOMAIN");
    assert_eq!(server.log_text().matches("are invalid and left out").count(), 1, "{}", server.log_text());
}

/// A reload that removes the plugin does not wait for a hanging API.
#[test]
fn dropped_plugin_leaves_a_hanging_api() {
    // One kind stalls before the reply's head, one in the middle of a list, one sends data without
    // end.
    let api = Api::start(|request| match &*request.path {
        SERVICES => Reply::watch(FORM).octets(vec![0, 0x7f, 0xff, 0xff]).stall(),
        NAMESPACES => Reply::watch(FORM).stall(),
        _ => {
            let event = FORM.event(
                "ADDED",
                "EndpointSlice",
                &json!({"metadata": {"name": "a", "namespace": "b", "resourceVersion": "1"}}),
            );
            Reply::watch(FORM).octets(event.repeat(20_000)).stall()
        }
    });
    let at = at();
    let with = corefile(at, &format!("endpoint {}", api.url()));
    let server = Server::start(&with);
    eventually("every kind is asked for", PATIENCE, || {
        [SERVICES, SLICES, NAMESPACES]
            .iter()
            .all(|path| api.requests().iter().any(|request| request.path == **path))
            .then_some(())
    });
    assert_eq!(server.threads("kubernetes").len(), 1);
    for round in 1..=3 {
        let (start, end) =
            (with.find("kubernetes").expect("it is there"), with.find("example").expect("it is there"));
        server.write_corefile(&format!("{}whoami\n}}\n{}", &with[..start], &with[end..]));
        server.signal("USR1");
        server.wait_for_lines("Reloading complete", 2 * round - 1, PATIENCE);
        eventually("the end of the followers", PATIENCE, || {
            server.threads("kubernetes").is_empty().then_some(())
        });
        assert_eq!(ask(at, "a.cluster.local", "A").status(), "NOERROR");
        server.write_corefile(&with);
        server.signal("USR1");
        server.wait_for_lines("Reloading complete", 2 * round, PATIENCE);
        assert_eq!(server.threads("kubernetes").len(), 1);
        assert_unknown(at);
    }
}

/// One snapshot file for two clusters is an error at the second block.
#[test]
fn one_snapshot_file_for_two_clusters() {
    let (api, directory) = (Api::start(|request| quiet(FORM, request)), tempdir());
    let file = directory.path().join("cluster");
    let text = |first: &str, second: &str| {
        let block = |zone: &str, properties: &str| {
            format!(
                "{zone}:{} {{\nkubernetes {{\nendpoint {}\nstartup_timeout 100ms\n{properties}\n}}\n}}\n",
                port(),
                api.url()
            )
        };
        block("cluster.local", first) + &block("other.local", second)
    };
    let kept = |file: &Path, more: &str| format!("snapshot {} {more}", file.display());
    let conf = directory.path().join("Corefile");
    let check = |text: &str| {
        std::fs::write(&conf, text).expect("the test's own");
        let mut command = Command::new(binary());
        command.args(["check", "-conf"]).arg(&conf);
        let output = output(command, PATIENCE);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let same = kept(&file, "");
    for (second, is_fine) in [
        (same.clone(), true),
        (same.clone() + "\nttl 60", true),
        (kept(&directory.path().join("other"), "") + "\nnoendpoints", true),
        ("noendpoints".to_owned(), true),
        (same.clone() + "\nnoendpoints", false),
        (kept(&file, "1m"), false),
    ] {
        let (could, message) = check(&text(&same, &second));
        assert_eq!(could, is_fine, "{second}: {message}");
        if !is_fine {
            assert_contains!(message, ":8:1: plugin/kubernetes: another block keeps something else");
        }
    }
}
