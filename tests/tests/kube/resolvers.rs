//! Stub resolvers in a pod's network with kubelet's resolv.conf: `autopath` saves queries of each
//! family, and the answers are the same without it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tests::kube::{NAMESPACES, Object, PODS, SERVICES, ScriptedCluster};
use tests::{
    Action, Metrics, Says, Server, Stub, Upstream, eventually, isolated, run, tempdir, wire, within,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The pod's network, and the server's addresses on the veth to it.
const POD: &str = "pod";
const SERVER: [&str; 2] = ["10.6.0.1", "fd06::1"];

/// Runs `stub` in the pod's network, with `/etc/netns/NAMESPACE/resolv.conf` as its resolv.conf.
fn addresses(stub: &Stub, name: &str) -> BTreeSet<IpAddr> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", POD]);
    stub.look_up(command, name).addresses
}

fn objects() -> Vec<Object> {
    let pod = json!({
        "metadata": {"name": "client", "namespace": "t1", "resourceVersion": "3"},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.6.0.2"}, {"ip": "fd06::2"}]},
    });
    let metadata = json!({"name": "web", "namespace": "t1", "resourceVersion": "2"});
    let spec = json!({"clusterIP": "10.96.0.100", "clusterIPs": ["10.96.0.100", "fd00:96::64"]});
    vec![
        (NAMESPACES, json!({"metadata": {"name": "t1", "resourceVersion": "1"}})),
        (SERVICES, json!({"metadata": metadata, "spec": spec})),
        (PODS, pod),
    ]
}

fn upstream() -> Upstream {
    Upstream::start(tests::fresh_ip(), |asked| match (asked.name.as_str(), asked.rtype) {
        ("example.com.", 1) => Action::answer("example.com. 60 IN A 192.0.2.80"),
        ("example.com.", 28) => Action::answer("example.com. 60 IN AAAA 2001:db8::80"),
        _ => Action::Reply(Says::nxdomain("com. 300 IN SOA ns.com. host.com. 1 7200 900 86400 20")),
    })
}

/// A pod's resolver needs one query for each family.
#[test]
fn pods_resolver_needs_one_query() {
    isolated(|| {
        let directory = tempdir();
        let stubs = Stub::all("pods_resolver_needs_one_query", directory.path());
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        wire(POD, 6);
        let of_pod = Path::new("/etc/netns").join(POD);
        fs::create_dir_all(&of_pod).expect("a directory of its own");
        // The machine has no search list.
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.53\n").expect("a file of its own");
        let cluster = ScriptedCluster::start(objects(), false);
        let mut found = BTreeMap::new();
        for searched in [true, false] {
            let upstream = upstream();
            let corefile = format!(
                ".:53 {{\nbind {}\nprometheus 127.0.0.1:9153\n{}\ncache 30\nkubernetes cluster.local {{\nendpoint {}\nnode node-1\n}}\nforward . {}\n}}\n",
                SERVER.join(" "),
                if searched { "autopath @kubernetes" } else { "" },
                cluster.api.url(),
                upstream.word()
            );
            let server = Server::start(&corefile);
            if searched {
                eventually("pods are followed", PATIENCE, || {
                    let ask = || {
                        let at = SocketAddr::from(([10, 6, 0, 1], 53));
                        tests::ask(at, "example.com.t1.svc.cluster.local", "A").status()
                    };
                    (within(POD, ask).join().expect("it is answered") == "NOERROR").then_some(())
                });
            }
            let asked = || {
                let metrics = Metrics::of(SocketAddr::from(([127, 0, 0, 1], 9153)));
                ["A", "AAAA"]
                    .map(|rtype| metrics.count("coredns_dns_requests_total", &[("type", rtype)]) as usize)
            };
            for nameserver in SERVER {
                fs::write(of_pod.join("resolv.conf"), kubelets(nameserver)).expect("a file of its own");
                for (stub, name) in stubs.iter().flat_map(|stub| [(stub, "example.com"), (stub, "web")]) {
                    let before = asked();
                    let addresses = addresses(stub, name);
                    let after = asked();
                    let what = format!("{} {name} at {nameserver}", stub.name);
                    let queries = [after[0] - before[0], after[1] - before[1]];
                    // Three domains and the name itself; a name of the cluster is found in the
                    // first.
                    let without = if name == "web" { 1 } else { 4 };
                    assert_eq!(addresses.len(), 2, "{what}: {addresses:?}");
                    assert_eq!(queries, if searched { [1, 1] } else { [without, without] }, "{what}");
                    assert_eq!(
                        *found.entry(what.clone()).or_insert_with(|| addresses.clone()),
                        addresses,
                        "{what}"
                    );
                }
            }
            drop(server);
        }
    });
}

/// kubelet's resolv.conf for a pod of `t1`.
fn kubelets(nameserver: &str) -> String {
    format!(
        "search t1.svc.cluster.local svc.cluster.local cluster.local\nnameserver {nameserver}\noptions ndots:5\n"
    )
}
