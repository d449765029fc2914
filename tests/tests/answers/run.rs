//! Runs both servers with one Corefile, sends the queries twice, and returns each difference with
//! its query.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tests::kube::{Object, PODS, SERVICES, ScriptedCluster};
use tests::{Authority, Message, Record, Server, Upstream, ask, eventually, fresh_ip, port, tempdir};

use crate::allowed::{self, UseCounts};
use crate::cluster;
use crate::coredns::CoreDns;
use crate::differ::{Both, Difference, compare};
use crate::exchange::{Query, Seen, ask_both};
use crate::metric_differences;
use crate::metrics;
use crate::{zone, zone_files};

/// A Corefile with placeholders: `@API@` is an API, `@TLSAPI@` one that requires a client
/// certificate, `@IP@` and `@IP2@` are listen addresses, `@UP@` and `@UP2@` upstreams, `@PORT@` and
/// `@TLSPORT@` ports, and `@DIR@` is a directory with hosts files and a certificate. Queries use
/// TLS if their server block does.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// A description.
    pub(crate) name: String,
    /// The Corefile; it differs between the servers by the listen addresses alone.
    pub(crate) text: String,
    /// The queries.
    pub(crate) queries: Vec<Query>,
    /// The port of the metrics on the first listen address.
    pub(crate) metrics: Option<u16>,
    /// The objects of the APIs.
    pub(crate) objects: Vec<Object>,
    /// Objects added to `@API@` after the first pass.
    pub(crate) later: Vec<Object>,
}

/// One query and both replies.
pub(crate) struct Case<'r> {
    /// The Corefile.
    pub(crate) setup: &'r Setup,
    /// The query.
    pub(crate) query: &'r Query,
    /// The message in wire format.
    pub(crate) message: &'r [u8],
    /// Both replies.
    pub(crate) both: &'r Both,
}

/// Runs a Corefile and returns the unlisted differences, one paragraph each.
pub(crate) fn run(program: &Path, setup: &Setup, counts: &mut UseCounts) -> Vec<String> {
    let directory = tempdir();
    std::fs::write(directory.path().join("hosts"), HOSTS).expect("the test's directory is writable");
    let upstreams = [Upstream::start(fresh_ip(), zone::answer), Upstream::start(fresh_ip(), zone::answer)];
    // `nameserver` lines have no port, so the upstream uses the default one.
    let list = format!("nameserver {}\n", upstreams[0].address().ip());
    std::fs::write(directory.path().join("resolv.conf"), list).expect("the test's directory is writable");
    std::fs::write(directory.path().join("weights"), WEIGHTS).expect("the test's directory is writable");
    zone_files::write(directory.path());
    let authority = Authority::new();
    authority.certify(directory.path(), "dns.example");
    authority.write(directory.path());
    let tls = setup.text.contains("tls://").then(|| authority.client("dns.example", None));
    let ips = [[fresh_ip(), fresh_ip()], [fresh_ip(), fresh_ip()]];
    for (name, list) in [("search.conf", cluster::SEARCH), ("first.conf", cluster::SEARCH_FIRST)] {
        std::fs::write(directory.path().join(name), list).expect("the test's directory is writable");
    }
    let api = ScriptedCluster::start(setup.objects.clone(), false);
    let secret = setup.text.contains("@TLSAPI@");
    let secret = secret.then(|| ScriptedCluster::start_tls(setup.objects.clone(), &authority));
    let text = |ips: [Ipv4Addr; 2]| {
        let secret = secret.as_ref().map(|secret| secret.api.url()).unwrap_or_default();
        setup
            .text
            .replace("@TLSAPI@", &secret)
            .replace("@API@", &api.api.url())
            .replace("@IP@", &ips[0].to_string())
            .replace("@IP2@", &ips[1].to_string())
            .replace("@PORT@", &port().to_string())
            .replace("@TLSPORT@", &(port() + 1).to_string())
            .replace("@UP@", &upstreams[0].word())
            .replace("@UP2@", &upstreams[1].word())
            .replace("@DIR@", &directory.path().to_string_lossy())
    };
    let coredns = CoreDns::start(program, &text(ips[0]));
    let ours = Server::start(&text(ips[1]));
    let mut unlisted = Vec::new();
    let mut clean = vec![true; setup.queries.len()];
    let mut before = None;
    // The third pass, which compares metrics, only repeats queries that both servers answer and
    // count alike.
    for pass in 1..=3 {
        if pass == 2 {
            add(&api, &setup.later, ips);
        }
        if pass == 3 {
            before = setup.metrics.map(|port| metrics::settled(ips, port));
        }
        for (query, clean) in setup.queries.iter().zip(&mut clean).filter(|(_, clean)| pass < 3 || **clean) {
            let about = query.block.as_deref().unwrap_or(&setup.text);
            let at = port() + u16::from(about.contains("@TLSPORT@"));
            let servers = [0, 1].map(|n| SocketAddr::from((ips[n][query.listener], at)));
            let seen = ask_both(query, servers, tls.as_ref().filter(|_| about.contains("tls://")));
            counts.queries += 1;
            *clean &= judge(setup, query, pass, &seen, counts, &mut unlisted);
        }
    }
    if let (Some(before), Some(port)) = (before, setup.metrics) {
        for moved in metrics::moved(&before, ips, port, |_| true) {
            match metric_differences::find(setup, &moved) {
                Some(name) => counts.count(name),
                None => unlisted.push(format!(
                    "[{}] {:?} (time 3): metrics\n    CoreDNS:  {}\n    localdns: {}\n    query: all",
                    setup.name.replace('\n', "; "),
                    moved.series,
                    moved.theirs,
                    moved.ours
                )),
            }
        }
    }
    drop((coredns, ours));
    unlisted
}

/// Adds objects, and waits until both servers answer each new service and each pod that is not
/// being deleted; earlier events are then received, too.
fn add(api: &ScriptedCluster, objects: &[Object], ips: [[Ipv4Addr; 2]; 2]) {
    for (path, object) in objects {
        // A pod being deleted exists already.
        let event = if is_to_go(object) { "MODIFIED" } else { "ADDED" };
        api.put(path, event, object.clone());
    }
    for (path, object) in objects {
        let [name, namespace] =
            ["name", "namespace"].map(|key| object["metadata"][key].as_str().expect("a name"));
        let name = match *path {
            SERVICES => format!("{name}.{namespace}.svc.cluster.local"),
            PODS if !is_to_go(object) => {
                let address = object["status"]["podIP"].as_str().expect("it has one");
                format!("{}.{namespace}.pod.cluster.local", address.replace('.', "-"))
            }
            _ => continue,
        };
        for [ip, _] in ips {
            eventually(&format!("{name} at {ip}"), PATIENCE, || {
                (!ask((ip, port()).into(), &name, "A").short().is_empty()).then_some(())
            });
        }
    }
}

fn is_to_go(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Compares the replies to a query; returns whether both servers should count it alike.
fn judge(
    setup: &Setup,
    query: &Query,
    pass: usize,
    seen: &[Seen; 2],
    counts: &mut UseCounts,
    unlisted: &mut Vec<String>,
) -> bool {
    let mut counted_alike = true;
    for message in &query.messages {
        let reply =
            |seen: &Seen| seen.replies.iter().find(|reply| reply.get(..2) == message.get(..2)).cloned();
        let (theirs, ours) = (reply(&seen[0]), reply(&seen[1]));
        let (both, differences) = compare(theirs.as_deref(), ours.as_deref(), [seen[0].port, seen[1].port]);
        let case = Case { setup, query, message, both: &both };
        counted_alike &= metric_differences::is_steady(&case);
        for difference in differences {
            if is_chance(&case, &difference) {
                continue;
            }
            match allowed::find(&case, &difference) {
                Some(allowed) => {
                    counts.count(allowed.name);
                    counted_alike &= allowed.counted_alike;
                }
                None => unlisted.push(describe(&case, pass, &difference)),
            }
        }
    }
    counted_alike
}

/// Whether the difference is only in the order, which is random for `loadbalance` (except a
/// preferred address) and undefined for a cluster's objects.
fn is_chance(case: &Case<'_>, difference: &Difference) -> bool {
    let text = case.text();
    let order = |message: &Message| {
        let drawn = |record: &Record| {
            let preferred = text.contains(&format!("prefer {PREFERRED}")) && record.data == PREFERRED;
            matches!(record.rtype, 1 | 15 | 28) && !preferred
        };
        let sections = [&message.answers, &message.authorities, &message.additionals];
        sections.map(|records| {
            let data = |record: &Record| {
                if drawn(record) { String::new() } else { record.data.to_ascii_lowercase() }
            };
            records.iter().map(|record| (record.rtype, data(record))).collect::<Vec<_>>()
        })
    };
    // Neither server guarantees an order of a cluster's objects.
    if text.contains("kubernetes ") && difference.what.ends_with(" order") {
        return true;
    }
    text.contains("loadbalance")
        && difference.what.ends_with(" order")
        && order(allowed::ours(case)) == order(allowed::theirs(case))
}

fn describe(case: &Case<'_>, pass: usize, difference: &Difference) -> String {
    let mut text = format!(
        "[{}] {:?} (time {pass}): {}\n",
        case.setup.name.replace('\n', "; "),
        case.query.what,
        difference.what
    );
    let hex: String = case.message.iter().take(90).map(|octet| format!("{octet:02x}")).collect();
    let _ = write!(
        text,
        "    CoreDNS:  {}\n    localdns: {}\n    query: {hex}",
        difference.theirs, difference.ours
    );
    text
}

/// The timeout for added objects.
const PATIENCE: Duration = Duration::from_secs(30);
/// The address in the rules of `prefer`.
const PREFERRED: &str = "198.51.100.2";

const WEIGHTS: &str = "host.example
203.0.113.10 3
203.0.113.11 1

a.x
198.51.100.1 2
198.51.100.2 255
";

const HOSTS: &str = "203.0.113.10 host.example Upper.Example
203.0.113.11 host.example
2001:db8::10 host.example
203.0.113.12 *.stars.example
203.0.113.10 alias.example
";
