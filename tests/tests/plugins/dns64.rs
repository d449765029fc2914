//! `dns64` with an upstream and the cache.

use std::time::Duration;

use tests::{Action, Ask, Asked, Dns, Metrics, Says, Upstream, ask, eventually, fresh_ip};

/// `four.example` has an A record, `silent.example` an A record and no answer to AAAA,
/// `broken.example` neither AAAA nor an answer to A; the name of 192.0.2.4 has a PTR record.
fn upstream(asked: &Asked) -> Action {
    const SOA: &str = "example. 40 IN SOA ns.example. host.example. 1 7200 900 86400 40";
    Action::Reply(match (asked.name.as_str(), asked.rtype) {
        ("silent.example.", 28) | ("broken.example.", 1) => return Action::Silent,
        ("four.example." | "silent.example.", 1) => {
            Says::answer(&format!("{} 300 IN A 192.0.2.4", asked.name))
        }
        ("four.example." | "broken.example.", _) => Says::nodata(SOA),
        ("4.2.0.192.in-addr.arpa.", 12) => Says::answer(&format!("{} 60 IN PTR four.example.", asked.name)),
        _ => Says::nxdomain(SOA),
    })
}

fn start() -> (Dns, Upstream) {
    let (ip, upstream) = (fresh_ip(), Upstream::start(fresh_ip(), upstream));
    let directives = "errors\ndns64 {\nallow_ipv4\n}\ncache 300";
    let dns =
        Dns::start_on(ip, &format!("prometheus {ip}:9153\n{directives}\nforward . {}", upstream.word()));
    (dns, upstream)
}

fn translated(dns: &Dns) -> f64 {
    let metrics = Metrics::of((dns.at.ip(), 9153).into());
    metrics.count("coredns_dns64_requests_translated_total", &[])
}

/// Both answers are cached as received; a translated answer has the time that is left.
#[test]
fn cached_answers_are_translated() {
    let (dns, upstream) = start();
    let mut asked = 0.0;
    let mut ttl = || {
        let reply = ask(dns.at, "Four.example", "AAAA");
        asked += 1.0;
        assert_eq!(reply.status(), "NOERROR");
        assert_eq!(reply.short(), ["64:ff9b::c000:204"]);
        assert_eq!(reply.answers[0].name, "Four.example.");
        reply.answers[0].ttl
    };
    let first = ttl();
    assert!((20..=40).contains(&first), "{first}");
    let later = eventually("less time", Duration::from_secs(8), || Some(ttl()).filter(|&ttl| ttl != first));
    assert!((20..first).contains(&later), "{later} after {first}");
    assert_eq!(ask(dns.at, "four.example", "A").short(), ["192.0.2.4"]);
    let received: Vec<u16> = upstream.asked_for("four.example.").iter().map(|asked| asked.rtype).collect();
    assert_eq!(received, [28, 1]);
    assert_eq!(translated(&dns), asked);
    assert_eq!(ask(dns.at, "absent.example", "AAAA").status(), "NXDOMAIN");
    assert_eq!(translated(&dns), asked);
}

/// RFC 6147, section 5.1.3: after a timeout A decides, here from the cache.
#[test]
fn silence_is_no_aaaa() {
    let (dns, _upstream) = start();
    assert_eq!(ask(dns.at, "silent.example", "A").short(), ["192.0.2.4"]);
    let reply = Ask::new("silent.example", "AAAA").timeout(Duration::from_secs(8)).of(dns.at);
    assert_eq!((reply.status(), reply.short()), ("NOERROR", vec!["64:ff9b::c000:204"]));
}

/// The client gets the reason why A has no answer, and the log, too.
#[test]
fn failure_of_a_is_logged() {
    let (dns, _upstream) = start();
    let reply = Ask::new("broken.example", "AAAA").edns(1232).timeout(Duration::from_secs(8)).of(dns.at);
    assert_eq!(reply.status(), "SERVFAIL");
    assert!(
        reply.edns.as_ref().is_some_and(|edns| edns.options.iter().any(|(code, _)| *code == 15)),
        "{reply:?}"
    );
    dns.server.wait_for_log("broken.example. AAAA", Duration::from_secs(5));
}

/// RFC 6147, section 5.3.1.
#[test]
fn reverse_name_is_an_alias() {
    let (dns, _upstream) = start();
    let name = "4.0.2.0.0.0.0.c.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.b.9.f.f.4.6.0.0.ip6.arpa";
    for _ in 0..2 {
        assert_eq!(ask(dns.at, name, "PTR").short(), ["4.2.0.192.in-addr.arpa.", "four.example."]);
    }
    let absent = name.replacen('4', "5", 1);
    assert_eq!(ask(dns.at, &absent, "PTR").status(), "NXDOMAIN");
}
