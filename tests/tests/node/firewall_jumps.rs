//! Foreign chains that drop by a jump, a goto or a verdict map.

use std::time::Duration;

use tests::{isolated, run, tool};

use super::availability::node;
use super::lab::Lab;
use super::status::json;

/// Text and JSON agree, and a remedy for INPUT, once run, ends the report.
#[test]
fn indirect_drops_are_reported() {
    isolated(|| {
        if !tool("firewall", "nft") || !tool("firewall", "iptables") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        let status = || node(&server, &["status", "-host-resolver", "none"], 0);
        for (rules, expected) in ROWS {
            let ruleset = format!("table ip fw {{\nchain d {{ {DROP}; }}\nchain e {{ }}\n{rules}\n}}");
            run("nft", &[&ruleset.replace("}; ", "}\n")]);
            let (printed, json) = (status(), json(&server));
            let lines: Vec<_> = printed.lines().filter(|line| line.starts_with("firewall")).collect();
            match expected {
                "" => assert_eq!(lines, [""; 0], "{rules}"),
                expected => {
                    assert_eq!(lines.len(), 1, "{rules}: {printed}");
                    assert!(
                        lines[0].starts_with(&format!("firewall  ip fw {expected}")),
                        "{rules}: {printed}"
                    );
                }
            }
            let obstacles = json["obstacles"].as_array().expect("a list");
            assert_eq!(obstacles.len(), lines.len(), "{rules}: {json}");
            for (line, obstacle) in lines.iter().zip(obstacles) {
                assert_eq!(obstacle["certain"], !line.contains(" may drop "), "{json}");
                let command = obstacle["remedy"].as_str().expect("a command");
                assert!(line.ends_with(command), "{line}");
                // It opens nothing else.
                assert!(
                    !rules.contains("169.254.10.10 . 53") || !command.contains("169.254.10.11"),
                    "{line}"
                );
                run("sh", &["-ec", command]);
                let now = status();
                // What conntrack saw first is a condition that cannot be checked.
                let stays = line.contains(" may drop ") || line.contains(" to the fallback");
                assert_eq!(now.contains("firewall "), stays, "{rules}: {now}");
            }
            run("nft", &["delete table ip fw"]);
        }
        // Chains of iptables.
        run("sh", &["-ec", IPTABLES]);
        let printed = status();
        let line = "firewall  ip filter INPUT drops packets that its rules do not accept, by rule 2 of chain D, after which an appended one has no effect, on the path to this server; unless a rule accepts these queries, run: iptables -I D 2 ! -i v2 ";
        assert!(printed.contains(line), "{printed}");
        let line = "firewall  ip filter FORWARD may drop queries on the path to the fallback, by its last rule: this depends on conditions that cannot be checked from here; check: iptables -S FORWARD\n";
        assert!(printed.contains(line), "{printed}");
        let line = "firewall  ip filter OUTPUT drops packets that its rules do not accept, on the path from this server; unless a rule accepts these replies, run: ";
        let remedy = printed.lines().find_map(|printed| printed.strip_prefix(line)).expect("a remedy");
        assert!(remedy.starts_with("iptables -A OUTPUT ! -o v2 "), "{remedy}");
        run("sh", &["-ec", remedy]);
        assert!(!status().contains("ip filter OUTPUT"), "{}", status());
        let remedy =
            printed.lines().find_map(|line| line.rsplit_once("these queries, run: ")).expect("a remedy").1;
        run("sh", &["-ec", remedy]);
        assert!(!status().contains("ip filter INPUT"), "{}", status());
    });
}

/// The body of chain d.
const DROP: &str = "ct state established accept; counter drop";
/// Chains, and what `status` reports of them.
const ROWS: [(&str, &str); 22] = [
    (
        "chain in { type filter hook input priority 0; iif lo accept; jump d; accept; }",
        "in drops packets that its rules do not accept, by rule 2 of chain d, after which an appended one has no effect, on the path to this server; unless a rule accepts these queries, run: nft 'insert rule ip fw d handle ",
    ),
    (
        "chain in { type filter hook input priority 0; policy drop; iif lo accept; goto e; }",
        "in drops packets that its rules do not accept, by the end of chain e, after which an appended one has no effect, on the path to this server; unless a rule accepts these queries, run: nft 'add rule ip fw e ",
    ),
    // Nested, and a rule in the middle.
    (
        "chain f { goto d; }; chain in { type filter hook input priority 0; iif lo accept; ip protocol udp jump f; ip protocol tcp drop; }",
        "in drops packets that its rules do not accept, by rule 2 of chain d, ",
    ),
    (
        "chain in { type filter hook input priority 0; iif lo accept; drop; ip protocol tcp counter; }",
        "in drops packets that its rules do not accept, by its rule 2, ",
    ),
    (
        "chain in { type filter hook input priority 0; iif lo accept; meta l4proto vmap { tcp : drop, udp : jump d }; }",
        "in drops packets that its rules do not accept, by rule 2 of chain d, ",
    ),
    (
        "chain in { type filter hook input priority 0; iif lo accept; ct state vmap { established : accept, untracked : drop }; }",
        "in drops packets that its rules do not accept, by its last rule, ",
    ),
    (
        "chain in { type filter hook input priority 0; iif lo accept; th dport vmap { 0-1023 : goto d, 2000-3000 : accept }; }",
        "in drops packets that its rules do not accept, by rule 2 of chain d, ",
    ),
    (
        "chain in { type filter hook input priority 0; iif lo accept; ip daddr . th dport vmap { 169.254.10.10 . 53 : drop, 169.254.10.11 . 54 : drop }; }",
        "in drops packets that its rules do not accept, by its last rule, after which an appended one has no effect, on the path to this server; unless a rule accepts these queries, run: nft 'insert rule ip fw in handle ",
    ),
    (
        "chain through { type filter hook forward priority 0; ct state established accept; meta l4proto udp jump d; }",
        "through drops packets that its rules do not accept, by rule 2 of chain d, after which an appended one has no effect, on the path to the fallback; ",
    ),
    // A range of a concatenation: both ends.
    (
        "set s { type ipv4_addr . inet_service; flags interval; elements = { 169.254.0.0/16 . 0-1024 }; }; chain in { type filter hook input priority 0; iif lo accept; ip daddr . th dport @s drop; }",
        "in drops packets that its rules do not accept, by its last rule, after which an appended one has no effect, on the path to this server; unless a rule accepts these queries, run: nft 'insert rule ip fw in handle ",
    ),
    // The server's replies, which are untracked.
    (
        "chain o { type filter hook output priority 0; policy drop; oif lo accept; meta l4proto { icmp, icmpv6 } accept; ct state new,established,related accept; }",
        "o drops packets that its rules do not accept, on the path from this server; unless a rule accepts these replies, run: nft 'add rule ip fw o oifname != ",
    ),
    (
        "chain p { type filter hook postrouting priority 0; policy drop; oif lo accept; ct state new,established,related accept; }",
        "p drops packets that its rules do not accept, on the path from this server; ",
    ),
    (
        "chain p { type filter hook prerouting priority 0; policy drop; iif lo accept; ct state new,established,related accept; }",
        "p drops packets that its rules do not accept, on the path to this server; ",
    ),
    // Conditions that cannot be checked.
    (
        "chain o { type filter hook output priority 0; oif lo accept; meta mark 7 goto d; accept; }",
        "o may drop replies on the path from this server, by its rule 2: ",
    ),
    (
        "chain in { type filter hook input priority 0; iif lo accept; iifname vmap { v1 : jump d, v2 : drop }; }",
        "in may drop queries on the path to this server, by its last rule: this depends on conditions that cannot be checked from here; check: nft list chain ip fw in",
    ),
    (
        "chain in { type filter hook input priority 0; iif lo accept; meta mark 7 goto d; accept; }",
        "in may drop queries on the path to this server, by its rule 2: ",
    ),
    (
        "chain in { type filter hook input priority 0; iif lo accept; ip saddr . th dport vmap { 10.1.0.0/24 . 0-100 : drop }; }",
        "in may drop queries on the path to this server, by its last rule: ",
    ),
    // No queries of clients.
    (
        "chain o { type filter hook output priority 0; policy drop; oif lo accept; ct state new,established accept; iifname v1 drop; ip daddr 127.0.0.1 drop; udp sport 53 accept; tcp sport 53 accept; }",
        "",
    ),
    (
        "chain in { type filter hook input priority 0; ct state vmap { established : accept, invalid : drop }; iifname v2 jump d; }",
        "",
    ),
    (
        "chain in { type filter hook input priority 0; th dport 5353 jump d; ip protocol icmp goto d; ip daddr 10.1.0.1 goto d; }",
        "",
    ),
    (
        "chain in { type filter hook input priority 0; policy drop; iif lo accept; meta l4proto vmap { tcp : accept, udp : accept }; ip protocol icmp accept; }",
        "",
    ),
    // A condition of the firewall's own, like those of a NetworkPolicy.
    ("chain in { type filter hook input priority 0; iifname v5 drop; ip saddr 10.1.0.7 drop; }", ""),
];
const IPTABLES: &str = "
iptables -N D
iptables -A D -m conntrack --ctstate ESTABLISHED -j ACCEPT
iptables -A D -j REJECT
iptables -A INPUT -i lo -j ACCEPT
iptables -A INPUT -m comment --comment all -j D
iptables -N E
iptables -A E -j DROP
iptables -A FORWARD -m mark --mark 7 -j E
iptables -A OUTPUT -o lo -j ACCEPT
iptables -A OUTPUT -m state --state NEW,ESTABLISHED -j ACCEPT
iptables -P OUTPUT DROP";
const PATIENCE: Duration = Duration::from_secs(20);
