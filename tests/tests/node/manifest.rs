//! The DaemonSet that replaces node-cache: its containers work with the privileges that it
//! requests, and an API server accepts it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tests::kube::Cluster;
use tests::{Pod, ask, assert_contains, eventually, http_get, isolated, isolated_for, output, tempdir, tool};
use yaml_rust2::{Yaml, YamlLoader};

use super::clients::at;
use super::lab::{Lab, NAME, PLAIN, POD, within};

/// The DaemonSet adds two capabilities and mounts one directory of the host; in an update the next
/// pod starts beside the old one.
#[test]
fn daemonset_privileges() {
    let daemonset = of_kind("DaemonSet");
    let update = &daemonset["spec"]["updateStrategy"];
    assert_eq!(update["type"], "RollingUpdate");
    assert_eq!(update["rollingUpdate"], serde_json::json!({ "maxSurge": 1, "maxUnavailable": 0 }));
    assert!(daemonset["spec"]["minReadySeconds"].as_u64() > Some(10));
    let template = &daemonset["spec"]["template"];
    assert_eq!(daemonset["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
    let pod = &template["spec"];
    for (name, want) in
        [("hostNetwork", true), ("automountServiceAccountToken", false), ("enableServiceLinks", true)]
    {
        assert_eq!(pod[name], want, "{name}");
    }
    assert!(pod["hostPID"].is_null() && pod["hostIPC"].is_null() && pod["initContainers"].is_null());
    assert_eq!(pod["dnsPolicy"], "Default");
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    let container = container();
    assert!(container["ports"].is_null(), "with the node's network two pods could not be beside each other");
    let security = &container["securityContext"];
    for (name, want) in
        [("privileged", false), ("allowPrivilegeEscalation", false), ("readOnlyRootFilesystem", true)]
    {
        assert_eq!(security[name], want, "{name}");
    }
    let capabilities = serde_json::json!({ "drop": ["ALL"], "add": ["NET_ADMIN", "NET_BIND_SERVICE"] });
    assert_eq!(security["capabilities"], capabilities);
    let volumes = pod["volumes"].as_array().expect("a list");
    let host: Vec<_> = volumes.iter().filter(|volume| !volume["hostPath"].is_null()).collect();
    assert_eq!(host.len(), 1, "{host:?}");
    assert_eq!(host[0]["name"], "handover");
    for mount in container["volumeMounts"].as_array().expect("a list") {
        assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
    }
}

/// The DaemonSet's pod serves with its capabilities only, and the next pod takes over.
#[test]
fn daemonset_serves_and_is_replaced() {
    isolated(|| {
        let test = "daemonset_serves_and_is_replaced";
        if !["nft", "setpriv"].into_iter().all(|program| tool(test, program)) {
            return;
        }
        let _lab = Lab::new();
        fs::write("/etc/resolv.conf", "nameserver 10.3.0.2\n").expect("the test's own");
        let host = tempdir();
        let mut old = pod(host.path());
        for _ in 0..2 {
            for ip in [LOCAL, KUBE_DNS] {
                old.pod.wait_for_log(&format!("queries to {ip} are answered here"));
            }
            answers_the_pod();
            // The probes, as kubelet runs them.
            let container = container();
            let (health, words) =
                (&container["livenessProbe"]["httpGet"], &container["readinessProbe"]["exec"]["command"]);
            let page = format!("{}:{}", health["host"].as_str().expect("a word"), health["port"]);
            let path = health["path"].as_str().expect("a word");
            assert_eq!(
                http_get(page.parse().expect("an address"), path).expect("it is there"),
                (200, "OK".to_owned())
            );
            eventually("readiness", PATIENCE, || old.ready(&strings(words)).then_some(()));
            let next = pod(host.path());
            next.pod.wait_for_log(&format!("queries to {KUBE_DNS} are answered here"));
            old.pod.wait_for_log("another process serves");
            answers_the_pod();
            assert_eq!(old.pod.end(), Some(0));
            answers_the_pod();
            old = next;
        }
        assert_eq!(old.pod.end(), Some(0));
    });
}

/// The add-on's own container runs our image with its arguments and its template.
#[test]
fn add_on_container_with_our_image() {
    isolated(|| {
        if !tool("add_on_container_with_our_image", "nft") {
            return;
        }
        let _lab = Lab::new();
        fs::write("/etc/resolv.conf", "nameserver 10.3.0.2\n").expect("the test's own");
        let config = tempdir();
        let template = include_str!("../../fixtures/corefiles/node-local-dns.corefile");
        let template = template
            .replace("__PILLAR__DNS__DOMAIN__", "cluster.local")
            .replace("__PILLAR__LOCAL__DNS__", LOCAL)
            .replace("__PILLAR__DNS__SERVER__", KUBE_DNS);
        fs::write(config.path().join("Corefile.base"), template).expect("the test's own");
        let prepare = "mkdir -p /etc/coredns /etc/kube-dns
            mount --bind \"$CONFIG\" /etc/coredns
            export KUBE_DNS_UPSTREAM_SERVICE_HOST=10.96.0.10";
        let words = ["-localip", &format!("{LOCAL},{KUBE_DNS}"), "-conf", "/etc/Corefile"];
        let more = ["-upstreamsvc", "kube-dns-upstream", "-pidfile", "/tmp/node-cache.pid"];
        let mut pod = Pod::start(prepare, &[("CONFIG", config.path())], &[&words[..], &more].concat());
        for ip in [LOCAL, KUBE_DNS] {
            pod.wait_for_log(&format!("queries to {ip} are answered here"));
        }
        answers_the_pod();
        let health = format!("{LOCAL}:8080").parse().expect("an address");
        assert_eq!(http_get(health, "/health").expect("it is there"), (200, "OK".to_owned()));
        let pid = fs::read_to_string(format!("/proc/{}/root/tmp/node-cache.pid", pod.pid));
        assert_eq!(pid.expect("it is written").trim(), "1");
        let filled = fs::read_to_string(format!("/proc/{}/root/etc/Corefile", pod.pid));
        assert_contains!(filled.expect("it is written"), "forward . 10.96.0.10 {");
        assert_eq!(pod.end(), Some(0));
    });
}

/// A real API accepts the manifest with every field in it.
#[test]
fn api_accepts_the_manifest() {
    isolated_for(Duration::from_secs(300), || {
        let Some(cluster) = Cluster::up("api_accepts_the_manifest") else { return };
        for (kind, path) in [
            ("Service", "/api/v1/namespaces/kube-system/services"),
            ("ConfigMap", "/api/v1/namespaces/kube-system/configmaps"),
            ("DaemonSet", "/apis/apps/v1/namespaces/kube-system/daemonsets"),
        ] {
            for object in objects().into_iter().filter(|object| object["kind"] == kind) {
                let path = format!("{path}?dryRun=All&fieldValidation=Strict");
                let (status, body) = cluster.send("POST", &path, &object.to_string());
                assert_eq!(status, 201, "{kind}: {body}");
            }
        }
    });
}

/// A container with the DaemonSet's arguments, capabilities and mounts.
struct Container {
    pod: Pod,
    _config: tempfile::TempDir,
}

fn pod(host: &Path) -> Container {
    let container = container();
    let config = tempdir();
    let template = of_kind("ConfigMap")["data"]["Corefile"].as_str().expect("a text").to_owned();
    fs::write(config.path().join("Corefile.base"), template).expect("the test's own");
    let prepare = "mkdir /run/handover
        mount --bind \"$HANDOVER\" /run/handover
        mkdir -p /etc/coredns
        mount --bind \"$CONFIG\" /etc/coredns
        export KUBE_DNS_UPSTREAM_SERVICE_HOST=10.96.0.10
        set -- setpriv --bounding-set=-all,+net_admin,+net_bind_service --inh-caps=-all --no-new-privs \"$@\"";
    let places = [("HANDOVER", host), ("CONFIG", config.path())];
    Container { pod: Pod::start(prepare, &places, &strings(&container["args"])), _config: config }
}

impl Container {
    /// Runs a probe's command in the container, with the binary under test as the image's program.
    fn ready(&self, words: &[String]) -> bool {
        let (program, words) = words.split_first().expect("a command");
        assert_eq!(program, "/localdns", "as deploy/build-image puts it there");
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.pod.pid.to_string(), "--mount", "--pid", "--"])
            .arg(tests::binary())
            .args(words);
        output(command, PATIENCE).status.success()
    }
}

/// Asserts that the pod gets answers from the node's own server, to which the template forwards.
fn answers_the_pod() {
    for ip in [LOCAL, KUBE_DNS] {
        within(POD, move || assert_eq!(ask(at(ip), NAME, "A").short(), [PLAIN], "{ip}"))
            .join()
            .expect("it is answered");
    }
}

fn container() -> Value {
    of_kind("DaemonSet")["spec"]["template"]["spec"]["containers"][0].clone()
}

fn of_kind(kind: &str) -> Value {
    objects().into_iter().find(|object| object["kind"] == kind).expect("the manifest has one")
}

pub(super) fn strings(list: &Value) -> Vec<String> {
    list.as_array().expect("a list").iter().map(|word| word.as_str().expect("a word").to_owned()).collect()
}

/// The manifest's objects, with its placeholders filled in.
fn objects() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/node-local-dns.yaml");
    let mut text = fs::read_to_string(path).expect("the manifest is there");
    for (word, with) in [("LOCAL__DNS", LOCAL), ("DNS__SERVER", KUBE_DNS), ("DNS__DOMAIN", "cluster.local")] {
        text = text.replace(&format!("__PILLAR__{word}__"), with);
    }
    let objects = YamlLoader::load_from_str(&text).expect("the manifest is YAML");
    assert_contains!(text, "__PILLAR__CLUSTER__DNS__");
    objects.iter().map(value).collect()
}

pub(super) fn value(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::Array(list) => list.iter().map(value).collect(),
        Yaml::Hash(hash) => {
            hash.iter().map(|(key, of)| (key.as_str().expect("a name").to_owned(), value(of))).collect()
        }
        Yaml::String(text) => text.as_str().into(),
        Yaml::Integer(number) => (*number).into(),
        Yaml::Boolean(truth) => (*truth).into(),
        other => panic!("{other:?} in the manifest"),
    }
}

const LOCAL: &str = "169.254.20.10";
/// The lab's kube-proxy translates this address.
const KUBE_DNS: &str = "10.96.0.20";
const PATIENCE: Duration = Duration::from_secs(20);
