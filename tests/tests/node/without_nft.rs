//! A kernel without nftables.

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use tests::{Manager, Options, Server, ask, eventually, isolated, run, tempdir, tool, without_nftables};

use super::availability::{node, status};
use super::iptables::Tools;
use super::lab::{CLUSTER, Lab, NAME, POD, US, until_ready, within};

/// One line reports it, and every address is served.
#[test]
fn kernel_without_nftables() {
    isolated(|| {
        if !tool("without nftables", "nft") {
            return;
        }
        let _lab = Lab::new();
        let directory = tempdir();
        let notify = directory.path().join("notify");
        let notifications = UnixDatagram::bind(&notify).expect("the directory is ours");
        notifications.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let mut server = without_nftables(|| {
            let options = Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
            let options = options.env("NOTIFY_SOCKET", &notify.to_string_lossy());
            Server::start_with(COREFILE, options.export("SYSTEMD_EXEC_PID", "$$"))
        });
        until_ready(&notifications);
        for at in ["169.254.10.10:53", "[fd10::11]:53"] {
            let at: SocketAddr = at.parse().expect("an address");
            assert_eq!(ask(at, NAME, "A").short(), [US], "{at}");
            let of_pod = within(POD, move || ask(at, NAME, "A").short().concat());
            assert_eq!(of_pod.join().expect("it is answered"), US, "{at}");
        }
        let cause = "this kernel lacks nftables, or a part that the rules need (open netlink): Protocol not supported";
        let remedy = "; load the module nf_tables, or set other -rules\n";
        let printed = without_nftables(|| {
            eventually("a probe that was answered", PATIENCE, || {
                let printed = status(&server, 1);
                (printed.matches("answered a probe").count() == 2).then_some(printed)
            })
        });
        for line in [
            format!("rules     {cause}"),
            "leases    none held; add the rules first\n".to_owned(),
            "address   169.254.10.10  on localdns, fallback 10.3.0.2, answers\n".to_owned(),
            "lease     169.254.10.10  not held, lost 0 times, answered a probe ".to_owned(),
            format!(
                "note      there are neither leases nor rules: clients get no answer once this server dies: {cause}"
            ),
        ] {
            assert!(printed.contains(&line), "{line}\n{printed}");
        }
        assert!(printed.contains(remedy), "{printed}");
        let log = server.log_text();
        assert_eq!(log.matches("nftables").count(), 1, "{log}");
        // Nothing is half-applied or left behind.
        without_nftables(|| {
            let down = node(&server, &["down"], 0);
            assert!(down.contains("there are no rules: this kernel lacks nftables"), "{down}");
            assert!(!run("ip", &["link"]).contains("localdns"));
            let up = node(&server, &["up", "-host-resolver", "none"], 1);
            assert!(up.contains(cause) && up.lines().count() == 1, "{up}");
            assert!(!run("ip", &["link"]).contains("localdns"));
        });
        assert!(server.stop().success());
    });
}

/// An address that no rule directs here is reported, and the rest is ready.
#[test]
fn service_address_without_nftables() {
    isolated(|| {
        if !tool("without nftables", "nft") {
            return;
        }
        let _lab = Lab::new();
        for (rules, remedy) in [("nft", "-rules iptables"), ("none", "-rules nft or iptables")] {
            let manager = Manager::new();
            let mut server = without_nftables(|| {
                Server::start_with(WITH_A_SERVICE, serving(rules, &manager).env("WATCHDOG_USEC", "300000"))
            });
            manager.wait_for("READY=1", 1, PATIENCE);
            // A Service that cannot be served is no reason for systemd to kill the server.
            manager.wait_for("WATCHDOG=1", 2, PATIENCE);
            for (at, responder) in [("169.254.10.10:53", US), ("10.96.0.20:53", CLUSTER)] {
                assert_eq!(of_pod(at), responder, "{at} with -rules {rules}");
            }
            let cause = "queries to 10.96.0.20 do not arrive here: kube-proxy or another program translates this service address first";
            server.wait_for_log(cause, PATIENCE);
            let code = i32::from(rules == "nft");
            let printed = without_nftables(|| node(&server, &["status", "-rules", rules], code));
            let line = printed.lines().find(|line| line.starts_with("note") && line.contains(cause));
            assert!(line.is_some_and(|line| line.ends_with(remedy)), "{printed}");
            assert!(
                printed.contains("10.96.0.20  not held") || printed.contains("probe     10.96.0.20"),
                "{printed}"
            );
            assert!(server.stop().success());
            let log = server.log_text();
            assert_eq!(log.matches(cause).count(), 1, "{log}");
        }
    });
}

/// iptables rules direct a Service's queries here.
#[test]
fn iptables_without_nftables() {
    isolated(|| {
        if !tool("without nftables", "nft") || !tool("without nftables", "/usr/sbin/xtables-legacy-multi") {
            return;
        }
        let _lab = Lab::new();
        let manager = Manager::new();
        let mut server = without_nftables(|| {
            let options = serving("iptables", &manager).env("PATH", &Tools("legacy").path());
            Server::start_with(WITH_A_SERVICE, options)
        });
        manager.wait_for("READY=1", 1, PATIENCE);
        for at in ["169.254.10.10:53", "10.96.0.20:53"] {
            eventually(at, PATIENCE, || (of_pod(at) == US).then_some(()));
        }
        assert!(!server.log_text().contains("do not arrive here"), "{}", server.log_text());
        assert!(server.stop().success());
    });
}

/// `node run` under a service manager.
fn serving(rules: &str, manager: &Manager) -> Options {
    manager.options().subcommand(&["node", "run"]).args(["-rules", rules, "-host-resolver", "none"])
}

/// The server that answers a pod.
fn of_pod(at: &'static str) -> String {
    let at: SocketAddr = at.parse().expect("an address");
    within(POD, move || ask(at, NAME, "A").short().concat()).join().expect("it is answered")
}

const WITH_A_SERVICE: &str = "
.:53 {
    bind 169.254.10.10 10.96.0.20
    hosts {
        192.0.2.1 who.test
        ttl 5
    }
    forward . 10.3.0.2
}
";
const PATIENCE: Duration = Duration::from_secs(20);
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10 fd10::11
    hosts {
        192.0.2.1 who.test
        ttl 5
    }
    forward . 10.3.0.2 fd03::2
}
";
