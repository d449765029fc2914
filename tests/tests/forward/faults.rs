//! Upstreams that are dead, slow, forged, half-closing or hostile: the answer, and its time limit.

use std::thread::scope;
use std::time::Duration;

use tests::{Action, Ask, Asked, Dns, Metrics, Says, Upstream, eventually, fresh_ip, steadily};

use super::good;

/// A refusing upstream is a quick SERVFAIL.
#[test]
fn refusing_upstream_is_servfail() {
    steadily(|| {
        let mut upstream = Upstream::start(fresh_ip(), good);
        upstream.stop();
        let dns = Dns::start(&format!("forward . {}", upstream.word()));
        let reply = dns.ask("x.example");
        assert_eq!(reply.status(), "SERVFAIL");
        assert!(reply.elapsed < Duration::from_secs(1), "{:?}", reply.elapsed);
    });
}

/// A silent upstream is a SERVFAIL before clients give up.
#[test]
fn silent_upstream_is_servfail() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), |_| Action::Silent);
        let dns = Dns::start(&format!("forward . {}", upstream.word()));
        let reply = Ask::new("x.example", "A").edns(1232).timeout(Duration::from_secs(8)).of(dns.at);
        assert_eq!(reply.status(), "SERVFAIL");
        assert!(reply.elapsed < Duration::from_secs(5), "{:?}", reply.elapsed);
        assert!(upstream.count("x.example.") >= 2, "a lost datagram would not have been noticed");
        assert!(reply.extended_error().is_some(), "an EDNS client gets the reason (RFC 8914)");
    });
}

#[test]
fn lost_datagram_is_repeated_soon() {
    steadily(|| {
        let seen = std::sync::atomic::AtomicUsize::new(0);
        let upstream = Upstream::start(fresh_ip(), move |asked| {
            match asked.name == "lost.example."
                && seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0
            {
                true => Action::Silent,
                false => good(asked),
            }
        });
        let dns = Dns::start(&format!("forward . {}", upstream.word()));
        let reply = dns.ask("lost.example");
        assert_eq!(reply.short(), ["192.0.2.1"]);
        assert!(reply.elapsed < Duration::from_millis(450), "{:?}", reply.elapsed);
    });
}

/// A silent first upstream costs at most a third of a second.
#[test]
fn silent_first_upstream_costs_little() {
    steadily(|| {
        let silent = Upstream::start(fresh_ip(), |_| Action::Silent);
        let right = Upstream::start(fresh_ip(), good);
        let dns =
            Dns::start(&format!("forward . {} {} {{\npolicy sequential\n}}", silent.word(), right.word()));
        let mut took = [0; 5].map(|_| Duration::ZERO);
        for (n, took) in took.iter_mut().enumerate() {
            let reply = dns.ask(&format!("n{n}.example"));
            assert_eq!(reply.short(), ["192.0.2.1"]);
            *took = reply.elapsed;
        }
        took.sort();
        // The promised bound is 0.35 s for most queries; a busy machine may delay one or two.
        assert!(took[2] <= Duration::from_millis(350) && took[4] < Duration::from_millis(450), "{took:?}");
    });
}

/// A dead first upstream is passed over at once.
#[test]
fn dead_first_upstream_is_passed_over() {
    steadily(|| {
        let mut dead = Upstream::start(fresh_ip(), good);
        dead.stop();
        let right = Upstream::start(fresh_ip(), good);
        let dns =
            Dns::start(&format!("forward . {} {} {{\npolicy sequential\n}}", dead.word(), right.word()));
        let reply = dns.ask("x.example");
        assert_eq!(reply.short(), ["192.0.2.1"]);
        assert!(reply.elapsed < Duration::from_millis(450), "{:?}", reply.elapsed);
    });
}

#[test]
fn a_slow_reply_is_waited_for() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), |asked| good(asked).after(Duration::from_millis(1500)));
        let dns = Dns::start(&format!("forward . {}", upstream.word()));
        let reply = dns.ask("slow.example");
        assert_eq!(reply.short(), ["192.0.2.1"]);
        assert!(reply.elapsed < Duration::from_secs(3), "{:?}", reply.elapsed);
    });
}

#[test]
fn late_reply_fills_the_cache() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), |asked| good(asked).after(Duration::from_millis(900)));
        let (ip, word) = (fresh_ip(), upstream.word());
        let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\ncache\nforward . {word}"));
        Ask::new("late.example", "A").timeout(Duration::from_millis(100)).try_of(dns.at).unwrap_err();
        eventually("the late reply in the cache", Duration::from_secs(10), || {
            let entries =
                Metrics::of((ip, 9153).into()).count("coredns_cache_entries", &[("type", "success")]);
            (entries >= 1.0).then_some(())
        });
        let asked = upstream.count("late.example.");
        let reply = dns.ask("late.example");
        assert_eq!(reply.short(), ["192.0.2.1"]);
        assert!(reply.elapsed < Duration::from_millis(300), "{:?}", reply.elapsed);
        assert_eq!(upstream.count("late.example."), asked);
    });
}

/// A reply to the query with a single record with this owner, type and data.
fn one_record(asked: &Asked, owner: &[u8], rtype: u16, data: &[u8]) -> Action {
    let question = &asked.bytes[12..12 + asked.name.len() + 1 + 4];
    let mut octets = asked.bytes[..2].to_vec();
    octets.extend([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
    octets.extend(question);
    octets.extend(owner);
    octets.extend(rtype.to_be_bytes());
    octets.extend([0, 1, 0, 0, 1, 0x2c]);
    octets.extend(u16::try_from(data.len()).expect("a short record").to_be_bytes());
    octets.extend(data);
    Action::Octets(octets)
}

/// A reply with an invalid record is neither relayed nor cached.
#[test]
fn invalid_record_is_not_relayed() {
    type Row = (&'static str, &'static [u8], u16, &'static [u8]);
    const OWNER: &[u8] = &[0xc0, 12];
    // The offset behind the question "x.example.": header, name, type and class.
    const HERE: u8 = 12 + 11 + 4;
    const ROWS: [Row; 10] = [
        ("an owner that points to itself", &[0xc0, HERE], 1, &[192, 0, 2, 66]),
        ("an A of three octets", OWNER, 1, &[192, 0, 2]),
        ("an A of sixteen octets", OWNER, 1, &[7; 16]),
        ("an AAAA of four octets", OWNER, 28, &[7; 4]),
        ("an MX that points to nowhere", OWNER, 15, &[0, 5, 0xc0, 0xff]),
        ("a CNAME that points to itself", OWNER, 5, &[0xc0, HERE + 12]),
        ("an NS without end", OWNER, 2, &[0x3f, b'a']),
        ("an SOA without numbers", OWNER, 6, &[0, 0]),
        ("an SRV without target", OWNER, 33, &[0, 1, 0, 2, 0, 53]),
        ("a TSIG", &[0], 250, &[0; 16]),
    ];
    for (what, owner, rtype, data) in ROWS {
        let false_reply = move |asked: &Asked| one_record(asked, owner, rtype, data);
        let impostor = Upstream::start(fresh_ip(), false_reply);
        let alone = Dns::start(&format!("cache\nforward . {}", impostor.word()));
        for _ in ["miss", "still none"] {
            let reply = alone.ask("x.example");
            assert_eq!((reply.status(), reply.answers.len()), ("SERVFAIL", 0), "{what}");
        }
        let right = Upstream::start(fresh_ip(), good);
        let both = Dns::start(&format!(
            "cache\nforward . {} {} {{\npolicy sequential\n}}",
            impostor.word(),
            right.word()
        ));
        assert_eq!(both.ask("x.example").short(), ["192.0.2.1"], "{what}: the other upstream is asked");
    }
}

#[test]
fn mismatched_replies_are_ignored() {
    steadily(|| {
        // The first upstream lies over UDP; the second does not.
        let bogus = || Says::answer("x.example. 300 IN A 203.0.113.66");
        // The last reply matches the question, so the query is repeated at once over TCP, as after
        // truncation.
        let false_replies: [(&str, Action, usize); 6] = [
            ("another id", Action::WrongId(bogus()), 1),
            ("another question", Action::WrongQuestion("y.example".to_owned(), bogus()), 1),
            ("another port", Action::WrongPort(bogus()), 1),
            ("garbage", Action::Octets(vec![0xff; 40]), 1),
            ("three octets", Action::Octets(vec![1, 2, 3]), 1),
            ("half a reply", Action::Half(bogus()), 2),
        ];
        for (what, false_reply, asked) in false_replies {
            let impostor = Upstream::start(fresh_ip(), move |_| false_reply.clone());
            let right = Upstream::start(fresh_ip(), good);
            let dns = Dns::start(&format!(
                "cache\nforward . {} {} {{\npolicy sequential\n}}",
                impostor.word(),
                right.word()
            ));
            for times in ["miss", "hit"] {
                assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"], "{what}: {times}");
                // Answered before the query would be repeated to the first upstream.
                assert_eq!((impostor.total(), right.total()), (asked, 1), "{what}: {times}");
            }
        }
    });
}

/// An upstream with false replies only is a SERVFAIL and not a wrong answer.
#[test]
fn lying_upstream_is_servfail() {
    steadily(|| {
        let bogus = || Says::answer("x.example. 300 IN A 203.0.113.66");
        let false_replies = [
            Action::WrongId(bogus()),
            Action::WrongQuestion("y.example".to_owned(), bogus()),
            Action::Octets(vec![0; 100]),
        ];
        scope(|scope| {
            for false_reply in false_replies {
                scope.spawn(move || {
                    let impostor = Upstream::start(fresh_ip(), move |_| false_reply.clone());
                    let dns = Dns::start(&format!("cache\nforward . {}", impostor.word()));
                    let reply = Ask::new("x.example", "A").timeout(Duration::from_secs(8)).of(dns.at);
                    assert_eq!((reply.status(), reply.answers.len()), ("SERVFAIL", 0));
                    assert!(reply.elapsed < Duration::from_secs(5), "{:?}", reply.elapsed);
                });
            }
        });
    });
}

#[test]
fn forged_replies_hide_no_answer() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), |asked| {
            Action::Forge(
                100,
                Says::answer(&format!("{} 300 IN A 203.0.113.66", asked.name)),
                Box::new(good(asked)),
            )
        });
        let dns = Dns::start(&format!("forward . {}", upstream.word()));
        for n in 0..10 {
            let reply = dns.ask(&format!("n{n}.example"));
            assert_eq!(reply.short(), ["192.0.2.1"]);
            assert!(reply.elapsed < Duration::from_millis(300), "{:?}", reply.elapsed);
        }
    });
}

#[test]
fn broken_tcp_upstreams_are_passed_over() {
    steadily(|| {
        let forged = || Says::answer("x.example. 300 IN A 203.0.113.66");
        let faults: [(&str, Action); 5] = [
            ("half a reply", Action::Half(forged())),
            ("a close", Action::Close),
            ("a reset", Action::Reset),
            ("another id", Action::WrongId(forged())),
            ("garbage", Action::Octets(b"\x00\x05junk!".to_vec())),
        ];
        for (what, fault) in faults {
            let broken = Upstream::start(fresh_ip(), move |_| fault.clone());
            let right = Upstream::start(fresh_ip(), good);
            let dns = Dns::start(&format!(
                "forward . {} {} {{\nforce_tcp\npolicy sequential\n}}",
                broken.word(),
                right.word()
            ));
            let reply = dns.ask("x.example");
            assert_eq!(reply.short(), ["192.0.2.1"], "{what}");
            assert!(reply.elapsed < Duration::from_secs(2), "{what}: {:?}", reply.elapsed);
            assert!(broken.total() >= 1, "{what}");
        }
    });
}
