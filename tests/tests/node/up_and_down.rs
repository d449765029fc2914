//! What commands beside a server put there and take away, and what a stop leaves.

use std::net::IpAddr;
use std::time::Duration;

use tests::{Ask, Server, ask, isolated, run, signal, tool};

use super::lab::{Lab, NAME, PLAIN, US};
use super::never_dark::{node, status};

#[test]
fn a_clean_stop_leaves_nothing_and_answers_until_its_end() {
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
fn without_rules_a_stop_is_clean_unless_said_otherwise() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let lab = Lab::new();
        for (flags, left) in
            [(&["-rules", "none"][..], false), (&["-rules", "none", "-at-stop", "way-out"][..], true)]
        {
            let mut server = lab.serve(flags);
            signal(server.pid(), "TERM");
            assert!(server.wait(Duration::from_secs(10)).success());
            assert_eq!(run("ip", &["link"]).contains("localdns"), left, "{flags:?}");
        }
    });
}

#[test]
fn down_takes_everything_from_a_living_server_too_and_up_leaves_the_way_out() {
    isolated(|| {
        if !tool("up and down", "nft") {
            return;
        }
        let lab = Lab::new();
        let mut server = lab.serve(&[]);
        ready(&server);
        let told = node(&server, &["down"], 0);
        assert_eq!(
            told,
            format!(
                "the server of process {} keeps nothing any more\nthe rules are gone\n\
                 the link localdns with its addresses is gone\n",
                server.pid()
            )
        );
        // It hears of the addresses that went, and leaves them.
        server.wait_for_log("`node down` was asked for", Duration::from_secs(5));
        server.signal("HUP");
        server.wait_for_log("Reloading complete", Duration::from_secs(10));
        nothing_is_there();
        let gone = "there were no rules\nthe link localdns was not there\n";
        assert_eq!(
            node(&server, &["down"], 0),
            format!("the server of process {} keeps nothing any more\n{gone}", server.pid())
        );
        signal(server.pid(), "TERM");
        assert!(server.wait(Duration::from_secs(10)).success());
        nothing_is_there();
        for _ in 0..2 {
            let up = node(&server, &["up"], 0);
            assert!(up.contains("169.254.10.11 goes to 10.3.0.2 while nobody answers here"), "{up}");
        }
        assert_eq!(ask((address("169.254.10.11"), 53).into(), NAME, "A").short(), [PLAIN]);
        let listed = status(&server, 1);
        assert!(
            listed.contains("leases    nobody has one: queries go the way out; start the server"),
            "{listed}"
        );
        assert_eq!(
            node(&server, &["down"], 0),
            "the rules are gone\nthe link localdns with its addresses is gone\n"
        );
        assert_eq!(node(&server, &["down"], 0), gone);
    });
}

#[test]
fn down_takes_what_a_killed_predecessor_and_the_script_left() {
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
            "the rules are gone\n6 rules in the tables of iptables are gone\nthe link localdns with its addresses is gone\n"
        );
        assert!(!run("ip", &["link"]).contains("localdns"));
        assert_eq!(
            run("iptables", &["-t", "raw", "-S"]),
            "-P PREROUTING ACCEPT\n-P OUTPUT ACCEPT\n-A OUTPUT -d 192.0.2.9/32 -j NOTRACK\n"
        );
    });
}

fn ready(server: &Server) {
    server.wait_for_log("queries to fd10::11 come here", Duration::from_secs(10));
}

fn nothing_is_there() {
    assert_eq!(run("nft", &["list", "tables", "inet"]), "");
    assert!(!run("ip", &["link"]).contains("localdns"));
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}
