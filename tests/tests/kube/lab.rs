//! Creates objects at the real API, runs the program against it, and formats its answers as text.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use tests::kube::{Cluster, NAMESPACES};
use tests::{Action, Ask, Message, Record, Says, Server, Upstream, fresh_ip, port};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const SOA: u16 = 6;
const CNAME: u16 = 5;
const SRV: u16 = 33;

pub(super) fn services(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/services")
}

pub(super) fn slices(namespace: &str) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

pub(super) fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

pub(super) fn namespace(cluster: &Cluster, name: &str) {
    cluster.create(NAMESPACES, &json!({"metadata": {"name": name}}).to_string());
}

/// Creates a service `NAMESPACE/NAME`.
pub(super) fn service(cluster: &Cluster, at: &str, spec: Value) {
    let (namespace, name) = at.split_once('/').expect("a namespace and a name");
    cluster.create(&services(namespace), &json!({"metadata": {"name": name}, "spec": spec}).to_string());
}

/// A service's spec with these addresses, or `None`; ports as `http:80/TCP`, `:53/UDP`.
pub(super) fn spec(addresses: &[&str], ports: &str) -> Value {
    let policy = if addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    let families: Vec<&str> =
        addresses.iter().map(|address| if address.contains(':') { "IPv6" } else { "IPv4" }).collect();
    json!({"clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilyPolicy": policy, "ipFamilies": families,
        "ports": self::ports(ports)})
}

pub(super) fn ports(text: &str) -> Value {
    let one = |text: &str| {
        let (name, rest) = text.split_once(':').expect("a name, which may be empty");
        let (port, protocol) = rest.split_once('/').expect("a protocol");
        json!({"name": name, "port": port.parse::<u16>().expect("a port"), "protocol": protocol})
    };
    text.split_whitespace().map(one).collect()
}

/// Endpoints as `10.0.0.1=hostname#pod@zone`, in that order; unready ones begin with `!`.
pub(super) fn endpoints(text: &str) -> Value {
    let one = |text: &str| {
        let (ready, text) = text.strip_prefix('!').map_or((true, text), |text| (false, text));
        let end = text.find(['=', '#', '@']).unwrap_or(text.len());
        let part = |sign: char| {
            let (_, rest) = text[end..].split_once(sign)?;
            Some(&rest[..rest.find(['=', '#', '@']).unwrap_or(rest.len())])
        };
        let mut endpoint = json!({"addresses": [&text[..end]], "conditions": {"ready": ready}});
        for (sign, field) in [('=', "hostname"), ('@', "zone")] {
            if let Some(value) = part(sign) {
                endpoint[field] = value.into();
            }
        }
        if let Some(pod) = part('#') {
            endpoint["targetRef"] = json!({"kind": "Pod", "name": pod});
        }
        endpoint
    };
    text.split_whitespace().map(one).collect()
}

/// A slice `NAMESPACE/SLICE` with these labels.
pub(super) fn labelled(at: &str, labels: Value, all: &str, ports: &str) -> (String, String) {
    let (namespace, name) = at.split_once('/').expect("a namespace and a name");
    let is_six = all.split(['=', '#', '@']).next().is_some_and(|first| first.contains(':'));
    let object = json!({
        "metadata": {"name": name, "labels": labels}, "addressType": if is_six { "IPv6" } else { "IPv4" },
        "endpoints": endpoints(all), "ports": self::ports(ports),
    });
    (slices(namespace), object.to_string())
}

/// Creates a slice of a service.
pub(super) fn slice(cluster: &Cluster, at: &str, of: &str, all: &str, ports: &str) {
    let (path, object) = labelled(at, json!({"kubernetes.io/service-name": of}), all, ports);
    cluster.create(&path, &object);
}

/// Creates a running pod like kubelet: first the object, then its status.
pub(super) fn pod(cluster: &Cluster, at: &str, host_network: bool, addresses: &[IpAddr]) {
    let (namespace, name) = at.split_once('/').expect("a namespace and a name");
    let spec = json!({"nodeName": "node-1", "hostNetwork": host_network,
        "containers": [{"name": "main", "image": "none"}]});
    cluster.create(&pods(namespace), &json!({"metadata": {"name": name}, "spec": spec}).to_string());
    let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    set_status(cluster, at, &json!({"phase": "Running", "podIP": addresses[0], "podIPs": ips}));
}

pub(super) fn set_status(cluster: &Cluster, at: &str, status: &Value) {
    let (namespace, name) = at.split_once('/').expect("a namespace and a name");
    let path = format!("{}/{name}/status", pods(namespace));
    let (code, body) = cluster.send("PATCH", &path, &json!({"status": status}).to_string());
    assert_eq!(code, 200, "{body}");
}

pub(super) fn delete(cluster: &Cluster, path: &str) {
    let (code, body) = cluster.send("DELETE", path, "");
    assert_eq!(code, 200, "{path}: {body}");
}

/// Answers `example.net` and `single`, each with one address.
pub(super) fn upstream() -> Upstream {
    const SOA: &str = "net. 300 IN SOA ns.net. host.net. 1 7200 900 86400 20";
    Upstream::start(fresh_ip(), |asked| match (&*asked.name, asked.rtype) {
        ("example.net.", 1) => Action::answer("example.net. 60 IN A 192.0.2.80"),
        ("single.", 1) => Action::answer("single. 60 IN A 192.0.2.81"),
        ("example.net." | "single.", _) => Action::Reply(Says::nodata(SOA)),
        _ => Action::Reply(Says::nxdomain(SOA)),
    })
}

/// Runs the program with one server block on a fresh address; its cluster is synchronized before it
/// serves.
pub(super) fn start(
    cluster: &Cluster,
    upstream: &Upstream,
    zones: &str,
    properties: &str,
    around: &str,
) -> (SocketAddr, Server) {
    let at = (fresh_ip(), port()).into();
    (at, start_at(at, cluster, upstream, zones, properties, around))
}

/// Like [`start`], on this address.
pub(super) fn start_at(
    at: SocketAddr,
    cluster: &Cluster,
    upstream: &Upstream,
    zones: &str,
    properties: &str,
    around: &str,
) -> Server {
    Server::start(&format!(
        ".:{} {{\nbind {}\n{around}\nkubernetes {zones} {{\nkubeconfig {}\nstartup_timeout 60s\n{properties}\n}}\nforward . {}\n}}\n",
        at.port(),
        at.ip(),
        cluster.path("dns.kubeconfig").display(),
        upstream.word()
    ))
}

/// Checks a server's answers with this TTL, row by row, over UDP and TCP.
pub(super) fn check(at: SocketAddr, ttl: u32, rows: &[(&str, &str)]) {
    for (question, expected) in rows {
        let (name, rtype) = question.split_once(' ').expect("a name and a type");
        let ask = Ask::new(name, rtype).edns(1232);
        for (ask, over) in [(ask.clone(), "UDP"), (ask.tcp(), "TCP")] {
            let reply = ask.of(at);
            assert_eq!(words(name, ttl, &reply), sorted(expected), "{question} over {over}");
            assert_eq!(reply.flags & 0x0400 != 0, reply.rcode() != 2, "{question}: AA");
        }
    }
}

/// Formats a reply: type and data of records whose owner equals the query name in its case, others
/// with their owner; additional records with a `+`; a denial with its zone; SERVFAIL as itself.
/// Sorted, except for aliases.
fn words(name: &str, ttl: u32, message: &Message) -> String {
    let record = |record: &Record| {
        let owner = record.name.trim_end_matches('.');
        let mut words = if owner == name { String::new() } else { format!("{} ", record.name) };
        if record.ttl != ttl {
            words += &format!("{} ", record.ttl);
        }
        words + &format!("{} {}", tests::rtype_name(record.rtype), record.data)
    };
    let mut all: Vec<String> = message.answers.iter().map(record).collect();
    all.extend(message.additionals.iter().map(|rr| format!("+ {}", record(rr))));
    for soa in &message.authorities {
        // The zone repeats the case of the query.
        let (zone, data) = (&soa.name.to_lowercase(), soa.data.to_lowercase());
        let ends = format!("7200 1800 86400 {ttl}");
        assert!(data.starts_with(&format!("ns.dns.{zone} hostmaster.{zone} ")), "{soa}");
        assert!(soa.rtype == SOA && data.ends_with(&ends) && soa.ttl == ttl.min(300), "{soa}");
        assert_eq!(all.len(), 0, "{name}: a denial alone");
        all.push(format!("{} {zone}", if message.rcode() == 3 { "NXDOMAIN" } else { "NODATA" }));
    }
    if message.answers.first().is_some_and(|first| first.rtype == CNAME) {
        return all.join(", ");
    }
    if message.rcode() == 2 {
        return "SERVFAIL".to_owned();
    }
    // Each name and port has one record.
    let srv: Vec<&str> = message.answers.iter().filter(|rr| rr.rtype == SRV).map(|rr| &*rr.data).collect();
    assert!(srv.iter().enumerate().all(|(n, data)| !srv[..n].contains(data)), "{srv:?}");
    sorted(&all.join(", "))
}

fn sorted(text: &str) -> String {
    let mut words: Vec<&str> = text.split(", ").collect();
    // The order of an alias and its target matters.
    if !text.starts_with("CNAME") {
        words.sort_unstable();
    }
    words.join(", ")
}
