//! The two nftables tables, as `nft` lists them.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::scope;
use std::time::Duration;

use node::{Clients, DeathDetection, Fallback, Leases, Listener, NftError, Rules, TableState};
use tests::{isolated, run, tool};

/// The table reads back as written and is removed without a trace.
#[test]
fn permanent_table_round_trip() {
    isolated(|| {
        if !tool("rules", "nft") {
            return;
        }
        let mut rules = Rules::open().unwrap();
        assert!(!rules.are_there().unwrap());
        rules.put(&[], &Clients::All).unwrap();
        for _ in 0..2 {
            rules.put(&listeners(), &clients()).unwrap();
        }
        assert!(rules.are_there().unwrap());
        rules.plan_restart(&addresses(), Duration::from_secs(2)).unwrap();
        rules.plan_restart(&addresses(), Duration::from_secs(2)).unwrap();
        assert_eq!(listed("localdns"), FAILOVER);
        for _ in 0..2 {
            rules.remove().unwrap();
        }
        assert_eq!(run("nft", &["list", "ruleset"]), "");
        assert!(matches!(rules.plan_restart(&addresses(), LASTS), Err(NftError::NotSupported { .. })));
    });
}

/// Every change of another program to the table is seen.
#[test]
fn permanent_table_changes_are_seen() {
    isolated(|| {
        if !tool("rules", "nft") {
            return;
        }
        let mut rules = Rules::open().unwrap();
        assert_eq!(rules.standing().unwrap(), TableState::Missing);
        assert!(!rules.are_those_of(&listeners(), &clients()).unwrap());
        let third = "nft -a list chain inet localdns output | sed -n 's/.*# handle //p' | sed -n 4p";
        for (change, seen) in [
            ("nft delete table inet localdns", TableState::Missing),
            ("nft flush table inet localdns", TableState::Missing),
            ("nft flush chain inet localdns failover", TableState::Changed),
            (&format!("nft delete rule inet localdns output handle $({third})"), TableState::Changed),
            (&format!("nft replace rule inet localdns output handle $({third}) drop"), TableState::Changed),
            ("nft insert rule inet localdns input drop", TableState::Changed),
            ("nft add chain inet localdns prerouting '{ policy drop; }'", TableState::Changed),
            // A chain and a set of another program.
            (
                "nft add chain inet localdns theirs '{ type filter hook input priority 0; policy drop; }'",
                TableState::Changed,
            ),
            ("nft add set inet localdns theirs '{ type ipv4_addr; }'", TableState::Changed),
            // A dormant table's chains see no packets.
            ("nft add table inet localdns '{ flags dormant; }'", TableState::Changed),
            ("nft delete element inet localdns transports '{ 6 }'", TableState::Changed),
            ("nft add element inet localdns listeners4 '{ 192.0.2.1 }'", TableState::Changed),
            ("nft flush chain inet localdns clients", TableState::Changed),
            ("nft insert rule inet localdns clients jump failover", TableState::Changed),
        ] {
            rules.put(&listeners(), &clients()).unwrap();
            // Restart leases may be added and expire.
            rules.plan_restart(&addresses(), LASTS).unwrap();
            assert_eq!(rules.standing().unwrap(), TableState::AsPut, "before: {change}");
            assert!(Rules::open().unwrap().are_those_of(&listeners(), &clients()).unwrap());
            assert!(!rules.are_those_of(&listeners()[1..], &clients()).unwrap());
            run("sh", &["-ec", change]);
            assert_eq!(rules.standing().unwrap(), seen, "{change}");
            assert!(!Rules::open().unwrap().are_those_of(&listeners(), &clients()).unwrap(), "{change}");
        }
        rules.remove().unwrap();
    });
}

/// The table is listed only after changes of another program.
#[test]
fn permanent_table_is_listed_on_change() {
    isolated(|| {
        if !tool("rules", "nft") {
            return;
        }
        let (mut rules, mut leases) = (Rules::open().unwrap(), Leases::open(MARK).unwrap());
        rules.put(&listeners(), &clients()).unwrap();
        for lists in 1..3 {
            for _ in 0..5 {
                leases.renew(&addresses(), Some(LASTS)).unwrap();
                assert_eq!(rules.standing().unwrap(), TableState::AsPut);
                rules.plan_restart(&addresses(), LASTS).unwrap();
                // A call without a message is no transaction.
                rules.plan_restart(&[], LASTS).unwrap();
            }
            assert_eq!(rules.lists(), lists, "our own transactions are none of others");
            // A table of another program causes one more listing.
            run("nft", &[&format!("add table inet others{lists}")]);
        }
        run("nft", &["delete element inet localdns listeners4 { 169.254.10.10 }"]);
        leases.renew(&addresses(), Some(LASTS)).unwrap();
        for _ in 0..2 {
            assert_eq!(rules.standing().unwrap(), TableState::Changed);
        }
        rules.remove().unwrap();
        assert_eq!(rules.standing().unwrap(), TableState::Missing, "by ourselves");
    });
}

/// A lease table ends with its owner and survives changes by other processes.
#[test]
fn lease_table_ends_with_its_owner() {
    isolated(|| {
        if !tool("rules", "nft") {
            return;
        }
        let mut leases = Leases::open(MARK).unwrap();
        let [table] = &*lease_tables() else { panic!("{:?}", lease_tables()) };
        assert_eq!(leases.seen(), DeathDetection { by_owner: true, by_socket: true });
        assert_eq!(Rules::open().unwrap().holders().unwrap(), [std::process::id()]);
        for _ in 0..2 {
            leases.admit_probes(&addresses()).unwrap();
            leases.renew(&addresses(), Some(LASTS)).unwrap();
        }
        assert_eq!(listed(table), LEASES);
        leases.admit_probes(&addresses()[1..]).unwrap();
        let probed = run("nft", &["list", "set", "inet", table, "probed4"]);
        assert!(probed.contains("elements = { 10.96.0.20 }"), "{probed}");
        leases.admit_probes(&addresses()).unwrap();
        run("nft", &["flush", "ruleset"]);
        for change in ["flush table", "delete table", "flush chain"] {
            let chain = if change.ends_with("chain") { " output" } else { "" };
            let refused = Command::new("nft").arg(format!("{change} inet {table}{chain}")).output().unwrap();
            assert!(!refused.status.success(), "{change}");
        }
        assert_eq!(listed(table), LEASES, "it is not theirs");
        drop(leases);
        assert_eq!(run("nft", &["list", "ruleset"]), "");
        let mut leases = Leases::open(MARK).unwrap();
        leases.renew(&addresses(), Some(LASTS)).unwrap();
        leases.renew(&addresses(), None).unwrap();
        let open_ended = run("nft", &["list", "set", "inet", &lease_tables()[0], "lease6"]);
        assert!(open_ended.contains("elements = { fd10::11 }"), "{open_ended}");
        leases.give_up().unwrap();
        assert_eq!(run("nft", &["list", "ruleset"]), "");
    });
}

#[test]
fn two_leases_at_once() {
    isolated(|| {
        if !tool("rules", "nft") {
            return;
        }
        // Two containers on one network are both process 1.
        let mut both = [Leases::open(MARK).unwrap(), Leases::open(MARK).unwrap()];
        let tables = lease_tables();
        assert_eq!(tables.len(), 2);
        assert_eq!(Rules::open().unwrap().holders().unwrap(), [std::process::id(); 2]);
        for leases in &mut both {
            leases.admit_probes(&addresses()).unwrap();
            leases.renew(&addresses(), Some(LASTS)).unwrap();
        }
        assert!(tables.iter().all(|table| listed(table) == LEASES), "{tables:?}");
        let [one, other] = both;
        drop(one);
        assert_eq!(Rules::open().unwrap().holders().unwrap(), [std::process::id()]);
        assert_eq!(lease_tables().iter().map(|table| listed(table)).collect::<Vec<_>>(), [LEASES]);
        drop(other);
    });
}

/// Neither a query nor its answer is tracked where only a lease applies.
#[test]
fn lone_leases_queries_are_untracked() {
    isolated(|| {
        if !tool("rules", "nft") || !tool("rules", "conntrack") {
            return;
        }
        // A program that needs conntrack's state.
        run(
            "nft",
            &[
                "table inet others { chain output { type filter hook output priority 0; ct state new counter; }; }",
            ],
        );
        let served: Vec<_> = ["10.96.0.20", "fd10::11"]
            .map(|ip| {
                run("ip", &["addr", "add", ip, "dev", "lo", "nodad"]);
                patient(UdpSocket::bind((ip.parse::<IpAddr>().unwrap(), 53)).unwrap())
            })
            .into();
        let entries = || ["ipv4", "ipv6"].map(|family| run("conntrack", &["-L", "-f", family])).concat();
        let ask = |server: &UdpSocket| {
            let (to, mut octets) = (server.local_addr().unwrap(), [0; 4]);
            let client = patient(UdpSocket::bind((to.ip(), 0)).unwrap());
            client.send_to(b"ask", to).unwrap();
            let (_, from) = server.recv_from(&mut octets).expect("the query arrives");
            server.send_to(b"told", from).unwrap();
            client.recv_from(&mut octets).expect("its answer arrives");
        };
        served.iter().for_each(ask);
        assert_eq!(
            entries().matches("dport=53 ").count(),
            served.len(),
            "they are tracked without: {}",
            entries()
        );
        run("conntrack", &["-F"]);
        let mut leases = Leases::open(MARK).unwrap();
        leases.renew(&addresses(), None).unwrap();
        served.iter().for_each(ask);
        assert_eq!(entries().matches("port=53 ").count(), 0, "{}", entries());
    });
}

/// Sets a read timeout, so that no test blocks forever.
fn patient(socket: UdpSocket) -> UdpSocket {
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("it is no zero");
    socket
}

/// All processes may change it, and the next one replaces it where it differs.
#[test]
fn older_kernels_shared_table() {
    isolated(|| {
        if !tool("rules", "nft") {
            return;
        }
        let mut leases = Leases::open_as(MARK, DeathDetection { by_owner: false, by_socket: false }).unwrap();
        leases.admit_probes(&addresses()).unwrap();
        leases.renew(&addresses(), Some(LASTS)).unwrap();
        let holder = format!("{:#010x}", std::process::id());
        let holders = format!(
            "\tset holders {{\n\t\ttype mark\n\t\tflags timeout\n\t\telements = {{ {holder} timeout 1s }}\n\t}}\n\n"
        );
        let expected = LEASES.replace(" socket transparent 0", "").replace("\tflags owner\n\n", &holders);
        assert_eq!(listed("localdns-lease"), expected);
        assert_eq!(Rules::open().unwrap().holders().unwrap(), [std::process::id()]);
        // The next process finds the leases, and both keep them.
        let mut next = Leases::open_as(MARK, DeathDetection { by_owner: false, by_socket: false }).unwrap();
        assert!(listed("localdns-lease").contains("elements = { 10.96.0.20"), "they stay");
        next.renew(&addresses(), Some(LASTS)).unwrap();
        leases.renew(&addresses(), Some(LASTS)).unwrap();
        next.leave().unwrap();
        assert_eq!(listed("localdns-lease"), expected);
        // The table has no owner: any program may delete its rules, and the leases with them.
        run("nft", &["flush", "table", "inet", "localdns-lease"]);
        let renewed = leases.renew(&addresses(), Some(LASTS));
        assert!(matches!(renewed, Err(NftError::Changed { .. })), "{renewed:?}");
        drop(leases);
        let next = Leases::open_as(MARK, DeathDetection { by_owner: false, by_socket: true }).unwrap();
        assert!(!listed("localdns-lease").contains("elements = { 10.96.0.20"), "no process has a lease yet");
        drop(next);
        assert!(Rules::open().unwrap().holders().unwrap().is_empty(), "no process has leases there");
        Rules::open().unwrap().remove().unwrap();
        assert_eq!(run("nft", &["list", "ruleset"]), "");
    });
}

/// Lease tables of this process.
fn lease_tables() -> Vec<String> {
    let ours = format!("localdns-lease-{}-", std::process::id());
    let tables = run("nft", &["list", "tables", "inet"]);
    tables
        .lines()
        .filter_map(|line| line.strip_prefix("table inet "))
        .filter(|table| table.starts_with(&ours))
        .map(str::to_owned)
        .collect()
}

/// A table without its name, its owner's name and its elements' remaining times.
fn listed(table: &str) -> String {
    let text = run("nft", &["list", "table", "inet", table]);
    let text = text.split_once('\n').map_or("", |(_, text)| text);
    text.split_inclusive([' ', '\n'])
        .scan(false, |skip, word| {
            let now = std::mem::replace(skip, word == "expires ");
            Some(if now { if word.ends_with(", ") { ", " } else { "" } } else { word })
        })
        .filter(|word| *word != "expires ")
        .collect::<String>()
        .replace(" ,", ",")
        // Newer versions of nft print the names.
        .replace("{ tcp, udp }", "{ 6, 17 }")
}

fn listeners() -> Vec<Listener> {
    [
        ("169.254.10.10", Some(("10.96.0.10", false))),
        ("fd10::11", Some(("fd03::2", true))),
        ("10.96.0.20", None),
    ]
    .into_iter()
    .map(|(address, fallback)| Listener {
        address: address.parse().expect("an address"),
        fallback: fallback
            .map(|(target, masquerade)| Fallback { target: target.parse().expect("an address"), masquerade }),
        fails_closed: false,
    })
    .collect()
}

fn clients() -> Clients {
    Clients::NotFrom(["eth0", "eth1"].map(str::to_owned).into())
}

fn addresses() -> Vec<IpAddr> {
    listeners().iter().map(|listener| listener.address).collect()
}

const MARK: u32 = 0x6c64_6e73;
const LASTS: Duration = Duration::from_secs(1);
/// As nft 1.0.6 prints them.
const FAILOVER: &str = include_str!("../../fixtures/failover.nft");
const LEASES: &str = include_str!("../../fixtures/leases.nft");

/// A lease table stays while other sockets of the process are closed.
#[test]
fn lease_table_and_other_sockets() {
    isolated(|| {
        if !tool("rules", "nft") {
            return;
        }
        let is_over = AtomicBool::new(false);
        scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    drop(Rules::open());
                }
            });
            // With sockets bound to the process ID as their netlink address, one in a hundred was
            // gone.
            let renewed = (0..500).map(|_| Leases::open(MARK)?.renew(&addresses(), Some(LASTS)));
            let gone: Vec<_> = renewed.filter_map(Result::err).collect();
            is_over.store(true, Relaxed);
            assert!(gone.is_empty(), "{} of 500: {}", gone.len(), gone[0]);
        });
    });
}
