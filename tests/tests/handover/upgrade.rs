//! From one process to the next: SIGUSR2, and two processes side by side.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tests::{Ask, Manager, Options, Server, eventually, isolated, signal};

use crate::clients::{Clients, LOCAL};
use crate::place::{AT, PATIENCE, corefile, names, upstream};

#[test]
fn no_query_is_lost_over_five_upgrades_by_a_signal() {
    isolated(|| upgrades(5));
}

#[test]
#[ignore = "long: a hundred upgrades"]
fn no_query_is_lost_over_a_hundred_upgrades_by_a_signal() {
    tests::isolated_for(Duration::from_secs(600), || upgrades(100));
}

fn upgrades(times: usize) {
    let (manager, upstream, at) = (Manager::new(), upstream(), at());
    let mut server =
        Server::start_with(&corefile(2, &upstream), manager.options().env("WATCHDOG_USEC", "900000"));
    manager.wait_for("READY=1", 1, PATIENCE);
    let clients = Clients::start(at);
    let mut pid = server.pid();
    for upgrade in 1..=times {
        let sent = clients.sent();
        eventually("a few hundred queries", PATIENCE, || (clients.sent() >= sent + 300).then_some(()));
        signal(pid, "USR2");
        manager.wait_for("READY=1", upgrade + 1, PATIENCE);
        let next = pid_of(&server);
        assert_ne!(next, pid);
        assert_eq!(manager.said(&format!("MAINPID={next}\n")), 1, "systemd is told of the next process");
        assert_eq!(manager.said("BARRIER=1"), upgrade, "and has heard it before anything else");
        has_ended(pid);
        speaks_for_itself(next);
        pid = next;
        manager.wait_for_stored(&names(2), PATIENCE);
    }
    assert!(server.wait(PATIENCE).success());
    assert_eq!(manager.said("STOPPING=1"), 0, "an upgrade is no stop");
    let pings = manager.said("WATCHDOG=1");
    manager.wait_for("WATCHDOG=1", pings + 2, PATIENCE);
    clients.finish();
    signal(pid, "TERM");
    has_ended(pid);
    manager.wait_for("STOPPING=1", 1, PATIENCE);
}

#[test]
fn a_successor_that_cannot_serve_leaves_the_server_as_it_is() {
    isolated(|| {
        let (manager, upstream, at) = (Manager::new(), upstream(), at());
        let mut server = Server::start_with(&corefile(2, &upstream), manager.options());
        manager.wait_for("READY=1", 1, PATIENCE);
        let clients = Clients::start(at);
        let good = corefile(2, &upstream);
        for (attempt, bad) in
            ["forward\n", &good.replace("bind 127.0.0.1", "bind 192.0.2.9"), "}"].iter().enumerate()
        {
            fs::write(server.path("Corefile"), bad).expect("it is ours");
            server.signal("USR2");
            server.wait_for_lines("the next process does not serve, this one goes on", attempt + 1, PATIENCE);
        }
        let sent = clients.sent();
        eventually("a few hundred queries", PATIENCE, || (clients.sent() >= sent + 300).then_some(()));
        clients.finish();
        assert_eq!(pid_of(&server), server.pid());
        // What was wrong once does not stand in the way.
        fs::write(server.path("Corefile"), good).expect("it is ours");
        server.signal("USR2");
        manager.wait_for("READY=1", 2, PATIENCE);
        assert!(server.wait(PATIENCE).success());
        signal(pid_of(&server), "TERM");
    });
}

#[test]
fn no_query_is_lost_where_one_process_takes_over_from_another() {
    isolated(|| side_by_side(5));
}

#[test]
#[ignore = "long: a hundred upgrades"]
fn no_query_is_lost_where_a_hundred_processes_take_over_one_from_another() {
    tests::isolated_for(Duration::from_secs(600), || side_by_side(100));
}

fn side_by_side(times: usize) {
    let (upstream, at) = (upstream(), at());
    let directory = tests::tempdir();
    let door = directory.path().join("door");
    let door = door.to_string_lossy();
    let options = |after| Options::default().args(["-handover", &door, "-after-handover", after]);
    let mut server = Server::start_with(&corefile(2, &upstream), options("exit"));
    let clients = Clients::start(at);
    for turn in 0..times {
        let sent = clients.sent();
        eventually("a few hundred queries", PATIENCE, || (clients.sent() >= sent + 300).then_some(()));
        // It stands for a pod, which must not end before it is told to.
        let stays = turn % 2 == 1;
        let next = Server::start_with(&corefile(2, &upstream), options(if stays { "exit" } else { "wait" }));
        server.wait_for_log("another process serves", PATIENCE);
        if stays {
            assert!(server.is_running());
            server.signal("USR1");
            assert!(server.stop().success());
            assert!(!server.path("pid").exists());
        } else {
            assert!(server.wait(PATIENCE).success());
        }
        server = next;
    }
    clients.finish();
    assert_eq!(Ask::new("x.example", "A").of(at).short(), [LOCAL]);
    assert!(server.stop().success());
}

fn at() -> SocketAddr {
    AT.parse().expect("an address")
}

/// The process that its pidfile names.
pub(crate) fn pid_of(server: &Server) -> u32 {
    eventually("a pidfile", PATIENCE, || fs::read_to_string(server.path("pid")).ok()?.trim().parse().ok())
}

/// Nobody may have waited for its end.
fn has_ended(pid: u32) {
    eventually(&format!("the end of process {pid}"), PATIENCE, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
}

/// No variable of its environment speaks of the process before.
fn speaks_for_itself(pid: u32) {
    let environment = fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    for variable in environment.split(|octet| *octet == 0).map(String::from_utf8_lossy) {
        let Some((name, value)) = variable.split_once('=') else { continue };
        if ["SYSTEMD_EXEC_PID", "WATCHDOG_PID", "LISTEN_PID"].contains(&name) {
            assert_eq!(value, pid.to_string(), "{name}");
        }
    }
}
