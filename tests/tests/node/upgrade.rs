//! A server with rules and leases that is replaced: no query goes to the upstream meanwhile.

use std::time::Duration;

use tests::{eventually, isolated_steadily, signal, tool};

use super::clients::{Clients, handovers, thirty_percent};
use super::lab::Lab;

#[test]
fn no_query_is_lost_or_goes_to_the_upstream_over_five_upgrades() {
    isolated_steadily(Duration::from_secs(180), || upgrades(5, || CALM));
}

#[test]
#[ignore = "long: a hundred upgrades"]
fn no_query_is_lost_or_goes_to_the_upstream_over_a_hundred_upgrades_by_a_signal() {
    isolated_steadily(Duration::from_secs(900), || upgrades(handovers(), thirty_percent));
}

/// So many upgrades by SIGUSR2, while clients ask at this rate, all together.
fn upgrades(times: usize, rate: fn() -> u32) {
    if !tool("node upgrades", "nft") {
        return;
    }
    let lab = Lab::new();
    let mut server = lab.serve(&[]);
    let serves = |n| drop(server.wait_for_lines("queries to fd10::11 come here", n, PATIENCE));
    serves(1);
    let rate = rate() / Clients::OVER_UDP;
    let asked = lab.asked();
    let clients = Clients::start(rate);
    let mut pid = server.pid();
    for upgrade in 1..=times {
        clients.go_on(rate as usize / 2);
        signal(pid, "USR2");
        serves(upgrade + 1);
        pid = eventually("the next process", PATIENCE, || {
            let next = std::fs::read_to_string(server.path("pid")).ok()?.trim().parse().ok()?;
            (next != pid).then_some(next)
        });
    }
    clients.go_on(rate as usize / 2);
    clients.finish();
    assert_eq!(lab.asked(), asked, "queries that the upstream was asked");
    assert!(server.wait(PATIENCE).success());
    let log = server.log_text();
    assert!(!log.contains("the lease of"), "a lease ended meanwhile:\n{log}");
    signal(pid, "TERM");
}

/// Queries a second over UDP.
pub(crate) const CALM: u32 = 1_000;
const PATIENCE: Duration = Duration::from_secs(15);
