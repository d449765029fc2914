//! Rows of Corefile text: the meaning of each word of `forward`, and the error messages.

use super::*;
use crate::read_corefile::tests::{block, parsed, refused, refused_properties, with};
use forwarder::{ConnectionLimits, HealthCheck};

/// Differences of a row from the bare directive.
type Change = fn(&mut ForwardSpec);

fn name(text: &str) -> Name {
    Name::from_text(text).unwrap()
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn stanzas(lines: &str) -> Vec<ForwardSpec> {
    parsed::<ForwardSpecs>(lines).unwrap().stanzas
}

/// Returns all settings of a directive except locations, as text.
fn shown(spec: &ForwardSpec) -> String {
    let targets: Vec<&ForwardTarget> = spec.targets.iter().map(|(target, _)| target).collect();
    format!(
        "{:?} {targets:?} {:?} {:?} {:?}",
        spec.stanza,
        spec.tls,
        spec.tls_servername.as_ref().map(|(name, _)| name),
        spec.resolvers
    )
}

#[test]
fn upstreams_are_addresses_files_or_host_names() {
    let plain = |text| ForwardTarget::Address { address: address(text), tls: false, server_name: None };
    let tls = |text, server_name: Option<&str>| ForwardTarget::Address {
        address: address(text),
        tls: true,
        server_name: server_name.map(str::to_owned),
    };
    let host = |text, port, tls| ForwardTarget::Host { name: name(text), port, tls };
    for (word, expected) in [
        ("192.0.2.1", plain("192.0.2.1:53")),
        ("192.0.2.1:5353", plain("192.0.2.1:5353")),
        ("dns://192.0.2.1", plain("192.0.2.1:53")),
        ("2001:db8::1", plain("[2001:db8::1]:53")),
        ("[2001:db8::1]", plain("[2001:db8::1]:53")),
        ("[2001:db8::1]:54", plain("[2001:db8::1]:54")),
        ("fe80::1%7", plain("[fe80::1%7]:53")),
        ("[fe80::1%7]:54", plain("[fe80::1%7]:54")),
        ("tls://192.0.2.1", tls("192.0.2.1:853", None)),
        ("tls://[2001:db8::1]:8853", tls("[2001:db8::1]:8853", None)),
        ("tls://192.0.2.1%dns.example.org", tls("192.0.2.1:853", Some("dns.example.org"))),
        ("tls://192.0.2.1%dns.example.org:8853", tls("192.0.2.1:8853", Some("dns.example.org"))),
        ("/run/upstreams.conf", ForwardTarget::File("/run/upstreams.conf".into())),
        ("run/upstreams.conf", ForwardTarget::File("run/upstreams.conf".into())),
        ("dns.example.org", host("dns.example.org", 53, false)),
        ("dns.example.org.:54", host("dns.example.org", 54, false)),
        ("dns://dns.example.org", host("dns.example.org", 53, false)),
        ("tls://dns.example.org", host("dns.example.org", 853, true)),
    ] {
        let spec = stanzas(&format!("forward . {word}")).remove(0);
        assert_eq!(spec.targets[0].0, expected, "{word}");
    }
}

#[test]
fn stanzas_keep_their_order_and_zones() {
    let found = stanzas(
        "forward Lab.example.org 192.0.2.1 192.0.2.2\nforward 10.0.0.0/24 192.0.2.3\nforward . 192.0.2.4",
    );
    let found: Vec<(String, usize)> =
        found.iter().map(|spec| (spec.stanza.from.to_string(), spec.targets.len())).collect();
    let expected = [("lab.example.org.", 2), ("0.0.10.in-addr.arpa.", 1), (".", 1)];
    assert_eq!(found, expected.map(|(zone, count)| (zone.to_owned(), count)));
    let fifteen = "192.0.2.1 ".repeat(15);
    assert_eq!(stanzas(&format!("forward . {fifteen}"))[0].targets.len(), 15);
    assert_eq!(
        block_error(&format!("forward . {fifteen}192.0.2.2")),
        "Corefile:2:161: plugin/forward: at most 15 upstreams can stand in one `forward`"
    );
}

fn block_error(lines: &str) -> String {
    block(lines).err().unwrap_or_default()
}

#[test]
fn properties() {
    let seconds = Duration::from_secs;
    let rows: &[(&str, Change)] = &[
        ("except a.org 10.0.0.0/24\nexcept b.org", |s| {
            s.stanza.except = vec![name("a.org"), name("0.0.10.in-addr.arpa"), name("b.org")];
        }),
        ("max_fails 0", |s| s.stanza.max_fails = 0),
        ("max_connect_attempts 3", |s| s.stanza.max_connect_attempts = Some(3)),
        ("health_check 1s", |s| s.stanza.health.interval = Duration::from_secs(1)),
        ("health_check 1s no_rec domain health.local.", |s| {
            s.stanza.health = HealthCheck {
                interval: Duration::from_secs(1),
                recursion: false,
                domain: name("health.local"),
            };
        }),
        ("force_tcp", |s| s.stanza.force_tcp = true),
        ("prefer_udp", |s| s.stanza.prefer_udp = true),
        ("tls", |s| s.tls = Some(TlsFiles::default())),
        ("tls ca.pem", |s| s.tls = Some(TlsFiles { client: None, ca: Some("ca.pem".into()) })),
        ("tls c.pem k.pem", |s| {
            s.tls = Some(TlsFiles { client: Some(("c.pem".into(), "k.pem".into())), ca: None });
        }),
        ("tls c.pem k.pem ca.pem", |s| {
            let client = Some(("c.pem".into(), "k.pem".into()));
            s.tls = Some(TlsFiles { client, ca: Some("ca.pem".into()) });
        }),
        ("tls_servername dns.example.org", |s| {
            s.tls_servername = Some(("dns.example.org".into(), Location::file_only("Corefile")));
        }),
        ("expire 1m", |s| s.stanza.connections.expire = Duration::from_secs(60)),
        ("max_age 10s", |s| s.stanza.connections.max_age = Duration::from_secs(10)),
        ("max_age 0s", |_| {}),
        ("expire 1s\nmax_age 2s", |s| {
            s.stanza.connections = ConnectionLimits {
                expire: Duration::from_secs(1),
                max_age: Duration::from_secs(2),
                ..ConnectionLimits::default()
            };
        }),
        ("max_connections 20", |s| s.stanza.connections.max_connections = 20),
        ("max_idle_conns 7", |s| s.stanza.connections.max_idle = 7),
        ("read_timeout 500ms", |s| s.stanza.read_timeout = Duration::from_millis(500)),
        ("policy random", |s| s.stanza.policy = Policy::Random),
        ("policy round_robin", |s| s.stanza.policy = Policy::RoundRobin),
        ("policy sequential", |s| s.stanza.policy = Policy::Sequential),
        ("max_concurrent 1000", |s| s.stanza.max_concurrent = 1000),
        ("next NXDOMAIN servfail", |s| s.stanza.next = vec![Rcode::NXDOMAIN, Rcode::SERVFAIL]),
        ("next_on_nodata", |s| s.stanza.next_on_nodata = true),
        ("failfast_all_unhealthy_upstreams", |s| s.stanza.failfast = true),
        ("failover SERVFAIL REFUSED", |s| s.stanza.failover = vec![Rcode::SERVFAIL, Rcode::REFUSED]),
        ("resolver 192.0.2.8 192.0.2.9:54", |s| {
            s.resolvers = vec![address("192.0.2.8:53"), address("192.0.2.9:54")];
        }),
    ];
    assert_eq!(stanzas("forward . 192.0.2.1")[0].stanza.read_timeout, seconds(2));
    for (property, change) in rows {
        let mut expected = stanzas("forward . 192.0.2.1").remove(0);
        change(&mut expected);
        let found = stanzas(&with("forward . 192.0.2.1", property)).remove(0);
        assert_eq!(shown(&found), shown(&expected), "{property}");
    }
}

#[test]
fn errors_have_their_place() {
    const UPSTREAM: &str = "is not an upstream: IP[:PORT], tls://IP[:PORT], a file or a host name";
    const BLANKS: &str = "is not an upstream: between upstreams stand blanks and nothing else";
    const PORT: &str = "is not an upstream: a port of 1 to 65535 belongs behind the last colon";
    let rows = [
        ("forward", "2:1: plugin/forward: `forward` needs FROM TO...".to_owned()),
        ("forward .", "2:1: plugin/forward: `forward` needs FROM TO...".to_owned()),
        ("forward a..b 192.0.2.1", "2:9: the zone `a..b` has an empty label".to_owned()),
        ("forward . 192.0.2", format!("2:11: plugin/forward: \"192.0.2\" {UPSTREAM}")),
        ("forward . 192.0.2.1, 192.0.2.2", format!("2:11: plugin/forward: \"192.0.2.1,\" {BLANKS}")),
        ("forward . 192.0.2.2 192.0.2.1:53;", format!("2:21: plugin/forward: \"192.0.2.1:53;\" {BLANKS}")),
        ("forward . tls://dns.example,", format!("2:11: plugin/forward: \"tls://dns.example,\" {BLANKS}")),
        ("forward . 192.0.2.1,192.0.2.2", format!("2:11: plugin/forward: \"192.0.2.1,192.0.2.2\" {UPSTREAM}")),
        ("forward . dns.example,b", format!("2:11: plugin/forward: \"dns.example,b\" {UPSTREAM}")),
        ("forward . $UPSTREAM", format!("2:11: plugin/forward: \"$UPSTREAM\" {UPSTREAM}")),
        ("forward . ftp://192.0.2.1", format!("2:11: plugin/forward: \"ftp://192.0.2.1\" {UPSTREAM}")),
        ("forward . 192.0.2.1:0", format!("2:11: plugin/forward: \"192.0.2.1:0\" {PORT}")),
        ("forward . 192.0.2.1:65536", format!("2:11: plugin/forward: \"192.0.2.1:65536\" {PORT}")),
        ("forward . dns.example.org:dns", format!("2:11: plugin/forward: \"dns.example.org:dns\" {PORT}")),
        (
            "forward . fe80::1%nosuchlink0",
            "2:11: plugin/forward: \"fe80::1%nosuchlink0\" is not an address on an interface of this machine"
                .to_owned(),
        ),
        (
            "forward . tls://192.0.2.1%name:0",
            "2:11: plugin/forward: \"tls://192.0.2.1%name:0\" is not IP%NAME[:PORT]".to_owned(),
        ),
        (
            "forward . 192.0.2.1 https://192.0.2.1/dns-query",
            "2:21: plugin/forward: upstreams over https:// are not supported yet; name the upstream by IP[:PORT] or tls://IP[:PORT]".to_owned(),
        ),
        (
            "forward . quic://192.0.2.1",
            "2:11: plugin/forward: upstreams over quic:// are not supported yet; name the upstream by IP[:PORT] or tls://IP[:PORT]".to_owned(),
        ),
        (
            "forward . tls://192.0.2.1%a {\ntls_servername b\n}",
            "2:11: plugin/forward: `tls_servername` and `%NAME` exclude each other; keep one"
                .to_owned(),
        ),
        (
            "forward . 192.0.2.1 {\nmax_age 9s\n}",
            "2:1: plugin/forward: `max_age` must not be shorter than `expire`, 10s unless written".to_owned(),
        ),
    ];
    for (line, error) in &rows {
        refused(&[(line, error)]);
    }
}

#[test]
fn number_of_forwards_is_bounded() {
    let of =
        |count: usize| (0..count).map(|n| format!("forward z{n}.example 192.0.2.1\n")).collect::<String>();
    let written = of(255);
    let spec: ForwardSpecs = parsed(written.trim_end()).unwrap();
    assert_eq!(spec.stanzas.len(), 255);
    let more = "a server block has 255 `forward` at most; give some of these zones a block of their own";
    refused(&[(of(256).trim_end(), &format!("257:1: plugin/forward: {more}"))]);
}

#[test]
fn wrong_properties_have_their_place() {
    refused_properties(
        "forward . 192.0.2.1",
        &[
            ("except", "1: plugin/forward: `except` needs NAMES..."),
            ("max_fails -1", "11: plugin/forward: \"-1\" is not a number of failed probes"),
            (
                "max_connect_attempts x",
                "22: plugin/forward: \"x\" is not a number of attempts, 0 for no limit",
            ),
            ("health_check", "1: plugin/forward: `health_check` needs DURATION [no_rec] [domain FQDN]"),
            ("health_check 1", "14: plugin/forward: \"1\" is not a duration such as 500ms"),
            ("health_check 1s norec", "17: plugin/forward: \"norec\" is not `no_rec` or `domain FQDN`"),
            (
                "health_check 1s domain",
                "1: plugin/forward: `health_check` needs DURATION [no_rec] [domain FQDN]",
            ),
            (
                "force_tcp yes",
                "11: plugin/forward: unexpected argument \"yes\"; `force_tcp` needs no argument",
            ),
            ("prefer_udp {\nx\n}", "1: plugin/forward: `prefer_udp` has no sub-block; remove the braces"),
            ("tls a b c d", "11: plugin/forward: \"d\" is not expected here: `tls [CERT KEY] [CA]`"),
            ("tls_servername", "1: plugin/forward: `tls_servername` needs NAME"),
            (
                "tls_servername a b",
                "18: plugin/forward: unexpected argument \"b\"; `tls_servername` needs NAME",
            ),
            ("expire 10", "8: plugin/forward: \"10\" is not a duration such as 10s"),
            ("max_age -1s", "9: plugin/forward: \"-1s\" is not a duration such as 1m, 0 for no limit"),
            (
                "max_idle_conns many",
                "16: plugin/forward: \"many\" is not a number of connections, 0 for no limit",
            ),
            ("read_timeout 0s", "14: plugin/forward: \"0s\" is not a duration above 0"),
            ("policy best", "8: plugin/forward: \"best\" is not a policy: random, round_robin or sequential"),
            ("max_concurrent", "1: plugin/forward: `max_concurrent` needs a number"),
            ("max_concurrent 1k", "16: plugin/forward: \"1k\" is not a number of queries, 0 for no limit"),
            ("next", "1: plugin/forward: `next` needs RCODES..."),
            ("next OOPS", "6: plugin/forward: \"OOPS\" is not an rcode such as SERVFAIL"),
            (
                "failover SERVFAIL NOERROR",
                "19: plugin/forward: \"NOERROR\" is not an rcode that can fail over; NOERROR is an answer",
            ),
            ("resolver", "1: plugin/forward: `resolver` needs IP[:PORT]..."),
            ("resolver dns.org", "10: plugin/forward: \"dns.org\" is not IP or IP:PORT of a resolver"),
            (
                "doh_method GET",
                "1: plugin/forward: the property `doh_method` of CoreDNS is not supported yet; remove it, or keep CoreDNS for this server block",
            ),
            ("source_address localhost", "16: plugin/forward: \"localhost\" is not an IP address"),
            ("prefer_upd", "1: plugin/forward: unknown property \"prefer_upd\"; did you mean `prefer_udp`?"),
        ],
    );
}

#[test]
fn network_of_several_zones_gets_a_warning() {
    for (network, expected) in [
        (
            "10.0.0.0/9",
            Some(
                "\"10.0.0.0/9\" stands for 128 zones, of which 0.10.in-addr.arpa. alone is forwarded, not 1.10.in-addr.arpa. to 127.10.in-addr.arpa.",
            ),
        ),
        (
            "192.0.2.0/23",
            Some(
                "\"192.0.2.0/23\" stands for 2 zones, of which 2.0.192.in-addr.arpa. alone is forwarded, not 3.0.192.in-addr.arpa.",
            ),
        ),
        ("10.0.0.0/8", None),
        ("2001:db8::/32", None),
        ("example.org", None),
    ] {
        let spec =
            crate::read_corefile::tests::spec(&format!(". {{\nforward {network} 192.0.2.53\n}}\n")).unwrap();
        let expected =
            expected.map(|text| format!("Corefile:2:9: plugin/forward: {text}; write a `forward` for each"));
        assert_eq!(odd(&spec).collect::<Vec<_>>(), Vec::from_iter(expected), "{network}");
    }
}
