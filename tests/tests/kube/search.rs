//! `autopath @kubernetes`: completed names, and the pod that owns an address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use tests::kube::{NAMESPACES, Object, PODS, SERVICES, SLICES, ScriptedCluster};
use tests::{Action, Ask, Message, Says, Server, Upstream, eventually, fresh_ip, isolated};

const SOA: &str = "net. 300 IN SOA ns.net. host.net. 1 7200 900 86400 20";
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn pod(namespace: &str, name: &str, node: &str, addresses: &[IpAddr], more: &Value) -> Object {
    let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip.to_string()})).collect();
    let mut pod = json!({
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": "5"},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIPs": ips},
    });
    for (part, fields) in more.as_object().into_iter().flatten() {
        for (field, value) in fields.as_object().into_iter().flatten() {
            pod[part][field] = value.clone();
        }
    }
    (PODS, pod)
}

/// Namespaces `t1` and `t2`, each with a service `web`, and these pods.
fn cluster(pods: Vec<Object>) -> ScriptedCluster {
    let mut objects = pods;
    for (namespace, address) in [("t1", "10.96.0.101"), ("t2", "10.96.0.102")] {
        objects.push((NAMESPACES, json!({"metadata": {"name": namespace, "resourceVersion": "1"}})));
        let spec = json!({"clusterIP": address, "clusterIPs": [address]});
        let metadata = json!({"name": "web", "namespace": namespace, "resourceVersion": "2"});
        objects.push((SERVICES, json!({"metadata": metadata, "spec": spec})));
    }
    ScriptedCluster::start(objects, false)
}

fn upstream() -> Upstream {
    Upstream::start(fresh_ip(), |asked| match (asked.name.as_str(), asked.rtype) {
        ("example.net.", 1) => Action::answer("example.net. 60 IN A 192.0.2.80"),
        ("example.net.", _) => Action::Reply(Says::nodata(SOA)),
        _ => Action::Reply(Says::nxdomain(SOA)),
    })
}

fn corefile(at: SocketAddr, cluster: &ScriptedCluster, upstream: &Upstream, properties: &str) -> String {
    format!(
        ".:{} {{\nbind {}\nautopath @kubernetes\ncache 30\nkubernetes cluster.local {{\nendpoint {}\n{properties}\n}}\nforward . {}\n}}\n",
        at.port(),
        at.ip(),
        cluster.api.url(),
        upstream.word()
    )
}

/// The reply to a client at that address: the rcode, and names and data of the answers.
fn ask_from(client: IpAddr, at: SocketAddr, name: &str, rtype: &str) -> String {
    let socket = UdpSocket::bind((client, 0)).expect("an address of this machine");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("it is a socket");
    socket.send_to(&Ask::new(name, rtype).bytes(), at).expect("the server is there");
    let mut octets = [0; 4_096];
    let length = socket.recv(&mut octets).expect("a reply arrives");
    let message = Message::decode(&octets[..length]).expect("a reply can be read");
    let rows: Vec<String> = message.answers.iter().map(|rr| format!("{} {}", rr.name, rr.data)).collect();
    format!("{} {}", message.rcode(), rows.join(", "))
}

/// The reply to a pod of `t1` with a search list for the first candidate of `example.net`.
const FOUND: &str = "0 example.net.t1.svc.cluster.local. example.net., example.net. 192.0.2.80";
const NOT_FOUND: &str = "3 ";

fn at() -> SocketAddr {
    (fresh_ip(), tests::port()).into()
}

#[test]
fn alias_targets_are_not_completed() {
    let here = IpAddr::V4(fresh_ip());
    let cluster = cluster(vec![pod("t1", "here", "node-1", &[here], &json!({}))]);
    for (alias, target) in [
        ("gone", "gone-too.t1.svc.cluster.local"),
        ("led", "example.net.t1.svc.cluster.local"),
        ("beside", "web.t2.t1.svc.cluster.local"),
    ] {
        let metadata = json!({"name": alias, "namespace": "t1"});
        let spec = json!({"type": "ExternalName", "externalName": target});
        cluster.put(SERVICES, "ADDED", json!({"metadata": metadata, "spec": spec}));
    }
    let (at, upstream) = (at(), upstream());
    let _server = Server::start(&corefile(at, &cluster, &upstream, "node node-1"));
    eventually("pods are followed", PATIENCE, || {
        (ask_from(here, at, "example.net.t1.svc.cluster.local", "A") == FOUND).then_some(())
    });
    // The last two targets would be answered if the client had queried them directly.
    for (alias, target) in [
        ("gone", "gone-too.t1.svc.cluster.local."),
        ("led", "example.net.t1.svc.cluster.local."),
        ("beside", "web.t2.t1.svc.cluster.local."),
    ] {
        let name = format!("{alias}.t1.svc.cluster.local");
        assert_eq!(ask_from(here, at, &name, "A"), format!("0 {name}. {target}"), "{alias}");
    }
}

#[test]
fn nodes_pods_need_one_query() {
    let ips: [IpAddr; 6] = std::array::from_fn(|_| IpAddr::V4(fresh_ip()));
    let [here, elsewhere, of_host, ended, pending, _] = ips;
    let none = json!({});
    let cluster = cluster(vec![
        pod("t1", "here", "node-1", &[here], &none),
        pod("t1", "elsewhere", "node-2", &[elsewhere], &none),
        pod("t1", "of-host", "node-1", &[of_host], &json!({"spec": {"hostNetwork": true}})),
        pod("t1", "ended", "node-1", &[ended], &json!({"status": {"phase": "Succeeded"}})),
        pod("t1", "pending", "node-1", &[pending], &json!({"status": {"phase": "Pending"}})),
    ]);
    for pods in ["pods insecure", "pods disabled", ""] {
        let (at, upstream) = (at(), upstream());
        let server = Server::start(&corefile(at, &cluster, &upstream, &format!("{pods}\nnode node-1")));
        let asks = |client, name: &str| ask_from(client, at, name, "A");
        eventually("pods are followed", PATIENCE, || {
            (asks(here, "example.net.t1.svc.cluster.local") == FOUND).then_some(())
        });
        for (name, expected) in [
            ("web.t1.svc.cluster.local", "0 web.t1.svc.cluster.local. 10.96.0.101"),
            (
                "web.t2.t1.svc.cluster.local",
                "0 web.t2.t1.svc.cluster.local. web.t2.svc.cluster.local., web.t2.svc.cluster.local. 10.96.0.102",
            ),
            (
                "web.t2.svc.t1.svc.cluster.local",
                "0 web.t2.svc.t1.svc.cluster.local. web.t2.svc.cluster.local., web.t2.svc.cluster.local. 10.96.0.102",
            ),
            (
                "web.t2.svc.cluster.local.t1.svc.cluster.local",
                "0 web.t2.svc.cluster.local.t1.svc.cluster.local. web.t2.svc.cluster.local., web.t2.svc.cluster.local. 10.96.0.102",
            ),
            ("t1.svc.cluster.local", "0 "),
            ("nowhere.t1.svc.cluster.local", NOT_FOUND),
            // The search list of another namespace.
            ("example.net.t2.svc.cluster.local", NOT_FOUND),
        ] {
            assert_eq!(asks(here, name), expected, "{name}");
        }
        assert_eq!(ask_from(here, at, "example.net.t1.svc.cluster.local", "AAAA"), "0 ");
        for client in [elsewhere, of_host, ended, pending, Ipv4Addr::LOCALHOST.into()] {
            assert_eq!(asks(client, "example.net.t1.svc.cluster.local"), NOT_FOUND, "{client}");
        }
        assert_eq!(upstream.count("example.net."), 2, "one for each family, and then the cache");
        drop(server);
    }
    let selected =
        |request: &tests::kube::Request| request.parameter("fieldSelector").contains("spec.nodeName=node-1");
    let all = cluster.api.requests();
    let mut of_pods = all.iter().filter(|request| request.path == PODS).peekable();
    assert!(of_pods.peek().is_some() && of_pods.all(selected), "{all:?}");
}

/// A completed job's pod and the running pod that reuses its address: the API may ignore field
/// selectors.
#[test]
fn completed_pod_frees_its_address() {
    let (client, ended) = (IpAddr::V4(fresh_ip()), IpAddr::V4(fresh_ip()));
    let none = json!({});
    for phase in ["Succeeded", "Failed"] {
        let completed =
            |ips: &[IpAddr]| pod("t2", "job", "node-1", ips, &json!({"status": {"phase": phase}}));
        let cluster =
            cluster(vec![pod("t1", "runs", "node-1", &[client], &none), completed(&[client, ended])]);
        cluster.ignores_fields();
        let (at, upstream) = (at(), upstream());
        let _server = Server::start(&corefile(at, &cluster, &upstream, "pods verified"));
        let asks = |client| ask_from(client, at, "example.net.t1.svc.cluster.local", "A");
        eventually("the running pod is certain", PATIENCE, || (asks(client) == FOUND).then_some(()));
        assert_eq!(ask_from(ended, at, "example.net.t2.svc.cluster.local", "A"), NOT_FOUND, "{phase}");
        // While a running pod also has the address, neither gets a search list.
        let beside = pod("t2", "job", "node-1", &[client], &none);
        cluster.put(PODS, "MODIFIED", beside.1);
        eventually("two have the address", PATIENCE, || (asks(client) == NOT_FOUND).then_some(()));
        cluster.put(PODS, "MODIFIED", completed(&[client]).1);
        eventually("one of them has ended", PATIENCE, || (asks(client) == FOUND).then_some(()));
    }
}

/// An address belongs to the new pod once the old pod is deleted, and to none while the API is
/// lost.
#[test]
fn address_reuse_by_a_new_pod() {
    let client = IpAddr::V4(fresh_ip());
    let none = json!({});
    let first = pod("t1", "first", "node-1", &[client], &none);
    let cluster = cluster(vec![first.clone()]);
    let (at, upstream) = (at(), upstream());
    let _server = Server::start(&corefile(at, &cluster, &upstream, "pods verified"));
    let in_t1 = || ask_from(client, at, "example.net.t1.svc.cluster.local", "A") == FOUND;
    let in_t2 = || ask_from(client, at, "example.net.t2.svc.cluster.local", "A") != NOT_FOUND;
    let until = |what: &str, t1: bool, t2: bool| {
        eventually(what, PATIENCE, || ((in_t1(), in_t2()) == (t1, t2)).then_some(()));
    };
    until("its pod is known", true, false);
    cluster.put(
        PODS,
        "MODIFIED",
        pod(
            "t1",
            "first",
            "node-1",
            &[client],
            &json!({"metadata": {"deletionTimestamp": "2026-11-23T13:42:25Z"}}),
        )
        .1,
    );
    until("its pod is about to go", false, false);
    let second = pod("t2", "second", "node-1", &[client], &none).1;
    cluster.put(PODS, "ADDED", second.clone());
    // Only a pod that the server knows has a verified name.
    let dashed = format!("{}.t2.pod.cluster.local", client.to_string().replace('.', "-"));
    eventually("its successor is known", PATIENCE, || {
        ask_from(client, at, &dashed, "A").starts_with("0 ").then_some(())
    });
    assert_eq!((in_t1(), in_t2()), (false, false), "two have it");
    cluster.put(PODS, "DELETED", first.1);
    until("its successor has it alone", false, true);
    // Changes of readiness do not change the address's owner.
    for _ in 0..20 {
        cluster.put(PODS, "MODIFIED", second.clone());
        assert_eq!((in_t1(), in_t2()), (false, true));
    }
    cluster.fail();
    until("the API is away", false, false);
    cluster.recover();
    until("the API is back", false, true);
}

/// A pod with IPv4 and IPv6 is known by its addresses of both families.
#[test]
fn pod_with_both_families() {
    isolated(|| {
        let (client, other) = (IpAddr::from([127, 0, 7, 7]), "::1".parse().expect("an address"));
        let cluster = cluster(vec![pod("t1", "here", "node-1", &[client, other], &json!({}))]);
        let upstream = upstream();
        let four: SocketAddr = ([127, 0, 0, 1], 53).into();
        let text = corefile(four, &cluster, &upstream, "pods verified")
            .replace("bind 127.0.0.1", "bind 127.0.0.1 ::1");
        let _server = Server::start(&text);
        for (client, at) in [(client, four), (other, (other, 53).into())] {
            eventually("its pod is known", PATIENCE, || {
                (ask_from(client, at, "example.net.t1.svc.cluster.local", "A") == FOUND).then_some(())
            });
        }
        assert_eq!(ask_from([127, 0, 7, 8].into(), four, "example.net.t1.svc.cluster.local", "A"), NOT_FOUND);
    });
}

/// Pods are followed only if they are verified or a node is named.
#[test]
fn pods_followed_only_if_needed() {
    let client = IpAddr::V4(fresh_ip());
    let cluster = cluster(vec![pod("t1", "here", "node-1", &[client], &json!({}))]);
    let (at, upstream) = (at(), upstream());
    let _server = Server::start(&corefile(at, &cluster, &upstream, "pods insecure"));
    assert_eq!(ask_from(client, at, "example.net.t1.svc.cluster.local", "A"), NOT_FOUND);
    assert!(cluster.api.requests().iter().all(|request| request.path != PODS));
    assert!(cluster.api.requests().iter().any(|request| request.path == SLICES));
}
