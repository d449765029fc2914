//! Compares `explain` with answers: it names the first missing object.

use super::*;

#[test]
fn explains_first_missing_part() {
    for (properties, rows) in ROWS {
        let mut rules = rules("cluster.local in-addr.arpa");
        properties(&mut rules);
        let more = [pod("t1/client", "10.1.0.7"), service("t1/ext-v4", "to 192.0.2.1", "")];
        let cluster = Cluster::of(&everything(), rules, objects().into_iter().chain(more));
        for (question, expected) in *rows {
            let question = question.replacen(' ', ".cluster.local ", 1);
            let denied = cluster.ask(&question).starts_with("NXDOMAIN");
            let explained = cluster.explain(&question);
            assert_eq!((denied, explained.as_str()), (expected.0, expected.1), "{question}");
        }
    }
}

type Row = (&'static str, (bool, &'static str));
type Properties = fn(&mut Rules);

/// Whether the answer is NXDOMAIN, and the explanation.
const ROWS: &[(Properties, &[Row])] = &[
    (
        |_| {},
        &[
            ("x.y A", (true, "not a valid name in a cluster's zone")),
            ("nowhere.svc A", (true, "namespace nowhere does not exist")),
            ("t1.svc A", (false, "namespace t1")),
            ("web.nowhere.svc A", (true, "namespace nowhere does not exist")),
            ("_http._tcp.web.nowhere.svc SRV", (true, "namespace nowhere does not exist")),
            ("nobody.t1.svc A", (true, "service t1/nobody does not exist")),
            ("h1.nobody.t1.svc A", (true, "service t1/nobody does not exist")),
            ("web.t1.svc A", (false, "service t1/web has 10.96.0.100, fd00:96::64")),
            ("_nope._tcp.web.t1.svc SRV", (true, "service t1/web has no matching port")),
            ("h9.web.t1.svc A", (true, "service t1/web has no matching ready endpoint")),
            ("h9.hl.t1.svc A", (true, "service t1/hl has no matching ready endpoint")),
            ("h9.hl.t1.svc AAAA", (true, "service t1/hl has no matching ready endpoint")),
            (
                "h1.hl.t1.svc AAAA",
                (false, "service t1/hl has no matching ready endpoint with an IPv6 address"),
            ),
            ("_nope._udp.hl.t1.svc SRV", (true, "service t1/hl has no matching ready endpoint")),
            ("none.t1.svc A", (true, "service t1/none has no ready endpoint")),
            ("none.t1.svc AAAA", (true, "service t1/none has no ready endpoint")),
            (
                "x.ext.t1.svc A",
                (true, "service t1/ext is the external name \"example.net\", and has no names below its own"),
            ),
            ("ext.t1.svc A", (false, "service t1/ext is the external name \"example.net\"")),
            (
                "ext-v4.t1.svc A",
                (true, "service t1/ext-v4 is the external name \"192.0.2.1\", which is not a valid name"),
            ),
            ("10-1-0-7.t1.pod A", (true, "`pods disabled`: pods have no names")),
        ],
    ),
    (
        |rules| rules.namespaces = ["t1".into()].into(),
        &[
            ("web.t2.svc A", (true, "namespace t2 is not listed in `namespaces`")),
            ("t2.svc A", (true, "namespace t2 is not listed in `namespaces`")),
            ("web.t1.svc A", (false, "service t1/web has 10.96.0.100, fd00:96::64")),
        ],
    ),
    (
        |rules| rules.ignore_empty = true,
        &[("v4.t1.svc A", (true, "service t1/v4 has no ready endpoint, and `ignore empty_service` is set"))],
    ),
    (
        |rules| rules.zonal = true,
        &[
            (
                "a.pin._zone.web.t1.svc A",
                (true, "service t1/web is not headless, and has no names for a topology zone"),
            ),
            ("z9.pin._zone.hl.t1.svc A", (false, "service t1/hl has no matching ready endpoint")),
            (
                "z9.prefer._zone.hl.t1.svc AAAA",
                (false, "service t1/hl: endpoint fd00:17::1 of slice t1/hl-b"),
            ),
        ],
    ),
    (
        |rules| rules.pods = Pods::Insecure,
        &[
            ("1-2-3-4.t1.pod A", (false, "`pods insecure`: any address, in namespace t1")),
            ("1-2-3-4.nowhere.pod A", (true, "namespace nowhere does not exist")),
            ("1-2-3.t1.pod A", (true, "1-2-3 is not an address")),
        ],
    ),
    (
        |rules| rules.pods = Pods::Verified,
        &[
            ("10-1-0-7.t1.pod A", (false, "`pods verified`: pod t1/client has 10.1.0.7")),
            ("10-1-0-8.t1.pod A", (true, "`pods verified`: no pod of namespace t1 has 10.1.0.8")),
            ("10-1-0-7.t2.pod A", (true, "`pods verified`: no pod of namespace t2 has 10.1.0.7")),
        ],
    ),
];
