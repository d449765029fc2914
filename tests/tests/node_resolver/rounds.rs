//! The queries of one round, and the lines written for the answers.

use std::collections::BTreeSet;
use std::time::Duration;

use tests::{Action, Transport, assert_contains, now, output, steadily};

use super::{Node, OTHERS, PATIENCE, line, text, zone};

/// Lines are those of the script, in both families.
#[test]
fn lines_match_the_scripts() {
    let node = Node::new(
        OTHERS,
        zone(
            "web.t1.svc.cluster.local. 5 IN A 10.96.0.100
             web.t1.svc.cluster.local. 5 IN AAAA fd00:96::64
             image-registry.openshift-image-registry.svc.cluster.local. 5 IN A 172.30.1.1",
        ),
    );
    let log = node.once("web.t1.svc");
    let registry = line("172.30.1.1", "image-registry.openshift-image-registry.svc");
    let want = format!(
        "{OTHERS}{registry}{}{}",
        line("10.96.0.100", "web.t1.svc"),
        line("fd00:96::64", "web.t1.svc")
    );
    assert_eq!(node.text(), want);
    assert_contains!(log, "web.t1.svc is 10.96.0.100 fd00:96::64\n");
}

#[test]
fn configured_domain_and_marker() {
    let node = Node::new(OTHERS, zone("web.t1.svc.k8s.example. 5 IN A 10.96.0.100"));
    let mut command = node.command("web.t1.svc", &["-once", "-marker", "mine"]);
    command.env("CLUSTER_DOMAIN", "k8s.example.");
    super::succeeded(&output(command, PATIENCE));
    assert_eq!(node.text(), format!("{OTHERS}10.96.0.100 web.t1.svc web.t1.svc.k8s.example # mine\n"));
}

/// Commas, blanks and newlines; nothing else is queried.
#[test]
fn separators_of_service_lists() {
    let node = Node::new(OTHERS, zone(""));
    node.once("a.n.svc,,b.n.svc\n c.n.svc");
    let asked: BTreeSet<(String, u16)> =
        node.upstream.asked().into_iter().map(|asked| (asked.name, asked.rtype)).collect();
    let names = ["a.n.svc", "b.n.svc", "c.n.svc", "image-registry.openshift-image-registry.svc"];
    let want = names.iter().flat_map(|name| [1, 28].map(|rtype| (format!("{name}.cluster.local."), rtype)));
    assert_eq!(asked, want.collect());
}

/// An invalid Service refuses the list before anything is queried or written.
#[test]
fn invalid_service_refuses_the_list() {
    let node = Node::new(OTHERS, zone("a.n.svc.cluster.local. 5 IN A 10.96.0.1"));
    let many: String = (0..21).map(|n| format!("s{n}.n.svc,")).collect();
    for (name, value, words) in [
        ("SERVICES", many.as_str(), &["SERVICES:1:", "\"s20.n.svc\"", "20 services"][..]),
        ("SERVICES", "a.n.svc A_b", &["SERVICES:1:9", "\"A_b\"", "name.namespace.svc"]),
        ("SERVICES", "a.n.svc\nx;rm", &["SERVICES:2:1", "\"x;rm\"", "name.namespace.svc"]),
        ("SERVICES", "a.n.svc\u{1b}[2J", &["SERVICES:1:1", "\\u{1b}"]),
        ("NAMESERVER", "", &["NAMESERVER is not set", "10.96.0.10"]),
        ("NAMESERVER", "dns.example", &["NAMESERVER", "\"dns.example\"", "IP address"]),
        ("NAMESERVER", "tls://dns.example", &["NAMESERVER", "\"tls://dns.example\"", "TLS_SERVERNAME"]),
        (
            "TLS_CA",
            "/nowhere/ca.pem",
            &["TLS_CA needs a server of tls://, https:// or quic:// in NAMESERVER"],
        ),
        ("CLUSTER_DOMAIN", "x;rm", &["CLUSTER_DOMAIN", "\"x;rm\"", "cluster.local"]),
        ("SERVICE_CIDRS", "10.96.0.0/33", &["SERVICE_CIDRS", "\"10.96.0.0/33\"", "10.96.0.0/12"]),
    ] {
        let mut command = node.command("a.n.svc", &["-once"]);
        command.env(name, value);
        let output = output(command, PATIENCE);
        assert_eq!(output.status.code(), Some(1), "{name}={value}");
        let log = text(&output.stderr);
        assert_eq!(log.lines().count(), 1, "{log}");
        for word in words {
            assert_contains!(log, word);
        }
    }
    assert_eq!((node.text().as_str(), node.upstream.total()), (OTHERS, 0));
}

/// The script's second bug: one answer made it rewrite all lines, and those of failed queries were
/// lost.
#[test]
fn partly_failed_round_keeps_lines() {
    let services = "answered.n.svc servfail.n.svc refused.n.svc silent.n.svc garbage.n.svc";
    let before = |asked: &tests::Asked| match asked.rtype {
        1 => Action::answer(&format!("{} 5 IN A 10.96.0.1", asked.name)),
        _ => Action::answer(&format!("{} 5 IN AAAA fd00::1", asked.name)),
    };
    let node = Node::new(OTHERS, before);
    node.once(services);
    assert_eq!(node.text().matches("10.96.0.1 ").count(), 6);
    node.upstream.answer_by(|asked| match asked.name.split('.').next() {
        Some("servfail") => Action::rcode(2),
        Some("refused") => Action::rcode(5),
        Some("silent") => Action::Silent,
        Some("garbage") => Action::Octets(vec![0xff; 40]),
        _ if asked.rtype == 1 => Action::answer(&format!("{} 5 IN A 10.96.0.2", asked.name)),
        _ => Action::nxdomain(super::SOA),
    });
    let log = node.once(services);
    let mut want = OTHERS.to_owned();
    for (service, addresses) in [
        ("answered.n.svc", &["10.96.0.2"][..]),
        ("garbage.n.svc", &["10.96.0.1", "fd00::1"]),
        ("image-registry.openshift-image-registry.svc", &["10.96.0.2"]),
        ("refused.n.svc", &["10.96.0.1", "fd00::1"]),
        ("servfail.n.svc", &["10.96.0.1", "fd00::1"]),
        ("silent.n.svc", &["10.96.0.1", "fd00::1"]),
    ] {
        want.extend(addresses.iter().map(|address| line(address, service)));
    }
    assert_eq!(node.text(), want);
    for (service, why) in [("servfail", "SERVFAIL"), ("refused", "REFUSED"), ("silent", "no reply")] {
        let warning =
            log.lines().find(|line| line.contains(&format!("{service}.n.svc: "))).unwrap_or_default();
        assert!(
            warning.contains("[WARNING]") && warning.to_lowercase().contains(&why.to_lowercase()),
            "{log}"
        );
    }
}

/// The script's third bug: without another name to resolve, it kept a deleted service's line.
#[test]
fn deleted_services_line_is_removed() {
    for denial in [Action::nxdomain(super::SOA), Action::Reply(tests::Says::nodata(super::SOA))] {
        let registry = "image-registry.openshift-image-registry.svc";
        let before = format!("{OTHERS}{}", line("172.30.1.1", registry));
        let node = Node::new(&before, move |_| denial.clone());
        let log = node.once("");
        assert_eq!(node.text(), OTHERS);
        assert_contains!(log, format!("{registry} removed"));
    }
}

#[test]
fn unlisted_services_lines_are_removed() {
    let node = Node::new(
        OTHERS,
        zone("a.n.svc.cluster.local. 5 IN A 10.96.0.1\nb.n.svc.cluster.local. 5 IN A 10.96.0.2"),
    );
    node.once("a.n.svc b.n.svc");
    node.once("b.n.svc");
    assert_eq!(node.text(), format!("{OTHERS}{}", line("10.96.0.2", "b.n.svc")));
}

/// The script's fourth bug: the target's name in the address column, and an outside address.
#[test]
fn external_name_is_a_warning() {
    let node = Node::new(
        &format!(
            "{OTHERS}www.example.com. ext.t1.svc ext.t1.svc.cluster.local # openshift-generated-node-resolver\n"
        ),
        zone("ext.t1.svc.cluster.local. 5 IN CNAME www.example.com.\nwww.example.com. 5 IN A 93.184.216.34"),
    );
    for _ in 0..2 {
        let log = node.once("ext.t1.svc");
        assert_eq!(node.text(), OTHERS);
        assert_contains!(log, "[WARNING] ext.t1.svc: is ignored: it is an alias");
    }
}

#[test]
fn headless_service_is_a_warning() {
    let script = || {
        zone(
            "hl.t1.svc.cluster.local. 5 IN A 172.17.0.254
             hl.t1.svc.cluster.local. 5 IN A 172.17.0.255
             hl.t1.svc.cluster.local. 5 IN AAAA fd00:17::1
             one.t1.svc.cluster.local. 5 IN A 172.17.0.7
             web.t1.svc.cluster.local. 5 IN A 10.96.0.100",
        )
    };
    let (web, one) = (line("10.96.0.100", "web.t1.svc"), line("172.17.0.7", "one.t1.svc"));
    // Without SERVICE_CIDRS a headless service with one endpoint is not recognised: the documented
    // limit.
    let node = Node::new(OTHERS, script());
    let log = node.once("hl.t1.svc one.t1.svc web.t1.svc");
    assert_eq!(node.text(), format!("{OTHERS}{one}{web}"));
    assert_contains!(log, "[WARNING] hl.t1.svc: is ignored: it has 2 addresses");
    let node = Node::new(&format!("{OTHERS}{one}"), script());
    let mut command = node.command("hl.t1.svc one.t1.svc web.t1.svc", &["-once"]);
    command.env("SERVICE_CIDRS", "10.96.0.0/12, fd00:96::/112");
    let log = super::succeeded(&output(command, PATIENCE));
    assert_eq!(node.text(), format!("{OTHERS}{web}"));
    assert_contains!(log, "[WARNING] one.t1.svc: is ignored: 172.17.0.7 is not a service address");
}

/// Loopback and link-local ones.
#[test]
fn local_addresses_are_left_out() {
    for records in [
        "web.t1.svc.cluster.local. 5 IN A 127.0.0.1",
        "web.t1.svc.cluster.local. 5 IN A 169.254.169.254",
        "web.t1.svc.cluster.local. 5 IN A 0.0.0.0",
        "web.t1.svc.cluster.local. 5 IN AAAA ::1",
        "web.t1.svc.cluster.local. 5 IN AAAA fe80::1",
        "web.t1.svc.cluster.local. 5 IN AAAA ::ffff:127.0.0.1",
    ] {
        let node = Node::new(OTHERS, zone(records));
        let log = node.once("web.t1.svc");
        assert_eq!(node.text(), OTHERS, "{records}");
        assert_contains!(log, "[WARNING] web.t1.svc: is ignored: ");
    }
}

#[test]
fn names_of_other_lines_stay() {
    for other in ["10.0.0.1 web.t1.svc\n", "10.0.0.1 x WEB.t1.svc.cluster.local\n"] {
        let others = format!("{other}{OTHERS}");
        let node = Node::new(&others, zone("web.t1.svc.cluster.local. 5 IN A 10.96.0.100"));
        let log = node.once("web.t1.svc");
        assert_eq!(node.text(), others);
        assert_contains!(log, "[WARNING] web.t1.svc: is ignored: line 1 of the hosts file");
    }
}

/// A round of twenty Services takes ten seconds at most, and no line is lost.
#[test]
fn dead_name_server_costs_ten_seconds() {
    steadily(|| {
        let services: String = (0..20).map(|n| format!("s{n}.n.svc ")).collect();
        let before: String = (0..20).map(|n| line(&format!("10.96.0.{n}"), &format!("s{n}.n.svc"))).collect();
        let before = format!("{OTHERS}{before}");
        let node = Node::new(&before, |_| Action::Silent);
        let started = now();
        node.once(&services);
        assert!(started.elapsed() <= Duration::from_secs(10), "{:?}", started.elapsed());
        assert_eq!(node.text(), before);
    });
}

#[test]
fn where_udp_is_dropped_tcp_answers() {
    let records = zone("web.t1.svc.cluster.local. 5 IN A 10.96.0.100");
    let node = Node::new(OTHERS, move |asked| match asked.transport {
        Transport::Udp => Action::Silent,
        _ => records(asked),
    });
    node.once("web.t1.svc");
    assert_eq!(node.text(), format!("{OTHERS}{}", line("10.96.0.100", "web.t1.svc")));
}
