//! `rewrite`, `acl`, `header`, `minimal`, `loadbalance`: the effective query, and the changed
//! response.

use std::time::Duration;

use super::{SOA, expire};
use tests::{
    Action, Ask, Asked, Connection, Dns, Metrics, Says, Server, Upstream, ask, eventually, fresh_ip, port,
    steadily,
};

const NS: &str = "example. 300 IN NS ns.example.";
const GLUE: &str = "ns.example. 300 IN A 192.0.2.53";

/// `cname-X` is an alias of `X`, `servfail` fails, `nx` does not exist; all others have an address,
/// a name server and glue.
pub(super) fn upstream(asked: &Asked) -> Action {
    if asked.name.starts_with("servfail") {
        return Action::Reply(Says::rcode(2));
    }
    if asked.name.starts_with("nx") {
        return Action::Reply(Says::nxdomain(SOA).additional(GLUE));
    }
    let answer = match asked.name.strip_prefix("cname-") {
        Some(target) => format!("{0} 300 IN CNAME {target}\n{target} 300 IN A 192.0.2.9\n", asked.name),
        None => format!("{} 300 IN A 192.0.2.1\n", asked.name),
    };
    Action::Reply(Says::answer(&answer).authority(NS).additional(GLUE))
}

/// A server with these directives, a cache and an upstream.
pub(super) fn dns(directives: &str) -> (Dns, Upstream) {
    let upstream = Upstream::start(fresh_ip(), upstream);
    let dns = Dns::start(&format!("{directives}\ncache 30\nforward . {}", upstream.word()));
    (dns, upstream)
}

pub(super) fn asked(upstream: &Upstream) -> Vec<String> {
    upstream.asked().iter().map(|asked| format!("{} {}", asked.name, asked.rtype)).collect()
}

/// The upstream gets the rewritten name, the client the one that it asked.
#[test]
fn rewritten_question_and_answer() {
    for (rule, name, rtype, forwarded, expected) in [
        ("name old.example new.example", "Old.Example", "A", "new.example. 1", "Old.Example. A 192.0.2.1"),
        ("name prefix ftp. www.", "ftp.a.example", "A", "www.a.example. 1", "www.a.example. A 192.0.2.1"),
        (
            "name suffix .old.example .a.much.longer.new.example answer auto",
            "x.old.example",
            "A",
            "x.a.much.longer.new.example. 1",
            "x.old.example. A 192.0.2.1",
        ),
        (
            "name regex (.*)\\.old\\.example\\.$ {1}.new.example answer name (.*)\\.new\\.example\\.$ {1}.old.example",
            "x.old.example",
            "A",
            "x.new.example. 1",
            "x.old.example. A 192.0.2.1",
        ),
        ("name regex (.*)\\.old {1}.new", "x.old", "A", "x.new. 1", "x.new. A 192.0.2.1"),
        ("type AAAA A", "x.example", "AAAA", "x.example. 1", "x.example. A 192.0.2.1"),
        ("ttl exact x.example 5-7", "x.example", "A", "x.example. 1", "x.example. A 192.0.2.1"),
    ] {
        let (dns, upstream) = dns(&format!("rewrite {rule}"));
        // The second reply is from the cache.
        for turn in 0..2 {
            let reply = Ask::new(name, rtype).of(dns.at);
            assert_eq!(
                reply.question.as_ref().map(|question| question.name.clone()),
                Some(name.to_owned() + "."),
                "{rule}"
            );
            let rr = &reply.answers[0];
            assert_eq!(format!("{} {} {}", rr.name, "A", rr.data), expected, "{rule}, turn {turn}");
            if rule.starts_with("ttl") {
                assert!((5..=7).contains(&rr.ttl), "{rr}");
            }
        }
        assert_eq!(asked(&upstream), [forwarded], "{rule}");
    }
}

/// A failure has its reason, and a rule may change its rcode.
#[test]
fn failures_have_reasons_and_rcodes() {
    let (dns, _upstream) = dns("errors\nrewrite rcode suffix example SERVFAIL NXDOMAIN\nminimal");
    assert_eq!(ask(dns.at, "servfail.example", "A").status(), "NXDOMAIN");
    assert_eq!(ask(dns.at, "x.example", "A").status(), "NOERROR");
    let dns = Dns::start("errors\nminimal\nforward . 127.0.0.1:1");
    let reply = Ask::new("x.example", "A").edns(1232).of(dns.at);
    assert_eq!(reply.status(), "SERVFAIL");
    assert_eq!(reply.extended_error().map(|(code, _)| code), Some(23), "a network error");
}

/// A rule changes the rcode of what is refused below it, not above it.
#[test]
fn rcode_rules_above_a_refusal() {
    let ip = fresh_ip();
    let _server = Server::start(&format!(
        "example:{0} {{\nbind {ip}\nacl secret.example {{\nblock\n}}\nrewrite rcode suffix . REFUSED NXDOMAIN\nwhoami\n}}",
        port()
    ));
    let at = (ip, port()).into();
    for (name, status) in
        [("x.secret.example", "NXDOMAIN"), ("x.example", "NOERROR"), ("x.of-no-block", "REFUSED")]
    {
        assert_eq!(ask(at, name, "A").status(), status, "{name}");
    }
}

/// The log shows the name's beginning.
#[test]
fn overlong_rewritten_name_fails() {
    let (dns, upstream) = dns(&format!("errors\nrewrite name substring s. {}.", "l".repeat(64)));
    let name = "s.".repeat(100) + "example";
    let reply = Ask::new(&name, "A").edns(1232).of(dns.at);
    assert_eq!((reply.status(), reply.answers.len()), ("SERVFAIL", 0));
    let line = dns.server.wait_for_log("a label has more than 63 octets", Duration::from_secs(5));
    assert!(line.contains("...") && line.len() < 2_000, "{} octets: {line}", line.len());
    assert_eq!(asked(&upstream), [""; 0]);
}

/// The log shows the beginning of a long text that is no record.
#[test]
fn invalid_record_text_is_shortened() {
    let text = "{{ .Name }} 60 IN A ".to_owned() + &"{{ .Name }}".repeat(40);
    let dns = Dns::start(&format!("errors\ntemplate IN A . {{\nanswer \"{text}\"\n}}"));
    let reply = Ask::new(&("s.".repeat(100) + "example"), "A").of(dns.at);
    assert_eq!((reply.status(), reply.answers.len()), ("SERVFAIL", 0));
    let line = dns.server.wait_for_log("is not a record", Duration::from_secs(5));
    assert!(line.contains("...") && line.len() < 3_000, "{} octets: {line}", line.len());
}

/// A silent upstream is logged the same with and without `minimal`.
#[test]
fn silent_upstream_with_steps() {
    let silent = Upstream::start(fresh_ip(), |_| Action::Silent);
    let failure = |steps: &str| {
        let dns = Dns::start(&format!("errors\n{steps}\nforward . {}", silent.word()));
        let reply = Ask::new("x.example", "A").edns(1232).timeout(Duration::from_secs(7)).of(dns.at);
        let line = dns.server.wait_for_log("plugin/errors: 2 x.example. A: ", Duration::from_secs(5));
        let why = line.split("x.example. A: ").nth(1).expect("it was waited for").to_owned();
        (reply.status(), reply.extended_error(), why.replace(|c: char| c.is_ascii_digit(), ""))
    };
    assert_eq!(failure("minimal"), failure(""));
}

#[test]
fn rules_apply_from_top_to_bottom() {
    let ip = fresh_ip();
    let upstream = Upstream::start(fresh_ip(), upstream);
    let dns = Dns::start_on(
        ip,
        &format!(
            "prometheus {ip}:9153\nloadbalance\nrewrite continue ttl regex .* 5-\nforward . {}\nacl {{\nallow net 127.0.0.0/8 type A\nfilter type AAAA\nblock type TXT net 192.0.2.0/24\ndrop type MX\nblock\n}}",
            upstream.word(),
        ),
    );
    for (rtype, status, ede) in
        [("A", "NOERROR", None), ("AAAA", "NOERROR", Some(17)), ("TXT", "REFUSED", Some(15))]
    {
        let reply = Ask::new("x.example", rtype).edns(1232).of(dns.at);
        assert_eq!(reply.status(), status, "{rtype}");
        assert_eq!(reply.extended_error().map(|(code, _)| code), ede, "{rtype}");
        assert_eq!(reply.answers.len(), usize::from(rtype == "A"), "{rtype}");
    }
    let dropped = Ask::new("x.example", "MX").timeout(Duration::from_millis(300)).try_of(dns.at);
    assert!(dropped.is_err(), "no client is answered");
    let mut stream = Connection::open(dns.at, Duration::from_secs(5)).unwrap();
    for _ in 0..100 {
        stream.send(&Ask::new("x.example", "MX").bytes()).unwrap();
    }
    stream.send(&Ask::new("x.example", "TXT").bytes()).unwrap();
    assert_eq!(stream.message().unwrap().rcode(), 5, "the connection goes on");
    assert_eq!(asked(&upstream), ["x.example. 1"]);
    let metrics = Metrics::of((ip, 9153).into());
    for (what, count) in [("allowed", 1.0), ("filtered", 1.0), ("blocked", 2.0), ("dropped", 101.0)] {
        assert_eq!(metrics.count(&format!("coredns_acl_{what}_requests_total"), &[]), count, "{what}");
    }
}

/// `header` sets and clears flags in queries and in replies.
#[test]
fn flags_change_in_both_directions() {
    let (dns, upstream) = dns("header {\nquery clear rd\nresponse set aa\nresponse clear ra rd\n}");
    for _ in 0..2 {
        let reply = ask(dns.at, "x.example", "A");
        assert_eq!(reply.flag_names(), "qr aa");
    }
    assert!(upstream.asked().iter().all(|asked| asked.bytes[2] & 1 == 0), "RD is not sent");
}

/// Rules clear RD in the query, and the client gets its own RD back.
#[test]
fn answers_without_rd_are_cached() {
    let (dns, upstream) = dns("header {\nquery clear rd\n}");
    for (rd, flags) in [(true, "qr rd ra"), (false, "qr ra"), (true, "qr rd ra")] {
        let reply = Ask::new("x.example", "A").rd(rd).of(dns.at);
        assert_eq!((reply.answers.len(), reply.flag_names().as_str()), (1, flags));
    }
    assert_eq!(asked(&upstream), ["x.example. 1"], "one answer for all: all are looked up without RD");
}

#[test]
fn rd_is_always_the_clients() {
    let upstream = Upstream::start(fresh_ip(), upstream);
    let dns = Dns::start(&format!(
        "header {{\nquery set rd\n}}\nacl acl.example {{\nblock\n}}\n\
         template IN A template.example {{\nanswer \"{{{{ .Name }}}} 60 IN A 192.0.2.7\"\n}}\n\
         hosts {{\n192.0.2.8 hosts.example\nfallthrough\n}}\nforward servfail.example 127.0.0.1:1\nforward example {}",
        upstream.word()
    ));
    for name in
        ["template.example", "hosts.example", "x.example", "servfail.example", "acl.example", "no plugin"]
    {
        for rd in [true, false] {
            let reply = Ask::new(name, "A").rd(rd).of(dns.at);
            assert_eq!(reply.flags & 0x0100 != 0, rd, "{name} {}", reply.status());
        }
    }
    assert!(upstream.asked().iter().all(|asked| asked.bytes[2] & 1 == 1), "upstreams get RD");
    assert_eq!(asked(&upstream).len(), 2);
}

/// ANY is answered, whatever is configured below it.
#[test]
fn any_precedes_other_directives() {
    let (dns, upstream) = dns("any\nacl {\nblock type ANY\n}\nrewrite type ANY A");
    for name in ["x.example", "X.other.Example"] {
        let reply = ask(dns.at, name, "ANY");
        assert_eq!((reply.status(), reply.flag_names().as_str()), ("NOERROR", "qr rd"));
        assert_eq!(reply.short(), [r#""ANY obsoleted" "See RFC 8482""#]);
    }
    assert!(upstream.asked().is_empty());
    assert_eq!(ask(dns.at, "x.example", "A").answers.len(), 1, "other types pass");
}

/// Positive answers are minimal.
#[test]
fn minimal_keeps_denials_whole() {
    let (dns, _upstream) = dns("minimal");
    for _ in 0..2 {
        let reply = ask(dns.at, "x.example", "A");
        assert_eq!((reply.answers.len(), reply.authorities.len(), reply.additionals.len()), (1, 0, 0));
        let reply = ask(dns.at, "nx.example", "A");
        let soas: Vec<String> = reply.authorities.iter().map(|rr| rr.name.clone()).collect();
        assert_eq!((reply.status(), soas), ("NXDOMAIN", vec!["example.".to_owned()]));
        let glue: Vec<String> = reply.additionals.iter().map(|rr| rr.data.clone()).collect();
        assert_eq!(glue, ["192.0.2.53"]);
    }
}

/// Directives, the client's query name, and the stale name that its answer needs.
const STALE: &[(&str, &str, &str)] = &[
    ("minimal", "x.example", "x.example."),
    ("rewrite name exact old.example new.example", "old.example", "new.example."),
    // Evaluated again when the alias is known.
    ("rewrite cname exact there.example. here.example.", "cname-there.example", "here.example."),
];

/// It is marked as stale and then fetched again.
#[test]
fn stale_answer_below_a_step() {
    for (steps, name, stale) in STALE {
        for tcp in [false, true] {
            steadily(|| {
                let upstream = Upstream::start(fresh_ip(), |asked| match asked.name.strip_prefix("cname-") {
                    Some(target) => Action::answer(&format!("{} 300 IN CNAME {target}", asked.name)),
                    None => Action::answer(&format!("{} 1 IN A 192.0.2.1", asked.name)),
                });
                let cache = "cache {\nsuccess 9984 3600 1\nserve_stale 1h immediate\n}";
                let dns = Dns::start(&format!("{steps}\n{cache}\nforward . {}", upstream.word()));
                // The stale name is cached for a second: it is queried directly or through the
                // client's name.
                let own = if name.starts_with("cname") { stale } else { name };
                assert_eq!(ask(dns.at, own, "A").status(), "NOERROR");
                expire(&dns, &upstream);
                upstream.answer_by(|asked| match asked.name.strip_prefix("cname-") {
                    Some(target) => Action::answer(&format!("{} 300 IN CNAME {target}", asked.name)),
                    None => Action::answer(&format!("{} 300 IN A 192.0.2.2", asked.name)),
                });
                let query = Ask::new(name, "A");
                let reply = if tcp { query.tcp() } else { query }.of(dns.at);
                let address =
                    reply.answers.iter().find(|rr| rr.rtype == 1).map(|rr| (rr.data.as_str(), rr.ttl));
                assert_eq!(address, Some(("192.0.2.1", 0)), "{steps}: stale, and not to be kept");
                eventually("what is fetched again", Duration::from_secs(5), || {
                    (upstream.count(stale) == 2).then_some(())
                });
                eventually("the answer afterwards", Duration::from_secs(5), || {
                    let reply = ask(dns.at, own, "A");
                    (reply.answers[0].data == "192.0.2.2").then_some(())
                });
                assert_eq!(upstream.count(stale), 2, "{steps}: once");
            });
        }
    }
}

/// Addresses are in turn, by weight or nearest first.
#[test]
fn loadbalance_orders_addresses() {
    let hosts: String = (1..=4).map(|n| format!("192.0.2.{n} x.example\n")).collect();
    let first = |dns: &Dns| ask(dns.at, "x.example", "A").answers[0].data.clone();
    let dns_with = |policy: &str| Dns::start(&format!("loadbalance {policy}\nhosts {{\n{hosts}}}"));
    let dns = dns_with("round_robin");
    let seen: std::collections::BTreeSet<String> = (0..100).map(|_| first(&dns)).collect();
    assert_eq!(seen.len(), 4, "{seen:?}");
    let directory = tests::tempdir();
    let file = directory.path().join("weights");
    std::fs::write(&file, "x.example\n192.0.2.3 255\n").unwrap();
    let dns = dns_with(&format!("weighted {} {{\nreload 1s\n}}", file.display()));
    dns.server.wait_for_log("Successfully reloaded weight file", Duration::from_secs(5));
    let heavy = |dns: &Dns| (0..100).filter(|_| first(dns) == "192.0.2.3").count();
    assert!(heavy(&dns) > 80, "{} of 100 with a weight of 255 to 3", heavy(&dns));
    // Each cause is logged, and the file's previous weights stay.
    std::fs::remove_file(&file).unwrap();
    dns.server.wait_for_log("No such file", Duration::from_secs(5));
    std::fs::write(&file, "x.example\n192.0.2.3 0\n").unwrap();
    dns.server.wait_for_log("line 2: a weight is 1 to 255; the weights stay", Duration::from_secs(5));
    assert!(heavy(&dns) > 80, "{} of 100 with the weights that stay", heavy(&dns));
    let dns = dns_with("round_robin {\nprefer 192.0.2.2/32\n}");
    assert!((0..20).all(|_| first(&dns) == "192.0.2.2"));
    // Weights are found by the name in the client's response: `loadbalance` acts after `rewrite`
    // has restored it.
    std::fs::write(&file, "old.example\n192.0.2.3 255\n").unwrap();
    let dns = Dns::start(&format!(
        "loadbalance weighted {} {{\nreload 1s\n}}\nrewrite name exact old.example x.example answer auto\nhosts {{\n{hosts}}}",
        file.display()
    ));
    dns.server.wait_for_log("Successfully reloaded weight file", Duration::from_secs(5));
    let first = || ask(dns.at, "old.example", "A").answers[0].clone();
    assert_eq!(first().name, "old.example.");
    let heavy = (0..100).filter(|_| first().data == "192.0.2.3").count();
    assert!(heavy > 80, "{heavy} of 100 with a weight of 255 to 3");
}
