//! Foreign chains with a drop policy: the remedy that `status` prints works.

use std::time::Duration;

use tests::{Action, Ask, Says, Server, Upstream, isolated, run, signal, tool, wire};

use super::availability::node;
use super::clients::{ADDRESSES, answers_everywhere, at};
use super::lab::{CLUSTER, Lab, NAME, OUTSIDE, PLAIN, POD, US, within};

/// The firewall's own rules still cut off a pod, like those of a NetworkPolicy, and outside hosts
/// gain no access.
#[test]
fn status_remedy_admits_pods_only() {
    isolated(|| {
        if !tool("firewall", "nft") || !tool("firewall", "iptables") {
            return;
        }
        let lab = Lab::new();
        wire(CUT_OFF, 5);
        for (ip, via) in ADDRESSES.map(|ip| (ip, if ip.contains(':') { "fd02::1" } else { "10.2.0.1" })) {
            run("ip", &["-n", OUTSIDE, "route", "replace", ip, "via", via]);
        }
        let of_pod = within(POD, || {
            Upstream::at(at("10.1.0.2"), |_| Action::Reply(Says::answer("who.test. 5 IN A 192.0.2.9\n")))
        });
        let of_pod = of_pod.join().expect("a pod serves");
        for (firewall, teardown, suffix) in [
            (NFT.to_owned(), NFT_DOWN, ""),
            (IPTABLES.to_owned(), IPTABLES_DOWN, ""),
            (rejecting(NFT), NFT_DOWN, BY_LAST_RULE),
            (rejecting(IPTABLES), IPTABLES_DOWN, BY_LAST_RULE),
        ] {
            let mut server = lab.serve(&["-host-resolver", "none"]);
            server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
            answers_everywhere(US, US);
            run("sh", &["-ec", &firewall]);
            assert_unanswered(POD);
            apply_remedies(&server, suffix, "to this server", 0);
            answers_everywhere(US, US);
            assert_unanswered(CUT_OFF);
            assert_unanswered(OUTSIDE);
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
            assert_unanswered(POD);
            apply_remedies(&server, suffix, "to the fallback", 1);
            answers_everywhere(CLUSTER, PLAIN);
            assert_unanswered(CUT_OFF);
            assert_unanswered(OUTSIDE);
            // The remedy does not open ports of the pod.
            let through =
                || Ask::new(NAME, "A").timeout(Duration::from_millis(200)).try_of(at("10.1.0.2")).is_ok();
            assert!(!within(OUTSIDE, through).join().expect("it asks"), "it is let through to a pod");
            assert_eq!(of_pod.total(), 0);
            run("sh", &["-ec", teardown]);
        }
    });
}

/// `status` reports that it cannot see iptables-legacy filters, and which tool can.
#[test]
fn status_reports_unseen_iptables_legacy() {
    isolated(|| {
        if !tool("firewall", "nft") || !tool("firewall", "iptables") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        let status = || node(&server, &["status", "-host-resolver", "none"], 0);
        let before = status();
        assert!(!before.contains("legacy"), "{before}");
        for (program, others) in [("iptables-legacy", "ip6tables-legacy"), ("ip6tables-legacy", "")] {
            run(program, &["-P", "FORWARD", "DROP"]);
            let printed = status();
            let start = format!("firewall  {program} has a filter table, which cannot be read from here");
            let line =
                printed.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{printed}"));
            let (_, look) = line.rsplit_once("; check: ").expect("it says what looks");
            assert!(run("sh", &["-ec", look]).contains("-P FORWARD DROP\n"), "{look}");
            assert!(others.is_empty() || !printed.contains(others), "{printed}");
        }
    });
}

fn assert_unanswered(place: &'static str) {
    for ip in ADDRESSES {
        for tcp in [false, true] {
            let asks = move || {
                let ask = Ask::new(NAME, "A").timeout(Duration::from_millis(200));
                if tcp { ask.tcp() } else { ask }.try_of(at(ip)).is_ok()
            };
            assert!(
                !within(place, asks).join().expect("it asks"),
                "{place} at {ip}, TCP: {tcp}: it is let through"
            );
        }
    }
}

/// Runs the remedies that `status`, which exits with `code`, prints for a path.
fn apply_remedies(server: &Server, suffix: &str, way: &str, code: i32) {
    let printed = node(server, &["status", "-host-resolver", "none"], code);
    let way = format!("drops packets that its rules do not accept{suffix}, on the path {way}; ");
    let remedies = printed.lines().filter(|line| line.starts_with("firewall") && line.contains(&way));
    let remedies: Vec<_> =
        remedies.filter_map(|line| Some(line.rsplit_once("these queries, run: ")?.1)).collect();
    assert!(!remedies.is_empty(), "{printed}");
    for remedy in remedies {
        run("sh", &["-ec", remedy]);
    }
}

/// The same firewall with a last rule in place of its policies.
fn rejecting(firewall: &str) -> String {
    let nft = firewall
        .replace("policy drop", "policy accept")
        .replace("meta l4proto 58 accept", "meta l4proto 58 accept; reject");
    let iptables = "for chain in INPUT FORWARD; do for program in iptables ip6tables; do\n$program -P $chain ACCEPT; $program -A \
                    $chain -m comment --comment last -j REJECT\ndone; done";
    if firewall.starts_with("nft") { nft } else { format!("{firewall}\n{iptables}") }
}

const CUT_OFF: &str = "cut-off";
const BY_LAST_RULE: &str = ", by its last rule, after which an appended one has no effect";
const PATIENCE: Duration = Duration::from_secs(20);
/// A typical host firewall, which accepts replies, with one pod cut off.
const NFT: &str = "nft 'table inet fw {
    chain in {
        type filter hook input priority 0; policy drop;
        iifname v5 drop; iif lo accept; ct state established,related accept; meta l4proto 58 accept
    }
    chain through {
        type filter hook forward priority 0; policy drop;
        iifname v5 drop; ct state established,related accept; meta l4proto 58 accept
    }
}'";
const NFT_DOWN: &str = "nft delete table inet fw";
const IPTABLES: &str = "
for program in iptables ip6tables; do
    for chain in INPUT FORWARD; do
        $program -A $chain -i v5 -j DROP
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
