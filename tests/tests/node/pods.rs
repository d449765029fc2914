//! Two pods of a DaemonSet with `maxSurge`: each has its own root and processes; they share the
//! node's network and a directory of the host.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tests::{
    Pod, eventually, http_get, isolated_for, isolated_steadily, now, output, run, signal, tempdir, tool,
};

use super::clients::{Clients, handovers, thirty_percent};
use super::lab::{COREFILE, Lab};
use super::upgrade::CALM;

/// A pod that has handed over changes nothing until it gets SIGTERM.
#[test]
fn pod_after_handover_changes_nothing() {
    isolated_steadily(Duration::from_secs(180), || one_after_another(3, || CALM, Clients::start));
}

/// No query is lost or goes to the upstream.
#[test]
#[ignore = "long: a hundred pods"]
fn hundred_pod_handovers() {
    isolated_for(Duration::from_secs(900), || {
        one_after_another(handovers(), thirty_percent, Clients::held_to)
    });
}

/// Starts `times` pods, each of which takes over from the previous one, while clients send `rate`
/// queries a second in total.
fn one_after_another(times: usize, rate: fn() -> u32, clients: fn(u32) -> Clients) {
    if !tool("pods", "nft") {
        return;
    }
    let lab = Lab::new();
    let host = tempdir();
    let mut old = start(host.path());
    old.wait_for_log("queries to fd10::11 are answered here");
    let rate = rate() / Clients::OVER_UDP;
    let asked = lab.asked();
    let clients = clients(rate);
    let go_on = || clients.go_on(rate as usize / 2);
    for _ in 0..times {
        go_on();
        let next = start(host.path());
        next.wait_for_log("queries to fd10::11 are answered here");
        old.wait_for_log("another process serves");
        eventually("the old pod's last socket", PATIENCE, || old.network().is_empty().then_some(()));
        go_on();
        let (before, rules, status) = (answered(), rules(), node_status());
        assert!(before > 0 && status.contains("\nserver "), "{status}");
        assert_eq!(status.matches("\nserver ").count(), 1, "{status}");
        // The old server, idle by now, ignores these signals; the next one serves.
        for word in ["HUP", "USR1", "USR2"] {
            signal(old.pid, word);
        }
        go_on();
        assert!(answered() > before, "/metrics are the next one's");
        let began = now();
        assert_eq!(old.end(), Some(0));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(!old.log().contains("the lease of"), "a lease ended meanwhile: {}", old.log());
        go_on();
        assert_eq!(self::rules(), rules);
        old = next;
    }
    assert!(clients.finish() >= times, "each connection that was kept ended with each process");
    assert_eq!(lab.asked(), asked, "queries that the upstream was asked");
    assert!(!old.log().contains("the lease of"), "{}", old.log());
    assert_eq!(old.end(), Some(0));
}

/// If a pod cannot serve, the old one serves on; if the predecessor is killed, the new one serves.
#[test]
fn pod_handover_failures() {
    isolated_steadily(Duration::from_secs(180), || {
        if !tool("pods", "nft") {
            return;
        }
        let _lab = Lab::new();
        let host = tempdir();
        let mut first = start(host.path());
        first.wait_for_log("queries to fd10::11 are answered here");
        let clients = Clients::start(125);
        fs::write(host.path().join("Corefile"), ".:53 {\n    forwrad .\n}\n").expect("the test's own");
        let mut wrong = as_it_is(host.path());
        assert_eq!(wrong.ended(), Some(217), "{}", wrong.log());
        clients.go_on(60);
        clients.finish();
        // The handover socket's file exists, without a listener.
        first.kill();
        assert!(host.path().join("door").exists());
        let mut second = start(host.path());
        second.wait_for_log("queries to fd10::11 are answered here");
        let clients = Clients::start(125);
        clients.go_on(60);
        clients.finish();
        assert_eq!(second.end(), Some(0));
    });
}

fn start(host: &Path) -> Pod {
    let pages = "prometheus 127.0.0.1:9253\n    health 127.0.0.1:8080\n    hosts {";
    fs::write(host.join("Corefile"), COREFILE.replacen("hosts {", pages, 1)).expect("the test's own");
    as_it_is(host)
}

/// Starts a pod with the existing Corefile.
fn as_it_is(host: &Path) -> Pod {
    let words = "node run -conf /run/host/Corefile -pidfile /run/localdns.pid -host-resolver none \
        -handover /run/host/door -after-handover wait";
    let prepare = "mkdir /run/host; mount --bind \"$HOST\" /run/host";
    Pod::start(prepare, &[("HOST", host)], &words.split_whitespace().collect::<Vec<_>>())
}

/// Number of answered queries in the node's /metrics, whichever server exposes them.
fn answered() -> u64 {
    let at = "127.0.0.1:9253".parse().expect("an address");
    let (_, page) = http_get(at, "/metrics").expect("a server serves it");
    let counts = page.lines().filter_map(|line| {
        line.strip_prefix("coredns_dns_requests_total{")?.rsplit(' ').next()?.parse::<u64>().ok()
    });
    counts.sum()
}

/// The table that outlives servers, without its elements' timeouts.
fn rules() -> String {
    run("nft", &["--stateless", "list", "table", "inet", "localdns"])
}

fn node_status() -> String {
    let mut command = Command::new(tests::binary());
    command.args(["node", "status", "-conf", "/run/localdns-status.corefile"]);
    fs::write("/run/localdns-status.corefile", COREFILE).expect("the test's own");
    let output = output(command, PATIENCE);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const PATIENCE: Duration = Duration::from_secs(20);
