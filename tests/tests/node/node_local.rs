//! The DaemonSet that answers its node's pods, with search paths: its containers work with the
//! privileges that it requests from node and API. Beside a real API server, pods resolve names by
//! glibc and kubelet's resolv.conf.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tests::kube::Cluster;
use tests::{
    Action, Ask, Message, Metrics, Pod, Says, Upstream, add_address, assert_contains, eventually, http_get,
    isolated_for, output, run, tempdir, tool, wire, within,
};
use yaml_rust2::YamlLoader;

use super::lab::{OUTSIDE, POD};
use super::manifest::{strings, value};

/// Two capabilities, two directories and the rights of CoreDNS.
#[test]
fn pod_daemonset_privileges() {
    let daemonset = of_kind("DaemonSet");
    let update = &daemonset["spec"]["updateStrategy"]["rollingUpdate"];
    assert_eq!(*update, json!({ "maxSurge": 1, "maxUnavailable": 0 }));
    assert!(daemonset["spec"]["minReadySeconds"].as_u64() > Some(10));
    let template = &daemonset["spec"]["template"];
    assert_eq!(daemonset["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
    // Not selected by the Service of the cluster's DNS.
    assert_ne!(template["metadata"]["labels"]["k8s-app"], "kube-dns");
    let pod = &template["spec"];
    assert!(pod["hostPID"].is_null() && pod["hostIPC"].is_null() && pod["initContainers"].is_null());
    assert_eq!((&pod["hostNetwork"], &pod["enableServiceLinks"]), (&json!(true), &json!(true)));
    assert_eq!(
        (&pod["dnsPolicy"], &pod["priorityClassName"]),
        (&json!("Default"), &json!("system-node-critical"))
    );
    let container = container();
    assert!(container["ports"].is_null(), "with the node's network two pods could not be beside each other");
    assert_eq!(
        container["securityContext"],
        json!({
            "runAsUser": 0,
            "runAsGroup": 0,
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"], "add": ["NET_ADMIN", "NET_BIND_SERVICE"] },
            "seccompProfile": { "type": "RuntimeDefault" },
        })
    );
    let volumes = pod["volumes"].as_array().expect("a list");
    let of_host = volumes.iter().filter(|volume| !volume["hostPath"].is_null());
    assert_eq!(of_host.map(|volume| &volume["name"]).collect::<Vec<_>>(), ["handover", "snapshot"]);
    for mount in container["volumeMounts"].as_array().expect("a list") {
        assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
    }
    // kubelet sets the name of the node, so the server follows the pods of that node.
    let name =
        json!([{ "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }]);
    assert_eq!(container["env"], name);
    assert_contains!(corefile(), "node {$NODE_NAME}\n");
    assert_contains!(corefile(), "autopath @kubernetes\n");
    let service = Manifest::of_pods()
        .objects
        .into_iter()
        .find(|object| object["metadata"]["name"] == "kube-dns-upstream");
    assert_eq!(service.expect("it is there")["spec"]["selector"], json!({ "k8s-app": "kube-dns" }));
    assert_eq!(of_kind("ServiceAccount")["metadata"]["name"], pod["serviceAccountName"]);
    assert_eq!(of_kind("ClusterRoleBinding")["subjects"][0]["name"], pod["serviceAccountName"]);
    assert_eq!(of_kind("ClusterRoleBinding")["roleRef"]["name"], of_kind("ClusterRole")["metadata"]["name"]);
    assert_eq!(
        of_kind("ClusterRole")["rules"],
        json!([
            { "apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"] },
            { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"] },
        ])
    );
}

/// One query for each family completes a name.
#[test]
fn pod_daemonset_answers_pods() {
    const TEST: &str = "pod_daemonset_answers_pods";
    isolated_for(Duration::from_secs(400), || {
        if !["nft", "setpriv", "nsenter", "getent"].into_iter().all(|program| tool(TEST, program)) {
            return;
        }
        let Some((cluster, _others)) = machine(TEST) else { return };
        // kubelet's file for pods of `t1`.
        let kubelets = format!(
            "search t1.svc.cluster.local svc.cluster.local cluster.local lab.test\nnameserver {KUBE_DNS}\noptions ndots:5\n"
        );
        for namespace in [POD, ELSEWHERE] {
            let place = Path::new("/etc/netns").join(namespace);
            fs::create_dir_all(&place).expect("the test's own");
            fs::write(place.join("resolv.conf"), &kubelets).expect("the test's own");
        }
        let node = Node::new(&cluster);
        // Before the API's objects are listed, the cluster's DNS answers at both addresses.
        cluster.lose();
        let mut first = node.start(&Manifest::of_pods());
        first
            .pod
            .wait_for_log("kubernetes has not listed its objects yet: the cluster's DNS answers meanwhile");
        for server in [LOCAL, KUBE_DNS] {
            eventually("the cluster's DNS answers", PATIENCE, || (web(server) == OF_CLUSTER).then_some(()));
        }
        assert!(!first.is_ready());
        cluster.start();
        first.until_serving();
        for server in [LOCAL, KUBE_DNS] {
            assert_eq!(web(server), "0 web.t1.svc.cluster.local. 10.96.7.1", "{server}");
        }
        eventually("its pods are known", PATIENCE, || (completed(POD) == FOUND).then_some(()));
        first.until_ready();

        // `only` exists only below the node's own search domain, which follows the cluster's.
        for (name, without) in [("example.com", 5), ("only", 4), ("web.t2", 2), ("web", 1)] {
            let (of_pod, mine) = resolved(POD, name);
            let (of_other, others) = resolved(ELSEWHERE, name);
            assert_eq!(mine, [1, 1], "{name}: one for each family");
            assert_eq!(others, [without, without], "{name}: a pod of another node walks its list itself");
            assert_eq!(of_pod, of_other, "{name}");
            assert_eq!(of_pod.len(), 2, "{name}: {of_pod:?}");
        }
        assert_eq!(completed(ELSEWHERE), NOT_FOUND);
        // A pod on the host network has the node's address, so its search path is unknown.
        for server in [LOCAL, KUBE_DNS] {
            assert_eq!(ask_from(OF_NODE, server, COMPLETED), NOT_FOUND, "{server}");
        }

        // The next pod starts without the API: it has the first pod's snapshot, but pods' addresses
        // may have changed since.
        let snapshot = node.snapshot.path().join("cluster");
        eventually("a snapshot", PATIENCE, || snapshot.exists().then_some(()));
        cluster.lose();
        let mut second = node.start(&Manifest::of_pods());
        second.pod.wait_for_log("Answers are from the snapshot");
        second.until_serving();
        first.pod.wait_for_log("another process serves");
        assert_eq!(first.pod.end(), Some(0));
        let (addresses, _) = resolved(POD, "web");
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        assert_eq!(completed(POD), NOT_FOUND);
        assert_eq!(resolved(POD, "example.com").1, [5, 5]);
        cluster.start();
        eventually("its pods are known again", PATIENCE, || (completed(POD) == FOUND).then_some(()));
        assert_eq!(resolved(POD, "example.com").1, [1, 1]);
        second.until_ready();
        assert_eq!(second.pod.end(), Some(0));
    });
}

/// A node with the network's servers and a filled API server at its Service's address. `None` where
/// no API server is available.
pub(super) fn machine(test: &str) -> Option<(Cluster, [Upstream; 2])> {
    run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
    for (namespace, net) in [(POD, 1), (OUTSIDE, 2), (ELSEWHERE, 4)] {
        wire(namespace, net);
    }
    add_address(&format!("{SERVICE_HOST}/32"));
    run("ip", &["-n", OUTSIDE, "addr", "add", "10.2.0.3/24", "dev", "e0"]);
    let cluster = Cluster::up_at("0.0.0.0", test)?;
    fill(&cluster);
    let others = within(OUTSIDE, || [upstream(), clusters_dns()]).join().expect("they start");
    run("nft", &[KUBE_PROXY]);
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("the namespace is ours");
    fs::write("/etc/resolv.conf", "search lab.test\nnameserver 10.2.0.2\n").expect("the test's own");
    Some((cluster, others))
}

/// Directories of the node that outlive its pods.
pub(super) struct Node {
    account: TempDir,
    handover: TempDir,
    snapshot: TempDir,
}

/// A container with the DaemonSet's arguments, capabilities, mounts and environment.
pub(super) struct Container {
    pub(super) pod: Pod,
    spec: Value,
    _config: TempDir,
}

impl Node {
    pub(super) fn new(cluster: &Cluster) -> Self {
        Self { account: account(cluster), handover: tempdir(), snapshot: tempdir() }
    }

    pub(super) fn start(&self, manifest: &Manifest) -> Container {
        let (container, config) = (manifest.container(), tempdir());
        fs::write(config.path().join("Corefile.base"), manifest.corefile()).expect("the test's own");
        let capabilities = strings(&container["securityContext"]["capabilities"]["add"]);
        let capabilities: String =
            capabilities.iter().map(|name| format!(",+{}", name.to_lowercase())).collect();
        let mut mounts = String::new();
        for mount in container["volumeMounts"].as_array().expect("a list") {
            let path = mount["mountPath"].as_str().expect("a path");
            mounts += &match mount["name"].as_str().expect("a name") {
                // The pod's own.
                "run" => continue,
                // An optional ConfigMap that does not exist.
                "kube-dns" => format!("mkdir -p {path}\n"),
                "snapshot" => format!(
                    "mount -t tmpfs tmpfs $(dirname {path})\nmkdir {path}\nmount --bind \"$SNAPSHOT\" {path}\n"
                ),
                "handover" => format!("mkdir -p {path}\nmount --bind \"$HANDOVER\" {path}\n"),
                _ => format!("mkdir -p {path}\nmount --bind \"$CONFIG\" {path}\n"),
            };
        }
        if manifest.has_account() {
            mounts += &format!("mkdir -p {ACCOUNT}\nmount --bind \"$OF_ACCOUNT\" {ACCOUNT}\n");
        }
        let prepare = format!(
            "{mounts}
            export KUBERNETES_SERVICE_HOST={SERVICE_HOST} KUBERNETES_SERVICE_PORT=6443
            export KUBE_DNS_UPSTREAM_SERVICE_HOST={UPSTREAM} NODE_NAME={NODE_NAME}
            set -- setpriv --bounding-set=-all{capabilities} --inh-caps=-all --no-new-privs \"$@\""
        );
        let places = [
            ("HANDOVER", self.handover.path()),
            ("CONFIG", config.path()),
            ("OF_ACCOUNT", self.account.path()),
            ("SNAPSHOT", self.snapshot.path()),
        ];
        let pod = Pod::start(&prepare, &places, &strings(&container["args"]));
        Container { pod, spec: container, _config: config }
    }
}

impl Container {
    /// Waits until it answers at the node's addresses.
    pub(super) fn until_serving(&self) {
        for ip in [LOCAL, KUBE_DNS] {
            self.pod.wait_for_log(&format!("queries to {ip} are answered here"));
        }
    }

    /// Runs its readiness probe like kubelet.
    fn is_ready(&self) -> bool {
        let words = strings(&self.spec["readinessProbe"]["exec"]["command"]);
        assert_eq!(words[0], "/localdns", "as deploy/build-image puts it there");
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pod.pid.to_string(), "--mount", "--pid", "--"]);
        command.arg(tests::binary()).args(&words[1..]).env("NODE_NAME", NODE_NAME);
        output(command, PATIENCE).status.success()
    }

    /// Waits for readiness, then asserts liveness.
    pub(super) fn until_ready(&self) {
        eventually("readiness", PATIENCE, || self.is_ready().then_some(()));
        let health = &self.spec["livenessProbe"]["httpGet"];
        let page = format!("{}:{}", health["host"].as_str().expect("a word"), health["port"]);
        let (page, path) = (page.parse().expect("an address"), health["path"].as_str().expect("a word"));
        assert_eq!(http_get(page, path).expect("it is there"), (200, "OK".to_owned()));
    }
}

/// Addresses that getaddrinfo finds in a pod, and the numbers of A and AAAA queries that reached
/// the server.
fn resolved(namespace: &str, name: &str) -> (BTreeSet<IpAddr>, [usize; 2]) {
    let before = asked();
    // `ip netns exec` mounts `/etc/netns/NAMESPACE/resolv.conf`.
    let addresses = run("ip", &["netns", "exec", namespace, "getent", "ahosts", name]);
    let after = asked();
    let addresses = addresses.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    (addresses, [after[0] - before[0], after[1] - before[1]])
}

fn asked() -> [usize; 2] {
    let metrics = Metrics::of(SocketAddr::from(([127, 0, 0, 1], 9253)));
    ["A", "AAAA"].map(|rtype| metrics.count("coredns_dns_requests_total", &[("type", rtype)]) as usize)
}

/// The answer that a client there gets for the first candidate of `example.com` in a pod of `t1`.
fn completed(namespace: &'static str) -> String {
    within(namespace, || ask_from("0.0.0.0", LOCAL, COMPLETED)).join().expect("it is answered")
}

/// The answer that a pod of this node gets for a Service.
pub(super) fn web(server: &'static str) -> String {
    within(POD, || ask_from("0.0.0.0", server, "web.t1.svc.cluster.local")).join().expect("it is answered")
}

/// The answer that a client at one address gets from the server at another: the rcode, and names
/// and data of the records.
fn ask_from(client: &str, server: &str, name: &str) -> String {
    let socket = UdpSocket::bind((client, 0)).expect("an address of this machine");
    socket.set_read_timeout(Some(PATIENCE)).expect("it is a socket");
    socket.send_to(&Ask::new(name, "A").bytes(), (server, 53)).expect("it is there");
    let mut octets = [0; 4_096];
    let length = socket.recv(&mut octets).expect("a reply arrives");
    let message = Message::decode(&octets[..length]).expect("a reply can be read");
    let rows: Vec<String> = message.answers.iter().map(|rr| format!("{} {}", rr.name, rr.data)).collect();
    format!("{} {}", message.rcode(), rows.join(", "))
}

fn upstream() -> Upstream {
    Upstream::at(SocketAddr::from(([10, 2, 0, 2], 53)), |asked| match (asked.name.as_str(), asked.rtype) {
        ("example.com.", 1) => Action::answer("example.com. 60 IN A 192.0.2.80"),
        ("example.com.", 28) => Action::answer("example.com. 60 IN AAAA 2001:db8::80"),
        ("only.lab.test.", 1) => Action::answer("only.lab.test. 60 IN A 192.0.2.81"),
        ("only.lab.test.", 28) => Action::answer("only.lab.test. 60 IN AAAA 2001:db8::81"),
        _ => Action::Reply(Says::nxdomain(". 300 IN SOA a.test. host.test. 1 7200 900 86400 20")),
    })
}

fn clusters_dns() -> Upstream {
    Upstream::at(SocketAddr::from(([10, 2, 0, 3], 53)), |asked| {
        Action::answer(&format!("{} 5 IN A 192.0.2.99", asked.name))
    })
}

/// Creates Services, a pod of this node, one on the host network, one of another node, and the
/// manifest's other objects.
fn fill(cluster: &Cluster) {
    let t1 = "/api/v1/namespaces/t1";
    for (namespace, number) in [("t1", 1), ("t2", 2)] {
        cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}).to_string());
        let four = format!("10.96.7.{number}");
        let web = json!({
            "metadata": {"name": "web"},
            "spec": {
                "clusterIP": four, "clusterIPs": [four, format!("fd00:10:96::7:{number}")],
                "ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80}],
            },
        });
        cluster.create(&format!("/api/v1/namespaces/{namespace}/services"), &web.to_string());
    }
    for (name, node, of_host, ips) in [
        ("here", NODE_NAME, false, json!([{"ip": "10.1.0.2"}, {"ip": "fd01::2"}])),
        ("of-host", NODE_NAME, true, json!([{"ip": OF_NODE}])),
        ("elsewhere", "node-2", false, json!([{"ip": "10.4.0.2"}])),
    ] {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"nodeName": node, "hostNetwork": of_host, "containers": [{"name": "main", "image": "none"}]},
        });
        cluster.create(&format!("{t1}/pods"), &pod.to_string());
        let status = json!({"status": {"phase": "Running", "podIP": ips[0]["ip"], "podIPs": ips}});
        let (code, body) = cluster.send("PATCH", &format!("{t1}/pods/{name}/status"), &status.to_string());
        assert_eq!(code, 200, "{body}");
    }
    for (kind, path) in [
        ("ServiceAccount", ACCOUNTS),
        ("ClusterRole", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
        ("ClusterRoleBinding", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ] {
        cluster.create(path, &of_kind(kind).to_string());
    }
}

/// The ServiceAccount's files, as kubelet mounts them.
fn account(cluster: &Cluster) -> TempDir {
    let place = tempdir();
    let name = of_kind("ServiceAccount")["metadata"]["name"].as_str().expect("a name").to_owned();
    let request = r#"{"spec": {"expirationSeconds": 3600}}"#;
    let (code, body) = cluster.send("POST", &format!("{ACCOUNTS}/{name}/token"), request);
    assert_eq!(code, 201, "{body}");
    let body: Value = serde_json::from_str(&body).expect("an object");
    let token = body["status"]["token"].as_str().expect("a token");
    fs::write(place.path().join("token"), token).expect("the test's own");
    fs::write(place.path().join("namespace"), "kube-system").expect("the test's own");
    fs::copy(cluster.path("ca.crt"), place.path().join("ca.crt")).expect("the test's own");
    place
}

/// A manifest's objects.
pub(super) struct Manifest {
    pub(super) objects: Vec<Value>,
}

impl Manifest {
    /// The server that answers its node's pods, unmodified.
    pub(super) fn of_pods() -> Self {
        Self::read("kubernetes/node-local.yaml", &[])
    }

    /// The forwarding server, with its placeholders filled in.
    pub(super) fn forwarding() -> Self {
        let words = [("LOCAL__DNS", LOCAL), ("DNS__SERVER", KUBE_DNS), ("DNS__DOMAIN", "cluster.local")];
        Self::read("node-local-dns.yaml", &words)
    }

    fn read(path: &str, words: &[(&str, &str)]) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path);
        let mut text = fs::read_to_string(path).expect("the manifest is there");
        for (word, value) in words {
            text = text.replace(&format!("__PILLAR__{word}__"), value);
        }
        let documents = YamlLoader::load_from_str(&text).expect("the manifest is YAML");
        Self { objects: documents.iter().map(value).collect() }
    }

    fn of_kind(&self, kind: &str) -> Value {
        self.objects.iter().find(|object| object["kind"] == kind).expect("the manifest has one").clone()
    }

    fn corefile(&self) -> String {
        self.of_kind("ConfigMap")["data"]["Corefile"].as_str().expect("a text").to_owned()
    }

    fn container(&self) -> Value {
        self.of_kind("DaemonSet")["spec"]["template"]["spec"]["containers"][0].clone()
    }

    /// Whether kubelet mounts a ServiceAccount.
    fn has_account(&self) -> bool {
        self.of_kind("DaemonSet")["spec"]["template"]["spec"]["automountServiceAccountToken"] != false
    }
}

fn corefile() -> String {
    Manifest::of_pods().corefile()
}

fn container() -> Value {
    Manifest::of_pods().container()
}

fn of_kind(kind: &str) -> Value {
    Manifest::of_pods().of_kind(kind)
}

/// A pod of another node that queries this server.
const ELSEWHERE: &str = "elsewhere";
const NODE_NAME: &str = "node-1";
/// The manifest's addresses.
pub(super) const LOCAL: &str = "169.254.20.10";
pub(super) const KUBE_DNS: &str = "10.96.0.10";
/// The Service `kube-dns-upstream`.
const UPSTREAM: &str = "10.96.0.11";
/// The Service `kubernetes`, which is the API server's own address here.
const SERVICE_HOST: &str = "10.96.0.1";
const COMPLETED: &str = "example.com.t1.svc.cluster.local";
const OF_NODE: &str = "10.1.0.1";
const FOUND: &str = "0 example.com.t1.svc.cluster.local. example.com., example.com. 192.0.2.80";
const NOT_FOUND: &str = "3 ";
/// An answer that only the cluster's DNS gives.
pub(super) const OF_CLUSTER: &str = "0 web.t1.svc.cluster.local. 192.0.2.99";
/// Rules of kube-proxy's nftables mode for kube-dns and the Service that reaches it while the node
/// has kube-dns's address.
const KUBE_PROXY: &str = "
table ip kube-proxy {
    chain services { ip daddr { 10.96.0.10, 10.96.0.11 } meta l4proto { tcp, udp } th dport 53 dnat to 10.2.0.3; }
    chain prerouting { type nat hook prerouting priority -100; jump services; }
    chain output { type nat hook output priority -100; jump services; }
}";
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const ACCOUNTS: &str = "/api/v1/namespaces/kube-system/serviceaccounts";
const PATIENCE: Duration = Duration::from_secs(90);
