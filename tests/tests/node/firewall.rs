//! Others' chains that drop by policy: what `status` says mends it does.

use std::net::SocketAddr;
use std::time::Duration;

use tests::{Ask, Server, isolated, run, signal, tool};

use super::clients::{ADDRESSES, answers_everywhere, at};
use super::lab::{CLUSTER, Lab, NAME, PLAIN, POD, US, within};
use super::never_dark::node;

#[test]
fn what_status_types_for_a_firewall_that_drops_lets_pods_in_and_out() {
    isolated(|| {
        if !tool("firewall", "nft") || !tool("firewall", "iptables") {
            return;
        }
        let lab = Lab::new();
        for (firewall, comes_down) in [(NFT, "nft delete table inet fw"), (IPTABLES, IPTABLES_DOWN)] {
            let mut server = lab.serve(&["-host-resolver", "none"]);
            server.wait_for_log("queries to fd10::11 come here", PATIENCE);
            answers_everywhere(US, US);
            run("sh", &["-ec", firewall]);
            nobody_answers_the_pod();
            mend(&server, "to us", 0);
            answers_everywhere(US, US);
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
            nobody_answers_the_pod();
            mend(&server, "out", 1);
            answers_everywhere(CLUSTER, PLAIN);
            run("sh", &["-ec", comes_down]);
        }
    });
}

#[test]
fn status_says_that_it_sees_no_filter_of_iptables_legacy_and_what_does() {
    isolated(|| {
        if !tool("firewall", "nft") || !tool("firewall", "iptables") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 come here", PATIENCE);
        let status = || node(&server, &["status", "-host-resolver", "none"], 0);
        let before = status();
        assert!(!before.contains("legacy"), "{before}");
        for (program, others) in [("iptables-legacy", "ip6tables-legacy"), ("ip6tables-legacy", "")] {
            run(program, &["-P", "FORWARD", "DROP"]);
            let said = status();
            let told = format!("firewall  {program} has a filter table, and whether that drops ");
            let line = said.lines().find(|line| line.starts_with(&told)).unwrap_or_else(|| panic!("{said}"));
            let (_, look) = line.rsplit_once("; look: ").expect("it says what looks");
            assert!(run("sh", &["-ec", look]).contains("-P FORWARD DROP\n"), "{look}");
            assert!(others.is_empty() || !said.contains(others), "{said}");
        }
    });
}

fn nobody_answers_the_pod() {
    for ip in ADDRESSES {
        for tcp in [false, true] {
            let at: SocketAddr = at(ip);
            let asks = move || {
                let ask = Ask::new(NAME, "A").timeout(Duration::from_millis(200));
                if tcp { ask.tcp() } else { ask }.try_of(at).is_ok()
            };
            assert!(!within(POD, asks).join().expect("it asks"), "{ip}, TCP: {tcp}: it is let through");
        }
    }
}

/// Types what `status`, which ends with this code, says of a way, as it stands there.
fn mend(server: &Server, way: &str, code: i32) {
    let said = node(server, &["status", "-host-resolver", "none"], code);
    let way = format!(", on the way {way}; ");
    let mends = said.lines().filter(|line| line.starts_with("firewall") && line.contains(&way));
    let mends: Vec<_> = mends.filter_map(|line| Some(line.rsplit_once("none of them: ")?.1)).collect();
    assert!(!mends.is_empty(), "{said}");
    for mend in mends {
        run("sh", &["-ec", mend]);
    }
}

const PATIENCE: Duration = Duration::from_secs(20);
/// As a machine's owner may have them, who lets in what was asked for.
const NFT: &str = "nft 'table inet fw {
    chain in {
        type filter hook input priority 0; policy drop;
        iif lo accept; ct state established,related accept; meta l4proto 58 accept
    }
    chain through {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept; meta l4proto 58 accept
    }
}'";
const IPTABLES: &str = "
for program in iptables ip6tables; do
    for chain in INPUT FORWARD; do
        $program -A $chain -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
        $program -P $chain DROP
    done
    $program -A INPUT -i lo -j ACCEPT
done
for chain in INPUT FORWARD; do ip6tables -A $chain -p ipv6-icmp -j ACCEPT; done";
const IPTABLES_DOWN: &str = "
for program in iptables ip6tables; do
    for chain in INPUT FORWARD; do $program -P $chain ACCEPT; $program -F $chain; done
done";
