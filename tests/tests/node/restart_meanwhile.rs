//! A restart of a server that keeps serving for a time (`lameduck`): each client's queries go to
//! the same server as before.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::Duration;

use tests::{Systemd, eventually, isolated_steadily, output, run};

use super::clients::{Clients, is_ours};
use super::lab::{COREFILE, Lab, PLAIN, POD, lose_probes_to};
use super::restart::{UNIT, boot};

/// A restart takes back no query that is redirected.
#[test]
fn restart_keeps_redirected_queries() {
    isolated_steadily(Duration::from_secs(180), || {
        let test = "restart_keeps_redirected_queries";
        let Some((_lab, systemd)) = start(test, "2s") else { return };
        lose_probes_to("169.254.10.11");
        eventually("the end of a lease", PATIENCE, || {
            systemd.log(UNIT).contains("the lease of 169.254.10.11 ended").then_some(())
        });
        let places = [None, Some(POD)];
        let led_away = Clients::of(&places, &["169.254.10.11"], RATE, |responder| responder == PLAIN);
        let others = Clients::of(&places, &["169.254.10.10"], RATE, is_ours);
        led_away.go_on(50);
        let pid = systemd.main_pid(UNIT);
        systemd.ctl(&["restart", "--no-block", UNIT]);
        eventually("the next process", PATIENCE, || {
            let main = systemd.main_pid(UNIT);
            (main != pid && main != "0").then_some(())
        });
        led_away.go_on(50);
        led_away.finish();
        others.finish();
        // READY must wait until each address has answered.
        run("nft", &["flush", "chain", "inet", "hang", "output"]);
        eventually("READY", PATIENCE, || (systemd.show(UNIT, "ActiveState") == ["active"]).then_some(()));
    });
}

/// Requests for the status during a restart redirect no query.
#[test]
fn status_during_a_restart() {
    isolated_steadily(Duration::from_secs(180), || {
        let test = "status_during_a_restart";
        let Some((_lab, systemd)) = start(test, "4s") else { return };
        let over = AtomicBool::new(false);
        let clients = Clients::start(RATE);
        scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let mut status = Command::new(tests::binary());
                    status.args(["node", "status", "-conf", "/etc/localdns/Corefile"]);
                    output(status, PATIENCE);
                    sleep(Duration::from_millis(100));
                }
            });
            clients.go_on(50);
            systemd.ctl(&["restart", UNIT]);
            clients.go_on(50);
            over.store(true, Relaxed);
        });
        clients.finish();
    });
}

/// A server that another is about to follow removes nothing.
#[test]
fn server_before_its_successor() {
    isolated_steadily(Duration::from_secs(180), || {
        let test = "server_before_its_successor";
        let Some((_lab, systemd)) = start(test, "4s") else { return };
        systemd.ctl(&["restart", "--no-block", UNIT]);
        eventually("lameduck", PATIENCE, || systemd.log(UNIT).contains("Going into lameduck").then_some(()));
        let mut down = Command::new(tests::binary());
        down.args(["node", "down"]);
        let down = output(down, PATIENCE);
        let printed = String::from_utf8_lossy(&down.stdout) + String::from_utf8_lossy(&down.stderr);
        assert_eq!(down.status.code(), Some(1), "{printed}");
        assert!(printed.contains("is handing over to another process"), "{printed}");
        eventually("the next process", PATIENCE, || {
            (systemd.show(UNIT, "ActiveState") == ["active"]).then_some(())
        });
    });
}

/// The unit with a Corefile that sets `lameduck`.
fn start(test: &str, lameduck: &str) -> Option<(Lab, Systemd)> {
    let (lab, systemd) = boot(test)?;
    let health = format!("    health 127.0.0.1:8080 {{\n        lameduck {lameduck}\n    }}\n    hosts {{");
    let corefile = COREFILE.replacen("    hosts {", &health, 1);
    fs::write("/etc/localdns/Corefile", corefile).expect("the test's own");
    systemd.ctl(&["start", UNIT]);
    Some((lab, systemd))
}

/// Queries a second of each stream.
const RATE: u32 = 50;
const PATIENCE: Duration = Duration::from_secs(20);
