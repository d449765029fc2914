//! Which clients fail over while no server runs: pods, but no outside hosts.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use tests::{Action, Ask, Says, Server, Upstream, isolated, run, signal, tool, wire};

use super::availability::{node, status};
use super::clients::{asked_at, at};
use super::lab::{CLUSTER, Lab, NAME, OUTSIDE, PLAIN, POD, US, within};

/// The same hosts that `acl` allows and refuses, over IPv4, IPv6, UDP and TCP, after a kill and a
/// stop.
#[test]
fn outside_hosts_are_always_refused() {
    isolated(|| {
        if !tool("failover", "nft") {
            return;
        }
        let lab = Lab::new();
        let_outside_reach_us();
        for (end, late, net) in [("KILL", "late1", 5), ("TERM", "late2", 6)] {
            let mut server = serve(ACL, &[]);
            for ip in LINK_LOCAL {
                is_answered(POD, ip, US);
                for tcp in [false, true] {
                    let reply = within(OUTSIDE, move || over(tcp).of(at(ip))).join().expect("it is answered");
                    assert_eq!(reply.status(), "REFUSED", "{ip}, TCP: {tcp}");
                }
            }
            signal(server.pid(), end);
            server.wait(PATIENCE);
            // A pod that starts now fails over too.
            wire(late, net);
            for ip in LINK_LOCAL {
                is_answered(POD, ip, PLAIN);
                is_answered(late, ip, PLAIN);
                assert_eq!(asked_at(ip, false), PLAIN, "the host itself at {ip}");
                is_refused(&lab, OUTSIDE, ip);
            }
            let printed = status(&server, 1);
            assert!(
                printed.contains("failover  for this host and clients on every link except v2, "),
                "{printed}"
            );
        }
    });
}

/// By default an address with `acl` fails open, which the log and `status` report; a flag closes
/// it.
#[test]
fn address_with_acl_at_a_death() {
    isolated(|| {
        if !tool("failover", "nft") {
            return;
        }
        let lab = Lab::new();
        let note = "169.254.10.10 has `acl`, which does not apply while no server is running";
        let corefile = format!("{ACL}{SERVICE}");
        let mut server = serve(&corefile, &[]);
        server.wait_for_log(note, PATIENCE);
        let printed = status(&server, 0);
        assert!(printed.contains(&format!("note      {note}")), "{printed}");
        assert!(!printed.contains("169.254.10.11 has `acl`"), "{printed}");
        kill(&mut server);
        is_answered(POD, "169.254.10.10", PLAIN);
        is_answered(POD, "10.96.0.20", CLUSTER);
        // Also before the server is back.
        node(&server, &["up", "-host-resolver", "none", "-failover-acl", "closed"], 0);
        let mut server = serve(&corefile, &["-failover-acl", "closed"]);
        assert!(!server.log_text().contains("has `acl`"), "{}", server.log_text());
        is_answered(POD, "169.254.10.10", US);
        let printed = status(&server, 0);
        assert!(
            printed.contains("address   169.254.10.10  on localdns, fails closed, answers\n"),
            "{printed}"
        );
        kill(&mut server);
        for ip in ["169.254.10.10", "fd10::10", "10.96.0.20"] {
            is_refused(&lab, POD, ip);
            let asked = lab.asked();
            assert!(over(false).try_of(at(ip)).is_err(), "the host itself at {ip}");
            assert_eq!(lab.asked(), asked, "{ip}");
        }
        // This address has no `acl`.
        is_answered(POD, "169.254.10.11", PLAIN);
    });
}

/// A pod cannot use the source address of an outside host or another pod.
#[test]
fn spoofed_sources_reach_no_upstream() {
    isolated(|| {
        if !tool("failover", "nft") {
            return;
        }
        let lab = Lab::new();
        let_outside_reach_us();
        wire("other", 5);
        let mut server = serve(ACL, &[]);
        kill(&mut server);
        // Disables the kernel's reverse-path filter, which is not under test.
        run("sh", &["-ec", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done"]);
        for (from, source, to) in [
            (POD, "198.51.100.7", "169.254.10.10"),
            (POD, "10.5.0.2", "169.254.10.10"),
            (POD, "10.2.0.2", "169.254.10.10"),
            (POD, "2001:db8::7", "fd10::10"),
            (POD, "fd05::2", "fd10::10"),
            (OUTSIDE, "10.1.0.2", "169.254.10.10"),
            (OUTSIDE, "fd01::2", "fd10::10"),
        ] {
            run("ip", &["-n", from, "addr", "add", source, "dev", "lo", "nodad"]);
            let asks = move || {
                let socket = UdpSocket::bind((source.parse::<IpAddr>().expect("an address"), 0));
                let query = Ask::new("spoofed.test", "A").bytes();
                socket.expect("it has the address").send_to(&query, at(to)).expect("it is sent");
            };
            within(from, asks).join().expect("it asks");
            run("ip", &["-n", from, "addr", "del", source, "dev", "lo"]);
            // Once this is answered, all earlier packets have arrived.
            is_answered(POD, to, PLAIN);
            for ip in ["10.3.0.2", "fd03::2"] {
                assert_eq!(lab.upstream(ip).count("spoofed.test."), 0, "{source} from {from}");
            }
        }
    });
}

/// A bridge with the node's address and pods, like Azure CNI's azure0 and OVN's br-ex.
#[test]
fn bridged_uplink_needs_named_networks() {
    isolated(|| {
        if !tool("failover", "nft") {
            return;
        }
        let lab = Lab::new();
        wire(STRANGER, 5);
        run("sh", &["-ec", BRIDGED]);
        let note = "br0 is an uplink and a bridge: pods may be on it as well as outside hosts";
        let mut server = serve(ACL, &[]);
        server.wait_for_log(note, PATIENCE);
        assert!(status(&server, 0).contains(&format!("note      {note}")));
        kill(&mut server);
        assert!(status(&server, 1).contains(&format!("note      {note}")));
        for ip in LINK_LOCAL {
            is_answered(POD, ip, PLAIN);
            is_answered(STRANGER, ip, PLAIN);
        }
        for (clients, outside_answer) in [("all", PLAIN), ("10.1.0.0/24,fd01::/64", "")] {
            let mut server = serve(ACL, &["-failover-clients", clients]);
            assert!(!server.log_text().contains(note), "{}", server.log_text());
            let printed = status(&server, 0);
            let named = match clients {
                "all" => "failover  for this host and every client\n",
                _ => "failover  for this host and clients in 10.1.0.0/24, fd01::/64, if",
            };
            assert!(printed.contains(named), "{printed}");
            kill(&mut server);
            for ip in LINK_LOCAL {
                is_answered(POD, ip, PLAIN);
                match outside_answer {
                    "" => is_refused(&lab, STRANGER, ip),
                    responder => is_answered(STRANGER, ip, responder),
                }
            }
        }
    });
}

/// A new uplink is used without a restart.
#[test]
fn moving_default_route_is_followed() {
    isolated(|| {
        if !tool("failover", "nft") {
            return;
        }
        let lab = Lab::new();
        wire(STRANGER, 5);
        let mut server = serve(ACL, &[]);
        run("ip", &["route", "add", "default", "via", "10.5.0.2", "metric", "5000"]);
        let rules = || run("nft", &["list", "chain", "inet", "localdns", "clients"]);
        tests::eventually("it is followed", PATIENCE, || {
            rules().contains("iifname \"v5\" accept").then_some(())
        });
        kill(&mut server);
        for ip in LINK_LOCAL {
            is_answered(POD, ip, PLAIN);
            is_refused(&lab, STRANGER, ip);
        }
    });
}

/// Cilium routes to every pod over its own link, but pods' packets arrive on others.
#[test]
fn pods_behind_cilium_are_answered() {
    isolated(|| {
        if !tool("failover", "nft") {
            return;
        }
        let _lab = Lab::new();
        run("sh", &["-ec", CILIUM]);
        let mut server = serve(ACL, &[]);
        is_answered(POD, "169.254.10.10", US);
        kill(&mut server);
        is_answered(POD, "169.254.10.10", PLAIN);
    });
}

/// kube-proxy in IPVS mode has Services' addresses on a link of the node, and IPVS takes packets to
/// them. Without IPVS here, a server at the address stands in for it, and `-d` for the ipsets.
#[test]
fn pods_and_outside_hosts_behind_ipvs() {
    isolated(|| {
        if !tool("failover", "nft") || !tool("failover", "iptables") {
            return;
        }
        let lab = Lab::new();
        let_outside_reach_us();
        run("nft", &["delete table ip kube-proxy"]);
        run("sh", &["-ec", IPVS]);
        let answer = format!("{NAME}. 5 IN A {CLUSTER}\n");
        let service = Upstream::at(at("10.96.0.10"), move |_| Action::Reply(Says::answer(&answer)));
        let mut server = serve(&ACL.replace("10.3.0.2", "10.96.0.10"), &[]);
        kill(&mut server);
        is_answered(POD, "169.254.10.10", CLUSTER);
        let asked = service.total();
        is_refused(&lab, OUTSIDE, "169.254.10.10");
        assert_eq!(service.total(), asked);
    });
}

pub(crate) fn serve(corefile: &str, flags: &[&'static str]) -> Server {
    let options = tests::Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
    let options = flags.iter().fold(options, |options, word| options.args([*word]));
    let server = Server::start_with(corefile, options);
    for ip in LINK_LOCAL {
        server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
    }
    server
}

pub(crate) fn kill(server: &mut Server) {
    signal(server.pid(), "KILL");
    server.wait(PATIENCE);
}

/// Routes of a neighbour on the uplink, and of a host that routes to us.
fn let_outside_reach_us() {
    for (ip, via) in [("169.254.10.10", "10.2.0.1"), ("169.254.10.11", "10.2.0.1"), ("fd10::10", "fd02::1")] {
        run("ip", &["-n", OUTSIDE, "route", "replace", ip, "via", via]);
    }
}

fn over(tcp: bool) -> Ask {
    let ask = Ask::new(NAME, "A").timeout(Duration::from_millis(500));
    if tcp { ask.tcp() } else { ask }
}

pub(crate) fn is_answered(from: &'static str, ip: &'static str, by: &str) {
    for tcp in [false, true] {
        let responder = within(from, move || asked_at(ip, tcp)).join().expect("it is answered");
        assert_eq!(responder, by, "{from} at {ip}, TCP: {tcp}");
    }
}

/// Asserts that a closed port refuses the query at once.
pub(crate) fn is_refused(lab: &Lab, from: &'static str, ip: &'static str) {
    let asked = lab.asked();
    for tcp in [false, true] {
        let reply = within(from, move || over(tcp).try_of(at(ip))).join().expect("it asks");
        let error = reply.expect_err("no server answers it");
        assert!(format!("{error:#}").contains("refused"), "{from} at {ip}, TCP: {tcp}: {error:#}");
    }
    assert_eq!(lab.asked(), asked, "{from} at {ip}: an upstream was asked");
}

/// A host that is neither a pod nor an upstream.
const STRANGER: &str = "stranger";
pub(crate) const LINK_LOCAL: [&str; 2] = ["169.254.10.10", "fd10::10"];
const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const ACL: &str = "
.:53 {
    bind 169.254.10.10 fd10::10
    acl {
        allow net 10.1.0.0/24 fd01::/64
        block
    }
    hosts {
        192.0.2.1 who.test
        ttl 5
    }
    forward . 10.3.0.2 fd03::2
}
";
const SERVICE: &str = "
.:53 {
    bind 10.96.0.20
    acl {
        allow net 10.1.0.0/24
        block
    }
    forward . 10.96.0.10
}
.:53 {
    bind 169.254.10.11
    forward . 10.3.0.2
}
";
const BRIDGED: &str = "
ip link add br0 type bridge
ip link set br0 up
for net in 1 2 5; do
    ip addr flush dev v$net
    ip link set v$net master br0
    ip addr add 10.$net.0.1/24 dev br0
    ip addr add fd0$net::1/64 dev br0 nodad
done
ip route replace default via 10.2.0.2
ip route replace default via fd02::2";
const CILIUM: &str = "
ip link add cilium_host type veth peer name cilium_net
ip link set cilium_host up
ip link set cilium_net up
for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done
ip route add 10.1.0.2 dev cilium_host
set -- $(ip -br link show cilium_net)
ip neigh add 10.1.0.2 dev cilium_host lladdr $3
echo 1 > /proc/sys/net/ipv4/conf/cilium_net/accept_local
ip route add 10.1.0.2 dev v1 table 100
ip rule add iif cilium_net lookup 100";
/// The rules as kube-proxy writes them, with `-d` in place of its sets.
const IPVS: &str = "
ip link add kube-ipvs0 type bridge
ip addr add 10.96.0.10/32 dev kube-ipvs0
iptables -t nat -N KUBE-SERVICES
iptables -t nat -N KUBE-POSTROUTING
iptables -t nat -N KUBE-MARK-MASQ
iptables -t nat -N KUBE-NODE-PORT
iptables -t nat -A PREROUTING -j KUBE-SERVICES
iptables -t nat -A OUTPUT -j KUBE-SERVICES
iptables -t nat -A POSTROUTING -j KUBE-POSTROUTING
iptables -t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
iptables -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
iptables -t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
iptables -t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
iptables -t nat -A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
for p in udp tcp; do
    iptables -t nat -A KUBE-SERVICES ! -s 10.1.0.0/24 -d 10.96.0.10 -p $p --dport 53 -j KUBE-MARK-MASQ
done
iptables -t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
for p in udp tcp; do
    iptables -t nat -A KUBE-SERVICES -d 10.96.0.10 -p $p --dport 53 -j ACCEPT
done
iptables -N KUBE-IPVS-FILTER
iptables -A INPUT -j KUBE-IPVS-FILTER
for p in udp tcp; do
    iptables -A KUBE-IPVS-FILTER -d 10.96.0.10 -p $p --dport 53 -j RETURN
done
iptables -A KUBE-IPVS-FILTER -d 10.96.0.10 -m conntrack --ctstate NEW -j REJECT";
