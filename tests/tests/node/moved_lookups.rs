//! The host's own lookups after a change of the server's address, and after a boot.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tests::{eventually, isolated, signal, tool};

use super::availability::{node, status};
use super::host_resolver::{DROP_IN, Machine, RESOLVED_DROP_IN};
use super::lab::{Lab, US};

/// The machine's own lookups follow the reload to another address.
#[test]
fn reload_moves_the_machines_lookups() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let (lab, machine) = (Lab::new(), Machine::new());
        machine.state("configured");
        for (how, file) in
            [("networkd", DROP_IN), ("resolved", RESOLVED_DROP_IN), ("resolv.conf", "/etc/resolv.conf")]
        {
            fs::write("/etc/resolv.conf", ORIGINAL).expect("the test's own");
            machine.resolv_conf(&format!("nameserver {A}\n"));
            let serve = |options| machine.on_path(options);
            let mut server =
                lab.serve_corefile(&of(A), |options| serve(options.args(["-host-resolver", how])));
            names(file, A);
            // An additional address changes nothing; a replacement does.
            server.write_corefile(&of(&format!("{B} {A}")));
            server.signal("USR1");
            server.wait_for_log(&format!("queries to {B} are answered here"), PATIENCE);
            server.write_corefile(&of(&format!("{C} {B} {A}")));
            server.signal("USR1");
            // By then a check with the previous list is complete.
            server.wait_for_log(&format!("queries to {C} are answered here"), PATIENCE);
            names(file, A);
            machine.resolv_conf(&format!("nameserver {B}\n"));
            server.write_corefile(&of(B));
            server.signal("USR1");
            names(file, B);
            signal(server.pid(), "TERM");
            assert!(server.wait(Duration::from_secs(15)).success());
            assert_eq!(fs::read_to_string("/etc/resolv.conf").expect("it is there"), ORIGINAL, "{how}");
            assert!(!Path::new(DROP_IN).exists() && !Path::new(RESOLVED_DROP_IN).exists(), "{how}");
            machine.down();
        }
    });
}

/// A start at another address still knows what resolv.conf named before.
#[test]
fn start_remembers_former_nameservers() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let (lab, machine) = (Lab::new(), Machine::new());
        fs::write("/etc/resolv.conf", ORIGINAL).expect("the test's own");
        for ip in [A, B] {
            let mut server = lab.serve_corefile(&of(ip), |options| options.args(RESOLV_CONF));
            names("/etc/resolv.conf", ip);
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
            let printed = node(&server, &["up", "-host-resolver", "resolv.conf"], 0);
            let line =
                "host lookups are sent to this server, by /etc/resolv.conf, although no server is running\n";
            assert!(printed.contains(line), "{printed}");
        }
        assert!(machine.down().contains("restored /etc/resolv.conf\n"));
        assert_eq!(fs::read_to_string("/etc/resolv.conf").expect("it is there"), ORIGINAL);
    });
}

#[test]
fn saved_resolv_conf_survives_a_boot() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let (lab, machine) = (Lab::new(), Machine::new());
        fs::create_dir_all("/etc/localdns").expect("the test's own");
        fs::write("/etc/resolv.conf", ORIGINAL).expect("the test's own");
        let serve = || lab.serve_corefile(&of(A), |options| options.args(RESOLV_CONF));
        let killed = |mut server: tests::Server| {
            names("/etc/resolv.conf", A);
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
            fs::remove_dir_all("/run/localdns").expect("a boot");
        };
        killed(serve());
        let server = serve();
        server.wait_for_log(&format!("queries to {A} are answered here"), PATIENCE);
        let printed = status(&server, 0);
        assert!(
            printed.contains("lookups   of this host are sent to this server, by /etc/resolv.conf\n"),
            "{printed}"
        );
        drop(server);
        assert!(machine.down().contains("restored /etc/resolv.conf\n"));
        assert_eq!(fs::read_to_string("/etc/resolv.conf").expect("it is there"), ORIGINAL);
        let left: Vec<_> = fs::read_dir("/etc/localdns").expect("it is there").flatten().collect();
        assert!(left.iter().all(|entry| entry.file_name() != "resolv.conf"), "{left:?}");

        // Text that another program has written since is kept.
        killed(serve());
        fs::write("/etc/resolv.conf", "nameserver 10.2.0.9\n").expect("the test's own");
        let server = serve();
        names("/etc/resolv.conf", A);
        drop(server);
        machine.down();
        assert_eq!(fs::read_to_string("/etc/resolv.conf").expect("it is there"), "nameserver 10.2.0.9\n");
    });
}

/// It names only us, and no copy exists to restore it from.
#[test]
fn irrecoverable_resolv_conf_is_reported() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let (lab, machine) = (Lab::new(), Machine::new());
        let _ = fs::remove_dir_all("/etc/localdns");
        fs::write("/etc/resolv.conf", format!("nameserver {A}\n")).expect("the test's own");
        let server = lab.serve_corefile(&of(A), |options| options.args(RESOLV_CONF));
        server.wait_for_log(UNKEPT, PATIENCE);
        let printed = status(&server, 0);
        assert!(
            printed.contains("lookups   of this host are sent to this server, by /etc/resolv.conf\n"),
            "{printed}"
        );
        assert_eq!(printed.matches(UNKEPT).count(), 1, "{printed}");
        // The check that the server makes every 30 s to report a removal.
        let ours = A.parse().expect("an address");
        assert!(node_run::HostResolver::ResolvConf.is_put(Path::new("/etc/resolv.conf"), ours));
        drop(server);
        let (code, printed) = machine.tries_down();
        assert_eq!(code, Some(1), "{printed}");
        assert!(printed.contains(&format!("left: the host's resolver: {UNKEPT}")), "{printed}");
        fs::write("/etc/resolv.conf", ORIGINAL).expect("as it says");
        machine.down();
    });
}

/// An address of ours on a link of another name is still ours.
#[test]
fn address_on_a_renamed_link() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let (lab, machine) = (Lab::new(), Machine::new());
        let _ = fs::remove_dir_all("/etc/localdns");
        fs::write("/etc/resolv.conf", format!("nameserver {A}\n")).expect("the test's own");
        let server = lab.serve_corefile(&of(A), |options| options.args(RESOLV_CONF).args(["-link", "other"]));
        server.wait_for_log(UNKEPT, PATIENCE);
        drop(server);
        fs::write("/etc/resolv.conf", ORIGINAL).expect("as it says");
        machine.down();
    });
}

/// Another host resolver restores what the former one left.
#[test]
fn changed_host_resolver_restores_the_last() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let (lab, machine) = (Lab::new(), Machine::new());
        machine.state("configured");
        machine.resolv_conf(&format!("nameserver {A}\n"));
        fs::write("/etc/resolv.conf", ORIGINAL).expect("the test's own");
        let all =
            [("networkd", DROP_IN), ("resolved", RESOLVED_DROP_IN), ("resolv.conf", "/etc/resolv.conf")];
        let is_turned = |file| fs::read_to_string(file).is_ok_and(|text| text.contains(A));
        for (how, file) in all.into_iter().chain(all) {
            let args = ["-host-resolver", how];
            let mut server = lab.serve_corefile(&of(A), |options| machine.on_path(options.args(args)));
            eventually(&format!("{how} alone"), Duration::from_secs(15), || {
                all.iter().all(|(_, other)| is_turned(other) == (*other == file)).then_some(())
            });
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
        }
        machine.down();
        assert_eq!(fs::read_to_string("/etc/resolv.conf").expect("it is there"), ORIGINAL);
    });
}

/// Waits until the file names this server and no other.
fn names(file: &str, ip: &str) {
    let others = [A, B].into_iter().filter(|other| *other != ip);
    let others: Vec<_> = others.collect();
    eventually(&format!("{file} names {ip}"), Duration::from_secs(15), || {
        let text = fs::read_to_string(file).ok()?;
        (text.contains(ip) && others.iter().all(|other| !text.contains(other))).then_some(())
    });
}

fn of(addresses: &str) -> String {
    format!(
        ".:53 {{\n    bind {addresses}\n    hosts {{\n        {US} who.test\n        ttl 5\n    }}\n    forward . 10.2.0.2\n}}\n"
    )
}

const A: &str = "169.254.10.11";
const B: &str = "169.254.10.12";
const C: &str = "169.254.10.13";
const ORIGINAL: &str = "nameserver 10.2.0.2\nsearch a.b\n";
const RESOLV_CONF: [&str; 2] = ["-host-resolver", "resolv.conf"];
const UNKEPT: &str =
    "/etc/resolv.conf names only 169.254.10.11, this server's address, and its original text is lost";
const PATIENCE: Duration = Duration::from_secs(10);
