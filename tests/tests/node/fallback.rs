//! Which upstream answers while no server does, and which client address it sees.

use std::net::SocketAddr;
use std::time::Duration;

use tests::{Action, Ask, Options, Server, ask, eventually, isolated, run, signal, tool};

use super::lab::{CLUSTER, Lab, NAME, PLAIN, POD, within};

#[test]
fn fallback_is_the_first_live_upstream() {
    isolated(|| {
        if !tool("fallback", "nft") {
            return;
        }
        let lab = Lab::new();
        let mut server = serve(&[]);
        assert_eq!(of_pod(), CLUSTER);
        let leads_to = |target: &str| {
            let rules = run("nft", &["list", "chain", "inet", "localdns", "failover"]);
            rules.contains(&format!("ip daddr set {target}"))
        };
        assert!(leads_to("10.2.0.2"));
        lab.upstream("10.2.0.2").answer_by(|_| Action::Silent);
        eventually("the second is the fallback", PATIENCE, || {
            // The forwarder health-checks an upstream only when it has queries for it.
            let _ = Ask::new("other.test", "A").timeout(Duration::from_millis(500)).try_of(at());
            leads_to("10.3.0.2").then_some(())
        });
        signal(server.pid(), "KILL");
        server.wait(PATIENCE);
        assert_eq!(of_pod(), PLAIN);
    });
}

/// The fallback sees the pod's address where no rule masquerades it.
#[test]
fn fallback_sees_unmasqueraded_pods() {
    isolated(|| {
        if !tool("fallback", "nft") {
            return;
        }
        let lab = Lab::new();
        lab.upstream("10.2.0.2").answer_by(|_| Action::Silent);
        for (flags, seen) in [(&[][..], "10.2.0.1"), (&["-masquerade=false"], "10.1.0.2")] {
            let mut server = serve(flags);
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
            let upstream = lab.upstream("10.3.0.2");
            run("sed", &["-i", "s/10.2.0.2 10.3.0.2/10.3.0.2/", &server.path("Corefile").to_string_lossy()]);
            super::availability::node(&server, &[&["up", "-host-resolver", "none"], flags].concat(), 0);
            upstream.forget();
            for tcp in [false, true] {
                assert_eq!(of_pod_over(tcp), PLAIN, "{flags:?}");
            }
            let from: Vec<_> = upstream.asked().iter().map(|asked| asked.from.ip().to_string()).collect();
            assert_eq!(from, [seen; 2], "{flags:?}");
        }
    });
}

/// Only a plain address at port 53 can be a fallback.
#[test]
fn fallback_needs_a_plain_address() {
    isolated(|| {
        if !tool("fallback", "nft") {
            return;
        }
        let _lab = Lab::new();
        for (upstreams, target) in [
            ("10.2.0.2:5300 10.3.0.2", Some("10.3.0.2")),
            ("tls://10.2.0.2:53 127.0.0.1 fd02::2 10.3.0.2", Some("10.3.0.2")),
            ("10.2.0.2:5300", None),
            ("tls://10.2.0.2", None),
            ("tls://10.2.0.2:53", None),
        ] {
            let corefile = format!(".:53 {{\nbind 169.254.10.10\nforward . {upstreams}\n}}\n");
            let mut server = serve_of(&corefile, &[]);
            let none = "169.254.10.10 has no fallback: its `forward .` has no plain DNS upstream of its family at port 53";
            let rules = run("nft", &["list", "table", "inet", "localdns"]);
            let printed = super::availability::status(&server, 0);
            match target {
                Some(target) => {
                    assert!(rules.contains(&format!("ip daddr set {target}")), "{upstreams}: {rules}");
                    assert!(!server.log_text().contains("has no fallback"), "{upstreams}");
                    assert!(!printed.contains("no fallback"), "{upstreams}: {printed}");
                }
                None => {
                    assert!(!rules.contains("daddr set"), "{upstreams}: {rules}");
                    server.wait_for_log(none, PATIENCE);
                    assert!(printed.contains(none), "{upstreams}: {printed}");
                }
            }
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
            if target.is_some() {
                assert_eq!(of_pod(), PLAIN, "{upstreams}");
            }
        }
    });
}

fn serve(flags: &[&'static str]) -> Server {
    serve_of(COREFILE, flags)
}

fn serve_of(corefile: &str, flags: &[&'static str]) -> Server {
    let options = Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
    let server =
        Server::start_with(corefile, flags.iter().fold(options, |options, flag| options.args([*flag])));
    server.wait_for_log("queries to 169.254.10.10 are answered here", PATIENCE);
    server
}

fn of_pod() -> String {
    within(POD, || ask(at(), NAME, "A").short().concat()).join().expect("it is answered")
}

fn of_pod_over(tcp: bool) -> String {
    let asked = move || {
        let ask = Ask::new(NAME, "A");
        let ask = if tcp { ask.tcp() } else { ask };
        ask.of(at()).short().concat()
    };
    within(POD, asked).join().expect("it is answered")
}

fn at() -> SocketAddr {
    "169.254.10.10:53".parse().expect("an address")
}

const PATIENCE: Duration = Duration::from_secs(20);
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10
    forward . 10.2.0.2 10.3.0.2 {
        policy sequential
        max_fails 1
        health_check 500ms
    }
}
";
