//! kubeadm's unmodified Corefile in a pod of the cluster: the API from the environment and the
//! account's files, the node's resolver, the ports for kubelet's probes and Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tests::kube::Cluster;
use tests::{
    Action, Ask, Message, Options, Says, Server, Upstream, add_address, eventually, fixtures, http_get,
    isolated_for, run, tool, wire, within,
};

use super::lab::{PATIENCE, namespace, pod, service, slice, spec};

/// It answers services, endpoints, pods and search paths of a cluster.
#[test]
fn kubeadms_corefile_unchanged() {
    const TEST: &str = "kubeadms_corefile_unchanged";
    isolated_for(Duration::from_secs(300), || {
        if !tool(TEST, "getent") {
            return;
        }
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        wire(POD, 5);
        wire(OUTSIDE, 2);
        add_address(&format!("{SERVICE_HOST}/32"));
        let Some(cluster) = Cluster::up_at("0.0.0.0", TEST) else { return };
        fill(&cluster);
        mount_the_account(&cluster);
        let _upstream = within(OUTSIDE, upstream).join().expect("it starts");
        // The node's file, and kubelet's for a pod of `t1`.
        fs::write("/etc/resolv.conf", "search lab.test\nnameserver 10.2.0.2\n").expect("a file of its own");
        let kubelets = format!(
            "search t1.svc.cluster.local svc.cluster.local cluster.local lab.test\nnameserver {}\noptions ndots:5\n",
            AT.ip()
        );
        let place = Path::new("/etc/netns").join(POD);
        fs::create_dir_all(&place).expect("the test's own");
        fs::write(place.join("resolv.conf"), kubelets).expect("the test's own");

        let pods = Options::default()
            .env("KUBERNETES_SERVICE_HOST", SERVICE_HOST)
            .env("KUBERNETES_SERVICE_PORT", "6443");
        let server = Server::start_with(fixtures::KUBEADM, pods);
        let written = fs::read_to_string(server.path("Corefile")).expect("it was started with one");
        assert_eq!(written, fixtures::KUBEADM, "to the letter");
        let page = |port: u16, path: &str| {
            within(POD, {
                let path = path.to_owned();
                move || http_get(SocketAddr::new(AT.ip(), port), &path)
            })
            .join()
            .expect("it is asked")
        };
        eventually("readiness", PATIENCE, || page(8181, "/ready").ok().filter(|(status, _)| *status == 200));
        assert_eq!(page(8080, "/health").expect("it is there").0, 200);
        assert_eq!(page(9153, "/metrics").expect("it is there").0, 200);

        for (name, rtype, expected) in [
            ("kubernetes.default.svc.cluster.local", "A", &["10.96.0.1"][..]),
            ("web.t1.svc.cluster.local", "A", &["10.96.7.1"]),
            ("web.t1.svc.cluster.local", "AAAA", &["fd00:10:96::7:1"]),
            ("_http._tcp.web.t1.svc.cluster.local", "SRV", &["0 50 80 web.t1.svc.cluster.local."]),
            ("hl.t2.svc.cluster.local", "A", &["172.17.0.2", "172.17.0.3"]),
            ("h1.hl.t2.svc.cluster.local", "A", &["172.17.0.2"]),
            ("1.7.96.10.in-addr.arpa", "PTR", &["web.t1.svc.cluster.local."]),
            ("2.0.17.172.in-addr.arpa", "PTR", &["h1.hl.t2.svc.cluster.local."]),
            ("10-5-0-2.t1.pod.cluster.local", "A", &["10.5.0.2"]),
            ("alias.t1.svc.cluster.local", "A", &["192.0.2.80", "example.com."]),
            ("example.com", "A", &["192.0.2.80"]),
            ("absent.t1.svc.cluster.local", "A", &[]),
        ] {
            assert_eq!(asked(Ask::new(name, rtype)), expected, "{name} {rtype}");
            assert_eq!(asked(Ask::new(name, rtype).tcp()), expected, "{name} {rtype} over TCP");
        }
        // Names in the order of the pod's search list.
        for (name, expected) in [
            ("web", &["10.96.7.1", "fd00:10:96::7:1"][..]),
            ("web.t1", &["10.96.7.1", "fd00:10:96::7:1"]),
            ("web.t1.svc", &["10.96.7.1", "fd00:10:96::7:1"]),
            ("hl.t2", &["172.17.0.2", "172.17.0.3"]),
            ("h1.hl.t2", &["172.17.0.2"]),
            ("alias", &["192.0.2.80", "2001:db8::80"]),
            ("example.com", &["192.0.2.80", "2001:db8::80"]),
        ] {
            let addresses = run("ip", &["netns", "exec", POD, "getent", "ahosts", name]);
            let found: BTreeSet<IpAddr> =
                addresses.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let expected = expected.iter().map(|ip| ip.parse().expect("an address")).collect();
            assert_eq!(found, expected, "{name}");
        }
        // Changes are followed.
        service(&cluster, "t1/new", spec(&["10.96.7.9"], "http:80/TCP"));
        eventually("a new service", PATIENCE, || {
            (asked(Ask::new("new.t1.svc.cluster.local", "A")) == ["10.96.7.9"]).then_some(())
        });
    });
}

fn fill(cluster: &Cluster) {
    for name in ["t1", "t2"] {
        namespace(cluster, name);
    }
    service(cluster, "t1/web", spec(&["10.96.7.1", "fd00:10:96::7:1"], "http:80/TCP"));
    service(cluster, "t1/alias", json!({"type": "ExternalName", "externalName": "example.com"}));
    service(cluster, "t2/hl", json!({"clusterIP": "None", "ports": [{"name": "c", "port": 1234}]}));
    slice(cluster, "t2/hl-1", "hl", "172.17.0.2=h1 172.17.0.3", "c:1234/TCP");
    pod(cluster, "t1/here", false, &[([10, 5, 0, 2]).into()]);
}

/// Mounts the account's files at kubelet's path.
fn mount_the_account(cluster: &Cluster) {
    fs::create_dir_all(ACCOUNT).expect("the test's own");
    for name in ["token", "ca.crt", "namespace"] {
        fs::copy(cluster.path("serviceaccount").join(name), Path::new(ACCOUNT).join(name))
            .expect("the test's own");
    }
}

fn upstream() -> Upstream {
    Upstream::at(([10, 2, 0, 2], 53).into(), |asked| match (&*asked.name, asked.rtype) {
        ("example.com.", 1) => Action::answer("example.com. 60 IN A 192.0.2.80"),
        ("example.com.", 28) => Action::answer("example.com. 60 IN AAAA 2001:db8::80"),
        _ => Action::Reply(Says::nxdomain(". 300 IN SOA a.test. host.test. 1 7200 900 86400 20")),
    })
}

/// The sorted data of the answers to a pod.
fn asked(ask: Ask) -> Vec<String> {
    let reply = within(POD, move || ask.of(AT)).join().expect("it is answered");
    let message: &Message = &reply;
    let mut data: Vec<_> = message.answers.iter().map(|record| record.data.clone()).collect();
    data.sort();
    data
}

const POD: &str = "pod";
const OUTSIDE: &str = "outside";
/// The server's address for the pod.
const AT: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 5, 0, 1)), 53);
/// The address of the Service `kubernetes`, which is the API's own here.
const SERVICE_HOST: &str = "10.96.0.1";
const ACCOUNT: &str = "/run/secrets/kubernetes.io/serviceaccount";
