//! The life cycle of `node run -rules iptables`, as production's checks expect it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tests::{Ask, Message, Server, Stream, eventually, isolated_steadily, now, run, signal, tool};

use super::host_resolver::{DROP_IN, Machine};
use super::lab::{Lab, NAME, US};

/// Eight rules, two addresses and a drop-in: each exists once after a kill, none after a stop.
#[test]
fn production_setup_over_five_kills() {
    isolated_steadily(Duration::from_secs(180), || {
        if !tool("production", "nft") || !tool("production", "iptables") {
            return;
        }
        let lab = Lab::new();
        let machine = Machine::new();
        machine.state("configured");
        machine.resolv_conf("nameserver 169.254.10.10\n");
        let mut server = serve(&lab, &machine);
        all_is_there();
        let clients = ADDRESSES.map(|at| Stream::start(at, RATE, |_| Ask::new(NAME, "A"), is_right));
        let began = now();
        signal(server.pid(), "TERM");
        eventually("neither drop-in nor rules", Duration::from_secs(3), || {
            (!Path::new(DROP_IN).exists() && rules().is_empty()).then_some(())
        });
        // Late queries are still answered for most of the 5 s.
        let sent = clients.each_ref().map(Stream::sent);
        eventually("queries of the last seconds", PATIENCE, || {
            let mut more = clients.iter().zip(&sent).map(|(client, sent)| client.sent() - sent);
            more.all(|more| more >= 3 * RATE as usize).then_some(())
        });
        clients.into_iter().for_each(|client| client.finish(Duration::from_secs(1)).assert_clean());
        for at in ADDRESSES {
            assert_eq!(Ask::new(NAME, "A").tcp().of(at).short(), [US]);
        }
        assert!(server.is_running(), "it was asked to the end");
        assert_eq!(server.wait(PATIENCE).code(), Some(0));
        assert!(began.elapsed() < Duration::from_secs(10), "well inside of 30 s: {:?}", began.elapsed());
        nothing_is_there();

        for _ in 0..5 {
            let mut server = serve(&lab, &machine);
            all_is_there();
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
        }
        let mut server = serve(&lab, &machine);
        all_is_there();
        for at in ADDRESSES {
            assert_eq!(Ask::new(NAME, "A").of(at).short(), [US]);
        }
        assert!(server.stop().success());
        nothing_is_there();
    });
}

fn serve(lab: &Lab, machine: &Machine) -> Server {
    let server =
        lab.serve_corefile(COREFILE, |options| machine.on_path(options.args(["-rules", "iptables"])));
    let settled = || (rules().len() == 8 && Path::new(DROP_IN).exists()).then_some(());
    eventually("rules and drop-in", PATIENCE, settled);
    server
}

fn all_is_there() {
    let mut expected = Vec::new();
    for chain in ["PREROUTING", "OUTPUT"] {
        for ip in ["169.254.10.10", "169.254.10.11"] {
            for transport in ["tcp", "udp"] {
                expected.push(format!(
                    "-A {chain} -d {ip}/32 -p {transport} -m comment --comment \"localdns: skip conntrack\" \
                     -m {transport} --dport 53 -j NOTRACK"
                ));
            }
        }
    }
    expected.sort_unstable();
    assert_eq!(rules(), expected);
    let drop_in = fs::read_to_string(DROP_IN).expect("it is there");
    for line in ["DNS=169.254.10.10\n", "UseDNS=false\n"] {
        assert!(drop_in.contains(line), "{drop_in}");
    }
    let link = run("ip", &["-br", "-4", "addr", "show", "dev", "localdns"]);
    let mut addresses: Vec<_> = link.split_whitespace().filter(|word| word.contains('/')).collect();
    addresses.sort_unstable();
    assert_eq!(addresses, ["169.254.10.10/32", "169.254.10.11/32"], "{link}");
}

fn nothing_is_there() {
    assert_eq!(rules(), Vec::<String>::new());
    assert!(!Path::new(DROP_IN).exists());
    assert!(!run("ip", &["link"]).contains("localdns"));
}

/// Rules of the table `raw` as `iptables -S` prints them, sorted.
fn rules() -> Vec<String> {
    let listed = run("iptables", &["-t", "raw", "-S"]);
    let mut rules: Vec<_> =
        listed.lines().filter(|line| line.starts_with("-A ")).map(str::to_owned).collect();
    rules.sort_unstable();
    rules
}

fn is_right(_: usize, message: &Message) -> bool {
    message.answers.first().is_some_and(|record| record.data == US)
}

/// Queries a second to each address.
const RATE: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(20);
const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 10, 10)), 53),
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 10, 11)), 53),
];
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10
    hosts {
        192.0.2.1 who.test
        ttl 5
    }
    forward . 10.2.0.2
}
.:53 {
    bind 169.254.10.11
    hosts {
        192.0.2.1 who.test
        ttl 5
    }
    forward . 10.96.0.10
}
";
