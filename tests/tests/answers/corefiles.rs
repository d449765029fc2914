//! The Corefiles: those from production, and one for each directive and property.

use tests::{Ask, fixtures};

use crate::battery::{about, chaos, full, hosts, short, two_opt, udp};
use crate::exchange::Query;
use crate::rows::plugins;
use crate::run::Setup;

/// Returns Corefiles from production, with this machine's addresses. kubeadm's is without
/// `kubernetes`, which other tests compare with a cluster, and without `loadbalance`, which has a
/// random order.
pub(crate) fn world() -> Vec<Setup> {
    let aks = fixtures::AKS.replace("168.63.129.16", "@UP@").replace("10.0.0.10", "@UP2@");
    let aks = aks.replace("169.254.10.10", "@IP@").replace("169.254.10.11", "@IP2@");
    let seed = fixtures::SEED.replace("168.63.129.16", "@UP@").replace("169.254.10.10", "@IP@");
    let node_local = fixtures::node_local(["@IP@", "@IP2@"], "@UP2@", "@UP@");
    let mut kubeadm = fixtures::KUBEADM.to_owned();
    let from = kubeadm.find("    kubernetes").expect("kubeadm's Corefile serves its cluster");
    let to = from + kubeadm[from..].find("}\n").expect("the directive ends") + 2;
    kubeadm.replace_range(from..to, "    bind @IP@\n");
    let kubeadm = kubeadm.replace("    loadbalance\n", "").replace("/etc/resolv.conf", "@UP@");
    let kubeadm =
        kubeadm.replace("health {", "health @IP@:8080 {").replace("    ready\n", "    ready @IP@:8181\n");
    [("aks", aks), ("seed", seed), ("node-local", node_local), ("kubeadm", kubeadm)]
        .into_iter()
        .map(|(name, text)| {
            let text = text.replace(":53 ", ":@PORT@ ").replace("/etc/localdns/hosts", "@DIR@/hosts");
            let text = text.replace("prometheus :", "prometheus @IP@:");
            let mut queries = [full("example.org"), short("cluster.local"), hosts(), aks_names()].concat();
            if text.contains("@IP2@") {
                let second =
                    [short("second.example"), short("x.cluster.local"), hosts(), aks_names()].concat();
                queries.extend(second.into_iter().map(|query| Query { listener: 1, ..query }));
            }
            let metrics = text.contains("prometheus").then_some(if name == "kubeadm" { 9153 } else { 9253 });
            Setup { name: name.to_owned(), text, queries, metrics, objects: Vec::new(), later: Vec::new() }
        })
        .collect()
}

/// One Corefile for each directive and property; most are in the plugins' files.
pub(crate) fn properties() -> Vec<Setup> {
    let mut setups = vec![
        counted("forward", block("forward . @UP@"), full(".")),
        counted("cache", block("cache\nforward . @UP@"), full(".")),
        counted("whoami", block("whoami"), [full("."), two_opt(".")].concat()),
        counted(
            "zone",
            "example.org:@PORT@ {\nbind @IP@\nforward . @UP@\n}\n".to_owned(),
            full("example.org"),
        ),
    ];
    // Metrics of the cache in a block without `prometheus` are exposed by the block with
    // `prometheus`.
    setups.push(Setup {
        name: "cache beside prometheus".to_owned(),
        text: ".:@PORT@ {\nbind @IP@\nprometheus @IP@:9153\nforward . @UP@\n}\nexample.org:@PORT@ {\nbind @IP@\ncache\nforward . @UP@\n}\n".to_owned(),
        queries: [short("."), full("example.org")].concat(),
        metrics: Some(9153),
        objects: Vec::new(),
        later: Vec::new(),
    });
    // The examples and options in CoreDNS's documentation of `tls`.
    for (tls, directives) in [
        ("tls cert.pem key.pem ca.pem", "forward . @DIR@/resolv.conf"),
        ("tls cert.pem key.pem {\nclient_auth request\n}", "cache\nforward . @UP@"),
        ("tls cert.pem key.pem ca.pem {\nclient_auth verify_if_given\n}", "whoami"),
    ] {
        let text = format!("tls://.:@PORT@ {{\nbind @IP@\nroot @DIR@\n{tls}\n{directives}\n}}\n");
        // A message too large for CoreDNS over UDP is refused here over any transport.
        let queries = full(".").into_iter().filter(|query| query.what != "oversize 4097").collect();
        setups.push(counted(tls, text, queries));
    }
    // Rules that do not change the target of an alias: the target is looked up, as the upstream
    // returns only the alias.
    for rule in ["regex (.*) {1}", "suffix . ."] {
        let directives = format!("rewrite cname {rule}\nforward . @UP@");
        let names = ["dangling.x", "dangling.case", "a.x", "nx.x"];
        let asks = names.iter().flat_map(|name| ["A", "AAAA", "TXT"].map(|rtype| (name, rtype)));
        let queries = asks.map(|(name, rtype)| udp(&format!("{name} {rtype}"), &Ask::new(name, rtype)));
        setups.push(counted(&directives, block(&directives), queries.collect()));
    }
    for plugin in plugins() {
        for row in plugin.section("blocks") {
            let (directives, names) = row.split_once(" ? ").unwrap_or((row, ""));
            let mut queries: Vec<Query> = names.split_whitespace().flat_map(about).collect();
            if queries.is_empty() {
                queries = [short("."), hosts(), templates()].concat();
            }
            if directives.starts_with("chaos") {
                queries.extend(chaos());
            }
            setups.push(counted(directives, block(directives), queries));
        }
    }
    for text in BLOCKS {
        let queries = [
            "example.org",
            "sub.example.org",
            "a.b.sub.example.org",
            "example.net",
            "in-addr.arpa",
            "2.0.192.in-addr.arpa",
        ]
        .map(short)
        .concat();
        setups.push(counted(text, (*text).to_owned(), [queries, hosts(), chaos()].concat()));
    }
    setups
}

/// Directives in a block of the root zone.
pub(crate) fn block(directives: &str) -> String {
    format!(".:@PORT@ {{\nbind @IP@\n{directives}\n}}\n")
}

/// A setup with comparison of metrics.
pub(crate) fn counted(name: &str, text: String, queries: Vec<Query>) -> Setup {
    let (name, objects, later) = (name.to_owned(), Vec::new(), Vec::new());
    with_metrics(Setup { name, text, queries, metrics: None, objects, later })
}

/// The setup with comparison of metrics.
pub(crate) fn with_metrics(setup: Setup) -> Setup {
    let text = setup.text.replace("bind @IP@\n", "bind @IP@\nprometheus @IP@:9153\n");
    Setup { text, metrics: Some(9153), ..setup }
}

/// Names that match the templates of AKS.
fn aks_names() -> Vec<Query> {
    let mut queries = Vec::new();
    for name in [
        "health-check.localdns.local",
        "a.health-check.localdns.local",
        "a.b.c.d.internal.cloudapp.net",
        "x.a.b.c.d.internal.cloudapp.net",
        "a.b.c.internal.cloudapp.net",
        "internal.cloudapp.net",
        "reddog.microsoft.com",
        "A.b.Reddog.microsoft.com",
    ] {
        for rtype in ["A", "AAAA", "SOA", "DS", "ANY"] {
            queries.push(udp(&format!("{name} {rtype}"), &Ask::new(name, rtype)));
        }
        queries.push(udp(&format!("{name} nsid"), &Ask::new(name, "A").nsid().dnssec_ok()));
        queries.push(udp(&format!("{name} class"), &Ask::new(name, "A").class(3)));
    }
    queries
}

/// Names that match the templates below.
fn templates() -> Vec<Query> {
    let mut queries = Vec::new();
    for name in
        ["ip-192-0-2-7.tpl.test", "IP-192-0-2-7.Tpl.Test", "other.tpl.test", "tpl.test", "x.tpl2.test"]
    {
        for rtype in ["A", "AAAA", "TXT", "MX", "ANY"] {
            queries.push(udp(&format!("template {name} {rtype}"), &Ask::new(name, rtype)));
            queries.push(udp(&format!("template {name} {rtype} do"), &Ask::new(name, rtype).dnssec_ok()));
        }
        queries.push(udp(&format!("template {name} class"), &Ask::new(name, "A").class(3)));
        queries.push(udp(&format!("template {name} edns"), &Ask::new(name, "A").edns(512)));
    }
    queries
}

/// Several server blocks.
const BLOCKS: &[&str] = &[
    "version.bind:@PORT@ version.server:@PORT@ authors.bind:@PORT@ hostname.bind:@PORT@ id.server:@PORT@ {\nbind @IP@\nchaos v1 one@example\n}\nexample.org:@PORT@ {\nbind @IP@\nwhoami\n}\n",
    "example.org:@PORT@ {\nbind @IP@\nwhoami\n}\nsub.example.org:@PORT@ {\nbind @IP@\nforward . @UP@\n}\n",
    "example.org:@PORT@ sub.example.org:@PORT@ example.net:@PORT@ {\nbind @IP@\ncache 60\nforward . @UP@\n}\n.:@PORT@ {\nbind @IP@\nwhoami\n}\n",
    "EXAMPLE.org:@PORT@ {\nbind @IP@\nhosts @DIR@/hosts {\nfallthrough\n}\nwhoami\n}\n192.0.2.0/24:@PORT@ {\nbind @IP@\nforward . @UP@\n}\n",
    "(common) {\nbind @IP@\ncache 30\nerrors\n}\nexample.org:@PORT@ {\nimport common\nforward . @UP@\n}\nb.sub.example.org:@PORT@ {\nimport common\nforward example.org @UP2@\n}\n",
    "org:@PORT@ {\nbind @IP@\nforward . @UP@\n}\nexample.org:@PORT@ {\nbind @IP@\ntemplate ANY ANY {\nrcode NXDOMAIN\n}\n}\nin-addr.arpa:@PORT@ {\nbind @IP@\nhosts @DIR@/hosts\n}\n",
    "dns://example.org:@PORT@ {\nbind @IP@ @IP2@\nnsid first\nforward . @UP@\n}\nsub.example.org:@PORT@ {\nbind @IP@\nnsid second\nbufsize 512\nforward . @UP@\n}\n.:@PORT@ {\nbind @IP2@\nwhoami\n}\n",
    "10.0.0.0/25:@PORT@ 203.0.113.0/24:@PORT@ {\nbind @IP@\nhosts @DIR@/hosts {\nfallthrough\n}\nwhoami\n}\n",
];
