//! Replacing a server that has rules and leases: no query fails over.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, accept, bind, connect, listen, recv,
    send, socket,
};
use tests::{
    Ask, Options, Server, eventually, isolated, isolated_for, isolated_steadily, run, signal, tempdir, tool,
};

use super::availability::node;
use super::clients::{Clients, at, handovers, thirty_percent};
use super::lab::{COREFILE, Lab, NAME, PLAIN, US};

/// No query is lost or goes to the upstream.
#[test]
fn five_upgrades() {
    isolated_steadily(Duration::from_secs(180), || upgrades(5, || CALM, Clients::start));
}

/// No query is lost or goes to the upstream.
#[test]
#[ignore = "long: a hundred upgrades"]
fn hundred_upgrades_by_a_signal() {
    isolated_for(Duration::from_secs(900), || upgrades(handovers(), thirty_percent, Clients::held_to));
}

/// Runs that many upgrades by SIGUSR2 while clients send `rate` queries a second in total.
fn upgrades(times: usize, rate: fn() -> u32, clients: fn(u32) -> Clients) {
    if !tool("node upgrades", "nft") {
        return;
    }
    let lab = Lab::new();
    let mut server = lab.serve(&[]);
    let serves = |n| drop(server.wait_for_lines("queries to fd10::11 are answered here", n, PATIENCE));
    serves(1);
    let rate = rate() / Clients::OVER_UDP;
    let asked = lab.asked();
    let clients = clients(rate);
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
    assert!(clients.finish() >= times, "each connection that was kept ended with each process");
    assert_eq!(lab.asked(), asked, "queries that the upstream was asked");
    assert!(server.wait(PATIENCE).success());
    let log = server.log_text();
    assert!(!log.contains("the lease of"), "a lease ended meanwhile:\n{log}");
    signal(pid, "TERM");
}

/// Queries go to the upstream and then to the former server.
#[test]
fn successor_hangs_when_ready() {
    isolated(|| {
        if !tool("node upgrades", "nft") {
            return;
        }
        let (_lab, directory) = (Lab::new(), tempdir());
        let (server, hangs) = Successor::of(directory.path());
        let answered_by = |responder: &str| {
            eventually(responder, PATIENCE, || {
                let reply = Ask::new(NAME, "A").timeout(Duration::from_millis(100)).try_of(at(OURS)).ok()?;
                (reply.short() == [responder]).then_some(())
            });
        };
        answered_by(PLAIN);
        hangs.expect_word("back");
        answered_by(US);
        let back = format!("queries to {OURS} are answered here");
        server.wait_for_lines(&back, 2, PATIENCE);
        server.wait_for_log("the next process does not serve, this one continues", PATIENCE);
        let log = server.log_text();
        let ended = log.find(&format!("the lease of {OURS} ended: the next process does not answer"));
        assert!(ended.is_some_and(|ended| ended < log.rfind(&back).expect("it was logged")), "{log}");
    });
}

/// `down` during a takeover removes nothing and reports why.
#[test]
fn down_during_a_takeover() {
    isolated(|| {
        if !tool("node upgrades", "nft") {
            return;
        }
        let (_lab, directory) = (Lab::new(), tempdir());
        let (server, successor) = Successor::begun(directory.path());
        // While it starts, and when it is about to answer.
        let printed = node(&server, &["down"], 1);
        assert!(printed.contains("left: the server is handing over to another process"), "{printed}");
        successor.confirm_takeover();
        let printed = node(&server, &["down"], 1);
        assert!(printed.contains("left: the server is handing over to another process"), "{printed}");
        assert!(run("nft", &["list", "tables", "inet"]).contains("table inet localdns\n"));
        drop(successor);
        server.wait_for_log("the next process does not serve, this one continues", PATIENCE);
        assert!(node(&server, &["down"], 0).contains("removed the rules"));
    });
}

/// SIGTERM is obeyed while the former process has not confirmed the handover.
#[test]
fn sigterm_before_the_predecessor_confirms() {
    isolated(|| {
        let directory = tempdir();
        let (door, corefile) = (directory.path().join("door"), directory.path().join("Corefile"));
        std::fs::write(&corefile, ".:53 {\nwhoami\n}\n").expect("the test's own");
        let at = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        bind(&at, &SocketAddrUnix::new(&door).expect("a short path")).expect("it is free");
        listen(&at, 1).expect("it can be connected to");
        let mut command = Command::new(tests::binary());
        command.arg("-conf").arg(&corefile).arg("-handover").arg(&door).stdout(Stdio::piped());
        let mut server = command.spawn().expect("it starts");
        let before = Successor(accept(&at).expect("it connects"));
        set_socket_timeout(&before.0, Timeout::Recv, Some(PATIENCE)).expect("it can be set");
        before.send_word("localdns 1: all");
        before.expect_word("ready");
        before.send_word("yours");
        before.expect_word("serving");
        signal(server.id(), "TERM");
        let ended = eventually("its end", PATIENCE, || server.try_wait().expect("it can be asked"));
        let log = std::io::read_to_string(server.stdout.take().expect("a pipe")).expect("text");
        assert!(ended.success() && log.contains("SIGTERM"), "{log}");
        assert!(!log.contains("the shutdown took too long"), "{log}");
    });
}

/// A successor that the test drives step by step.
struct Successor(OwnedFd);

impl Successor {
    /// Starts a server and a successor that is about to answer, and does nothing.
    fn of(directory: &Path) -> (Server, Self) {
        let (server, successor) = Self::begun(directory);
        successor.confirm_takeover();
        (server, successor)
    }

    /// Starts a server and a successor that has received the sockets only.
    fn begun(directory: &Path) -> (Server, Self) {
        let door = directory.join("door");
        let how = Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
        let server = Server::start_with(COREFILE, how.args(["-handover", &door.to_string_lossy()]));
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        let successor = eventually("it may be succeeded", PATIENCE, || Self::connect(&door));
        successor.expect_word("localdns 1: all");
        (server, successor)
    }

    fn confirm_takeover(&self) {
        self.send_word("ready");
        self.expect_word("yours");
    }

    fn connect(door: &Path) -> Option<Self> {
        let successor = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        set_socket_timeout(&successor, Timeout::Recv, Some(PATIENCE)).expect("it can be set");
        connect(&successor, &SocketAddrUnix::new(door).expect("a short path")).ok()?;
        Some(Self(successor))
    }

    /// Waits for a message. Descriptors beside others are closed: their buffer is empty.
    fn expect_word(&self, word: &str) {
        let mut text = vec![0; 1 << 16];
        loop {
            let (length, _) = recv(&self.0, &mut text[..], RecvFlags::empty()).expect("a word arrives");
            assert!(length > 0, "it hung up before {word}");
            if &text[..length] == word.as_bytes() {
                return;
            }
        }
    }

    fn send_word(&self, word: &str) {
        send(&self.0, word.as_bytes(), SendFlags::empty()).expect("it receives");
    }
}

const OURS: &str = "169.254.10.11";
/// Queries a second over UDP.
pub(crate) const CALM: u32 = 1_000;
const PATIENCE: Duration = Duration::from_secs(15);
