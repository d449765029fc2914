//! Transfers of a cluster's zone, and the names of its services outside of the cluster.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tests::{Ask, Connection, Message, Record, Server, Upstream, ask, eventually, fresh_ip, port};

use tests::kube::{SERVICES, ScriptedCluster};

use super::program::{objects, upstream};

const PATIENCE: Duration = Duration::from_secs(30);
const SOA: u16 = 6;

fn start(cluster: &ScriptedCluster, upstream: &Upstream, directives: &str) -> (SocketAddr, Server) {
    let at = SocketAddr::from((fresh_ip(), port()));
    let server = Server::start(&corefile(at, cluster, upstream, directives));
    (at, server)
}

fn corefile(at: SocketAddr, cluster: &ScriptedCluster, upstream: &Upstream, directives: &str) -> String {
    format!(
        ".:{} {{\nbind {}\nkubernetes cluster.local in-addr.arpa {{\nendpoint {}\nfallthrough\n}}\n{directives}\nforward . {}\n}}\n",
        at.port(),
        at.ip(),
        cluster.api.url(),
        upstream.word()
    )
}

/// A transfer's records, message by message, from SOA to SOA; the rcode where it is refused.
pub(super) fn transfer(at: SocketAddr, ask: &Ask) -> Result<Vec<(String, u16)>, u16> {
    let records = records(at, &ask.bytes())?.into_iter();
    Ok(records.map(|record| (record.name, record.rtype)).collect())
}

/// Like [`transfer`], for an encoded query; returns the records in full.
pub(super) fn records(at: SocketAddr, query: &[u8]) -> Result<Vec<Record>, u16> {
    let mut connection = Connection::open(at, PATIENCE).expect("the server takes connections");
    connection.send(query).expect("it reads");
    let mut records = Vec::new();
    loop {
        let message: Message = connection.message().expect("a message");
        if message.rcode() != 0 {
            return Err(message.rcode());
        }
        records.extend(message.answers);
        if records.len() > 1 && records.last().is_some_and(|record: &Record| record.rtype == SOA) {
            return Ok(records);
        }
    }
}

/// The zone is sent to those that `transfer` names.
#[test]
fn zone_transfer_of_a_cluster() {
    let (cluster, upstream) = (ScriptedCluster::start(objects(), false), upstream());
    let (at, server) =
        start(&cluster, &upstream, "transfer cluster.local {\nto *\n}\ntransfer {\nto 192.0.2.1\n}");
    let records = transfer(at, &Ask::new("Cluster.Local", "AXFR")).unwrap();
    let has = |name: &str, rtype: u16| {
        records.iter().any(|(own, of)| own.eq_ignore_ascii_case(name) && *of == rtype)
    };
    for (name, rtype) in [
        ("web.t1.svc.cluster.local.", 1),
        ("web.t1.svc.cluster.local.", 28),
        ("_http._tcp.web.t1.svc.cluster.local.", 33),
        ("h1.hl.t1.svc.cluster.local.", 1),
        ("_c._udp.hl.t1.svc.cluster.local.", 33),
        ("ext.t1.svc.cluster.local.", 5),
    ] {
        assert!(has(name, rtype), "{name} {rtype} in {records:?}");
    }
    assert_eq!(records.first().map(|(_, rtype)| *rtype), Some(SOA));
    // The next transfer contains the change.
    cluster.put(
        SERVICES,
        "DELETED",
        json!({"metadata": {"name": "web", "namespace": "t1", "resourceVersion": "200"}}),
    );
    eventually("it is gone", PATIENCE, || {
        (ask(at, "web.t1.svc.cluster.local", "A").status() != "NOERROR"
            || ask(at, "web.t1.svc.cluster.local", "A").short().is_empty())
        .then_some(())
    });
    // Within a second of a transfer the zone is sent unchanged.
    eventually("it is sent no more", PATIENCE, || {
        let later = transfer(at, &Ask::new("cluster.local", "AXFR")).unwrap();
        (!later.iter().any(|(name, _)| name.starts_with("web."))).then_some(())
    });
    // Refused: a transfer of a zone that is not named, of a subdomain, and over UDP.
    assert_eq!(transfer(at, &Ask::new("in-addr.arpa", "AXFR")), Err(5));
    assert_eq!(transfer(at, &Ask::new("svc.cluster.local", "AXFR")), Err(5));
    assert_eq!(Ask::new("cluster.local", "AXFR").of(at).status(), "REFUSED");
    drop(server);
    let (at, _server) = start(&cluster, &upstream, "");
    assert_eq!(
        transfer(at, &Ask::new("cluster.local", "AXFR")),
        Err(5),
        "without `transfer` the zone is not sent"
    );
}

#[test]
fn services_by_external_addresses() {
    let (cluster, upstream) = (ScriptedCluster::start(objects(), false), upstream());
    let (at, _server) =
        start(&cluster, &upstream, "transfer {\nto *\n}\nk8s_external example.org {\nheadless\n}");
    let lb = |version: u32, ingress: serde_json::Value| {
        json!({
            "metadata": {"name": "lb", "namespace": "t1", "resourceVersion": version.to_string()},
            "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "type": "LoadBalancer", "externalIPs": ["192.0.2.7"],
                "ports": [{"name": "http", "protocol": "TCP", "port": 80}]},
            "status": {"loadBalancer": {"ingress": ingress}},
        })
    };
    assert_eq!(ask(at, "lb.t1.example.org", "A").status(), "NXDOMAIN");
    cluster.put(SERVICES, "ADDED", lb(201, json!([{"ip": "192.0.2.8"}])));
    let until = |addresses: &[&str]| {
        eventually(&format!("{addresses:?}"), PATIENCE, || {
            let reply = ask(at, "lb.t1.example.org", "A");
            let mut short = reply.short();
            short.sort_unstable();
            (short == addresses).then_some(())
        });
    };
    until(&["192.0.2.7", "192.0.2.8"]);
    assert_eq!(ask(at, "_http._tcp.lb.t1.example.org", "SRV").short(), ["0 50 80 lb.t1.example.org."]);
    assert_eq!(ask(at, "h1.hl.t1.example.org", "A").short(), ["172.17.0.254"]);
    assert_eq!(ask(at, "example.org", "SOA").status(), "NOERROR");
    // In a transfer, too; the serial is constant for a second after one.
    eventually("it is sent", PATIENCE, || {
        let records = transfer(at, &Ask::new("Example.org", "AXFR")).unwrap();
        let has = |name: &str, rtype: u16| {
            records.iter().any(|(own, of)| own.eq_ignore_ascii_case(name) && *of == rtype)
        };
        let reached = has("lb.t1.example.org.", 1) && has("_http._tcp.lb.t1.example.org.", 33);
        (reached && has("h1.hl.t1.example.org.", 1)).then_some(())
    });
    assert_eq!(transfer(at, &Ask::new("t1.example.org", "AXFR")), Err(5));
    // A host name of the load balancer is looked up like any name.
    cluster.put(SERVICES, "MODIFIED", lb(202, json!([{"hostname": "example.net"}])));
    until(&["192.0.2.7", "192.0.2.80", "example.net."]);
    cluster.put(SERVICES, "MODIFIED", lb(203, json!([{"hostname": "fails.example.net"}])));
    let failed = eventually("a name that has no answer", PATIENCE, || {
        let reply = Ask::new("lb.t1.example.org", "A").edns(1232).of(at);
        (reply.status() == "SERVFAIL").then_some(reply)
    });
    assert!(failed.extended_error().is_some(), "it says why");
}
