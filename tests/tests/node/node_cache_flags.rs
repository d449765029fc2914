//! node-cache's flags and their effects.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tests::{Metrics, Options, Server, eventually, http_get, isolated, run, signal, tool};

use super::lab::{CLUSTER, Lab, US};
use super::node_cache::{TEMPLATE, answer, options_of};
use super::status::json;

/// Each does what its users expect.
#[test]
fn flags_of_node_cache() {
    isolated(|| {
        if !tool("node-cache's flags", "nft") || !tool("node-cache's flags", "iptables") {
            return;
        }
        let _lab = Lab::new();
        std::fs::write("/run/no-corefile", "broken {").expect("/run is ours");
        for (flags, does) in ROWS {
            let mut server = serve(flags);
            eventually(&format!("{flags:?}: an answer"), PATIENCE, || {
                (answer("169.254.20.10") == US).then_some(())
            });
            does(&server);
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
            let mut down = Command::new(tests::binary());
            down.args(["node", "down"]);
            assert!(tests::output(down, PATIENCE).status.success(), "{flags:?}");
        }
    });
}

/// Deleted iptables rules are restored at each check.
#[test]
fn deleted_iptables_rules_are_restored() {
    isolated(|| {
        if !tool("node-cache's flags", "iptables") {
            return;
        }
        let _lab = Lab::new();
        let mut server = serve(&["-rules", "node-cache", "-syncinterval", "1"]);
        let ours = || run("iptables-save", &[]).matches("NodeLocal DNS Cache: ").count();
        let there = || eventually("rules of two addresses", PATIENCE, || (ours() == 24).then_some(()));
        there();
        let delete = || run("iptables", &["-t", "raw", "-D", "PREROUTING", "1"]);
        for _ in 0..3 {
            delete();
            there();
        }
        // Its rules go with it, so that the next ones are the second server's.
        assert!(server.stop().success());
        assert_eq!(ours(), 0);
        let server = serve(&["-rules", "node-cache", "-syncinterval", "3600"]);
        there();
        delete();
        // Probes continue every second without checking the rules: the last probe's age drops after
        // each.
        let (mut rounds, mut last_ms) = (0, 0);
        eventually("six rounds", PATIENCE, || {
            let status = json(&server);
            let ms = status["servers"][0]["addresses"][0]["probed_ms_ago"].as_u64()?;
            rounds += usize::from(ms < last_ms);
            last_ms = ms;
            (rounds == 6).then_some(())
        });
        assert_eq!(ours(), 23);
    });
}

/// An address that others have to add is not added, and served where it exists.
#[test]
fn foreign_address_is_served() {
    isolated(|| {
        if !tool("node-cache's flags", "nft") {
            return;
        }
        let _lab = Lab::new();
        let flags = ["-localip", "169.254.20.10,10.96.0.20", "-setupinterface=false"];
        std::fs::write("/run/Corefile.base", TEMPLATE).expect("/run is ours");
        let mut command = Command::new(tests::binary());
        command.args([
            "node-cache",
            "-basecorefile",
            "/run/Corefile.base",
            "-upstreamsvc",
            "kube-dns-upstream",
        ]);
        command.args(flags).env("KUBE_DNS_UPSTREAM_SERVICE_HOST", "10.96.0.10");
        let ended = tests::output(command, PATIENCE);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(216), "{stderr}");
        assert!(stderr.contains("10.96.0.20"), "{stderr}");
        assert!(!run("ip", &["addr"]).contains("10.96.0.20"));

        tests::add_address("10.96.0.20/32");
        let server = flags.iter().fold(options_of(TEMPLATE), |options, flag| options.args([*flag]));
        let mut server = Server::start_with("", server);
        for ip in ["169.254.20.10", "10.96.0.20"] {
            server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
            assert_eq!(answer(ip), US, "{ip}");
        }
        let links = run("ip", &["link"]);
        assert!(!links.contains("nodelocaldns"), "{links}");
        // No other program manages a link-local address.
        assert!(run("ip", &["-o", "addr", "show", "to", "169.254.20.10"]).contains(" localdns "));
        assert!(server.stop().success());
        assert!(run("ip", &["-o", "addr", "show", "dev", "lo"]).contains("10.96.0.20/32"), "it stays");
    });
}

type Does = fn(&Server);

static ROWS: &[(&[&str], Does)] = &[
    (&["-setupinterface=true"], |_| {
        let there = run("ip", &["-o", "addr", "show", "dev", "nodelocaldns"]);
        assert!(there.contains("169.254.20.10/32") && there.contains("10.96.0.20/32"), "{there}");
    }),
    (&["-setupiptables=true"], |server| {
        server.wait_for_log("queries to 10.96.0.20 are answered here", PATIENCE);
        eventually("the rules", PATIENCE, || has_table().then_some(()));
        assert_eq!(answer("10.96.0.20"), US);
    }),
    (&["-setupiptables=false"], |server| {
        // Without rules a Service's queries cannot arrive; the server reports it in its first
        // round.
        server.wait_for_log("queries to 10.96.0.20 do not arrive here", PATIENCE);
        no_rule_is_there();
        assert_eq!(answer("10.96.0.20"), CLUSTER);
    }),
    (&["-setupiptables=false", "-rules", "node-cache"], |server| {
        server.wait_for_log("queries to 10.96.0.20 do not arrive here", PATIENCE);
        no_rule_is_there();
    }),
    (&["-metrics-listen-address", "127.0.0.1:9999"], |server| {
        assert_eq!(setup_errors(&server.metrics(at(9999))), Some(0.0));
        assert!(http_get(at(9353), "/metrics").is_err(), "the default's place is free");
    }),
    (&["-prometheus-listen-address", ":9777"], |server| {
        let filled = std::fs::read_to_string(server.path("Corefile")).expect("it is written");
        assert!(filled.contains("    prometheus :9777\n"), "{filled}");
        assert_eq!(setup_errors(&server.metrics(at(9777))), Some(0.0));
    }),
    (&["-corefile", "/run/no-corefile"], |_| {
        let left = std::fs::read_to_string("/run/no-corefile").expect("it is there");
        assert_eq!(left, "broken {", "no process reads or writes it");
    }),
    (&["-rules", "node-cache", "-health-port", "8181"], |_| {
        eventually("rules of two addresses", PATIENCE, || {
            (run("iptables-save", &[]).matches("NodeLocal DNS Cache: ").count() == 24).then_some(())
        });
        let rules = run("iptables-save", &["-t", "raw"]);
        for port in ["--dport 8181", "--sport 8181"] {
            assert_eq!(rules.matches(port).count(), 2, "{rules}");
        }
        assert!(!rules.contains("8080"), "{rules}");
    }),
    (&["-rules", "node-cache"], |_| {
        eventually("rules of two addresses", PATIENCE, || {
            (run("iptables-save", &["-t", "raw"]).matches("port 8080").count() == 4).then_some(())
        });
    }),
];

/// Starts the server with the add-on's two addresses.
fn serve(flags: &[&'static str]) -> Server {
    let options: Options =
        options_of(TEMPLATE).args(["-localip", "169.254.20.10,10.96.0.20", "-at-stop", "clean"]);
    Server::start_with("", flags.iter().fold(options, |options, flag| options.args([*flag])))
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn setup_errors(metrics: &Metrics) -> Option<f64> {
    metrics.value("coredns_nodecache_setup_errors_total", &[("errortype", "iptables")])
}

fn has_table() -> bool {
    run("nft", &["list", "tables", "inet"]).lines().any(|table| table == "table inet localdns")
}

fn no_rule_is_there() {
    assert!(!run("nft", &["list", "tables", "inet"]).contains("localdns"));
    for program in ["iptables-save", "ip6tables-save"] {
        let rules = run(program, &[]);
        assert!(!rules.contains("NodeLocal DNS Cache: "), "{rules}");
    }
}

const PATIENCE: Duration = Duration::from_secs(20);
