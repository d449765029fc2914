//! Addresses that another program has on its own link: reported, and left alone.

use std::net::SocketAddr;
use std::time::Duration;

use tests::{Manager, Options, Server, ask, eventually, isolated, run, tool};

use super::availability::status;
use super::lab::{CLUSTER, Lab, NAME, PLAIN, POD, US, within};

/// An address on another program's link is reported once and left as it is.
#[test]
fn address_on_another_link() {
    isolated(|| {
        if !tool("owners", "nft") {
            return;
        }
        let _lab = Lab::new();
        for (link, address) in [(IPVS, "10.96.0.20/32"), ("theirs", "169.254.10.11/32")] {
            run("ip", &["link", "add", link, "type", "bridge"]);
            run("ip", &["addr", "add", address, "dev", link]);
        }
        let addresses = || run("ip", &["-br", "addr", "show", "dev", IPVS]);
        let before = addresses();
        let mut server = Server::start_with(COREFILE, options());
        server.wait_for_log("queries to 10.96.0.20 are answered here", PATIENCE);
        let notes = [
            "10.96.0.20 is on kube-ipvs0: kube-proxy is in IPVS mode, which takes the queries before this server; have `bind` name a link-local address (169.254.0.0/16, fd00::/8) in its place",
            "169.254.10.11 is on theirs, which localdns does not manage: it is not restored if another program removes it; remove it there, or set -link theirs",
        ];
        let printed = status(&server, 0);
        for note in notes {
            server.wait_for_log(note, PATIENCE);
            assert!(printed.contains(&format!("note      {note}\n")), "{note}\n{printed}");
        }
        assert_eq!(printed.matches("note ").count(), 2, "{printed}");
        assert_eq!(addresses(), before);
        // The server does not restore an address that its owner removes.
        run("ip", &["addr", "del", "10.96.0.20/32", "dev", IPVS]);
        run("ip", &["addr", "del", "169.254.10.10/32", "dev", "localdns"]);
        server.wait_for_log("169.254.10.10 was removed from this machine and is restored", PATIENCE);
        assert!(!run("ip", &["addr"]).contains("10.96.0.20"), "{}", server.log_text());
        assert!(server.stop().success());
        for note in notes {
            assert_eq!(server.log_text().matches(note).count(), 1, "{}", server.log_text());
        }
    });
}

/// An address that is moved to another link is reported until it is back.
#[test]
fn moved_address_is_reported() {
    isolated(|| {
        if !tool("owners", "nft") {
            return;
        }
        let _lab = Lab::new();
        run("ip", &["link", "add", "theirs", "type", "bridge"]);
        let server = Server::start_with(COREFILE, options());
        server.wait_for_log("queries to 10.96.0.20 are answered here", PATIENCE);
        assert!(!status(&server, 0).contains("theirs"));
        run("ip", &["addr", "add", "169.254.10.11/32", "dev", "theirs"]);
        run("ip", &["addr", "del", "169.254.10.11/32", "dev", "localdns"]);
        let note = "169.254.10.11 is on theirs, which localdns does not manage: it is not restored if another program removes it";
        server.wait_for_log(note, PATIENCE);
        let printed = status(&server, 0);
        assert!(
            printed.contains("address   169.254.10.11  on theirs, ") && printed.contains(note),
            "{printed}"
        );
        run("ip", &["addr", "del", "169.254.10.11/32", "dev", "theirs"]);
        server.wait_for_log(
            "169.254.10.11 was removed from this machine and is restored on localdns",
            PATIENCE,
        );
        eventually("it is ours again", PATIENCE, || (!status(&server, 0).contains("theirs")).then_some(()));
    });
}

/// A pod that started earlier still has it in its resolv.conf. Addresses of others on their links
/// are not reported.
#[test]
fn address_no_longer_bound() {
    isolated(|| {
        if !tool("owners", "nft") {
            return;
        }
        let _lab = Lab::new();
        run("ip", &["link", "add", "theirs", "type", "bridge"]);
        run("ip", &["addr", "add", "198.51.100.7/32", "dev", "theirs"]);
        for link in ["localdns", "theirs"] {
            let server = Server::start_with(COREFILE, options().args(["-link", link]));
            server.wait_for_log("queries to 169.254.10.11 are answered here", PATIENCE);
            assert!(!status(&server, 0).contains("no block binds it"));
            let note = format!(
                "169.254.10.11 is on {link}, and no block binds it: clients with it in their resolv.conf get no answer, unless another server listens there; have `bind` name it again or, once no client uses it, `ip address del 169.254.10.11/32 dev {link}`"
            );
            let until_noted = |wanted: bool| {
                eventually(&format!("reported: {wanted}"), PATIENCE, || {
                    (status(&server, 0).contains(&format!("note      {note}\n")) == wanted).then_some(())
                });
            };
            let serve = |corefile: &str| {
                server.write_corefile(corefile);
                server.signal("HUP");
            };
            let without = COREFILE.replace(" 169.254.10.11", "");
            serve(&without);
            until_noted(true);
            serve(COREFILE);
            until_noted(false);
            serve(&without);
            until_noted(true);
            assert!(!server.log_text().contains("198.51.100.7"), "{}", server.log_text());
            run("ip", &["address", "del", "169.254.10.11/32", "dev", link]);
            until_noted(false);
            assert_eq!(server.log_text().matches(&note).count(), 2, "{}", server.log_text());
            drop(server);
            // The next server uses another link.
            let mut down = std::process::Command::new(tests::binary());
            down.args(["node", "down"]);
            assert!(tests::output(down, PATIENCE).status.success());
        }
    });
}

/// `status` must not suggest removing a live server's address; the rules are those of one server.
#[test]
fn two_servers_with_different_addresses() {
    isolated(|| {
        if !tool("owners", "nft") {
            return;
        }
        let _lab = Lab::new();
        let serve = |ip: &str| {
            let corefile = format!(".:53 {{\n    bind {ip}\n    forward . 10.3.0.2\n}}\n");
            let server = Server::start_with(&corefile, options());
            server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
            server
        };
        let mut first = serve("169.254.10.10");
        assert!(status(&first, 0).starts_with("rules     in place\n"));
        let second = serve("169.254.10.11");
        for server in [&first, &second] {
            let printed = eventually("both are listed", PATIENCE, || {
                let printed = status(server, 1);
                (printed.matches("answered a probe").count() == 2).then_some(printed)
            });
            let line = "rules     169.254.10.10 of a server is not in them: another server has replaced them, and clients of";
            assert!(printed.starts_with(line) && !printed.contains("no block binds it"), "{printed}");
        }
        tests::signal(first.pid(), "KILL");
        first.wait(PATIENCE);
        let note = "note      169.254.10.10 is on localdns, and no block binds it: ";
        eventually("no server has it any more", PATIENCE, || status(&second, 0).contains(note).then_some(()));
    });
}

/// Another rule takes a Service's queries, whatever our rules are.
#[test]
fn ready_despite_captured_service_queries() {
    isolated(|| {
        if !tool("owners", "nft") {
            return;
        }
        let _lab = Lab::new();
        run("ip", &["link", "add", IPVS, "type", "bridge"]);
        run("ip", &["addr", "add", "10.96.0.20/32", "dev", IPVS]);
        // Takes packets on arrival like IPVS, marked probes included, ahead of all our rules.
        run(
            "nft",
            &["table ip ipvs {
                chain take {
                    ip daddr 10.96.0.20 meta l4proto { tcp, udp } th dport 53 ct original zone set 7 ip daddr set 10.2.0.2
                }
                chain give {
                    ct direction reply ct original zone 7 meta l4proto { tcp, udp } th sport 53 ip saddr set 10.96.0.20
                }
                chain prerouting { type filter hook prerouting priority -500; jump take; }
                chain output { type route hook output priority -500; jump take; }
                chain input { type filter hook input priority 300; jump give; }
                chain postrouting { type filter hook postrouting priority 300; jump give; }
                chain nat { type nat hook postrouting priority 90; ct original zone 7 masquerade; }
            }"],
        );
        let manager = Manager::new();
        let how = manager.options().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
        let mut server = Server::start_with(COREFILE, how.env("WATCHDOG_USEC", "300000"));
        manager.wait_for("READY=1", 1, PATIENCE);
        manager.wait_for("WATCHDOG=1", 2, PATIENCE);
        for (at, responder) in [("169.254.10.10:53", US), ("10.96.0.20:53", CLUSTER)] {
            assert_eq!(of_pod(at), responder, "{at}");
        }
        let printed = status(&server, 0);
        let remedy = "; find the rule that redirects its queries: nft list ruleset\n";
        assert!(printed.contains(": another process answers") && printed.contains(remedy), "{printed}");
        assert!(printed.contains("note      10.96.0.20 is on kube-ipvs0: "), "{printed}");
        let log = server.log_text();
        assert!(!log.contains("do not arrive here"), "the owner is named, once: {log}");
        // The other addresses have their fallback.
        tests::signal(server.pid(), "KILL");
        server.wait(PATIENCE);
        assert_eq!(of_pod("169.254.10.10:53"), PLAIN);
    });
}

fn of_pod(at: &'static str) -> String {
    let at: SocketAddr = at.parse().expect("an address");
    within(POD, move || ask(at, NAME, "A").short().concat()).join().expect("it is answered")
}

fn options() -> Options {
    Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"])
}

const IPVS: &str = "kube-ipvs0";
const PATIENCE: Duration = Duration::from_secs(20);
const COREFILE: &str = "
.:53 {
    bind 10.96.0.20 169.254.10.10 169.254.10.11
    hosts {
        192.0.2.1 who.test
        ttl 5
    }
    forward . 10.3.0.2
}
";
