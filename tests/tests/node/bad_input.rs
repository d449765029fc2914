//! Bad input and missing capabilities: each failure yields one line with its remedy, nothing is
//! half-applied, and a running server continues.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tests::{Manager, Server, ask, eventually, isolated, run, tool};

use super::availability::{node, status};
use super::host_resolver::{DROP_IN, Machine};
use super::lab::{Lab, NAME, US};

/// Without CAP_NET_ADMIN a command changes nothing and prints what to type.
#[test]
fn commands_without_cap_net_admin() {
    isolated(|| {
        if !tool("bad input", "setpriv") || !tool("bad input", "nft") {
            return;
        }
        let _lab = Lab::new();
        fs::write("/run/Corefile", COREFILE).expect("the test's own");
        for (words, code) in [(&["run", "-host-resolver", "none"][..], 216), (&["up"], 1)] {
            let output = powerless(&[words, &["-conf", "/run/Corefile"]].concat());
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
            assert!(
                stderr.contains(
                    "not permitted to add 169.254.10.10 (CAP_NET_ADMIN); run: ip link add localdns"
                ),
                "{words:?}: {stderr}"
            );
            // One line, plus an indented excerpt where the error is in the Corefile.
            assert_eq!(stderr.lines().filter(|line| !line.starts_with("  ")).count(), 1, "{stderr}");
            nothing_is_there();
        }
        let output = powerless(&["down"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("left: the rules: ") && stderr.contains("CAP_NET_ADMIN"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    });
}

/// The server serves where its addresses exist and reports what it lacks.
#[test]
fn serving_without_cap_net_admin() {
    isolated(|| {
        if !tool("bad input", "setpriv") || !tool("bad input", "nft") {
            return;
        }
        let lab = Lab::new();
        // A predecessor leaves the addresses, and no rules.
        let first = lab.serve(&["-rules", "none", "-at-stop", "failover", "-host-resolver", "none"]);
        first.wait_for_log("10.96.0.20 do not arrive here", PATIENCE);
        drop(first);
        let manager = Manager::new();
        let server = lab.serve_with(|_| {
            let options = manager.options().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
            options.through("setpriv --bounding-set -net_admin --inh-caps -net_admin")
        });
        manager.wait_for("READY=1", 1, PATIENCE);
        assert_eq!(ask(CLIENTS.parse().expect("an address"), NAME, "A").short(), [US]);
        let printed = status(&server, 1);
        for line in [
            "rules     none; run `localdns node up`, or start `node run`, which adds them once it answers\n",
            "leases    none held; add the rules first\n",
            "note      there are neither leases nor rules: clients get no answer once this server dies: ",
            "not permitted: CAP_NET_ADMIN is missing, or another process owns a table of this name\n",
            "note      queries to 10.96.0.20 do not arrive here: ",
        ] {
            assert!(printed.contains(line), "{line}\n{printed}");
        }
    });
}

#[test]
fn failed_commands_name_their_cause() {
    isolated(|| {
        if !tool("bad input", "setpriv") || !tool("bad input", "nft") {
            return;
        }
        let lab = Lab::new();
        fs::write("/run/Corefile", COREFILE).expect("the test's own");
        let mut run = Command::new(tests::binary());
        run.args([
            "node",
            "run",
            "-host-resolver",
            "none",
            "-conf",
            "/run/Corefile",
            "-pidfile",
            "/proc/no.pid",
        ]);
        let output = tests::output(run, PATIENCE);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(216), "{stderr}");
        assert!(stderr.contains("cannot write the pidfile /proc/no.pid: "), "{stderr}");
        nothing_is_there();
        let server = lab.serve(&["-host-resolver", "none"]);
        ready(&server);
        let mut status = Command::new("setpriv");
        status.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(tests::binary());
        status.args(["node", "status", "-conf", "/run/Corefile"]);
        let printed = tests::output(status, PATIENCE);
        let printed = String::from_utf8_lossy(&printed.stdout);
        let expected = format!(
            "process {} reports its status only to root and to its own user; run this as one of them\n",
            server.pid()
        );
        assert!(printed.contains(&expected), "{printed}");
        server.signal("STOP");
        let printed = node(&server, &["down"], 1);
        let expected = format!(
            "does not release its leases: it has not answered within 1 s; if it hangs, `kill -9 {}`, and run `localdns node down` again",
            server.pid()
        );
        assert!(printed.contains(&expected), "{printed}");
    });
}

/// The second server ends; the first keeps its rules, leases and clients.
#[test]
fn second_server_is_refused() {
    isolated(|| {
        if !tool("bad input", "nft") {
            return;
        }
        let lab = Lab::new();
        let first = lab.serve(&[]);
        ready(&first);
        let rules = || run("nft", &["-s", "list", "table", "inet", "localdns"]);
        let before = rules();
        let mut second = Command::new(tests::binary());
        second.args(["node", "run", "-conf"]).arg(first.path("Corefile"));
        let output = tests::output(second, PATIENCE);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(216), "{stderr}");
        assert!(stderr.contains(&first.pid().to_string()), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert_eq!(rules(), before);
        let printed = status(&first, 0);
        assert!(printed.contains(&format!("leases    held by process {}\n", first.pid())), "{printed}");
        assert_eq!(ask(CLIENTS.parse().expect("an address"), NAME, "A").short(), [US]);
    });
}

/// A table with our name that no process owns.
#[test]
fn table_without_owner_is_replaced() {
    isolated(|| {
        if !tool("bad input", "nft") {
            return;
        }
        let lab = Lab::new();
        run(
            "nft",
            &["table inet localdns { chain theirs { type filter hook input priority 0; policy accept; }; }"],
        );
        let server = lab.serve(&[]);
        ready(&server);
        let rules = run("nft", &["list", "table", "inet", "localdns"]);
        assert!(!rules.contains("theirs") && rules.contains("chain failover"), "{rules}");
        assert_eq!(ask(CLIENTS.parse().expect("an address"), NAME, "A").short(), [US]);
    });
}

/// A table named like a server's leases, but owned by no process, does not count as a server.
#[test]
fn lease_table_without_owner_is_ignored() {
    isolated(|| {
        if !tool("bad input", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        ready(&server);
        run("nft", &["add", "table", "inet", "localdns-lease-4711-1"]);
        let printed = status(&server, 0);
        assert!(printed.contains(&format!("leases    held by process {}\n", server.pid())), "{printed}");
        run("nft", &["flush", "chain", "inet", "localdns", "failover"]);
        eventually("the rules are back", PATIENCE, || {
            let away = run("nft", &["list", "chain", "inet", "localdns", "failover"]);
            away.contains("ip daddr set").then_some(())
        });
        node(&server, &["down"], 0);
        assert!(!run("nft", &["list", "tables", "inet"]).contains("localdns"));
    });
}

/// `node up` leaves no address if its rules cannot be installed.
#[test]
fn up_removes_addresses_without_rules() {
    isolated(|| {
        if !tool("bad input", "nft") {
            return;
        }
        let _lab = Lab::new();
        fs::write("/run/Corefile", COREFILE.replace("10.10", "10.10 169.254.10.11")).expect("the test's own");
        let (other, typed) = super::availability::anothers_table();
        let links = || {
            let is_there = run("ip", &["-br", "link"]).contains("localdns");
            let shown = run("ip", &["-o", "addr", "show", "to", "169.254.0.0/16"]);
            (is_there, shown)
        };
        let before = links();
        let up = |code| {
            let mut up = Command::new(tests::binary());
            up.args(["node", "up", "-host-resolver", "none", "-conf", "/run/Corefile"]);
            let output = tests::output(up, PATIENCE);
            assert_eq!(output.status.code(), Some(code), "{output:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        assert!(up(1).contains("add table localdns: not permitted"));
        assert_eq!(links(), before, "nothing half-applied");
        // An existing link `localdns` stays unchanged.
        run("ip", &["link", "add", "localdns", "type", "bridge"]);
        run("ip", &["addr", "add", "169.254.10.10/32", "dev", "localdns"]);
        let before = links();
        up(1);
        assert_eq!(links(), before);
        drop(typed);
        { other }.wait().expect("it ends");
        up(0);
        assert!(links().1.contains("169.254.10.11"));
    });
}

/// Something other than the dummy link has our addresses.
#[test]
fn address_on_another_link_is_reported() {
    isolated(|| {
        if !tool("bad input", "nft") {
            return;
        }
        let lab = Lab::new();
        let made = |kind: &str| Command::new("ip").args(["link", "add", "tried", "type", kind]).output();
        let has = |kind: &str| {
            let made = made(kind).expect("ip starts").status.success();
            made.then(|| run("ip", &["link", "del", "tried"])).is_some()
        };
        let expected = match (has("dummy"), has("bridge")) {
            (true, _) => "",
            (false, true) => "this kernel has no dummy links: the addresses are on a bridge without ports",
            (false, false) => "this kernel has neither dummy nor bridge links: the addresses are on lo",
        };
        let server = lab.serve(&["-host-resolver", "none"]);
        ready(&server);
        let log = server.log_text();
        assert_eq!(log.matches("this kernel has n").count(), usize::from(!expected.is_empty()), "{log}");
        assert!(log.contains(expected), "{log}");
    });
}

/// An address that pods cannot query is refused at its place in the Corefile.
#[test]
fn unusable_address_is_refused() {
    isolated(|| {
        if !tool("bad input", "nft") {
            return;
        }
        let lab = Lab::new();
        let text = COREFILE.replace("169.254.10.10", "169.254.10.10 fe80::a:a");
        fs::write("/run/Corefile", &text).expect("the test's own");
        let why = "/run/Corefile:3:24: plugin/bind: pods cannot reach an fe80:: address, since they are on other links; use one of fd00::/8";
        for (word, code) in [("run", 217), ("up", 1), ("status", 1)] {
            let mut command = Command::new(tests::binary());
            command.args(["node", word, "-host-resolver", "none", "-conf", "/run/Corefile"]);
            let output = tests::output(command, PATIENCE);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{word}: {stderr}");
            assert!(stderr.contains(why), "{word}: {stderr}");
            nothing_is_there();
        }
        // A reload refuses it too; without `node` such an address is added.
        let server = lab.serve(&["-host-resolver", "none"]);
        ready(&server);
        server.write_corefile(&text);
        server.signal("HUP");
        server.wait_for_log("Restart failed", PATIENCE);
        assert!(
            server.log_text().contains(":3:24: plugin/bind: pods cannot reach an fe80:: address"),
            "{}",
            server.log_text()
        );
        drop(server);
        run("ip", &["link", "del", "localdns"]);
        let plain = Server::start(".:53 {\nbind fe80::a:a\nwhoami\n}\n");
        assert!(run("ip", &["addr", "show", "dev", "localdns"]).contains("fe80::a:a"));
        drop(plain);
        // An fe80:: address is accepted on an interface that `bind` names and that has other
        // addresses.
        let name = "theirs";
        run("ip", &["link", "add", name, "type", "bridge"]);
        run("ip", &["link", "set", name, "up"]);
        run("ip", &["addr", "add", "169.254.10.10/32", "dev", name]);
        run("ip", &["addr", "add", "fe80::b:b/64", "dev", name, "nodad"]);
        let options = tests::Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
        let server = Server::start_with(&COREFILE.replace("169.254.10.10", name), options);
        server.wait_for_log("queries to 169.254.10.10 are answered here", PATIENCE);
        let printed = status(&server, 0);
        assert!(!printed.contains("fe80::"), "{printed}");
    });
}

/// The files that name the machine's servers are intact after a failed write.
#[test]
fn unwritable_resolv_conf_stays_whole() {
    isolated(|| {
        if !tool("bad input", "nft") {
            return;
        }
        let lab = Lab::new();
        let text = "nameserver 10.2.0.2\nsearch a.b\n";
        fs::write("/etc/resolv.conf", text).expect("the test's own");
        run("mount", &["--bind", "/etc/resolv.conf", "/etc/resolv.conf"]);
        run("mount", &["-o", "remount,bind,ro", "/etc/resolv.conf"]);
        let server = lab.serve(&["-host-resolver", "resolv.conf"]);
        ready(&server);
        let line = server.wait_for_log("host lookups are not sent to this server", PATIENCE);
        assert!(line.contains("/etc/resolv.conf: Read-only file system"), "{line}");
        assert_eq!(fs::read_to_string("/etc/resolv.conf").expect("it is there"), text);
        assert!(!Path::new("/run/localdns/resolv.conf").exists(), "nothing half-applied");
        assert_eq!(ask(CLIENTS.parse().expect("an address"), NAME, "A").short(), [US]);
        drop(server);
        // `down` keeps what another program has written over our resolv.conf.
        run("umount", &["/etc/resolv.conf"]);
        let server = lab.serve(&["-host-resolver", "resolv.conf"]);
        let ours = "nameserver 169.254.10.10\nsearch a.b\n";
        eventually("ours", PATIENCE, || (fs::read_to_string("/etc/resolv.conf").ok()? == ours).then_some(()));
        let theirs = "nameserver 10.3.0.2\n";
        fs::write("/etc/resolv.conf", theirs).expect("the test's own");
        let down = node(&server, &["down"], 0);
        assert!(!down.contains("resolv.conf"), "{down}");
        assert_eq!(fs::read_to_string("/etc/resolv.conf").expect("it is there"), theirs);
        assert!(!Path::new("/run/localdns/resolv.conf").exists());
    });
}

/// No partial drop-in remains, and clients are served.
#[test]
fn drop_in_on_a_full_disk() {
    isolated(|| {
        if !tool("bad input", "nft") {
            return;
        }
        let lab = Lab::new();
        let machine = Machine::new();
        machine.state("configured");
        let directory = "/run/systemd/network";
        for (options, cause) in
            [("remount,bind,ro", "Read-only file system"), ("size=4k,nr_inodes=3", "No space left on device")]
        {
            // Inodes for the root, the link's file and one directory.
            let network = format!("{directory}/10-netplan-eth0.network");
            match options.starts_with("remount") {
                true => {
                    run("mount", &["--bind", directory, directory]);
                    run("mount", &["-o", options, directory]);
                }
                false => {
                    run("mount", &["-t", "tmpfs", "-o", options, "tmpfs", directory]);
                    fs::write(&network, "[Match]\nName=v2\n").expect("the test's own");
                }
            }
            let server = lab.serve_with(|options| machine.on_path(options));
            ready(&server);
            let line = server.wait_for_log("host lookups are not sent to this server", PATIENCE);
            assert!(line.contains(&format!("{DROP_IN}: {cause}")), "{line}");
            assert!(!Path::new(&format!("{network}.d")).exists(), "nothing half-applied");
            assert_eq!(machine.calls("reload"), 0, "networkd is not notified");
            assert_eq!(ask(CLIENTS.parse().expect("an address"), NAME, "A").short(), [US]);
            drop(server);
            run("umount", &[directory]);
        }
    });
}

/// Runs a command as root without CAP_NET_ADMIN.
fn powerless(words: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]).arg(tests::binary());
    command.arg("node").args(words);
    tests::output(command, PATIENCE)
}

fn ready(server: &Server) {
    server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
}

fn nothing_is_there() {
    assert_eq!(run("nft", &["list", "tables", "inet"]), "");
    assert!(!run("ip", &["link"]).contains("localdns"));
}

const CLIENTS: &str = "169.254.10.10:53";
const PATIENCE: Duration = Duration::from_secs(20);
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10
    forward . 10.96.0.10
}
";
