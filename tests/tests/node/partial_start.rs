//! A start during which one address, or TCP alone, does not answer: no rules and no READY until it
//! does.

use std::time::Duration;

use tests::{Manager, eventually, isolated, run, signal, tool};

use super::availability::{node, status};
use super::clients::{answers_everywhere, asked_at};
use super::lab::{CLUSTER, Lab, POD, US, within};

/// Rules and READY follow only once every address has answered over UDP and TCP.
#[test]
fn rules_and_ready_after_every_answer() {
    isolated(|| {
        if !tool("partial start", "nft") || !tool("partial start", "iptables") {
            return;
        }
        let lab = Lab::new();
        run("nft", &["add table inet hang"]);
        run("nft", &["add chain inet hang output { type filter hook output priority -400; }"]);
        for (rules, count) in [("nft", 0), ("iptables", 16), ("node-cache", 48)] {
            for (silent, message, is_service) in [
                ("ip daddr 10.96.0.20", "no rules yet: 10.96.0.20:53 does not answer", true),
                ("ip6 daddr fd10::11", "no rules yet: [fd10::11]:53 does not answer", false),
                ("tcp dport 53", "does not answer over TCP", true),
            ] {
                let what = format!("-rules {rules}, silent: {silent}");
                run(
                    "nft",
                    &[&format!("add rule inet hang output meta mark 0x6c646e73 {silent} counter drop")],
                );
                let manager = Manager::new();
                let options = manager.options().subcommand(&["node", "run"]);
                let options = options.args(["-host-resolver", "none", "-rules", rules]);
                let mut server = lab.serve_with(|_| options);
                server.wait_for_log(message, PATIENCE);
                let before = dropped();
                eventually("many rounds", PATIENCE, || (dropped() > before + 20).then_some(()));
                assert!(!has_table(), "{what}");
                assert_eq!(rules_of_iptables(), 0, "{what}");
                assert_eq!(manager.received("READY=1"), 0, "{what}");
                let printed = status(&server, 1);
                assert!(
                    printed.contains("note      no rules yet: ") && printed.contains(message),
                    "{what}: {printed}"
                );
                if is_service {
                    for tcp in [false, true] {
                        assert_eq!(asked_at("10.96.0.20", tcp), CLUSTER, "{what}");
                        let of_pod = within(POD, move || asked_at("10.96.0.20", tcp));
                        assert_eq!(of_pod.join().expect("it is answered"), CLUSTER, "{what}");
                    }
                }

                run("nft", &["flush chain inet hang output"]);
                manager.wait_for("READY=1", 1, PATIENCE);
                assert_eq!((has_table(), rules_of_iptables()), (rules == "nft", count), "{what}");
                answers_everywhere(US, US);
                signal(server.pid(), "KILL");
                server.wait(PATIENCE);
                // The sockets that a killed server leaves in systemd's store.
                manager.forget();
                node(&server, &["down"], 0);
                assert_eq!((has_table(), rules_of_iptables()), (false, 0), "{what}");
            }
        }
    });
}

/// Number of probe packets that the rule dropped.
fn dropped() -> usize {
    let rules = run("nft", &["list", "chain", "inet", "hang", "output"]);
    let count = rules.split_once("counter packets ").and_then(|(_, rest)| rest.split_whitespace().next());
    count.and_then(|count| count.parse().ok()).expect("the rule counts")
}

/// Whether the persistent table exists.
fn has_table() -> bool {
    run("nft", &["list", "tables", "inet"]).lines().any(|table| table == "table inet localdns")
}

fn rules_of_iptables() -> usize {
    let of = |(program, table)| run(program, &["-t", table, "-S"]).matches("-A ").count();
    let programs = ["iptables", "ip6tables"].into_iter();
    programs.flat_map(|program| [(program, "raw"), (program, "filter")]).map(of).sum()
}

const PATIENCE: Duration = Duration::from_secs(20);
