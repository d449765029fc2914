//! A start that fails leaves no rule or address that takes queries away from their previous server.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use tests::{isolated, output, run, signal, tool};

use super::clients::{answers_everywhere, asked_at};
use super::lab::{CLUSTER, COREFILE, Lab, PLAIN, POD, within};

#[test]
fn failed_start_redirects_no_service_query() {
    isolated(|| {
        if !tool("broken start", "nft") || !tool("broken start", "iptables") {
            return;
        }
        let lab = Lab::new();
        for rules in ["nft", "iptables", "node-cache"] {
            for (corefile, code) in BROKEN {
                write(corefile);
                ends(&["node", "run", "-rules", rules, "-conf", FILE], code);
                no_address_is_there(corefile);
                no_rule_is_there(corefile);
            }
        }
        for corefile in ["broken {", "__PILLAR__LOCAL__DNS__:53 {\nforwards . 10.96.0.10\n}\n"] {
            write(corefile);
            ends(&["node-cache", "-localip", "169.254.10.10,10.96.0.20", "-basecorefile", FILE], 217);
            no_address_is_there(corefile);
            no_rule_is_there(corefile);
        }
        // The Corefile is valid, but port 53 is taken: addresses may remain for the next start,
        // rules may not.
        for rules in ["nft", "iptables", "node-cache"] {
            let stranger = TcpListener::bind("0.0.0.0:53").expect("no other process uses it");
            write(COREFILE);
            ends(&["node", "run", "-rules", rules, "-conf", FILE], 216);
            no_rule_is_there(rules);
            drop(stranger);
            no_rule_is_there(rules);
        }
        // The failover rules of a killed predecessor stay in effect.
        let mut server = lab.serve(&["-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        signal(server.pid(), "KILL");
        server.wait(PATIENCE);
        for (corefile, code) in BROKEN {
            write(corefile);
            ends(&["node", "run", "-conf", FILE], code);
            answers_everywhere(CLUSTER, PLAIN);
        }
    });
}

fn write(corefile: &str) {
    std::fs::write(FILE, corefile).expect("/run is ours");
}

fn ends(words: &[&str], code: i32) {
    let mut command = Command::new(tests::binary());
    command.args(words).args(["-host-resolver", "none", "-pidfile", "/run/pid"]);
    let ended = output(command, PATIENCE);
    assert_eq!(ended.status.code(), Some(code), "{words:?}: {ended:?}");
}

fn no_rule_is_there(what: &str) {
    assert_eq!(run("nft", &["list", "tables", "inet"]), "", "{what}");
    for program in ["iptables", "ip6tables"] {
        for table in ["raw", "filter"] {
            let rules = run(program, &["-t", table, "-S"]);
            assert!(!rules.contains("-A "), "{what}: {rules}");
        }
    }
    for tcp in [false, true] {
        assert_eq!(asked_at("10.96.0.20", tcp), CLUSTER, "{what}");
        let of_pod = within(POD, move || asked_at("10.96.0.20", tcp));
        assert_eq!(of_pod.join().expect("it is answered"), CLUSTER, "{what}");
    }
}

fn no_address_is_there(what: &str) {
    assert!(!run("ip", &["link"]).contains("localdns"), "{what}");
    let addresses = run("ip", &["addr"]);
    for ip in ["10.96.0.20", "169.254.10.1", "fd10::11"] {
        assert!(!addresses.contains(ip), "{what}: {addresses}");
    }
}

const FILE: &str = "/run/Corefile";
const PATIENCE: Duration = Duration::from_secs(20);
/// Corefiles and exit codes: a syntax error, an unknown directive, an invalid value of a property,
/// an address that pods cannot reach.
const BROKEN: [(&str, i32); 4] = [
    (".:53 {\nbind 10.96.0.20 169.254.10.10\n", 217),
    (".:53 {\nbind 10.96.0.20 169.254.10.10\nforwards . 10.2.0.2\n}\n", 217),
    (".:53 {\nbind 10.96.0.20 169.254.10.10\nforward . 10.2.0.2 {\npolicy worst\n}\n}\n", 217),
    (".:53 {\nbind 10.96.0.20 fe80::10\nforward . 10.2.0.2\n}\n", 217),
];
