//! A server that accepts TCP connections but reads nothing does not serve, whatever UDP does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tests::{Ask, eventually, isolated_steadily, run, tool};

use super::availability::status;
use super::clients::{ADDRESSES, answers_everywhere, at};
use super::lab::{CLUSTER, Lab, NAME, PLAIN, US};

/// A TCP side that receives no message loses its leases; one that serves clients does not.
#[test]
fn tcp_leases_without_messages() {
    isolated_steadily(Duration::from_secs(180), || {
        if !tool("tcp alone", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&[]);
        for ip in ADDRESSES {
            server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
        }
        run("nft", &["add table inet hang"]);
        run("nft", &["add chain inet hang output { type filter hook output priority 0; }"]);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for ip in ADDRESSES.repeat(2) {
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(Ask::new(NAME, "A").tcp().of(at(ip)).short(), [US], "{ip}");
                        thread::sleep(Duration::from_millis(20));
                    }
                });
            }
            // Our probes can connect, but their data is dropped.
            run(
                "nft",
                &[
                    "add rule inet hang output meta mark 0x6c646e73 tcp dport 53 tcp flags & psh == psh counter drop",
                ],
            );
            eventually("many rounds", PATIENCE, || (dropped() > 20 * ADDRESSES.len()).then_some(()));
            let status = status(&server, 0);
            run("nft", &["flush chain inet hang output"]);
            stop.store(true, Ordering::Relaxed);
            assert_eq!(status.matches("held, lost 0 times").count(), ADDRESSES.len(), "{status}");
        });
        answers_everywhere(US, US);
        run(
            "nft",
            &[
                "add rule inet hang output meta mark 0x6c646e73 tcp dport 53 tcp flags & psh == psh counter drop",
            ],
        );
        for ip in ADDRESSES {
            server.wait_for_log(&format!("the lease of {ip} ended: "), PATIENCE);
        }
        let log = server.log_text();
        let why = log.matches("does not answer over TCP").count();
        assert_eq!(why, ADDRESSES.len(), "UDP does answer: {log}");
        answers_everywhere(CLUSTER, PLAIN);
        run("nft", &["flush chain inet hang output"]);
        for ip in ADDRESSES {
            server.wait_for_lines(&format!("queries to {ip} are answered here"), 2, PATIENCE);
        }
        answers_everywhere(US, US);
    });
}

/// Number of probe packets that the rule dropped.
fn dropped() -> usize {
    let rules = run("nft", &["list", "chain", "inet", "hang", "output"]);
    let count = rules.split_once("counter packets ").and_then(|(_, rest)| rest.split_whitespace().next());
    count.and_then(|count| count.parse().ok()).expect("the rule counts")
}

const PATIENCE: Duration = Duration::from_secs(20);
