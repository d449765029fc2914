//! Compares zone transfers of CoreDNS and localdns for the same objects, record by record, by AXFR
//! and IXFR.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tests::kube::{NAMESPACES, Object, SERVICES, ScriptedCluster};
use tests::{
    Ask, Authority, Connection, Message, Record, Server, TlsClient, eventually, fresh_ip, port, rtype_name,
    tempdir,
};

use crate::coredns::CoreDns;
use crate::{cluster, external, random_clusters};

/// A cluster, and the properties that select the records to transfer.
pub(crate) struct Sent {
    name: String,
    objects: Vec<Object>,
    /// Properties of `kubernetes`.
    of_cluster: &'static str,
    /// Properties of `k8s_external`.
    from_outside: &'static str,
}

/// Clusters with every kind of object.
pub(crate) fn fixed() -> Vec<Sent> {
    let mut all = Vec::new();
    for (of_cluster, from_outside) in [
        ("", ""),
        ("ttl 60\nnamespaces t1", "headless"),
        ("endpoint_pod_names\nttl 0", "headless\nttl 30"),
        ("multicluster clusterset.local", "apex ns\nttl 3600"),
    ] {
        let objects = cluster::imports_too(external::objects());
        let name = format!("kubernetes {{ {of_cluster} }} k8s_external {{ {from_outside} }}");
        all.push(Sent { name, objects, of_cluster, from_outside });
    }
    all
}

/// Random clusters.
pub(crate) fn random(seed: u64, numbers: impl Iterator<Item = u64>) -> Vec<Sent> {
    let of = |number| Sent {
        name: format!("cluster {number}"),
        objects: cluster::imports_too(random_clusters::cluster(seed, number).objects),
        of_cluster: if number % 2 == 0 { "" } else { "multicluster clusterset.local" },
        from_outside: "headless",
    };
    numbers.map(of).collect()
}

/// The unlisted differences of transfers, one paragraph each.
pub(crate) fn differences(program: &Path, all: &[Sent]) -> Vec<String> {
    all.iter().flat_map(|sent| sent.differences(program)).collect()
}

/// Differences in the records of the name servers, which are queried at `at`, an address of this
/// network alone.
pub(crate) fn of_servers(program: &Path, at: Ipv4Addr) -> Vec<String> {
    let ports = json!([{"name": "dns", "protocol": "UDP", "port": 53}]);
    let dns = json!({"type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "externalIPs": ["192.0.2.53"], "ports": ports});
    let peers = json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "ports": ports});
    let services = ["kube-dns", "peers"].map(|name| cluster::pod_slice("t1", name, &at.to_string(), &ports));
    let none = json!({});
    let named = [
        cluster::namespace("t1", &none),
        cluster::service("t1", "kube-dns", &none, dns),
        cluster::service("t1", "peers", &none, peers),
    ];
    let mut found = Vec::new();
    for objects in [Vec::new(), [&named[..], &services].concat()] {
        let api = ScriptedCluster::start(objects, false);
        let text = format!(
            ".:{} {{\ntransfer {{\nto *\n}}\nkubernetes cluster.local {{\nendpoint {}\n}}\nk8s_external example.org {{\nheadless\n}}\n}}\n",
            port(),
            api.api.url()
        );
        let all = || {
            ZONES.map(|zone| {
                let server = (at, port()).into();
                eventually("a zone that is known", PATIENCE, || transfer(server, None, zone, None).ok())
            })
        };
        // In sequence: both listen on all addresses.
        let coredns = CoreDns::start(program, &text);
        let theirs = all();
        drop(coredns);
        let server = Server::start(&text);
        let ours = all();
        drop(server);
        for (zone, (theirs, ours)) in ZONES.into_iter().zip(theirs.iter().zip(&ours)) {
            let has_address = |record: &Record| record.data == at.to_string();
            assert!(ours.iter().any(has_address) || zone == OUTSIDE, "{ours:?}");
            found.extend(
                compare(theirs, ours, zone, &["t1".to_owned()])
                    .into_iter()
                    .map(|difference| format!("servers, {zone}: {difference}")),
            );
        }
    }
    found
}

impl Sent {
    fn differences(&self, program: &Path) -> Vec<String> {
        let api = ScriptedCluster::start(self.objects.iter().cloned().map(with_type), false);
        let (directory, authority) = (tempdir(), Authority::new());
        authority.certify(directory.path(), "dns.example");
        let client = authority.client("dns.example", None);
        let block = |ip: Ipv4Addr, key: &str, more: &str| {
            let Self { of_cluster, from_outside, .. } = self;
            format!(
                "{key} {{\nbind {ip}\n{more}\ntransfer {{\nto *\n}}\n\
                 kubernetes cluster.local clusterset.local in-addr.arpa {{\nendpoint {}\n{of_cluster}\n}}\n\
                 k8s_external example.org {{\n{from_outside}\n}}\n}}\n",
                api.api.url()
            )
        };
        let (theirs, ours) = (fresh_ip(), fresh_ip());
        let tls = format!("tls {0}/cert.pem {0}/key.pem", directory.path().display());
        let plain = format!(".:{}", port());
        let secret = format!("tls://.:{}", port() + 1);
        let _coredns = CoreDns::start(program, &block(theirs, &plain, ""));
        let _server = Server::start(&(block(ours, &plain, "") + &block(ours, &secret, &tls)));
        let at = |ip: Ipv4Addr, port: u16| SocketAddr::from((ip, port));
        let from =
            [(at(theirs, port()), None), (at(ours, port()), None), (at(ours, port() + 1), Some(&client))];
        let mut found = Vec::new();
        for zone in ["cluster.local.", "clusterset.local.", OUTSIDE] {
            let whole = from.map(|(server, tls)| {
                eventually("a zone that is known", PATIENCE, || transfer(server, tls, zone, None).ok())
            });
            let [serials @ .., secret] = [0, 1, 2].map(|n| serial(&whole[n]));
            let mut report = |what: &str, text: String| {
                found.push(format!("[{}] {zone} {what}: {text}", self.name.replace('\n', "; ")));
            };
            let [theirs, ours, over_tls] = whole;
            if records(&ours) != records(&over_tls) || serials[1] != secret {
                report("over TLS", format!("{:?} and {:?}", records(&ours), records(&over_tls)));
            }
            for difference in compare(&theirs, &ours, zone, &self.shown()) {
                report("AXFR", difference);
            }
            for (server, serial) in [(&from[0], serials[0]), (&from[1], serials[1]), (&from[2], serials[1])] {
                let of = |has| transfer(server.0, server.1, zone, Some(has)).map(|sent| sent.len());
                let whole = if server.0.ip() == from[0].0.ip() { theirs.len() } else { ours.len() };
                // CoreDNS's serial of a `k8s_external` zone is 0 until the first change, and it
                // answers IXFR with serial 0 like AXFR.
                let expected = if serial == 0 { (Ok(whole), Ok(1)) } else { (Ok(1), Ok(whole)) };
                let sent = (of(serial), of(serial.wrapping_sub(1)));
                if sent != expected {
                    report("IXFR", format!("{}: {sent:?} and not {expected:?}", server.0));
                }
            }
            // A client with a newer serial receives the SOA alone from localdns; CoreDNS does the
            // same for `k8s_external` only.
            let newer = transfer(from[1].0, None, zone, Some(serials[1].wrapping_add(1_000)));
            if newer.as_ref().map(Vec::len) != Ok(1) {
                report("IXFR", format!("with a newer serial: {newer:?}"));
            }
        }
        // Not transferred: a subdomain, a reverse zone (CoreDNS transfers it), another zone, and
        // anything over UDP.
        for zone in ["in-addr.arpa.", "svc.cluster.local.", "example.net."] {
            let sent = transfer(from[1].0, None, zone, None);
            if sent != Err(5) {
                found.push(format!("[{}] {zone}: {sent:?}", self.name));
            }
        }
        found
    }
}

impl Sent {
    /// The namespaces in the zone.
    fn shown(&self) -> Vec<String> {
        let names = self.objects.iter().filter(|(path, _)| *path == NAMESPACES);
        let names = names.filter_map(|(_, object)| object["metadata"]["name"].as_str());
        let only = self.of_cluster.lines().find_map(|line| line.strip_prefix("namespaces "));
        names.filter(|name| only.is_none_or(|only| only == *name)).map(str::to_owned).collect()
    }
}

/// A real API sets the type of a service by default.
fn with_type((path, mut object): Object) -> Object {
    if path == SERVICES && object["spec"]["type"] == Value::Null {
        object["spec"]["type"] = json!("ClusterIP");
    }
    (path, object)
}

/// All records of an AXFR, or of an IXFR with serial `has`; else the rcode.
pub(crate) fn transfer(
    server: SocketAddr,
    tls: Option<&TlsClient>,
    zone: &str,
    has: Option<u32>,
) -> Result<Vec<Record>, u16> {
    let connection = match tls {
        Some(client) => Connection::open_tls(server, client, PATIENCE),
        None => Connection::open(server, PATIENCE),
    };
    let mut connection = connection.unwrap_or_else(|error| panic!("{server}: {error:#}"));
    let mut query = Ask::new(zone, if has.is_some() { "IXFR" } else { "AXFR" }).bytes();
    if let Some(has) = has {
        // Only the serial of the client's SOA matters; its names are the root.
        query[9] = 1;
        query.extend_from_slice(&[0xc0, 12, 0, 6, 0, 1, 0, 0, 0, 0, 0, 22, 0, 0]);
        query.extend([has, 0, 0, 0, 0].map(u32::to_be_bytes).as_flattened());
    }
    connection.send(&query).expect("it reads");
    let mut sent: Vec<Record> = Vec::new();
    loop {
        let message: Message =
            connection.message().unwrap_or_else(|error| panic!("{server} {zone}: {error:#}"));
        if message.rcode() != 0 {
            return Err(message.rcode());
        }
        sent.extend(message.answers);
        let is_soa = |record: Option<&Record>| record.is_some_and(|record| record.rtype == SOA);
        assert!(is_soa(sent.first()), "{server} {zone}: {sent:?}");
        if is_soa(sent.last()) {
            return Ok(sent);
        }
    }
}

fn serial(sent: &[Record]) -> u32 {
    let serial = sent.first().and_then(|soa| soa.data.split(' ').nth(2));
    serial.and_then(|serial| serial.parse().ok()).expect("a transfer begins with an SOA record")
}

/// The number of occurrences of each record, without the serial.
pub(crate) fn records(sent: &[Record]) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for record in sent {
        *all.entry(words(record)).or_default() += 1;
    }
    all
}

fn words(record: &Record) -> String {
    let mut data: Vec<&str> = record.data.split(' ').collect();
    if record.rtype == SOA {
        data[2] = "SERIAL";
    }
    let (rtype, data) = (rtype_name(record.rtype), data.join(" "));
    format!("{} {} {rtype} {data}", record.name, record.ttl).to_ascii_lowercase()
}

/// The differences that are not in docs/differences.md. `shown` are the zone's namespaces.
fn compare(theirs: &[Record], ours: &[Record], zone: &str, shown: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    // No record occurs twice, except the SOA at both ends.
    for (record, count) in records(ours) {
        if count != if record.contains(" soa ") { 2 } else { 1 } {
            found.push(format!("{count} times {record}"));
        }
    }
    let of = |records: &[Record], leaves_out: &dyn Fn(&Record) -> bool| {
        let kept = records.iter().filter(|record| !leaves_out(record));
        kept.map(|record| plain(record, records, zone)).collect::<BTreeSet<_>>()
    };
    let their_words = of(theirs, &|record| is_theirs_alone(record, ours, zone, shown));
    let our_words = of(ours, &|record| is_ours_alone(record, theirs, zone));
    // A record excluded on one side may still be on the other.
    let all = |records: &[Record]| of(records, &|_| false);
    let (all_theirs, all_ours) = (all(theirs), all(ours));
    found.extend(their_words.difference(&all_ours).map(|record| format!("CoreDNS alone sends {record}")));
    found.extend(our_words.difference(&all_theirs).map(|record| format!("we alone send {record}")));
    found
}

/// Returns a record as text, without the cluster's label in endpoints of imports; a name server's
/// address with TTL 0 gets the TTL of its NS record.
fn plain(record: &Record, sent: &[Record], zone: &str) -> String {
    let ns = sent.iter().find(|ns| ns.rtype == NS && ns.data == record.name);
    let ttl = ns.filter(|_| record.ttl == 0).map_or(record.ttl, |ns| ns.ttl);
    let mut text = words(&Record { ttl, ..record.clone() });
    if zone.starts_with("clusterset.") {
        for cluster in ["one", "two", "six"] {
            text = text.replace(&format!(".{cluster}.hl."), ".hl.");
        }
    }
    text
}

/// Whether CoreDNS alone sends a record, as described in docs/differences.md.
fn is_theirs_alone(record: &Record, ours: &[Record], zone: &str, shown: &[String]) -> bool {
    let of_owner = |rtypes: &[u16]| {
        ours.iter().any(|own| own.name.eq_ignore_ascii_case(&record.name) && rtypes.contains(&own.rtype))
    };
    let below = record.name.strip_suffix(zone).unwrap_or_default().trim_end_matches('.');
    let below = below.strip_suffix(".svc").unwrap_or(below);
    let namespace = below.rsplit('.').next().unwrap_or_default();
    let is_outside = zone == OUTSIDE;
    match record.rtype {
        // Services without ports, and ports without names.
        SRV if record.data.split(' ').nth(2) == Some("65535") || record.name.starts_with("_.") => true,
        _ if below.contains('.') && !below.ends_with(".dns") && !shown.iter().any(|own| own == namespace) => {
            true
        }
        // An endpoint in two slices, with the weight of the other slice.
        SRV if !is_outside && has_but_for_weight(ours, record) => true,
        // For a port's name CoreDNS removes two labels of the host's name.
        SRV if is_outside && record.name.starts_with('_') => ours.iter().any(|own| {
            let rest = own.data.splitn(3, '.').nth(2);
            let numbers = own.data.rsplit_once(' ').map(|(numbers, _)| numbers);
            let cut = numbers.zip(rest).map(|(numbers, rest)| format!("{numbers} {rest}"));
            own.name.eq_ignore_ascii_case(&record.name) && cut.as_deref() == Some(&record.data[..])
        }),
        SRV => is_outside && of_owner(&[CNAME]),
        CNAME => is_outside && of_owner(&[A, AAAA, CNAME]),
        _ => false,
    }
}

/// Whether localdns sends this record with another weight. A record that only localdns sends is
/// still reported as a difference.
fn has_but_for_weight(ours: &[Record], record: &Record) -> bool {
    let parts = |record: &Record| {
        let parts: Vec<String> = record.data.split(' ').map(str::to_ascii_lowercase).collect();
        (parts.first().cloned(), parts.get(2..).map(<[String]>::to_vec))
    };
    ours.iter().any(|own| {
        let is_same = own.rtype == SRV && own.name.eq_ignore_ascii_case(&record.name);
        is_same && own.data != record.data && parts(own) == parts(record)
    })
}

/// Whether localdns alone sends a record, as described in docs/differences.md: CoreDNS sends one
/// SRV record for each name.
fn is_ours_alone(record: &Record, theirs: &[Record], zone: &str) -> bool {
    let is_there = |other: &Record| other.rtype == SRV && other.name.eq_ignore_ascii_case(&record.name);
    zone == OUTSIDE && record.rtype == SRV && theirs.iter().any(is_there)
}

const A: u16 = 1;
const NS: u16 = 2;
const CNAME: u16 = 5;
const AAAA: u16 = 28;
const SRV: u16 = 33;
/// The zone of `k8s_external`.
const OUTSIDE: &str = "example.org.";
const ZONES: [&str; 2] = ["cluster.local.", OUTSIDE];
const SOA: u16 = 6;
const PATIENCE: Duration = Duration::from_secs(30);
