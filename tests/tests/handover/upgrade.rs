//! Upgrades by SIGUSR2, and handover between two processes.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::Duration;

use tests::{Action, Ask, Manager, Options, Server, eventually, isolated, run, signal};

use crate::clients::{CALM, Clients, LOCAL, REMOTE, thirty_percent};
use crate::place::{AT, PATIENCE, corefile, names, upstream};

/// No query is lost over five upgrades by a signal.
#[test]
fn five_upgrades_by_a_signal() {
    isolated(|| upgrades(5, |_| CALM, Clients::start));
}

/// No query is lost over a hundred upgrades by a signal.
#[test]
#[ignore = "long: a hundred upgrades"]
fn hundred_upgrades_by_a_signal() {
    tests::isolated_for(Duration::from_secs(600), || upgrades(100, thirty_percent, Clients::held_to));
}

fn upgrades(times: usize, rate: fn(SocketAddr) -> u32, clients: fn(SocketAddr, u32) -> Clients) {
    let (manager, upstream, at) = (Manager::new(), upstream(), at());
    let mut server =
        Server::start_with(&corefile(2, &upstream), manager.options().env("WATCHDOG_USEC", "900000"));
    manager.wait_for("READY=1", 1, PATIENCE);
    let clients = clients(at, rate(at));
    let mut pid = server.pid();
    for upgrade in 1..=times {
        let sent = clients.sent();
        eventually("a few hundred queries", PATIENCE, || (clients.sent() >= sent + 300).then_some(()));
        signal(pid, "USR2");
        manager.wait_for("READY=1", upgrade + 1, PATIENCE);
        let next = pid_of(&server);
        assert_ne!(next, pid);
        assert_eq!(
            manager.received(&format!("MAINPID={next}\n")),
            1,
            "systemd is notified of the next process"
        );
        assert_eq!(manager.received("BARRIER=1"), upgrade, "and has heard it before anything else");
        has_ended(pid);
        speaks_for_itself(next);
        pid = next;
        manager.wait_for_stored(&names(2), PATIENCE);
    }
    assert!(server.wait(PATIENCE).success());
    assert_eq!(manager.received("STOPPING=1"), 0, "an upgrade is no stop");
    let pings = manager.received("WATCHDOG=1");
    manager.wait_for("WATCHDOG=1", pings + 2, PATIENCE);
    assert!(clients.finish() >= times, "each connection that was kept ended with each process");
    signal(pid, "TERM");
    has_ended(pid);
    manager.wait_for("STOPPING=1", 1, PATIENCE);
}

#[test]
fn failed_successor_changes_nothing() {
    isolated(|| {
        let (manager, upstream, at) = (Manager::new(), upstream(), at());
        let mut server = Server::start_with(&corefile(2, &upstream), manager.options());
        manager.wait_for("READY=1", 1, PATIENCE);
        let clients = Clients::start(at, CALM);
        let good = corefile(2, &upstream);
        for (attempt, (bad, why)) in [
            ("forward\n", "cannot listen on 0.0.0.0:53"),
            (&*good.replace("bind 127.0.0.1", "bind 192.0.2.9"), "192.0.2.9"),
            ("}", "Corefile:1:1"),
        ]
        .into_iter()
        .enumerate()
        {
            fs::write(server.path("Corefile"), bad).expect("it is ours");
            server.signal("USR2");
            let failure = "the next process does not serve, this one continues: it ended with exit status: 1";
            server.wait_for_lines(failure, attempt + 1, PATIENCE);
            server.wait_for_lines(why, 1, PATIENCE);
        }
        let sent = clients.sent();
        eventually("a few hundred queries", PATIENCE, || (clients.sent() >= sent + 300).then_some(()));
        clients.finish();
        assert_eq!(pid_of(&server), server.pid());
        // An earlier failure does not prevent an upgrade.
        fs::write(server.path("Corefile"), good).expect("it is ours");
        server.signal("USR2");
        manager.wait_for("READY=1", 2, PATIENCE);
        assert!(server.wait(PATIENCE).success());
        signal(pid_of(&server), "TERM");
    });
}

/// A successor that cannot write its pidfile serves and reports it.
#[test]
fn successor_without_its_pidfile() {
    isolated(|| {
        let (manager, upstream, at) = (Manager::new(), upstream(), at());
        let mut server = Server::start_with(&corefile(2, &upstream), manager.options());
        manager.wait_for("READY=1", 1, PATIENCE);
        let pidfile = server.path("pid");
        fs::remove_file(&pidfile).expect("it is there");
        fs::create_dir(&pidfile).expect("the directory is the test's own");
        signal(server.pid(), "USR2");
        let line = server.wait_for_log("cannot write the pidfile", PATIENCE);
        assert!(line.starts_with("[WARNING]") && line.contains("Is a directory"), "{line}");
        manager.wait_for("READY=1", 2, PATIENCE);
        assert!(server.wait(PATIENCE).success(), "the one before has gone");
        assert_eq!(Ask::new("x.example", "A").of(at).short(), [LOCAL]);
    });
}

/// After a handover the former process answers its queries in flight and sends no more pings.
#[test]
fn after_a_handover() {
    isolated(|| {
        let (manager, upstream, at) = (Manager::new(), upstream(), at());
        let options = manager.options().env("WATCHDOG_USEC", "300000");
        let mut server = Server::start_with(&corefile(2, &upstream), options);
        manager.wait_for("WATCHDOG=1", 1, PATIENCE);
        upstream.answer_by(|asked| {
            Action::answer(&format!("{} 300 IN A {REMOTE}", asked.name)).after(Duration::from_secs(3))
        });
        let slow =
            thread::spawn(move || Ask::new("slow.example", "A").timeout(Duration::from_secs(5)).try_of(at));
        eventually("a query in flight", PATIENCE, || (upstream.total() > 0).then_some(()));
        server.signal("USR2");
        manager.wait_for("READY=1", 2, PATIENCE);
        assert!(server.wait(PATIENCE).success());
        assert_eq!(slow.join().expect("no panic").expect("an answer").short(), [REMOTE]);
        let messages = manager.received_from(server.pid());
        let named =
            messages.iter().position(|messages| messages.contains("MAINPID=")).expect("it names the next");
        assert_eq!(messages[named + 1..], ["BARRIER=1\n"], "of all that it said: {messages:?}");
        signal(pid_of(&server), "TERM");
    });
}

/// The end of the server during an upgrade also ends its successor.
#[test]
fn end_during_an_upgrade() {
    isolated(|| {
        let (upstream, at) = (upstream(), at());
        for end in ["TERM", "QUIT"] {
            let mut server = Server::start_with(&corefile(2, &upstream), Options::default());
            // The next version hangs at its start.
            let script = server.path("next");
            fs::write(&script, "#!/bin/sh\nexec sleep 600\n").expect("it is ours");
            fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("it is ours");
            let program = tests::binary();
            run("mount", &["--bind", &script.to_string_lossy(), &program.to_string_lossy()]);
            server.signal("USR2");
            let next = eventually("the next process", PATIENCE, || child_called("sleep", server.pid()));
            assert_eq!(Ask::new("x.example", "A").of(at).short(), [LOCAL]);
            server.signal(end);
            assert!(server.wait(PATIENCE).success());
            has_ended(next);
            run("umount", &[&program.to_string_lossy()]);
        }
    });
}

/// The child process with this name.
fn child_called(name: &str, parent: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children.flat_map(|text| numbers(&text)).collect();
    children
        .into_iter()
        .find(|child| fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim() == name))
}

fn numbers(text: &str) -> Vec<u32> {
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// No query is lost when one process takes over from another.
#[test]
fn one_takeover() {
    isolated(|| side_by_side(5, |_| CALM, Clients::start));
}

/// No query is lost when a hundred processes take over, one from another.
#[test]
#[ignore = "long: a hundred upgrades"]
fn hundred_takeovers() {
    tests::isolated_for(Duration::from_secs(600), || side_by_side(100, thirty_percent, Clients::held_to));
}

fn side_by_side(times: usize, rate: fn(SocketAddr) -> u32, clients: fn(SocketAddr, u32) -> Clients) {
    let (upstream, at) = (upstream(), at());
    let directory = tests::tempdir();
    let door = directory.path().join("door");
    let door = door.to_string_lossy();
    let options = |after| Options::default().args(["-handover", &door, "-after-handover", after]);
    let mut server = Server::start_with(&corefile(2, &upstream), options("exit"));
    let clients = clients(at, rate(at));
    for turn in 0..times {
        let sent = clients.sent();
        eventually("a few hundred queries", PATIENCE, || (clients.sent() >= sent + 300).then_some(()));
        // `exit` stands for a container, which must not end before SIGTERM.
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
    assert!(clients.finish() >= times, "each connection that was kept ended with each process");
    assert_eq!(Ask::new("x.example", "A").of(at).short(), [LOCAL]);
    assert!(server.stop().success());
}

fn at() -> SocketAddr {
    AT.parse().expect("an address")
}

/// The process ID in its pidfile.
pub(crate) fn pid_of(server: &Server) -> u32 {
    eventually("a pidfile", PATIENCE, || fs::read_to_string(server.path("pid")).ok()?.trim().parse().ok())
}

/// Waits until the process has ended; it may be a zombie if no parent waits for it.
fn has_ended(pid: u32) {
    eventually(&format!("the end of process {pid}"), PATIENCE, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
}

/// Asserts that the process's environment has no variables about the previous process.
fn speaks_for_itself(pid: u32) {
    let environment = fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    for variable in environment.split(|octet| *octet == 0).map(String::from_utf8_lossy) {
        let Some((name, value)) = variable.split_once('=') else { continue };
        if ["SYSTEMD_EXEC_PID", "WATCHDOG_PID", "LISTEN_PID"].contains(&name) {
            assert_eq!(value, pid.to_string(), "{name}");
        }
    }
}
