//! Kernels that lack one mechanism of the leases: tables that end with their process (Linux 5.12),
//! or the nft expression that looks up a socket. The other one suffices.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tests::{
    Manager, OlderKernel, Options, Server, assert_contains, eventually, isolated_for, run, signal, tempdir,
    tool,
};

use super::clients::{Clients, answers_everywhere, asked_at};
use super::lab::{CLUSTER, Lab, PLAIN, POD, US, within};
use super::restart::{UNIT, boot};

/// A death is seen by closed sockets and by leases that end.
#[test]
fn kernel_without_owned_tables() {
    isolated_for(Duration::from_secs(180), || {
        serves_dies_and_returns("owner");
    });
}

/// A death is seen by the table that goes.
#[test]
fn kernel_without_socket_search() {
    isolated_for(Duration::from_secs(180), || {
        serves_dies_and_returns("socket");
    });
}

/// A death is seen by leases that end.
#[test]
fn kernel_without_both() {
    isolated_for(Duration::from_secs(180), || {
        serves_dies_and_returns("owner, socket");
    });
}

/// Runs, kills and restarts a server on such a kernel; the remaining mechanism detects its death.
fn serves_dies_and_returns(lacks: &'static str) {
    let test = "older kernels";
    if !tool(test, "nft") {
        return;
    }
    let directory = tempdir();
    let Some(kernel) = OlderKernel::new(test, directory.path(), lacks) else { return };
    let (by_owner, by_socket) = (!lacks.contains("owner"), !lacks.contains("socket"));
    let lab = Lab::new();
    // Before a server starts: `up` needs neither mechanism.
    node_up(&kernel);
    answers_everywhere(CLUSTER, PLAIN);
    let manager = Manager::new();
    let mut server = serve(&lab, &kernel, &manager);
    manager.wait_for("READY=1", 1, PATIENCE);
    answers_everywhere(US, US);
    let tables = run("nft", &["list", "tables", "inet"]);
    let leases = run("nft", &["list", "ruleset", "inet"]);
    let lease_table = if by_owner { "table inet localdns-lease-" } else { "table inet localdns-lease\n" };
    assert!(tables.contains(lease_table), "{tables}");
    assert_eq!(
        (leases.contains("flags owner"), leases.contains("socket ")),
        (by_owner, by_socket),
        "{leases}"
    );
    is_well(&server, &kernel, (by_owner, by_socket));
    // Sockets in systemd's store would hide the death of the process, unless its table ends too.
    let stored = manager.stored();
    assert_eq!(stored.is_empty(), !by_owner, "{stored:?}");

    signal(server.pid(), "KILL");
    server.wait(PATIENCE);
    if by_owner {
        answers_everywhere(CLUSTER, PLAIN);
    } else {
        // Pods' queries fail over at once since the socket is gone, all others when the leases end.
        if by_socket {
            for (ip, responder) in WAYS_OUT {
                let asks =
                    move || assert_eq!([false, true].map(|tcp| asked_at(ip, tcp)), [responder; 2], "{ip}");
                within(POD, asks).join().expect("it is answered");
            }
        }
        eventually("the leases' end", PATIENCE, || (live_leases() == 0).then_some(()));
        answers_everywhere(CLUSTER, PLAIN);
    }

    let mut server = serve(&lab, &kernel, &manager);
    manager.wait_for("READY=1", 2, PATIENCE);
    answers_everywhere(US, US);
    is_well(&server, &kernel, (by_owner, by_socket));
    // Another program deletes all tables.
    run("nft", &["delete", "table", "inet", "localdns"]);
    if !by_owner {
        run("nft", &["delete", "table", "inet", "localdns-lease"]);
    }
    eventually("all is back", PATIENCE, || {
        (live_leases() == 4 && run("nft", &["list", "ruleset", "inet"]).contains("chain failover"))
            .then_some(())
    });
    answers_everywhere(US, US);
    assert!(server.stop().success());
    answers_everywhere(CLUSTER, PLAIN);
    assert_eq!(run("nft", &["list", "tables", "inet"]), "table inet localdns\n");

    let mut server = serve(&lab, &kernel, &manager);
    manager.wait_for("READY=1", 3, PATIENCE);
    let (code, printed) = node(&kernel, &["down"]);
    assert_contains!(
        printed,
        &format!("process {} released its leases, addresses and rules\n", server.pid())
    );
    assert_eq!((code, run("nft", &["list", "tables", "inet"])), (Some(0), String::new()), "{printed}");
    assert!(server.stop().success());
}

/// An upgrade without owned tables redirects no client to the upstream.
#[test]
fn upgrade_without_owned_tables() {
    isolated_for(Duration::from_secs(180), || {
        let test = "upgrade_without_owned_tables";
        if !tool(test, "nft") {
            return;
        }
        let directory = tempdir();
        let Some(kernel) = OlderKernel::new(test, directory.path(), "owner") else { return };
        let lab = Lab::new();
        let mut server = lab.serve_with(|options| kernel.under(options));
        let serves = |n| drop(server.wait_for_lines("queries to fd10::11 are answered here", n, PATIENCE));
        serves(1);
        let asked = lab.asked();
        let clients = Clients::start(RATE);
        let mut pid = server.pid();
        for upgrade in 2..=4 {
            clients.go_on(RATE as usize / 2);
            signal(pid, "USR2");
            serves(upgrade);
            pid = eventually("the next process", PATIENCE, || {
                let next = fs::read_to_string(server.path("pid")).ok()?.trim().parse().ok()?;
                (next != pid).then_some(next)
            });
        }
        clients.go_on(RATE as usize / 2);
        clients.finish();
        assert_eq!(lab.asked(), asked, "queries that the upstream was asked");
        assert!(server.wait(PATIENCE).success());
        let log = server.log_text();
        assert!(!log.contains("the lease of"), "a lease ended meanwhile:\n{log}");
        signal(pid, "TERM");
    });
}

/// systemd has the sockets from the stop on, and no query is lost.
#[test]
fn restart_without_owned_tables() {
    isolated_for(Duration::from_secs(180), || {
        let test = "restart_without_owned_tables";
        let Some((lab, systemd)) = boot(test) else { return };
        // Visible to the test and to the unit.
        let Some(kernel) = OlderKernel::new(test, Path::new("/etc/localdns"), "owner") else { return };
        let variables = kernel.variables().map(|(name, value)| format!("Environment={name}={value}\n"));
        systemd.more(UNIT, &format!("[Service]\n{}", variables.concat()));
        systemd.ctl(&["start", UNIT]);
        assert_eq!(systemd.show(UNIT, "NFileDescriptorStore"), ["0"]);
        let asked = lab.asked();
        let clients = Clients::start(RATE);
        for restart in 1..=3 {
            clients.go_on(RATE as usize / 2);
            systemd.ctl(&["restart", UNIT]);
            assert_eq!(systemd.show(UNIT, "NFileDescriptorStore"), ["0"], "the next process has them");
            eventually("what the next one was given", PATIENCE, || {
                (systemd.log(UNIT).matches("the cache starts with").count() == restart).then_some(())
            });
        }
        clients.go_on(RATE as usize / 2);
        clients.finish();
        assert_eq!(lab.asked(), asked, "queries that the upstream was asked");
        let log = systemd.log(UNIT);
        assert!(!log.contains("the lease of"), "a lease ended meanwhile:\n{log}");
        // At this level systemd logs the notifications; lines of the units are lost.
        systemd.ctl(&["log-level", "debug"]);
        systemd.ctl(&["restart", UNIT]);
        systemd.ctl(&["log-level", "info"]);
        let log = systemd.log(UNIT);
        let received: Vec<_> = log.lines().filter(|line| line.contains("Got notification message")).collect();
        let first = |what: &str| received.iter().position(|line| line.contains(what));
        let (stopping, stored) = (first("STOPPING=1"), first("FDSTORE=1"));
        assert!(stopping.is_some() && stored.is_some() && stopping < stored, "{received:#?}");
        // A killed server leaves nothing that holds queries.
        systemd.ctl(&["kill", "--kill-who=main", "--signal=KILL", UNIT]);
        systemd.restarts(UNIT, 1);
        answers_everywhere(US, US);
    });
}

fn serve(lab: &Lab, kernel: &OlderKernel, manager: &Manager) -> Server {
    let under = |_: Options| {
        let options = manager.options().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
        kernel.under(options)
    };
    lab.serve_with(under)
}

/// Asserts that `status` reports the missing mechanism and exits with 0: the node is no less ready.
fn is_well(server: &Server, kernel: &OlderKernel, (by_owner, by_socket): (bool, bool)) {
    let corefile = server.path("Corefile");
    let corefile = corefile.to_string_lossy();
    let (code, printed) = node(kernel, &["status", "-conf", &corefile]);
    let note = match (by_owner, by_socket) {
        (false, true) => WITHOUT_OWNERS,
        (true, _) => WITHOUT_SOCKETS,
        (false, false) => WITHOUT_BOTH,
    };
    for line in [
        "rules     in place\n".to_owned(),
        format!("leases    held by process {}\n", server.pid()),
        "lease     fd10::11  held, lost 0 times, answered a probe ".to_owned(),
        format!("note      {note}\n"),
    ] {
        assert!(printed.contains(&line), "{line}\n{printed}");
    }
    assert_eq!((code, printed.matches("note ").count()), (Some(0), 1), "{printed}");
    let (_, json) = node(kernel, &["status", "-json", "-conf", &corefile]);
    let json: Value = serde_json::from_str(&json).expect("one object");
    assert_eq!(json["lease_holders"], serde_json::json!([server.pid()]), "{json}");
    assert_eq!(json["well"], true, "{json}");
    let seen = &json["servers"][0];
    assert_eq!(
        (&seen["seen_by_owner"], &seen["seen_by_socket"]),
        (&by_owner.into(), &by_socket.into()),
        "{json}"
    );
}

fn node_up(kernel: &OlderKernel) {
    let directory = tempdir();
    let corefile = directory.path().join("Corefile");
    fs::write(&corefile, super::lab::COREFILE).expect("the test's own");
    let (code, printed) =
        node(kernel, &["up", "-host-resolver", "none", "-conf", &corefile.to_string_lossy()]);
    assert_eq!(code, Some(0), "{printed}");
}

/// Runs `localdns node` on such a kernel.
fn node(kernel: &OlderKernel, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(tests::binary());
    command.arg("node").args(words).envs(kernel.variables());
    let output = tests::output(command, PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text.into_owned())
}

/// Number of addresses with a lease; elements that are hexadecimal numbers are processes, not
/// addresses.
fn live_leases() -> usize {
    let listed = run("nft", &["list", "ruleset", "inet"]);
    listed.lines().filter(|line| !line.contains(" 0x")).map(|line| line.matches(" expires ").count()).sum()
}

const WAYS_OUT: [(&str, &str); 4] =
    [("169.254.10.10", CLUSTER), ("10.96.0.20", CLUSTER), ("169.254.10.11", PLAIN), ("fd10::11", PLAIN)];
/// Queries a second over UDP from each place to each address.
const RATE: u32 = 100;
const WITHOUT_OWNERS: &str = "this kernel keeps the lease table when the server dies (it is older than 5.12): pods' queries fail over at once, by the closed socket, all others when the leases end";
const WITHOUT_SOCKETS: &str = "this kernel cannot match sockets (nft_socket): queries to a socket that is closed while the server runs fail over when the lease ends";
const WITHOUT_BOTH: &str = "this kernel keeps the lease table when the server dies (it is older than 5.12), and cannot match sockets (nft_socket): queries fail over when the leases end";
const PATIENCE: Duration = Duration::from_secs(20);
