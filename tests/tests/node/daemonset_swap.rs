//! The forwarding DaemonSet and the one that answers its node's pods, applied one over the other:
//! each pod takes over the sockets of the other DaemonSet's pod, and no query is lost.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tests::kube::Cluster;
use tests::{Ask, Message, Stream, eventually, isolated_for, now, report, run, tool, within};

use super::lab::POD;
use super::node_local::{KUBE_DNS, LOCAL, Manifest, Node, OF_CLUSTER, machine, web};

/// The DaemonSet that forwards and the one for pods: no query is lost either way.
#[test]
fn daemonsets_replace_each_other() {
    const TEST: &str = "daemonsets_replace_each_other";
    isolated_for(Duration::from_secs(400), || {
        if !["nft", "setpriv", "nsenter"].into_iter().all(|program| tool(TEST, program)) {
            return;
        }
        let Some((cluster, _others)) = machine(TEST) else { return };
        let (forwarding, of_pods) = (Manifest::forwarding(), Manifest::of_pods());
        for manifest in [&forwarding, &of_pods, &forwarding] {
            apply(&cluster, manifest);
        }
        // A route to Services' addresses for as long as they are not translated.
        run("ip", &["route", "add", "10.96.0.0/16", "via", "10.2.0.2"]);
        let node = Node::new(&cluster);
        let mut old = node.start(&forwarding);
        old.until_serving();
        until_answered(OF_CLUSTER);
        let clients = Clients::start();
        for (manifest, answer) in
            [(&of_pods, OF_INDEX), (&forwarding, OF_CLUSTER), (&of_pods, OF_INDEX), (&forwarding, OF_CLUSTER)]
        {
            clients.go_on();
            let next = node.start(manifest);
            next.until_serving();
            old.pod.wait_for_log("another process serves");
            until_answered(answer);
            next.until_ready();
            clients.go_on();
            assert_eq!(old.pod.end(), Some(0));
            clients.go_on();
            assert!(!old.pod.log().contains("the lease of"), "{}", old.pod.log());
            old = next;
        }
        clients.finish();
        assert_eq!(old.pod.end(), Some(0));
    });
}

/// Creates or updates the objects, like `kubectl apply --server-side`.
fn apply(cluster: &Cluster, manifest: &Manifest) {
    for object in &manifest.objects {
        let (kind, name) = (&object["kind"], object["metadata"]["name"].as_str().expect("a name"));
        let path = match kind.as_str().expect("a kind") {
            "ClusterRole" => "rbac.authorization.k8s.io/v1/clusterroles",
            "ClusterRoleBinding" => "rbac.authorization.k8s.io/v1/clusterrolebindings",
            "DaemonSet" => "apps/v1/namespaces/kube-system/daemonsets",
            "ConfigMap" => "v1/namespaces/kube-system/configmaps",
            "Service" => "v1/namespaces/kube-system/services",
            "ServiceAccount" => "v1/namespaces/kube-system/serviceaccounts",
            other => panic!("{other}"),
        };
        let api = if path.starts_with("v1/") { "api" } else { "apis" };
        let path = format!("/{api}/{path}/{name}?fieldManager=kubectl&force=true&fieldValidation=Strict");
        let form = "application/apply-patch+yaml";
        let (status, body) = cluster.send_in(form, "PATCH", &path, &object.to_string());
        assert!(matches!(status, 200 | 201), "{name}: {status} {body}");
    }
}

fn until_answered(answer: &str) {
    for server in ADDRESSES {
        eventually(answer, PATIENCE, || (web(server) == answer).then_some(()));
    }
}

/// Clients in a pod and on the host, over UDP and TCP, at both addresses.
struct Clients {
    streams: Vec<Stream>,
    over_tcp: Vec<(JoinHandle<Vec<String>>, Arc<AtomicUsize>)>,
    stop: Arc<AtomicBool>,
}

impl Clients {
    fn start() -> Self {
        let stop = Arc::<AtomicBool>::default();
        let mut clients = Self { streams: Vec::new(), over_tcp: Vec::new(), stop: stop.clone() };
        for at in ADDRESSES.map(|ip| SocketAddr::new(ip.parse::<IpAddr>().expect("an address"), 53)) {
            clients.streams.extend([stream(at), within(POD, move || stream(at)).join().expect("it starts")]);
            let (asked, stop) = (Arc::<AtomicUsize>::default(), stop.clone());
            let count = asked.clone();
            clients.over_tcp.push((within(POD, move || over_tcp(at, &asked, &stop)), count));
        }
        clients
    }

    /// Waits until each client has sent more queries.
    fn go_on(&self) {
        let counts = || -> Vec<usize> {
            let over_tcp = self.over_tcp.iter().map(|(_, asked)| 10 * asked.load(Ordering::Relaxed));
            self.streams.iter().map(Stream::sent).chain(over_tcp).collect()
        };
        let before = counts();
        eventually("queries", PATIENCE, || {
            counts().iter().zip(&before).all(|(now, before)| *now >= before + 100).then_some(())
        });
    }

    /// Ends the clients and asserts that every query got one right reply.
    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for stream in self.streams {
            let counts = stream.finish(Duration::from_secs(10));
            counts.assert_clean();
            report(&format!("measured: {} queries over UDP, the slowest {:?}", counts.sent, counts.slowest));
        }
        for (client, asked) in self.over_tcp {
            let failed = client.join().expect("it does not panic");
            assert!(failed.is_empty(), "{} of {}: {failed:?}", failed.len(), asked.load(Ordering::Relaxed));
        }
    }
}

fn stream(at: SocketAddr) -> Stream {
    Stream::start(at, 250, |n| Ask::new(question(n).0, "A"), is_right)
}

/// Sends queries one by one, each over its own connection; returns the failures.
fn over_tcp(at: SocketAddr, asked: &AtomicUsize, stop: &AtomicBool) -> Vec<String> {
    let mut failed = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let next = now() + Duration::from_millis(20);
        let n = asked.fetch_add(1, Ordering::Relaxed);
        match Ask::new(question(n).0, "A").tcp().try_of(at) {
            Ok(reply) if is_right(n, &reply) => {}
            Ok(reply) => failed.push(format!("query {n} to {at}: {reply:?}")),
            Err(error) => failed.push(format!("query {n} to {at}: {error:#}")),
        }
        thread::sleep(next.saturating_duration_since(now()));
    }
    failed
}

fn question(n: usize) -> (&'static str, &'static [&'static str]) {
    QUESTIONS[n % QUESTIONS.len()]
}

fn is_right(n: usize, reply: &Message) -> bool {
    reply.rcode() == 0 && reply.answers.last().is_some_and(|last| question(n).1.contains(&&*last.data))
}

/// Names, and the answers that either server may give.
const QUESTIONS: [(&str, &[&str]); 2] =
    [("web.t1.svc.cluster.local", &["10.96.7.1", "192.0.2.99"]), ("example.com", &["192.0.2.80"])];
const ADDRESSES: [&str; 2] = [LOCAL, KUBE_DNS];
/// Answer from the cluster index of the server for pods.
const OF_INDEX: &str = "0 web.t1.svc.cluster.local. 10.96.7.1";
const PATIENCE: Duration = Duration::from_secs(90);
