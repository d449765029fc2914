//! Failover beside kube-proxy's chains in each of its modes: after a kill kube-proxy translates
//! clients' queries, exactly once.

use std::time::Duration;

use tests::{isolated_steadily, run, signal, tool};

use super::availability::all_kinds_of_clients_are_answered;
use super::clients::asked_at;
use super::lab::{CLUSTER, COREFILE, Lab, PLAIN, POD, within};

/// kube-proxy's nftables chains translate redirected queries.
#[test]
fn kube_proxy_with_nftables() {
    isolated_steadily(PATIENCE * 9, || {
        redirected_clients_are_translated_once(KubeProxy::Nftables);
    });
}

/// kube-proxy's iptables-nft chains translate queries that fall through and redirected ones.
#[test]
fn kube_proxy_with_iptables_nft() {
    isolated_steadily(PATIENCE * 9, || {
        redirected_clients_are_translated_once(KubeProxy::IptablesNft);
    });
}

/// kube-proxy's iptables-legacy chains translate queries that fall through and redirected ones.
#[test]
fn kube_proxy_with_iptables_legacy() {
    isolated_steadily(PATIENCE * 9, || {
        redirected_clients_are_translated_once(KubeProxy::IptablesLegacy);
    });
}

/// Asserts which upstream answers at each address after a kill, and which source address it sees
/// for the pod: the pod's own where kube-proxy translates, which does not masquerade its own
/// network, and else the node's.
fn redirected_clients_are_translated_once(form: KubeProxy) {
    if !tool("kube-proxy", "nft") || !form.tools() {
        return;
    }
    let lab = Lab::beside(form);
    if form != KubeProxy::Nftables {
        all_kinds_of_clients_are_answered(&lab, &[]);
    }
    let corefile = format!("{COREFILE}.:53 {{\nbind fd10::12\nforward . fd96::10\n}}\n");
    let mut server = lab.serve_corefile(&corefile, |options| options.args(["-host-resolver", "none"]));
    server.wait_for_log("queries to fd10::12 are answered here", PATIENCE);
    signal(server.pid(), "KILL");
    server.wait(PATIENCE);
    for (ip, upstream, responder, of_pod, of_host) in [
        ("169.254.10.10", "10.2.0.2", CLUSTER, "10.1.0.2", "10.2.0.1"),
        ("10.96.0.20", "10.2.0.2", CLUSTER, "10.1.0.2", "10.2.0.1"),
        ("fd10::12", "fd02::2", CLUSTER, "fd01::2", "fd02::1"),
        ("169.254.10.11", "10.3.0.2", PLAIN, "10.2.0.1", "10.2.0.1"),
        ("fd10::11", "fd03::2", PLAIN, "fd02::1", "fd02::1"),
    ] {
        let upstream = lab.upstream(upstream);
        for tcp in [false, true] {
            upstream.forget();
            assert_eq!(
                within(POD, move || asked_at(ip, tcp)).join().expect("it is answered"),
                responder,
                "{ip}"
            );
            assert_eq!(asked_at(ip, tcp), responder, "{ip}");
            let from: Vec<_> = upstream.asked().iter().map(|asked| asked.from.ip().to_string()).collect();
            assert_eq!(from, [of_pod, of_host], "{ip}, TCP: {tcp}");
        }
    }
}

/// The mode of kube-proxy's chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KubeProxy {
    Nftables,
    IptablesNft,
    IptablesLegacy,
}

impl KubeProxy {
    /// Whether this machine has the tools for it.
    fn tools(self) -> bool {
        match self {
            Self::Nftables => true,
            Self::IptablesNft => tool("kube-proxy", "iptables"),
            Self::IptablesLegacy => tool("kube-proxy", "/usr/sbin/xtables-legacy-multi"),
        }
    }

    /// Translates the Services' addresses in this network namespace.
    pub(super) fn put(self) {
        let form = match self {
            Self::Nftables => {
                run("nft", &[NFTABLES]);
                return;
            }
            Self::IptablesNft => "nft",
            Self::IptablesLegacy => "legacy",
        };
        for (program, pods, services) in [
            ("iptables", "10.1.0.0/24", &[("10.96.0.10/32", "10.2.0.2"), ("10.96.0.20/32", "10.2.0.2")][..]),
            ("ip6tables", "fd01::/64", &[("fd96::10/128", "fd02::2")]),
        ] {
            std::fs::write("/run/kube-proxy", chains(pods, services)).expect("/run is ours");
            let restore = program.replacen("tables", &format!("tables-{form}-restore"), 1);
            run("sh", &["-ec", &format!("/usr/sbin/{restore} --noflush < /run/kube-proxy")]);
        }
    }
}

/// The rules of kube-proxy's iptables mode for DNS Services with one endpoint each, in its order,
/// with its comments.
fn chains(pods: &str, services: &[(&str, &str)]) -> String {
    let mut nat = NAT.to_owned();
    for (number, (service, endpoint)) in services.iter().enumerate() {
        for (transport, port) in [("udp", "dns"), ("tcp", "dns-tcp")] {
            let chain = format!("{number}{}", transport.to_uppercase());
            let host = service.split('/').next().expect("it has a first part");
            let to = if host.contains(':') { format!("[{endpoint}]:53") } else { format!("{endpoint}:53") };
            nat += &SERVICE
                .replace("CHAIN", &chain)
                .replace("CLUSTER_IP", service)
                .replace("NAME", &format!("kube-system/dns-{number}:{port}"))
                .replace("ENDPOINT", endpoint)
                .replace("PODS", pods)
                .replace("TRANSPORT", transport)
                .replace("TO", &to);
        }
    }
    format!("*nat\n{nat}{NODE_PORTS}COMMIT\n*filter\n{FILTER}COMMIT\n")
}

const PATIENCE: Duration = Duration::from_secs(20);
const NAT: &str = "\
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
";
const SERVICE: &str = "\
:KUBE-SVC-CHAIN - [0:0]
:KUBE-SEP-CHAIN - [0:0]
-A KUBE-SERVICES -d CLUSTER_IP -p TRANSPORT -m comment --comment \"NAME cluster IP\" -m TRANSPORT --dport 53 -j KUBE-SVC-CHAIN
-A KUBE-SVC-CHAIN ! -s PODS -d CLUSTER_IP -p TRANSPORT -m comment --comment \"NAME cluster IP\" -m TRANSPORT --dport 53 -j KUBE-MARK-MASQ
-A KUBE-SVC-CHAIN -m comment --comment \"NAME -> TO\" -j KUBE-SEP-CHAIN
-A KUBE-SEP-CHAIN -s ENDPOINT -m comment --comment \"NAME\" -j KUBE-MARK-MASQ
-A KUBE-SEP-CHAIN -p TRANSPORT -m comment --comment \"NAME\" -m TRANSPORT -j DNAT --to-destination TO
";
const NODE_PORTS: &str = "\
-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
";
const FILTER: &str = "\
:KUBE-FORWARD - [0:0]
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
";
/// The rules of its nftables mode.
const NFTABLES: &str = "
table ip kube-proxy {
    chain services {
        ip daddr { 10.96.0.10, 10.96.0.20 } meta l4proto { tcp, udp } th dport 53 dnat to 10.2.0.2
    }
    chain prerouting { type nat hook prerouting priority -100; jump services; }
    chain output { type nat hook output priority -100; jump services; }
    chain postrouting {
        type nat hook postrouting priority 100;
        ct status dnat ip saddr != 10.1.0.0/24 masquerade
    }
}
table ip6 kube-proxy {
    chain services {
        ip6 daddr fd96::10 meta l4proto { tcp, udp } th dport 53 dnat to fd02::2
    }
    chain prerouting { type nat hook prerouting priority -100; jump services; }
    chain output { type nat hook output priority -100; jump services; }
    chain postrouting {
        type nat hook postrouting priority 100;
        ct status dnat ip6 saddr != fd01::/64 masquerade
    }
}";
