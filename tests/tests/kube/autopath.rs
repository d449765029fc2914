//! `autopath @kubernetes` row by row, against the real API: clients are pods by their addresses in
//! the API, each in its own network.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use serde_json::json;
use tests::kube::Cluster;
use tests::{Ask, Metrics, Server, Upstream, eventually, isolated_for, privileged, run, skip, wire, within};

use super::lab::{PATIENCE, delete, namespace, pod, pods, service, set_status, spec, upstream};

/// The clients' networks: a pod of `t1`, a pod on the node's network, and an address that pods
/// reuse.
const POD: &str = "pod";
const HOST: &str = "host";
const REUSED: &str = "reused";

const FOUND: &str = "NOERROR example.net.t1.svc.cluster.local. CNAME example.net., example.net. A 192.0.2.80";
const NOT_FOUND: &str = "NXDOMAIN cluster.local.";
/// NOERROR without records.
const EMPTY: &str = "NOERROR ";
/// The number of queries sent.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Every row is answered to pods.
#[test]
fn autopath_rows_with_the_real_api() {
    isolated_for(Duration::from_secs(300), || {
        const TEST: &str = "autopath_rows_with_the_real_api";
        if !privileged() {
            return skip(TEST, "networks can be made by root alone");
        }
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.53\n").expect("a file of its own");
        [(POD, 6), (HOST, 7), (REUSED, 8)].into_iter().for_each(|(name, net)| wire(name, net));
        let Some(cluster) = Cluster::up(TEST) else { return };
        for (name, address) in [("t1", "10.96.0.101"), ("t2", "10.96.0.102")] {
            namespace(&cluster, name);
            service(&cluster, &format!("{name}/web"), spec(&[address], "http:80/TCP"));
        }
        pod(&cluster, "t1/client", false, &[ip("10.6.0.2"), ip("fd06::2")]);
        pod(&cluster, "t1/of-host", true, &[ip("10.7.0.2")]);
        let upstream = upstream();
        let _server = Server::start(&corefile(&cluster, &upstream));

        one_query_at_the_upstream_is_enough(&upstream);
        names_are_completed_for_a_pod();
        properties_are_obeyed();
        others_are_served_as_without();
        wins_are_counted();
        reused_address_keeps_its_namespace(&cluster);
        let asked = upstream.asked();
        let leaked = asked.iter().find(|asked| asked.name.ends_with("cluster.local."));
        assert!(leaked.is_none(), "{leaked:?}");
    });
}

/// Server blocks on three ports: like CoreDNS, with properties, and with an ACL that refuses names.
fn corefile(cluster: &Cluster, upstream: &Upstream) -> String {
    let kubernetes = format!(
        "kubernetes cluster.local {{\nkubeconfig {}\nstartup_timeout 60s\npods verified\n}}",
        cluster.path("dns.kubeconfig").display()
    );
    let block = |at: SocketAddr, directives: &str| {
        format!(
            ".:{} {{\nbind {} fd06::1\nprometheus 127.0.0.1:9153\n{directives}\ncache 30\n{kubernetes}\nforward . {}\n}}\n",
            at.port(),
            at.ip(),
            upstream.word()
        )
    };
    [
        block(at(), "autopath @kubernetes"),
        block(with_properties(), "autopath @kubernetes {\nndots 1\nresponse noerror\n}"),
        block(with_acl(), "autopath @kubernetes\nacl example.net {\nblock\n}"),
    ]
    .concat()
}

fn at() -> SocketAddr {
    ([10, 6, 0, 1], 53).into()
}

fn with_properties() -> SocketAddr {
    (at().ip(), 5301).into()
}

fn with_acl() -> SocketAddr {
    (at().ip(), 5302).into()
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The reply to a client: the answers in order, or the zone of an NXDOMAIN. [`Ask`] checks that the
/// question is repeated.
fn ask_from(client: &'static str, at: SocketAddr, name: &str, rtype: &str) -> String {
    let ask = Ask::new(name, rtype);
    ASKED.fetch_add(1, Relaxed);
    let reply = within(client, move || ask.of(at)).join().expect("a reply arrives");
    let record = |rr: &tests::Record| format!("{} {} {}", rr.name, tests::rtype_name(rr.rtype), rr.data);
    let mut rows: Vec<String> = reply.answers.iter().map(record).collect();
    if reply.status() == "NXDOMAIN" {
        rows.extend(reply.authorities.iter().map(|soa| soa.name.clone()));
    }
    format!("{} {}", reply.status(), rows.join(", "))
}

fn check(client: &'static str, at: SocketAddr, rows: &[(&str, &str, &str)]) {
    for (name, rtype, expected) in rows {
        assert_eq!(ask_from(client, at, name, rtype), *expected, "{name} {rtype} of {client}");
    }
}

fn one_query_at_the_upstream_is_enough(upstream: &Upstream) {
    assert_eq!(ask_from(POD, at(), "example.net.t1.svc.cluster.local", "A"), FOUND);
    let asked: Vec<_> = upstream.asked().into_iter().map(|asked| (asked.name, asked.rtype)).collect();
    assert_eq!(asked, [("example.net.".to_owned(), 1)], "one query of a client is one there");
}

fn names_are_completed_for_a_pod() {
    let found = |name: &str| {
        format!("NOERROR {name}. CNAME web.t2.svc.cluster.local., web.t2.svc.cluster.local. A 10.96.0.102")
    };
    let own = "NOERROR web.t1.svc.cluster.local. A 10.96.0.101";
    // By the pod's IPv4 and IPv6 address.
    for at in [at(), (ip("fd06::1"), 53).into()] {
        for name in [
            "web.t2.t1.svc.cluster.local",
            "web.t2.svc.t1.svc.cluster.local",
            "web.t2.svc.cluster.local.t1.svc.cluster.local",
            "WEB.T2.T1.svc.cluster.local",
        ] {
            assert_eq!(ask_from(POD, at, name, "A").to_lowercase(), found(name).to_lowercase(), "{name}");
        }
        check(
            POD,
            at,
            &[
                ("web.t1.svc.cluster.local", "A", own),
                ("example.net.t1.svc.cluster.local", "A", FOUND),
                // The first candidate that exists is the answer, also without an address of this
                // family.
                ("example.net.t1.svc.cluster.local", "AAAA", EMPTY),
                (
                    "single.t1.svc.cluster.local",
                    "A",
                    "NOERROR single.t1.svc.cluster.local. CNAME single., single. A 192.0.2.81",
                ),
                // If no candidate exists, the answer is that of the query name.
                ("nowhere.t1.svc.cluster.local", "A", NOT_FOUND),
                ("no.where.t1.svc.cluster.local", "AAAA", NOT_FOUND),
                // The list's first domain itself, to which no name was added.
                ("t1.svc.cluster.local", "A", EMPTY),
                // The search list of another namespace.
                ("example.net.t2.svc.cluster.local", "A", NOT_FOUND),
                ("web.t1.t2.svc.cluster.local", "A", NOT_FOUND),
            ],
        );
    }
}

fn properties_are_obeyed() {
    check(
        POD,
        with_properties(),
        &[
            // At least one dot, and no denials.
            ("single.t1.svc.cluster.local", "A", NOT_FOUND),
            ("example.net.t1.svc.cluster.local", "A", FOUND),
            ("no.where.t1.svc.cluster.local", "A", EMPTY),
            ("no.where.t1.svc.cluster.local", "AAAA", EMPTY),
        ],
    );
    check(
        POD,
        with_acl(),
        &[
            ("example.net.t1.svc.cluster.local", "A", "REFUSED "),
            (
                "single.t1.svc.cluster.local",
                "A",
                "NOERROR single.t1.svc.cluster.local. CNAME single., single. A 192.0.2.81",
            ),
        ],
    );
}

/// Clients at an address shared by many pods, or of no pod, get no search list.
fn others_are_served_as_without() {
    for client in [HOST, REUSED] {
        check(
            client,
            at(),
            &[
                ("example.net.t1.svc.cluster.local", "A", NOT_FOUND),
                ("example.net.t2.svc.cluster.local", "A", NOT_FOUND),
                ("web.t2.t1.svc.cluster.local", "A", NOT_FOUND),
                ("web.t1.svc.cluster.local", "A", "NOERROR web.t1.svc.cluster.local. A 10.96.0.101"),
                ("example.net", "A", "NOERROR example.net. A 192.0.2.80"),
            ],
        );
    }
}

/// Counts each query answered by the search list, by its first name too, and no others.
fn wins_are_counted() {
    // A query is counted only after its reply is sent.
    let wins = || {
        let metrics = Metrics::after_queries(([127, 0, 0, 1], 9153).into(), ASKED.load(Relaxed));
        metrics.count("coredns_autopath_success_total", &[]) as usize
    };
    for (client, name, rtype, more) in [
        (POD, "example.net.t1.svc.cluster.local", "A", 1),
        (POD, "example.net.t1.svc.cluster.local", "AAAA", 1),
        (POD, "web.t1.svc.cluster.local", "A", 1),
        (POD, "nowhere.t1.svc.cluster.local", "A", 0),
        (POD, "example.net", "A", 0),
        (HOST, "example.net.t1.svc.cluster.local", "A", 0),
    ] {
        let before = wins();
        ask_from(client, at(), name, rtype);
        assert_eq!(wins() - before, more, "{name} {rtype} of {client}");
    }
}

/// Pods reuse one address, in every order of events that an API may send.
fn reused_address_keeps_its_namespace(cluster: &Cluster) {
    let lists = || {
        ["t1", "t2"].map(|of| {
            ask_from(REUSED, at(), &format!("example.net.{of}.svc.cluster.local"), "A") != NOT_FOUND
        })
    };
    let until = |what: &str, wanted: [bool; 2]| {
        eventually(what, PATIENCE, || (lists() == wanted).then_some(()));
    };
    let known_in = |namespace: &str| {
        let name = format!("10-8-0-2.{namespace}.pod.cluster.local");
        eventually("it is known", PATIENCE, || {
            ask_from(POD, at(), &name, "A").ends_with("10.8.0.2").then_some(())
        });
    };
    let address = [ip("10.8.0.2")];
    pod(cluster, "t1/first", false, &address);
    until("its pod is known", [true, false]);
    // The next pod has the address before the first is deleted.
    pod(cluster, "t2/second", false, &address);
    known_in("t2");
    assert_eq!(lists(), [false, false], "two have it");
    delete(cluster, &format!("{}/first?gracePeriodSeconds=0", pods("t1")));
    until("the second has it alone", [false, true]);
    // A pod that has ended still exists, but no longer owns its address.
    set_status(cluster, "t2/second", &json!({"phase": "Succeeded"}));
    until("the second has ended", [false, false]);
    pod(cluster, "t1/third", false, &address);
    until("the third has it", [true, false]);
    // A pod that is being deleted gets no search list.
    delete(cluster, &format!("{}/third", pods("t1")));
    until("the third is about to go", [false, false]);
}
