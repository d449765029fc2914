//! Which links are uplinks, by the routes over them.

use std::time::Duration;

use tests::{eventually, isolated, run, tool, wire};

use super::availability::{node, status};
use super::failover::{ACL, LINK_LOCAL, is_answered, is_refused, kill, serve};
use super::lab::{Lab, PLAIN, POD};

/// A default route in two parts, in another table, and by nexthop objects without their links.
#[test]
fn default_routes_of_every_form() {
    isolated(|| {
        if !tool("uplinks", "nft") {
            return;
        }
        let lab = Lab::new();
        keep_routes_to_upstreams();
        let mut server = serve(ACL, &[]);
        for (place, net, script) in FORMS {
            wire(place, net);
            run("sh", &["-ec", script]);
            eventually(script, PATIENCE, || refuses(net).then_some(()));
        }
        for net in [1, 4] {
            assert!(!refuses(net), "v{net} is a pod's");
        }
        kill(&mut server);
        for ip in LINK_LOCAL {
            is_answered(POD, ip, PLAIN);
            for (place, ..) in FORMS {
                is_refused(&lab, place, ip);
            }
        }
    });
}

/// While the server runs, across a death, `node up`, `node status` and a restart, and until the link
/// goes.
#[test]
fn uplink_that_lost_its_route() {
    isolated(|| {
        if !tool("uplinks", "nft") {
            return;
        }
        let lab = Lab::new();
        keep_routes_to_upstreams();
        let (place, net) = ("lost", 5);
        wire(place, net);
        wire("later", 6);
        let mut server = serve(ACL, &[]);
        let default = |action, via| run("ip", &["route", action, "default", "via", via, "metric", "5000"]);
        default("add", "10.5.0.2");
        eventually("the uplink is found", PATIENCE, || refuses(net).then_some(()));
        run("ip", &["link", "set", "v5", "down"]);
        run("ip", &["link", "set", "v5", "up"]);
        run("ip", &["addr", "replace", "fd05::1/64", "dev", "v5", "nodad"]);
        // Found later: the links were read again.
        default("add", "10.6.0.2");
        eventually("the other uplink is found", PATIENCE, || refuses(6).then_some(()));
        assert!(refuses(net));
        kill(&mut server);
        let in_place = || {
            let printed = status(&server, 1);
            assert!(printed.starts_with("rules     in place\n"), "{printed}");
            assert!(printed.contains("every link except v2, v5, v6, "), "{printed}");
            for ip in LINK_LOCAL {
                is_refused(&lab, place, ip);
                is_answered(POD, ip, PLAIN);
            }
        };
        in_place();
        default("del", "10.6.0.2");
        node(&server, &["up", "-host-resolver", "none"], 0);
        in_place();
        let mut server = serve(ACL, &[]);
        assert!(refuses(net) && refuses(6));
        run("ip", &["link", "del", "v5"]);
        eventually("it is forgotten", PATIENCE, || (!refuses(net)).then_some(()));
        assert!(refuses(6));
        // So it is after `node down`.
        kill(&mut server);
        node(&server, &["down"], 0);
        let _server = serve(ACL, &[]);
        assert!(!refuses(6));
    });
}

/// Cilium's table of a default route to its pods.
#[test]
fn ciliums_pod_link_is_no_uplink() {
    isolated(|| {
        if !tool("uplinks", "nft") {
            return;
        }
        let _lab = Lab::new();
        wire("later", 6);
        run("ip", &["link", "add", "cilium_host", "type", "veth", "peer", "name", "cilium_net"]);
        run("ip", &["link", "set", "cilium_host", "up"]);
        run("ip", &["route", "add", "default", "dev", "cilium_host", "table", "2005"]);
        run("ip", &["route", "add", "default", "dev", "v6", "table", "2006"]);
        let _server = serve(ACL, &[]);
        let rules = run("nft", &["list", "chain", "inet", "localdns", "clients"]);
        assert!(rules.contains("iifname \"v6\" accept"), "{rules}");
        assert!(!rules.contains("iifname \"cilium_host\" accept"), "{rules}");
    });
}

/// Whether clients on this link do not fail over.
fn refuses(net: u8) -> bool {
    let rules = run("nft", &["list", "chain", "inet", "localdns", "clients"]);
    rules.contains(&format!("iifname \"v{net}\" accept"))
}

/// The upstreams stay reachable whatever the other routes are.
fn keep_routes_to_upstreams() {
    run("ip", &["route", "add", "10.3.0.0/16", "via", "10.2.0.2"]);
    run("ip", &["route", "add", "fd03::/64", "via", "fd02::2"]);
    // A pod's network.
    wire("pods", 4);
    run("ip", &["route", "add", "10.128.0.0/9", "via", "10.4.0.2"]);
    run("ip", &["route", "add", "fd80::/16", "via", "fd04::2"]);
}

const FORMS: [(&str, u8, &str); 5] = [
    ("halves4", 5, "ip route add 0.0.0.0/1 via 10.5.0.2; ip route add 128.0.0.0/1 via 10.5.0.2"),
    ("halves6", 6, "ip route add ::/1 via fd06::2; ip route add 8000::/1 via fd06::2"),
    // As wg-quick.
    (
        "table",
        7,
        "ip route add default via 10.7.0.2 table 51820
        ip rule add not fwmark 51820 table 51820; ip rule add table main suppress_prefixlength 0",
    ),
    (
        "group4",
        8,
        "echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode
        ip nexthop add id 1 via 10.8.0.2 dev v8; ip nexthop add id 2 group 1
        ip route add default nhid 2 metric 5000",
    ),
    (
        "nexthop6",
        9,
        "echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode
        ip nexthop add id 3 via fd09::2 dev v9; ip -6 route add default nhid 3 metric 5000",
    ),
];
const PATIENCE: Duration = Duration::from_secs(20);
