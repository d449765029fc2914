//! A server with rules and leases that is replaced: no query goes to the upstream meanwhile.

use std::time::Duration;

use tests::{eventually, isolated_steadily, signal, tool};

use super::clients::Clients;
use super::lab::Lab;

#[test]
fn no_query_is_lost_or_goes_to_the_upstream_over_five_upgrades() {
    isolated_steadily(Duration::from_secs(180), || {
        if !tool("node upgrades", "nft") {
            return;
        }
        let lab = Lab::new();
        let mut server = lab.serve(&[]);
        let serves = |n| drop(server.wait_for_lines("queries to fd10::11 come here", n, PATIENCE));
        serves(1);
        let clients = Clients::start(125);
        let mut pid = server.pid();
        for upgrade in 1..=5 {
            clients.go_on(60);
            signal(pid, "USR2");
            serves(upgrade + 1);
            pid = eventually("the next process", PATIENCE, || {
                let next = std::fs::read_to_string(server.path("pid")).ok()?.trim().parse().ok()?;
                (next != pid).then_some(next)
            });
        }
        clients.finish();
        assert!(server.wait(PATIENCE).success());
        let log = server.log_text();
        assert!(!log.contains("the lease of"), "a lease ended meanwhile:\n{log}");
        signal(pid, "TERM");
    });
}

const PATIENCE: Duration = Duration::from_secs(15);
