//! Attacks that succeeded against CoreDNS or its DNS library, one test each, named after its
//! advisory. Omitted are those on components that are not built here (DoH, DoQ, gRPC, TSIG,
//! transfer, acl, etcd, kubernetes).

use std::collections::HashSet;
use std::io::Write as _;
use std::net::TcpStream;
use std::thread::scope;
use std::time::Duration;

use tests::{
    Action, Ask, Connection, Dns, Says, Upstream, ask, eventually, exchange_udp, fresh_ip, header, now,
    steadily,
};

use super::good;

/// An upstream's reply poisons no other name.
#[test]
fn cure53_dns_01_003_and_tob_cdns_8() {
    let upstream = Upstream::start(fresh_ip(), |asked| match asked.name.as_str() {
        "bait.example." => Action::Reply(
            Says::answer("bait.example. 300 IN A 192.0.2.7\nbank.example. 300 IN A 203.0.113.66")
                .authority("example. 300 IN NS ns.evil.example.")
                .additional("bank.example. 300 IN A 203.0.113.66"),
        ),
        "lie.example." => {
            Action::WrongQuestion("bank.example".into(), Says::answer("bank.example. 300 IN A 203.0.113.66"))
        }
        _ => good(asked),
    });
    let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
    dns.ask("bait.example");
    assert_eq!(Ask::new("lie.example", "A").timeout(Duration::from_secs(7)).of(dns.at).status(), "SERVFAIL");
    assert_eq!(dns.ask("bank.example").short(), ["192.0.2.1"]);
}

/// Silent TCP clients stall no other client.
#[test]
fn cve_2017_15133_silent_tcp_clients() {
    steadily(|| {
        let dns = Dns::start("whoami");
        let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(dns.at).unwrap()).collect();
        // Some send part of a message, some never read their replies.
        for (n, mut stream) in silent.iter().enumerate() {
            let query = Ask::new("a.example", "A").bytes();
            let framed = [&(query.len() as u16).to_be_bytes()[..], &query].concat();
            match n % 3 {
                0 => drop(stream.write_all(&framed[..3])),
                1 => (0..50).for_each(|_| drop(stream.write_all(&framed))),
                _ => {}
            }
        }
        for _ in 0..20 {
            let reply = Ask::new("a.example", "A").tcp().of(dns.at);
            assert!(reply.elapsed < Duration::from_secs(1), "{:?}", reply.elapsed);
        }
    });
}

/// The IDs of upstream queries follow no pattern.
#[test]
fn cve_2019_19794_unpredictable_ids() {
    let upstream = Upstream::start(fresh_ip(), good);
    let dns = Dns::start(&format!("forward . {}", upstream.word()));
    for n in 0..200 {
        dns.ask(&format!("n{n}.example"));
    }
    let ids: Vec<u16> = upstream.asked().iter().map(|asked| asked.id).collect();
    let steps: HashSet<u16> = ids.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    let different: HashSet<&u16> = ids.iter().collect();
    assert!(different.len() > 190 && steps.len() > 190, "{} ids, {} steps", different.len(), steps.len());
    let high = ids.iter().filter(|id| **id >= 1 << 15).count();
    assert!((60..140).contains(&high), "{high} of 200 in the upper half");
}

/// The true reply is still accepted after a forged one.
#[test]
fn cve_2023_28452_forged_reply() {
    let upstream = Upstream::start(fresh_ip(), |asked| {
        let forged = || Says::answer(&format!("{} 300 IN A 203.0.113.66", asked.name));
        let first = Action::WrongQuestion("other.example".into(), forged());
        let burst = Action::Forge(50, forged(), Box::new(good(asked)));
        Action::Both(Box::new(first), Box::new(burst.after(Duration::from_millis(20))))
    });
    let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
    for n in 0..5 {
        assert_eq!(dns.ask(&format!("n{n}.example")).short(), ["192.0.2.1"]);
    }
}

/// Equal queries in flight are one, so a birthday attack gains nothing.
#[test]
fn cve_2023_30464_equal_queries() {
    let upstream = Upstream::start(fresh_ip(), |asked| good(asked).after(Duration::from_secs(1)));
    let dns = Dns::start(&format!("multisocket 4\ncache\nforward . {}", upstream.word()));
    scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| assert_eq!(dns.ask("same.example").short(), ["192.0.2.1"]));
        }
    });
    // One query, and its hedge.
    assert!(upstream.count("same.example.") <= 2, "{} ids to guess", upstream.count("same.example."));
}

/// Queries that differ in client subnet, DO and CD are limited in number as well.
#[test]
fn cve_2023_30464_differing_queries() {
    const LASTS: Duration = Duration::from_secs(1);
    let upstream = Upstream::start(fresh_ip(), |asked| good(asked).after(LASTS));
    let dns = Dns::start(&format!("multisocket 4\ncache\nforward . {}", upstream.word()));
    scope(|scope| {
        for n in 0..200_u8 {
            let dns = &dns;
            scope.spawn(move || {
                let ask = Ask::new("same.example", "A").option(8, &[0, 1, 24, 0, 198, 51, n]);
                let ask = if n & 1 == 0 { ask } else { ask.dnssec_ok() };
                let ask = if n & 2 == 0 { ask } else { ask.cd() };
                assert_eq!(ask.of(dns.at).short(), ["192.0.2.1"], "subnet {n}");
            });
        }
    });
    let asked = upstream.asked_for("same.example.");
    let in_flight = asked
        .iter()
        .map(|one| asked.iter().filter(|other| other.at <= one.at && other.at + LASTS > one.at).count());
    // Eight with a subnet and four without, each with a hedge.
    let most = in_flight.max().unwrap_or_default();
    assert!((1..=24).contains(&most), "{most} ids to guess at a time");
}

/// An answer to a query with CD is returned only to queries with CD.
#[test]
fn cve_2024_0874_checking_disabled() {
    let upstream = Upstream::start(fresh_ip(), |asked| match asked.flags & 0x0010 != 0 {
        true => Action::answer("x.example. 300 IN A 203.0.113.66"),
        false => Action::rcode(2),
    });
    let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
    assert_eq!(Ask::new("x.example", "A").cd().of(dns.at).short(), ["203.0.113.66"]);
    assert_eq!(dns.ask("x.example").status(), "SERVFAIL", "not from the bogus answer");
}

/// Queries that look like the probe for loops do not end the server.
#[test]
fn cve_2026_26018_loop_probes() {
    let upstream = Upstream::start(fresh_ip(), good);
    let mut dns = Dns::start(&format!("loop\nforward . {}", upstream.word()));
    for n in 0..2_000_u64 {
        let guess = format!("{}.{}", n * 0x9e37_79b9, n.wrapping_mul(0x1234_5678_9abc));
        drop(exchange_udp(dns.at, &Ask::new(&guess, "HINFO").bytes(), Duration::from_millis(200)));
    }
    assert!(dns.server.is_running());
    assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"]);
}

/// A count of 65535 questions is not believed.
#[test]
fn cve_2026_82399_question_count() {
    let dns = Dns::start("whoami");
    let rss = dns.server.rss_kb();
    let question = &Ask::new("a.example", "A").bytes()[12..];
    for counts in [[65_535, 0, 0, 0], [65_535; 4], [1, 0, 0, 65_535], [2, 0, 0, 0]] {
        // One question, and as many as fit into a message.
        for questions in [1, 3_000] {
            let message = [header(7, 0x0100, counts), question.repeat(questions)].concat();
            if message.len() <= 4_096 {
                let reply = exchange_udp(dns.at, &message, Duration::from_millis(500));
                assert!(reply.is_ok_and(|reply| reply[3] & 0xf == 1), "{counts:?} over UDP");
            }
            let mut connection = Connection::open(dns.at, Duration::from_secs(2)).unwrap();
            connection.send(&message).unwrap();
            assert_eq!(connection.message().unwrap().rcode(), 1, "{counts:?} over TCP");
        }
    }
    assert!(dns.server.rss_kb() < rss + (4 << 10), "{rss} -> {} KiB", dns.server.rss_kb());
}

/// No update reaches an upstream.
#[test]
fn cve_2026_86003_updates() {
    let upstream = Upstream::start(fresh_ip(), good);
    let dns = Dns::start(&format!("forward . {}", upstream.word()));
    for query in [Ask::new("example", "SOA").opcode(5), Ask::new("example", "SOA").opcode(5).tcp()] {
        assert_eq!(query.of(dns.at).status(), "NOTIMP");
    }
    for rtype in ["AXFR", "IXFR"] {
        assert_eq!(Ask::new("example", rtype).tcp().of(dns.at).status(), "REFUSED");
    }
    assert_eq!(upstream.total(), 0);
}

/// Compression bombs of clients and of upstreams are refused.
#[test]
fn compression_bombs_are_refused() {
    steadily(|| {
        // A pointer to itself, a forward pointer, and a chain of pointers.
        let chain: Vec<u8> =
            (0..2_000_u16).flat_map(|n| (0xc000 | (12 + 2 * n.saturating_sub(1))).to_be_bytes()).collect();
        let bombs: [Vec<u8>; 3] = [vec![0xc0, 12, 0, 1, 0, 1], vec![0xc0, 40, 0, 1, 0, 1], chain];
        let bad = bombs.clone();
        let upstream = Upstream::start(fresh_ip(), move |asked| {
            let Some(bomb) = asked.name[..1].parse().ok().and_then(|n: usize| bad.get(n)) else {
                return good(asked);
            };
            let mut reply = asked.bytes[..12].to_vec();
            reply[2] |= 0x80;
            // The header announces a thousand answers.
            reply[6..12].copy_from_slice(&[3, 232, 0, 0, 0, 0]);
            let end = 12 + asked.name.len() + 1 + 4;
            reply.extend(&asked.bytes[12..end]);
            reply.extend(bomb);
            Action::Octets(reply)
        });
        let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
        for (n, bomb) in bombs.iter().enumerate() {
            let started = now();
            let message = [header(9, 0x0100, [1, 0, 0, 0]), bomb.clone()].concat();
            let reply = exchange_udp(dns.at, &message, Duration::from_millis(500));
            assert!(reply.is_ok_and(|reply| reply[3] & 0xf == 1), "bomb {n} of a client");
            assert!(started.elapsed() < Duration::from_millis(500));
            let reply = Ask::new(&format!("{n}.example"), "A").timeout(Duration::from_secs(7)).of(dns.at);
            assert_eq!(reply.status(), "SERVFAIL", "bomb {n} of an upstream");
        }
    });
}

/// Slow clients that send single bytes are closed and delay no other client.
#[test]
fn slow_loris_clients_are_closed() {
    steadily(|| {
        let dns = Dns::start("whoami\ntimeouts {\nread 1s\nidle 2s\n}");
        let before = dns.server.fds();
        let started = now();
        let mut slow: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(dns.at).unwrap()).collect();
        // Single bytes, so that no client is ever idle for `read`.
        let query = Ask::new("a.example", "A").bytes();
        let framed = [&(query.len() as u16).to_be_bytes()[..], &query].concat();
        for octet in framed.iter().take(8) {
            for stream in &mut slow {
                drop(stream.write_all(&[*octet]));
            }
            let reply = Ask::new("a.example", "A").tcp().of(dns.at);
            assert!(reply.elapsed < Duration::from_secs(1), "{:?}", reply.elapsed);
            std::thread::sleep(Duration::from_millis(250));
        }
        eventually("every slow client cut off", Duration::from_secs(5), || {
            (dns.server.fds() <= before + 2).then_some(())
        });
        assert!(started.elapsed() < Duration::from_secs(8));
    });
}

/// The start of a message above the limit is answered with an error, the rest discarded.
#[test]
fn tcp_message_above_the_limit() {
    const NOERROR: u16 = 0;
    const FORMERR: u16 = 1;
    let dns = Dns::start("whoami");
    let padded = |octets: usize| {
        // RFC 7830.
        let query = |padding| Ask::new("long.example", "A").option(12, &vec![0; padding]).bytes();
        query(octets - query(0).len())
    };
    let mut connection = Connection::open(dns.at, Duration::from_secs(5)).unwrap();
    for (octets, rcode) in [(4_096, NOERROR), (4_097, FORMERR), (9_000, FORMERR), (65_535, FORMERR)] {
        let message = padded(octets);
        connection.send(&message).unwrap();
        assert_eq!(connection.message().unwrap().flags & 15, rcode, "{octets} octets");
        // The next message is read correctly, also if both arrive together.
        connection.send(&message).unwrap();
        connection.send(&Ask::new("next.example", "A").bytes()).unwrap();
        let both = [connection.message().unwrap(), connection.message().unwrap()];
        assert_eq!(both.map(|reply| reply.flags & 15), [rcode, NOERROR], "{octets} octets");
    }
}

/// Messages of 64 KiB are read and refused, and memory does not grow.
#[test]
fn messages_of_64_kib() {
    let dns = Dns::start("whoami");
    let rss = dns.server.rss_kb();
    let query = Ask::new("a.example", "A").bytes();
    scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for n in 0..50_u8 {
                    let mut connection = Connection::open(dns.at, Duration::from_secs(5)).unwrap();
                    // A query followed by padding to 64 KiB, and 64 KiB of one byte.
                    let mut message = if n % 2 == 0 { query.clone() } else { Vec::new() };
                    message.resize(65_535, n);
                    connection.send(&message).unwrap();
                    drop(connection.message());
                }
            });
        }
    });
    assert_eq!(ask(dns.at, "a.example", "A").status(), "NOERROR");
    assert!(dns.server.rss_kb() < rss + (16 << 10), "{rss} -> {} KiB", dns.server.rss_kb());
}
