//! Reports about a watched cluster: labels of queries, /status and its page, `localdns status`,
//! `localdns explain`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tests::kube::{SERVICES, ScriptedCluster};
use tests::{Options, Server, ask, binary, eventually, fresh_ip, http_get, output, port, tempdir};

use super::program::{corefile, objects, service, until, upstream};
use super::search::pod;

const PATIENCE: Duration = Duration::from_secs(30);

/// `log`, `rewrite` and `template` know the query's parts and the client's pod.
#[test]
fn query_and_pod_metadata() {
    let upstream = upstream();
    let client = pod("t1", "client-0", "n", &["127.0.0.1".parse().unwrap()], &json!({}));
    let cluster = ScriptedCluster::start(objects().into_iter().chain([client]), false);
    let at = SocketAddr::from((fresh_ip(), port()));
    let text = |metadata: &str| {
        format!(
            ".:{} {{\nbind {}\n{metadata}\n\
             log . \"{{name}} {{/kubernetes/kind}}/{{/kubernetes/namespace}}/{{/kubernetes/service}}/{{/kubernetes/endpoint}} \
             {{/kubernetes/port-name}}/{{/kubernetes/protocol}} of {{/kubernetes/client-namespace}}/{{/kubernetes/client-pod-name}}, \
             {{/kubernetes/parse-error}}\"\n\
             rewrite name regex ^([^.]+)[.]here[.]test[.]$ {{1}}.{{kubernetes/client-namespace}}.svc.cluster.local metadata answer auto\n\
             template IN TXT who.test {{\nanswer \"{{{{ .Name }}}} 60 IN TXT pod={{{{ .Meta \\\"kubernetes/client-pod-name\\\" }}}}\"\n}}\n\
             kubernetes cluster.local {{\nendpoint {}\npods verified\n}}\nforward . {}\n}}\n",
            at.port(),
            at.ip(),
            cluster.api.url(),
            upstream.word()
        )
    };
    let server = Server::start(&text("metadata"));
    eventually("the namespace of the client", PATIENCE, || {
        (ask(at, "web.here.test", "A").short() == ["10.96.0.100"]).then_some(())
    });
    for (name, expected) in [
        ("web.t1.svc.cluster.local", "svc/t1/web/ / of t1/client-0, -"),
        ("_http._tcp.web.t1.svc.cluster.local", "svc/t1/web/ http/tcp of t1/client-0, -"),
        ("h1.hl.t1.svc.cluster.local", "svc/t1/hl/h1 / of t1/client-0, -"),
        ("127-0-0-1.t1.pod.cluster.local", "pod/t1/127-0-0-1/ / of t1/client-0, -"),
        ("x.cluster.local", "-/-/-/- -/- of t1/client-0, invalid query name"),
        ("example.net", "-/-/-/- -/- of t1/client-0, -"),
    ] {
        ask(at, name, "A");
        server.wait_for_log(&format!("[INFO] {name}. {expected}"), PATIENCE);
    }
    assert_eq!(ask(at, "who.test", "TXT").short(), ["\"pod=client-0\""]);
    drop(server);

    // With zones in the directive, labels exist for names within them alone.
    let server = Server::start(&text("metadata here.test hl.t1.svc.cluster.local"));
    eventually("the namespace of the client", PATIENCE, || {
        (ask(at, "web.here.test", "A").short() == ["10.96.0.100"]).then_some(())
    });
    for (name, expected) in [
        ("h1.hl.t1.svc.cluster.local", "svc/t1/hl/h1 / of t1/client-0, -"),
        ("web.t1.svc.cluster.local", "-/-/-/- -/- of -/-, -"),
        ("x.cluster.local", "-/-/-/- -/- of -/-, -"),
    ] {
        ask(at, name, "A");
        server.wait_for_log(&format!("[INFO] {name}. {expected}"), PATIENCE);
    }
    assert_eq!(ask(at, "who.test", "TXT").short(), ["\"pod=\""]);
    drop(server);

    // Without the directive there are no labels, and a rule with an unknown label never matches.
    let server = Server::start(&text(""));
    assert_eq!(ask(at, "who.test", "TXT").short(), ["\"pod=\""]);
    assert!(ask(at, "web.here.test", "A").short().is_empty());
    server.wait_for_log("[INFO] web.here.test. -/-/-/- -/- of -/-, -", PATIENCE);
}

/// A rule reads the labels of the client's pod.
#[test]
fn labels_of_the_clients_pod() {
    let upstream = upstream();
    let labels =
        json!({"metadata": {"labels": {"tier": "gold", "app.kubernetes.io/name": "shop", "unread": "x"}}});
    let client = pod("t1", "client-0", "n", &["127.0.0.1".parse().unwrap()], &labels);
    let cluster = ScriptedCluster::start(objects().into_iter().chain([client]), false);
    let at = SocketAddr::from((fresh_ip(), port()));
    let text = format!(
        ".:{} {{\nbind {}\nmetadata\n\
         log . \"{{name}} of {{/kubernetes/client-label/app.kubernetes.io/name}} {{/kubernetes/client-label/none}}\"\n\
         rewrite name regex ^([^.]+)[.]tier[.]test[.]$ {{1}}.{{kubernetes/client-label/tier}}.test metadata answer auto\n\
         template IN TXT gold.test {{\nexpr metadata('kubernetes/client-label/tier') == 'gold'\nvar app metadata('kubernetes/client-label/' + 'app.kubernetes.io/name')\n\
         answer \"{{{{ .Name }}}} 60 IN TXT {{{{ .Meta \\\"kubernetes/client-label/tier\\\" }}}}-{{{{ .Var.app }}}}\"\n}}\n\
         template IN TXT iron.test {{\nexpr metadata('kubernetes/client-label/tier') == 'iron'\nrcode NXDOMAIN\nfallthrough\n}}\n\
         template IN TXT iron.test {{\nanswer \"{{{{ .Name }}}} 60 IN TXT not-iron\"\n}}\n\
         kubernetes cluster.local {{\nendpoint {}\npods verified\n}}\nforward . {}\n}}\n",
        at.port(),
        at.ip(),
        cluster.api.url(),
        upstream.word()
    );
    let server = Server::start(&text);
    eventually("the label of the client", PATIENCE, || {
        (ask(at, "x.tier.test", "TXT").short() == ["\"gold-shop\""]).then_some(())
    });
    server.wait_for_log("[INFO] x.tier.test. of shop -", PATIENCE);
    assert_eq!(ask(at, "x.iron.test", "TXT").short(), ["\"not-iron\""]);

    // A change of the pod's labels applies.
    let changed = json!({"metadata": {"labels": {"tier": "iron"}}});
    let (kind, client) = pod("t1", "client-0", "n", &["127.0.0.1".parse().unwrap()], &changed);
    cluster.put(kind, "MODIFIED", client);
    eventually("the label as it is now", PATIENCE, || {
        (ask(at, "x.iron.test", "TXT").rcode() == 3).then_some(())
    });
    drop(server);
}

/// The Corefile of these tests with a snapshot.
fn with_snapshot(
    at: SocketAddr,
    cluster: &ScriptedCluster,
    upstream: &tests::Upstream,
    file: &Path,
) -> String {
    let properties =
        format!("pods insecure\n    startup_timeout 300ms\n    snapshot {} 1s\n", file.display());
    corefile(at, &cluster.api, upstream).replace("pods insecure\n", &properties)
}

fn status(at: SocketAddr) -> Value {
    let (code, text) = http_get((at.ip(), 9153).into(), "/status").expect("a page");
    assert_eq!(code, 200, "{text}");
    serde_json::from_str(&text).expect("one object")
}

fn localdns(args: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.args(args);
    let output = output(command, PATIENCE);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The status of each cluster shows what is known and how fresh it is.
#[test]
fn status_of_each_cluster() {
    let (cluster, upstream, directory) = (ScriptedCluster::start(objects(), false), upstream(), tempdir());
    let (file, socket) = (directory.path().join("cluster"), directory.path().join("status.sock"));
    let at = SocketAddr::from((fresh_ip(), port()));
    let text = with_snapshot(at, &cluster, &upstream, &file);
    let start = || {
        let options = Options::default().args(["-status", socket.to_str().expect("text")]);
        Server::start_with(&text, options)
    };
    let kinds = |status: &Value, followed: bool| {
        let of = &status["kubernetes"]["clusters"][0];
        let kind = |kind: &str, objects: u64| json!({"kind": kind, "objects": objects, "known": true, "followed": followed});
        assert_eq!(
            of["kinds"],
            json!([kind("services", 5), kind("endpointslices", 1), kind("namespaces", 1)]),
            "{of:#}"
        );
        of.clone()
    };
    let server = start();
    let report = eventually("all is followed", PATIENCE, || {
        let report = status(at);
        (report["kubernetes"]["clusters"][0]["stale"] == false).then_some(report)
    });
    let of = kinds(&report, true);
    assert_eq!((&report["kubernetes"]["synced"], &of["synced"]), (&json!(true), &json!(true)), "{of:#}");
    assert_eq!((&of["api"], &of["rights_missing"]), (&json!(cluster.api.url()), &json!([])));
    assert_eq!(of["snapshot_age_seconds"], Value::Null);
    assert!(of["event_age_seconds"].as_u64().is_some_and(|age| age < 60), "{of:#}");
    let line = localdns(&["status", "-status", socket.to_str().expect("text")]);
    let url = cluster.api.url();
    assert!(line.contains(&format!("kubernetes {url}: all objects known, last change received ")), "{line}");
    assert!(line.contains("  5 services: all known, changes are received\n"), "{line}");
    // The same by the address of the metrics, given or from the Corefile.
    let page = format!("{}:9153", at.ip());
    let conf = directory.path().join("Corefile");
    std::fs::write(&conf, &text).expect("the test's own");
    for way in [["-status", &page], ["-conf", conf.to_str().expect("text")]] {
        let line = localdns(&[&["status"], &way[..]].concat());
        assert!(line.contains("  5 services: all known, changes are received\n"), "{way:?}: {line}");
    }
    eventually("a snapshot", PATIENCE, || file.exists().then_some(()));
    drop(server);

    // Without its API the cluster is known from the snapshot, but stale.
    cluster.fail();
    let server = start();
    let report = status(at);
    let of = kinds(&report, false);
    assert_eq!((&of["synced"], &of["stale"]), (&json!(true), &json!(true)), "{of:#}");
    assert!(of["snapshot_age_seconds"].is_u64() && of["event_age_seconds"].is_null(), "{of:#}");
    let line = localdns(&["status", "-status", socket.to_str().expect("text")]);
    assert!(
        line.contains("all objects known, last change received never, answers from a snapshot "),
        "{line}"
    );
    cluster.recover();
    eventually("all is fresh", PATIENCE, || {
        let of = &status(at)["kubernetes"]["clusters"][0];
        (of["stale"] == false && of["snapshot_age_seconds"].is_null()).then_some(())
    });
    drop(server);
}

/// The page's script reads, in one function, exactly the keys of /status.
#[test]
fn page_reads_every_cluster_key() {
    let (cluster, upstream) = (ScriptedCluster::start(objects(), true), upstream());
    let at = SocketAddr::from((fresh_ip(), port()));
    let text = corefile(at, &cluster.api, &upstream);
    let _server = Server::start(&text.replace("pods insecure", "pods insecure\n    startup_timeout 300ms"));
    let report = eventually("why it is not followed", PATIENCE, || {
        let report = status(at)["kubernetes"].clone();
        report["clusters"][0]["problems"][0].is_object().then_some(report)
    });
    let (code, page) = http_get((at.ip(), 9153).into(), "/status.html").expect("a page");
    assert_eq!(code, 200);
    let start = page.find("function kubernetes(status)").expect("the page shows clusters");
    let part = &page[start..];
    let part = &part[..part.find("\n}\n").expect("the function ends")];
    let of = &report["clusters"][0];
    for (variable, object) in
        [("status.kubernetes", &report), ("c", of), ("k", &of["kinds"][0]), ("p", &of["problems"][0])]
    {
        let words: BTreeSet<&str> =
            object.as_object().expect("an object").keys().map(String::as_str).collect();
        // `synced` for all clusters is for programs: the page shows it per cluster.
        let words =
            words.into_iter().filter(|word| (variable, *word) != ("status.kubernetes", "synced")).collect();
        assert_eq!(read_of(part, variable), words, "{variable}: {part}");
    }
    assert!(page.contains(", kubernetes(status), "), "the part is shown");
}

/// The property names that a script reads of this variable.
fn read_of<'s>(script: &'s str, variable: &str) -> BTreeSet<&'s str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let path = format!("{variable}.");
    let is_part =
        |before: &str| before.ends_with(is_word) || (before.ends_with('.') && !before.ends_with("..."));
    let found = script.match_indices(&path).filter(|(at, _)| !is_part(&script[..*at]));
    let rest = found.map(|(at, _)| &script[at + path.len()..]);
    rest.map(|rest| rest.split(|c| !is_word(c)).next().unwrap_or_default()).collect()
}

/// `explain` names service, slice and endpoint by the snapshot.
#[test]
fn explain_names_objects_by_the_snapshot() {
    let (cluster, upstream, directory) = (ScriptedCluster::start(objects(), false), upstream(), tempdir());
    let (file, conf) = (directory.path().join("cluster"), directory.path().join("Corefile"));
    let at = SocketAddr::from((fresh_ip(), port()));
    let text = with_snapshot(at, &cluster, &upstream, &file)
        .replace("forward .", "k8s_external example.org {\nheadless\n}\nforward .");
    std::fs::write(&conf, &text).expect("the test's own");
    let explain =
        |name: &str, rtype: &str| localdns(&["explain", name, rtype, "-conf", conf.to_str().expect("text")]);
    // Without a snapshot nothing is known, and no request is sent.
    for (name, kind) in [("web.t1.svc.cluster.local", "services"), ("late.t1.example.org", "namespaces")] {
        let explanation = explain(name, "A");
        let expected = format!("depends on the cluster's {kind}, which are not known here");
        assert!(explanation.contains(&expected), "{explanation}");
    }
    std::fs::write(&file, "nonsense").expect("the test's own");
    for name in ["web.t1.svc.cluster.local", "late.t1.example.org"] {
        let explanation = explain(name, "A");
        assert!(
            explanation.contains("expected a snapshot of this version, found another file"),
            "{explanation}"
        );
    }
    assert_eq!(cluster.api.requests().len(), 0);

    let server = Server::start(&text);
    until(at, "web.t1.svc.cluster.local", &["10.96.0.100"]);
    cluster.put(
        SERVICES,
        "ADDED",
        service(
            "late",
            json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "externalIPs": ["192.0.2.7"]}),
        ),
    );
    eventually("a snapshot with all of it", PATIENCE, || {
        explain("late.t1.svc.cluster.local", "A").contains("service t1/late has 10.96.0.7").then_some(())
    });
    drop(server);
    let requests = cluster.api.requests().len();
    for (name, rtype, expected) in [
        (
            "web.t1.svc.cluster.local",
            "A",
            "service t1/web has 10.96.0.100, fd00:96::64, from the snapshot of ",
        ),
        (
            "hl.t1.svc.cluster.local",
            "A",
            "service t1/hl: endpoint 172.17.0.254 of slice t1/hl-1, from the snapshot of ",
        ),
        // Only the objects that the answer is made of.
        (
            "hl.t1.svc.cluster.local",
            "AAAA",
            "service t1/hl has no matching ready endpoint with an IPv6 address, from the ",
        ),
        ("_c._udp.hl.t1.svc.cluster.local", "SRV", "service t1/hl: endpoint 172.17.0.254 of slice t1/hl-1"),
        ("ext.t1.svc.cluster.local", "A", "service t1/ext is the external name \"example.net\""),
        ("254.0.17.172.in-addr.arpa", "PTR", "endpoint 172.17.0.254 of slice t1/hl-1 of service t1/hl"),
        ("none.t1.svc.cluster.local", "A", "NXDOMAIN: service t1/none does not exist, from the snapshot of "),
        ("late.t1.example.org", "A", "service t1/late is reached at 192.0.2.7, from the snapshot of "),
        (
            "hl.t1.example.org",
            "A",
            "service t1/hl: endpoint 172.17.0.254 of slice t1/hl-1, from the snapshot of ",
        ),
        ("none.t1.example.org", "A", "NXDOMAIN: service t1/none does not exist, from the snapshot of "),
    ] {
        let explanation = explain(name, rtype);
        let plugin = if name.ends_with(".example.org") { ", k8s_external: " } else { ", kubernetes: " };
        assert!(
            explanation.contains(plugin) && explanation.contains(expected),
            "{name} {rtype}: {explanation}"
        );
        // Only answers of addresses are shuffled by `loadbalance`.
        let is_drawn = explanation.contains("the order of several addresses is random");
        assert_eq!(is_drawn, matches!(rtype, "A" | "AAAA"), "{name} {rtype}: {explanation}");
    }
    // What the server refuses is no source of an explanation either.
    for (mode, is_refused) in [(0o664, true), (0o646, true), (0o600, false)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("the test's own");
        for name in ["web.t1.svc.cluster.local", "late.t1.example.org"] {
            let explanation = explain(name, "A");
            let refused = format!("the snapshot {} is refused: expected a file that", file.display());
            let shown = (explanation.contains(&refused), explanation.contains("from the snapshot of"));
            assert_eq!(shown, (is_refused, !is_refused), "{mode:o}: {explanation}");
        }
    }
    assert_eq!(cluster.api.requests().len(), requests, "no server is queried");
}
