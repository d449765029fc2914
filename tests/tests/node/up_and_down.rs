//! Set-up and removal by commands without a server, and the state after a stop.

use std::fs;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tests::{Ask, Options, Server, ask, eventually, isolated, publish, run, signal, tool};

use super::availability::{node, status};
use super::clients::asked_at;
use super::lab::{CLUSTER, COREFILE, Lab, NAME, PLAIN, US};
use super::restart::{UNIT, boot};
use super::stop_in_start::{Killed, sleeps};

/// Queries are answered until the end of a clean stop, which leaves nothing.
#[test]
fn clean_stop_leaves_nothing() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let lab = Lab::new();
        let mut server = lab.serve(&["-at-stop", "clean", "-lease", "off"]);
        ready(&server);
        signal(server.pid(), "TERM");
        server.wait_for_log("SIGTERM", Duration::from_secs(5));
        let last = Ask::new(NAME, "A").timeout(Duration::from_secs(1));
        assert_eq!(last.of((address("169.254.10.11"), 53).into()).short(), [US]);
        assert!(server.wait(Duration::from_secs(10)).success());
        assert_eq!(run("nft", &["list", "tables", "inet"]), "");
        assert!(!run("ip", &["link"]).contains("localdns"));
    });
}

#[test]
fn reload_after_down_adds_no_address() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        ready(&server);
        node(&server, &["down"], 0);
        server.write_corefile(&COREFILE.replace("169.254.10.11", "169.254.10.11 169.254.10.12"));
        server.signal("HUP");
        server.wait_for_log("169.254.10.12 is on no interface of this machine", Duration::from_secs(10));
        server.write_corefile(&COREFILE.replace("ttl 5", "ttl 6"));
        server.signal("HUP");
        server.wait_for_log("Reloading complete", Duration::from_secs(10));
        assert!(!run("ip", &["link"]).contains("localdns"));
        assert!(!run("ip", &["addr"]).contains("169.254.10."));
    });
}

/// `up` reports a missing Corefile, and `status` uses the running server's.
#[test]
fn up_and_status_without_a_corefile() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let lab = Lab::new();
        // The tests' own directory has no Corefile.
        let unnamed = |word: &str, code: i32| {
            let mut command = Command::new(tests::binary());
            command.args(["node", word, "-host-resolver", "none"]);
            let output = tests::output(command, PATIENCE);
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{word}: {text}");
            text.into_owned()
        };
        let none = "there is no ./Corefile; name one with -conf FILE";
        for word in ["up", "status"] {
            let shown = unnamed(word, 1);
            assert!(shown.contains(none) && !shown.contains("0.0.0.0"), "{word}: {shown}");
        }
        nothing_is_there();

        let server = lab.serve(&["-host-resolver", "none"]);
        ready(&server);
        let shown = unnamed("status", 0);
        for line in [
            "address   169.254.10.11  on localdns, fallback 10.3.0.2, answers\n",
            "note      there is no ./Corefile and no -conf: addresses are those of the running server\n",
        ] {
            assert!(shown.contains(line), "{line}{shown}");
        }
        assert!(!shown.contains("0.0.0.0"), "{shown}");
        assert!(unnamed("up", 1).contains(none));
    });
}

/// A server without rules reports which existing rules redirect its queries.
#[test]
fn server_without_rules_reports_redirects() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let lab = Lab::new();
        let mut before = lab.serve(&["-host-resolver", "none"]);
        ready(&before);
        signal(before.pid(), "TERM");
        assert!(before.wait(Duration::from_secs(15)).success());
        let plain = Server::start_with(COREFILE, Options::default());
        let line = plain.wait_for_log("run: localdns node down", Duration::from_secs(15));
        assert!(line.contains("by rules that an ended `localdns node` left (table inet localdns)"), "{line}");
        assert_eq!(plain.log_text().matches("run: localdns node down").count(), 1);
        assert!(node(&plain, &["down"], 0).contains("removed the rules"));
    });
}

/// Its predecessor kept rules; it reports which ones redirect its queries.
#[test]
fn successor_without_rules_reports_redirects() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let (lab, directory) = (Lab::new(), tests::tempdir());
        let door = directory.path().join("door").to_string_lossy().into_owned();
        let mut before =
            lab.serve_with(|options| options.args(["-host-resolver", "none", "-handover", &door]));
        ready(&before);
        eventually("it may be succeeded", PATIENCE, || Path::new(&door).exists().then_some(()));
        let plain = Server::start_with(COREFILE, Options::default().args(["-handover", &door]));
        assert!(before.wait(PATIENCE).success(), "{}", before.log_text());
        let line = plain.wait_for_log("run: localdns node down", PATIENCE);
        assert!(line.contains("by rules that an ended `localdns node` left (table inet localdns)"), "{line}");
        assert_eq!(plain.log_text().matches("run: localdns node down").count(), 1);
        assert!(node(&plain, &["down"], 0).contains("removed the rules"));
    });
}

/// Several `node down` leave nothing, and none of them fails.
#[test]
fn concurrent_downs() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let _lab = Lab::new();
        fs::write("/run/Corefile", COREFILE).expect("the test's own");
        let node = |words: &[&str]| {
            let mut command = Command::new(tests::binary());
            command.arg("node").args(words);
            let output = tests::output(command, PATIENCE);
            assert!(output.status.success(), "{words:?}: {output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        for _ in 0..5 {
            node(&["up", "-conf", "/run/Corefile", "-host-resolver", "none"]);
            std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(|| node(&["down"])))));
            nothing_is_there();
        }
        // Without systemd it is unknown whether a start follows.
        let printed = node(&["stopped"]);
        assert!(
            printed.starts_with("systemd does not run, ")
                && printed.contains("`localdns node down` restores it"),
            "{printed}"
        );
    });
}

#[test]
fn more_addresses_than_a_netlink_buffer() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        let all: Vec<_> = (0..400).map(|n| format!("169.254.{}.{}", 20 + n / 200, 1 + n % 200)).collect();
        let corefile = format!(".:53 {{\nbind {}\nforward . 10.2.0.2\n}}\n", all.join(" "));
        fs::write("/run/Corefile", corefile).expect("the test's own");
        let mut up = Command::new(tests::binary());
        up.args(["node", "up", "-host-resolver", "none", "-conf", "/run/Corefile"]);
        let output = tests::output(up, Duration::from_secs(30));
        assert!(output.status.success(), "{output:?}");
        let away = run("nft", &["list", "chain", "inet", "localdns", "failover"]);
        assert_eq!(away.matches("ip daddr set 10.2.0.2").count(), all.len());
    });
}

/// `up` waits for the network's servers and reports if there are none.
#[test]
fn up_waits_for_servers() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let _lab = Lab::new();
        fs::write("/run/Corefile", OF_THE_NETWORK).expect("the test's own");
        let begun = || {
            let mut up = Command::new(tests::binary());
            let words =
                ["node", "up", "-host-resolver", "none", "-upstreams", GIVEN, "-conf", "/run/Corefile"];
            let mut up = Killed(up.args(words).stdout(Stdio::piped()).spawn().expect("the binary starts"));
            eventually("a wait for the list", PATIENCE, || sleeps(up.0.id()).then_some(()));
            assert!(up.0.try_wait().expect("it is ours").is_none());
            up
        };
        let ended = |mut up: Killed| {
            let status = eventually("its end", PATIENCE, || up.0.try_wait().expect("it is ours"));
            let mut printed = String::new();
            up.0.stdout.take().expect("it is piped").read_to_string(&mut printed).expect("it speaks UTF-8");
            (status.code(), printed)
        };
        let (code, printed) = ended(begun());
        let why = "168.63.129.16 stands for the name servers of the node's network, and none is known: /run/given: No such file or directory";
        assert!(
            printed.contains(why) && printed.contains("run `localdns node up` again once there are some"),
            "{printed}"
        );
        assert_eq!(code, Some(1), "{printed}");
        // The other address still has its fallback.
        assert_eq!(asked_at("169.254.10.11", false), CLUSTER);

        let up = begun();
        publish(Path::new(GIVEN), "nameserver 10.3.0.2\n");
        let (code, printed) = ended(up);
        assert_eq!(code, Some(0), "{printed}");
        assert!(
            printed.contains("queries to 169.254.10.10 go to 10.3.0.2 while no server is running"),
            "{printed}"
        );
        for tcp in [false, true] {
            assert_eq!(asked_at("169.254.10.10", tcp), PLAIN);
        }
    });
}

/// The unit looks for the network's servers until there are some.
#[test]
fn first_boot_waits_for_servers() {
    isolated(|| {
        let test = "first_boot_waits_for_servers";
        let Some((_lab, systemd)) = boot(test) else { return };
        fs::write("/etc/localdns/Corefile", OF_THE_NETWORK).expect("the test's own");
        let given = "LOCALDNS_NODE_UPSTREAMS=/etc/localdns/given\nLOCALDNS_NODE_HOST_RESOLVER=none\n";
        fs::write("/etc/localdns/environment", given).expect("the test's own");
        let unit = "localdns-node-up";
        systemd.more(unit, "[Service]\nRestartSec=100ms\n");
        systemd.ctl(&["start", "--no-block", unit]);
        eventually("a second try", PATIENCE, || (systemd.show(unit, "NRestarts") == ["1"]).then_some(()));
        assert!(systemd.log(unit).contains("none is known: /etc/localdns/given"), "{}", systemd.log(unit));
        publish(Path::new("/etc/localdns/given"), "nameserver 10.3.0.2\n");
        eventually("its end", PATIENCE, || {
            (systemd.show(unit, "ActiveState,SubState") == ["active", "exited"]).then_some(())
        });
        assert_eq!(asked_at("169.254.10.10", false), PLAIN);
    });
}

#[test]
fn node_up_unit_takes_server_flags() {
    isolated(|| {
        let test = "node_up_unit_takes_server_flags";
        let Some((_lab, systemd)) = boot(test) else { return };
        fs::write("/etc/localdns/environment", "LOCALDNS_NODE_LINK=dns0\n").expect("the test's own");
        for unit in ["localdns-node-up", UNIT] {
            systemd.ctl(&["start", unit]);
            let on = run("ip", &["-o", "addr", "show", "to", "169.254.10.10"]);
            // Matches the link's name, not its alias.
            let links = run("ip", &["-o", "link"]);
            assert!(on.contains(" dns0 ") && !links.contains(": localdns:"), "{unit}: {on}{links}");
        }
    });
}

/// The unit takes the Corefile and the pidfile from the environment.
#[test]
fn unit_takes_paths_from_the_environment() {
    isolated(|| {
        let test = "unit_takes_paths_from_the_environment";
        let Some((_lab, systemd)) = boot(test) else { return };
        fs::rename("/etc/localdns/Corefile", "/etc/localdns/another").expect("the test's own");
        let environment =
            "LOCALDNS_NODE_CONF=/etc/localdns/another\nLOCALDNS_NODE_PIDFILE=/run/another.pid\n";
        fs::write("/etc/localdns/environment", environment).expect("the test's own");
        systemd.ctl(&["start", UNIT]);
        assert_eq!(systemd.show(UNIT, "ActiveState"), ["active"]);
        let mut pid = systemd.inside("cat");
        let pid = pid.arg("/run/another.pid").output().expect("it runs").stdout;
        assert_eq!(String::from_utf8_lossy(&pid).trim(), systemd.main_pid(UNIT));
    });
}

/// Without rules a stop is clean unless configured otherwise.
#[test]
fn stop_without_rules_is_clean() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let lab = Lab::new();
        for (flags, left) in
            [(&["-rules", "none"][..], false), (&["-rules", "none", "-at-stop", "failover"][..], true)]
        {
            let mut server = lab.serve(flags);
            signal(server.pid(), "TERM");
            assert!(server.wait(Duration::from_secs(10)).success());
            assert_eq!(run("ip", &["link"]).contains("localdns"), left, "{flags:?}");
        }
    });
}

/// `down` removes everything from a running server, and `up` leaves the fallback.
#[test]
fn down_with_a_running_server() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let lab = Lab::new();
        let mut server = lab.serve(&[]);
        ready(&server);
        let printed = node(&server, &["down"], 0);
        assert_eq!(
            printed,
            format!(
                "process {} released its leases, addresses and rules\nremoved the rules\nremoved the link localdns with its addresses\n",
                server.pid()
            )
        );
        // It sees the addresses go, and does not restore them.
        server.wait_for_log("released by `node down`", Duration::from_secs(5));
        server.signal("HUP");
        server.wait_for_log("Reloading complete", Duration::from_secs(10));
        nothing_is_there();
        let gone = "there are no rules\nthere is no link and no address of localdns\n";
        assert_eq!(
            node(&server, &["down"], 0),
            format!("process {} released its leases, addresses and rules\n{gone}", server.pid())
        );
        signal(server.pid(), "TERM");
        assert!(server.wait(Duration::from_secs(10)).success());
        nothing_is_there();
        for _ in 0..2 {
            let up = node(&server, &["up"], 0);
            assert!(
                up.contains("queries to 169.254.10.11 go to 10.3.0.2 while no server is running"),
                "{up}"
            );
        }
        assert_eq!(ask((address("169.254.10.11"), 53).into(), NAME, "A").short(), [PLAIN]);
        let listed = status(&server, 1);
        assert!(
            listed.contains("leases    none held: queries go to the fallback; start the server"),
            "{listed}"
        );
        assert_eq!(
            node(&server, &["down"], 0),
            "removed the rules\nremoved the link localdns with its addresses\n"
        );
        assert_eq!(node(&server, &["down"], 0), gone);
    });
}

/// `down` removes what a killed server and the script left.
#[test]
fn down_after_kill_and_script() {
    isolated(|| {
        if !tool("up and down", "nft") || !tool("up and down", "iptables") {
            return;
        }
        let lab = Lab::new();
        let mut server = lab.serve(&[]);
        ready(&server);
        signal(server.pid(), "KILL");
        server.wait(Duration::from_secs(5));
        for chain in ["OUTPUT", "PREROUTING"] {
            for (ip, transport) in
                [("169.254.10.10", "tcp"), ("169.254.10.10", "udp"), ("169.254.10.11", "tcp")]
            {
                let comment = "localdns: skip conntrack";
                let rule = ["-t", "raw", "-A", chain, "-d", ip, "-p", transport, "--dport", "53"];
                run(
                    "iptables",
                    &[&rule[..], &["-m", "comment", "--comment", comment, "-j", "NOTRACK"]].concat(),
                );
            }
        }
        run("iptables", &["-t", "raw", "-A", "OUTPUT", "-d", "192.0.2.9", "-j", "NOTRACK"]);
        assert_eq!(
            node(&server, &["down"], 0),
            "removed the rules\nremoved 6 iptables rules\nremoved the link localdns with its addresses\n"
        );
        assert!(!run("ip", &["link"]).contains("localdns"));
        assert_eq!(
            run("iptables", &["-t", "raw", "-S"]),
            "-P PREROUTING ACCEPT\n-P OUTPUT ACCEPT\n-A OUTPUT -d 192.0.2.9/32 -j NOTRACK\n"
        );
    });
}

/// Root without CAP_NET_ADMIN is not obeyed, and another user is not believed.
#[test]
fn unprivileged_root_and_other_users() {
    isolated(|| {
        if !tool("up and down", "nft") || !tool("up and down", "setpriv") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&[]);
        ready(&server);
        // Like root in a container on the host network.
        let mut powerless = Command::new("setpriv");
        powerless.args(["--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]);
        powerless.arg(tests::binary()).args(["node", "down"]);
        let output = tests::output(powerless, PATIENCE);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(
            printed
                .contains("left: the server refuses: the command has not proven that it has CAP_NET_ADMIN"),
            "{printed}"
        );
        assert_eq!(status(&server, 0).lines().next(), Some("rules     in place"));
        // Any process may bind an abstract socket with a name like a server's.
        let mut other = another_users();
        let process = format!("process {}", other.id());
        let shown = status(&server, 0);
        assert!(!shown.contains(&process), "{shown}");
        // And fill its accept queue.
        signal(other.id(), "STOP");
        fill(other.id());
        let shown = status(&server, 0);
        assert!(!shown.contains(&process), "{shown}");
        let down = node(&server, &["down"], 0);
        assert!(!down.contains(&process), "{down}");
        other.kill().expect("it runs");
        other.wait().expect("it was started");
    });
}

/// Starts a server as an unprivileged user and waits for its control socket.
fn another_users() -> Child {
    fs::write("/run/Corefile", ".:1053 {\nbind 127.0.0.1\nwhoami\n}\n").expect("the test's own");
    let mut other = Command::new("setpriv");
    other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(tests::binary());
    other.args(["node", "run", "-rules", "none", "-host-resolver", "none", "-conf", "/run/Corefile"]);
    let other = other.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("setpriv is there");
    let name = format!("@localdns-node-{}-0", other.id());
    let listens = || fs::read_to_string("/proc/net/unix").ok()?.contains(&name).then_some(());
    eventually("another user's socket", PATIENCE, listens);
    other
}

/// Connects until the accept queue is full.
fn fill(pid: u32) {
    let name = SockAddr::unix(format!("\0localdns-node-{pid}-0")).expect("a name of few octets");
    let is_taken = |_: &u32| {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("there are sockets");
        socket.set_nonblocking(true).expect("it can be set");
        // A closed connection keeps its slot in the queue.
        socket.connect(&name).is_ok()
    };
    let taken = (0..100_000).take_while(is_taken).count();
    assert!(taken < 100_000, "the kernel has queues of a few thousand");
}

fn ready(server: &Server) {
    server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
}

fn nothing_is_there() {
    assert_eq!(run("nft", &["list", "tables", "inet"]), "");
    assert!(!run("ip", &["link"]).contains("localdns"));
}

const PATIENCE: Duration = Duration::from_secs(20);
/// The network's resolv.conf.
const GIVEN: &str = "/run/given";
/// As on AKS: the node's address forwards to the network's servers, the pods' to the cluster's.
const OF_THE_NETWORK: &str = "
.:53 {
    bind 169.254.10.10
    forward . 168.63.129.16
}
.:53 {
    bind 169.254.10.11
    forward . 10.96.0.10
}
";

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}
