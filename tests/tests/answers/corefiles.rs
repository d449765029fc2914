//! The Corefiles: those that exist in the world, and one for each directive and property.

use tests::{Ask, fixtures};

use crate::battery::{chaos, full, hosts, short, two_opt, udp};
use crate::exchange::Query;
use crate::run::Setup;

/// The Corefiles that exist in the world, with addresses of this machine in the place of theirs. `kubernetes` is left out of kubeadm's, which comes with a cluster elsewhere, and so is `loadbalance`, whose order is random.
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

/// One for each directive and property.
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
    // The cache of a block without `prometheus` is told by the other one's.
    setups.push(Setup {
        name: "cache beside prometheus".to_owned(),
        text: ".:@PORT@ {\nbind @IP@\nprometheus @IP@:9153\nforward . @UP@\n}\nexample.org:@PORT@ {\nbind @IP@\ncache\nforward . @UP@\n}\n".to_owned(),
        queries: [short("."), full("example.org")].concat(),
        metrics: Some(9153),
        objects: Vec::new(),
        later: Vec::new(),
    });
    // Those of CoreDNS's page on `tls`, and its options.
    for (tls, directives) in [
        ("tls cert.pem key.pem ca.pem", "forward . @DIR@/resolv.conf"),
        ("tls cert.pem key.pem {\nclient_auth request\n}", "cache\nforward . @UP@"),
        ("tls cert.pem key.pem ca.pem {\nclient_auth verify_if_given\n}", "whoami"),
    ] {
        let text = format!("tls://.:@PORT@ {{\nbind @IP@\nroot @DIR@\n{tls}\n{directives}\n}}\n");
        // What no datagram of CoreDNS's carries is refused here over any transport.
        let queries = full(".").into_iter().filter(|query| query.what != "oversize 4097").collect();
        setups.push(counted(tls, text, queries));
    }
    // A rule that leaves the target as it is has it looked up. The upstream answers with the alias alone.
    for rule in ["regex (.*) {1}", "suffix . ."] {
        let directives = format!("rewrite cname {rule}\nforward . @UP@");
        let names = ["dangling.x", "dangling.case", "a.x", "nx.x"];
        let asks = names.iter().flat_map(|name| ["A", "AAAA", "TXT"].map(|rtype| (name, rtype)));
        let queries = asks.map(|(name, rtype)| udp(&format!("{name} {rtype}"), &Ask::new(name, rtype)));
        setups.push(counted(&directives, block(&directives), queries.collect()));
    }
    for directives in ROWS {
        let mut queries = [short("."), hosts(), templates()].concat();
        if directives.starts_with("chaos") {
            queries.extend(chaos());
        }
        setups.push(counted(directives, block(directives), queries));
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

/// A setup whose metrics are compared, too.
pub(crate) fn counted(name: &str, text: String, queries: Vec<Query>) -> Setup {
    let (name, objects, later) = (name.to_owned(), Vec::new(), Vec::new());
    with_metrics(Setup { name, text, queries, metrics: None, objects, later })
}

/// The same, its metrics compared, too.
pub(crate) fn with_metrics(setup: Setup) -> Setup {
    let text = setup.text.replace("bind @IP@\n", "bind @IP@\nprometheus @IP@:9153\n");
    Setup { text, metrics: Some(9153), ..setup }
}

/// Names that the templates of AKS are about.
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

/// Names that the templates below are about.
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

/// Directives in a block of the root zone.
const ROWS: &[&str] = &[
    "any\nwhoami",
    "chaos\nwhoami",
    "chaos v1\nhosts @DIR@/hosts {\nfallthrough\n}\nforward . @UP@",
    "chaos \"v 1\" one@example\nrewrite class CH IN\nacl {\nfilter type TXT\n}\ncache\nforward . @UP@",
    "chaos a\\046\\b one@example\ntemplate CH A tpl.test {\nanswer \"{{ .Name }} 60 CH TXT a\"\n}",
    "any\nrewrite type ANY A\nacl {\nblock\n}\nhosts @DIR@/hosts {\nfallthrough\n}\ncache\nforward . @UP@",
    "minimal\nforward . @UP@",
    "minimal\nwhoami",
    "minimal\nhosts @DIR@/hosts {\nfallthrough\n}\ncache\nforward . @UP@",
    "header {\nresponse set aa\nresponse clear ra\n}\nforward . @UP@",
    "header {\nquery clear rd\nresponse set ra\n}\nhosts @DIR@/hosts {\nfallthrough\n}\nforward . @UP@",
    "acl k {\nblock type A\nfilter type TXT MX\nallow net 10.0.0.0/8\n}\nforward . @UP@",
    "acl {\nallow type A AAAA net 127.0.0.0/8\nblock\n}\nhosts @DIR@/hosts {\nfallthrough\n}\nforward . @UP@",
    "acl {\nfilter net 127.0.0.0/8\n}\nwhoami",
    "acl {\nblock net ::ffff:127.0.0.0/104 ::ffff:127.0.0.1 ::/0\n}\nwhoami",
    "rewrite name suffix .k .t answer auto\nforward . @UP@",
    "rewrite name suffix .k .t\ncache\nforward . @UP@",
    "rewrite name regex (.*)[.]k[.]$ {1}.t answer name (.*)[.]t[.]$ {1}.k answer value (.*)[.]t[.]$ {1}.k\nforward . @UP@",
    "rewrite name substring k t answer auto\nforward . @UP@",
    "rewrite name prefix a b answer auto\nforward . @UP@",
    "rewrite continue name prefix a b\nforward . @UP@",
    "rewrite continue type AAAA A\nrewrite ttl suffix . 5-20\nforward . @UP@",
    "rewrite type ANY HINFO\nrewrite class CH IN\nforward . @UP@",
    "rewrite ttl regex .* 30-\nforward . @UP@",
    "rewrite rcode regex .* NXDOMAIN NOERROR\nforward . @UP@",
    "rewrite rcode regex .* SERVFAIL REFUSED\nhosts @DIR@/hosts",
    "rewrite cname suffix k t\nforward . @UP@",
    "errors\nlog\nforward . @UP@",
    "debug\nroot @DIR@\nforward . @UP@",
    "bufsize\nforward . @UP@",
    "bufsize 512\ncache\nforward . @UP@",
    "bufsize 4096\nforward . @UP@",
    "nsid node\nforward . @UP@",
    "nsid a node of many\ncache\nforward . @UP@",
    "nsid node\nwhoami",
    "multisocket 2\nforward . @UP@",
    "loop\nforward . @UP@",
    "reload\nhealth @IP@:8080\nready @IP@:8181\nforward . @UP@",
    "cache 30\nforward . @UP@",
    "cache 300 tpl.test k\nforward . @UP@",
    "cache {\nsuccess 2000 60 20\ndenial 2000 20 10\n}\nforward . @UP@",
    "cache {\nsuccess 2000 600 0\ndenial 2000 600 0\n}\nforward . @UP@",
    "cache {\nprefetch 1 1m 10%\nservfail 0\n}\nforward . @UP@",
    "cache {\nservfail 20s\n}\nforward . @UP@",
    "cache {\nserve_stale 1h immediate\n}\nforward . @UP@",
    "cache {\nserve_stale 1h verify\n}\nforward . @UP@",
    "cache {\ndisable success\n}\nforward . @UP@",
    "cache {\ndisable denial\n}\nforward . @UP@",
    "cache {\ndisable success k\ndisable denial t\n}\nforward . @UP@",
    "cache {\nkeepttl\n}\nforward . @UP@",
    "cache\nnsid node\nbufsize 1400\nerrors\nforward . @UP@ @UP2@ {\npolicy sequential\n}",
    "cache",
    "forward . @UP@ {\nforce_tcp\n}",
    "forward . @UP@ {\nprefer_udp\n}",
    "cache\nforward . @UP@ {\nprefer_udp\n}",
    "forward . @UP@ @UP2@ {\npolicy round_robin\n}",
    "forward . @UP@ @UP2@ {\npolicy random\nmax_fails 0\nexpire 20s\nmax_concurrent 1000\n}",
    "forward k @UP@\nforward t @UP2@",
    "forward . @UP@ {\nexcept k\n}",
    "forward . @UP@ {\nexcept k\n}\nforward . @UP2@",
    "forward . @UP@ {\nnext NXDOMAIN SERVFAIL\n}\nforward . @UP2@",
    "forward . @UP@ {\nnext NXDOMAIN\nnext_on_nodata\n}\nforward k @UP2@",
    "forward . @UP@ @UP2@ {\nfailover SERVFAIL REFUSED\npolicy sequential\n}",
    "cache\nforward . @UP@ @UP2@ {\nfailover SERVFAIL NXDOMAIN\npolicy sequential\n}",
    "forward . @UP@ {\nhealth_check 1s no_rec domain health.test\nmax_fails 3\nfailfast_all_unhealthy_upstreams\n}",
    "forward . @DIR@/resolv.conf",
    "hosts @DIR@/hosts {\nfallthrough\n}\nforward . @UP@",
    "hosts @DIR@/hosts\nforward . @UP@",
    "hosts @DIR@/hosts",
    "hosts @DIR@/hosts example\nforward . @UP@",
    "hosts @DIR@/hosts {\nttl 5\nreload 1s\nno_reverse\nfallthrough example\n}\nforward . @UP@",
    "hosts @DIR@/hosts {\n203.0.113.99 inline.example host.example\nfallthrough\n}\ncache\nforward . @UP@",
    "hosts @DIR@/hosts example {\nfallthrough_unsupported\nfallthrough\n}\nforward . @UP@",
    "hosts @DIR@/missing {\nfallthrough\n}\nforward . @UP@",
    "hosts @DIR@/hosts {\nfallthrough\n}\nwhoami",
    "hosts @DIR@/hosts\ncache\nnsid node\nbufsize 512",
    "template IN A tpl.test {\nmatch \"^ip-(?P<a>[0-9]+)-(?P<b>[0-9]+)-(?P<c>[0-9]+)-(?P<d>[0-9]+)[.]tpl[.]test[.]$\"\nanswer \"{{ .Name }} 60 IN A {{ .Group.a }}.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}\"\nfallthrough\n}\nforward . @UP@",
    "template IN A tpl.test {\nmatch \"^ip-\"\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\nforward . @UP@",
    "template IN ANY tpl.test {\nanswer \"{{ .Name }} 60 IN TXT \\\"{{ .Type }} {{ .Class }} {{ .Zone }} {{ .Question.Name }} {{ .Remote }}\\\"\"\n}\ntemplate ANY ANY . {\nrcode REFUSED\n}",
    "template IN ANY tpl.test {\nmatch \"^(?P<a>[a-z0-9-]+)[.]\" \"^(?P<zzz>[.])\"\nanswer \"{{ .Name }} 60 IN TXT \\\"{{ len .Message.Question }} {{ range .Message.Question }}{{ .Qtype }}{{ end }} {{ len .Group }} {{ .Group }} {{ .Group.zzz }} {{ if .Group.zzz }}y{{ end }}\\\"\"\nfallthrough\n}\nforward . @UP@",
    "template ANY ANY tpl.test {\nrcode NXDOMAIN\nauthority \"{{ .Zone }} 60 IN SOA ns.tpl.test. host.tpl.test. 1 60 60 60 60\"\nadditional \"ns.tpl.test. 60 IN A 192.0.2.3\"\n}\ncache\nforward . @UP@",
    "template IN AAAA . {\nrcode NOERROR\n}\nforward . @UP@",
    "template IN A tpl.test tpl2.test {\nrcode SERVFAIL\nederror 21 \"not here\"\n}\nnsid node\nforward . @UP@",
    "template IN MX tpl.test {\nanswer \"{{ .Name }} 60 IN MX 10 mx.{{ .Name }}\"\nanswer \"{{ .Name }} 60 IN MX 20 Mx2.{{ .Name }}\"\nadditional \"mx.{{ .Name }} 60 IN A 192.0.2.4\"\n}\ntemplate IN ANY tpl.test {\nrcode NXDOMAIN\n}\nforward . @UP@",
    "template IN A tpl.test {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\nhosts @DIR@/hosts {\nfallthrough\n}\ncache\nforward . @UP@",
    "template CH A tpl.test {\nanswer \"{{ .Name }} 60 CH TXT \\\"chaos\\\"\"\n}\nforward . @UP@",
    "template IN A tpl.test {\nanswer \"{{ .Name }} 60 IN A not-an-address\"\n}\nforward . @UP@",
    "timeouts {\nread 5s\nwrite 5s\nidle 5s\n}\nforward . @UP@",
];

/// Several blocks.
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
