//! Errors while node-cache sets up a node are counted by kind, and the set-up is completed once
//! possible.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tests::{Server, eventually, isolated, run, tool};

use super::availability::anothers_table;
use super::clients::ADDRESSES;
use super::iptables::Tools;
use super::lab::{Lab, US};
use super::node_cache::{TEMPLATE, answer, options_of};

/// A lock that is held and a missing program are counted apart.
#[test]
fn setup_errors_by_kind() {
    isolated(|| {
        for program in ["nft", "/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi"] {
            if !tool("setup errors", program) {
                return;
            }
        }
        let _lab = Lab::new();
        let legacy = Tools("legacy").path();
        let mut server = serve("169.254.20.10", "node-cache", &legacy, || {
            let lock = File::create("/run/xtables.lock").expect("/run is ours");
            lock.lock().expect("no other process has it");
            lock
        });
        counts(&server.0, "iptables_lock");
        drop(server.1);
        eventually("its rules", PATIENCE, || {
            let rules = run("/usr/sbin/iptables-legacy-save", &[]);
            (rules.matches("NodeLocal DNS Cache: ").count() == 12).then_some(())
        });
        assert!(server.0.stop().success());

        // A PATH with the four iptables programs alone, which appear later.
        let nft = Tools("nft").path();
        let (tools, _) = nft.split_once(':').expect("more than one directory");
        let hidden = format!("{tools}-hidden");
        std::fs::rename(tools, &hidden).expect("/run is ours");
        let mut server = serve("169.254.20.10", "node-cache", tools, || ());
        counts(&server.0, "iptables");
        assert!(server.0.log_text().contains("install iptables, or use `-rules nft`"));
        std::fs::rename(&hidden, tools).expect("/run is ours");
        eventually("its rules", PATIENCE, || {
            let rules = run("/usr/sbin/iptables-nft-save", &[]);
            (rules.matches("NodeLocal DNS Cache: ").count() == 12).then_some(())
        });
        assert!(server.0.stop().success());
    });
}

/// nftables rules are installed and removed while another process holds the iptables lock.
#[test]
fn nft_rules_under_held_iptables_lock() {
    isolated(|| {
        if !tool("setup errors", "nft") {
            return;
        }
        let lab = Lab::new();
        let lock = File::create("/run/xtables.lock").expect("/run is ours");
        lock.lock().expect("no other process has it");
        let mut server = lab.serve(&["-host-resolver", "none", "-at-stop", "clean"]);
        for ip in ADDRESSES {
            server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
        }
        let tables = || run("nft", &["list", "tables", "inet"]);
        assert!(tables().contains("table inet localdns\n"));
        run("nft", &["delete", "table", "inet", "localdns"]);
        eventually("they are back", PATIENCE, || tables().contains("table inet localdns\n").then_some(()));
        assert!(server.stop().success());
        assert_eq!(tables(), "");
        drop(lock);
    });
}

/// A table that another process owns, and an address that cannot be restored.
#[test]
fn foreign_table_and_address_are_counted() {
    isolated(|| {
        if !tool("setup errors", "nft") {
            return;
        }
        let _lab = Lab::new();
        let path = std::env::var("PATH").expect("there is one");
        let mut server = serve("169.254.20.10", "nft", &path, anothers_table);
        counts(&server.0, "iptables");
        let (mut other, typed) = server.1;
        drop(typed);
        other.wait().expect("it ends");
        server.0.wait_for_log("queries to 169.254.20.10 are answered here", PATIENCE);
        assert!(server.0.stop().success());

        let (server, ()) = serve("169.254.20.10,fd10::11", "nft", &path, || ());
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        // A link without IPv6 loses its addresses and accepts none.
        let without = Path::new("/proc/sys/net/ipv6/conf/nodelocaldns/disable_ipv6");
        std::fs::write(without, "1").expect("the namespace is ours");
        counts(&server, "interface_add");
        server.wait_for_log("fd10::11 is missing from this machine and cannot be restored: ", PATIENCE);
        assert_eq!(answer("169.254.20.10"), US, "the other stays");
        std::fs::write(without, "0").expect("the namespace is ours");
        server.wait_for_log("fd10::11 was removed from this machine and is restored", PATIENCE);
    });
}

/// Starts a server after `before`, and returns both.
fn serve<T>(addresses: &str, rules: &str, path: &str, before: impl FnOnce() -> T) -> (Server, T) {
    let done = before();
    let options = options_of(TEMPLATE).env("PATH", path).args(["-localip", addresses]);
    (Server::start_with("", options.args(["-rules", rules, "-at-stop", "clean"])), done)
}

/// Waits until errors of this kind are counted, and asserts that there are none of others.
fn counts(server: &Server, kind: &str) {
    let count = |kind: &str| {
        let metrics = server.metrics(SocketAddr::from(([127, 0, 0, 1], 9353)));
        metrics.value("coredns_nodecache_setup_errors_total", &[("errortype", kind)])
    };
    eventually(kind, PATIENCE, || (count(kind) >= Some(1.0)).then_some(()));
    for other in ["iptables", "iptables_lock", "interface_add", "interface_check", "configmap"] {
        assert!(other == kind || count(other) == Some(0.0), "{other} beside {kind}");
    }
}

const PATIENCE: Duration = Duration::from_secs(20);
