//! Questions and their answers in the notation of `lab::check`.

const NODATA: &str = "NODATA cluster.local.";
const NXDOMAIN: &str = "NXDOMAIN cluster.local.";
const NO_POINTER: &str = "NXDOMAIN in-addr.arpa.";
const NO_POINTER_6: &str = "NXDOMAIN ip6.arpa.";

type Rows = &'static [(&'static str, &'static str)];

/// Without properties, so pods have no names.
pub(super) const PLAIN: Rows = &[
    ("dns-version.cluster.local TXT", "28800 TXT \"1.1.0\""),
    ("ns.dns.cluster.local A", "A 192.0.2.53"),
    ("ns.dns.cluster.local AAAA", NODATA),
    ("cluster.local NS", "NS ns.dns.cluster.local., + ns.dns.cluster.local. A 192.0.2.53"),
    // Services by their addresses, in any case.
    ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
    ("WEB.T1.svc.Cluster.LOCAL A", "A 10.96.0.100"),
    ("web.t1.svc.cluster.local AAAA", "AAAA fd00:10:96::64"),
    ("v4.t1.svc.cluster.local AAAA", NODATA),
    ("dup.t1.svc.cluster.local AAAA", NODATA),
    ("v6.t1.svc.cluster.local A", NODATA),
    ("v6.t1.svc.cluster.local AAAA", "AAAA fd00:10:96::65"),
    ("kubernetes.default.svc.cluster.local A", "A 10.96.0.1"),
    ("_http._tcp.web.t1.svc.cluster.local A", "A 10.96.0.100"),
    ("http.tcp.web.t1.svc.cluster.local A", "A 10.96.0.100"),
    ("172-17-0-9.web.t1.svc.cluster.local A", "A 172.17.0.9"),
    ("172-17-0-9.web.t1.svc.cluster.local AAAA", NODATA),
    ("shared.web.t2.svc.cluster.local A", "A 172.17.0.9"),
    // Ports: one by its name, all by the service, none for a missing port. As in CoreDNS each
    // address has its share of the weight, and one record stands for all addresses.
    (
        "_http._tcp.web.t1.svc.cluster.local SRV",
        "SRV 0 50 80 web.t1.svc.cluster.local., + web.t1.svc.cluster.local. A 10.96.0.100, \
         + web.t1.svc.cluster.local. AAAA fd00:10:96::64",
    ),
    (
        "web.t1.svc.cluster.local SRV",
        "SRV 0 25 80 web.t1.svc.cluster.local., SRV 0 25 443 web.t1.svc.cluster.local., + A 10.96.0.100, \
         + AAAA fd00:10:96::64",
    ),
    (
        "_http._tcp.one.t1.svc.cluster.local SRV",
        "SRV 0 100 80 one.t1.svc.cluster.local., + one.t1.svc.cluster.local. A 10.96.0.103",
    ),
    (
        "one.t1.svc.cluster.local SRV",
        "SRV 0 50 80 one.t1.svc.cluster.local., SRV 0 50 443 one.t1.svc.cluster.local., + A 10.96.0.103",
    ),
    ("v4.t1.svc.cluster.local SRV", "SRV 0 50 53 v4.t1.svc.cluster.local., + A 10.96.0.101"),
    ("v6.t1.svc.cluster.local SRV", "SRV 0 100 80 v6.t1.svc.cluster.local., + AAAA fd00:10:96::65"),
    ("_nope._tcp.web.t1.svc.cluster.local SRV", NXDOMAIN),
    ("_http._udp.web.t1.svc.cluster.local SRV", NXDOMAIN),
    (
        "_c._udp.hl.t1.svc.cluster.local SRV",
        "SRV 0 33 1234 172-17-0-255.hl.t1.svc.cluster.local., SRV 0 33 1234 h1.hl.t1.svc.cluster.local., \
         SRV 0 33 1234 h3.hl.t1.svc.cluster.local., + 172-17-0-255.hl.t1.svc.cluster.local. A 172.17.0.255, \
         + h1.hl.t1.svc.cluster.local. A 172.17.0.254, + h3.hl.t1.svc.cluster.local. AAAA fd00:17::1",
    ),
    ("h1.hl.t1.svc.cluster.local SRV", "SRV 0 100 1234 h1.hl.t1.svc.cluster.local., + A 172.17.0.254"),
    (
        "dup.t1.svc.cluster.local SRV",
        "SRV 0 25 1234 same.dup.t1.svc.cluster.local., SRV 0 25 1235 same.dup.t1.svc.cluster.local., \
         + same.dup.t1.svc.cluster.local. A 172.17.1.1, + same.dup.t1.svc.cluster.local. A 172.17.1.2",
    ),
    ("none.t1.svc.cluster.local SRV", NXDOMAIN),
    ("ext.t1.svc.cluster.local SRV", NODATA),
    // Headless services by their ready endpoints.
    ("hl.t1.svc.cluster.local A", "A 172.17.0.254, A 172.17.0.255"),
    ("hl.t1.svc.cluster.local AAAA", "AAAA fd00:17::1"),
    ("h1.hl.t1.svc.cluster.local A", "A 172.17.0.254"),
    ("h1.hl.t1.svc.cluster.local AAAA", NODATA),
    ("172-17-0-255.hl.t1.svc.cluster.local A", "A 172.17.0.255"),
    ("172-17-0-254.hl.t1.svc.cluster.local A", NXDOMAIN),
    ("h8.hl.t1.svc.cluster.local A", NXDOMAIN),
    ("_c._udp.hl.t1.svc.cluster.local A", "A 172.17.0.254, A 172.17.0.255"),
    ("same.dup.t1.svc.cluster.local A", "A 172.17.1.1, A 172.17.1.2"),
    ("none.t1.svc.cluster.local A", NXDOMAIN),
    ("none.t1.svc.cluster.local MX", NXDOMAIN),
    // External names.
    ("ext.t1.svc.cluster.local A", "CNAME example.net., example.net. 60 A 192.0.2.80"),
    ("ext.t1.svc.cluster.local CNAME", "CNAME example.net."),
    ("ext-ip.t1.svc.cluster.local A", NXDOMAIN),
    ("x.ext.t1.svc.cluster.local A", NXDOMAIN),
    ("_http._tcp.ext.t1.svc.cluster.local SRV", NXDOMAIN),
    // Reverse lookups find services, else endpoints.
    ("100.0.96.10.in-addr.arpa PTR", "PTR web.t1.svc.cluster.local."),
    (
        "4.6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa PTR",
        "PTR web.t1.svc.cluster.local.",
    ),
    (
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.7.1.0.0.0.0.d.f.ip6.arpa PTR",
        "PTR h3.hl.t1.svc.cluster.local.",
    ),
    ("2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.7.1.0.0.0.0.d.f.ip6.arpa PTR", NO_POINTER_6),
    ("254.0.17.172.in-addr.arpa PTR", "PTR h1.hl.t1.svc.cluster.local."),
    ("255.0.17.172.in-addr.arpa PTR", "PTR 172-17-0-255.hl.t1.svc.cluster.local."),
    (
        "9.0.17.172.in-addr.arpa PTR",
        "PTR shared.web.t2.svc.cluster.local., PTR 172-17-0-9.web.t1.svc.cluster.local.",
    ),
    ("8.0.17.172.in-addr.arpa PTR", NO_POINTER),
    ("99.0.96.10.in-addr.arpa PTR", NO_POINTER),
    ("96.10.in-addr.arpa PTR", NO_POINTER),
    ("100.0.96.10.in-addr.arpa A", "NODATA in-addr.arpa."),
    // The name exists, but has no record of this type.
    ("cluster.local A", NODATA),
    ("Cluster.Local MX", NODATA),
    ("svc.cluster.local A", NODATA),
    ("pod.cluster.local AAAA", NODATA),
    ("t1.svc.cluster.local A", NODATA),
    ("bare.svc.cluster.local TXT", NODATA),
    ("t1.pod.cluster.local A", NODATA),
    ("web.t1.svc.cluster.local MX", NODATA),
    ("hl.t1.svc.cluster.local TXT", NODATA),
    ("dns-version.cluster.local A", NODATA),
    ("web.t1.svc.cluster.local SOA", NODATA),
    ("other.t1.svc.cluster.local SOA", NODATA),
    ("x.x.x.x.x.x.cluster.local SOA", NODATA),
    // The name does not exist.
    ("x.cluster.local A", NXDOMAIN),
    ("web.t1.cluster.local A", NXDOMAIN),
    ("t3.svc.cluster.local A", NXDOMAIN),
    ("web.t3.svc.cluster.local A", NXDOMAIN),
    ("t3.pod.cluster.local A", NXDOMAIN),
    ("other.t1.svc.cluster.local A", NXDOMAIN),
    ("other.t1.svc.cluster.local MX", NXDOMAIN),
    ("nobody.hl.t1.svc.cluster.local A", NXDOMAIN),
    ("_nope._tcp.web.t1.svc.cluster.local A", NXDOMAIN),
    ("_c._tcp.hl.t1.svc.cluster.local A", NXDOMAIN),
    ("x._http._tcp.web.t1.svc.cluster.local A", NXDOMAIN),
    ("gone.t2.svc.cluster.local A", NXDOMAIN),
    ("web-0.web.t1.svc.cluster.local A", NXDOMAIN),
    ("a.pin._zone.hl.t1.svc.cluster.local A", NXDOMAIN),
    // Pods have no names.
    ("172-17-0-9.t1.pod.cluster.local A", NXDOMAIN),
    ("172-17-0-11.t1.pod.cluster.local A", NXDOMAIN),
    ("172-17-0-9.t3.pod.cluster.local A", NXDOMAIN),
    ("fd00-17--9.t1.pod.cluster.local AAAA", NXDOMAIN),
];

/// Properties, the TTL that they set, and the answers that they change.
pub(super) const PROPERTIES: &[(&str, u32, Rows)] = &[
    (
        "namespaces t1",
        5,
        &[
            ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("t1.svc.cluster.local A", NODATA),
            ("web.t2.svc.cluster.local A", NXDOMAIN),
            ("t2.svc.cluster.local A", NXDOMAIN),
            ("t2.pod.cluster.local A", NXDOMAIN),
            ("kubernetes.default.svc.cluster.local A", NXDOMAIN),
            ("100.0.96.10.in-addr.arpa PTR", "PTR web.t1.svc.cluster.local."),
            ("200.0.96.10.in-addr.arpa PTR", NO_POINTER),
            ("9.0.17.172.in-addr.arpa PTR", "PTR 172-17-0-9.web.t1.svc.cluster.local."),
        ],
    ),
    (
        "pods insecure",
        5,
        &[
            ("172-17-0-9.t1.pod.cluster.local A", "A 172.17.0.9"),
            ("172-17-0-9.t1.pod.cluster.local AAAA", NODATA),
            ("172-17-0-11.t1.pod.cluster.local A", "A 172.17.0.11"),
            ("172-17-0-9.t3.pod.cluster.local A", NXDOMAIN),
            ("fd00-17--9.t1.pod.cluster.local AAAA", "AAAA fd00:17::9"),
            ("fd00-17--11.t1.pod.cluster.local AAAA", "AAAA fd00:17::11"),
            ("fd00-17--9.t3.pod.cluster.local AAAA", NXDOMAIN),
            ("1-2-3-256.t1.pod.cluster.local A", NXDOMAIN),
            ("web.t1.pod.cluster.local A", NXDOMAIN),
        ],
    ),
    (
        "pods verified",
        5,
        &[
            ("172-17-0-9.t1.pod.cluster.local A", "A 172.17.0.9"),
            ("172-17-0-9.t1.pod.cluster.local AAAA", NODATA),
            ("172-17-0-11.t1.pod.cluster.local A", NXDOMAIN),
            ("172-17-0-9.t2.pod.cluster.local A", NXDOMAIN),
            ("172-17-0-10.t2.pod.cluster.local A", "A 172.17.0.10"),
            ("172-17-0-9.t3.pod.cluster.local A", NXDOMAIN),
            ("fd00-17--9.t1.pod.cluster.local AAAA", "AAAA fd00:17::9"),
            ("fd00-17--11.t1.pod.cluster.local AAAA", NXDOMAIN),
            ("fd00-17--9.t2.pod.cluster.local AAAA", NXDOMAIN),
            ("fd00-17--9.t3.pod.cluster.local AAAA", NXDOMAIN),
        ],
    ),
    (
        "endpoint_pod_names",
        5,
        &[
            ("web-0.web.t1.svc.cluster.local A", "A 172.17.0.9"),
            ("172-17-0-9.web.t1.svc.cluster.local A", NXDOMAIN),
            ("h1.hl.t1.svc.cluster.local A", "A 172.17.0.254"),
            ("172-17-0-255.hl.t1.svc.cluster.local A", "A 172.17.0.255"),
            (
                "9.0.17.172.in-addr.arpa PTR",
                "PTR web-0.web.t1.svc.cluster.local., PTR shared.web.t2.svc.cluster.local.",
            ),
        ],
    ),
    (
        "noendpoints",
        5,
        &[
            ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("hl.t1.svc.cluster.local A", NXDOMAIN),
            ("h1.hl.t1.svc.cluster.local A", NXDOMAIN),
            ("172-17-0-9.web.t1.svc.cluster.local A", NXDOMAIN),
            ("254.0.17.172.in-addr.arpa PTR", NO_POINTER),
            ("100.0.96.10.in-addr.arpa PTR", "PTR web.t1.svc.cluster.local."),
        ],
    ),
    // A name without an address of the family is NODATA and is not forwarded.
    (
        "fallthrough",
        5,
        &[
            ("v4.t1.svc.cluster.local AAAA", NODATA),
            ("_dns._udp.v4.t1.svc.cluster.local AAAA", NODATA),
            ("v6.t1.svc.cluster.local A", NODATA),
            ("dup.t1.svc.cluster.local AAAA", NODATA),
            ("same.dup.t1.svc.cluster.local AAAA", NODATA),
            ("172-17-0-9.web.t1.svc.cluster.local AAAA", NODATA),
            ("h3.hl.t1.svc.cluster.local A", NODATA),
        ],
    ),
    (
        "ignore empty_service",
        5,
        &[
            ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("v4.t1.svc.cluster.local A", NXDOMAIN),
            ("v4.t1.svc.cluster.local SRV", NXDOMAIN),
            ("hl.t1.svc.cluster.local AAAA", "AAAA fd00:17::1"),
            ("ext.t1.svc.cluster.local CNAME", "CNAME example.net."),
        ],
    ),
    (
        "ttl 0",
        0,
        &[
            ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
            ("hl.t1.svc.cluster.local A", "A 172.17.0.254, A 172.17.0.255"),
            ("100.0.96.10.in-addr.arpa PTR", "PTR web.t1.svc.cluster.local."),
            ("dns-version.cluster.local TXT", "28800 TXT \"1.1.0\""),
            ("other.t1.svc.cluster.local A", NXDOMAIN),
            ("web.t1.svc.cluster.local MX", NODATA),
        ],
    ),
];

/// Zones of this cluster, and of its cluster set.
pub(super) const SET: Rows = &[
    ("dns-version.clusterset.local TXT", "28800 TXT \"1.0.0\""),
    ("dns-version.cluster.local TXT", "28800 TXT \"1.1.0\""),
    ("web.t1.svc.clusterset.local A", "A 10.112.0.1"),
    ("web.t1.svc.clusterset.local AAAA", "AAAA fd00:112::1"),
    ("web.t1.svc.cluster.local A", "A 10.96.0.100"),
    (
        "_http._tcp.web.t1.svc.clusterset.local SRV",
        "SRV 0 50 80 web.t1.svc.clusterset.local., + web.t1.svc.clusterset.local. A 10.112.0.1, \
         + web.t1.svc.clusterset.local. AAAA fd00:112::1",
    ),
    ("v4.t1.svc.clusterset.local A", "NXDOMAIN clusterset.local."),
    ("hl.t1.svc.clusterset.local A", "A 172.18.0.1, A 172.19.0.1, A 172.19.0.2"),
    ("h1.one.hl.t1.svc.clusterset.local A", "A 172.18.0.1"),
    ("h1.two.hl.t1.svc.clusterset.local A", "A 172.19.0.1"),
    ("172-19-0-2.two.hl.t1.svc.clusterset.local A", "A 172.19.0.2"),
    ("h3.two.hl.t1.svc.clusterset.local A", "NXDOMAIN clusterset.local."),
    ("h1.three.hl.t1.svc.clusterset.local A", "NXDOMAIN clusterset.local."),
    ("h1.hl.t1.svc.cluster.local A", "A 172.17.0.254"),
    (
        "_c._udp.hl.t1.svc.clusterset.local SRV",
        "SRV 0 33 1234 172-19-0-2.two.hl.t1.svc.clusterset.local., SRV 0 33 1234 h1.one.hl.t1.svc.clusterset.local., \
         SRV 0 33 1234 h1.two.hl.t1.svc.clusterset.local., + 172-19-0-2.two.hl.t1.svc.clusterset.local. A 172.19.0.2, \
         + h1.one.hl.t1.svc.clusterset.local. A 172.18.0.1, + h1.two.hl.t1.svc.clusterset.local. A 172.19.0.1",
    ),
    ("1.0.112.10.in-addr.arpa PTR", "PTR web.t1.svc.clusterset.local."),
    (
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.2.1.1.0.0.0.d.f.ip6.arpa PTR",
        "PTR web.t1.svc.clusterset.local.",
    ),
    ("100.0.96.10.in-addr.arpa PTR", "PTR web.t1.svc.cluster.local."),
];

/// The records of a transfer between its SOAs, sorted: each slice of a headless service has its own
/// weights.
pub(super) const SENT: &[&str] = &[
    "cluster.local. NS ns.dns.cluster.local.",
    "ns.dns.cluster.local. A 192.0.2.53",
    "kubernetes.default.svc.cluster.local. A 10.96.0.1",
    "kubernetes.default.svc.cluster.local. SRV 0 100 443 kubernetes.default.svc.cluster.local.",
    "_https._tcp.kubernetes.default.svc.cluster.local. SRV 0 100 443 kubernetes.default.svc.cluster.local.",
    "web.t1.svc.cluster.local. A 10.96.0.100",
    "web.t1.svc.cluster.local. AAAA fd00:10:96::64",
    "web.t1.svc.cluster.local. SRV 0 100 80 web.t1.svc.cluster.local.",
    "_http._tcp.web.t1.svc.cluster.local. SRV 0 100 80 web.t1.svc.cluster.local.",
    "web.t1.svc.cluster.local. SRV 0 100 443 web.t1.svc.cluster.local.",
    "_https._tcp.web.t1.svc.cluster.local. SRV 0 100 443 web.t1.svc.cluster.local.",
    "one.t1.svc.cluster.local. A 10.96.0.103",
    "one.t1.svc.cluster.local. SRV 0 100 80 one.t1.svc.cluster.local.",
    "_http._tcp.one.t1.svc.cluster.local. SRV 0 100 80 one.t1.svc.cluster.local.",
    "one.t1.svc.cluster.local. SRV 0 100 443 one.t1.svc.cluster.local.",
    "_https._tcp.one.t1.svc.cluster.local. SRV 0 100 443 one.t1.svc.cluster.local.",
    "v4.t1.svc.cluster.local. A 10.96.0.101",
    "v4.t1.svc.cluster.local. SRV 0 100 53 v4.t1.svc.cluster.local.",
    "_dns._udp.v4.t1.svc.cluster.local. SRV 0 100 53 v4.t1.svc.cluster.local.",
    "_dns-tcp._tcp.v4.t1.svc.cluster.local. SRV 0 100 53 v4.t1.svc.cluster.local.",
    "v6.t1.svc.cluster.local. AAAA fd00:10:96::65",
    "v6.t1.svc.cluster.local. SRV 0 100 80 v6.t1.svc.cluster.local.",
    "hl.t1.svc.cluster.local. A 172.17.0.254",
    "hl.t1.svc.cluster.local. A 172.17.0.255",
    "hl.t1.svc.cluster.local. AAAA fd00:17::1",
    "h1.hl.t1.svc.cluster.local. A 172.17.0.254",
    "172-17-0-255.hl.t1.svc.cluster.local. A 172.17.0.255",
    "h3.hl.t1.svc.cluster.local. AAAA fd00:17::1",
    "_c._udp.hl.t1.svc.cluster.local. SRV 0 50 1234 h1.hl.t1.svc.cluster.local.",
    "_c._udp.hl.t1.svc.cluster.local. SRV 0 50 1234 172-17-0-255.hl.t1.svc.cluster.local.",
    "_c._udp.hl.t1.svc.cluster.local. SRV 0 100 1234 h3.hl.t1.svc.cluster.local.",
    "dup.t1.svc.cluster.local. A 172.17.1.1",
    "dup.t1.svc.cluster.local. A 172.17.1.2",
    "same.dup.t1.svc.cluster.local. A 172.17.1.1",
    "same.dup.t1.svc.cluster.local. A 172.17.1.2",
    "_c._udp.dup.t1.svc.cluster.local. SRV 0 50 1234 same.dup.t1.svc.cluster.local.",
    "_d._tcp.dup.t1.svc.cluster.local. SRV 0 50 1235 same.dup.t1.svc.cluster.local.",
    "mark.t1.svc.cluster.local. A 172.17.9.0",
    "172-17-9-0.mark.t1.svc.cluster.local. A 172.17.9.0",
    "_c._udp.mark.t1.svc.cluster.local. SRV 0 100 1234 172-17-9-0.mark.t1.svc.cluster.local.",
    "ext.t1.svc.cluster.local. CNAME example.net.",
    "web.t2.svc.cluster.local. A 10.96.0.200",
    "web.t2.svc.cluster.local. SRV 0 100 80 web.t2.svc.cluster.local.",
    "_http._tcp.web.t2.svc.cluster.local. SRV 0 100 80 web.t2.svc.cluster.local.",
];
