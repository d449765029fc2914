//! `cache`: what is cached, for how long, and the reply to a query after expiry.

use std::thread::sleep;
use std::time::Duration;

use tests::{Action, Ask, Dns, Metrics, Says, Upstream, ask, eventually, fresh_ip, now, steadily};

use super::{SOA, expire, good, short_lived};

/// A hit needs no upstream, and its TTL counts down.
#[test]
fn hit_needs_no_upstream() {
    let upstream = Upstream::start(fresh_ip(), good);
    let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
    assert_eq!(ask(dns.at, "x.example", "A").answers[0].ttl, 300);
    let later = eventually("a lower TTL", Duration::from_secs(4), || {
        let ttl = ask(dns.at, "X.Example", "A").answers[0].ttl;
        (ttl < 300).then_some(ttl)
    });
    assert!(later >= 297, "{later}");
    assert_eq!(upstream.count("x.example."), 1);
    assert_eq!(
        Ask::new("x.example", "A").tcp().of(dns.at).short(),
        ["192.0.2.1"],
        "one cache for all transports"
    );
    assert_eq!(upstream.count("x.example."), 1);
}

/// TTLs are clamped to the configured bounds.
#[test]
fn ttls_are_clamped() {
    let upstream = Upstream::start(fresh_ip(), |asked| {
        let ttl = asked.name.split('.').next().unwrap();
        Action::answer(&format!("{} {ttl} IN A 192.0.2.1", asked.name))
    });
    let table = [
        ("cache", "86400", 3600),
        ("cache", "1", 5),
        ("cache 60", "300", 60),
        ("cache {\nsuccess 9984 100 50\n}", "10", 50),
    ];
    for (cache, ttl, handed_out) in table {
        let dns = Dns::start(&format!("{cache}\nforward . {}", upstream.word()));
        for _ in ["miss", "hit"] {
            let found = ask(dns.at, &format!("{ttl}.example"), "A").answers[0].ttl;
            assert!(found == handed_out || found == handed_out - 1, "{cache}, {ttl}: {found}");
        }
    }
}

#[test]
fn each_record_has_its_ttl() {
    let upstream = Upstream::start(fresh_ip(), |asked| {
        Action::answer(&format!(
            "{} 600 IN CNAME target.example.\ntarget.example. 60 IN A 192.0.2.1",
            asked.name
        ))
    });
    let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
    for _ in ["miss", "hit"] {
        let reply = ask(dns.at, "x.example", "A");
        assert!(reply.answers[0].ttl >= 598 && reply.answers[1].ttl <= 60, "{:?}", reply.rows());
    }
}

#[test]
fn denials_use_the_soa_minimum() {
    let upstream = Upstream::start(fresh_ip(), |asked| match asked.name.starts_with("none") {
        true => Action::nxdomain(SOA),
        false => Action::Reply(Says::nodata(SOA)),
    });
    let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
    for (name, status) in [("none.example", "NXDOMAIN"), ("nodata.example", "NOERROR")] {
        for _ in ["miss", "hit"] {
            let reply = ask(dns.at, name, "A");
            assert_eq!((reply.status(), reply.answers.len()), (status, 0));
            // RFC 2308 section 5: the smaller of the SOA's TTL (300) and its MINIMUM (20).
            assert!(reply.authorities[0].ttl <= 20, "{}", reply.authorities[0]);
        }
        assert_eq!(upstream.count(&format!("{name}.")), 1);
    }
}

#[test]
fn uncacheable_replies_are_not_stored() {
    let upstream = Upstream::start(fresh_ip(), |asked| match asked.name.split('.').next().unwrap() {
        "servfail" => Action::rcode(2),
        "refused" => Action::rcode(5),
        "nosoa" => Action::rcode(3),
        "scoped" => {
            let answer = Says::answer(&format!("{} 300 IN A 192.0.2.1", asked.name));
            Action::Reply(answer.option(8, &[0, 1, 24, 24, 198, 51, 100]))
        }
        _ => good(asked),
    });
    let dns = Dns::start(&format!("cache {{\nservfail 0\n}}\nforward . {}", upstream.word()));
    for name in ["servfail", "refused", "nosoa"] {
        ask(dns.at, &format!("{name}.example"), "A");
        ask(dns.at, &format!("{name}.example"), "A");
        assert_eq!(upstream.count(&format!("{name}.example.")), 2, "{name}");
    }
    let subnet = [0, 1, 24, 0, 198, 51, 100];
    for _ in 0..2 {
        assert_eq!(Ask::new("scoped.example", "A").option(8, &subnet).of(dns.at).status(), "NOERROR");
    }
    assert_eq!(upstream.count("scoped.example."), 2, "an answer for one subnet is not for all (RFC 7871)");
    Ask::new("norecursion.example", "A").rd(false).of(dns.at);
    ask(dns.at, "norecursion.example", "A");
    assert_eq!(upstream.count("norecursion.example."), 2, "RD=0 fills nothing");
}

/// A SERVFAIL is cached for its time and hides no good answer.
#[test]
fn servfail_is_cached_briefly() {
    let upstream = Upstream::start(fresh_ip(), |_| Action::rcode(2));
    let dns = Dns::start(&format!("cache {{\nservfail 30s\n}}\nforward . {}", upstream.word()));
    for _ in 0..3 {
        assert_eq!(ask(dns.at, "x.example", "A").status(), "SERVFAIL");
    }
    assert_eq!(upstream.count("x.example."), 1);
}

#[test]
fn do_and_cd_have_own_entries() {
    let upstream = Upstream::start(fresh_ip(), good);
    let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
    let query = || Ask::new("x.example", "A");
    for _ in 0..2 {
        for query in [query(), query().dnssec_ok(), query().cd(), query().dnssec_ok().cd()] {
            assert_eq!(query.of(dns.at).status(), "NOERROR");
        }
    }
    assert_eq!(upstream.count("x.example."), 4);
}

#[test]
fn disable_and_zones_limit_the_cache() {
    let upstream = Upstream::start(fresh_ip(), |asked| match asked.name.starts_with("none") {
        true => Action::nxdomain(SOA),
        false => good(asked),
    });
    let table = [
        ("cache {\ndisable denial\n}", [("x.example", 1), ("none.example", 2)]),
        ("cache {\ndisable success example\n}", [("x.example", 2), ("x.other", 1)]),
        ("cache 3600 example", [("x.example", 1), ("x.other", 2)]),
    ];
    for (cache, rows) in table {
        upstream.forget();
        let dns = Dns::start(&format!("{cache}\nforward . {}", upstream.word()));
        for (name, count) in rows {
            ask(dns.at, name, "A");
            ask(dns.at, name, "A");
            assert_eq!(upstream.count(&format!("{name}.")), count, "{cache}: {name}");
        }
    }
}

/// A popular name is fetched again before it expires.
#[test]
fn popular_names_are_prefetched() {
    steadily(|| {
        let upstream =
            Upstream::start(fresh_ip(), |asked| Action::answer(&format!("{} 2 IN A 192.0.2.1", asked.name)));
        let ip = fresh_ip();
        let cache = "cache {\nsuccess 9984 3600 1\nprefetch 2 1m 90%\n}";
        let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\n{cache}\nforward . {}", upstream.word()));
        let started = now();
        upstream.answer_by(|asked| {
            Action::answer(&format!("{} 2 IN A 192.0.2.1", asked.name)).after(Duration::from_millis(60))
        });
        let mut asked = 0;
        while started.elapsed() < Duration::from_secs(4) {
            ask(dns.at, "x.example", "A");
            asked += 1;
            sleep(Duration::from_millis(20));
        }
        assert!(upstream.count("x.example.") >= 2);
        // Only the first query waited for the upstream.
        let metrics = Metrics::after_queries((ip, 9153).into(), asked);
        assert_eq!(metrics.count("coredns_cache_misses_total", &[]), 1.0);
        assert_eq!(metrics.count("coredns_cache_hits_total", &[]), asked as f64 - 1.0);
    });
}

#[test]
fn expired_answers_without_serve_stale() {
    let mut upstream = Upstream::start(fresh_ip(), short_lived);
    let dns =
        Dns::start(&format!("cache {{\nsuccess 9984 3600 1\nservfail 0\n}}\nforward . {}", upstream.word()));
    assert_eq!(ask(dns.at, "x.example", "A").status(), "NOERROR");
    expire(&dns, &upstream);
    upstream.stop();
    assert_eq!(ask(dns.at, "x.example", "A").status(), "SERVFAIL");
}

/// The stale answer is sent first and refreshed afterwards.
#[test]
fn serve_stale_immediate() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), short_lived);
        let cache = "cache {\nsuccess 9984 3600 1\nserve_stale 1h immediate\n}";
        let dns = Dns::start(&format!("{cache}\nforward . {}", upstream.word()));
        assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.1"]);
        expire(&dns, &upstream);
        upstream.answer_by(|asked| {
            Action::answer(&format!("{} 300 IN A 192.0.2.2", asked.name)).after(Duration::from_millis(60))
        });
        let reply = ask(dns.at, "x.example", "A");
        assert_eq!(
            (reply.short(), reply.answers[0].ttl),
            (vec!["192.0.2.1"], 0),
            "stale, and not to be kept"
        );
        assert!(reply.elapsed < Duration::from_millis(100), "{:?}", reply.elapsed);
        dns.sees("x.example", "192.0.2.2");
        assert_eq!(upstream.count("x.example."), 2, "one refresh");
    });
}

/// The upstream is queried first; a stale answer replaces its failure.
#[test]
fn serve_stale_verify() {
    steadily(|| {
        let mut upstream = Upstream::start(fresh_ip(), short_lived);
        let cache = "cache {\nsuccess 9984 3600 1\nserve_stale 1h verify\nservfail 0\n}";
        let dns = Dns::start(&format!("{cache}\nforward . {}", upstream.word()));
        assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.1"]);
        assert_eq!(ask(dns.at, "y.example", "A").short(), ["192.0.2.1"]);
        expire(&dns, &upstream);
        upstream.answer_by(|asked| Action::answer(&format!("{} 1 IN A 192.0.2.2", asked.name)));
        assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.2"], "fresh while the upstream answers");
        upstream.answer_by(|_| Action::Silent);
        let reply = ask(dns.at, "y.example", "A");
        assert_eq!(reply.short(), ["192.0.2.1"]);
        assert!(reply.elapsed < Duration::from_millis(2500), "{:?}", reply.elapsed);
        assert!((1..=30).contains(&reply.answers[0].ttl), "RFC 8767 section 4: 30 s, {}", reply.answers[0]);
        upstream.stop();
        let reply = ask(dns.at, "y.example", "A");
        assert_eq!(reply.short(), ["192.0.2.1"]);
        upstream.answer_by(|_| Action::nxdomain(SOA));
        upstream.restart();
        eventually("the name's end", Duration::from_secs(8), || {
            sleep(Duration::from_millis(50));
            (ask(dns.at, "y.example", "A").status() == "NXDOMAIN").then_some(())
        });
        assert_eq!(ask(dns.at, "y.example", "A").status(), "NXDOMAIN", "a name that is gone stays gone");
    });
}

#[test]
fn servfail_keeps_a_stale_answer() {
    let upstream = Upstream::start(fresh_ip(), short_lived);
    let cache = "cache {\nsuccess 9984 3600 1\nserve_stale 1h verify\n}";
    let dns = Dns::start(&format!("{cache}\nforward . {}", upstream.word()));
    assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.1"]);
    expire(&dns, &upstream);
    upstream.answer_by(|_| Action::rcode(2));
    for _ in 0..3 {
        assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.1"]);
    }
}

/// Only a positive answer replaces a preferred one.
#[test]
fn prefer_positive_yields_to_answers() {
    let upstream = Upstream::start(fresh_ip(), short_lived);
    let cache = "cache {\nsuccess 9984 3600 1\nserve_stale 1h verify\nserve_stale_policy prefer_positive\n}";
    let dns = Dns::start(&format!("{cache}\nforward . {}", upstream.word()));
    let names = ["alias", "referral", "nothing", "denial", "truncated", "refused", "answer"];
    for name in names {
        assert_eq!(ask(dns.at, &format!("{name}.example"), "A").short(), ["192.0.2.1"], "{name}");
    }
    expire(&dns, &upstream);
    upstream.answer_by(|asked| match asked.name.split('.').next().unwrap() {
        "alias" => Action::answer(&format!("{} 60 IN CNAME nowhere.example.", asked.name)),
        "referral" => Action::Reply(Says::default().authority("example. 60 IN NS ns.example.")),
        "nothing" => Action::Reply(Says::default()),
        "denial" => Action::nxdomain(SOA),
        "truncated" => {
            Action::Reply(Says::answer(&format!("{} 60 IN A 192.0.2.2", asked.name)).flags(0x0200))
        }
        "refused" => Action::rcode(5),
        _ => Action::answer(&format!("{} 60 IN A 192.0.2.2", asked.name)),
    });
    for name in names {
        let expected = if name == "answer" { "192.0.2.2" } else { "192.0.2.1" };
        for _ in ["asked for", "left alone"] {
            assert_eq!(ask(dns.at, &format!("{name}.example"), "A").short(), [expected], "{name}");
        }
    }
}

/// A good answer replaces an older denial permanently.
#[test]
fn good_answer_replaces_a_denial() {
    let upstream = Upstream::start(fresh_ip(), |_| {
        Action::nxdomain("example. 1 IN SOA ns.example. host.example. 1 7200 900 86400 1")
    });
    let cache = "cache {\ndenial 9984 1800 1\nserve_stale 1h verify\n}";
    let dns = Dns::start(&format!("{cache}\nforward . {}", upstream.word()));
    assert_eq!(ask(dns.at, "x.example", "A").status(), "NXDOMAIN");
    expire(&dns, &upstream);
    upstream.answer_by(good);
    upstream.forget();
    for _ in 0..4 {
        assert_eq!(ask(dns.at, "x.example", "A").short(), ["192.0.2.1"]);
    }
    assert_eq!(upstream.count("x.example."), 1, "the first refreshes, the others are hits");
}
