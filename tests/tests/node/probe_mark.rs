//! `-probe-mark`: whose packets the rules let through to the server.

use std::time::Duration;

use tests::{Manager, eventually, isolated_steadily, run, tool};

use super::clients::{ADDRESSES, answers_everywhere};
use super::lab::{Lab, US};
use super::never_dark::status;

#[test]
fn probes_carry_the_mark_that_is_asked_for_and_the_table_of_leases_lets_no_other_through() {
    isolated_steadily(Duration::from_secs(60), || {
        if !tool("probe mark", "nft") {
            return;
        }
        let lab = Lab::new();
        run("nft", &["add table inet seen"]);
        run("nft", &["add chain inet seen output { type filter hook output priority -400; }"]);
        // The mark that is the default is another program's here, and gets nowhere.
        for rule in ["0x6c646e73 counter drop", "0x2a th dport 53 counter"] {
            run("nft", &[&format!("add rule inet seen output meta mark {rule}")]);
        }
        for mark in ["42", "0x2a"] {
            let manager = Manager::new();
            let options = manager.options().subcommand(&["node", "run"]);
            let options = options.args(["-host-resolver", "none", "-probe-mark", mark, "-at-stop", "clean"]);
            let mut server = lab.serve_with(|_| options);
            manager.wait_for("READY=1", 1, PATIENCE);
            let tables = run("nft", &["list", "tables", "inet"]);
            let table = tables.lines().find(|table| table.contains("localdns-lease-"));
            let table = table.expect("a table of leases").trim_start_matches("table inet ");
            let leases = run("nft", &["list", "table", "inet", table]);
            assert!(leases.contains("meta mark 0x0000002a notrack accept"), "{mark}: {leases}");
            assert!(!leases.contains("6c646e73"), "{mark}: {leases}");
            answers_everywhere(US, US);
            let counted = packets();
            eventually("more probes", PATIENCE, || (packets()[1] > counted[1] + 20).then_some(()));
            assert_eq!(packets()[0], 0, "{mark}: probes of the other mark");
            let said = status(&server, 0);
            assert_eq!(said.matches("held, lost 0 times").count(), ADDRESSES.len(), "{mark}: {said}");
            assert!(server.stop().success());
        }
    });
}

/// What each of the two rules has seen.
fn packets() -> [usize; 2] {
    let rules = run("nft", &["list", "chain", "inet", "seen", "output"]);
    let counts = rules.split("counter packets ").skip(1);
    let counts: Vec<_> = counts.filter_map(|rest| rest.split_whitespace().next()?.parse().ok()).collect();
    counts.try_into().expect("two rules that count")
}

const PATIENCE: Duration = Duration::from_secs(20);
