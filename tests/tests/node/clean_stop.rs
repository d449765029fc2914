//! A clean stop while pods and the host send 1,000 queries a second: the server or a fallback
//! answers each of them.

use std::time::Duration;

use tests::{eventually, isolated_steadily, now, run, signal, tool};

use super::clients::Clients;
use super::lab::{CLUSTER, Lab, POD, US};

/// No query is lost, and afterwards the Service's endpoints answer at its address.
#[test]
fn clean_stop_with_a_service_address() {
    isolated_steadily(Duration::from_secs(120), || {
        if !tool("clean stop", "nft") {
            return;
        }
        let lab = Lab::new();
        let mut server = lab.serve(&["-at-stop", "clean", "-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        // No other server has these addresses: the server answers there until it exits.
        let ours = Clients::of(
            &[None, Some(POD)],
            &["169.254.10.10", "169.254.10.11", "fd10::11"],
            RATE,
            |responder| responder == US,
        );
        // From a pod only: the host's own socket has the Service's address as its source, which
        // goes away.
        let service = Clients::of(&[Some(POD)], &["10.96.0.20"], 2 * RATE, |responder| {
            responder == US || responder == CLUSTER
        });
        ours.go_on(RATE as usize / 2);
        let (asked, began) = (lab.asked(), now());
        signal(server.pid(), "TERM");
        eventually("no rules", PATIENCE, || run("nft", &["list", "tables", "inet"]).is_empty().then_some(()));
        assert!(server.is_running(), "the rules go first");
        assert!(run("ip", &["link"]).contains("localdns"), "and the addresses last");
        // Most of the 5 s.
        ours.go_on(3 * RATE as usize);
        ours.finish();
        assert!(server.is_running(), "whoever asked was answered by it");
        assert_eq!(server.wait(PATIENCE).code(), Some(0));
        let took = began.elapsed();
        assert!((ANSWERS..ANSWERS + MORE).contains(&took), "it takes {took:.1?}");
        assert!(!run("ip", &["link"]).contains("localdns"));
        assert_eq!(run("nft", &["list", "tables", "inet"]), "");
        service.go_on(2 * RATE as usize);
        service.finish();
        assert!(lab.asked() > asked, "the service's endpoints answer now");
    });
}

/// Queries a second from each of two places to each of three addresses, and twice as many from a
/// pod to the fourth: 1,000 in total.
const RATE: u32 = 125;
/// Time for which a stopping server still answers, and the maximum time that the stop takes beyond
/// it.
const ANSWERS: Duration = Duration::from_secs(5);
const MORE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);
