//! `rewrite edns0` and `header query`: the options that upstreams receive, and which queries share
//! an answer.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use tests::{Action, Ask, Asked, Connection, Dns, Upstream, ask, fresh_ip};

const LOCAL: u16 = 0xffee;
type Options = Vec<(u16, Vec<u8>)>;

fn options(asked: &Asked) -> Options {
    asked.edns.as_ref().map(|edns| edns.options.clone()).unwrap_or_default()
}

/// Answers with an address that ends with the local option's last byte, or with 1 without it.
fn by_option(asked: &Asked) -> Action {
    let local = options(asked).into_iter().find(|(code, _)| *code == LOCAL);
    let last = local.and_then(|(_, data)| data.last().copied()).unwrap_or(1);
    Action::answer(&format!("{} 300 IN A 192.0.2.{last}", asked.name))
}

fn dns(directives: &str, script: fn(&Asked) -> Action) -> (Dns, Upstream) {
    let upstream = Upstream::start(fresh_ip(), script);
    let forward = format!("cache 30\nforward . {} {{\nprefer_udp\n}}", upstream.word());
    (Dns::start(&format!("{directives}\n{forward}")), upstream)
}

/// Options go to the upstream, and to clients that have EDNS.
#[test]
fn options_with_and_without_edns() {
    let own = || vec![(LOCAL, b"own".to_vec())];
    let local = |data: &[u8]| vec![(LOCAL, data.to_vec())];
    // The rule, the client's options, the options that the upstream receives, the options in the
    // reply.
    let rows: &[(&str, Options, Options, Options)] = &[
        ("edns0 local set 0xffee 0x61626364", vec![], local(b"abcd"), local(b"abcd")),
        ("edns0 local set 65518 abcd", own(), local(b"abcd"), local(b"abcd")),
        ("edns0 local set 0xffee abcd revert", vec![], local(b"abcd"), vec![]),
        ("edns0 local set 0xffee abcd revert", own(), local(b"abcd"), local(b"own")),
        (
            "continue {\nedns0 local set 0xffee abcd\n}\nrewrite edns0 local replace 0xffee bcde revert",
            vec![],
            local(b"bcde"),
            local(b"abcd"),
        ),
        ("edns0 local replace 0xffee abcd", vec![], vec![], vec![]),
        ("edns0 local replace 0xffee abcd", own(), local(b"abcd"), local(b"abcd")),
        ("edns0 local append 0xffee abcd", own(), local(b"own"), local(b"own")),
        // The rule matches without effect, so the rules behind it are skipped.
        (
            "edns0 local append 0xffee abcd\nrewrite edns0 local set 0xffee bcde",
            own(),
            local(b"own"),
            local(b"own"),
        ),
        (
            "edns0 nsid append\nrewrite edns0 local set 0xffee abcd",
            vec![(3, vec![])],
            vec![(3, vec![])],
            vec![],
        ),
        (
            "edns0 local append 0xffef abcd",
            own(),
            vec![(0xffef, b"abcd".to_vec())],
            vec![(0xffef, b"abcd".to_vec())],
        ),
        ("edns0 local unset 0xffee", own(), vec![], vec![]),
        ("edns0 local set 0xffee {qname}", vec![], local(b"X.example."), local(b"X.example.")),
        ("edns0 local set 0xffee {qtype}", vec![], local(&[0, 1]), local(&[0, 1])),
        ("edns0 local set 0xffee {client_ip}", vec![], local(&[127, 0, 0, 1]), local(&[127, 0, 0, 1])),
        ("edns0 local set 0xffee {protocol}", vec![], local(b"udp"), local(b"udp")),
        ("edns0 nsid set", vec![], vec![(3, vec![])], vec![]),
        ("edns0 subnet set 8 56", vec![], vec![(8, vec![0, 1, 8, 0, 127])], vec![]),
        (
            "edns0 subnet append 8 56",
            vec![(8, vec![0, 1, 8, 0, 10])],
            vec![(8, vec![0, 1, 8, 0, 10])],
            vec![],
        ),
        ("edns0 subnet replace 8 56", vec![], vec![], vec![]),
        ("edns0 subnet unset", vec![(8, vec![0, 1, 8, 0, 10])], vec![], vec![]),
    ];
    for (rule, own, sent, received) in rows {
        let (dns, upstream) = dns(&format!("rewrite {rule}"), by_option);
        let mut query = Ask::new("X.example", "A").edns(1232);
        for (code, data) in own {
            query = query.option(*code, data);
        }
        for turn in 0..2 {
            let reply = query.of(dns.at);
            let edns = reply.edns.as_ref().expect("an OPT for an OPT");
            assert_eq!(
                (reply.status(), &edns.options),
                ("NOERROR", received),
                "{rule}, {own:?}, turn {turn}"
            );
        }
        let all: Vec<Options> = upstream.asked().iter().map(options).collect();
        // A reply to a client's own subnet is not cached.
        let times = if own.iter().any(|(code, _)| *code == 8) && rule.contains("append") { 2 } else { 1 };
        assert_eq!(all, vec![sent.clone(); times], "{rule}, {own:?}");
        if own.is_empty() {
            assert!(ask(dns.at, "y.example", "A").edns.is_none(), "{rule}: no OPT where there was none");
        }
    }
}

#[test]
fn different_options_share_no_answer() {
    let (dns, upstream) = dns("rewrite edns0 local append 0xffee z", by_option);
    let with = |value: u8| Ask::new("x.example", "A").option(LOCAL, &[value]).of(dns.at).short().join(" ");
    for _ in 0..2 {
        assert_eq!((with(7), with(8)), ("192.0.2.7".to_owned(), "192.0.2.8".to_owned()));
        assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.122"]);
    }
    assert_eq!(upstream.total(), 3, "each from the cache the second time");
}

#[test]
fn different_options_share_no_flight() {
    let seen = Mutex::new(BTreeSet::new());
    let upstream = Upstream::start(fresh_ip(), move |asked| {
        let mut seen = seen.lock().unwrap();
        seen.insert(options(asked));
        // Replies only after both queries have arrived.
        if seen.len() < 2 { Action::Silent } else { by_option(asked) }
    });
    let forward = format!("forward . {} {{\nprefer_udp\n}}", upstream.word());
    let dns = Dns::start(&format!("rewrite edns0 local append 0xffee z\n{forward}"));
    let mut stream = Connection::open(dns.at, Duration::from_secs(10)).unwrap();
    for value in [7, 8] {
        stream.send(&Ask::new("x.example", "A").id(value.into()).option(LOCAL, &[value]).bytes()).unwrap();
    }
    for _ in 0..2 {
        let message = stream.message().unwrap();
        assert_eq!(message.answers[0].data, format!("192.0.2.{}", message.id));
    }
}

/// An upstream that refuses added options is queried without them.
#[test]
fn upstream_that_refuses_added_options() {
    let (dns, upstream) = dns("rewrite edns0 local set 0xffee x", |asked| {
        if options(asked).is_empty() { by_option(asked) } else { Action::rcode(1) }
    });
    assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.1"]);
    let sent: Vec<usize> = upstream.asked().iter().map(|asked| options(asked).len()).collect();
    assert_eq!(sent, [1, 0]);
    assert!(upstream.asked()[1].edns.is_some(), "it takes our own OPT");
}

/// No client gets the added subnet, and answers are cached for clients that share it.
#[test]
fn added_subnet_stays_private() {
    let (dns, upstream) = dns("rewrite edns0 subnet set 8 56", |asked| {
        Action::Reply(
            tests::Says::answer(&format!("{} 300 IN A 192.0.2.1", asked.name)).option(8, &[0, 1, 8, 8, 127]),
        )
    });
    for _ in 0..2 {
        let reply = Ask::new("x.example", "A").option(8, &[0, 1, 24, 0, 192, 0, 2]).of(dns.at);
        assert_eq!((reply.status(), reply.option(8)), ("NOERROR", None));
        assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.1"]);
    }
    assert_eq!(upstream.total(), 1);
}

/// Flags that `header` sets reach the upstream, a client's do not.
#[test]
fn only_configured_flags_are_forwarded() {
    let (dns, upstream) = dns("header {\nquery set aa ra\n}", by_option);
    assert_eq!(ask(dns.at, "x.example", "A").flag_names(), "qr rd ra");
    let flags = |upstream: &Upstream| upstream.asked()[0].flags & 0x0480;
    assert_eq!(flags(&upstream), 0x0480, "AA and RA");
    let (dns, upstream) = self::dns("minimal", by_option);
    let mut query = Ask::new("x.example", "A").bytes();
    (query[2], query[3]) = (query[2] | 4, query[3] | 0x80);
    tests::exchange_udp(dns.at, &query, Duration::from_secs(5)).unwrap();
    assert_eq!(flags(&upstream), 0);
}

/// Labels are logged if `metadata` is set, and match no rule before they are known.
#[test]
fn metadata_labels_are_logged() {
    let upstream = Upstream::start(fresh_ip(), by_option);
    let rules = "rewrite continue edns0 local set 0xffee {forward/upstream}\nrewrite name regex (.*)[.]old[.]$ {1}.{forward/upstream} metadata";
    let log = "log . \"{name} by {/forward/upstream} {/log/type} {/log/class} {/no/label}\"";
    let template = "template IN A t {\nanswer \"{{ .Name }} 60 IN CNAME a.far.\"\nanswer \"{{ .Name }} 60 IN CNAME b.far.\"\n}";
    for metadata in ["metadata", "metadata example.org", ""] {
        let forward = format!("cache\nforward . {}", upstream.word());
        let dns = Dns::start(&format!("{metadata}\n{rules}\n{log}\n{template}\n{forward}"));
        let known = format!("by {} NOERROR success -", upstream.address());
        let hit = "by - NOERROR success -";
        for (name, with) in [("x.old", &known[..]), ("x.old", hit), ("y.t", &known), ("y.t", hit)] {
            ask(dns.at, name, "A");
            let expected = if metadata.is_empty() { "by - - - -" } else { with };
            dns.server.wait_for_log(&format!("{name}. {expected}"), Duration::from_secs(5));
        }
        assert!(upstream.asked_for("x.old.").iter().all(|asked| options(asked).is_empty()), "no rule fitted");
        upstream.forget();
    }
}
