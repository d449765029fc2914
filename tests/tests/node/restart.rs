//! The node's unit under systemd, which keeps its sockets across a restart: no query is lost or
//! fails over.

use std::fs;
use std::net::UdpSocket;
use std::time::Duration;

use tests::{Ask, Message, Systemd, eventually, isolated_for, isolated_steadily, output, run, skip, tool};

use super::clients::{Clients, answers_everywhere};
use super::host_resolver::DROP_IN;
use super::lab::{CLUSTER, COREFILE, Lab, NAME, PLAIN, US};

/// No query is lost or goes to the upstream.
#[test]
fn five_restarts_by_systemd() {
    isolated_steadily(Duration::from_secs(180), || restarts(5, 480, Clients::start));
}

/// No query is lost or goes to the upstream.
#[test]
#[ignore = "long: a hundred restarts"]
fn hundred_restarts_by_systemd() {
    isolated_for(Duration::from_secs(900), || {
        let rate = std::env::var("RESTART_RATE").map(|rate| rate.parse().expect("queries a second"));
        restarts(100, rate.unwrap_or(20_000), Clients::held_to);
    });
}

/// Runs that many restarts while clients send `rate` queries a second in total, then one upgrade by
/// signal.
fn restarts(times: usize, rate: u32, clients: fn(u32) -> Clients) {
    let Some((lab, systemd)) = boot("five_restarts_by_systemd") else {
        return;
    };
    systemd.ctl(&["start", UNIT]);
    let asked = lab.asked();
    let rate = rate / Clients::OVER_UDP;
    let clients = clients(rate);
    let mut pid = systemd.main_pid(UNIT);
    let mut until_served_by = |next: String| {
        assert!(next != pid && next != "0", "{pid} is followed by {next}");
        pid = next;
    };
    for restart in 1..=times {
        clients.go_on(rate as usize / 2);
        systemd.ctl(&["restart", UNIT]);
        until_served_by(systemd.main_pid(UNIT));
        let adopted = format!("{restart} times");
        let log = systemd.log(UNIT);
        assert_eq!(log.matches("the cache starts with").count(), restart, "{adopted}:\n{log}");
        assert_ne!(systemd.show(UNIT, "NFileDescriptorStore"), ["0"], "a death is to lose nothing");
    }
    clients.go_on(rate as usize / 2);
    systemd.ctl(&["kill", "--kill-who=main", "--signal=USR2", UNIT]);
    eventually("the next process", PATIENCE, || {
        (systemd.log(UNIT).contains("Upgrade finished")).then_some(())
    });
    until_served_by(systemd.main_pid(UNIT));
    clients.go_on(rate as usize / 2);
    assert!(clients.finish() > times, "each connection that was kept ended with each process");
    assert_eq!(lab.asked(), asked, "queries that the upstream was asked");
    assert_eq!(systemd.show(UNIT, "ActiveState,NRestarts"), ["active", "0"]);
    let log = systemd.log(UNIT);
    assert!(!log.contains("the lease of"), "a lease ended meanwhile:\n{log}");
}

/// A stop and the end of the unit leave the fallback; a start takes the queries back.
#[test]
fn stop_leaves_the_fallback() {
    isolated_for(Duration::from_secs(180), || {
        let test = "stop_leaves_the_fallback";
        let Some((_lab, systemd)) = boot(test) else { return };
        systemd.ctl(&["start", UNIT]);
        for end in [&["stop", UNIT][..], &["disable", "--now", UNIT]] {
            answers_everywhere(US, US);
            systemd.ctl(end);
            assert_eq!(systemd.show(UNIT, "ActiveState,NFileDescriptorStore"), ["inactive", "0"]);
            answers_everywhere(CLUSTER, PLAIN);
            assert_eq!(run("nft", &["list", "tables", "inet"]), "table inet localdns\n");
            systemd.ctl(&["enable", UNIT]);
            systemd.ctl(&["start", UNIT]);
        }
        answers_everywhere(US, US);
        // After a kill systemd restarts the server at once.
        systemd.ctl(&["kill", "--kill-who=main", "--signal=KILL", UNIT]);
        systemd.restarts(UNIT, 1);
        answers_everywhere(US, US);
        let log = systemd.log(UNIT);
        assert!(!log.contains("the cache starts with"), "killed, it has left no answers:\n{log}");
    });
}

/// The next server answers the queries in the sockets of a killed one.
#[test]
fn next_server_answers_queued_queries() {
    isolated_for(Duration::from_secs(180), || {
        let test = "next_server_answers_queued_queries";
        let Some((_lab, systemd)) = boot(test) else { return };
        systemd.ctl(&["start", UNIT]);
        answers_everywhere(US, US);
        let kill = |with: &str| systemd.ctl(&["kill", "--kill-who=main", &format!("--signal={with}"), UNIT]);
        kill("STOP");
        // SIGSTOP: no worker reads the sockets, but the lease still holds, so the kernel delivers
        // queries to them.
        let query = Ask::new(NAME, "A").id(7).bytes();
        let sockets: Vec<_> = ["169.254.10.10", "169.254.10.11"]
            .map(|ip| {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
                socket.connect((ip, 53)).expect("an address");
                socket.send(&query).expect("it is sent");
                socket
            })
            .into();
        kill("KILL");
        for socket in sockets {
            socket.set_read_timeout(Some(PATIENCE)).expect("it can be set");
            let mut reply = [0; 512];
            let length = socket.recv(&mut reply).expect("an answer to what was asked once");
            let message = Message::decode(&reply[..length]).expect("a message");
            assert_eq!(message.answers.iter().map(|record| &*record.data).collect::<Vec<_>>(), [US]);
        }
        systemd.restarts(UNIT, 1);
    });
}

/// Rules and drop-in stay where they are.
#[test]
fn iptables_restart_and_upgrade() {
    isolated_for(Duration::from_secs(180), || {
        let test = "iptables_restart_and_upgrade";
        if !tool(test, "iptables") {
            return;
        }
        // iptables-legacy needs a capability that the unit lacks.
        if !run("iptables", &["-V"]).contains("nf_tables") {
            return skip(test, "iptables is not that of nftables");
        }
        let Some((_lab, systemd)) = boot(test) else { return };
        fs::write("/etc/localdns/environment", "LOCALDNS_NODE_RULES=iptables\n").expect("the test's own");
        systemd.ctl(&["start", UNIT]);
        // A rule that is added again has another handle.
        let rules = || ["ip", "ip6"].map(|family| run("nft", &["-s", "-a", "list", "table", family, "raw"]));
        let count = || {
            let all = ["iptables", "ip6tables"].map(|program| run(program, &["-t", "raw", "-S"])).concat();
            all.matches("localdns: skip conntrack").count()
        };
        // Stands in for networkd's drop-in; no program restores it.
        let shell = |script: &str| {
            let mut command = systemd.inside("sh");
            command.args(["-ec", script]);
            let done = output(command, PATIENCE);
            assert!(done.status.success(), "{script}: {done:?}");
            String::from_utf8_lossy(&done.stdout).into_owned()
        };
        let put = || {
            assert_eq!(count(), 16, "{}", systemd.log(UNIT));
            shell(&format!("mkdir -p $(dirname {DROP_IN}); touch {DROP_IN}"));
        };
        let seen = || (rules(), shell(&format!("stat --format=%i {DROP_IN}")));
        let waited = || systemd.log(UNIT).matches("queries that still arrive are answered for 5s").count();
        put();
        let (before, pid) = (seen(), systemd.main_pid(UNIT));
        systemd.ctl(&["restart", UNIT]);
        let next = systemd.main_pid(UNIT);
        assert!(pid != next && next != "0", "{pid} is followed by {next}");
        assert_eq!(seen(), before);
        assert_eq!(waited(), 0, "a restart waits for no client");
        answers_everywhere(US, US);
        // A stop removes both.
        systemd.ctl(&["stop", UNIT]);
        assert_eq!(count(), 0, "{}", systemd.log(UNIT));
        assert_eq!(shell(&format!("test -e {DROP_IN} || echo gone")), "gone\n");
        assert_eq!(waited(), 1, "{}", systemd.log(UNIT));

        systemd.ctl(&["start", UNIT]);
        put();
        let (before, pid) = (seen(), systemd.main_pid(UNIT));
        systemd.ctl(&["kill", "--kill-who=main", "--signal=USR2", UNIT]);
        eventually("the next process", PATIENCE, || {
            let main = systemd.main_pid(UNIT);
            (main != pid && main != "0" && systemd.log(UNIT).contains("Upgrade finished")).then_some(())
        });
        answers_everywhere(US, US);
        assert_eq!(seen(), before);
        assert_eq!(waited(), 1, "an upgrade waits for no client");
    });
}

/// The node with the shipped unit; `None` where that is not possible.
pub(crate) fn boot(test: &str) -> Option<(Lab, Systemd)> {
    if !tool(test, "nft") {
        return None;
    }
    let lab = Lab::new();
    fs::create_dir_all("/etc/localdns").expect("the test's own");
    fs::write("/etc/localdns/Corefile", COREFILE).expect("the test's own");
    Some((lab, Systemd::boot(test)?))
}

pub(crate) const UNIT: &str = "localdns-node";
const PATIENCE: Duration = Duration::from_secs(20);
