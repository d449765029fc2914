//! Corefiles in use, and their expected blocks.

use crate::common::{read, shape};

#[test]
fn real_files_are_read() {
    for (text, keys, directives) in [
        (
            AKS,
            &["health-check.localdns.local:53", ".:53", "cluster.local:53", ".:53", "cluster.local:53"]
                as &[_],
            40,
        ),
        (SEED, &[".:53"], 4),
        (KUBEADM, &[".:53"], 10),
        (NODE_LOCAL, &["__PILLAR__DNS__DOMAIN__:53", "in-addr.arpa:53", "ip6.arpa:53", ".:53"], 29),
    ] {
        let corefile = read(text).unwrap_or_else(|error| panic!("{error}"));
        let blocks = &corefile.blocks;
        let written: Vec<_> =
            blocks.iter().flat_map(|block| &block.keys).map(|key| key.written.text.as_str()).collect();
        assert_eq!(written, keys);
        assert_eq!(blocks.iter().map(|block| block.directives.len()).sum::<usize>(), directives, "{keys:?}");
    }
}

#[test]
fn seed_file_words() {
    let expected = ".:53 { log; bind 169.254.10.10; hosts /etc/localdns/hosts { fallthrough; } forward . 168.63.129.16 \
                    { policy sequential; max_concurrent 1000; } }";
    assert_eq!(shape(&read(SEED).unwrap()), expected);
}

#[test]
fn template_regex() {
    let corefile = read(AKS).unwrap();
    let template =
        corefile.blocks[1].directives.iter().find(|directive| directive.name.text == "template").unwrap();
    let property = &template.body.as_ref().unwrap()[0];
    assert_eq!(property.args[0].text, r"^(?:[^.]+\.){4,}internal\.cloudapp\.net\.$");
    assert!(property.args[0].quoted);
}

#[test]
fn unfilled_placeholder_warns() {
    let warnings = read(NODE_LOCAL).unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].at.line, 2);
}

const AKS: &str = r#"# The Corefile that AKS LocalDNS runs with its default profile and the hosts plugin on.
# health probe of the node's DNS
health-check.localdns.local:53 {
    bind 169.254.10.10 169.254.10.11
    whoami
}
# traffic of kubelet, host processes and pods with dnsPolicy Default
.:53 {
    log
    bind 169.254.10.10
    # Check /etc/localdns/hosts first for critical AKS FQDNs
    hosts /etc/localdns/hosts {
        ttl 5
        reload 5s
        fallthrough
    }
    forward . 168.63.129.16 {
        prefer_udp
        policy sequential
        max_concurrent 1000
    }
    ready 169.254.10.10:8181
    cache 3600 {
        success 9984
        denial 9984
        serve_stale 3600s immediate
        servfail 0
    }
    loop
    nsid localdns
    prometheus :9253
    template ANY ANY internal.cloudapp.net {
        match "^(?:[^.]+\.){4,}internal\.cloudapp\.net\.$"
        rcode NXDOMAIN
        fallthrough
    }
    template ANY ANY reddog.microsoft.com {
        rcode NXDOMAIN
    }
}
cluster.local:53 {
    errors
    bind 169.254.10.10
    forward . 10.0.0.10 {
        force_tcp
        policy sequential
        max_concurrent 1000
    }
    ready 169.254.10.10:8181
    cache 3600 {
        success 9984
        denial 9984
        serve_stale 3600s immediate
        servfail 0
    }
    loop
    nsid localdns
    prometheus :9253
}
# traffic of pods with dnsPolicy ClusterFirst
.:53 {
    errors
    bind 169.254.10.11
    hosts /etc/localdns/hosts {
        ttl 5
        reload 5s
        fallthrough
    }
    forward . 10.0.0.10 {
        prefer_udp
        policy sequential
        max_concurrent 1000
        health_check 1s no_rec domain health.local.
        failfast_all_unhealthy_upstreams
    }
    ready 169.254.10.11:8181
    cache 3600 {
        success 9984
        denial 9984
        serve_stale 72000s verify
        servfail 0
    }
    loop
    nsid localdns-pod
    prometheus :9253
    template ANY ANY internal.cloudapp.net {
        match "^(?:[^.]+\.){4,}internal\.cloudapp\.net\.$"
        rcode NXDOMAIN
        fallthrough
    }
    template ANY ANY reddog.microsoft.com {
        rcode NXDOMAIN
    }
}
cluster.local:53 {
    errors
    bind 169.254.10.11
    forward . 10.0.0.10 {
        force_tcp
        policy sequential
        max_concurrent 1000
    }
    ready 169.254.10.11:8181
    cache 3600 {
        success 9984
        denial 9984
        serve_stale 3600s immediate
        servfail 0
    }
    loop
    nsid localdns-pod
    prometheus :9253
}
"#;

const SEED: &str = r#"# The Corefile of the February 2026 design: one listener, hosts file first, sequential forward.
.:53 {
    log
    bind 169.254.10.10
    # Check /etc/localdns/hosts first for critical AKS FQDNs
    hosts /etc/localdns/hosts {
        fallthrough
    }
    forward . 168.63.129.16 {
        policy sequential
        max_concurrent 1000
    }
}
"#;

const KUBEADM: &str = r#"# The cluster DNS Corefile of a kubeadm cluster.
.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
"#;

const NODE_LOCAL: &str = r#"# The NodeLocal DNSCache add-on's template; the variables are filled in by the deployer and by node-cache.
__PILLAR__DNS__DOMAIN__:53 {
    errors
    cache {
            success 9984 30
            denial 9984 5
    }
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    health __PILLAR__LOCAL__DNS__:8080
    }
in-addr.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    }
ip6.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    }
.:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__UPSTREAM__SERVERS__
    prometheus :9253
    }
"#;
