//! `-probe-mark`: the mark of the packets that the rules admit to the server.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tests::{Manager, eventually, isolated, isolated_steadily, run, tool};

use super::availability::status;
use super::clients::{ADDRESSES, answers_everywhere};
use super::lab::{Lab, US};

/// Probes carry the configured mark, and the lease table passes no other.
#[test]
fn probe_mark() {
    isolated_steadily(Duration::from_secs(60), || {
        if !tool("probe mark", "nft") {
            return;
        }
        let lab = Lab::new();
        run("nft", &["add table inet seen"]);
        run("nft", &["add chain inet seen output { type filter hook output priority -400; }"]);
        // Another program uses the default mark here; its packets are dropped.
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
            assert!(leases.contains("meta mark 0x0000002a ip daddr @probed4 "), "{mark}: {leases}");
            assert!(!leases.contains("6c646e73"), "{mark}: {leases}");
            answers_everywhere(US, US);
            let counted: [_; 2] = packets();
            eventually("more probes", PATIENCE, || (packets::<2>()[1] > counted[1] + 20).then_some(()));
            assert_eq!(packets::<2>()[0], 0, "{mark}: probes of the other mark");
            let printed = status(&server, 0);
            assert_eq!(printed.matches("held, lost 0 times").count(), ADDRESSES.len(), "{mark}: {printed}");
            assert!(server.stop().success());
        }
    });
}

/// Any program with the right to set marks may set this one: conntrack still tracks its other
/// packets.
#[test]
fn the_mark_alone_escapes_no_conntrack() {
    isolated(|| {
        if !tool("probe mark", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        run("nft", &["add table inet seen"]);
        run("nft", &["add chain inet seen output { type filter hook output priority 0; }"]);
        let ours = "meta mark 0x6c646e73 th dport 53 ip daddr 169.254.10.10";
        let resolvers = "th dport 53 ip daddr { 127.0.0.53, 10.3.0.2 }";
        for packets in [ours, "th dport { 54, 55, 57 }", resolvers] {
            run("nft", &[&format!("add rule inet seen output ct state untracked {packets} counter")]);
        }
        for to in [
            "169.254.10.10:53",
            "169.254.10.10:54",
            "[fd10::11]:55",
            "10.3.0.2:57",
            "127.0.0.53:53",
            "10.3.0.2:53",
        ] {
            send_marked(to.parse().expect("an address"));
        }
        let [of_ours, of_others, of_resolvers] = packets();
        assert!(of_ours > 0, "a probe is one of them");
        assert_eq!((of_others, of_resolvers), (0, 0));
    });
}

fn send_marked(to: SocketAddr) {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None).expect("there are sockets");
    socket.set_mark(0x6c64_6e73).expect("root may");
    socket.send_to(b"marked", &to.into()).expect("it is sent");
}

/// Packet counters of the rules.
fn packets<const RULES: usize>() -> [usize; RULES] {
    let rules = run("nft", &["list", "chain", "inet", "seen", "output"]);
    let counts = rules.split("counter packets ").skip(1);
    let counts: Vec<_> = counts.filter_map(|rest| rest.split_whitespace().next()?.parse().ok()).collect();
    counts.try_into().expect("so many rules that count")
}

const PATIENCE: Duration = Duration::from_secs(20);
